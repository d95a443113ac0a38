# SPDX-License-Identifier: MIT
"""Times: a clock that counts what leases count, and the earliest moment at which something is due."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

LONGEST = 3e9  # seconds: the server's own limit is a little more
SLICE = 1.0  # so long a wait sleeps at most: a timer may stand still while the machine is suspended
STALL = 0.5  # who wakes up so late has not run: the server is asked before a loss is reported

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
    """Knows when the next hold is due. Whoever sleeps until then calls `slept` afterwards."""

    def __init__(self, wake: Callable[[], None]):
        self.alarm, self._wake, self._grace = math.inf, wake, -math.inf

    def set(self, due: float) -> None:
        """Has the sleeper wake up then, if nothing is due before."""
        if due < self.alarm:
            self.alarm = due
            self._wake()

    def left(self) -> float:
        """Returns for how long to sleep."""
        return max(0.0, min(self.alarm - now(), SLICE))

    def slept(self, began: float, within: float, grace: float) -> None:
        """Notes that the process stood still, if it did: nothing is over before the server could be asked.

        One stall after the other does not put that off: a program may block its event loop again and again."""
        if now() - began - within > STALL and self._grace < began:
            self._grace = now() + grace

    def is_over(self, end: float) -> bool:
        return end <= now() and self._grace <= now()
