# SPDX-License-Identifier: MIT
"""What is asked for, as words of commands, and whom it is told."""

from __future__ import annotations

import math
import time
import uuid
from typing import TYPE_CHECKING, Any

from ._resp import Word

if TYPE_CHECKING:
    from ._link import Node, Tie

Name = str | bytes
LONGEST = 3e9  # seconds: the server's own limit is a little more

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Seconds, of a clock that goes on while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
else:  # pragma: no cover
    now = time.monotonic


class Observer:
    """What happens, for whoever counts it. Override what you need; it is called at once, so it must not block."""

    def waiting(self, key: Name) -> None:
        """The lock is taken, and a wait for it begins."""

    def waited(self, key: Name) -> None:
        """A wait that has begun has ended: with the lock or without."""

    def granted(self, key: Name, seconds: float) -> None:
        """The lock was granted so long after it was asked for."""

    def refused(self, key: Name, seconds: float, error: BaseException | None) -> None:
        """It was not: it is taken (None), or for this reason."""

    def released(self, key: Name, seconds: float) -> None:
        """It was given back after so long."""

    def lost(self, key: Name, reason: str) -> None:
        """It was held, and is no more."""


class Settings:
    """See `Locks`."""

    def __init__(self, lease: float, auto: float, claim: float, bound: float, allowance: float, observer: Observer):
        for name, value in (("lease", lease), ("auto", auto), ("claim", claim), ("bound", bound)):
            seconds(name, value)
            if value < 0.001:
                raise ValueError(f"{name} must be at least 0.001 seconds, not {value!r}")
        self.allowance = seconds("allowance", allowance) or 0.0
        self.lease, self.auto, self.claim, self.bound, self.observer = lease, max(auto, lease), claim, bound, observer
        self.first = min(lease, 3.0)  # the lease until whoever has waited has confirmed the grant
        self.interval = min(1.0, lease / 3)


def seconds(name: str, value: Any) -> Any:
    """The argument, if it is a time or None."""
    if value is None or value == math.inf:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:  # NaN is not
        return min(value, LONGEST)
    raise (ValueError if isinstance(value, (int, float)) else TypeError)(
        f"{name} must be seconds, 0 or more, or None, not {value!r}"
    )


def ms(value: float) -> int:
    return max(1, int(value * 1000))


def name_of(word: Name) -> bytes:
    return word if isinstance(word, bytes) else word.encode()


class Request:
    """One owner's wish for one lock, as words of commands."""

    def __init__(
        self, settings: Settings, key: Name, owner: Name | None, shared: bool, limit: int | None, session: bool
    ):
        for name, value in (("key", key), ("owner", "-" if owner is None else owner)):
            if not isinstance(value, (str, bytes)):
                raise TypeError(f"{name} must be str or bytes, not {value!r}")
            if not value:
                raise ValueError(f"{name} must not be empty")
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
            raise TypeError(f"limit must be an int, not {limit!r}")
        if limit is not None and (limit < 1 or shared):
            raise ValueError(f"limit must be at least 1, and not beside shared, not {limit!r}")
        self.settings, self.key, self.owner = settings, key, str(uuid.uuid4()) if owner is None else owner
        self.named, self.looked, self.outer, self.before = owner is not None, owner is None, 0, 0
        self.asked = self.queued = False
        self.node: Node | None = None
        self.tie: Tie | None = None
        self.limit: tuple[Word, ...] = ("SHARED",) if shared else ("LIMIT", limit) if limit else ()
        self.session: tuple[Word, ...] = ("SESSION",) if session else ()

    def within(self, held: list[int] | None) -> None:
        """What the owner held before is not ours to give back."""
        self.looked = True
        if held:
            self.outer, self.before = held[0], held[1]

    def names(self) -> tuple[bytes, bytes]:
        """Where a place is: the lock, and whose."""
        return name_of(self.key), name_of(self.owner)

    def words(self, name: str, *rest: Word) -> tuple[Word, ...]:
        return ("DLOCK." + name, self.key, self.owner, *rest)

    def take(self, at_once: bool) -> tuple[Word, ...]:
        s = self.settings
        verb, claim = ("ACQUIRE", ()) if at_once else ("FAIRACQUIRE", ("CLAIM", ms(s.claim)))
        auto = (*self.session, "AUTO", ms(s.auto))
        return self.words(verb, ms(s.lease), *auto, "HOLDS", self.before + 1, *self.limit, *claim)

    def wait(self, *how: Word) -> tuple[Word, ...]:
        s = self.settings
        words = ("CLAIM", ms(s.claim), "HOLDS", self.before + 1, *self.limit)
        return self.words("FAIRACQUIRE", ms(s.first), *how, *words)

    def renew(self, token: int) -> tuple[Word, ...]:
        s = self.settings
        return self.words("RENEW", ms(s.lease), "TOKEN", token, *self.session, "AUTO", ms(s.auto))

    def release(self, *token: Word) -> tuple[Word, ...]:
        return self.words("RELEASE", "HOLDS", self.before, *token)
