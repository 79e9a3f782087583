#!/usr/bin/env ruby
# Sidekiq as its users write it, with its own worker: client.rb HOST:PORT [SCENARIO..]

ADDRESS = ARGV[0] || abort("usage: client.rb HOST:PORT [SCENARIO..]")
ENV["COMPAT_ADDRESS"] = ADDRESS

require_relative "app"
require "sidekiq/api"

WAIT_SECONDS = 60

def same(found, expected, what = "the value")
  raise "#{what} is #{found.inspect}, not #{expected.inspect}" unless found == expected
end

def until_true(what)
  limit = Process.clock_gettime(Process::CLOCK_MONOTONIC) + WAIT_SECONDS
  while Process.clock_gettime(Process::CLOCK_MONOTONIC) < limit
    found = yield
    return found if found

    sleep 0.02
  end
  raise "not within #{WAIT_SECONDS} s: #{what}"
end

# Runs Sidekiq's worker until the block ends. It then ends running jobs after 3 seconds: with less time, one of its
# threads that still waits in BRPOP would take the job that another one returns to the queue, and lose it.
def worker
  app = File.join(__dir__, "app.rb")
  pid = spawn("sidekiq", "-r", app, "-q", "default", "-c", "4", "-t", "3", out: :err)
  yield
ensure
  Process.kill("TERM", pid)
  Process.wait(pid)
end

def done(name)
  Sidekiq.redis { |redis| redis.lrange("done:#{name}", 0, -1) }
end

def sidekiq
  queue, scheduled = Sidekiq::Queue.new, Sidekiq::ScheduledSet.new
  retries, dead = Sidekiq::RetrySet.new, Sidekiq::DeadSet.new
  removed = Add.perform_async(1000, 1000)
  same([queue.size, queue.find_job(removed).args], [1, [1000, 1000]], "the queue")
  same(queue.find_job(removed).delete, true, "the deletion of a waiting job")
  worker do
    Sidekiq::Client.push_bulk("class" => Add, "args" => (0...80).map { |at| [at, at] })
    (80...100).each { |at| Add.perform_async(at, at) }
    until_true("all jobs") { done("add").size == 100 }
    same(done("add").map(&:to_i).sort, (0...100).map { |at| 2 * at }, "the results")

    start = Time.now.to_f
    Timed.perform_in(600)
    same(scheduled.map { |job| [job.klass, job.at.to_f - start >= 600] }, [["Timed", true]], "the scheduled jobs")
    same([scheduled.first.delete, scheduled.size], [true, 0], "the deletion of a scheduled job")
    start = Time.now.to_f
    Timed.perform_in(2)
    until_true("the scheduled job") { !done("timed").empty? }
    same(done("timed").size, 1, "the number of executions")
    same(done("timed").first.to_f - start >= 2, true, "that the scheduled job waited")

    Retried.perform_async("text")
    failed = until_true("the failed job") { retries.find { |job| job.klass == "Retried" } }
    same([failed["error_class"], failed["error_message"], failed["retry_count"]], ["RuntimeError", "as it should", 0])
    same(failed.at.to_f - Time.now.to_f > 500, true, "the time of the retry")
    failed.reschedule(Time.now.to_f)
    until_true("the retry") { !done("retried").empty? }
    same([done("retried"), retries.size], [["text"], 0], "the retried job")

    Mortal.perform_async
    until_true("the dead job") { dead.size == 1 }
    same([dead.first["error_class"], retries.size], ["ArgumentError", 0], "the dead job")
    Sidekiq.redis { |redis| redis.set("revived", 1) }
    dead.first.retry
    until_true("the revived job") { !done("mortal").empty? }
    same(dead.size, 0, "the number of dead jobs")

    processes = until_true("the heartbeat") { Sidekiq::ProcessSet.new.to_a[0] }
    same([processes["concurrency"], processes["queues"]], [4, ["default"]], "the process")
    statistics = Sidekiq::Stats.new
    same([statistics.enqueued, statistics.scheduled_size, statistics.retry_size], [0, 0, 0], "the statistics")
    Interrupted.perform_async
    until_true("the start of a job that does not end") { Sidekiq.redis { |redis| redis.get("interrupted") } == "1" }
  end
  same([queue.size, queue.first.klass], [1, "Interrupted"], "the queue after the end of the worker")
  statistics = Sidekiq::Stats.new
  # 100 additions, a scheduled job, the interrupted job, and two attempts each of a retried and of a dead one. The
  # interruption and the first attempts failed.
  same([statistics.processed, statistics.failed], [106, 3], "the processed and failed jobs")
  same(Sidekiq::Stats::History.new(2).processed.values.sum, 106, "the processed jobs of two days")
  worker { until_true("the interrupted job") { done("interrupted") == ["2"] } }
  same(queue.size, 0, "the size of the queue")
end

SCENARIOS = {"sidekiq" => method(:sidekiq)}.freeze

def run(name)
  start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  same(Sidekiq.redis(&:dbsize), 0, "the number of keys in database #{DATABASE}")
  begin
    SCENARIOS[name].call
  ensure
    Sidekiq.redis(&:flushdb)
  end
  puts "ok #{name} (#{(Process.clock_gettime(Process::CLOCK_MONOTONIC) - start).round(1)} s)"
  true
rescue => error
  warn error.full_message if ENV["COMPAT_TRACE"]
  puts "FAILED #{name}: #{error.class}: #{error.message.split.join(" ")[0, 300]}"
  false
end

$stdout.sync = true
puts "client libraries-ruby redis-rb-#{Redis::VERSION}"
puts "library sidekiq #{Sidekiq::VERSION}: jobs, bulks, schedules, retries, dead jobs, statistics, a worker that ends early"
wanted = ARGV.drop(1).empty? ? SCENARIOS.keys : ARGV.drop(1)
unknown = wanted - SCENARIOS.keys
abort "there is no scenario #{unknown[0]}: choose from #{SCENARIOS.keys.join(" ")}" unless unknown.empty?
exit wanted.map { |name| run(name) }.all?
