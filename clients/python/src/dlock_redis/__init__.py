# SPDX-License-Identifier: MIT
"""Locks of the dlock module for Redis and Valkey, by redis-py: for threads (`Locks`) and asyncio (`AsyncLocks`).

locks = Locks(redis.Redis())                        # or RedisCluster, or sentinel.master_for(...)
with locks.lock("stock", blocking_timeout=5) as hold:  # LockTimeout after 5 s
    hold.guard("SET", "stock:left", 41)             # runs only while the lock is held: else Fenced

locks = AsyncLocks(redis.asyncio.Redis())
async with locks.lock("stock", shared=True, on_lost=stop) as hold:
    print(hold.token)
"""

from ._asyncio import AsyncHold, AsyncLock, AsyncLocks
from ._errors import (
    Deadlock,
    DLockError,
    Fenced,
    LockTimeout,
    NoAck,
    NotHeld,
    Quarantine,
    QueueFull,
    Replaced,
)
from ._settings import Observer
from ._threads import Hold, Lock, Locks
from .fakes import AsyncFakeHold, AsyncFakeLocks, FakeHold, FakeLocks
from .leader import AsyncElection, Election, Leader
from .quorum import Quorum, QuorumHold, Unreachable
from .redis_lock import AsyncRedisLock, RedisLock

__version__ = "0.6.0-dev"

__all__ = [
    "AsyncElection",
    "AsyncFakeHold",
    "AsyncFakeLocks",
    "AsyncHold",
    "AsyncLock",
    "AsyncLocks",
    "AsyncRedisLock",
    "DLockError",
    "Deadlock",
    "Election",
    "FakeHold",
    "FakeLocks",
    "Fenced",
    "Hold",
    "Leader",
    "Lock",
    "LockTimeout",
    "Locks",
    "NoAck",
    "NotHeld",
    "Observer",
    "Quarantine",
    "QueueFull",
    "Quorum",
    "QuorumHold",
    "RedisLock",
    "Replaced",
    "Unreachable",
]
