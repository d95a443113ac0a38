# SPDX-License-Identifier: MIT
"""Locks for the tasks of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import sys
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import redis.asyncio
from redis.exceptions import AskError, ConnectionError, MovedError, ReadOnlyError, ResponseError, TimeoutError

from . import _library
from ._clock import duration, now, seconds
from ._errors import FAILURES, DLockError, Fenced, typed
from ._hold import Held, HoldBase, done, log, refuse
from ._session import PAUSE, Errand, Loop, Sessions
from ._settings import Argument, Common, Name, Observer, OldSettings, Settings, renamed, without_old
from ._take import Request, Take, encoded
from ._threads import by_slot, must

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
T = TypeVar("T")


CONNECTIONS = 16  # to each server, however many tasks ask it at once


class AsyncSessions(Sessions):
    """Sessions with a task for each loop, one for the clock, and one for errands where there are any."""

    def __init__(self, client: Any, settings: Settings):
        self.client = client
        super().__init__(settings)

    def _begin(self) -> None:
        super()._begin()
        self._ours: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._nodes: dict[str, Any] = {}  # of a cluster, by their names: by them its sessions are kept
        self._failed: set[str] = set()  # those that have not answered a SESSION
        self._looked = -1.0
        self._running: set[asyncio.Task[None]] = set()
        self._bell = asyncio.Event()  # for the clock
        self._turns: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(CONNECTIONS))  # by server

    def check(self) -> None:
        loop = asyncio.get_running_loop()
        if self.pid != os.getpid() or self._loop not in (None, loop):
            raise DLockError("these locks belong to another event loop or process")
        if self._ours is None:
            self._loop, self._ours = loop, _library.for_tasks(self.client, self.settings.reply_timeout)
            self.spawn(self._tick())
        super().check()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _keep(self, words: Any) -> Any:
        """Asks the key's server itself: when a node hangs, the library's cluster client ends the connections to all.

        After a failure, and when the slot has moved, that client finds the server."""
        ours = self._ours
        if hasattr(ours, "connection_pool"):
            return await ours.execute_command(*words)
        place = self.place(words[1])
        if place and place not in self._failed:
            if place not in self._nodes:
                self._nodes[place] = _library.node_of_a_cluster(ours, words[1])
            node = self._nodes[place]
            try:
                return await node.execute_command(*words)
            except (MovedError, AskError):
                pass
            except ResponseError:
                raise
            except BaseException:  # a cancelled call, too: its reply may be on the way
                self._failed.add(place)
                self._nodes.pop(place, None)
                self.spawn(node.disconnect())
                raise
        reply = await self._ask(words)
        self._failed.discard(place)
        return reply

    async def _ask(self, words: Any) -> Any:
        if not hasattr(self._ours, "connection_pool"):  # a cluster's client asks any node until it has the map
            await self._ours.initialize()
        return await self._ours.execute_command(*words)

    async def call(self, *words: Any) -> Any:
        try:
            async with timeout(1.5 * self.settings.reply_timeout):  # a SESSION blocks for half of it
                sentinel = getattr(getattr(self._ours, "connection_pool", None), "get_master_address", None)
                if sentinel is not None and now() - self._looked > 1.0:  # it ends connections to a former primary
                    self._looked = now()
                    with contextlib.suppress(*FAILURES):
                        await sentinel()
                if words[0] == "DLOCK.SESSION":  # it may block
                    return await self._keep(words)
                async with self._turns[self.place(words[1])]:
                    return await self._ask(words)
        except asyncio.TimeoutError:
            raise TimeoutError("the server does not answer") from None
        except AttributeError as error:  # the library's writer is None where another task has ended its connection
            raise ConnectionError(f"the connection is lost: {error}") from None
        except FAILURES as error:
            await self._look(error)
            raise typed(error) from error.__cause__

    async def _look(self, error: object) -> None:
        """Drops the connections to a server that has become a replica: new ones may find the primary."""
        if isinstance(error, ReadOnlyError) and hasattr(self._ours, "connection_pool"):
            await self._ours.connection_pool.disconnect(inuse_connections=False)

    async def run(self, job: Take | Loop | Errand) -> None:
        while (step := job.next()) is not None:
            if isinstance(step, tuple):
                sent = now()
                try:
                    reply = await self.call(*step)
                except Exception as error:
                    reply = error
                job.answered(sent, reply)
            else:
                with contextlib.suppress(asyncio.TimeoutError):
                    async with timeout(step):
                        await job.woken.wait()
                        job.woken.clear()

    async def take(self, request: Request, wait: float | None, hold: Callable[[Held], T]) -> list[T] | None:
        """Returns the holds, or None if it is taken."""
        self.check()
        with Take(self, request, wait) as take:
            await self.run(take)
            return take.result(hold)

    # What a Sessions needs.

    def event(self) -> AsyncLost:
        return AsyncLost()

    def wake(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._bell.set)

    async def _tick(self) -> None:
        while not self.closed:
            began, within = now(), self.clock.left()
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(within):
                    await self._bell.wait()
            self._bell.clear()
            self.clock.slept(began, within, self.settings.reply_timeout)
            if self.clock.alarm <= now():
                try:
                    self.tick()
                except Exception:
                    log.exception("what has ended is not told")

    def start(self, loop: Loop) -> None:
        self.spawn(self.run(loop))

    def start_errands(self, place: str) -> None:
        self.spawn(self._errands(place))

    async def _errands(self, place: str) -> None:
        while errands := self.batch(place):
            sent = now()
            try:
                async with timeout(1.5 * self.settings.reply_timeout), self._ours.pipeline(transaction=False) as pipe:
                    for one in errands:
                        pipe.execute_command(*one.words)
                    replies = await pipe.execute(raise_on_error=False)
            except Exception as error:
                replies = [error] * len(errands)
            await self._look(next((one for one in replies if isinstance(one, ReadOnlyError)), None))
            for one, reply in zip(errands, replies, strict=True):
                one.answered(sent, typed(reply) if isinstance(reply, Exception) else reply)
            if not all(one.done for one in errands):
                await asyncio.sleep(PAUSE)

    def place(self, key: bytes) -> str:
        with contextlib.suppress(*FAILURES, AttributeError):
            return str(self._ours.get_node_from_key(key).name)
        return ""

    def later(self, held: Held) -> None:
        hold, on_lost = held.handle(), held.on_lost

        async def call() -> None:
            try:
                told = on_lost(hold) if on_lost else None
                if inspect.isawaitable(told):
                    await told
            except Exception:
                log.exception("on_lost has failed")

        if hold is not None:
            self.spawn(call())

    async def aclose(self) -> None:
        self.close("closed")
        if self._loop is asyncio.get_running_loop():
            mine = self._running - {asyncio.current_task()}
            if mine:
                await asyncio.wait(mine, timeout=1.5)
            ours = self._ours
            await (ours.aclose() if hasattr(ours, "aclose") else ours.close())
            if hasattr(ours, "connection_pool"):
                await ours.connection_pool.disconnect()
            for node in self._nodes.values():
                await node.disconnect()


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
        event: AsyncLost = self._event()
        return event

    async def guard(self, *command: Argument) -> Any:
        """Runs a command if, and only if, the lock is still held, in one step with that look: else raises `Fenced`.

        It is sent once, and takes no longer than the time for a reply. Any other error than `Fenced` and the server's
        own leaves open whether it was run."""
        sessions = self._sessions
        sessions.check()
        try:
            return _library.decoder(sessions.client)(await sessions.call(*self._words(command)))
        except Fenced:
            sessions.lose(self._held, "fenced")
            raise

    async def release(self) -> None:
        """Gives back what was granted here, and nothing else. Raises `NotHeld` if it was lost.

        If no server answers within the time for a reply, it raises that error, and goes on in the background."""
        await self._carry(self._sessions.released)

    async def release_after(self, seconds: float) -> None:
        """Ends this hold, and keeps the lock taken for that many seconds: for work that runs once a period."""
        await self._carry(self._sessions.released_after, duration("seconds", seconds))

    async def _carry(self, what: Callable[..., Errand], *how: float) -> None:
        self._must_be_ours()
        with self._sessions.carried(what(self._held, *how)) as errand:
            await self._sessions.run(errand)
        self._sessions.tell("released", self.key, now() - self._held.since)

    async def __aenter__(self) -> AsyncHold:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if not self._held.is_left:
                await self.release()
        except FAILURES:
            if error is None:  # never hide the real error
                raise


class AsyncOptions(Common, total=False):
    """The options of a lock for tasks. See `Locks.lock`."""

    on_lost: Callable[[AsyncHold], object] | None


class AsyncLock:
    """The name of a lock that is yet to be taken: `async with lock as hold`, `await lock.acquire()`, or a decorator.

    Making it takes nothing."""

    def __init__(self, locks: AsyncLocks, request: Request, blocking_timeout: float | None):
        self.locks, self.key, self.blocking_timeout = locks, request.keys[0], blocking_timeout
        self._request = request
        # What a task has not given back at its end is forgotten with it.
        self._mine: weakref.WeakKeyDictionary[asyncio.Task[Any], list[AsyncHold]] = weakref.WeakKeyDictionary()

    async def acquire(
        self, blocking: bool = True, blocking_timeout: float | EllipsisType | None = ...
    ) -> AsyncHold | None:
        """Takes it, and returns the hold, or None if it was not granted in time. (A hold is true.)"""
        limit = self.blocking_timeout if isinstance(blocking_timeout, EllipsisType) else blocking_timeout
        hold = await self.locks._take(self._request, seconds("blocking_timeout", limit) if blocking else 0)
        if hold is not None:
            self._holds().append(hold)
        return hold

    def _holds(self) -> list[AsyncHold]:
        task = asyncio.current_task()
        assert task is not None
        return self._mine.setdefault(task, [])

    def _last(self) -> AsyncHold:
        holds = self._holds()
        if not holds:
            raise RuntimeError("this task has not acquired this lock")
        return holds.pop()

    async def release(self) -> None:
        """Gives back what this task has taken last by this object."""
        await self._last().release()

    def owned(self) -> bool:
        """Returns true if this task holds it by this object, and has not lost it."""
        return any(not hold.lost for hold in self._holds())

    async def locked(self) -> bool:
        """Returns true if anybody holds it."""
        return await self.locks.is_held(self.key)

    async def _must(self) -> AsyncHold:
        return must(await self.locks._take(self._request, self.blocking_timeout), self.key, self.blocking_timeout)

    def __await__(self) -> Generator[Any, None, AsyncHold]:
        return self._must().__await__()

    async def __aenter__(self) -> AsyncHold:
        hold = await self._must()
        self._holds().append(hold)
        return hold

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._last().__aexit__(kind, error, trace)

    def __call__(self, work: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        refuse(work, of_tasks=True)

        @functools.wraps(work)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self:
                return done(await work(*args, **kwargs))

        return locked


class AsyncLocks:
    """Locks for the tasks of one event loop, by a client of redis.asyncio. The settings are those of `Locks`."""

    client: redis.asyncio.Redis | redis.asyncio.RedisCluster

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        *,
        lease: float = 10.0,
        hang_timeout: float = 30.0,
        reply_timeout: float = 3.0,
        clock_margin: float = 0.1,
        observer: Observer | None = None,
        **old: Unpack[OldSettings],
    ):
        if not isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
            raise TypeError(f"client must be a redis.asyncio.Redis or redis.asyncio.RedisCluster, not {client!r}")
        without_old(old)
        self.client = client
        self._sessions = AsyncSessions(client, Settings(lease, hang_timeout, reply_timeout, clock_margin, observer))

    def lock(self, key: Name, blocking_timeout: float | None = None, **options: Unpack[AsyncOptions]) -> AsyncLock:
        """Returns a lock that is yet to be taken: `async with locks.lock("stock", blocking_timeout=5) as hold`, or
        `hold = await locks.lock("stock", blocking_timeout=5)`. Takes nothing itself. `LockTimeout` after 5 s.

        The options are those of `Locks.lock`."""
        how, wait = renamed(options, blocking_timeout)
        return AsyncLock(self, Request(self._sessions.settings, [key], **how), wait)

    async def try_lock(
        self, key: Name, blocking_timeout: float | None = 0, **options: Unpack[AsyncOptions]
    ) -> AsyncHold | None:
        """Takes the lock, and returns the hold, or None if it is not granted in time. The options are those of `lock`.

        Without a time-out it is one attempt: what goes wrong is raised at once."""
        how, wait = renamed(options, blocking_timeout)
        return await self._take(Request(self._sessions.settings, [key], **how), wait)

    async def acquire(
        self, key: Name, blocking_timeout: float | None = None, **options: Unpack[AsyncOptions]
    ) -> AsyncHold:
        """Takes the lock, and returns the hold. Raises `LockTimeout` if it is not granted in time.

        The options are those of `lock`."""
        how, wait = renamed(options, blocking_timeout)
        return must(await self._take(Request(self._sessions.settings, [key], **how), wait), key, wait)

    @contextlib.asynccontextmanager
    async def many(
        self, keys: Iterable[Name], blocking_timeout: float | None = None, **options: Unpack[AsyncOptions]
    ) -> AsyncIterator[dict[Name, AsyncHold]]:
        """Takes many locks: all or none of a slot in one step, and slots in one fixed order. Yields a hold for each."""
        how, wait = renamed(options, blocking_timeout, 4)
        end = None if wait is None else now() + wait
        async with contextlib.AsyncExitStack() as stack:
            holds: dict[Name, AsyncHold] = {}
            for group in by_slot(self.client, keys):
                request = Request(self._sessions.settings, group, **how)
                left = None if end is None else max(0.001, end - now())
                for hold in must(await self._take_all(request, left), group[0], wait):
                    holds[hold.key] = await stack.enter_async_context(hold)
            yield holds

    async def is_held(self, key: Name) -> bool:
        """Returns true if anybody holds it."""
        self._sessions.check()
        return await self._sessions.call("DLOCK.HELD", encoded(key)) is not None

    async def aclose(self) -> None:
        """Ends it: every call from now on is an error. What is still held is lost, and lives on until its lease."""
        await self._sessions.aclose()

    async def __aenter__(self) -> AsyncLocks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        sessions = getattr(self, "_sessions", None)
        if sessions is not None:
            sessions.closed = True  # its tasks see it, and end

    async def _take_all(self, request: Request, wait: float | None) -> list[AsyncHold] | None:
        return await self._sessions.take(request, wait, lambda held: AsyncHold(self, held))

    async def _take(self, request: Request, wait: float | None) -> AsyncHold | None:
        holds = await self._take_all(request, wait)
        return None if holds is None else holds[0]
