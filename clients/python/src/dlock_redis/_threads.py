# SPDX-License-Identifier: MIT
"""Locks for threads."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import redis

from . import _library
from ._clock import duration, log, now
from ._errors import FAILURES, Fenced
from ._hold import Held, HoldBase, done
from ._locks import LockBase, LocksBase
from ._session import Clock, Closing, Errand, Errands, Loop, Sessions
from ._settings import Argument, Common, Name, Settings
from ._take import Request, Take, by_slot, encoded, must

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
T = TypeVar("T")


class Bell:
    """An event that a finalizer may set: to set a threading.Event takes a lock."""

    def __init__(self) -> None:
        self._rung: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._rung.put(None)

    def wait(self, timeout: float) -> bool:
        with contextlib.suppress(queue.Empty):
            self._rung.get(timeout=timeout)
            return True
        return False

    def clear(self) -> None:
        """It is clear."""


class ThreadSessions(Sessions):
    """Sessions with a thread for each loop, one for the clock, and one for errands where there are any."""

    def __init__(self, client: Any, settings: Settings):
        super().__init__(settings)
        self.library = _library.for_threads(client, settings.reply_timeout)

    def run(self, job: Take[Any] | Loop | Errand | Errands | Clock | Closing) -> None:
        while (step := job.next()) is not None:
            if isinstance(step, (int, float)):
                if job.woken is None:
                    time.sleep(step)
                elif job.woken.wait(step):
                    job.woken.clear()
                continue
            sent = now()
            try:
                reply = self.library.pipe(step) if isinstance(step, list) else self.library.call(step)
            except Exception as error:
                reply = error
            job.answered(sent, reply)

    def take(self, request: Request, make: Callable[[Held], Hold]) -> list[Hold] | None:
        """Returns the holds, or None if it is taken."""
        self.check()
        with Take(self, request, make) as take:
            self.run(take)
            return take.result()

    # What a Sessions needs.

    def event(self) -> Lost:
        return Lost()

    def bell(self) -> Bell:
        return Bell()

    def wake(self) -> None:
        self.clock.woken.set()

    def start(self, job: Loop | Errands | Clock) -> None:
        threading.Thread(target=self._work, args=(job,), name=f"dlock {type(job).__name__}", daemon=True).start()

    def _work(self, job: Loop | Errands | Clock) -> None:
        try:
            self.run(job)
        except Exception:
            log.exception("work in the background has failed")
        finally:
            job.ended()

    def server(self, key: bytes) -> str:
        return self.library.server(key)

    def later(self, on_lost: Callable[[Any], object], hold: Any) -> None:
        def call() -> None:
            try:
                on_lost(hold)
            except Exception:
                log.exception("on_lost has failed")

        try:
            threading.Thread(target=call, name="dlock on_lost", daemon=True).start()
        except RuntimeError:  # the process has too many threads; other holds still report theirs
            log.exception("on_lost cannot be called")

    def close(self, reason: str) -> bool:
        if not super().close(reason):
            return False
        try:
            self.run(Closing(self))
        finally:
            self.stop()
            self.library.close()
        return True


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
        event: Lost = self._sessions.lost_event(self._held)
        return event

    def guard(self, *command: Argument) -> Any:
        """Runs a command if, and only if, the lock is still held, in one step with that look: else raises `Fenced`.

        It is sent once, and takes no longer than the time for a reply. Any other error than `Fenced` and the server's
        own leaves open whether it was run."""
        self._sessions.check()
        try:
            return _library.decoder(self._locks.client)(self._sessions.library.call(self._guarded(command)))
        except Fenced:
            with self._sessions.guard:
                self._sessions.end(self._held, "fenced")
            raise

    def release(self) -> None:
        """Releases this grant, and nothing else. Raises `NotHeld` if it was lost.

        If no server answers within the time for a reply, it raises that error, and continues in the background."""
        self._carry(self._sessions.released(self._held))

    def release_after(self, seconds: float) -> None:
        """Ends this hold, and keeps the lock taken for that many seconds: for work that runs once a period."""
        self._carry(self._sessions.released_after(self._held, duration("seconds", seconds)))

    def _carry(self, last: Errand) -> None:
        with self._sessions.carried(last) as errand:
            self._sessions.run(errand)
        self._sessions.notify(self._sessions.settings.observer.released, self.key, now() - self._held.since)

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if not self._held.is_released:
                self.release()
        except FAILURES:
            if error is None:  # never hide the real error
                raise


class Options(Common, total=False):
    """The options of a lock for threads. See `Locks.lock`."""

    on_lost: Callable[[Hold], object] | None


class Lock(LockBase[Hold]):
    """A lock that is yet to be taken: `with locks.lock("stock") as hold`, or `@locks.lock("stock")`.

    Making it takes nothing. Threads may share it: each `with` has a hold of its own."""

    def __enter__(self) -> Hold:
        return self._entered(threading.get_ident(), self._take())

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left(threading.get_ident()).__exit__(kind, error, trace)

    def __call__(self, work: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(work)
        def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._take():
                return done(work(*args, **kwargs))

        return locked

    def _take(self) -> Hold:
        holds: list[Hold] | None = self._locks._take(self._request)
        return must(holds, self._request.keys[0], self._request.wait)[0]


class Locks(LocksBase["redis.Redis | redis.RedisCluster"]):
    """Locks for threads, by a client of redis-py: `Redis`, `RedisCluster`, or what a `Sentinel` gives.

    The client is a template: Locks makes another one of that kind. All times are in seconds.

    - lease: how long a lock lasts when this program dies or loses the server
    - hang_timeout: how long a program that hangs keeps its locks
    - reply_timeout: how long a connect or a reply may take
    - clock_margin: how long before its end a hold is believed to have ended
    - observer: is called with what happens, for metrics
    """

    _kinds = {"redis.Redis": redis.Redis, "redis.RedisCluster": redis.RedisCluster}  # noqa: RUF012
    _make = ThreadSessions
    _sessions: ThreadSessions

    def lock(self, key: Name, blocking_timeout: float | None = None, **options: Unpack[Options]) -> Lock:
        """Returns a lock that is yet to be taken: `with locks.lock("stock", blocking_timeout=5) as hold`.

        `with` raises `LockTimeout` after 5 s; without a time-out it waits for ever.

        - shared: with any number of others who share
        - limit: this many may hold it at once: a semaphore
        - permits: the hold takes this many of the limit, all at once; 1 unless set
        - lease: how long this lock lasts when the program dies; that of the Locks unless set
        - max_hold: after this many seconds the hold is reported lost, and released
        - actor: names the task that takes several locks: the server sees that two wait for each other (`Deadlock`),
          and that an actor waits for what it holds itself
        - on_lost: is called with the hold, by a thread of its own, when it is lost
        """
        return Lock(self, self._request([key], blocking_timeout, options))

    def try_lock(self, key: Name, blocking_timeout: float | None = 0, **options: Unpack[Options]) -> Hold | None:
        """Takes the lock, and returns the hold, or None if it is not granted in time. The options are those of `lock`.

        Without a time-out it is one attempt: what goes wrong is raised at once."""
        holds = self._take(self._request([key], blocking_timeout, options, default=0))
        return holds[0] if holds else None

    def acquire(self, key: Name, blocking_timeout: float | None = None, **options: Unpack[Options]) -> Hold:
        """Takes the lock, and returns the hold. Raises `LockTimeout` if it is not granted in time.

        The options are those of `lock`."""
        request = self._request([key], blocking_timeout, options)
        return must(self._take(request), key, request.wait)[0]

    @contextlib.contextmanager
    def many(
        self, keys: Iterable[Name], blocking_timeout: float | None = None, **options: Unpack[Options]
    ) -> Iterator[dict[Name, Hold]]:
        """Takes many locks: all or none of a slot in one step, and slots in one fixed order. Yields a hold for each."""
        holds: dict[Name, Hold] = {}
        with contextlib.ExitStack() as stack:
            for request in by_slot(self.client, self._request(keys, blocking_timeout, options)):
                for hold in must(self._take(request), request.keys[0], request.wait):
                    holds[hold.key] = stack.enter_context(hold)
            yield holds

    def is_held(self, key: Name) -> bool:
        """Returns true if anybody holds it."""
        self._sessions.check()
        return self._sessions.library.call(("DLOCK.HELD", encoded(key))) is not None

    def close(self) -> None:
        """Ends it: every call from now on is an error. What is still held is lost, and lives on until its lease.

        It waits for up to a second until all waits have left their queues."""
        self._sessions.close("closed")

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, request: Request) -> list[Hold] | None:
        return self._sessions.take(request, lambda held: Hold(self, held))
