# SPDX-License-Identifier: MIT
"""One of many leads.

election = Election(locks, "reports", me="host-7")
term = election.campaign()                          # waits until it leads; None after a time-out
while election.is_leader():
    election.guard("SET", "reports:last", 41)       # Fenced if another one leads by now
election.resign()

The lock's fencing token is the term: it rises with every election. A leader that the server does not hear steps down
by its own clock before its lease ends. `guard` is what holds back a write that was already on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from ._asyncio import AsyncHold, AsyncLocks
from ._errors import FAILURES, NotHeld
from ._request import Argument, Name, Request, now, owner_name, seconds
from ._threads import Hold, Locks, run

H = TypeVar("H", Hold, AsyncHold)


class Leader(NamedTuple):
    """Who leads, and since which term."""

    who: str
    term: int


class _Candidate(Generic[H]):
    def __init__(self, locks: Any, name: Name, me: str | None, on_lost: Callable[[H], object] | None):
        self.locks, self.name = locks, name
        self._on_lost: Callable[[H], object] | None = on_lost
        self.me = me or f"{socket.gethostname()}:{os.getpid()}"
        self._hold: H | None = None
        locks._request(name, owner=self.me)  # bad arguments are told here

    def is_leader(self) -> bool:
        """Returns true if it leads for sure. Asks nobody: the clock says when the lease may have ended."""
        hold = self._hold
        return hold is not None and not hold.lost and hold.left() > 0

    @property
    def term(self) -> int | None:
        """The fencing token while it leads, else None."""
        hold = self._hold
        return hold.token if hold is not None and self.is_leader() else None

    def left(self) -> float:
        """Returns the seconds for which it leads for sure, if nothing is heard of the server."""
        return self._hold.left() if self._hold is not None else 0.0

    def _end(self) -> None:
        """It leads no more: told here, if the clock has not come to it yet."""
        hold, self._hold = self._hold, None
        if hold is not None:
            with hold._core.guard:
                hold._tell_lost("nobody has confirmed it before its end")

    def _taken(self) -> H:
        if self._hold is None:
            raise NotHeld(f"NOTHELD {self.me!r} does not lead {self.name!r}")
        return self._hold

    def _campaigned(self) -> Request:
        """Two of the same name are two candidates."""
        owner = owner_name(f"{self.me}#{uuid.uuid4()}")
        return Request(self.locks._core.settings, self.name, owner)

    def _asked(self) -> Any:
        core = self.locks._core
        core.check()
        return core.call(self.name, ("DLOCK.HELD", self.name), now() + core.settings.reply_timeout)

    @staticmethod
    def _told(reply: Any) -> Leader | None:
        """The name stands between machine and process, and the word that each campaign adds."""
        if reply is None:
            return None
        owner = re.sub(r"^[^/]+/\d+/", "", reply[3].decode(errors="replace"))
        return Leader(owner.rpartition("#")[0], reply[0])


class Election(_Candidate[Hold]):
    """A candidate, for threads. `on_lost(hold)` is called, by a thread of its own, when it leads no more."""

    def __init__(
        self, locks: Locks, name: Name, me: str | None = None, *, on_lost: Callable[[Hold], object] | None = None
    ):
        if not isinstance(locks, Locks):
            raise TypeError(f"locks must be a Locks, not {locks!r}")
        super().__init__(locks, name, me, on_lost)

    def campaign(self, timeout: float | None = None) -> int | None:
        """Waits in the line of all candidates, and returns the term, or None if it was not elected in time."""
        if not self.is_leader():
            self._end()
            self._hold = self.locks._take(self._campaigned(), seconds("timeout", timeout), self._on_lost)
        return self.term

    def resign(self) -> None:
        """Lets the next candidate lead. It is no error if this one did not."""
        hold, self._hold = self._hold, None
        if hold is not None:
            with contextlib.suppress(NotHeld):
                hold.release()

    def guard(self, *command: Argument) -> Any:
        """Runs a command only while it leads under its term: else raises `Fenced`, or `NotHeld` if it never led."""
        return self._taken().guard(*command)

    def leader(self) -> Leader | None:
        """Returns who leads now, as the server says."""
        return self._told(run(self._asked())[0])

    def who(self) -> Leader | None:
        """The old name of `leader`, which works for one version."""
        warnings.warn("who() is called leader() now", DeprecationWarning, 2)
        return self.leader()

    def observe(self, interval: float = 1.0) -> Iterator[Leader | None]:
        """Yields who leads, now and after each change. It asks once in `interval` seconds."""
        seconds("interval", interval)
        last: Any = ...
        while True:
            seen = self.leader()
            if seen != last:
                yield seen
            last = seen
            time.sleep(interval)

    def __enter__(self) -> Election:
        self.campaign()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.resign()
        except FAILURES:
            if error is None:  # never hide the real error
                raise


class AsyncElection(_Candidate[AsyncHold]):
    """The same for asyncio."""

    def __init__(
        self, locks: AsyncLocks, name: Name, me: str | None = None, *, on_lost: Callable[[Any], object] | None = None
    ):
        if not isinstance(locks, AsyncLocks):
            raise TypeError(f"locks must be an AsyncLocks, not {locks!r}")
        super().__init__(locks, name, me, on_lost)

    async def campaign(self, timeout: float | None = None) -> int | None:
        """Waits in the line of all candidates, and returns the term, or None if it was not elected in time."""
        if not self.is_leader():
            self._end()
            self._hold = await self.locks._take(self._campaigned(), seconds("timeout", timeout), self._on_lost)
        return self.term

    async def resign(self) -> None:
        """Lets the next candidate lead. It is no error if this one did not."""
        hold, self._hold = self._hold, None
        if hold is not None:
            with contextlib.suppress(NotHeld):
                await hold.release()

    async def guard(self, *command: Argument) -> Any:
        """Runs a command only while it leads under its term: else raises `Fenced`, or `NotHeld` if it never led."""
        return await self._taken().guard(*command)

    async def leader(self) -> Leader | None:
        """Returns who leads now, as the server says."""
        return self._told((await self._asked())[0])

    async def who(self) -> Leader | None:
        """The old name of `leader`, which works for one version."""
        warnings.warn("who() is called leader() now", DeprecationWarning, 2)
        return await self.leader()

    async def observe(self, interval: float = 1.0) -> AsyncIterator[Leader | None]:
        """Yields who leads, now and after each change. It asks once in `interval` seconds."""
        seconds("interval", interval)
        last: Any = ...
        while True:
            seen = await self.leader()
            if seen != last:
                yield seen
            last = seen
            await asyncio.sleep(interval)

    async def __aenter__(self) -> AsyncElection:
        await self.campaign()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.resign()
        except FAILURES:
            if error is None:  # never hide the real error
                raise
