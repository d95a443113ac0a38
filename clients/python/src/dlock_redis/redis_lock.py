# SPDX-License-Identifier: MIT
"""redis-py's own `Lock` by dlock: its names, its errors, and one line to change.

with client.lock("stock", timeout=10, blocking_timeout=5, lock_class=RedisLock):

With `timeout` it lasts so long and is not kept; without it is kept until it is released, or the program dies. A key
that an older program has locked by redis-py's own lock is taken, and is asked for again every `sleep` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
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

from ._asyncio import AsyncHold, AsyncLocks
from ._errors import NotHeld
from ._hold import HoldBase
from ._request import Request, ms, now
from ._threads import Hold, Locks, run

_locks: weakref.WeakKeyDictionary[Any, Locks] = weakref.WeakKeyDictionary()
_async_locks: weakref.WeakKeyDictionary[Any, AsyncLocks] = weakref.WeakKeyDictionary()


def _wrong_type(error: BaseException) -> bool:
    return str(error).startswith("WRONGTYPE")


class _Common:
    """Names in terms of commands. Each call gives a coroutine; a thread runs it to its end."""

    name: Any
    timeout: Any
    local: Any
    _all: Any
    _kind: Any

    def _asked(self, *words: Any) -> Any:
        core = self._all._core
        core.check()
        return core.call(self.name, words, now() + core.settings.reply_timeout)

    async def _locked(self) -> bool:
        try:
            return (await self._asked("DLOCK.HELD", self.name))[0] is not None
        except library.ResponseError as error:
            if _wrong_type(error):
                return True
            raise

    async def _owned(self) -> bool:
        token = self.local.token
        with contextlib.suppress(library.ResponseError):
            return token is not None and (await self._asked("DLOCK.HELD", self.name, token))[0] is not None
        return False

    async def _given_back(self, token: Any) -> None:
        with self._must_own("release"):
            hold, self.local.hold = getattr(self.local, "hold", None), None
            if isinstance(hold, HoldBase):
                await self._all._core.release(hold)
                return
            if hold is None:  # it was taken by another object
                held = (await self._asked("DLOCK.HELD", self.name, token))[0]
                hold = held[0] if held else 0
            # Read late, this must not end what the same token is granted then.
            await self._asked("DLOCK.RELEASE", self.name, token, "HOLDS", 0, "TOKEN", hold)

    async def _renewed(self, seconds: float, to_what_is_left: bool, what: str) -> Literal[True]:
        with self._must_own(what):
            if to_what_is_left:
                held = (await self._asked("DLOCK.HELD", self.name, self.local.token))[0]
                seconds += held[2] / 1000 if held else 0.0
            await self._asked("DLOCK.RENEW", self.name, self.local.token, ms(seconds))
        return True

    @contextlib.contextmanager
    def _must_own(self, what: str) -> Iterator[None]:
        try:
            yield
        except (NotHeld, library.ResponseError) as error:
            if isinstance(error, NotHeld) or _wrong_type(error):
                raise library.LockNotOwnedError(f"Cannot {what} a lock that's no longer owned") from error
            raise

    def _request(self, token: Any) -> Request:
        """With a time-out it lasts so long, and nobody keeps it: two commands a lock."""
        name = uuid.uuid4().hex if token is None else token
        owner = name if isinstance(name, bytes) else str(name).encode()
        how: Any = {"lease": self.timeout, "renewed": self.timeout is None, "fixed": token is not None}
        return Request(self._all._core.settings, self.name, owner, **how)

    def _hold(self, request: Request, token: int) -> Any:
        """What was granted: a hold that is kept, or its fencing token."""
        return token if request.renewal is None else self._kind(self._all, request.renewal, None)


class RedisLock(_Common, LibraryLock):
    """For `Redis.lock(…, lock_class=RedisLock)`."""

    _kind = Hold

    def register_scripts(self) -> None:
        """There are none. All locks of one client share its connection."""
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
        limit = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        limit = limit if (self.blocking if blocking is None else blocking) else 0
        end = None if limit is None else now() + limit
        while True:
            try:
                request, left = self._request(token), limit if end is None else max(0.0, end - now())
                hold = run(self._all._core.take(request, left, lambda one, request=request: self._hold(request, one)))
                if hold is not None:
                    self.local.token, self.local.hold = request.owner, hold
                return hold is not None
            except library.ResponseError as error:
                if not _wrong_type(error):
                    raise
            if end is not None and now() + sleep > end:
                return False
            time.sleep(sleep)

    def locked(self) -> bool:
        return run(self._locked())

    def owned(self) -> bool:
        return run(self._owned())

    def do_release(self, expected_token: Any) -> None:
        run(self._given_back(expected_token))

    def do_extend(self, additional_time: Any, replace_ttl: bool) -> Literal[True]:
        return run(self._renewed(additional_time, not replace_ttl, "extend"))

    def do_reacquire(self) -> Literal[True]:
        return run(self._renewed(self.timeout, False, "reacquire"))


class AsyncRedisLock(_Common, LibraryAsyncLock):
    """For `redis.asyncio.Redis.lock(…, lock_class=AsyncRedisLock)`."""

    _kind = AsyncHold

    def register_scripts(self) -> None:
        if self.redis not in _async_locks:
            _async_locks[self.redis] = AsyncLocks(_pattern(self.redis, redis.asyncio.Redis))
        self._all = _async_locks[self.redis]

    async def acquire(self, blocking: bool | None = None, blocking_timeout: Any = None, token: Any = None) -> bool:
        limit = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        limit = limit if (self.blocking if blocking is None else blocking) else 0
        end = None if limit is None else now() + limit
        while True:
            try:
                request, left = self._request(token), limit if end is None else max(0.0, end - now())
                hold = await self._all._core.take(request, left, lambda one, request=request: self._hold(request, one))
                if hold is not None:
                    self.local.token, self.local.hold = request.owner, hold
                return hold is not None
            except library.ResponseError as error:
                if not _wrong_type(error):
                    raise
            if end is not None and now() + self.sleep > end:
                return False
            await asyncio.sleep(self.sleep)

    async def locked(self) -> bool:
        return await self._locked()

    async def owned(self) -> bool:
        return await self._owned()

    async def do_release(self, expected_token: Any) -> None:
        await self._given_back(expected_token)

    async def do_extend(self, additional_time: Any, replace_ttl: bool) -> Literal[True]:
        return await self._renewed(additional_time, not replace_ttl, "extend")

    async def do_reacquire(self) -> Literal[True]:
        return await self._renewed(self.timeout, False, "reacquire")


def _pattern(client: Any, kind: Any) -> Any:
    """A client like it: Locks must not keep alive what it is found by."""
    return client if hasattr(client, "get_node_from_key") else kind(connection_pool=client.connection_pool)
