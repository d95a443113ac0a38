# SPDX-License-Identifier: MIT
"""Settings of all locks, options of one lock, and the observer."""

from __future__ import annotations

from typing import TypedDict

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
        self, lease: float, hang_timeout: float, reply_timeout: float, clock_margin: float, observer: Observer | None
    ):
        self.lease = duration("lease", lease)
        self.hang_timeout = duration("hang_timeout", hang_timeout)
        self.reply_timeout = duration("reply_timeout", reply_timeout)
        self.clock_margin = seconds("clock_margin", clock_margin) or 0.0
        self.observer = observer or Observer()


class Common(TypedDict, total=False):
    """Options of locks for threads and for tasks. See `Locks.lock`."""

    shared: bool
    limit: int | None
    permits: int | None
    lease: float | None
    max_hold: float | None
    actor: Name | None
