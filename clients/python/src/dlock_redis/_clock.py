# SPDX-License-Identifier: MIT
"""Times: a clock that counts what leases count, and the earliest moment at which something is due."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._session import Sessions

log = logging.getLogger("dlock_redis")
LONGEST = 3e9  # seconds: the server's own limit is a little more
SLICE = 1.0  # the longest sleep: a timer may stand still while the machine is suspended
STALL = 0.5  # who wakes up so late has not run: the server is asked before a loss is reported
PAUSE = 0.1  # after a failure

if hasattr(time, "clock_gettime"):
    # Both go on while the machine is suspended: that of Linux, and that of macOS.
    _WHICH = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now() -> float:
        """Returns the seconds of a clock that counts what leases count."""
        return time.clock_gettime(_WHICH)
else:  # pragma: no cover
    now = time.monotonic


def seconds(name: str, value: Any) -> Any:
    """Returns the argument if it is a time, and None if it is None or infinite."""
    if value is None or value == math.inf:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:  # NaN is not
        return min(value, LONGEST)
    raise (ValueError if isinstance(value, (int, float)) else TypeError)(
        f"{name} must be seconds, 0 or more, or None, not {value!r}"
    )


def duration(name: str, value: Any) -> float:
    """Returns the argument if it is a time that the server can count."""
    given = seconds(name, value)
    if given is None or given < 0.001:
        raise ValueError(f"{name} must be at least 0.001 seconds, not {value!r}")
    return float(given)


def ms(value: float) -> int:
    return max(1, int(value * 1000))


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
        """Has it wake up then, if nothing is due before."""
        if due < self.alarm:
            self.alarm = due
            self.sessions.wake()

    def next(self) -> float | None:
        sessions = self.sessions
        if self._slept_from:
            self.slept(self._slept_from, self._slept_for)
        if not sessions.closed and (sessions.forgotten or self.alarm <= now()):
            try:
                sessions.tick()
            except Exception:
                log.exception("the lock clock failed")
        if sessions.closed:
            return None
        self._slept_from = now()
        self._slept_for = 0.0 if sessions.forgotten else max(0.0, min(self.alarm - self._slept_from, SLICE))
        return self._slept_for

    def answered(self, sent: float, reply: Any) -> None:
        """It asks nothing."""

    def ended(self) -> None:
        self.running = False

    def slept(self, began: float, within: float) -> None:
        """Notes that the process stood still, if it did: nothing is over before the server could be asked.

        Stalls that follow each other put that off, but not for ever: a program may block its event loop often."""
        grace = self.sessions.settings.reply_timeout
        if now() - began - within > STALL:
            if self._no_loss_before < began:
                self._stalls_since = now()
            self._no_loss_before = min(now(), self._stalls_since + 2 * grace) + grace

    def is_over(self, end: float) -> bool:
        return end <= now() and self._no_loss_before <= now()
