# SPDX-License-Identifier: MIT
"""Holds: until when one is believed, and what holds of threads and of tasks have in common."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ._clock import now
from ._errors import DLockError
from ._settings import Argument, Name

if TYPE_CHECKING:
    from ._session import Session

log = logging.getLogger("dlock_redis")
T = TypeVar("T")


class Held:
    """What the client knows of one hold. The program's `Hold` refers to it, and not the other way."""

    __slots__ = (
        "bound",
        "end",
        "event",
        "handle",
        "is_left",
        "is_renewed",
        "is_taken",
        "key",
        "lease",
        "name",
        "on_lost",
        "over",
        "owner",
        "reason",
        "session",
        "since",
        "token",
        "told",
        "why",
    )

    def __init__(self, key: Name, names: tuple[bytes, bytes], token: int, lease: float, end: float):
        self.key, self.token, self.lease, self.end = key, token, lease, end
        self.name, self.owner = names
        self.told = self.since = now()  # when an answer told of it
        self.bound = math.inf  # by `max_hold`
        self.session: Session | None = None
        self.over = self.is_left = self.is_renewed = self.is_taken = False
        self.reason = self.why = ""
        self.event: Any = None
        self.on_lost: Callable[[Any], object] | None = None
        self.handle: Callable[[], Any] = lambda: None

    def until(self) -> float:
        """Returns the end that is believed.

        A SESSION's least lease counts if it was sent after the answer that told of this hold."""
        session, end = self.session, self.end
        if session is not None and session.sent >= self.told:
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
        self._locks, self._sessions, self._held = locks, locks._sessions, held  # locks live as long as their holds
        self.key, self.owner, self.token = held.key, held.owner.decode(errors="backslashreplace"), held.token
        self._pid = os.getpid()
        held.handle = weakref.ref(self)

    @property
    def reason(self) -> str:
        """Why it was lost."""
        return self._held.reason

    def left(self) -> float:
        """Returns the seconds for which the lock is held for sure, if nothing is heard of the server any more."""
        held = self._held
        return 0.0 if held.over or self._is_orphan() else max(0.0, held.until() - now())

    def expire(self) -> None:
        """Reports the loss of a hold whose end has passed, if the clock has not come to it yet."""
        if not self._is_orphan():
            with self._sessions.guard:
                if not self._held.over:
                    self._sessions.expire(self._held)

    def _must_be_ours(self) -> None:
        self._sessions.check()
        if self._is_orphan():
            raise DLockError(f"{self.key!r} is held by the process that has forked this one")

    def _is_orphan(self) -> bool:
        """Returns true in a forked child, where the parent's holds are nobody's."""
        return self._pid != os.getpid()

    def _event(self) -> Any:
        held = self._held
        if self._is_orphan() and held.reason != "it is the parent's":
            held.over, held.reason, held.event = True, "it is the parent's", self._sessions.event()
            held.event.set()
        return held.event or self._sessions.lost_event(held)

    def _words(self, command: tuple[Argument, ...]) -> tuple[Any, ...]:
        for word in command:
            if not isinstance(word, (str, bytes, int, float)) or isinstance(word, bool):
                raise TypeError(f"command must be of str, bytes, int and float, not {word!r}")
        return ("DLOCK.GUARD", self._held.name, self.token, *command)

    def __del__(self) -> None:
        # Nobody can give it back any more. The collector may run anywhere, so the clock does the rest.
        held = getattr(self, "_held", None)
        if held is not None and not held.over and not self._is_orphan():
            self._sessions.forget(held)


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
