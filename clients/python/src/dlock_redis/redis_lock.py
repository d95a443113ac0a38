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
from ._errors import LockTimeout, NotHeld, passes
from ._hold import HoldBase
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

    def _leave(self, owner: bytes) -> None:
        words = ("DLOCK.CANCEL", encoded(self.name), owner)
        end = now() + self._all._sessions.settings.reply_timeout
        self._all._sessions.errand(Errand(words, lambda sent, reply: None, lambda: now() < end))

    def _took(self, owner: bytes, hold: Any) -> None:
        self.local.token, self.local.hold = owner, hold

    def _release_words(self, token: Any, held: Any) -> tuple[Any, ...]:
        return ("DLOCK.RELEASE", encoded(self.name), token, "HOLDS", 0, "TOKEN", held[0] if held else 0)

    def _renew_words(self, seconds: float) -> tuple[Any, ...]:
        return ("DLOCK.RENEW", encoded(self.name), self.local.token, ms(seconds))

    def _late(self, error: Exception, limit: float | None) -> LockTimeout:
        late = LockTimeout(f"{self.name!r} was not granted within {limit} s: {error}", taken=False)
        late.__cause__ = error
        return late

    @contextlib.contextmanager
    def _must_own(self, what: str) -> Iterator[None]:
        try:
            yield
        except (NotHeld, library.ResponseError) as error:
            if isinstance(error, NotHeld) or _wrong_type(error):
                raise library.LockNotOwnedError(f"Cannot {what} a lock that's no longer owned") from error
            raise


def _owner(token: Any) -> bytes:
    name = uuid.uuid4().hex if token is None else token
    return name if isinstance(name, bytes) else str(name).encode()


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
        sleep, limit = self.sleep if sleep is None else sleep, self._limit(blocking, blocking_timeout)
        end, owner = math.inf if limit is None else now() + limit, _owner(token)
        asked = False
        while True:
            try:
                if self._is_kept(token):
                    hold = self._all.try_lock(self.name, None if end == math.inf else max(0.0, end - now()))
                    if hold is not None:
                        self._took(hold._held.owner, hold)
                    return hold is not None
                reply = self._asked(*self._words(owner, end - now() if asked else 0))
                asked = True
                if reply:
                    self._took(owner, reply[0])
                    return True
                if now() >= end:
                    self._leave(owner)
                    return False
                continue
            except library.RedisError as error:
                if not _wrong_type(error):
                    asked = True
                    if limit == 0 or not passes(error):
                        raise
                    if now() >= end:
                        self._leave(owner)
                        raise self._late(error, limit) from error
                    time.sleep(0.05)
                    continue
            if now() + sleep > end:
                return False
            time.sleep(sleep)

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
        return self._all._sessions.call(*words)

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
        end, owner = math.inf if limit is None else now() + limit, _owner(token)
        asked = False
        while True:
            try:
                if self._is_kept(token):
                    hold = await self._all.try_lock(self.name, None if end == math.inf else max(0.0, end - now()))
                    if hold is not None:
                        self._took(hold._held.owner, hold)
                    return hold is not None
                reply = await self._asked(*self._words(owner, end - now() if asked else 0))
                asked = True
                if reply:
                    self._took(owner, reply[0])
                    return True
                if now() >= end:
                    self._leave(owner)
                    return False
                continue
            except library.RedisError as error:
                if not _wrong_type(error):
                    asked = True
                    if limit == 0 or not passes(error):
                        raise
                    if now() >= end:
                        self._leave(owner)
                        raise self._late(error, limit) from error
                    await asyncio.sleep(0.05)
                    continue
            if now() + self.sleep > end:
                return False
            await asyncio.sleep(self.sleep)

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
        return await self._all._sessions.call(*words)

    async def _held(self, token: Any) -> Any:
        return await self._asked("DLOCK.HELD", encoded(self.name), token)


def _pattern(client: Any, kind: Any) -> Any:
    """A client like it: Locks must not keep alive what it is found by."""
    return client if hasattr(client, "get_node_from_key") else kind(connection_pool=client.connection_pool)
