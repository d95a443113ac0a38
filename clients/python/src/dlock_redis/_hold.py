# SPDX-License-Identifier: MIT
"""Holds: until when one is believed, and what holds of threads and of tasks have in common."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ._clock import now
from ._settings import Argument, Name

T = TypeVar("T")


class Place(Protocol):
    """The session that a hold is in."""

    sent: float
    until: float
    begun: float
    due: float
    error: Exception | None
    holds: dict[tuple[bytes, int], Held]


@dataclass(eq=False)
class Held:
    """What the client knows of one hold.

    It has only a weak reference to the program's `Hold`, so that an abandoned one can be detected."""

    key: Name
    name: bytes  # the key's
    owner: bytes
    token: int
    lease: float
    end: float  # believed, without its session
    max_hold: float = math.inf
    on_lost: Callable[[Any], object] | None = None
    since: float = field(default_factory=now)  # when it was granted
    heard: float = field(default_factory=now)  # when an answer told that it is in its session
    session: Place | None = None
    over: bool = False  # lost, or ended by the program
    is_released: bool = False  # ended by the program
    is_renewed: bool = False  # a RENEW is to be said
    renewed: float = -math.inf  # when one was last to be said
    is_taken: bool = False  # another client has taken it out of its session
    stays_until: float | None = None  # the end of a lock that is left to its lease
    reason: str = ""  # why it is over
    trouble: str = ""  # what went wrong last
    event: Any = None  # set when it is lost; made when a caller asks for it
    handle: Callable[[], Any] = lambda: None  # the program's Hold, if there is one still

    @property
    def bound(self) -> float:
        """The end by `max_hold`."""
        return self.since + self.max_hold

    def until(self) -> float:
        """Returns the end that is believed.

        A SESSION's least lease counts if it was sent after the answer that told of this hold."""
        session, end = self.session, self.end
        if session is not None and session.sent >= self.heard:
            end = max(end, session.until)
        return min(end, self.bound)

    def leave(self, cut: float = math.inf) -> None:
        """Takes it out of its session: from now on only its own end counts, and no longer than `cut`."""
        if self.session is not None:
            self.end = min(self.until(), cut)
            self.session.holds.pop((self.name, self.token), None)
            self.session = None

    def is_old(self) -> bool:
        """Returns true if it is to be kept: a third of its lease has passed."""
        return now() >= self.since + self.lease / 3


class HoldBase:
    """A lock that is held."""

    key: Name
    owner: str
    token: int

    def __init__(self, locks: Any, held: Held):
        self._locks = locks  # they live as long as their holds
        self._sessions = locks._sessions
        self._held = held
        self.key = held.key
        self.owner = held.owner.decode(errors="backslashreplace")
        self.token = held.token
        held.handle = weakref.ref(self)

    @property
    def reason(self) -> str:
        """Why it was lost."""
        return self._held.reason

    def left(self) -> float:
        """Returns the seconds for which the lock is certainly held, even if the server never answers again."""
        return 0.0 if self._held.over else max(0.0, self._held.until() - now())

    def expire(self) -> None:
        """Reports the loss of a hold whose end has passed, if the clock has not done so yet."""
        with self._sessions.guard:
            if not self._held.over:
                self._sessions.expire(self._held)

    def _guarded(self, command: tuple[Argument, ...]) -> tuple[Any, ...]:
        for word in command:
            if not isinstance(word, (str, bytes, int, float)) or isinstance(word, bool):
                raise TypeError(f"command must be of str, bytes, int and float, not {word!r}")
        return ("DLOCK.GUARD", self._held.name, self.token, *command)

    def __del__(self) -> None:
        # No caller can release it any longer. The collector may run anywhere, so the clock does the rest.
        held = getattr(self, "_held", None)
        if held is not None and not held.over:
            self._sessions.forget(held)


def done(value: T) -> T:
    """Returns what work under a lock has returned, unless that is work which is yet to be done."""
    if inspect.iscoroutine(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        if not inspect.isasyncgen(value):
            value.close()
        raise TypeError(f"the lock would be given back before the work: the function has returned {value!r}")
    return value
