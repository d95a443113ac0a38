# SPDX-License-Identifier: MIT
"""Sessions: what the servers keep for this client, and all that follows from their rows.

Nothing here knows threads, event loops or connections. Whoever runs a *job* (a `Take`, a `Loop`, an `Errand`) asks it
for its `next` step: a command, of which it gets the answer; seconds to wait, unless its `woken` is set before; or None,
the end.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ._clock import Clock, ms, now
from ._errors import DLockError, NotHeld, passes
from ._hold import Held, log
from ._settings import Name, Settings

if TYPE_CHECKING:
    from ._take import Take

Words = tuple[Any, ...]
LINGER = 1.0  # so long a loop goes on without work: the next turn begins without a new one
QUIET = 0.1  # after an answer without rows that came early
PAUSE = 0.1  # after a failure
BATCH = 100  # errands at once


class Session:
    """What one server keeps for this client, by the id that it drew."""

    def __init__(self, number: int, key: bytes):
        self.id, self.key = number, key  # a key that it serves
        self.seen = 0  # the last row
        self.holds: dict[tuple[bytes, int], Held] = {}  # by key and token
        self.waits: set[Take] = set()
        self.sent = self.until = float("-inf")  # of the last SESSION, and the end of the least lease that it told
        self.heard = float("-inf")  # when the last SESSION was sent that was answered, with holds or without
        self.longest = 0.0  # of the leases in it
        self.loop: Loop | None = None
        self.error: Exception | None = None  # of the last SESSION

    def any_key(self) -> bytes:
        for take in self.waits:
            self.key = take.request.names[0]
            return self.key
        for name, _ in self.holds:
            self.key = name
            break
        return self.key

    def is_needed(self) -> bool:
        return bool(self.waits) or any(held.is_old() for held in self.holds.values())


class Errand:
    """A command that is repeated until the server has answered it, or until it means nothing any more.

    It is a job as long as its caller waits for it, and then one of a batch."""

    def __init__(self, words: Words, then: Callable[[float, Any], object], is_needed: Callable[[], bool]):
        self.words, self._then, self.is_needed = words, then, is_needed
        self.tries, self.done = 0, False
        self.error: Exception | None = None
        self.woken: Any = None
        self.until = self._pause = 0.0  # of the caller's patience

    def next(self) -> Words | float | None:
        if self.done or (self.tries and now() >= self.until):
            return None
        return self.words if self._pause <= now() else self._pause - now()

    def answered(self, sent: float, reply: Any) -> None:
        self.tries, self._pause = self.tries + 1, now() + 0.02
        self.error = reply if isinstance(reply, Exception) else None
        self.done = self.error is None or not passes(self.error)
        if self.done:
            self._then(sent, reply)


class Sessions:
    """All that this client holds and waits for."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._begin()

    def _begin(self) -> None:
        """Is as new: at first, and in a forked child."""
        self.pid, self.closed, self.guard = os.getpid(), False, threading.RLock()
        self.name = f"{socket.gethostname()[:64]}/{self.pid}/{secrets.token_urlsafe(16)}".encode()
        self._numbers = itertools.count(1)
        # Those with a hold, a wait or a loop. The server forgets the others, too.
        self.by_id: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()
        self.asked: dict[tuple[bytes, bytes], Take] = {}  # by key and owner
        self.held: dict[tuple[bytes, int], Held] = {}  # by key and token
        self.errands: dict[str, list[Errand]] = {}  # by the server
        self._forgotten: deque[Held] = deque()
        self.clock = Clock(self.wake)
        self._never = self.event()

    # What threads and tasks differ in.

    def event(self) -> Any:
        raise NotImplementedError

    def wake(self) -> None:
        """Has the clock look at its alarm. It may be called anywhere, by a finalizer, too."""
        raise NotImplementedError

    def start(self, loop: Loop) -> None:
        raise NotImplementedError

    def start_errands(self, place: str) -> None:
        raise NotImplementedError

    def place(self, key: bytes) -> str:
        """Returns the server that serves the key: one that hangs holds up no errand to another."""
        raise NotImplementedError

    def later(self, held: Held) -> None:
        """Calls the program's `on_lost` where it holds up nothing of ours."""
        raise NotImplementedError

    # The process, and the end.

    def check(self) -> None:
        """Raises an error if nothing may be asked any more. A forked child begins a session of its own."""
        if self.pid != os.getpid():
            self.forked()
        if self.closed:
            raise DLockError("these locks are closed")

    def forked(self) -> None:
        was_closed = self.closed
        self._begin()
        self.closed = was_closed

    def close(self, reason: str) -> None:
        """Ends everything: what is held is reported lost, and lives on until its lease."""
        with self.guard:
            self.closed = True
            if self.held:
                log.warning("%s with %d locks held: they are lost", reason, len(self.held))
            for held in list(self.held.values()):
                self.lose(held, reason)
            for take in list(self.asked.values()):
                take.fail(DLockError("these locks are closed"))
        self.wake()

    def tell(self, what: str, *about: Any) -> None:
        """Calls the observer. It may fail, and nothing else does."""
        try:
            getattr(self.settings.observer, what)(*about)
        except Exception:
            log.exception("the observer has failed")

    # What is held.

    def owner(self, actor: Name | None) -> bytes:
        """Returns an owner that nobody has used. What stands before `#` is the actor, for the search for deadlocks."""
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
        """The hold is in that session now."""
        held.is_taken = False
        if held.session is not session:
            held.leave()
            held.told, held.session = now(), session
            session.holds[held.name, held.token] = held
            session.longest = max(session.longest, held.lease)
        if held.is_old():
            self.keep(session)
        self.clock.set(min(held.until(), held.since + held.lease / 3 if session.loop is None else held.until()))

    def keep(self, session: Session) -> None:
        """Has a loop keep it from now on."""
        if session.loop is None and not self.closed:
            session.loop = Loop(self, session)
            self.start(session.loop)

    def lose(self, held: Held, reason: str) -> None:
        """It is held no more, and the program is told."""
        self.held.pop((held.name, held.token), None)
        held.leave()
        if held.over:
            return
        held.over, held.reason = True, reason
        log.log(10 if self.closed else 30, "lock %r of %r is lost: %s", held.key, held.owner.decode(), reason)
        self.tell("lost", held.key, reason)
        self.lost_event(held).set()
        if held.on_lost is not None:
            self.later(held)

    def lost_event(self, held: Held) -> Any:
        """Returns what is set when it is lost. Most holds end without anybody having asked for it."""
        with self.guard:
            if held.event is None:
                held.event = self.event()
            return held.event

    def forget(self, held: Held) -> None:
        """Has the clock report a hold that the program has dropped. Safe to call from a finalizer."""
        self._forgotten.append(held)
        self.clock.alarm = float("-inf")
        self.wake()

    def tick(self) -> None:
        """Reports what has ended, and keeps what has grown old. The clock calls it when the alarm is due."""
        with self.guard:
            alarm = self.clock.alarm = float("inf")  # first: a finalizer may run at any time, and sets it again
            while self._forgotten:
                held = self._forgotten.popleft()
                if not held.over:  # its work may still run
                    self.lose(held, "it was forgotten")
                    self.errand(self._left(held, held.lease))
            for held in list(self.held.values()):
                if held.over:
                    continue
                end = held.until()
                if self.clock.is_over(end):
                    self.expire(held)
                    continue
                alarm = min(alarm, max(end, now() + 0.05))
                if held.session is not None and held.session.loop is None:
                    if held.is_old():
                        self.keep(held.session)
                    else:
                        alarm = min(alarm, held.since + held.lease / 3)
            self.clock.alarm = min(self.clock.alarm, alarm)

    def expire(self, held: Held) -> None:
        """Its believed end has passed. The server may have it still, so it is given back."""
        why = held.why or (str(held.session.error or "") if held.session is not None else "")
        reason = "nobody has confirmed it before its end" + (why and f": {why}")
        if held.bound <= now():
            reason = "max_hold is over"
        self.lose(held, reason)
        if not held.is_taken:  # else it is somebody else's now
            self.give_back(held.name, held.owner, held.token, held.lease)

    # What is said until it is answered.

    def errand(self, errand: Errand) -> None:
        place = self.place(errand.words[1])
        with self.guard:
            is_first = place not in self.errands
            self.errands.setdefault(place, []).append(errand)
        if is_first and not self.closed:
            self.start_errands(place)

    @contextlib.contextmanager
    def carried(self, errand: Errand) -> Iterator[Errand]:
        """Lets the caller run it within the time for a reply. After that it goes on in the background."""
        errand.woken, errand.until = self._never, now() + self.settings.reply_timeout
        try:
            yield errand
        finally:
            if not errand.done:
                self.errand(errand)
        if errand.error is not None and not (isinstance(errand.error, NotHeld) and errand.tries > 1):
            raise errand.error

    def batch(self, place: str) -> list[Errand]:
        """Returns what is to be said next, and nothing if all is done."""
        with self.guard:
            needed = [one for one in self.errands.get(place, ()) if not one.done and one.is_needed()]
            self.errands[place] = needed
            if not needed or self.closed:
                self.errands.pop(place, None)
                return []
            return needed[:BATCH]

    def patience(self, lease: float) -> Callable[[], bool]:
        """Returns what is true until the server has dropped a session, a place or a hold that nobody keeps."""
        end = now() + self.settings.hang_timeout + 2 * lease
        return lambda: now() < end

    def give_back(self, name: bytes, owner: bytes, token: int, lease: float) -> None:
        """Releases a grant that no caller waits for, and that lasts no longer than the lease."""
        words = ("DLOCK.RELEASE", name, owner, "TOKEN", token)
        self.errand(Errand(words, lambda sent, reply: None, self.patience(lease)))

    def released(self, held: Held) -> Errand:
        """Ends a hold at the program's wish. What is returned is to be said."""
        self._end(held, "it was given back before")

        def then(sent: float, reply: Any) -> None:
            self.held.pop((held.name, held.token), None)
            if isinstance(reply, Exception) and not isinstance(reply, NotHeld):  # it may not be given back
                self.errand(self._left(held, held.lease))

        return Errand(("DLOCK.RELEASE", held.name, held.owner, "TOKEN", held.token), then, self.patience(held.lease))

    def released_after(self, held: Held, seconds: float) -> Errand:
        """Ends a hold at the program's wish, and leaves the lock taken for so long."""
        session = held.session
        self._end(held, "it was left to its lease")
        held.is_left = True

        def then(sent: float, reply: Any) -> None:
            if isinstance(reply, Exception) and not isinstance(reply, NotHeld):  # it is as it was
                held.over = held.is_left = False
                if session is not None:
                    self.join(held, session)

        return self._left(held, seconds, then)

    def _end(self, held: Held, reason: str) -> None:
        self.check()
        with self.guard:
            if held.over:
                raise NotHeld(f"NOTHELD lock {held.key!r} is not held: {held.reason}")
            held.over, held.reason = True, reason
            held.leave()

    def _left(self, held: Held, seconds: float, then: Callable[[float, Any], object] = lambda *_: None) -> Errand:
        """Has the server renew it no more: it ends by its lease."""

        def answered(sent: float, reply: Any) -> None:
            self.held.pop((held.name, held.token), None)
            then(sent, reply)

        words = ("DLOCK.RENEW", held.name, held.owner, ms(seconds), "TOKEN", held.token)
        return Errand(words, answered, self.patience(max(held.lease, seconds)))

    def renew(self, held: Held) -> None:
        """Brings the hold into the session of whoever serves it now, and learns how long it lasts."""
        if held.is_renewed or held.over:
            return
        held.is_renewed = True

        def then(sent: float, reply: Any) -> None:
            held.is_renewed = False
            with self.guard:
                if isinstance(reply, NotHeld):
                    self.lose(held, str(reply))
                elif isinstance(reply, Exception):
                    held.why = str(reply)
                elif not (held.over or held.is_taken):  # the row `taken` is the later news
                    held.end = max(held.end, self.believed(sent, reply[0] / 1000))
                    self.join(held, self.session(reply[1], held.name))

        words = ("DLOCK.RENEW", held.name, held.owner, ms(held.lease), "TOKEN", held.token, "IN", self.name)
        self.errand(Errand(words, then, lambda: not held.over))

    # What a server tells.

    def told(self, sent: float, reply: Any, key: bytes) -> Session:
        """Reads an answer to SESSION, and returns the session that it is of."""
        number, _, left, rows = reply
        session = self.session(number, key)
        session.heard = max(session.heard, sent)
        for row, word, name, owner, value, row_left in rows:
            if row > session.seen:
                session.seen = row
                self._row(session, word.decode(), (name, owner), value, self.believed(sent, row_left / 1000))
        if left is not None and sent > session.sent:
            until = self.believed(sent, left / 1000)
            if until < session.until:  # what was believed of those that were known before stays true
                for held in session.holds.values():
                    held.end = max(held.end, held.until())
            session.sent, session.until = sent, until
            if until - now() < session.longest / 2:  # the least lease says little of the others
                for held in list(session.holds.values()):
                    if held.until() - now() < held.lease / 2:
                        self.renew(held)
        return session

    def _row(self, session: Session, word: str, names: tuple[bytes, bytes], token: int, end: float) -> None:
        held, take = self.held.get((names[0], token)), self.asked.get(names)
        if word == "granted":
            if held is not None:
                if not held.over:
                    held.end = max(held.end, end)
                    self.join(held, session)
            elif take is not None:
                take.granted(names[0], token, session, end)
            else:  # a place that was left, or a command that came late
                self.give_back(*names, token, end - now())
        elif word in ("timeout", "cancelled", "replaced", "wrongtype", "again"):
            if take is not None:
                take.ended(word)
        elif held is None or held.over:
            pass
        elif word == "taken":
            held.is_taken, held.why = True, "it was taken out of the session"
            held.leave(end)
            self.clock.set(held.end)
        elif word == "moved":
            held.leave()
            self.renew(held)
        else:
            self.lose(held, word)

    def gone(self, session: Session) -> None:
        """The server of a key has another session: all that was in this one goes where the servers say."""
        for held in list(session.holds.values()):
            held.leave()
            self.renew(held)
        for take in list(session.waits):
            take.ended("gone")


class Loop:
    """Keeps a session: SESSION again and again, as long as there are waits or holds that have grown old."""

    def __init__(self, sessions: Sessions, session: Session):
        self.sessions, self.session, self.woken = sessions, session, sessions.event()
        self._is_first, self._is_last, self._is_over = True, False, False
        self._needed = now()
        self._not_before = 0.0
        self._block = 0.0
        self._warned = False

    def next(self) -> Words | float | None:
        sessions, session = self.sessions, self.session
        with sessions.guard:
            if sessions.closed or (self._is_over and not session.is_needed()):
                session.loop = None
                for held in session.holds.values():
                    sessions.clock.set(held.since + held.lease / 3)
                return None
            if self._is_over:  # something has come in the last moment
                self._is_over, self._is_first = False, True
            if self._not_before > now():
                return self._not_before - now()
            if session.is_needed():
                self._needed = now()
            seen = ("SEEN", session.id, session.seen)
            key = session.any_key()
            if self._needed + LINGER < now():  # what an answer that was lost has granted is renewed for nobody
                self._is_last = True
                return ("DLOCK.SESSION", key, sessions.name, 1, *seen)
            settings = sessions.settings
            lease = min((held.lease for held in session.holds.values()), default=settings.lease)
            self._block = 0.0 if self._is_first else min(1.0, lease / 3, settings.reply_timeout / 2)
            block = ("BLOCK", ms(self._block)) if self._block else ()
            return ("DLOCK.SESSION", key, sessions.name, ms(settings.hang_timeout), *seen, *block)

    def answered(self, sent: float, reply: Any) -> None:
        sessions, session = self.sessions, self.session
        with sessions.guard:
            if isinstance(reply, Exception):
                self._failed(reply)
                return
            session.error, self._warned = None, False
            answer = sessions.told(sent, reply, session.key)
            if answer is not session:
                sessions.gone(session)
                self._is_over = True
            elif self._is_last:
                self._is_over = True
            elif not reply[3] and not self._is_first and now() - sent < self._block - 0.01:
                self._not_before = sent + QUIET
            self._is_first = self._is_last = False

    def _failed(self, error: Exception) -> None:
        session = self.session
        self._is_over, self._is_first = self._is_last, True
        session.error, self._not_before = error, now() + PAUSE
        if not self._warned and not self.sessions.closed:
            log.warning("what is held and waited for is not kept: %s", error)
            self._warned = True
        if not passes(error):
            for take in list(session.waits):
                take.fail(error)
