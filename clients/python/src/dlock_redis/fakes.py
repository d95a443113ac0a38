# SPDX-License-Identifier: MIT
"""Locks without a server, for unit tests: `FakeLocks` instead of `Locks`, `AsyncFakeLocks` instead of `AsyncLocks`.

They are fair to nobody and keep nothing: a lock is taken or free, waits end at their time-out, and `lose` takes a hold
away, as a server does after a failure. `commands` has what was guarded, and `reply` answers it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from ._asyncio import AsyncLost
from ._errors import Fenced, LockTimeout, NotHeld
from ._take import must
from ._threads import Lost


class FakeHold:
    """A lock that is held in this process."""

    def __init__(self, locks: FakeLocks, key: Any, options: dict[str, Any]):
        self.locks, self.key, self.token, self.reason = locks, key, next(locks.tokens), ""
        self.limit = float("inf") if options.get("shared") else options.get("limit") or 1
        self.permits, self.lost, self.owner = options.get("permits") or 1, Lost(), f"fake/{self.token}"
        self.is_released = False
        self.on_lost: Callable[[Any], object] | None = options.get("on_lost")

    def left(self) -> float:
        return 0.0 if self.lost.is_set() else 10.0

    def guard(self, *command: Any) -> Any:
        if self not in self.locks.holds:
            raise Fenced(f"FENCED {self.key!r} is not held under this token")
        self.locks.commands.append(command)
        return self.locks.reply(*command)

    def release(self) -> None:
        if self not in self.locks.holds:
            raise NotHeld(f"NOTHELD {self.key!r} is not held: {self.reason or 'already released'}")
        self.locks.holds.remove(self)
        self.is_released = True

    def release_after(self, seconds: float) -> None:
        self.locks.reserved[self.key] = time.monotonic() + seconds
        self.release()

    def __enter__(self) -> FakeHold:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if not self.is_released:
            with contextlib.suppress(*([NotHeld] if kind else [])):
                self.release()


class FakeLocks:
    """What a program uses of `Locks`, with the same arguments."""

    def __init__(self) -> None:
        self.holds: list[FakeHold] = []
        self.commands: list[tuple[Any, ...]] = []
        self.reply: Callable[..., Any] = lambda *command: None
        self.reserved: dict[Any, float] = {}  # by `release_after`
        self.tokens = itertools.count(1)
        self._guard = threading.Lock()

    def try_lock(self, key: Any, blocking_timeout: float | None = 0, **options: Any) -> FakeHold | None:
        end = time.monotonic() + (float("inf") if blocking_timeout is None else blocking_timeout)
        hold = FakeHold(self, key, options)
        while True:
            with self._guard:
                if self._fits(hold):
                    self.holds.append(hold)
                    return hold
            if time.monotonic() >= end:
                return None
            time.sleep(0.005)

    def acquire(self, key: Any, blocking_timeout: float | None = None, **options: Any) -> FakeHold:
        hold = self.try_lock(key, blocking_timeout, **options)
        if hold is None:
            raise LockTimeout(f"{key!r} was not granted within {blocking_timeout} s: it is taken")
        return hold

    @contextlib.contextmanager
    def lock(self, key: Any, blocking_timeout: float | None = None, **options: Any) -> Iterator[FakeHold]:
        with self.acquire(key, blocking_timeout, **options) as hold:
            yield hold

    @contextlib.contextmanager
    def many(self, keys: Iterable[Any], blocking_timeout: float | None = None, **options: Any) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            yield {key: stack.enter_context(self.lock(key, blocking_timeout, **options)) for key in sorted(set(keys))}

    def is_held(self, key: Any) -> bool:
        return any(hold.key == key for hold in self.holds) or self.reserved.get(key, 0.0) > time.monotonic()

    def lose(self, hold: FakeHold, reason: str = "forced") -> None:
        """Takes a hold away, and tells the program."""
        self.holds.remove(hold)
        hold.reason = reason
        hold.lost.set()
        if hold.on_lost is not None:
            hold.on_lost(hold)

    def close(self) -> None:
        for hold in list(self.holds):
            self.lose(hold, "closed")

    def __enter__(self) -> FakeLocks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fits(self, new: FakeHold) -> bool:
        others = [hold for hold in self.holds if hold.key == new.key]
        permits = new.permits + sum(hold.permits for hold in others)
        free = self.reserved.get(new.key, 0.0) <= time.monotonic()
        return free and all(permits <= hold.limit for hold in [new, *others])


class AsyncFakeHold:
    """A lock that is held in this process. `key`, `owner`, `token`, `reason` and `left` are those of `FakeHold`."""

    def __init__(self, hold: FakeHold, on_lost: Callable[[Any], object] | None):
        self.lost, self._hold, self._on_lost = AsyncLost(), hold, on_lost
        hold.on_lost = self._told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hold, name)

    async def guard(self, *command: Any) -> Any:
        reply = self._hold.guard(*command)
        return await reply if inspect.isawaitable(reply) else reply

    async def release(self) -> None:
        self._hold.release()

    async def release_after(self, seconds: float) -> None:
        self._hold.release_after(seconds)

    async def __aenter__(self) -> AsyncFakeHold:
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._hold.__exit__(*error)

    def _told(self, _: FakeHold) -> None:
        self.lost.set()
        told = self._on_lost(self) if self._on_lost else None
        if inspect.isawaitable(told):
            self._telling = asyncio.ensure_future(told)


class AsyncFakeLocks:
    """What a program uses of `AsyncLocks`, with the same arguments."""

    def __init__(self) -> None:
        self._locks = FakeLocks()
        self._locks.reply = lambda *command: self.reply(*command)
        self.commands = self._locks.commands
        self.reply: Callable[..., Any] = lambda *command: None  # may be a coroutine function

    async def try_lock(self, key: Any, blocking_timeout: float | None = 0, **options: Any) -> AsyncFakeHold | None:
        end = time.monotonic() + (float("inf") if blocking_timeout is None else blocking_timeout)
        while (hold := self._locks.try_lock(key, 0, **options)) is None:
            if time.monotonic() >= end:
                return None
            await asyncio.sleep(0.005)
        return AsyncFakeHold(hold, options.get("on_lost"))

    async def acquire(self, key: Any, blocking_timeout: float | None = None, **options: Any) -> AsyncFakeHold:
        hold = await self.try_lock(key, blocking_timeout, **options)
        return must([hold] if hold else None, key, blocking_timeout)[0]

    @contextlib.asynccontextmanager
    async def lock(self, key: Any, blocking_timeout: float | None = None, **options: Any) -> AsyncIterator[Any]:
        async with await self.acquire(key, blocking_timeout, **options) as hold:
            yield hold

    @contextlib.asynccontextmanager
    async def many(
        self, keys: Iterable[Any], blocking_timeout: float | None = None, **options: Any
    ) -> AsyncIterator[dict[Any, AsyncFakeHold]]:
        holds: dict[Any, AsyncFakeHold] = {}
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                holds[key] = await stack.enter_async_context(self.lock(key, blocking_timeout, **options))
            yield holds

    async def is_held(self, key: Any) -> bool:
        return self._locks.is_held(key)

    def lose(self, hold: AsyncFakeHold, reason: str = "forced") -> None:
        """Takes a hold away, and tells the program."""
        self._locks.lose(hold._hold, reason)

    async def aclose(self) -> None:
        self._locks.close()
