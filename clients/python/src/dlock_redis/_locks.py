# SPDX-License-Identifier: MIT
"""What the locks of threads and of tasks have in common, and what a fork does to them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ._hold import HoldBase
from ._session import Sessions
from ._settings import Name, Observer, OldSettings, Settings, renamed, without_old
from ._take import Request

if TYPE_CHECKING:
    from typing_extensions import Unpack

C = TypeVar("C")
H = TypeVar("H", bound=HoldBase)

_all: weakref.WeakSet[LocksBase[Any]] = weakref.WeakSet()


class LocksBase(Generic[C]):
    client: C
    _kinds: ClassVar[dict[str, type]]  # of clients
    _make: Callable[[Any, Settings], Sessions]

    def __init__(
        self,
        client: C,
        *,
        lease: float = 10.0,
        hang_timeout: float = 30.0,
        reply_timeout: float = 3.0,
        clock_margin: float = 0.1,
        observer: Observer | None = None,
        **old: Unpack[OldSettings],
    ):
        if not isinstance(client, tuple(self._kinds.values())):
            raise TypeError(f"client must be a {' or '.join(self._kinds)}, not {client!r}")
        without_old(old)
        self.client = client
        self._settings = Settings(lease, hang_timeout, reply_timeout, clock_margin, observer)
        self._sessions: Any = self._make(client, self._settings)
        _all.add(self)

    def _request(
        self, keys: Iterable[Name], blocking_timeout: float | None, options: Any, default: float | None = None
    ) -> Request:
        wait = renamed(options, blocking_timeout, default)
        return Request(self._settings, keys, wait, **options)

    def _begin_again(self) -> None:
        """Has a forked child begin with a session of its own. (It has one thread.)"""
        parents: Sessions = self._sessions
        closed = parents.closed
        parents.disown()
        self._sessions = self._make(self.client, self._settings)
        self._sessions.closed = closed

    def __del__(self) -> None:
        sessions = getattr(self, "_sessions", None)
        if sessions is not None and not sessions.closed:
            sessions.stop()


def _after_a_fork() -> None:
    for locks in list(_all):
        locks._begin_again()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_a_fork)


class LockBase(Generic[H]):
    """The holds of all `with` by one lock object, which several threads or tasks may use."""

    def __init__(self, locks: Any, request: Request):
        self._locks = locks
        self._request = request
        self._holds: list[tuple[object, H]] = []  # with the thread or the task that has taken it

    def _entered(self, who: object, hold: H) -> H:
        self._holds.append((who, hold))
        return hold

    def _left(self, who: object) -> H:
        """Returns the hold of the `with` that ends. A framework may have another thread or task end it."""
        mine = [one for one in self._holds if one[0] == who]
        if not mine and len(self._holds) != 1:
            raise RuntimeError(f"which of {len(self._holds)} holds of {self._request.keys[0]!r} is to be released?")
        last = (mine or self._holds)[-1]
        self._holds.remove(last)
        return last[1]
