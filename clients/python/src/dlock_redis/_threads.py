# SPDX-License-Identifier: MIT
"""Locks for threads.

Whoever waits for a reply reads: there is no reader that hands replies on, so a lock that nobody else wants costs no
switch of threads. A thread that waits while another reads is woken with its reply, or to read itself.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import math
import os
import queue
import select
import socket
import ssl
import threading
import uuid
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

import redis
from redis import exceptions as library
from redis.backoff import NoBackoff
from redis.retry import Retry

from ._core import Connecting, Told
from ._errors import FAILURES, LockTimeout, root
from ._hold import HoldBase, done, log, refuse
from ._keep import IDLE, STALL, Keeping
from ._link import Entry, Link, Node, Renewal, Subscriber, Then, Wait, own, own_copy
from ._request import Argument, Name, Observer, OldNames, Request, Settings, now, renamed, seconds
from ._resp import Word

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
T = TypeVar("T")
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
RECENT = 0.1
_SLICE = 1.0  # so long a thread sleeps at most: the clock of the machine may have gone on without its own


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs what never suspends: everything that it awaits has blocked this thread instead."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("it has suspended")


class _Inside(threading.local):
    """A handler of a signal, or a finalizer, may run in the middle of a step of ours and ask for something itself."""

    depth = 0  # of steps of this thread that are not at their end
    spares: list[ThreadLink] | None = None  # connections of a call within such a step


_inside = _Inside()


def _first(connect: Callable[[], T], until: float, undo: Callable[[T], object]) -> T:
    """Returns the first connection of several attempts, of which one more begins each second.

    What the library does has no bound of its own: names, sentinels and topologies are asked for."""
    outcomes: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    guard, over, running = threading.Lock(), False, 0

    def attempt() -> None:
        try:
            made: tuple[T | None, BaseException | None] = connect(), None
        except BaseException as error:
            made = None, error
        with guard:
            late = over
            if not late:
                outcomes.put(made)
        if late and made[1] is None:
            undo(made[0])  # type: ignore[arg-type]

    try:
        while (left := until - now()) > 0 or not running:
            threading.Thread(target=attempt, name="dlock connects", daemon=True).start()
            running += 1
            while True:
                try:
                    value, error = outcomes.get(timeout=max(0.001, min(_SLICE, left)))
                except queue.Empty:
                    break
                if error is None:
                    return value  # type: ignore[return-value]
                running -= 1
                if not running:
                    raise error
        raise library.TimeoutError("the server does not answer")
    finally:
        with guard:
            over = True
        while not outcomes.empty():
            value, error = outcomes.get()
            if error is None:
                undo(value)  # type: ignore[arg-type]


def _poll(sock: socket.socket, write: bool, within: float) -> bool:
    """True if it can be read, or written."""
    within = max(0.0, within)
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLOUT if write else select.POLLIN)
        return bool(poll.poll(math.ceil(within * 1000)))
    ready = select.select([] if write else [sock], [sock] if write else [], [], within)  # pragma: no cover
    return bool(ready[0] or ready[1])  # pragma: no cover


class ThreadLink(Link):
    """A connection that threads share."""

    def __init__(self, connection: Any, reply_timeout: float, died: Callable[[], None] = lambda: None):
        super().__init__(reply_timeout)
        self.connection, self.sock, self.died = connection, connection._sock, died
        self.address = self.sock.getpeername()
        self.sock.setblocking(False)
        self.tls = isinstance(self.sock, ssl.SSLSocket)
        self.sending, self.roles, self.led, self.used = threading.Lock(), threading.Lock(), False, 0.0

    def post(self, words: tuple[Word, ...], then: Then | None = None, asking: bool = False) -> Entry:
        data, entry = self.packed(words, asking), Entry(then)
        if _inside.depth:
            raise library.ConnectionError("this thread is in the middle of another command")
        _inside.depth += 1
        try:
            with self.sending:
                if self.error is not None:
                    raise own_copy(self.error)
                if asking:
                    self.pending.append(Entry(None))
                self.pending.append(entry)
                self.used = entry.sent
                while data:
                    try:
                        data = data[self.sock.send(data) :]
                    except _BLOCKED:
                        if not _poll(self.sock, True, self.reply_timeout):
                            raise library.TimeoutError("the server reads nothing") from None
        except BaseException as error:
            self.die(_as_lost(error))
            if isinstance(error, OSError):
                raise _as_lost(error) from error
            raise
        finally:
            _inside.depth -= 1
        return entry

    def peer(self) -> Any:
        return self.address

    def is_alive(self) -> bool:
        """Returns false if the other end has closed it while nobody read. Who has just been answered need not look."""
        if now() - self.used < RECENT:
            return self.error is None
        with self.sending:
            idle = self.error is None and not self.pending and not self.led
            if idle and _poll(self.sock, False, 0):  # nothing was asked, so it is the end
                self.die(library.ConnectionError("the server has closed the connection"))
        return self.error is None

    async def result(self, entry: Entry, until: float) -> Any:
        _inside.depth += 1
        try:
            self._wait(entry, until)
        finally:
            _inside.depth -= 1
        return self.value(entry)

    def _wait(self, entry: Entry, until: float) -> None:
        while not entry.done:
            with self.roles:
                if entry.done:
                    break
                leads, self.led = not self.led, True
                gate = None if leads else threading.Lock()
                if gate is not None:
                    gate.acquire()
                    entry.gate = gate
            if gate is None:
                self._lead(entry, until)
                continue
            try:
                if not gate.acquire(timeout=max(0.0, until - now())) and not entry.done:
                    raise self.late(entry)
            except BaseException:
                with self.roles:  # it may have been told to read
                    entry.gate = None
                    self._pass_on()
                raise

    def _pass_on(self) -> None:
        """Lets somebody who waits read, if nobody does."""
        follower = None if self.led else next((one for one in tuple(self.pending) if one.gate is not None), None)
        if follower is not None:
            gate, follower.gate = follower.gate, None
            gate.release()

    def _lead(self, entry: Entry | None, until: float) -> None:
        """Reads for all, until its own reply has come. Without an entry: until the link is dead."""
        try:
            while self.error is None and not (entry is not None and entry.done):
                left = min(until, entry.sent + self.reply_timeout if entry else math.inf) - now()
                if left <= 0 and entry is not None:
                    raise self.late(entry)
                if not (self.tls and self.sock.pending()) and not _poll(self.sock, False, min(left, _SLICE)):
                    self.idle()
                    continue
                self._read()
        finally:
            with self.roles:
                self.led = False
                self._pass_on()
            if self.error is not None:
                self.sock.close()

    def _read(self) -> None:
        try:
            try:
                if self.tls:
                    with self.sending:
                        data = self.sock.recv(65536)
                else:
                    data = self.sock.recv(65536)
            except _BLOCKED:
                return
            if not data:
                raise library.ConnectionError("the server has closed the connection")
            self.feed(data)
        except BaseException as error:  # an interrupt, too, may have lost bytes
            self.die(_as_lost(error))
            if not isinstance(error, Exception):
                raise

    def idle(self) -> None:
        """Nothing has come for a while."""

    def answered(self, entry: Entry) -> None:
        with self.roles:
            entry.done = True
            if entry.gate is not None:
                entry.gate.release()
                entry.gate = None

    def die(self, error: Exception) -> None:
        with self.roles:
            if self.error is not None:
                return
            self.error, led = error, self.led
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # wakes whoever reads
        if not led:
            self.sock.close()
        while self.pending:
            with contextlib.suppress(IndexError):
                entry = self.pending.popleft()
                entry.reply = error
                self.answered(entry)
        self.died()


def _as_lost(error: BaseException) -> Exception:
    if isinstance(error, library.RedisError):
        return error
    return library.ConnectionError(f"the connection is lost: {error!r}")


class ThreadSubscriber(Subscriber, ThreadLink):
    """Read by a thread of its own."""

    def __init__(self, connection: Any, reply_timeout: float, node: Node, channel: str):
        self.outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        super().__init__(connection, reply_timeout, lambda: node.tell(b"again"), node=node, channel=channel)

    def subscribed(self, error: Exception | None) -> None:
        self.outcome.put(error)

    def listen(self) -> None:
        try:
            self.led = True
            self.post(("SUBSCRIBE", self.channel))
            self._lead(None, math.inf)
        except Exception as error:
            self.die(_as_lost(error))
            self.sock.close()
        self.outcome.put(self.error)


class ThreadWait(Wait):
    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[tuple[bytes, int, int]] = queue.SimpleQueue()

    def tell(self, word: bytes, token: int, number: int) -> None:
        self.messages.put((word, token, number))

    async def next(self, until: float) -> tuple[bytes, int, int] | None:
        while True:
            left = until - now()
            try:
                return self.messages.get(timeout=max(0.0, min(left, 60.0)))
            except queue.Empty:
                if now() >= until:
                    return None


class ThreadCore(Keeping):
    """Nodes with a keeper thread each, and one thread that is the clock."""

    def _begin(self) -> None:
        super()._begin()
        self.guard = threading.RLock()
        self.starting = threading.RLock()
        self.opening: dict[tuple[Node | None, str], concurrent.futures.Future[Any]] = {}
        self.ticking: threading.Thread | None = None
        self.tick = threading.Event()

    def forked(self) -> None:
        """In the child: nothing of the parent's is ours."""
        nodes, renewals, was_closed = list(self.nodes.values()), list(self.renewals.values()), self.closed
        for node in nodes:
            for link in (node.link, node.subscriber):
                if isinstance(link, ThreadLink):
                    link.sock.close()  # and says nothing to the server
        for renewal in renewals:
            for hold in renewal.live():
                hold._forked()
        _inside.depth, _inside.spares = 0, None
        self._begin()
        self.closed = was_closed

    def kwargs(self, node: Node) -> tuple[Any, dict[str, Any]]:
        """The library's kind of connection to the node, and how it is made."""
        if not node.name:
            pool = self.client.connection_pool
            return pool.connection_class, pool.connection_kwargs
        host, _, port = node.name.rpartition(":")
        known = self.client.get_node(node_name=node.name)
        pool = self.client.get_redis_connection(known or self.client.get_random_node()).connection_pool
        return pool.connection_class, {**pool.connection_kwargs, **({} if known else {"host": host, "port": int(port)})}

    def connect(self, node: Node) -> Any:
        kind, kwargs = self.kwargs(node)
        connection = kind(**own(kwargs, self.settings.reply_timeout, Retry(NoBackoff(), 0)))
        connection.connect()
        return connection

    async def open(self, node: Node, until: float) -> ThreadLink:
        try:
            connection = _first(lambda: self.connect(node), until, lambda one: one.disconnect())
        except library.RedisClusterException as error:
            raise root(error) from None
        link = ThreadLink(connection, self.settings.reply_timeout, lambda: self.ended(node, link))
        return link

    def _shared(self, name: tuple[Node | None, str], work: Callable[[], Any], until: float) -> Any:
        """Does it in a thread of its own. All who come meanwhile wait for the same, as long as they like."""
        with self.starting:
            future = self.opening.get(name)
            if future is None or future.done():
                future = concurrent.futures.Future()
                threading.Thread(target=_fulfil, args=(future, work), name=f"dlock {name[1]}", daemon=True).start()
                self.opening[name] = future
        try:
            return future.result(max(0.0, until - now()))
        except concurrent.futures.TimeoutError:
            if future.done():  # it is its own
                raise
            raise library.TimeoutError("the server does not answer") from None
        except library.RedisClusterException as error:
            raise root(error) from None
        except library.RedisError as error:
            raise own_copy(error) from error.__cause__

    def call(
        self, key: Name, words: tuple[Word, ...], until: float, then: Told | None = None, request: Request | None = None
    ) -> Coroutine[Any, Any, tuple[Any, Node]]:
        called = super().call(key, words, until, then, request)
        return self._within(called) if _inside.depth else called

    async def _within(self, called: Coroutine[Any, Any, T]) -> T:
        """In the middle of a step of this thread, which cannot go on before: on connections for this call."""
        depth, _inside.depth, _inside.spares = _inside.depth, 0, []
        try:
            return await called
        finally:
            spares, _inside.depth, _inside.spares = _inside.spares, depth, None
            for link in spares:
                link.die(library.ConnectionError("the call within a call is over"))

    async def link(self, node: Node, until: float) -> Link:
        if _inside.spares is not None:
            _inside.spares.append(await self.open(node, until))
            return _inside.spares[-1]
        link = node.link
        if link is not None and link.error is None and isinstance(link, ThreadLink) and link.is_alive():
            return link

        def begin() -> Link:
            self.check()
            link = node.link
            if link is not None and link.error is None:
                return link
            return self.linked(node, run(self.open(node, now() + self.settings.reply_timeout)))

        soon = min(until, now() + _SLICE) if self.cluster else until
        try:
            opened: Link = self._shared((node, "link"), begin, soon)
        except library.TimeoutError as error:
            raise (Connecting(str(error)) if soon < until else error) from None
        return opened

    async def subscribe(self, node: Node, until: float) -> None:
        if node.subscriber is not None and node.subscriber.error is None:
            return

        def begin() -> None:
            link, within = node.link, self.settings.reply_timeout
            connection = _first(lambda: self.connect(node), now() + within, lambda one: one.disconnect())
            one = ThreadSubscriber(connection, within, node, self.channel)
            threading.Thread(target=one.listen, name="dlock subscriber", daemon=True).start()
            try:
                refused = one.outcome.get(timeout=within)
            except queue.Empty:
                refused = library.TimeoutError("no messages come")
            if refused is not None:
                self.subscribe_refused(node, refused)
                one.die(refused)
                raise refused
            self.listening(node, one, link)

        self._shared((node, "subscriber"), begin, until)

    async def refresh(self, within: float) -> None:
        def begin() -> None:
            self.client.nodes_manager.initialize()
            self.routes_refreshed()

        self._shared((None, "routes"), begin, now() + within)

    async def sleep(self, seconds: float) -> None:
        threading.Event().wait(max(0.0, seconds))

    async def idle(self, node: Node, seconds: float) -> None:
        node.kick.wait(seconds)
        node.kick.clear()

    def wait(self) -> Wait:
        return ThreadWait()

    def wake(self, node: Node) -> None:
        if node.keeper is None and not self.closed:
            with self.starting:
                if node.keeper is None:
                    node.kick = threading.Event()
                    keeper = threading.Thread(target=_keep, args=(self, node), name="dlock keeps", daemon=True)
                    keeper.start()  # this may fail: then the next one tries
                    node.keeper = keeper
        node.awake = True
        if node.kick is not None:
            node.kick.set()

    def rearm(self) -> None:
        if self.ticking is None and not self.closed:
            with self.starting:
                if self.ticking is None:
                    clock = threading.Thread(target=self._clock, name="dlock clock", daemon=True)
                    clock.start()
                    self.ticking = clock
        self.tick.set()

    def _clock(self) -> None:
        while not self.closed:
            began, within = now(), IDLE if self.alarm == math.inf else max(0.0, min(self.alarm - now(), _SLICE))
            self.tick.wait(within)
            self.tick.clear()
            if now() - began - within > STALL:
                self.stalled()
            if self.alarm <= now():
                try:
                    self.expire()
                except Exception:  # it cannot be given back: others are to be told all the same
                    log.exception("what has ended cannot be given back")

    def later(self, work: Callable[[], object]) -> None:
        try:
            threading.Thread(target=work, name="dlock on_lost", daemon=True).start()
        except RuntimeError:  # there are too many: the others are told all the same
            log.exception("on_lost cannot be called")


def _keep(core: ThreadCore, node: Node) -> None:
    run(core.keep(node))


def _fulfil(future: concurrent.futures.Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


_cores: weakref.WeakSet[ThreadCore] = weakref.WeakSet()


def _after_fork() -> None:
    for core in list(_cores):
        core.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Lost(threading.Event):
    """Is set when the lock is lost: `if hold.lost`, `hold.lost.wait(5)`."""

    def __bool__(self) -> bool:
        return self.is_set()


class Hold(HoldBase):
    """A lock that is held.

    - `key`, `owner`, and the fencing `token`
    - `lost` is true, and an event that is set, when the lock is lost; `reason` says why, and `on_lost(hold)` is
      called by a thread of its own
    - Keep it for as long as you work: a hold that nothing refers to is lost.
    """

    lost: Lost

    def __init__(self, locks: Locks, renewal: Renewal, on_lost: Callable[[Hold], object] | None):
        self.lost = Lost()
        super().__init__(locks, renewal, self.lost, on_lost)

    def _forked(self) -> None:
        self._over, self.reason, self.lost = True, "it is the parent's", Lost()
        self.lost.set()

    def guard(self, *command: Argument) -> Any:
        """Runs a command if, and only if, the lock is still held, in one step with that look: else raises `Fenced`.

        It is sent once, and takes no longer than the time for a reply. Any other error than `Fenced` and the server's
        own leaves open whether it was run."""
        return run(self._guarded(command))

    def release(self) -> None:
        """Gives back what was granted here, and nothing else. Raises `NotHeld` if it was lost."""
        run(self._core.release(self))

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.release()
        except FAILURES:
            if error is None:  # never hide the real error
                raise


class Lock:
    """The name of a lock that is yet to be taken: `with lock as hold`, `lock.acquire()`, or a decorator.

    Making it takes nothing. Threads may share it."""

    def __init__(self, locks: Locks, key: Name, timeout: float | None, options: Options):
        self.locks, self.key, self.timeout, self.options = locks, key, seconds("timeout", timeout), options
        self._mine = threading.local()
        locks._request(key, **options)  # bad arguments are told here

    def acquire(self, blocking: bool = True, timeout: float | EllipsisType | None = ...) -> Hold | None:
        """Takes it, and returns the hold, or None if it was not granted in time. (A hold is true.)"""
        limit = self.timeout if isinstance(timeout, EllipsisType) else timeout
        hold = self.locks.try_lock(self.key, limit if blocking else 0, **self.options)
        if hold is not None:
            self._holds().append(hold)
        return hold

    def release(self) -> None:
        """Gives back what this thread has taken last by this object."""
        holds = self._holds()
        if not holds:
            raise RuntimeError("this thread has not acquired this lock")
        holds.pop().release()

    def owned(self) -> bool:
        """Returns true if this thread holds it by this object, and has not lost it."""
        return any(not hold.lost for hold in self._holds())

    def locked(self) -> bool:
        """Returns true if anybody holds it."""
        return self.locks.is_held(self.key)

    def __enter__(self) -> Hold:
        return self.locks._must(self.acquire(), self.key, self.timeout)

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._holds().pop().__exit__(kind, error, trace)

    def __call__(self, work: Callable[P, T]) -> Callable[P, T]:
        refuse(work, of_tasks=False)

        @functools.wraps(work)
        def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return done(work(*args, **kwargs))

        return locked

    def _holds(self) -> list[Hold]:
        if not hasattr(self._mine, "holds"):
            self._mine.holds = []
        return self._mine.holds  # type: ignore[no-any-return]


class Options(TypedDict, total=False):
    """The options of a lock for threads. See `Locks.lock`."""

    owner: Name | None
    shared: bool
    limit: int | None
    permits: int | None
    ephemeral: bool
    on_lost: Callable[[Hold], object] | None


class Locks:
    """Locks for threads, by a client of redis-py: `Redis`, `RedisCluster`, or what a `Sentinel` gives.

    The client is a pattern: Locks opens one connection of that kind to each node, and a second one if somebody
    waits. All times are in seconds.

    - lease: how long a lock lasts when this program dies or loses the server
    - hang_timeout: how long a program that hangs keeps its locks
    - queue_grace: how long a place in a queue is kept while the connection is away
    - reply_timeout: how long a connect or a reply may take
    - clock_margin: so much before its end a hold is believed to have ended
    - observer: is called with what happens, for metrics

    (`auto`, `claim`, `bound` and `allowance` are the old names of the four in the middle.)
    """

    client: redis.Redis | redis.RedisCluster

    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster,
        *,
        lease: float = 10.0,
        hang_timeout: float = 60.0,
        queue_grace: float = 5.0,
        reply_timeout: float = 3.0,
        clock_margin: float = 0.1,
        observer: Observer | None = None,
        **old: Unpack[OldNames],
    ):
        if not isinstance(client, (redis.Redis, redis.RedisCluster)):
            raise TypeError(f"client must be a redis.Redis or redis.RedisCluster, not {client!r}")
        self.client = client
        given = (lease, hang_timeout, queue_grace, reply_timeout, clock_margin)
        named = dict(zip(("lease", "hang_timeout", "queue_grace", "reply_timeout", "clock_margin"), given, strict=True))
        self._core = ThreadCore(client, Settings(**{**named, **renamed(old)}, observer=observer))
        _cores.add(self._core)

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
        on_lost: Callable[[Hold], object] | None = None,
    ) -> Lock:
        """Returns a lock that is yet to be taken: `with locks.lock("stock", timeout=5) as hold`. Takes nothing itself.

        `with` raises `LockTimeout` after 5 s; without a time-out it waits for ever.

        - owner: a name, for nested locks; without it each hold has an owner of its own. Whoever asks for a lock by
          these Locks under the name that holds it has it, too, and it is given back with the last of these holds.
          Nested locks of one thread should have one: only then can the server see that two wait for each other
          (`Deadlock`)
        - shared: with any number of others who share
        - limit: this many may hold it at once: a semaphore
        - permits: the hold takes this many of the limit, all at once; 1 unless set
        - ephemeral: it ends at once when the connection does
        - on_lost: is called with the hold, by a thread of its own, when it is lost
        """
        options = Options(
            owner=owner, shared=shared, limit=limit, permits=permits, ephemeral=ephemeral, on_lost=on_lost
        )
        return Lock(self, key, timeout, options)

    def try_lock(self, key: Name, timeout: float | None = 0, **options: Unpack[Options]) -> Hold | None:
        """Takes the lock, and returns the hold, or None if it is not granted in time. The options are those of `lock`.

        Without a time-out it is one attempt: what goes wrong is raised at once."""
        on_lost, timeout = options.get("on_lost"), seconds("timeout", timeout)
        request = self._request(key, **options)
        return self._take(request, timeout, on_lost)

    def _take(self, request: Request, timeout: float | None, on_lost: Callable[[Hold], object] | None) -> Hold | None:
        def hold(_: int) -> Hold:
            assert request.renewal is not None
            return Hold(self, request.renewal, on_lost)

        return run(self._core.take(request, timeout, hold))

    def acquire(self, key: Name, timeout: float | None = None, **options: Unpack[Options]) -> Hold:
        """Takes the lock, and returns the hold. Raises `LockTimeout` if it is not granted in time.

        The options are those of `lock`."""
        return self._must(self.try_lock(key, timeout, **options), key, timeout)

    @contextlib.contextmanager
    def many(
        self, keys: Iterable[Name], timeout: float | None = None, **options: Unpack[Options]
    ) -> Iterator[dict[Name, Hold]]:
        """Takes locks of any slots in one fixed order under one owner. The value has a hold for each key."""
        timeout = seconds("timeout", timeout)
        if options.get("owner") is None:
            options["owner"] = str(uuid.uuid4())
        end = None if timeout is None else now() + timeout
        with contextlib.ExitStack() as stack:
            holds = {}
            for key in sorted(set(keys)):
                left = None if end is None else max(0.001, end - now())
                holds[key] = stack.enter_context(self.acquire(key, left, **options))
            yield holds

    def is_held(self, key: Name) -> bool:
        """Returns true if anybody holds it."""
        core = self._core
        core.check()
        reply = run(core.call(key, ("DLOCK.HELD", key), now() + core.settings.reply_timeout))[0]
        return reply is not None

    def close(self) -> None:
        """Ends it: every call from now on is an error. What is still held is lost, and lives on until its lease."""
        self._core.end("closed")

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None and not core.closed:
            core.closed = True  # its threads see it, and end the rest

    def _request(self, key: Name, **options: Unpack[Options]) -> Request:
        core, name = self._core, options.get("owner")
        shared, limit, permits = options.get("shared", False), options.get("limit"), options.get("permits")
        how = shared, limit, permits, options.get("ephemeral", False)
        return Request(core.settings, key, core.owner(name), *how, named=name is not None)

    @staticmethod
    def _must(hold: Hold | None, key: Name, timeout: float | None) -> Hold:
        if hold is None:
            raise LockTimeout(f"{key!r} was not granted within {timeout} s: it is taken")
        return hold
