# SPDX-License-Identifier: MIT
"""Locks for threads."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import redis
from redis.exceptions import AskError, MovedError, ReadOnlyError, ResponseError

from . import _library
from ._clock import duration, now, seconds
from ._errors import FAILURES, Fenced, LockTimeout, typed
from ._hold import Held, HoldBase, done, log, refuse
from ._session import PAUSE, Errand, Loop, Sessions
from ._settings import Argument, Common, Name, Observer, OldSettings, Settings, renamed, without_old
from ._take import Request, Take, encoded

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
T = TypeVar("T")


class ThreadSessions(Sessions):
    """Sessions with a thread for each loop, one for the clock, and one for errands where there are any."""

    def __init__(self, client: Any, settings: Settings):
        self.client = client
        super().__init__(settings)

    def _begin(self) -> None:
        super()._begin()
        self._ours: Any = None
        self._failed: set[str] = set()  # nodes of a cluster that have not answered a SESSION
        self._looked = -1.0
        self._making = threading.Lock()
        self._mail: queue.SimpleQueue[None] = queue.SimpleQueue()  # a finalizer may put into it
        self._ticking: threading.Thread | None = None

    def library(self) -> Any:
        """Returns our client. (A cluster is asked for its nodes.)"""
        if self._ours is None:
            with self._making:
                if self._ours is None:
                    self._ours = _library.for_threads(self.client, self.settings.reply_timeout)
        return self._ours

    def call(self, *words: Any) -> Any:
        try:
            ours = self.library()
            sentinel = getattr(getattr(ours, "connection_pool", None), "get_master_address", None)
            if sentinel is not None and now() - self._looked > 1.0:  # it ends connections to a former primary
                self._looked = now()
                with contextlib.suppress(*FAILURES):
                    sentinel()
            if words[0] != "DLOCK.SESSION" or hasattr(ours, "connection_pool"):
                return ours.execute_command(*words)
            return self._keep(ours, words)
        except FAILURES as error:
            self._look(error)
            raise typed(error) from error.__cause__

    def _keep(self, ours: Any, words: tuple[Any, ...]) -> Any:
        """Asks the key's server itself: while a node hangs, the library's cluster client lets all calls wait.

        After a failure, and when the slot has moved, that client finds the server."""
        node = ours.get_node_from_key(words[1])
        if node.name not in self._failed:
            try:
                return ours.get_redis_connection(node).execute_command(*words)
            except (MovedError, AskError):
                pass
            except FAILURES as error:
                if not isinstance(error, ResponseError):
                    self._failed.add(node.name)
                raise
        reply = ours.execute_command(*words)
        self._failed.discard(node.name)
        return reply

    def _look(self, error: object) -> None:
        """Drops the connections to a server that has become a replica: new ones may find the primary."""
        if isinstance(error, ReadOnlyError) and hasattr(self._ours, "connection_pool"):
            self._ours.connection_pool.disconnect(inuse_connections=False)

    def run(self, job: Take | Loop | Errand) -> None:
        while (step := job.next()) is not None:
            if isinstance(step, tuple):
                sent = now()
                try:
                    reply = self.call(*step)
                except Exception as error:
                    reply = error
                job.answered(sent, reply)
            elif job.woken.wait(step):
                job.woken.clear()

    def take(self, request: Request, wait: float | None, hold: Callable[[Held], T]) -> list[T] | None:
        """Returns the holds, or None if it is taken."""
        self.check()  # before the guard, which a forked child may never get
        with Take(self, request, wait) as take:
            self.run(take)
            return take.result(hold)

    # What a Sessions needs.

    def event(self) -> Lost:
        return Lost()

    def wake(self) -> None:
        self._mail.put(None)
        if self._ticking is None and not self.closed:
            clock = threading.Thread(target=self._tick, args=(self._mail,), name="dlock clock", daemon=True)
            self._ticking = clock
            clock.start()

    def _tick(self, mail: queue.SimpleQueue[None]) -> None:
        while not self.closed and mail is self._mail:
            began, within = now(), self.clock.left()
            with contextlib.suppress(queue.Empty):
                mail.get(timeout=within)
            self.clock.slept(began, within, self.settings.reply_timeout)
            if self.clock.alarm <= now():
                try:
                    self.tick()
                except Exception:
                    log.exception("what has ended is not told")

    def start(self, loop: Loop) -> None:
        threading.Thread(target=self.run, args=(loop,), name="dlock keeps", daemon=True).start()

    def start_errands(self, place: str) -> None:
        threading.Thread(target=self._errands, args=(place,), name="dlock errands", daemon=True).start()

    def _errands(self, place: str) -> None:
        while errands := self.batch(place):
            sent = now()
            try:
                with self.library().pipeline(transaction=False) as pipe:
                    for one in errands:
                        pipe.execute_command(*one.words)
                    replies = pipe.execute(raise_on_error=False)
            except Exception as error:
                replies = [error] * len(errands)
            self._look(next((one for one in replies if isinstance(one, ReadOnlyError)), None))
            for one, reply in zip(errands, replies, strict=True):
                one.answered(sent, typed(reply) if isinstance(reply, Exception) else reply)
            if not all(one.done for one in errands):
                time.sleep(PAUSE)

    def place(self, key: bytes) -> str:
        with contextlib.suppress(*FAILURES, AttributeError):
            return str(self._ours.get_node_from_key(key).name)
        return ""

    def later(self, held: Held) -> None:
        hold, on_lost = held.handle(), held.on_lost

        def call() -> None:
            try:
                if on_lost is not None:
                    on_lost(hold)
            except Exception:
                log.exception("on_lost has failed")

        if hold is not None:
            try:
                threading.Thread(target=call, name="dlock on_lost", daemon=True).start()
            except RuntimeError:  # the process has too many threads; other holds still report theirs
                log.exception("on_lost cannot be called")

    def close(self, reason: str) -> None:
        super().close(reason)
        ours = self._ours
        if ours is not None:
            (ours.connection_pool.disconnect if hasattr(ours, "connection_pool") else ours.close)()


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

    @property
    def lost(self) -> Lost:
        event: Lost = self._event()
        return event

    def guard(self, *command: Argument) -> Any:
        """Runs a command if, and only if, the lock is still held, in one step with that look: else raises `Fenced`.

        It is sent once, and takes no longer than the time for a reply. Any other error than `Fenced` and the server's
        own leaves open whether it was run."""
        sessions = self._sessions
        sessions.check()
        try:
            return _library.decoder(sessions.client)(sessions.call(*self._words(command)))
        except Fenced:
            with sessions.guard:
                sessions.lose(self._held, "fenced")
            raise

    def release(self) -> None:
        """Gives back what was granted here, and nothing else. Raises `NotHeld` if it was lost.

        If no server answers within the time for a reply, it raises that error, and goes on in the background."""
        self._carry(self._sessions.released)

    def release_after(self, seconds: float) -> None:
        """Ends this hold, and keeps the lock taken for that many seconds: for work that runs once a period."""
        self._carry(self._sessions.released_after, duration("seconds", seconds))

    def _carry(self, what: Callable[..., Errand], *how: float) -> None:
        self._must_be_ours()
        with self._sessions.carried(what(self._held, *how)) as errand:
            self._sessions.run(errand)
        self._sessions.tell("released", self.key, now() - self._held.since)

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if not self._held.is_left:
                self.release()
        except FAILURES:
            if error is None:  # never hide the real error
                raise


class Options(Common, total=False):
    """The options of a lock for threads. See `Locks.lock`."""

    on_lost: Callable[[Hold], object] | None


class Lock:
    """The name of a lock that is yet to be taken: `with lock as hold`, `lock.acquire()`, or a decorator.

    Making it takes nothing. Threads may share it."""

    def __init__(self, locks: Locks, request: Request, blocking_timeout: float | None):
        self.locks, self.key, self.blocking_timeout = locks, request.keys[0], blocking_timeout
        self._request, self._mine = request, threading.local()

    def acquire(self, blocking: bool = True, blocking_timeout: float | EllipsisType | None = ...) -> Hold | None:
        """Takes it, and returns the hold, or None if it was not granted in time. (A hold is true.)"""
        limit = self.blocking_timeout if isinstance(blocking_timeout, EllipsisType) else blocking_timeout
        hold = self.locks._take(self._request, seconds("blocking_timeout", limit) if blocking else 0)
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
        return must(self.acquire(), self.key, self.blocking_timeout)

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


class Locks:
    """Locks for threads, by a client of redis-py: `Redis`, `RedisCluster`, or what a `Sentinel` gives.

    The client is a template: Locks makes another one of that kind. All times are in seconds.

    - lease: how long a lock lasts when this program dies or loses the server
    - hang_timeout: how long a program that hangs keeps its locks
    - reply_timeout: how long a connect or a reply may take
    - clock_margin: so much before its end a hold is believed to have ended
    - observer: is called with what happens, for metrics
    """

    client: redis.Redis | redis.RedisCluster

    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster,
        *,
        lease: float = 10.0,
        hang_timeout: float = 30.0,
        reply_timeout: float = 3.0,
        clock_margin: float = 0.1,
        observer: Observer | None = None,
        **old: Unpack[OldSettings],
    ):
        if not isinstance(client, (redis.Redis, redis.RedisCluster)):
            raise TypeError(f"client must be a redis.Redis or redis.RedisCluster, not {client!r}")
        without_old(old)
        self.client = client
        self._sessions = ThreadSessions(client, Settings(lease, hang_timeout, reply_timeout, clock_margin, observer))

    def lock(self, key: Name, blocking_timeout: float | None = None, **options: Unpack[Options]) -> Lock:
        """Returns a lock that is yet to be taken: `with locks.lock("stock", blocking_timeout=5) as hold`.

        `with` raises `LockTimeout` after 5 s; without a time-out it waits for ever.

        - shared: with any number of others who share
        - limit: this many may hold it at once: a semaphore
        - permits: the hold takes this many of the limit, all at once; 1 unless set
        - lease: how long this lock lasts when the program dies; that of the Locks unless set
        - max_hold: after so many seconds the hold is reported lost, and given back
        - actor: a name for whoever takes several locks: the server sees that two wait for each other (`Deadlock`),
          and that an actor waits for what it holds itself
        - on_lost: is called with the hold, by a thread of its own, when it is lost
        """
        how, wait = renamed(options, blocking_timeout)
        return Lock(self, Request(self._sessions.settings, [key], **how), wait)

    def try_lock(self, key: Name, blocking_timeout: float | None = 0, **options: Unpack[Options]) -> Hold | None:
        """Takes the lock, and returns the hold, or None if it is not granted in time. The options are those of `lock`.

        Without a time-out it is one attempt: what goes wrong is raised at once."""
        how, wait = renamed(options, blocking_timeout)
        return self._take(Request(self._sessions.settings, [key], **how), wait)

    def acquire(self, key: Name, blocking_timeout: float | None = None, **options: Unpack[Options]) -> Hold:
        """Takes the lock, and returns the hold. Raises `LockTimeout` if it is not granted in time.

        The options are those of `lock`."""
        how, wait = renamed(options, blocking_timeout)
        return must(self._take(Request(self._sessions.settings, [key], **how), wait), key, wait)

    @contextlib.contextmanager
    def many(
        self, keys: Iterable[Name], blocking_timeout: float | None = None, **options: Unpack[Options]
    ) -> Iterator[dict[Name, Hold]]:
        """Takes many locks: all or none of a slot in one step, and slots in one fixed order. Yields a hold for each."""
        how, wait = renamed(options, blocking_timeout, 4)
        end = None if wait is None else now() + wait
        with contextlib.ExitStack() as stack:
            holds: dict[Name, Hold] = {}
            for group in by_slot(self.client, keys):
                request = Request(self._sessions.settings, group, **how)
                left = None if end is None else max(0.001, end - now())
                taken = self._take_all(request, left)
                for hold in must(taken, group[0], wait):
                    holds[hold.key] = stack.enter_context(hold)
            yield holds

    def is_held(self, key: Name) -> bool:
        """Returns true if anybody holds it."""
        self._sessions.check()
        return self._sessions.call("DLOCK.HELD", encoded(key)) is not None

    def close(self) -> None:
        """Ends it: every call from now on is an error. What is still held is lost, and lives on until its lease."""
        self._sessions.close("closed")

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        sessions = getattr(self, "_sessions", None)
        if sessions is not None and not sessions.closed:
            sessions.closed = True  # its threads see it, and end
            sessions.wake()

    def _take_all(self, request: Request, wait: float | None) -> list[Hold] | None:
        return self._sessions.take(request, wait, lambda held: Hold(self, held))

    def _take(self, request: Request, wait: float | None) -> Hold | None:
        holds = self._take_all(request, wait)
        return None if holds is None else holds[0]


def must(taken: T | None, key: Name, wait: float | None) -> T:
    if taken is None:
        raise LockTimeout(f"{key!r} was not granted within {wait} s: it is taken")
    return taken


def by_slot(client: Any, keys: Iterable[Name]) -> list[list[Name]]:
    """Returns the keys in groups that one command can name, in an order that is the same for all programs."""
    groups: dict[int, list[Name]] = {}
    for key in sorted(set(keys), key=encoded):
        slot = client.keyslot(key) if hasattr(client, "keyslot") else 0
        groups.setdefault(slot, []).append(key)
    return [groups[slot] for slot in sorted(groups)]
