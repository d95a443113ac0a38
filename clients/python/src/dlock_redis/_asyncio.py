# SPDX-License-Identifier: MIT
"""Locks for the tasks of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import redis.asyncio

from . import _library
from ._clock import duration, log, now
from ._errors import FAILURES, DLockError, Fenced
from ._hold import Held, HoldBase, done
from ._locks import LockBase, LocksBase
from ._session import Clock, Closing, Errand, Errands, Loop, Sessions
from ._settings import Argument, Common, Name, Settings
from ._take import Request, Take, by_slot, encoded, must

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSessions(Sessions):
    """Sessions with a task for each loop, one for the clock, and one for errands where there are any."""

    library: _library.AsyncServer

    def __init__(self, client: Any, settings: Settings):
        super().__init__(settings)
        self.client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._working: set[asyncio.Task[None]] = set()
        self._calling: set[asyncio.Task[None]] = set()  # the program's on_lost

    def check(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None and not self.closed:
            self._loop, self.library = loop, _library.for_tasks(self.client, self.settings.reply_timeout)
        if self._loop not in (None, loop):
            raise DLockError("this AsyncLocks belongs to another event loop")
        super().check()

    async def run(self, job: Take[Any] | Loop | Errand | Errands | Clock | Closing) -> None:
        while (step := job.next()) is not None:
            if isinstance(step, (int, float)):
                if job.woken is None:
                    await asyncio.sleep(step)
                else:
                    with contextlib.suppress(asyncio.TimeoutError):
                        async with timeout(step):
                            await job.woken.wait()
                    job.woken.clear()
                continue
            sent = now()
            try:
                within = job.within if isinstance(job, Loop) else None
                reply = await (self.library.pipe(step) if isinstance(step, list) else self.library.call(step, within))
            except Exception as error:
                reply = error
            job.answered(sent, reply)

    async def take(self, request: Request, make: Callable[[Held], AsyncHold]) -> list[AsyncHold] | None:
        """Returns the holds, or None if it is taken."""
        self.check()
        with Take(self, request, make) as take:
            await self.run(take)
            return take.result()

    # What a Sessions needs.

    def event(self) -> AsyncLost:
        return AsyncLost()

    def bell(self) -> asyncio.Event:
        return asyncio.Event()

    def wake(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self.clock.woken.set)

    def start(self, job: Loop | Errands | Clock) -> None:
        self._spawn(self._work(job), self._working)

    def _spawn(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _work(self, job: Loop | Errands | Clock) -> None:
        try:
            await self.run(job)
        except Exception:
            log.exception("work in the background has failed")
        finally:
            job.ended()

    def server(self, key: bytes) -> str:
        return self.library.server(key)

    def later(self, on_lost: Callable[[Any], object], hold: Any) -> None:
        async def call() -> None:
            try:
                told = on_lost(hold)
                if inspect.isawaitable(told):
                    await told
            except Exception:
                log.exception("on_lost has failed")

        self._spawn(call(), self._calling)

    async def aclose(self) -> None:
        if self.closed:
            return
        is_ours = self._loop is asyncio.get_running_loop()
        self.ended = not is_ours  # from another event loop nothing can be said
        self.close("closed")
        try:
            if is_ours:
                await self.run(Closing(self))
        finally:  # also when the caller has no more time
            self.stop()
            if is_ours:
                await self._finish()

    async def _finish(self) -> None:
        for task in self._working:
            task.cancel()
        ending = {*self._working, *self._calling} - {asyncio.current_task()}
        try:
            if ending:
                await asyncio.wait(ending, timeout=1.5)
        finally:
            await self.library.aclose()


class AsyncLost(asyncio.Event):
    """Is set when the lock is lost: `if hold.lost`, `await hold.lost.wait()`."""

    def __bool__(self) -> bool:
        return self.is_set()


class AsyncHold(HoldBase):
    """A lock that is held.

    - `key`, `owner`, and the fencing `token`
    - `lost` is true, and an event that is set, when the lock is lost; `reason` says why, and `on_lost(hold)` is
      called, and awaited, by a task of its own
    - Keep it for as long as you work: a hold that nothing refers to is lost.
    """

    @property
    def lost(self) -> AsyncLost:
        event: AsyncLost = self._sessions.lost_event(self._held)
        return event

    async def guard(self, *command: Argument) -> Any:
        """Runs a command if, and only if, the lock is still held, in one step with that look: else raises `Fenced`.

        It is sent once, and takes no longer than the time for a reply. Any other error than `Fenced` and the server's
        own leaves open whether it was run."""
        self._sessions.check()
        try:
            return _library.decoder(self._locks.client)(await self._sessions.library.call(self._guarded(command)))
        except Fenced:
            self._sessions.end(self._held, "fenced")
            raise

    async def release(self) -> None:
        """Releases this grant, and nothing else. Raises `NotHeld` if it was lost.

        If no server answers within the time for a reply, it raises that error, and continues in the background."""
        await self._carry(self._sessions.released(self._held))

    async def release_after(self, seconds: float) -> None:
        """Ends this hold, and keeps the lock taken for that many seconds: for work that runs once a period."""
        await self._carry(self._sessions.released_after(self._held, duration("seconds", seconds)))

    async def _carry(self, last: Errand) -> None:
        with self._sessions.carried(last) as errand:
            await self._sessions.run(errand)
        self._sessions.notify(self._sessions.settings.observer.released, self.key, now() - self._held.since)

    async def __aenter__(self) -> AsyncHold:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if not self._held.is_released:
                await self.release()
        except FAILURES:
            if error is None:  # never hide the real error
                raise


class AsyncOptions(Common, total=False):
    """The options of a lock for tasks. See `Locks.lock`."""

    on_lost: Callable[[AsyncHold], object] | None


class AsyncLock(LockBase[AsyncHold]):
    """A lock that is yet to be taken: `async with locks.lock("stock") as hold`, or `@locks.lock("stock")`.

    Making it takes nothing. Tasks may share it: each `async with` has a hold of its own."""

    async def __aenter__(self) -> AsyncHold:
        return self._entered(asyncio.current_task(), await self._take())

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._left(asyncio.current_task()).__aexit__(kind, error, trace)

    def __call__(self, work: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @functools.wraps(work)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            async with await self._take():
                result = work(*args, **kwargs)
                return done(await result if inspect.isawaitable(result) else result)

        return locked

    async def _take(self) -> AsyncHold:
        holds: list[AsyncHold] | None = await self._locks._take(self._request)
        return must(holds, self._request.keys[0], self._request.wait)[0]


class AsyncLocks(LocksBase["redis.asyncio.Redis | redis.asyncio.RedisCluster"]):
    """Locks for asyncio, by a client of redis.asyncio. Tied to one event loop. The settings are those of `Locks`."""

    _kinds = {  # noqa: RUF012
        "redis.asyncio.Redis": redis.asyncio.Redis,
        "redis.asyncio.RedisCluster": redis.asyncio.RedisCluster,
    }
    _make = AsyncSessions
    _sessions: AsyncSessions

    def lock(self, key: Name, blocking_timeout: float | None = None, **options: Unpack[AsyncOptions]) -> AsyncLock:
        """Returns a lock that is yet to be taken: `async with locks.lock("stock", blocking_timeout=5) as hold`.

        `LockTimeout` after 5 s. The options are those of `Locks.lock`."""
        return AsyncLock(self, self._request([key], blocking_timeout, options))

    async def try_lock(
        self, key: Name, blocking_timeout: float | None = 0, **options: Unpack[AsyncOptions]
    ) -> AsyncHold | None:
        """Takes the lock, and returns the hold, or None if it is not granted in time. The options are those of `lock`.

        Without a time-out it is one attempt: what goes wrong is raised at once."""
        holds = await self._take(self._request([key], blocking_timeout, options, default=0))
        return holds[0] if holds else None

    async def acquire(
        self, key: Name, blocking_timeout: float | None = None, **options: Unpack[AsyncOptions]
    ) -> AsyncHold:
        """Takes the lock, and returns the hold. Raises `LockTimeout` if it is not granted in time.

        The options are those of `lock`."""
        request = self._request([key], blocking_timeout, options)
        return must(await self._take(request), key, request.wait)[0]

    @contextlib.asynccontextmanager
    async def many(
        self, keys: Iterable[Name], blocking_timeout: float | None = None, **options: Unpack[AsyncOptions]
    ) -> AsyncIterator[dict[Name, AsyncHold]]:
        """Takes many locks: all or none of a slot in one step, and slots in one fixed order. Yields a hold for each."""
        holds: dict[Name, AsyncHold] = {}
        async with contextlib.AsyncExitStack() as stack:
            for request in by_slot(self.client, self._request(keys, blocking_timeout, options)):
                for hold in must(await self._take(request), request.keys[0], request.wait):
                    holds[hold.key] = await stack.enter_async_context(hold)
            yield holds

    async def is_held(self, key: Name) -> bool:
        """Returns true if anybody holds it."""
        self._sessions.check()
        return await self._sessions.library.call(("DLOCK.HELD", encoded(key))) is not None

    async def aclose(self) -> None:
        """Ends it: every call from now on is an error. What is still held is lost, and lives on until its lease.

        It waits for up to a second until all waits have left their queues."""
        await self._sessions.aclose()

    async def __aenter__(self) -> AsyncLocks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _take(self, request: Request) -> list[AsyncHold] | None:
        return await self._sessions.take(request, lambda held: AsyncHold(self, held))
