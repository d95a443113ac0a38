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
from types import TracebackType
from typing import Any, TypeVar

import redis
from redis import exceptions as library
from redis.backoff import NoBackoff
from redis.retry import Retry

from ._errors import FAILURES, LockTimeout, root, typed
from ._hold import HoldBase, log
from ._keep import IDLE, Keeping
from ._link import Entry, Hearing, Link, Node, Then, Wait, own, own_copy
from ._request import Name, Observer, Request, Settings, now, seconds
from ._resp import Word
from ._take import Taking

T = TypeVar("T")
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_SLICE = 1.0  # so long a thread sleeps at most: the clock of the machine may have gone on without its own


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs what never suspends: everything that it awaits has blocked this thread instead."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("it has suspended")


def _in_thread(work: Callable[[], T], within: float, undo: Callable[[T], object]) -> T:
    """What the library does has no bound of its own: names, sentinels and topologies are asked for."""
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    guard, given_up = threading.Lock(), False

    def body() -> None:
        try:
            value: T | None = work()
        except BaseException as error:
            outcome.put((None, error))
            return
        with guard:
            outcome.put((value, None))
            late = given_up
        if late:
            undo(value)  # type: ignore[arg-type]

    threading.Thread(target=body, name="dlock connects", daemon=True).start()
    try:
        value, error = outcome.get(timeout=max(0.001, within))
    except BaseException as why:
        with guard:
            given_up = True
            came = not outcome.empty() and outcome.get()
        if came and came[1] is None:
            undo(came[0])  # type: ignore[arg-type]
        if isinstance(why, queue.Empty):
            raise library.TimeoutError("the server does not answer") from None
        raise
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


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

    def __init__(self, connection: Any, bound: float, died: Callable[[], None] = lambda: None):
        super().__init__(bound)
        self.connection, self.sock, self.died = connection, connection._sock, died
        self.sock.setblocking(False)
        self.tls = isinstance(self.sock, ssl.SSLSocket)
        self.sending, self.roles, self.led = threading.Lock(), threading.Lock(), False

    def post(self, words: tuple[Word, ...], then: Then | None = None, asking: bool = False) -> Entry:
        data, entry = self.packed(words, asking), Entry(then)
        try:
            with self.sending:
                if self.error is not None:
                    raise own_copy(self.error)
                if asking:
                    self.pending.append(Entry(None))
                self.pending.append(entry)
                while data:
                    try:
                        data = data[self.sock.send(data) :]
                    except _BLOCKED:
                        if not _poll(self.sock, True, self.bound):
                            raise library.TimeoutError("the server reads nothing") from None
        except BaseException as error:
            self.die(_as_lost(error))
            if isinstance(error, OSError):
                raise _as_lost(error) from error
            raise
        return entry

    async def result(self, entry: Entry, until: float) -> Any:
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
        return self.value(entry)

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
                left = min(until, entry.sent + self.bound if entry else math.inf) - now()
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


class Ear(Hearing, ThreadLink):
    """Read by a thread of its own."""

    def __init__(self, connection: Any, bound: float, node: Node, channel: str):
        self.outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        super().__init__(connection, bound, lambda: node.tell(b"again"), node=node, channel=channel)

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


class ThreadCore(Taking, Keeping):
    """Nodes with a keeper thread each, and one thread that is the clock."""

    def _begin(self) -> None:
        super()._begin()
        self.guard = threading.RLock()
        self.starting = threading.Lock()
        self.ticking: threading.Thread | None = None
        self.refreshing: concurrent.futures.Future[None] | None = None
        self.tick = threading.Event()

    def mutex(self) -> threading.Lock:
        return threading.Lock()

    def forked(self) -> None:
        """In the child: nothing of the parent's is ours."""
        nodes, was_closed = list(self.nodes.values()), self.closed
        for node in nodes:
            for link in (node.link, node.ear, *node.blocked):
                if isinstance(link, ThreadLink):
                    link.sock.close()  # and says nothing to the server
            for tie in list(node.ties.values()):
                for hold in filter(None, (one() for one in tie.holds)):
                    hold._forked()
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
        connection = kind(**own(kwargs, self.settings.bound, Retry(NoBackoff(), 0)))
        connection.connect()
        return connection

    async def open(self, node: Node, until: float) -> ThreadLink:
        connection = self._connected(node, until)
        link = ThreadLink(connection, self.settings.bound, lambda: self.ended(node, link))
        return link

    def _connected(self, node: Node, until: float) -> Any:
        try:
            return _in_thread(lambda: self.connect(node), until - now(), lambda one: one.disconnect())
        except library.RedisClusterException as error:
            raise root(error) from None

    async def link(self, node: Node, until: float) -> Link:
        link = node.link
        if link is not None and link.error is None:
            return link
        if not node.opening.acquire(timeout=max(0.0, until - now())):
            raise library.TimeoutError("the server does not answer")
        try:
            self.check()
            link = node.link
            if link is None or link.error is not None:
                link = self.linked(node, await self.open(node, until))
            return link
        finally:
            node.opening.release()

    async def listen(self, node: Node, until: float) -> None:
        ear = node.ear
        if ear is not None and ear.error is None:
            return
        if not node.opening.acquire(timeout=max(0.0, until - now())):
            raise library.TimeoutError("the server does not answer")
        try:
            if node.deaf or (node.ear is not None and node.ear.error is None):
                return
            link = node.link
            ear = Ear(self._connected(node, until), self.settings.bound, node, self.channel)
            threading.Thread(target=ear.listen, name="dlock hears", daemon=True).start()
            try:
                refused = ear.outcome.get(timeout=max(0.001, until - now()))
            except queue.Empty:
                refused = library.TimeoutError("no messages come")
            if refused is not None:
                self.deafen(node, refused)
                ear.die(refused)
                raise refused
            self.listening(node, ear, link)
        finally:
            node.opening.release()

    async def refresh(self, within: float) -> None:
        with self.starting:
            if self.refreshing is None or self.refreshing.done():
                asked = concurrent.futures.Future[None]()
                threading.Thread(target=self._refresh, args=(asked,), name="dlock asks", daemon=True).start()
                self.refreshing = asked
            asked = self.refreshing
        try:
            asked.result(max(0.0, within))
        except concurrent.futures.TimeoutError:
            raise library.TimeoutError("the cluster does not answer") from None
        except library.RedisClusterException as error:
            raise root(error) from None

    def _refresh(self, asked: concurrent.futures.Future[None]) -> None:
        try:
            asked.set_result(self.client.nodes_manager.initialize())
        except BaseException as error:
            asked.set_exception(error)

    async def sleep(self, seconds: float) -> None:
        threading.Event().wait(max(0.0, seconds))

    async def doze(self, node: Node, seconds: float) -> None:
        node.kick.wait(seconds)
        node.kick.clear()

    def wait(self) -> Wait:
        return ThreadWait()

    def rouse(self, node: Node) -> None:
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
            self.tick.wait(IDLE if self.alarm == math.inf else max(0.0, min(self.alarm - now(), _SLICE)))
            self.tick.clear()
            if self.alarm <= now():
                try:
                    self.expire()
                except Exception:  # it cannot be left: others are to be told all the same
                    log.exception("what has ended cannot be given back")

    def later(self, work: Callable[[], object]) -> None:
        try:
            threading.Thread(target=work, name="dlock on_lost", daemon=True).start()
        except RuntimeError:  # there are too many: the others are told all the same
            log.exception("on_lost cannot be called")


def _keep(core: ThreadCore, node: Node) -> None:
    run(core.keep(node))


_cores: weakref.WeakSet[ThreadCore] = weakref.WeakSet()


def _after_fork() -> None:
    for core in list(_cores):
        core.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Hold(HoldBase):
    """A lock that is held. `lost` is set when it is lost; `on_lost(hold)` is called then by a thread of its own."""

    lost: threading.Event
    _event = threading.Event

    def _forked(self) -> None:
        self._over, self.reason, self.lost = True, "it is the parent's", threading.Event()
        self.lost.set()

    def guard(self, *command: Any) -> Any:
        """Runs a command in one step with the look whether the lock is still held under this token, else `Fenced`."""
        try:
            return self._locks.client.execute_command(  # type: ignore[no-untyped-call, unused-ignore]
                "DLOCK.GUARD", self.key, self.token, *command
            )
        except library.ResponseError as error:
            raise typed(error) from None

    def release(self) -> None:
        """Gives back what was granted here, and nothing else. `NotHeld` if it was lost."""
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
    """A name to be locked: `with lock as hold`, `lock.acquire()`, or a decorator. Threads may share it."""

    def __init__(self, locks: Locks, key: Name, timeout: float | None, options: dict[str, Any]):
        self.locks, self.key, self.timeout, self.options = locks, key, seconds("timeout", timeout), options
        self._mine = threading.local()
        locks._request(key, **options)  # bad arguments are told here

    def acquire(self, blocking: bool = True, timeout: float | object | None = ...) -> Hold | None:
        """The hold, or None if it was not granted in time. (A hold is true.)"""
        limit = self.timeout if timeout is ... else timeout
        hold = self.locks.try_lock(self.key, limit if blocking else 0, **self.options)  # type: ignore[arg-type]
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
        """True if this thread holds it by this object, and has not lost it."""
        return any(not hold.lost.is_set() for hold in self._holds())

    def locked(self) -> bool:
        """True if anybody holds it."""
        return self.locks.is_held(self.key)

    def __enter__(self) -> Hold:
        hold = self.locks._must(self.acquire(), self.key, self.timeout)
        return hold

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._holds().pop().__exit__(kind, error, trace)

    def __call__(self, work: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(work)
        def locked(*args: Any, **kwargs: Any) -> T:
            with self:
                return work(*args, **kwargs)

        return locked

    def _holds(self) -> list[Hold]:
        if not hasattr(self._mine, "holds"):
            self._mine.holds = []
        return self._mine.holds  # type: ignore[no-any-return]


class Locks:
    """Locks for threads, by a client of redis-py: `Redis`, `RedisCluster`, or what a `Sentinel` gives.

    The client is a pattern: Locks opens one connection of that kind to each node, and a second one where somebody
    waits. All times are in seconds.

    - lease: how long a lock lasts when this program dies or loses the server
    - auto: how long a program that hangs keeps its locks
    - claim: how long a place in a queue is kept while the connection is away
    - bound: how long a connect or a reply may take
    - allowance: so much before its end a hold is believed to have ended
    - observer: is told what happens, for metrics
    """

    def __init__(
        self,
        client: Any,
        *,
        lease: float = 10.0,
        auto: float = 60.0,
        claim: float = 5.0,
        bound: float = 3.0,
        allowance: float = 0.1,
        observer: Observer | None = None,
    ):
        if not isinstance(client, (redis.Redis, redis.RedisCluster)):
            raise TypeError(f"client must be a redis.Redis or redis.RedisCluster, not {client!r}")
        self.client = client
        self._core = ThreadCore(client, Settings(lease, auto, claim, bound, allowance, observer or Observer()))
        _cores.add(self._core)

    def lock(
        self,
        key: Name,
        timeout: float | None = None,
        *,
        owner: Name | None = None,
        shared: bool = False,
        limit: int | None = None,
        session: bool = False,
        on_lost: Callable[[Hold], object] | None = None,
    ) -> Lock:
        """A lock that is yet to be taken: `with locks.lock("stock", timeout=5) as hold`. `LockTimeout` after 5 s.

        - owner: whose lock it is; without it each hold is an owner. Nested locks of one thread should have one
          owner: only then can the server see that two wait for each other (`Deadlock`)
        - shared: with any number of others who share
        - limit: so many may hold it at once: a semaphore
        - session: it ends at once when the connection does
        - on_lost: is called with the hold, by a thread of its own, when it is lost
        """
        options = {"owner": owner, "shared": shared, "limit": limit, "session": session, "on_lost": on_lost}
        return Lock(self, key, timeout, options)

    def try_lock(self, key: Name, timeout: float | None = 0, **options: Any) -> Hold | None:
        """Takes it: a hold, or None if it is not granted in time. The options are those of `lock`."""
        on_lost, timeout = options.get("on_lost"), seconds("timeout", timeout)
        request = self._request(key, **options)
        return run(self._core.take(request, timeout, lambda tie: Hold(self, request, tie, on_lost)))

    def acquire(self, key: Name, timeout: float | None = None, **options: Any) -> Hold:
        """Takes it: a hold, or `LockTimeout`."""
        return self._must(self.try_lock(key, timeout, **options), key, timeout)

    @contextlib.contextmanager
    def many(self, keys: Iterable[Name], timeout: float | None = None, **options: Any) -> Iterator[dict[Name, Hold]]:
        """Locks of any slots in one fixed order under one owner. The value has a hold for each key."""
        timeout = seconds("timeout", timeout)
        options, end = {"owner": str(uuid.uuid4()), **options}, None if timeout is None else now() + timeout
        with contextlib.ExitStack() as stack:
            holds = {}
            for key in sorted(set(keys)):
                left = None if end is None else max(0.001, end - now())
                holds[key] = stack.enter_context(self.acquire(key, left, **options))
            yield holds

    def is_held(self, key: Name) -> bool:
        """True if anybody holds it."""
        core = self._core
        core.check()
        return run(core.call(key, ("DLOCK.HELD", key), now() + core.settings.bound))[0] is not None

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

    def _request(self, key: Name, on_lost: object = None, **options: Any) -> Request:
        given = {"owner": None, "shared": False, "limit": None, "session": False, **options}
        return Request(self._core.settings, key, **given)

    @staticmethod
    def _must(hold: Hold | None, key: Name, timeout: float | None) -> Hold:
        if hold is None:
            raise LockTimeout(f"{key!r} was not granted within {timeout} s: it is taken")
        return hold
