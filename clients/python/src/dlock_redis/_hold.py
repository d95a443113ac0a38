# SPDX-License-Identifier: MIT
"""What holds of threads and of tasks have in common."""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ._errors import Fenced
from ._link import Renewal
from ._request import Name, now

if TYPE_CHECKING:
    from ._take import Taking

log = logging.getLogger("dlock_redis")
T = TypeVar("T")


def refuse(work: Callable[..., Any], of_tasks: bool) -> None:
    """Raises an error for a function whose call returns before its work: that would run without the lock.

    `of_tasks`: the locks are AsyncLocks, which await what it returns."""
    while isinstance(work, functools.partial):
        work = work.func
    forms = [work, getattr(type(work), "__call__", None)]  # noqa: B004
    kind = None
    if any(map(inspect.isgeneratorfunction, forms)):
        kind, instead = "a generator", "take the lock inside it, by `with`"
    elif any(map(inspect.isasyncgenfunction, forms)):
        kind, instead = "an async generator", "take the lock inside it, by `async with`"
    elif not of_tasks and any(map(inspect.iscoroutinefunction, forms)):
        kind, instead = "a coroutine function", "use AsyncLocks"
    if kind is not None:
        raise TypeError(f"the lock would be given back before the work: {work!r} is {kind}: {instead}")


def done(value: T) -> T:
    """Returns what work under a lock has returned, if that is no work which is yet to be done."""
    if inspect.iscoroutine(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        if not inspect.isasyncgen(value):
            value.close()
        raise TypeError(f"the lock would be given back before the work: the function has returned {value!r}")
    return value


class HoldBase:
    """A lock that is held."""

    key: Name
    owner: Name
    token: int
    reason: str

    def __init__(self, locks: Any, renewal: Renewal, lost: Any, on_lost: Callable[[Any], object] | None):
        core: Taking = locks._core
        self._locks = locks  # which would end with what refers to it, and everything with it
        request = renewal.request
        self.key, self.owner, self.token, self.reason = request.key, request.owner, renewal.token, ""
        self._lost, self._core, self._renewal, self._on_lost = lost, core, renewal, on_lost
        self._over, self._since, self._pid = False, now(), os.getpid()
        core.attach(renewal, self)

    def left(self) -> float:
        """Returns the seconds for which the lock is held for sure, if nothing is heard of the server any more."""
        return 0.0 if self._over else max(0.0, self._renewal.end() - now())

    def __del__(self) -> None:
        # Nobody can give it back any more. The collector may run anywhere, so the keeper does the rest.
        if not getattr(self, "_over", True):
            self._core.forgotten.append(self)

    async def _guarded(self, command: tuple[Any, ...]) -> Any:
        """Sends it once, on our link and within the time for a reply. The library would send it again."""
        for word in command:
            if not isinstance(word, (str, bytes, int, float)) or isinstance(word, bool):
                raise TypeError(f"command must be of str, bytes, int and float, not {word!r}")
        core = self._core
        words = ("DLOCK.GUARD", self.key, self.token, *command)
        try:
            return core.decoded((await core.call(self.key, words, now() + core.settings.reply_timeout))[0])
        except Fenced:
            if self._pid == os.getpid():
                core.lose(self._renewal, "fenced")
            raise

    def _forked(self) -> None:
        raise NotImplementedError

    def _tell_lost(self, reason: str) -> None:
        if self._over:
            return
        self._over, self.reason = True, reason
        level = logging.DEBUG if self._core.closed else logging.WARNING
        log.log(level, "lock %r of %r is lost: %s", self.key, self.owner, reason)
        self._core.tell("lost", self.key, reason)
        self._lost.set()
        if self._on_lost is not None:
            self._core.later(self._callback)

    def _callback(self) -> None:
        try:
            if self._on_lost is not None:
                self._on_lost(self)
        except Exception:
            log.exception("on_lost has failed")
