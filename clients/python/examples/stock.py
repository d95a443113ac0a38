import redis

from dlock_redis import Locks

locks = Locks(redis.Redis(port=6379))
with locks.lock("stock", blocking_timeout=5) as hold:  # dlock_redis.LockTimeout after 5 s
    hold.guard("SET", "stock:left", 41)  # runs only while the lock is held: else dlock_redis.Fenced
