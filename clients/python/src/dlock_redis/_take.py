# SPDX-License-Identifier: MIT
"""Taking locks: what is asked for, and the steps from the first request to the grant, or to the end of the wait."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from redis import exceptions as library

from ._clock import SLICE, duration, ms, now
from ._errors import LockTimeout, NoAck, Replaced, passes
from ._hold import Held, log
from ._session import Errand, Session, Sessions, Words
from ._settings import Name, Settings

GRACE = 0.5  # so much longer a caller whose time is up waits for the word about it
WARN_EVERY = 10.0


T = TypeVar("T")


def encoded(word: Name) -> bytes:
    return word if isinstance(word, bytes) else word.encode()


class Request:
    """A lock, or several of one slot, as the program asks for it: it may do so again and again."""

    def __init__(
        self,
        settings: Settings,
        keys: Iterable[Name],
        shared: bool = False,
        limit: int | None = None,
        permits: int | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        actor: Name | None = None,
        on_lost: Callable[[Any], object] | None = None,
    ):
        self.keys = list(keys)
        for name, value in (*(("key", key) for key in self.keys), *([("actor", actor)] if actor is not None else ())):
            if not isinstance(value, (str, bytes)):
                raise TypeError(f"{name} must be str or bytes, not {value!r}")
            if not value:
                raise ValueError(f"{name} must not be empty")
        for name, number in (("limit", limit), ("permits", permits)):
            if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
                raise TypeError(f"{name} must be an int, not {number!r}")
        if limit is not None and (limit < 1 or shared):
            raise ValueError(f"limit must be at least 1, and not beside shared, not {limit!r}")
        if permits is not None and limit is None:
            raise ValueError(f"permits must be given with limit, not {permits!r} alone")
        if permits is not None and limit is not None and not 1 <= permits <= limit:
            raise ValueError(f"permits must be at least 1, and at most limit, which is {limit}, not {permits!r}")
        self.names = [encoded(key) for key in self.keys]
        self.lease = settings.lease if lease is None else duration("lease", lease)
        self.max_hold = math.inf if max_hold is None else duration("max_hold", max_hold)
        self.actor, self.on_lost = actor, on_lost
        self.limit: Words = ("SHARED",) if shared else ("LIMIT", limit) if limit else ()
        if permits is not None and permits > 1:  # older servers do not know the word
            self.limit += ("PERMITS", permits)

    def words(self, session: bytes, owner: bytes, block: int | None) -> Words:
        """Returns the command; `block`: the milliseconds to wait, 0 for ever, None for a try."""
        what: Words = ("DLOCK.ACQUIRE" if block is None else "DLOCK.FAIRACQUIRE", self.names[0])
        if len(self.names) > 1:
            what = ("DLOCK.MACQUIRE", len(self.names), *self.names)
        wait = () if block is None else ("BLOCK", block)
        return (*what, owner, ms(self.lease), "IN", session, *wait, *self.limit)


class Take:
    """One request, from its beginning to its end. Its owner is its own."""

    def __init__(self, sessions: Sessions, request: Request, wait: float | None):
        self.sessions, self.request, self.wait = sessions, request, wait
        self.woken: Any = None  # from the first wait on
        self.owner, self.began = sessions.owner(request.actor), now()
        self.holds: list[Held] = []  # what was granted
        self.error: Exception | None = None  # why not, or what went wrong last
        self.done = self._is_taken = self._is_waiting = self._has_waited = False
        self._asked, self._pause, self._warned = 0, 0.0, -math.inf
        self._waits_since = 0.0
        self._word = ""  # of a row that came before the answer
        self._found: dict[bytes, Held] = {}
        self._session: Session | None = None
        limit = sessions.settings.reply_timeout if wait == 0 else wait
        self._deadline = math.inf if limit is None else self.began + limit

    def next(self) -> Words | float | None:
        with self.sessions.guard:
            if self.done:
                return None
            if self._asked and self.woken is None:
                self.woken = self.sessions.event()
            left = self._deadline - now()
            if self._is_waiting:
                if left + GRACE <= 0:
                    self._out_of_time()
                    return None
                return min(left + GRACE, SLICE)
            if self._asked and left <= 0:
                self._out_of_time()
                return None
            if self._pause > now():
                return min(self._pause - now(), left)
            self.sessions.check()
            self._asked, self._word = self._asked + 1, ""
            for name in self.request.names:  # a row may be read before the answer
                self.sessions.asked[name, self.owner] = self
            block = None if self.wait == 0 else 0 if left == math.inf else ms(left)
            return self.request.words(self.sessions.name, self.owner, block)

    def answered(self, sent: float, reply: Any) -> None:
        """Reads `[token, id]`, `[[token, …], id]`, `[0, place, id]`, null or an error."""
        sessions, request = self.sessions, self.request
        with sessions.guard:
            if self.done:  # its rows were faster
                return
            if isinstance(reply, Exception):
                self._failed(reply)
            elif reply is None:
                self._is_taken = True
                self._finish()
            elif not reply[0] or self._asked > 1:  # asked again, only the row says how long it lasts
                self._wait(sessions.session(reply[-1], request.names[0]))
            else:
                session, end = sessions.session(reply[-1], request.names[0]), sessions.believed(sent, request.lease)
                tokens = reply[0] if isinstance(reply[0], list) else [reply[0]]
                for name, token in zip(request.names, tokens, strict=True):
                    self.granted(name, token, session, end)

    def granted(self, name: bytes, token: int, session: Session, end: float) -> None:
        """One of its locks was granted. With the last one it holds them all."""
        request, sessions = self.request, self.sessions
        key = request.keys[request.names.index(name)]
        held = self._found[name] = Held(key, (name, self.owner), token, request.lease, end)
        held.on_lost, held.bound = request.on_lost, held.since + request.max_hold
        if len(self._found) == len(request.names):
            self.holds = [self._found[name] for name in request.names]
            self._finish()
            for held in self.holds:
                sessions.held[held.name, held.token] = held
                sessions.join(held, session)

    def ended(self, word: str) -> None:
        """A row tells of an outcome that is no grant, or the session is gone. While there is time it asks again."""
        self._word = word
        if not self._is_waiting:  # its answer is yet to come
            return
        self._stop_waiting()
        self._give_back_found()
        if word == "replaced":
            self.fail(Replaced("REPLACED a newer request of the same owner has taken the place"))
        elif word == "wrongtype":
            self.fail(library.ResponseError("WRONGTYPE the key holds something that is not a lock"))
        elif word == "timeout" and self._deadline - now() < 0.02:
            self._is_taken = True
            self._finish()
        else:
            if word == "again":
                self.error = NoAck("NOACK the server did not confirm the grant, or serves the lock no more")
            if self.wait == 0:
                self.fail(self.error or library.ConnectionError(f"the request has ended: {word}"))
            else:
                self._pause = now() + (random.uniform(0.0, 0.05) if self._asked > 1 else 0.0)
                self._wake()

    def fail(self, error: Exception) -> None:
        """Ends it with this error. What may be left of it is taken back."""
        unanswered = isinstance(error, library.TimeoutError)  # else the server has refused it, or has never got it
        may_be_queued = self._asked > 1 or self._session is not None or unanswered
        self.error, self._is_taken = error, False
        self._finish()
        if may_be_queued and not isinstance(error, Replaced):
            self._cancel()
        self._give_back_found()

    def leave(self) -> None:
        """The program does not want it any more, wherever it stands."""
        with self.sessions.guard:
            self._finish()
            for held in self.holds:
                if not held.over:
                    held.on_lost = None
                    self.sessions.lose(held, "it was given up")
                    self.sessions.give_back(held.name, held.owner, held.token, held.lease)
            if not self.holds:
                if self._asked and not self._is_taken:
                    self._cancel()
                self._give_back_found()

    def result(self, hold: Callable[[Held], T]) -> list[T] | None:
        """Returns what is held, or None if it is taken; raises an error if nobody could say so."""
        if self.holds:
            self.sessions.tell("granted", self.request.keys[0], now() - self.began)
            return [hold(one) for one in self.holds]
        if self._is_taken:
            self.sessions.tell("refused", self.request.keys[0], now() - self.began, None)
            return None
        assert self.error is not None
        raise self.error

    def __enter__(self) -> Take:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leaves nothing behind if it was interrupted, or has failed."""
        if error is not None:
            if not self.done or self.holds:
                self.leave()
            self.sessions.tell("refused", self.request.keys[0], now() - self.began, error)

    def _wait(self, session: Session) -> None:
        self._session, self._is_waiting, self._waits_since = session, True, now()
        self.error = None  # whatever failed before is mended
        session.waits.add(self)
        if self._word:  # the outcome came first
            self.ended(self._word)
            return
        if not self._has_waited:
            self._has_waited = True
            self.sessions.tell("waiting", self.request.keys[0])
        self.sessions.keep(session)

    def _stop_waiting(self) -> None:
        self._is_waiting = False
        if self._session is not None:
            self._session.waits.discard(self)

    def _finish(self) -> None:
        if self.done:
            return
        self.done = True
        self._stop_waiting()
        for name in self.request.names:
            self.sessions.asked.pop((name, self.owner), None)
        if self._has_waited:
            self.sessions.tell("waited", self.request.keys[0])
        self._wake()

    def _wake(self) -> None:
        if self.woken is not None:
            self.woken.set()

    def _failed(self, error: Exception) -> None:
        if self.wait == 0 or not passes(error):
            self.fail(error)
            return
        if now() - self._warned >= WARN_EVERY:
            log.warning("still waiting for lock %r: %s", self.request.keys[0], error)
            self._warned = now()
        self.error, self._pause = error, now() + random.uniform(0.02, 0.1)

    def _out_of_time(self) -> None:
        session = self._session
        why = self.error or (session.error if session else None)
        # The server has kept the place meanwhile: others have the lock, though the word about the end is late.
        is_kept = session is not None and self._is_waiting and session.heard > self._waits_since
        self._is_taken = is_kept and why is None and self.wait != 0
        if not self._is_taken:
            why = why or library.TimeoutError("the server does not answer")
            error = LockTimeout(f"{self.request.keys[0]!r} was not granted within {self.wait} s: {why}", taken=False)
            error.__cause__ = why
            self.error = why if self.wait == 0 else error
        self._finish()
        self._cancel()
        self._give_back_found()

    def _give_back_found(self) -> None:
        """Half of several locks is none: what was granted goes back, and the next request has another owner."""
        found, self._found = self._found, {}
        if self.holds or not found:
            return
        for held in found.values():
            self.sessions.give_back(held.name, held.owner, held.token, held.lease)
        for name in self.request.names:
            self.sessions.asked.pop((name, self.owner), None)
        self.owner = self.sessions.owner(self.request.actor)

    def _cancel(self) -> None:
        """Leaves the queue. A grant that came first is a row that no take knows, and is released by its token."""
        name, owner, sessions, session = self.request.names[0], self.owner, self.sessions, self._session

        def then(sent: float, reply: Any) -> None:
            if reply == 0 and (session is None or session.loop is None):  # it may be held, and nobody hears of it
                words = ("DLOCK.SESSION", name, sessions.name, 1)
                sessions.errand(Errand(words, heard, lambda: not sessions.closed))

        def heard(sent: float, reply: Any) -> None:
            if not isinstance(reply, Exception):
                with sessions.guard:
                    sessions.told(sent, reply, name)

        sessions.errand(Errand(("DLOCK.CANCEL", name, owner), then, sessions.patience(self.request.lease)))
