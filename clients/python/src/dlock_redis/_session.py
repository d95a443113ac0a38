# SPDX-License-Identifier: MIT
"""Sessions: what the servers keep for this client, and all that follows from their rows.

Nothing here knows threads, event loops or connections. A driver runs a *job* (a `Take`, a `Loop`, an `Errand`, the
`Clock`): it calls `next()` for a command to send, a list of commands, seconds to wait (unless `woken` is set before),
or None at the end, and passes each reply to `answered()`. When a job in the background has ended, for whatever reason,
it calls `ended()`.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import logging
import math
import os
import secrets
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ._clock import PAUSE, SLICE, STALL, log, ms, now
from ._errors import DLockError, NotHeld, is_answer, passes
from ._hold import Held
from ._settings import Name, Settings

Words = tuple[Any, ...]
LINGER = 1.0  # a loop continues for this long without work: the next turn begins without a new one
QUIET = 0.1  # after an answer without rows that came early
RESTART = 0.5  # after a job in the background could not be started, or has failed
BATCH = 100  # commands at once
CLOSING = 1.0  # a client that is closed waits no longer for what is yet to be said


class Asked(Protocol):
    """A take under way, to which rows tell what it has come to."""

    request: Any

    def granted(self, name: bytes, token: int, session: Session, end: float) -> None: ...

    def refused(self, word: str) -> None: ...

    def end(self, error: Exception | None = None) -> None: ...


@dataclass(eq=False)
class Session:
    """What one server keeps for this client, by the id that it drew."""

    id: int
    key: bytes  # one that its server serves
    seen: int = 0  # the last row
    holds: dict[tuple[bytes, int], Held] = field(default_factory=dict)  # by key and token
    waits: set[Asked] = field(default_factory=set)
    sent: float = -math.inf  # when the last SESSION was sent that was answered
    until: float = -math.inf  # the end of the least lease that it told
    begun: float = -math.inf  # when the SESSION under way was sent
    due: float = -math.inf  # when the server answers it, if it blocks
    loop: Loop | None = None
    error: Exception | None = None  # of the last SESSION

    def any_key(self) -> bytes:
        """Returns a key that is served where this session is."""
        waiting = (take.request.names[0] for take in self.waits)
        holding = (name for name, _ in self.holds)
        return next(waiting, None) or next(holding, self.key)

    def is_needed(self) -> bool:
        return bool(self.waits) or any(held.is_old() for held in self.holds.values())


@dataclass(eq=False)
class Errand:
    """A command that is repeated until the server has answered it, or until it has no purpose.

    It is a job for as long as its caller waits for it, and then one of an `Errands`."""

    words: Words
    is_needed: Callable[[], bool]
    then: Callable[[float, Any], object] = lambda *_: None
    until: float = 0.0  # the caller's patience
    over_at: float = 0.0  # from then on the hold is over as it should be
    tries: int = 0
    done: bool = False
    error: Exception | None = None
    woken: None = None
    pause: float = 0.0

    def next(self) -> Words | float | None:
        if self.done or (self.tries and now() >= self.until):
            return None
        return self.words if self.pause <= now() else self.pause - now()

    def answered(self, sent: float, reply: Any) -> None:
        self.tries += 1
        self.pause = now() + 0.02
        self.error = reply if isinstance(reply, Exception) else None
        self.done = self.error is None or is_answer(self.error)
        if self.done:
            self.then(sent, reply)


class Errands:
    """All that is to be said to one server until it has answered, in batches."""

    woken: Any = None

    def __init__(self, sessions: Sessions, server: str):
        self.sessions = sessions
        self.server = server
        self.waiting: list[Errand] = []
        self.running = False
        self._batch: list[Errand] = []
        self._pause = 0.0

    def next(self) -> list[Words] | float | None:
        with self.sessions.guard:
            if self._pause > now() and not self.sessions.ended:
                return self._pause - now()
            self.waiting = [one for one in self.waiting if not one.done and one.is_needed()]
            if not self.waiting or self.sessions.ended:
                self.sessions.errands.pop(self.server, None)
                self.waiting = []
                return None
            self._batch = self.waiting[:BATCH]
            return [one.words for one in self._batch]

    def answered(self, sent: float, reply: Any) -> None:
        replies = [reply] * len(self._batch) if isinstance(reply, Exception) else reply
        for one, its in zip(self._batch, replies, strict=True):
            one.answered(sent, its)
        if not all(one.done for one in self._batch):
            self._pause = now() + PAUSE

    def ended(self) -> None:
        with self.sessions.guard:
            self.running = False
            if self.waiting:
                self.sessions.clock.set(now() + RESTART)


class Closing:
    """A job that waits until all errands are done, or have had their time."""

    woken: None = None

    def __init__(self, sessions: Sessions):
        self.sessions = sessions
        self._until = now() + CLOSING

    def next(self) -> float | None:
        return 0.01 if self.sessions.errands and now() < self._until else None

    def answered(self, sent: float, reply: Any) -> None:
        """It asks nothing."""


class Clock:
    """A job that sleeps until something of its sessions is due, and then calls `tick`. It waits for no server.

    `woken` ends its sleep."""

    def __init__(self, sessions: Sessions, woken: Any):
        self.sessions = sessions
        self.woken = woken
        self.running = False
        self.alarm = math.inf
        self._slept_from = self._slept_for = 0.0
        self._stalls_since = self._no_loss_before = -math.inf

    def set(self, due: float) -> None:
        """Wakes the clock then, if nothing is due before."""
        if due < self.alarm:
            self.alarm = due
            self.sessions.wake()

    def next(self) -> float | None:
        sessions = self.sessions
        if self._slept_from:
            self.slept(self._slept_from, self._slept_for)
        if not sessions.ended and (sessions.forgotten or self.alarm <= now()):
            try:
                sessions.tick()
            except Exception:
                log.exception("the lock clock failed")
        if sessions.ended:
            return None
        self._slept_from = now()
        self._slept_for = 0.0 if sessions.forgotten else max(0.0, min(self.alarm - self._slept_from, SLICE))
        return self._slept_for

    def answered(self, sent: float, reply: Any) -> None:
        """It asks nothing."""

    def ended(self) -> None:
        self.running = False

    def slept(self, began: float, within: float) -> None:
        """Notes whether the process stalled: nothing is over before the server could be asked.

        Stalls that follow each other put that off, but not for ever: a program may block its event loop often."""
        grace = self.sessions.settings.reply_timeout
        if now() - began - within > STALL:
            if self._no_loss_before < began:
                self._stalls_since = now()
            self._no_loss_before = min(now(), self._stalls_since + 2 * grace) + grace

    def is_over(self, end: float) -> bool:
        return end <= now() and self._no_loss_before <= now()


class Sessions(abc.ABC):
    """All that this client holds and waits for."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.closed = ""  # why the program may no longer ask for anything
        self.ended = False  # nothing more is said to a server
        self.guard = threading.RLock()
        self.name = f"{socket.gethostname()[:64]}/{os.getpid()}/{secrets.token_urlsafe(16)}".encode()
        self._numbers = itertools.count(1)
        # Those with a hold, a wait or a loop. The server forgets the others as well.
        self.by_id: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()
        self.asked: dict[tuple[bytes, bytes], Asked] = {}  # by key and owner
        # By key and token: those that are in a session, that the program has, or whose end is yet to be said.
        self.held: weakref.WeakValueDictionary[tuple[bytes, int], Held] = weakref.WeakValueDictionary()
        self.errands: dict[str, Errands] = {}  # by the server
        self.forgotten: deque[Held] = deque()
        self.left: deque[tuple[float, Held]] = deque()  # to their leases, and until when they are known
        self.clock = Clock(self, self.bell())

    # Implemented by the versions for threads and for tasks.

    @abc.abstractmethod
    def event(self) -> Any: ...

    @abc.abstractmethod
    def bell(self) -> Any:
        """Returns an event that a finalizer may set, by `wake`."""

    @abc.abstractmethod
    def wake(self) -> None:
        """Wakes the clock. Safe to call from a finalizer."""

    @abc.abstractmethod
    def start(self, job: Loop | Errands | Clock) -> None:
        """Runs a job in the background."""

    @abc.abstractmethod
    def server(self, key: bytes) -> str:
        """Returns the name of the server that serves the key: one that hangs holds up no errand to another."""

    @abc.abstractmethod
    def later(self, on_lost: Callable[[Any], object], hold: Any) -> None:
        """Calls the program's `on_lost` where it holds up nothing else."""

    # The beginning, and the end.

    def check(self) -> None:
        """Raises an error if nothing more may be asked, or if no clock could report a loss."""
        if self.closed:
            raise DLockError(self.closed)
        if not self.clock.running:
            with self.guard:
                if not self.clock.running:
                    self.start(self.clock)
                    self.clock.running = True

    def begin(self, job: Loop | Errands) -> None:
        """Runs a job in the background. If that is impossible now, the clock tries it again."""
        try:
            self.start(job)
        except RuntimeError as error:  # the process has too many threads
            log.warning("cannot work in the background: %s", error)
            job.ended()

    def close(self, reason: str) -> bool:
        """Ends all waits, which leave their queues. What is held is reported lost, and lives on until its lease.

        Errands continue until `stop`. Returns false if it was closed before."""
        with self.guard:
            if self.closed:
                return False
            self.closed = "this Locks is closed"
            for take in list(self.asked.values()):
                take.end(DLockError(self.closed))
            held = [one for one in self.held.values() if not one.over]
            if held:
                log.warning("%s while holding %d locks", reason, len(held))
            for one in held:
                self.end(one, reason)
            for errands in list(self.errands.values()):
                self._run(errands)
        return True

    def stop(self) -> None:
        """Ends all jobs."""
        self.closed = self.closed or "this Locks is closed"
        self.ended = True
        self.wake()

    def disown(self) -> None:
        """Is called in a forked child, which has none of the parent's holds, and none of its threads."""
        self.guard = threading.RLock()  # another thread may have had it
        self.closed, self.ended = "held by the parent process", True
        for held in list(self.held.values()):
            if not held.over:
                held.over = True
                held.reason = self.closed
                held.event = self.event()
                held.event.set()

    def notify(self, event: Callable[..., None], *about: Any) -> None:
        """Calls the observer, and logs its exceptions."""
        try:
            event(*about)
        except Exception:
            log.exception("the observer has failed")

    # What is held.

    def owner(self, actor: Name | None) -> bytes:
        """Returns a new, unique owner. What stands before `#` is the actor, for the search for deadlocks."""
        number = b"%d" % next(self._numbers)
        if actor is None:
            return b"%b/%b" % (self.name, number)
        return b"%b/%b#%b" % (self.name, actor if isinstance(actor, bytes) else actor.encode(), number)

    def session(self, number: int, key: bytes) -> Session:
        return self.by_id.setdefault(number, Session(number, key))

    def believed(self, sent: float, left: float) -> float:
        """Returns the end of a lease that the server counts from the arrival of a command. (It counts milliseconds.)"""
        return sent + left - 0.002 - self.settings.clock_margin

    def join(self, held: Held, session: Session) -> None:
        """Notes that the hold is in that session now."""
        held.is_taken = False
        if held.session is not session:
            held.leave()
            held.heard = now()
            held.session = session
            session.holds[held.name, held.token] = held
        if held.is_old():
            self.keep(session)
        self.clock.set(min(held.until(), self._in_time(held) if session.loop else held.since + held.lease / 3))

    def _in_time(self, held: Held) -> float:
        """Renews a hold by itself if the SESSION under way, which did not know it, may be answered too late for it.

        Returns when to do so."""
        session = held.session
        if session is None or held.heard < session.begun or session.due <= held.until() - held.lease / 6:
            return math.inf
        due = max(held.heard, held.renewed) + held.lease / 3
        if now() < due:
            return due
        self.renew(held)
        return math.inf

    def keep(self, session: Session) -> None:
        """Has a loop keep the session from now on."""
        if session.loop is None and not self.closed:
            session.loop = Loop(self, session)
            self.begin(session.loop)

    def end(self, held: Held, reason: str, is_lost: bool = True) -> None:
        """Ends a hold, and reports the loss if it is one. Nothing is said to the server."""
        held.leave()
        if held.over:
            return
        held.over, held.is_released, held.reason = True, not is_lost, reason
        if is_lost:
            level = logging.DEBUG if self.closed else logging.WARNING
            log.log(level, "lock %r of %r is lost: %s", held.key, held.owner.decode(), reason)
            self.notify(self.settings.observer.lost, held.key, reason)
            self.lost_event(held).set()
            hold = held.handle()
            if held.on_lost is not None and hold is not None:
                self.later(held.on_lost, hold)

    def lost_event(self, held: Held) -> Any:
        """Returns what is set when the hold is lost. It is created on first use: most programs never read it."""
        with self.guard:
            if held.event is None:
                held.event = self.event()
            return held.event

    def forget(self, held: Held) -> None:
        """Has the clock report a hold that the program has dropped. Safe to call from a finalizer."""
        self.forgotten.append(held)
        self.wake()

    def tick(self) -> None:
        """Reports what has ended, and keeps what has grown old. The clock calls it when something is due."""
        with self.guard:
            self.clock.alarm = math.inf
            due = now() + PAUSE
            try:
                due = self._look()
            finally:
                self.clock.alarm = min(self.clock.alarm, due)

    def _look(self) -> float:
        """Returns when to look again."""
        while self.forgotten:
            held = self.forgotten.popleft()
            if not held.over:  # its work may still run
                self.end(held, "forgotten: the Hold was garbage-collected without release()")
                self.errand(self._left_to(held, held.lease))
        while self.left and self.left[0][0] <= now():
            self.left.popleft()
        due = now() + SLICE if self.left else math.inf
        for held in list(self.held.values()):
            if not held.over:
                if self.clock.is_over(held.until()):
                    self.expire(held)
                else:
                    due = min(due, max(held.until(), now() + 0.05))
        for session in list(self.by_id.values()):
            if session.loop is None:
                if session.is_needed():
                    self.keep(session)
                else:
                    due = min([due, *(held.since + held.lease / 3 for held in session.holds.values())])
            else:
                due = min([due, *(self._in_time(held) for held in list(session.holds.values()))])
        for errands in list(self.errands.values()):
            self._run(errands)
        return due

    def expire(self, held: Held) -> None:
        """Reports that the believed end of a hold has passed. It may still be held there, so it is released."""
        trouble = held.trouble or (str(held.session.error or "") if held.session is not None else "")
        reason = "the lease ran out before the server confirmed it" + (trouble and f": {trouble}")
        if held.bound <= now():
            reason = "max_hold is over"
        self.end(held, reason)
        if not held.is_taken:  # else another client holds it now
            self.give_back(held.name, held.owner, held.token, held.lease)

    # What is said until it is answered.

    def errand(self, errand: Errand) -> None:
        server = self.server(errand.words[1])
        with self.guard:
            if not self.ended:
                errands = self.errands.setdefault(server, Errands(self, server))
                errands.waiting.append(errand)
                self._run(errands)

    def _run(self, errands: Errands) -> None:
        if not (errands.running or self.ended):
            errands.running = True
            self.begin(errands)

    @contextlib.contextmanager
    def carried(self, errand: Errand) -> Iterator[Errand]:
        """Lets the caller run the command for up to `reply_timeout`, then moves it to the background."""
        errand.until = now() + self.settings.reply_timeout
        try:
            yield errand
        finally:
            if not errand.done:
                self.errand(errand)
        # An earlier attempt may have done it, and its answer is lost.
        is_done = isinstance(errand.error, NotHeld) and errand.tries > 1 and now() >= errand.over_at
        if errand.error is not None and not is_done:
            raise errand.error

    def patience(self, lease: float) -> Callable[[], bool]:
        """Returns what is true until the server has dropped a session, a place or a hold that nobody keeps."""
        end = now() + self.settings.hang_timeout + 2 * lease
        return lambda: now() < end

    def give_back(self, name: bytes, owner: bytes, token: int, lease: float) -> None:
        """Releases a grant that no caller waits for, and that lasts no longer than the lease."""
        self.errand(Errand(("DLOCK.RELEASE", name, owner, "TOKEN", token), self.patience(lease)))

    def released(self, held: Held) -> Errand:
        """Ends a hold at the program's wish. What is returned is to be said."""
        words = ("DLOCK.RELEASE", held.name, held.owner, "TOKEN", held.token)
        return self._last(held, "already released", lambda: Errand(words, self.patience(held.lease)))

    def released_after(self, held: Held, seconds: float) -> Errand:
        """Ends a hold at the program's wish, and leaves the lock taken for so long. What is returned is to be said."""
        return self._last(held, "already ended by release_after()", lambda: self._left_to(held, seconds))

    def _last(self, held: Held, reason: str, make: Callable[[], Errand]) -> Errand:
        self.check()
        with self.guard:
            if held.over:
                raise NotHeld(f"NOTHELD lock {held.key!r} is not held: {held.reason}")
            self.end(held, reason, is_lost=False)
            errand = make()

        told = errand.then

        def then(sent: float, reply: Any) -> None:
            if isinstance(reply, Exception) and not isinstance(reply, NotHeld):  # refused: its lease is to end it
                self.errand(self._left_to(held, held.lease))
            told(sent, reply)

        errand.then = then
        return errand

    def _left_to(self, held: Held, seconds: float) -> Errand:
        """Has the server renew it no more: it ends by its lease."""
        held.stays_until = now() + seconds

        def then(sent: float, reply: Any) -> None:
            # Its row `granted` may be in an answer that is under way: a hold that nobody knows would be released.
            with self.guard:
                self.left.append((now() + 3 * self.settings.reply_timeout, held))
                self.clock.set(now() + SLICE)

        words = ("DLOCK.RENEW", held.name, held.owner, ms(seconds), "TOKEN", held.token)
        return Errand(words, self.patience(max(held.lease, seconds)), then, over_at=held.stays_until)

    def _leave_again(self, held: Held) -> None:
        """Leaves a hold to its lease again: a command that came late may have put it back into the session.

        It does so even if no time remains, with the shortest lease. Otherwise the server would renew it for ever."""
        if held.stays_until is not None:
            self.errand(self._left_to(held, held.stays_until - now()))

    def renew(self, held: Held) -> None:
        """Brings the hold into the session of whoever serves it now, and learns how long it lasts."""
        if held.is_renewed or held.over:
            return
        held.is_renewed, held.renewed = True, now()

        def then(sent: float, reply: Any) -> None:
            held.is_renewed = False
            with self.guard:
                if isinstance(reply, NotHeld):
                    self.end(held, str(reply))
                elif isinstance(reply, Exception):
                    held.trouble = str(reply)
                elif held.over:
                    self._leave_again(held)
                elif not held.is_taken:  # the row `taken` is the later news
                    held.end = max(held.end, self.believed(sent, reply[0] / 1000))
                    self.join(held, self.session(reply[1], held.name))

        words = ("DLOCK.RENEW", held.name, held.owner, ms(held.lease), "TOKEN", held.token, "IN", self.name)
        self.errand(Errand(words, lambda: not held.over, then))

    def hear_the_last(self, key: bytes, session: Session | None) -> None:
        """Ends a session that no loop keeps, and reads its rows: what is granted there is renewed for nobody."""

        def then(sent: float, reply: Any) -> None:
            if not isinstance(reply, Exception):
                with self.guard:
                    self.told(sent, reply, key)

        seen = ("SEEN", session.id, session.seen) if session else ()
        lasts = self.patience(self.settings.lease)
        is_needed: Callable[[], bool] = lambda: lasts() and (session is None or session.loop is None)  # noqa: E731
        self.errand(Errand(("DLOCK.SESSION", key, self.name, 1, *seen), is_needed, then))

    # What a server tells.

    def told(self, sent: float, reply: Any, key: bytes) -> Session:
        """Reads an answer to SESSION, and returns the session that it is of."""
        number, _, left, rows = reply
        session = self.session(number, key)
        for row, word, name, owner, value, row_left in rows:
            if row > session.seen:
                session.seen = row
                self._row(session, word.decode(), (name, owner), value, self.believed(sent, row_left / 1000))
        if sent > session.sent:
            until = -math.inf if left is None else self.believed(sent, left / 1000)
            if until < session.until:  # what was believed of those that were known before stays true
                for held in session.holds.values():
                    held.end = max(held.end, held.until())
            session.sent, session.until = sent, until
            for held in list(session.holds.values()):
                # The least lease says little of the others.
                if left is not None and max(until, held.end) - now() < held.lease / 2:
                    self.renew(held)
        return session

    def _row(self, session: Session, word: str, names: tuple[bytes, bytes], token: int, end: float) -> None:
        held, take = self.held.get((names[0], token)), self.asked.get(names)
        if word == "granted":
            if held is not None and held.over:
                self._leave_again(held)
            elif held is not None:
                held.end = max(held.end, end)
                self.join(held, session)
            elif take is not None:
                take.granted(names[0], token, session, end)
            else:  # a place that was left, or a command that came late
                self.give_back(*names, token, end - now())
        elif word in ("timeout", "cancelled", "replaced", "wrongtype", "again"):
            if take is not None:
                take.refused(word)
        elif held is None or held.over:
            pass
        elif word == "taken":
            held.is_taken = True
            held.trouble = "it was taken out of the session"
            held.leave(end)
            self.clock.set(held.end)
        elif word == "moved":
            held.leave()
            self.renew(held)
        else:
            self.end(held, word)

    def gone(self, session: Session) -> None:
        """Renews every hold of a session that is no more, and repeats every wait, to find its new session."""
        for held in list(session.holds.values()):
            held.leave()
            self.renew(held)
        for take in list(session.waits):
            take.refused("gone")


class Loop:
    """Keeps a session: SESSION again and again, for as long as there are waits, or holds that have grown old."""

    woken: Any = None

    def __init__(self, sessions: Sessions, session: Session):
        self.sessions = sessions
        self.session = session
        self._is_first = True
        self._is_gone = False  # the server has another one
        self._key = session.key
        self._needed = now()
        self._not_before = 0.0
        self._block = 0.0
        self._lease = sessions.settings.lease  # the shortest in the session
        self.within = 0.0  # the time for a call: one lost answer costs no hold
        self._warned = False

    def next(self) -> Words | float | None:
        sessions, session = self.sessions, self.session
        with sessions.guard:
            is_needed = session.is_needed()
            if is_needed:
                self._needed = now()
            seen = ("SEEN", session.id, session.seen)
            self._key = session.any_key()
            if sessions.closed or self._needed + LINGER < now() or (self._is_gone and not is_needed):
                session.loop = None
                for held in session.holds.values():
                    sessions.clock.set(held.since + held.lease / 3)
                if not self._is_gone:
                    sessions.hear_the_last(self._key, session)
                return None
            if self._not_before > now():
                return self._not_before - now()
            settings = sessions.settings
            self._lease = min((held.lease for held in session.holds.values()), default=settings.lease)
            self._block = 0.0 if self._is_first else min(1.0, self._lease / 6, settings.reply_timeout / 2)
            self.within = min(self._block + settings.reply_timeout, max(0.5, self._lease / 2))
            session.begun = now()
            session.due = session.begun + self._block if self._block else -math.inf
            block = ("BLOCK", ms(self._block)) if self._block else ()
            return ("DLOCK.SESSION", self._key, sessions.name, ms(settings.hang_timeout), *seen, *block)

    def answered(self, sent: float, reply: Any) -> None:
        sessions, session = self.sessions, self.session
        with sessions.guard:
            if isinstance(reply, Exception):
                self._failed(reply)
                return
            session.error, self._warned = None, False
            self._is_gone = sessions.told(sent, reply, self._key) is not session
            if self._is_gone:
                sessions.gone(session)
            elif not reply[3] and not self._is_first and now() - sent < self._block - 0.01:
                self._not_before = sent + QUIET
            self._is_first = now() - sent > self._block + self._lease / 6

    def ended(self) -> None:
        with self.sessions.guard:
            if self.session.loop is self:  # it has failed
                self.session.loop = None
                self.sessions.clock.set(now() + RESTART)

    def _failed(self, error: Exception) -> None:
        session = self.session
        self._is_first = True
        session.error = error
        self._not_before = now() + PAUSE
        if not self._warned and not self.sessions.closed:
            log.warning("cannot keep the session alive: %s", error)
            self._warned = True
        if not passes(error):
            for take in list(session.waits):
                take.end(error)
