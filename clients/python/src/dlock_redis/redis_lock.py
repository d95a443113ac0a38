# SPDX-License-Identifier: MIT
"""redis-py's own `Lock` by dlock: its names, its errors, and one line to change.

with client.lock("stock", timeout=10, blocking_timeout=5, lock_class=RedisLock):

With `timeout` it lasts so long and is not kept; without it is kept until it is released, or the program dies. A key
that an older program has locked by redis-py's own lock is taken, and is asked for again every `sleep` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import uuid
import weakref
from collections.abc import Iterator
from typing import Any, Literal

import redis
import redis.asyncio
from redis import exceptions as library
from redis.asyncio.lock import Lock as LibraryAsyncLock
from redis.lock import Lock as LibraryLock

from ._asyncio import AsyncLocks
from ._clock import ms, now
from ._errors import LockTimeout, NotHeld, is_unanswered, passes
from ._hold import HoldBase
from ._library import is_cluster
from ._session import Errand
from ._take import encoded
from ._threads import Locks

_locks: weakref.WeakKeyDictionary[Any, Locks] = weakref.WeakKeyDictionary()
_async_locks: weakref.WeakKeyDictionary[Any, AsyncLocks] = weakref.WeakKeyDictionary()


def _wrong_type(error: BaseException) -> bool:
    return str(error).startswith("WRONGTYPE")


class _Common:
    """What is asked, and what follows from the answers."""

    name: Any
    timeout: Any
    blocking: Any
    blocking_timeout: Any
    local: Any
    _all: Any

    def _limit(self, blocking: bool | None, blocking_timeout: Any) -> float | None:
        """Returns the seconds to wait: None for ever."""
        limit = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        wait: float | None = limit if (self.blocking if blocking is None else blocking) else 0
        return wait

    def _is_kept(self, token: Any) -> bool:
        """Returns true if a session keeps it. With a time-out, or a name that may be used again, none does."""
        return self.timeout is None and token is None

    def _words(self, owner: bytes, left: float) -> tuple[Any, ...]:
        """Returns one slice of a wait in the queue, or a try. The place is kept in between."""
        sessions = self._all._sessions
        lease = ms(sessions.settings.lease if self.timeout is None else self.timeout)
        words = encoded(self.name), owner, lease, "HOLDS", 1
        if left <= 0:
            return ("DLOCK.ACQUIRE", *words)
        slice_ = min(left, 1.0, sessions.settings.reply_timeout / 2)
        return ("DLOCK.FAIRACQUIRE", *words, "BLOCK", ms(slice_), "CLAIM", ms(2 * sessions.settings.reply_timeout))

    def _took(self, owner: bytes, hold: Any) -> None:
        self.local.token, self.local.hold = owner, hold

    def _release_words(self, token: Any, held: Any) -> tuple[Any, ...]:
        if held is None:
            raise NotHeld(f"NOTHELD {self.name!r} is not held under this token")
        return ("DLOCK.RELEASE", encoded(self.name), token, "HOLDS", 0, "TOKEN", held[0])

    def _renew_words(self, seconds: float) -> tuple[Any, ...]:
        return ("DLOCK.RENEW", encoded(self.name), self.local.token, ms(seconds))

    @contextlib.contextmanager
    def _must_own(self, what: str) -> Iterator[None]:
        try:
            yield
        except (NotHeld, library.ResponseError) as error:
            if isinstance(error, NotHeld) or _wrong_type(error):
                raise library.LockNotOwnedError(f"Cannot {what} a lock that's no longer owned") from error
            raise


class _Wait:
    """A job: asks for a lock that no session keeps, until it is granted or the time is up.

    While an older program has the key it asks again every `sleep` seconds."""

    woken: Any = None

    def __init__(self, lock: _Common, token: Any, limit: float | None, sleep: float):
        name = uuid.uuid4().hex if token is None else token
        self.owner = name if isinstance(name, bytes) else str(name).encode()
        self.granted = False
        self._lock = lock
        self._is_named = token is not None
        self._limit = limit
        self._sleep = sleep
        self._end = math.inf if limit is None else now() + limit
        self._asked = 0
        self._may_be_there = False  # in the queue, or as a grant of which nobody knows
        self._done = False
        self._pause = 0.0
        self._error: Exception | None = None

    def next(self) -> tuple[Any, ...] | float | None:
        if self._done:
            return None
        if self._pause > now():
            return self._pause - now()
        words = self._lock._words(self.owner, self._end - now() if self._asked else 0)
        self._asked += 1
        self._may_be_there = True
        return words

    def answered(self, sent: float, reply: Any) -> None:
        is_error = isinstance(reply, Exception)
        self._may_be_there = is_unanswered(reply) if is_error else not reply and self._asked > 1
        is_late = now() >= self._end
        if is_error and not _wrong_type(reply):
            late = LockTimeout(f"{self._lock.name!r} was not granted within {self._limit} s: {reply}", taken=False)
            late.__cause__ = reply
            is_final = self._limit == 0 or not passes(reply)
            self._error = reply if is_final else late if is_late else None
            self._done = self._error is not None
            self._pause = now() + 0.05
        elif is_error:
            self._done = now() + self._sleep > self._end
            self._pause = now() + self._sleep
        else:
            self.granted = bool(reply)
            self._done = self.granted or is_late
            if self.granted:
                self._lock._took(self.owner, reply[0])

    def __enter__(self) -> _Wait:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leaves nothing behind, also if it was interrupted."""
        if self._may_be_there:
            sessions, name = self._lock._all._sessions, encoded(self._lock.name)
            is_needed = sessions.patience(0.0)

            def then(sent: float, reply: Any) -> None:
                if reply == 0 and not self._is_named:  # it may have been granted
                    sessions.errand(Errand(("DLOCK.RELEASE", name, self.owner, "HOLDS", 0), is_needed))

            sessions.errand(Errand(("DLOCK.CANCEL", name, self.owner), is_needed, then))
        if error is None and self._error is not None:
            raise self._error


class RedisLock(_Common, LibraryLock):
    """For `Redis.lock(…, lock_class=RedisLock)`."""

    def register_scripts(self) -> None:
        """There are none. All locks of one client share ours."""
        if self.redis not in _locks:
            _locks.setdefault(self.redis, Locks(_pattern(self.redis, redis.Redis)))
        self._all = _locks[self.redis]

    def acquire(
        self,
        sleep: Any = None,
        blocking: bool | None = None,
        blocking_timeout: Any = None,
        token: Any = None,
    ) -> bool:
        sleep = self.sleep if sleep is None else sleep
        limit = self._limit(blocking, blocking_timeout)
        if self._is_kept(token):
            return self._acquire_kept(limit, sleep)
        self._all._sessions.check()
        with _Wait(self, token, limit, sleep) as wait:
            self._all._sessions.run(wait)
        return wait.granted

    def _acquire_kept(self, limit: float | None, sleep: float) -> bool:
        end = math.inf if limit is None else now() + limit
        while True:
            try:
                hold = self._all.try_lock(self.name, None if limit is None else max(0.0, end - now()))
            except library.ResponseError as error:
                if not _wrong_type(error):
                    raise
                if now() + sleep > end:
                    return False
                time.sleep(sleep)
                continue
            if hold is not None:
                self._took(hold._held.owner, hold)
            return hold is not None

    def locked(self) -> bool:
        try:
            return self._asked("DLOCK.HELD", encoded(self.name)) is not None
        except library.ResponseError as error:
            if _wrong_type(error):
                return True
            raise

    def owned(self) -> bool:
        with contextlib.suppress(library.ResponseError):
            return self.local.token is not None and self._held(self.local.token) is not None
        return False

    def do_release(self, expected_token: Any) -> None:
        with self._must_own("release"):
            hold, self.local.hold = getattr(self.local, "hold", None), None
            if isinstance(hold, HoldBase):
                hold.release()  # type: ignore[attr-defined]
                return
            held = [hold] if hold else self._held(expected_token)  # it may have been taken by another object
            self._asked(*self._release_words(expected_token, held))

    def do_extend(self, additional_time: Any, replace_ttl: bool) -> Literal[True]:
        with self._must_own("extend"):
            held = None if replace_ttl else self._held(self.local.token)
            self._asked(*self._renew_words(additional_time + (held[2] / 1000 if held else 0.0)))
        return True

    def do_reacquire(self) -> Literal[True]:
        with self._must_own("reacquire"):
            self._asked(*self._renew_words(self.timeout))
        return True

    def _asked(self, *words: Any) -> Any:
        self._all._sessions.check()
        return self._all._sessions.library.call(words)

    def _held(self, token: Any) -> Any:
        return self._asked("DLOCK.HELD", encoded(self.name), token)


class AsyncRedisLock(_Common, LibraryAsyncLock):
    """For `redis.asyncio.Redis.lock(…, lock_class=AsyncRedisLock)`."""

    def register_scripts(self) -> None:
        if self.redis not in _async_locks:
            _async_locks[self.redis] = AsyncLocks(_pattern(self.redis, redis.asyncio.Redis))
        self._all = _async_locks[self.redis]

    async def acquire(self, blocking: bool | None = None, blocking_timeout: Any = None, token: Any = None) -> bool:
        limit = self._limit(blocking, blocking_timeout)
        if self._is_kept(token):
            return await self._acquire_kept(limit, self.sleep)
        self._all._sessions.check()
        with _Wait(self, token, limit, self.sleep) as wait:
            await self._all._sessions.run(wait)
        return wait.granted

    async def _acquire_kept(self, limit: float | None, sleep: float) -> bool:
        end = math.inf if limit is None else now() + limit
        while True:
            try:
                hold = await self._all.try_lock(self.name, None if limit is None else max(0.0, end - now()))
            except library.ResponseError as error:
                if not _wrong_type(error):
                    raise
                if now() + sleep > end:
                    return False
                await asyncio.sleep(sleep)
                continue
            if hold is not None:
                self._took(hold._held.owner, hold)
            return hold is not None

    async def locked(self) -> bool:
        try:
            return await self._asked("DLOCK.HELD", encoded(self.name)) is not None
        except library.ResponseError as error:
            if _wrong_type(error):
                return True
            raise

    async def owned(self) -> bool:
        with contextlib.suppress(library.ResponseError):
            return self.local.token is not None and await self._held(self.local.token) is not None
        return False

    async def do_release(self, expected_token: Any) -> None:
        with self._must_own("release"):
            hold, self.local.hold = getattr(self.local, "hold", None), None
            if isinstance(hold, HoldBase):
                await hold.release()  # type: ignore[attr-defined]
                return
            held = [hold] if hold else await self._held(expected_token)  # it may have been taken by another object
            await self._asked(*self._release_words(expected_token, held))

    async def do_extend(self, additional_time: Any, replace_ttl: bool) -> Literal[True]:
        with self._must_own("extend"):
            held = None if replace_ttl else await self._held(self.local.token)
            await self._asked(*self._renew_words(additional_time + (held[2] / 1000 if held else 0.0)))
        return True

    async def do_reacquire(self) -> Literal[True]:
        with self._must_own("reacquire"):
            await self._asked(*self._renew_words(self.timeout))
        return True

    async def _asked(self, *words: Any) -> Any:
        self._all._sessions.check()
        return await self._all._sessions.library.call(words)

    async def _held(self, token: Any) -> Any:
        return await self._asked("DLOCK.HELD", encoded(self.name), token)


def _pattern(client: Any, kind: Any) -> Any:
    """A client like it: Locks must not keep alive what it is found by."""
    return client if is_cluster(client) else kind(connection_pool=client.connection_pool)
