# SPDX-License-Identifier: MIT
"""Settings of all locks, options of one lock, and the observer."""

from __future__ import annotations

import warnings
from typing import Any, TypedDict

from ._clock import duration, seconds

Name = str | bytes
Argument = str | bytes | int | float  # of a command


class Observer:
    """Is called with what happens, for metrics. Override what you need. It is called at once, so it must not block."""

    def waiting(self, key: Name) -> None:
        """The lock is taken, and a wait for it begins."""

    def waited(self, key: Name) -> None:
        """A wait that has begun has ended: with the lock or without."""

    def granted(self, key: Name, seconds: float) -> None:
        """The lock was granted this many seconds after the request."""

    def refused(self, key: Name, seconds: float, error: BaseException | None) -> None:
        """The lock was not granted: it is taken (None), or for this reason."""

    def released(self, key: Name, seconds: float) -> None:
        """The lock was released after this many seconds."""

    def lost(self, key: Name, reason: str) -> None:
        """The lock was held, and is no more."""


class Settings:
    """The settings of `Locks`, checked."""

    def __init__(
        self, lease: float, hang_timeout: float, reply_timeout: float, clock_margin: float, observer: Observer | None
    ):
        self.lease = duration("lease", lease)
        self.hang_timeout = duration("hang_timeout", hang_timeout)
        self.reply_timeout = duration("reply_timeout", reply_timeout)
        self.clock_margin = seconds("clock_margin", clock_margin) or 0.0
        if self.clock_margin >= self.lease:
            raise ValueError(f"clock_margin must be shorter than the lease, which is {lease!r}, not {clock_margin!r}")
        self.observer = observer or Observer()


class OldSettings(TypedDict, total=False):
    """Settings of earlier versions. They are accepted for one version, with a warning."""

    queue_grace: float


def without_old(old: OldSettings) -> None:
    for name in old:
        if name != "queue_grace":
            raise TypeError(f"{name} is no setting of these locks")
        warnings.warn("queue_grace is the server's dlock.claim-window-ms now", DeprecationWarning, 3)


class Common(TypedDict, total=False):
    """Options of locks for threads and for tasks. See `Locks.lock`."""

    shared: bool
    limit: int | None
    permits: int | None
    lease: float | None
    max_hold: float | None
    actor: Name | None
    owner: Name | None  # the old name of `actor`
    timeout: float | None  # the old name of `blocking_timeout`


def renamed(options: Any, blocking_timeout: float | None, default: float | None) -> float | None:
    """Gives options the names of this version, and returns the time to wait. `default`: that of the call."""
    for name in options:
        if name not in Common.__optional_keys__ and name != "on_lost":
            raise TypeError(f"{name} is no option of a lock{': use try_lock' if name == 'blocking' else ''}")
    if "owner" in options:
        warnings.warn("owner is called actor now, and locks are not re-entered", FutureWarning, 4)
        options["actor"] = options.pop("owner")
    if "timeout" in options:
        text = "timeout is the old name of blocking_timeout; redis-py's timeout is lease"
        if blocking_timeout != default:
            raise TypeError(text)
        warnings.warn(text, FutureWarning, 4)
        blocking_timeout = options.pop("timeout")
    return blocking_timeout
