# Plain commands from Ruby, by the gem redis: what docs/clients.md shows, run against a server.
require 'redis'
require 'securerandom'

host, port = ENV.fetch('DLOCK_SINGLE').split(':')
address = { host: host, port: port.to_i, reconnect_attempts: 0 }
stock = "{#{SecureRandom.hex(6)}}lock"
left = "#{stock}:left"

def check(what, seen)
  raise "#{what}: #{seen.inspect}" unless seen == true
end

redis = Redis.new(**address)
other = Redis.new(**address)
other.call('DLOCK.ACQUIRE', stock, 'other', 1500) # somebody has it, for a while

owner = SecureRandom.uuid
token = nil
until token # in slices below the read time-out of 5 s; the place is kept in between
  token, = redis.call('DLOCK.FAIRACQUIRE', stock, owner, 10_000, 'BLOCK', 2_000, 'CLAIM', 5_000, 'HOLDS', 1)
end
redis.call('DLOCK.RENEW', stock, owner, 10_000, 'TOKEN', token, 'AUTO', 60_000) # while this connection lives
redis.call('DLOCK.GUARD', stock, token, 'SET', left, 41) # FENCED if it is not held any more
redis.call('DLOCK.RELEASE', stock, owner, 'TOKEN', token)

check('it was written', other.get(left) == '41')
check('it was given back', other.call('DLOCK.HELD', stock).nil?)

# What else the page says of this library.
redis.call('DLOCK.ACQUIRE', stock, owner, 10_000)
begin
  redis.call('DLOCK.GUARD', stock, token, 'GET', left)
  check('it is fenced', false)
rescue Redis::CommandError => e
  check('its first word is the code', e.message.start_with?('FENCED '))
end
check('it is taken', other.call('DLOCK.ACQUIRE', stock, 'other').nil?)
impatient = Redis.new(**address, read_timeout: 0.3)
begin
  impatient.call('DLOCK.ACQUIRE', stock, 'impatient', 10_000, 'BLOCK', 60_000)
  check('the time-out strikes', false)
rescue Redis::TimeoutError
  redis.call('DLOCK.RELEASE', stock, owner)
  sleep 0.01 until other.call('DLOCK.INFO', stock).nil? # the library has closed the connection, so the place is gone
end
puts 'ruby: all is as it should be'
