# SPDX-License-Identifier: MIT
"""Times, by a clock that counts what leases count."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

log = logging.getLogger("dlock_redis")
LONGEST = 3e9  # seconds: the server's own limit is a little more
SLICE = 1.0  # the longest sleep: a timer may stall while the machine is suspended
STALL = 0.5  # a sleeper that wakes up this late has not run: the client asks the server before it reports a loss
PAUSE = 0.1  # after a failure

if hasattr(time, "clock_gettime"):
    # Both continue while the machine is suspended: that of Linux, and that of macOS.
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
