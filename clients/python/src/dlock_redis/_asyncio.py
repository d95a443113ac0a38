# SPDX-License-Identifier: MIT
"""Locks for the tasks of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import math
import os
import uuid
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

import redis
import redis.asyncio
from redis import exceptions as library
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ._core import Connecting
from ._errors import FAILURES, DLockError, LockTimeout, root
from ._hold import HoldBase, done, log, refuse
from ._keep import STALL, Keeping
from ._link import Entry, Link, Node, Renewal, Subscriber, Then, Wait, own, own_copy
from ._request import Argument, Name, Observer, OldNames, Request, Settings, now, renamed, seconds
from ._resp import Word

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
T = TypeVar("T")
_SLICE = 1.0


async def _within(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """The result in time. Unlike `wait_for` it never swallows a cancellation."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=max(0.0, seconds))
    finally:
        if not task.done():
            task.cancel()
    if not task.done():
        raise library.TimeoutError("the server does not answer")
    return task.result()


async def _future(future: asyncio.Future[Any], until: float) -> bool:
    """True if it is done in time. Then or not, it is done afterwards."""
    late = False

    def ring() -> None:
        nonlocal late
        if not future.done():
            late = True
            future.set_result(None)

    timer = None
    if until != math.inf:
        timer = asyncio.get_running_loop().call_later(max(0.0, until - now()), ring)
    try:
        await future
    finally:
        if timer is not None:
            timer.cancel()
    return not late


class AsyncLink(Link, asyncio.Protocol):
    """A connection that tasks share."""

    def __init__(self, connection: Any, reply_timeout: float, died: Callable[[], None] = lambda: None):
        super().__init__(reply_timeout)
        self.connection, self.died = connection, died
        self.transport = connection._writer.transport
        self.transport.set_protocol(self)
        self.address = self.transport.get_extra_info("peername")

    def post(self, words: tuple[Word, ...], then: Then | None = None, asking: bool = False) -> Entry:
        if self.error is not None:
            raise own_copy(self.error)
        entry = Entry(then)
        if asking:
            self.pending.append(Entry(None))
        self.pending.append(entry)
        self.transport.write(self.packed(words, asking))
        return entry

    async def result(self, entry: Entry, until: float) -> Any:
        if not entry.done:
            entry.gate = asyncio.get_running_loop().create_future()
            if not await _future(entry.gate, min(until, entry.sent + self.reply_timeout)) and not entry.done:
                raise self.late(entry)
        return self.value(entry)

    def peer(self) -> Any:
        return self.address

    def answered(self, entry: Entry) -> None:
        entry.done = True
        if entry.gate is not None and not entry.gate.done():
            entry.gate.set_result(None)

    def data_received(self, data: bytes) -> None:
        try:
            self.feed(data)
        except Exception as error:
            self.die(_as_lost(error))

    def eof_received(self) -> None:
        self.die(library.ConnectionError("the server has closed the connection"))

    def connection_lost(self, error: Exception | None) -> None:
        self.die(library.ConnectionError(f"the connection is lost: {error!r}"))

    def die(self, error: Exception) -> None:
        if self.error is not None:
            return
        self.error = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.transport.abort()
        while self.pending:
            entry = self.pending.popleft()
            entry.reply = error
            self.answered(entry)
        self.died()


def _as_lost(error: Exception) -> Exception:
    return error if isinstance(error, library.RedisError) else library.ConnectionError(f"it is lost: {error!r}")


class AsyncSubscriber(Subscriber, AsyncLink):
    def __init__(self, connection: Any, reply_timeout: float, node: Node, channel: str):
        self.loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Exception | None] = self.loop.create_future()
        super().__init__(connection, reply_timeout, lambda: node.tell(b"again"), node=node, channel=channel)
        self.timer = self.loop.call_later(_SLICE, self._look)

    def subscribed(self, error: Exception | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(error)

    def _look(self) -> None:
        if self.error is None:
            if now() - self.heard_at >= _SLICE:
                self.idle()
            self.timer = self.loop.call_later(_SLICE, self._look)

    def die(self, error: Exception) -> None:
        super().die(error)
        self.subscribed(error)
        self.timer.cancel()


class AsyncWait(Wait):
    def __init__(self) -> None:
        self.messages: deque[tuple[bytes, int, int]] = deque()
        self.arrived: asyncio.Future[None] | None = None

    def tell(self, word: bytes, token: int, number: int) -> None:
        self.messages.append((word, token, number))
        if self.arrived is not None and not self.arrived.done():
            self.arrived.set_result(None)

    async def next(self, until: float) -> tuple[bytes, int, int] | None:
        while not self.messages:
            self.arrived = asyncio.get_running_loop().create_future()
            if not await _future(self.arrived, until) and not self.messages:
                return None
        return self.messages.popleft()


class AsyncCore(Keeping):
    """Nodes with a keeper task each, and a timer."""

    def _begin(self) -> None:
        super()._begin()
        self.guard = contextlib.nullcontext()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.opening: dict[tuple[Node | None, str], asyncio.Task[Any]] = {}
        self.running: set[asyncio.Future[Any]] = set()
        self.expected = math.inf  # when the timer is to come

    def check(self) -> None:
        super().check()
        loop = asyncio.get_running_loop()
        self.loop = self.loop or loop
        if self.loop is not loop or self.pid != os.getpid():
            raise DLockError("these locks belong to another event loop or process: make an AsyncLocks for each")

    async def ready(self, until: float) -> None:
        if self.cluster and getattr(self.client, "_initialize", False):
            try:
                await _within(self.client.initialize(), until - now())
            except library.RedisClusterException as error:
                raise root(error) from None

    def kwargs(self, node: Node) -> tuple[Any, dict[str, Any]]:
        if not node.name:
            pool = self.client.connection_pool
            return pool.connection_class, pool.connection_kwargs
        host, _, port = node.name.rpartition(":")
        one = self.client.get_node(node_name=node.name) or self.client.get_random_node()
        return one.connection_class, {**one.connection_kwargs, "host": host, "port": int(port)}

    async def connect(self, node: Node) -> Any:
        kind, kwargs = self.kwargs(node)
        connection = kind(**own(kwargs, self.settings.reply_timeout, Retry(NoBackoff(), 0)))
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def open(self, node: Node, until: float) -> AsyncLink:
        attempts: set[asyncio.Task[Any]] = set()
        try:
            while True:
                left = until - now()
                if left <= 0 and attempts:
                    raise library.TimeoutError("the server does not answer")
                attempts.add(asyncio.ensure_future(self.connect(node)))
                done: set[asyncio.Task[Any]] = set()
                while attempts and not done:
                    done, attempts = await asyncio.wait(
                        attempts, timeout=max(0.001, min(_SLICE, left)), return_when=asyncio.FIRST_COMPLETED
                    )
                    if not done:
                        break
                    connected = [one for one in done if not one.exception()]
                    for one in connected[1:]:
                        await one.result().disconnect(nowait=True)
                    if connected:
                        return self._linked_to(node, connected[0].result())
                    if not attempts:
                        raise done.pop().exception() or AssertionError()
                    done = set()
        finally:
            for one in attempts:
                one.cancel()

    def _linked_to(self, node: Node, connection: Any) -> AsyncLink:
        link = AsyncLink(connection, self.settings.reply_timeout, lambda: self.ended(node, link))
        return link

    async def _shared(
        self, name: tuple[Node | None, str], work: Callable[[], Coroutine[Any, Any, T]], until: float
    ) -> T:
        """All who come while it is under way wait for the same, as long as they like."""
        task = self.opening.get(name)
        if task is None:
            task = self.opening[name] = asyncio.ensure_future(work())
            task.add_done_callback(lambda done: (self.opening.pop(name), done.cancelled() or done.exception()))
        await asyncio.wait({task}, timeout=max(0.0, until - now()))
        if not task.done():
            raise library.TimeoutError("the server does not answer")
        value: T = task.result()
        return value

    async def link(self, node: Node, until: float) -> Link:
        link = node.link
        if link is not None and link.error is None:
            return link

        async def begin() -> Link:
            self.check()
            return self.linked(node, await self.open(node, now() + self.settings.reply_timeout))

        soon = min(until, now() + _SLICE) if self.cluster else until
        try:
            return await self._shared((node, "link"), begin, soon)
        except library.TimeoutError as error:
            raise (Connecting(str(error)) if soon < until else error) from None

    async def subscribe(self, node: Node, until: float) -> None:
        if node.subscriber is not None and node.subscriber.error is None:
            return

        async def begin() -> None:
            within, link = self.settings.reply_timeout, node.link
            one = AsyncSubscriber(await _within(self.connect(node), within), within, node, self.channel)
            one.post(("SUBSCRIBE", self.channel))
            try:
                if not await _future(one.outcome, now() + within):
                    raise library.TimeoutError("no messages come")
                refused = one.outcome.result()
                if refused is not None:
                    self.subscribe_refused(node, refused)
                    raise refused
            except BaseException as error:
                one.die(library.ConnectionError(str(error)))
                raise
            self.listening(node, one, link)

        await self._shared((node, "subscriber"), begin, until)

    async def refresh(self, within: float) -> None:
        async def begin() -> None:
            await _within(self.client.nodes_manager.initialize(), self.settings.reply_timeout)
            self.routes_refreshed()

        try:
            await self._shared((None, "routes"), begin, now() + within)
        except library.RedisClusterException as error:
            raise root(error) from None

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    async def idle(self, node: Node, seconds: float) -> None:
        if not node.kick.is_set():
            timer = asyncio.get_running_loop().call_later(seconds, node.kick.set)
            await node.kick.wait()
            timer.cancel()
        node.kick.clear()

    def wait(self) -> Wait:
        return AsyncWait()

    def wake(self, node: Node) -> None:
        node.awake = True
        if self.loop is None or self.loop.is_closed():
            return
        if node.keeper is None and not self.closed:
            node.kick = asyncio.Event()
            node.keeper = self.spawn(self.keep(node))
        if node.kick is not None:
            node.kick.set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        assert self.loop is not None
        task = self.loop.create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task

    def rearm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.loop is not None and not self.loop.is_closed() and self.alarm != math.inf and not self.closed:
            within = max(0.0, min(self.alarm - now(), _SLICE))
            self.expected = now() + within
            self.timer = self.loop.call_later(within, self._tick)

    def _tick(self) -> None:
        if now() - self.expected > STALL:
            self.stalled()
        if self.alarm <= now():
            self.expire()
        self.rearm()

    def later(self, work: Callable[[], object]) -> None:
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon(work)


class AsyncLost(asyncio.Event):
    """Is set when the lock is lost: `if hold.lost`, `await hold.lost.wait()`."""

    def __bool__(self) -> bool:
        return self.is_set()


class AsyncHold(HoldBase):
    """A lock that is held.

    - `key`, `owner`, and the fencing `token`
    - `lost` is true, and an event that is set, when the lock is lost; `reason` says why, and `on_lost(hold)` is
      called, which may be a coroutine
    - Keep it for as long as you work: a hold that nothing refers to is lost.
    """

    lost: AsyncLost

    def __init__(self, locks: AsyncLocks, renewal: Renewal, on_lost: Callable[[AsyncHold], object] | None):
        self.lost = AsyncLost()
        super().__init__(locks, renewal, self.lost, on_lost)

    def _callback(self) -> None:
        on_lost, self._on_lost = self._on_lost, None

        async def call() -> None:
            told = on_lost(self) if on_lost else None
            if inspect.isawaitable(told):
                await told

        async def guarded() -> None:
            try:
                await call()
            except Exception:
                log.exception("on_lost has failed")

        core = self._core
        assert isinstance(core, AsyncCore)
        core.spawn(guarded())

    async def guard(self, *command: Argument) -> Any:
        """Runs a command if, and only if, the lock is still held, in one step with that look: else raises `Fenced`.

        It is sent once, and takes no longer than the time for a reply. Any other error than `Fenced` and the server's
        own leaves open whether it was run."""
        return await self._guarded(command)

    async def release(self) -> None:
        """Gives back what was granted here, and nothing else. Raises `NotHeld` if it was lost."""
        await self._core.release(self)

    async def __aenter__(self) -> AsyncHold:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self.release()
        except FAILURES:
            if error is None:  # never hide the real error
                raise


class AsyncLock:
    """The name of a lock that is yet to be taken: `async with lock as hold`, `await lock.acquire()`, or a decorator.

    Making it takes nothing."""

    def __init__(self, locks: AsyncLocks, key: Name, timeout: float | None, options: AsyncOptions):
        self.locks, self.key, self.timeout, self.options = locks, key, seconds("timeout", timeout), options
        # What a task has not given back at its end is forgotten with it.
        self._mine: weakref.WeakKeyDictionary[asyncio.Task[Any], list[AsyncHold]] = weakref.WeakKeyDictionary()
        locks._request(key, **options)  # bad arguments are told here

    async def acquire(self, blocking: bool = True, timeout: float | EllipsisType | None = ...) -> AsyncHold | None:
        """Takes it, and returns the hold, or None if it was not granted in time. (A hold is true.)"""
        limit = self.timeout if isinstance(timeout, EllipsisType) else timeout
        hold = await self.locks.try_lock(self.key, limit if blocking else 0, **self.options)
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

    def __await__(self) -> Generator[Any, None, AsyncHold]:
        return self.locks.acquire(self.key, self.timeout, **self.options).__await__()

    async def __aenter__(self) -> AsyncHold:
        return self.locks._must(await self.acquire(), self.key, self.timeout)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._last().__aexit__(kind, error, trace)

    def __call__(self, work: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        refuse(work, of_tasks=True)

        @functools.wraps(work)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self:
                return done(await work(*args, **kwargs))

        return locked


class AsyncOptions(TypedDict, total=False):
    """The options of a lock for tasks. See `Locks.lock`."""

    owner: Name | None
    shared: bool
    limit: int | None
    permits: int | None
    ephemeral: bool
    on_lost: Callable[[AsyncHold], object] | None


class AsyncLocks:
    """Locks for the tasks of one event loop, by a client of redis.asyncio. The settings are those of `Locks`."""

    client: redis.asyncio.Redis | redis.asyncio.RedisCluster

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        *,
        lease: float = 10.0,
        hang_timeout: float = 60.0,
        queue_grace: float = 5.0,
        reply_timeout: float = 3.0,
        clock_margin: float = 0.1,
        observer: Observer | None = None,
        **old: Unpack[OldNames],
    ):
        if not isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
            raise TypeError(f"client must be a redis.asyncio.Redis or redis.asyncio.RedisCluster, not {client!r}")
        self.client = client
        given = (lease, hang_timeout, queue_grace, reply_timeout, clock_margin)
        named = dict(zip(("lease", "hang_timeout", "queue_grace", "reply_timeout", "clock_margin"), given, strict=True))
        self._core = AsyncCore(client, Settings(**{**named, **renamed(old)}, observer=observer))

    def lock(
        self,
        key: Name,
        timeout: float | None = None,
        *,
        owner: Name | None = None,
        shared: bool = False,
        limit: int | None = None,
        permits: int | None = None,
        ephemeral: bool = False,
        on_lost: Callable[[AsyncHold], object] | None = None,
    ) -> AsyncLock:
        """Returns a lock that is yet to be taken: `async with locks.lock("stock", timeout=5) as hold`, or
        `hold = await locks.lock("stock", timeout=5)`. Takes nothing itself. `LockTimeout` after 5 s.

        The options are those of `Locks.lock`; tasks that wait independently need owners of their own."""
        options = AsyncOptions(
            owner=owner, shared=shared, limit=limit, permits=permits, ephemeral=ephemeral, on_lost=on_lost
        )
        return AsyncLock(self, key, timeout, options)

    async def try_lock(self, key: Name, timeout: float | None = 0, **options: Unpack[AsyncOptions]) -> AsyncHold | None:
        """Takes the lock, and returns the hold, or None if it is not granted in time. The options are those of `lock`.

        Without a time-out it is one attempt: what goes wrong is raised at once."""
        on_lost, timeout = options.get("on_lost"), seconds("timeout", timeout)
        request = self._request(key, **options)
        return await self._take(request, timeout, on_lost)

    async def _take(
        self, request: Request, timeout: float | None, on_lost: Callable[[AsyncHold], object] | None
    ) -> AsyncHold | None:
        def hold(_: int) -> AsyncHold:
            assert request.renewal is not None
            return AsyncHold(self, request.renewal, on_lost)

        return await self._core.take(request, timeout, hold)

    async def acquire(self, key: Name, timeout: float | None = None, **options: Unpack[AsyncOptions]) -> AsyncHold:
        """Takes the lock, and returns the hold. Raises `LockTimeout` if it is not granted in time.

        The options are those of `lock`."""
        return self._must(await self.try_lock(key, timeout, **options), key, timeout)

    @contextlib.asynccontextmanager
    async def many(
        self, keys: Iterable[Name], timeout: float | None = None, **options: Unpack[AsyncOptions]
    ) -> AsyncIterator[dict[Name, AsyncHold]]:
        """Takes locks of any slots in one fixed order under one owner. The value has a hold for each key."""
        timeout = seconds("timeout", timeout)
        if options.get("owner") is None:
            options["owner"] = str(uuid.uuid4())
        end = None if timeout is None else now() + timeout
        async with contextlib.AsyncExitStack() as stack:
            holds = {}
            for key in sorted(set(keys)):
                left = None if end is None else max(0.001, end - now())
                holds[key] = await stack.enter_async_context(await self.acquire(key, left, **options))
            yield holds

    async def is_held(self, key: Name) -> bool:
        """Returns true if anybody holds it."""
        core = self._core
        core.check()
        return (await core.call(key, ("DLOCK.HELD", key), now() + core.settings.reply_timeout))[0] is not None

    async def aclose(self) -> None:
        """Ends it: every call from now on is an error. What is still held is lost, and lives on until its lease."""
        core = self._core
        core.end("closed")
        mine = {task for task in {*core.running, *core.opening.values()} if task is not asyncio.current_task()}
        if mine and core.loop is asyncio.get_running_loop():
            for node in core.nodes.values():
                if node.keeper is not None:
                    node.keeper.cancel()
            await asyncio.wait(mine, timeout=1.0)

    async def __aenter__(self) -> AsyncLocks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            core.closed = True  # its tasks see it, and end the rest

    def _request(self, key: Name, **options: Unpack[AsyncOptions]) -> Request:
        core, name = self._core, options.get("owner")
        shared, limit, permits = options.get("shared", False), options.get("limit"), options.get("permits")
        how = shared, limit, permits, options.get("ephemeral", False)
        return Request(core.settings, key, core.owner(name), *how, named=name is not None)

    @staticmethod
    def _must(hold: AsyncHold | None, key: Name, timeout: float | None) -> AsyncHold:
        if hold is None:
            raise LockTimeout(f"{key!r} was not granted within {timeout} s: it is taken")
        return hold
