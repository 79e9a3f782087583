# Jobs of Sidekiq that do nothing: `sidekiq_jobs.rb add` adds them, a worker that requires this file runs them.

require "sidekiq"

COUNT = Integer(ENV.fetch("JOBS_COUNT"))
SERVER = { url: "redis://#{ENV.fetch("JOBS_ADDRESS")}/0" }
Sidekiq.configure_server { |config| config.redis = SERVER }
Sidekiq.configure_client { |config| config.redis = SERVER }

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

class Nothing
  include Sidekiq::Worker
  LOCK = Mutex.new
  @done = 0

  class << self
    def done!
      LOCK.synchronize do
        @began = now if @done.zero?
        @done += 1
        next unless @done == COUNT

        puts "worked #{(COUNT / (now - @began)).round(1)}"
        $stdout.flush
        Process.kill("TERM", Process.pid)
      end
    end
  end

  def perform
    self.class.done!
  end
end

if ARGV[0] == "add"
  began = now
  COUNT.times.each_slice(1000) { |slice| Sidekiq::Client.push_bulk("class" => Nothing, "args" => slice.map { [] }) }
  puts "added #{(COUNT / (now - began)).round(1)}"
end
