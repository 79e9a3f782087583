# Jobs of Sidekiq, as an application defines them. The address is in the variable COMPAT_ADDRESS.
# Each job adds to a list that the scenario reads.

require "sidekiq"

# Sidekiq's keys have no prefix, so it has a database without other keys.
DATABASE = 11
URL = "redis://#{ENV.fetch("COMPAT_ADDRESS")}/#{DATABASE}"

Sidekiq.configure_client { |config| config.redis = {url: URL} }
Sidekiq.configure_server do |config|
  config.redis = {url: URL}
  # Reads the sets of scheduled jobs and retries several times per second, instead of every 5 seconds.
  config.options[:poll_interval_average] = 0.2
end

def note(name, value)
  Sidekiq.redis { |redis| redis.rpush("done:#{name}", value) }
end

class Add
  include Sidekiq::Worker

  def perform(one, two)
    note("add", one + two)
  end
end

class Timed
  include Sidekiq::Worker

  def perform
    note("timed", Time.now.to_f)
  end
end

class Retried
  include Sidekiq::Worker
  sidekiq_options retry: 3
  # The retry waits until the scenario moves it.
  sidekiq_retry_in { 600 }

  def perform(text)
    raise "as it should" if Sidekiq.redis { |redis| redis.incr("attempts") } == 1

    note("retried", text)
  end
end

class Mortal
  include Sidekiq::Worker
  sidekiq_options retry: 0

  def perform
    raise ArgumentError, "as it should" unless Sidekiq.redis { |redis| redis.get("revived") }

    note("mortal", "revived")
  end
end

# Ends only when its process ends, at its first attempt.
class Interrupted
  include Sidekiq::Worker

  def perform
    attempt = Sidekiq.redis { |redis| redis.incr("interrupted") }
    sleep if attempt == 1
    note("interrupted", attempt)
  end
end
