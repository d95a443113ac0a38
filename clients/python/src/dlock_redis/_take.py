# SPDX-License-Identifier: MIT
"""Taking locks: what is asked for, and the steps from the first request to the grant, or to the end of the wait."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from redis import exceptions as library

from ._clock import SLICE, duration, log, ms, now, seconds
from ._errors import DLockError, LockTimeout, NoAck, Replaced, is_unanswered, passes
from ._hold import Held, HoldBase
from ._library import is_cluster
from ._session import Errand, Session, Sessions, Words
from ._settings import Name, Settings

GRACE = 0.5  # a caller whose time is up waits this much longer for the outcome
WARN_EVERY = 10.0

H = TypeVar("H", bound=HoldBase)
T = TypeVar("T")


def encoded(word: Name) -> bytes:
    return word if isinstance(word, bytes) else word.encode()


def must_name(what: str, value: object) -> None:
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"{what} must be str or bytes, not {value!r}")
    if not value:
        raise ValueError(f"{what} must not be empty")


class Request:
    """A lock, or several of one slot, as the program asks for it: it may do so again and again."""

    def __init__(
        self,
        settings: Settings,
        keys: Iterable[Name],
        blocking_timeout: float | None,
        *,
        shared: bool = False,
        limit: int | None = None,
        permits: int | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        actor: Name | None = None,
        on_lost: Callable[[Any], object] | None = None,
    ):
        self.keys = list(keys)
        for key in self.keys:
            must_name("key", key)
        if actor is not None:
            must_name("actor", actor)
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
        if self.lease <= settings.clock_margin:
            raise ValueError(f"lease must be longer than clock_margin, which is {settings.clock_margin}, not {lease!r}")
        self.max_hold = math.inf if max_hold is None else duration("max_hold", max_hold)
        self.wait: float | None = seconds("blocking_timeout", blocking_timeout)
        self.actor = actor
        self.on_lost = on_lost
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


class Take(Generic[H]):
    """One request, from its beginning to its end. Its owner is its own.

    `make` returns the program's hold."""

    def __init__(self, sessions: Sessions, request: Request, make: Callable[[Held], H]):
        self.sessions = sessions
        self.request = request
        self.woken: Any = None  # from the first wait on
        self.owner = sessions.owner(request.actor)
        self.holds: dict[bytes, H] = {}  # what was granted, by name
        self.error: Exception | None = None  # why not, or what went wrong last
        self.done = False
        self._make = make
        self._began = now()
        limit = sessions.settings.reply_timeout if request.wait == 0 else request.wait
        self._deadline = math.inf if limit is None else self._began + limit
        self._asked = 0
        self._unanswered = 0  # of the requests
        self._pause = 0.0
        self._warned = -math.inf
        self._has_waited = False
        self._session: Session | None = None  # in which it waits
        self._since = 0.0  # when that began
        self._word = ""  # of a row that came before the answer

    def next(self) -> Words | float | None:
        with self.sessions.guard:
            if self.done:
                return None
            if self._asked and self.woken is None:
                self.woken = self.sessions.event()
            left = self._deadline - now()
            if left + (GRACE if self._session else 0.0) <= 0 and self._asked:
                self._out_of_time()
                return None
            if self._session is not None:
                return min(left + GRACE, SLICE)
            if self._pause > now():
                return min(self._pause - now(), left)
            self.sessions.check()
            self._asked += 1
            self._unanswered += 1
            self._word = ""
            for name in self.request.names:  # a row may be read before the answer
                self.sessions.asked[name, self.owner] = self
            block = None if self.request.wait == 0 else 0 if left == math.inf else ms(left)
            return self.request.words(self.sessions.name, self.owner, block)

    def answered(self, sent: float, reply: Any) -> None:
        """Reads `[token, id]`, `[[token, …], id]`, `[0, place, id]`, null or an error."""
        sessions, request = self.sessions, self.request
        with sessions.guard:
            if not (isinstance(reply, Exception) and is_unanswered(reply)):
                self._unanswered -= 1
            if self.done:  # its rows were faster
                return
            if isinstance(reply, Exception):
                self._failed(reply)
            elif reply is None:
                self.end()
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
        held = Held(key, name, self.owner, token, request.lease, end, request.max_hold, request.on_lost)
        self.holds[name] = self._make(held)
        if len(self.holds) == len(request.names):
            self.end()
            for hold in self.holds.values():
                sessions.held[hold._held.name, hold.token] = hold._held
                sessions.join(hold._held, session)

    def refused(self, word: str) -> None:
        """A row tells of an outcome that is no grant, or the session is gone. While there is time it asks again."""
        self._word = word
        if self._session is None:  # its answer is yet to come
            return
        self._stop_waiting()
        self._give_back()
        if word == "replaced":
            self.end(Replaced("REPLACED a newer request of the same owner has taken the place"))
        elif word == "wrongtype":
            self.end(library.ResponseError("WRONGTYPE the key holds something that is not a lock"))
        elif word == "timeout" and self._deadline - now() < 0.02:
            self.end()
        else:
            if word == "again":
                self.error = NoAck("NOACK the server did not confirm the grant, or serves the lock no more")
            if self.request.wait == 0:
                self.end(self.error or library.ConnectionError(f"the request has ended: {word}"))
            else:
                self._pause = now() + (random.uniform(0.0, 0.05) if self._asked > 1 else 0.0)
                self._wake()

    def end(self, error: Exception | None = None) -> None:
        """Ends it: with all its holds, with this error, or, without either, because others have the lock."""
        if self.done:
            return
        self.done = True
        self.error = error
        session, is_queued = self._session, self._stop_waiting()
        for name in self.request.names:
            self.sessions.asked.pop((name, self.owner), None)
        if self._has_waited:
            self.sessions.notify(self.sessions.settings.observer.waited, self.request.keys[0])
        if len(self.holds) < len(self.request.names):
            if is_queued or self._unanswered:
                self._cancel(session)
            self._give_back()
        self._wake()

    def result(self) -> list[H] | None:
        """Returns what is held, or None if it is taken; raises an error if nobody could say so."""
        took, observer = now() - self._began, self.sessions.settings.observer
        if self.holds:
            self.sessions.notify(observer.granted, self.request.keys[0], took)
            return [self.holds[name] for name in self.request.names]
        if self.error is None:
            self.sessions.notify(observer.refused, self.request.keys[0], took, None)
            return None
        raise self.error

    def __enter__(self) -> Take[H]:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leaves nothing behind if it was interrupted, or has failed."""
        if error is not None:
            with self.sessions.guard:
                self.end(DLockError("the caller stopped waiting"))
                self._give_back()
            observer = self.sessions.settings.observer
            self.sessions.notify(observer.refused, self.request.keys[0], now() - self._began, error)

    def _wait(self, session: Session) -> None:
        self._session, self._since = session, now()
        self.error = None  # it no longer matters what failed before
        session.waits.add(self)
        if self._word:  # the outcome came first
            self.refused(self._word)
            return
        if not self._has_waited:
            self._has_waited = True
            self.sessions.notify(self.sessions.settings.observer.waiting, self.request.keys[0])
        self.sessions.keep(session)

    def _stop_waiting(self) -> bool:
        """Returns whether it was queued."""
        session, self._session = self._session, None
        if session is not None:
            session.waits.discard(self)
        return session is not None

    def _wake(self) -> None:
        if self.woken is not None:
            self.woken.set()

    def _failed(self, error: Exception) -> None:
        if self.request.wait == 0 or not passes(error):
            self.end(error)
            return
        if now() - self._warned >= WARN_EVERY:
            log.warning("still waiting for lock %r: %s", self.request.keys[0], error)
            self._warned = now()
        self.error, self._pause = error, now() + random.uniform(0.02, 0.1)

    def _out_of_time(self) -> None:
        session = self._session
        why = self.error or (session.error if session else None)
        # The server has kept the place meanwhile: others have the lock, though the word about the end is late.
        is_kept = session is not None and session.sent > self._since
        if is_kept and why is None and self.request.wait != 0:
            self.end()
            return
        why = why or library.TimeoutError("the server does not answer")
        late = LockTimeout(f"{self.request.keys[0]!r} was not granted within {self.request.wait} s: {why}", taken=False)
        late.__cause__ = why
        self.end(why if self.request.wait == 0 else late)

    def _give_back(self) -> None:
        """Releases what was granted. (Half of several locks is none.) The next request has another owner."""
        if not self.holds:
            return
        for hold in self.holds.values():
            held = hold._held
            if not held.over:
                self.sessions.end(held, "the caller stopped waiting", is_lost=False)
                self.sessions.give_back(held.name, held.owner, held.token, held.lease)
        self.holds = {}
        for name in self.request.names:
            self.sessions.asked.pop((name, self.owner), None)
        self.owner = self.sessions.owner(self.request.actor)

    def _cancel(self, session: Session | None) -> None:
        """Leaves the queue. A grant that came first is a row that no take knows, and is released by its token."""
        name, sessions = self.request.names[0], self.sessions

        def then(sent: float, reply: Any) -> None:
            if reply == 0:  # it may be held
                sessions.hear_the_last(name, session)

        words = ("DLOCK.CANCEL", name, self.owner)
        sessions.errand(Errand(words, sessions.patience(self.request.lease), then))


def must(holds: list[T] | None, key: Name, wait: float | None) -> list[T]:
    """Returns the holds, or raises an error if there are none."""
    if holds is None:
        raise LockTimeout(f"{key!r} was not granted within {wait} s: it is taken")
    return holds


def by_slot(client: Any, whole: Request) -> Iterator[Request]:
    """Yields a request for each slot, in an order that is the same for all programs. All share the time to wait."""
    groups: dict[int, list[Name]] = {}
    for key in sorted(set(whole.keys), key=encoded):
        slot = client.keyslot(key) if is_cluster(client) else 0
        groups.setdefault(slot, []).append(key)
    end = None if whole.wait is None else now() + whole.wait
    for slot in sorted(groups):
        request = copy.copy(whole)
        request.keys = groups[slot]
        request.names = [encoded(key) for key in request.keys]
        request.wait = None if end is None else max(0.001, end - now())
        yield request
