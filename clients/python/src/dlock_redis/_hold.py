# SPDX-License-Identifier: MIT
"""A lock that is held, as the program sees it: what threads and tasks have in common."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._link import Tie
from ._request import Request, now

if TYPE_CHECKING:
    from ._leave import Leaving

log = logging.getLogger("dlock_redis")


class HoldBase:
    """A lock that is held."""

    lost: Any
    _event: Callable[[], Any]

    def __init__(self, locks: Any, request: Request, tie: Tie, on_lost: Callable[[Any], object] | None):
        core: Leaving = locks._core
        self.key, self.owner, self.token, self.lost = request.key, request.owner, tie.token, self._event()
        self._locks, self._core, self._request, self._tie, self._on_lost = locks, core, request, tie, on_lost
        self._over, self._since, self._pid, self.reason = False, now(), os.getpid(), ""
        core.adopt(tie, self)

    def left(self) -> float:
        """For so many seconds it is ours for sure, if nothing is heard of the server any more."""
        return 0.0 if self._over else max(0.0, self._tie.end() - now())

    def __del__(self) -> None:
        # Nobody can give it back any more. The collector may run anywhere: nothing is done here that could wait.
        if not getattr(self, "_over", True):
            self._core.forsake(self._request, self.token)

    def _forked(self) -> None:
        raise NotImplementedError

    def _tell_lost(self, reason: str) -> None:
        if self._over:
            return
        self._over, self.reason = True, reason
        level = logging.DEBUG if self._core.closed else logging.WARNING
        log.log(level, "lock %r of %r is lost: %s", self.key, self.owner, reason)
        self._core.tell("lost", self.key, reason)
        self.lost.set()
        if self._on_lost is not None:
            self._core.later(self._callback)

    def _callback(self) -> None:
        try:
            if self._on_lost is not None:
                self._on_lost(self)
        except Exception:
            log.exception("on_lost has failed")
