# SPDX-License-Identifier: MIT
"""Settings, the observer, and a request for a lock as words of commands."""

from __future__ import annotations

import math
import os
import socket
import time
import warnings
from typing import TYPE_CHECKING, Any, TypedDict

from ._resp import Word

if TYPE_CHECKING:
    from ._link import Link, Node, Renewal

Name = str | bytes
Argument = str | bytes | int | float  # of a command
LONGEST = 3e9  # seconds: the server's own limit is a little more

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Seconds, of a clock that goes on while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
else:  # pragma: no cover
    now = time.monotonic


class Observer:
    """Is called with what happens, for metrics. Override what you need. It is called at once, so it must not block."""

    def waiting(self, key: Name) -> None:
        """The lock is taken, and a wait for it begins."""

    def waited(self, key: Name) -> None:
        """A wait that has begun has ended: with the lock or without."""

    def granted(self, key: Name, seconds: float) -> None:
        """The lock was granted so many seconds after it was asked for."""

    def refused(self, key: Name, seconds: float, error: BaseException | None) -> None:
        """The lock was not granted: it is taken (None), or for this reason."""

    def released(self, key: Name, seconds: float) -> None:
        """The lock was given back after so many seconds."""

    def lost(self, key: Name, reason: str) -> None:
        """The lock was held, and is no more."""


class Settings:
    """The settings of `Locks`, checked."""

    def __init__(
        self,
        lease: float = 10.0,
        hang_timeout: float = 60.0,
        queue_grace: float = 5.0,
        reply_timeout: float = 3.0,
        clock_margin: float = 0.1,
        observer: Observer | None = None,
    ):
        for name, value in (
            ("lease", lease),
            ("hang_timeout", hang_timeout),
            ("queue_grace", queue_grace),
            ("reply_timeout", reply_timeout),
        ):
            seconds(name, value)
            if value < 0.001:
                raise ValueError(f"{name} must be at least 0.001 seconds, not {value!r}")
        self.lease, self.hang_timeout, self.queue_grace = lease, max(hang_timeout, lease), queue_grace
        self.reply_timeout, self.clock_margin = reply_timeout, seconds("clock_margin", clock_margin) or 0.0
        self.observer = observer or Observer()
        self.first = min(lease, 3.0)  # the lease until a caller that has waited has confirmed the grant
        self.interval = min(1.0, lease / 3)


class OldNames(TypedDict, total=False):
    """The names that settings had before. They work for one version, with a warning."""

    auto: float
    claim: float
    bound: float
    allowance: float


_NEW_NAMES = {"auto": "hang_timeout", "claim": "queue_grace", "bound": "reply_timeout", "allowance": "clock_margin"}


def renamed(old: OldNames, stacklevel: int = 4) -> dict[str, Any]:
    """Returns settings that were given by their old names under the new ones."""
    named: dict[str, Any] = {}
    for name, value in old.items():
        if name not in _NEW_NAMES:
            raise TypeError(f"{name} is no setting of these locks")
        new = _NEW_NAMES[name]
        warnings.warn(f"the setting {name} is called {new} now", DeprecationWarning, stacklevel)
        named[new] = value
    return named


def seconds(name: str, value: Any) -> Any:
    """Returns the argument if it is a time, and None if it is None or infinite."""
    if value is None or value == math.inf:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:  # NaN is not
        return min(value, LONGEST)
    raise (ValueError if isinstance(value, (int, float)) else TypeError)(
        f"{name} must be seconds, 0 or more, or None, not {value!r}"
    )


def ms(value: float) -> int:
    return max(1, int(value * 1000))


def encoded(word: Name) -> bytes:
    return word if isinstance(word, bytes) else word.encode()


_HOST = socket.gethostname()


def owner_name(name: Name, client: str = "") -> Name:
    """Returns the name of an owner as the server sees it: of this machine, of this process, and of this client."""
    prefix = f"{_HOST}/{os.getpid()}/"
    suffix = client and f"#{client}"
    return prefix.encode() + name + suffix.encode() if isinstance(name, bytes) else f"{prefix}{name}{suffix}"


class Request:
    """One owner's request for one lock, as words of commands."""

    def __init__(
        self,
        settings: Settings,
        key: Name,
        owner: Name,
        shared: bool = False,
        limit: int | None = None,
        permits: int | None = None,
        ephemeral: bool = False,
        lease: float | None = None,
        renewed: bool = True,
        named: bool = False,
        fixed: bool = False,
    ):
        for name, value in (("key", key), ("owner", owner)):
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
        self.settings, self.key, self.owner, self.name = settings, key, owner, owner
        self.who = self.names = encoded(key), encoded(owner)
        # The program may ask by this name again; and the server has to know the owner by this name.
        self.named, self.fixed = named, fixed
        self.lease = settings.lease if lease is None else lease
        self.most = math.inf if shared else limit or 1  # permits at once
        self.permits = permits or 1
        self.asked = self.queued = False
        self.node: Node | None = None
        self.link: Link | None = None
        self.renewal: Renewal | None = None
        self.ephemeral = ephemeral
        self.limit: tuple[Word, ...] = ("SHARED",) if shared else ("LIMIT", limit) if limit else ()
        if self.permits > 1:  # older servers do not know the word
            self.limit += ("PERMITS", self.permits)
        how: tuple[Word, ...] = ("EPHEMERAL",) if ephemeral else ()
        self.renewed: tuple[Word, ...] = (*how, "AUTO", ms(settings.hang_timeout)) if renewed else how

    def add(self, suffix: str) -> None:
        """From now on the server knows the owner by its name with this at the end."""
        if suffix:
            name = self.name
            self.owner = name + suffix.encode() if isinstance(name, bytes) else name + suffix
            self.names = self.who[0], encoded(self.owner)

    def words(self, name: str, *rest: Word) -> tuple[Word, ...]:
        return ("DLOCK." + name, self.key, self.owner, *rest)

    def take(self, at_once: bool) -> tuple[Word, ...]:
        verb, claim = ("ACQUIRE", ()) if at_once else ("FAIRACQUIRE", ("CLAIM", ms(self.settings.queue_grace)))
        return self.words(verb, ms(self.lease), *self.renewed, "HOLDS", 1, *self.limit, *claim)

    def wait(self, *how: Word) -> tuple[Word, ...]:
        s = self.settings
        words = ("CLAIM", ms(s.queue_grace), "HOLDS", 1, *self.limit)
        return self.words("FAIRACQUIRE", ms(min(s.first, self.lease)), *how, *words)

    def renew(self, token: int) -> tuple[Word, ...]:
        return self.words("RENEW", ms(self.lease), "TOKEN", token, *self.renewed)

    def leave_to_lease(self, token: int) -> tuple[Word, ...]:
        """Renews it for the last time: for no connection."""
        return self.words("RENEW", ms(self.lease), "TOKEN", token)

    def release(self, *token: Word) -> tuple[Word, ...]:
        return self.words("RELEASE", "HOLDS", 0, *token)
