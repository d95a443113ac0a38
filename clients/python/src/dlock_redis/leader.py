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
import inspect
import os
import re
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from ._asyncio import AsyncHold, AsyncLocks
from ._clock import seconds
from ._errors import FAILURES, NotHeld
from ._hold import done
from ._settings import Argument, Name
from ._take import Request, encoded
from ._threads import Hold, Locks

H = TypeVar("H", Hold, AsyncHold)
T = TypeVar("T")


class Leader(NamedTuple):
    """The leader, and its term."""

    who: str
    term: int


class _Candidate(Generic[H]):
    def __init__(self, locks: Any, name: Name, me: str | None, on_lost: Callable[[H], object] | None):
        self.locks, self.name = locks, name
        self._on_lost: Callable[[H], object] | None = on_lost
        self.me = me or f"{socket.gethostname()}:{os.getpid()}"
        self._hold: H | None = None
        self._request(None)  # a bad argument raises here, not at the first election

    def is_leader(self) -> bool:
        """Returns true if it certainly leads. Sends nothing: the clock says when the lease may have ended."""
        hold = self._hold
        return hold is not None and not hold.lost and hold.left() > 0

    @property
    def term(self) -> int | None:
        """The fencing token while it leads, else None."""
        hold = self._hold
        return hold.token if hold is not None and self.is_leader() else None

    def left(self) -> float:
        """Returns the seconds for which it certainly leads, even if the server never answers again."""
        return self._hold.left() if self._hold is not None else 0.0

    def _request(self, blocking_timeout: float | None) -> Request:
        """Each campaign is a candidate of its own, also of two with the same name."""
        options = {"actor": f"{self.me}#{uuid.uuid4()}", "on_lost": self._on_lost}
        request: Request = self.locks._request([self.name], blocking_timeout, options)
        return request

    def _taken(self) -> H:
        if self._hold is None:
            raise NotHeld(f"NOTHELD {self.me!r} does not lead {self.name!r}")
        return self._hold

    def _step_down(self) -> None:
        """Ends the term, and reports that if the clock has not done so yet."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.expire()

    @staticmethod
    def _told(reply: Any) -> Leader | None:
        """The name stands behind machine, process and session, and before what each campaign adds."""
        if reply is None:
            return None
        owner = re.sub(r"^[^/]+/\d+/[^/]+/", "", reply[3].decode(errors="replace"))
        return Leader(owner.rsplit("#", 2)[0], reply[0])


class Election(_Candidate[Hold]):
    """A candidate, for threads. `on_lost(hold)` is called, by a thread of its own, when it leads no more."""

    def __init__(
        self, locks: Locks, name: Name, me: str | None = None, *, on_lost: Callable[[Hold], object] | None = None
    ):
        if not isinstance(locks, Locks):
            raise TypeError(f"locks must be a Locks, not {locks!r}")
        super().__init__(locks, name, me, on_lost)

    def campaign(self, blocking_timeout: float | None = None) -> int | None:
        """Waits in the line of all candidates, and returns the term, or None if it was not elected in time."""
        if not self.is_leader():
            self._step_down()
            holds = self.locks._take(self._request(blocking_timeout))
            if holds:  # else another campaign of this object may have won
                self._hold = holds[0]
        return self.term

    def lead(self, work: Callable[[Election], T], blocking_timeout: float | None = None) -> T | None:
        """Waits until it leads, runs the work with this election, and resigns. Returns what the work has returned,
        or None if it was not elected in time. The work ends when it leads no more: see `is_leader`, `on_lost`."""
        if self.campaign(blocking_timeout) is None:
            return None
        with contextlib.ExitStack() as stack:
            stack.push(self)
            return done(work(self))

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
        self.locks._sessions.check()
        return self._told(self.locks._sessions.library.call(("DLOCK.HELD", encoded(self.name))))

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

    async def campaign(self, blocking_timeout: float | None = None) -> int | None:
        """Waits in the line of all candidates, and returns the term, or None if it was not elected in time."""
        if not self.is_leader():
            self._step_down()
            holds = await self.locks._take(self._request(blocking_timeout))
            if holds:  # else another campaign of this object may have won
                self._hold = holds[0]
        return self.term

    async def lead(
        self, work: Callable[[AsyncElection], Awaitable[T]], blocking_timeout: float | None = None
    ) -> T | None:
        """Waits until it leads, awaits the work with this election, and resigns. Returns what the work has returned,
        or None if it was not elected in time. The work ends when it leads no more: see `is_leader`, `on_lost`."""
        if await self.campaign(blocking_timeout) is None:
            return None
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_exit(self)
            result = work(self)
            return done(await result if inspect.isawaitable(result) else result)

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
        self.locks._sessions.check()
        return self._told(await self.locks._sessions.library.call(("DLOCK.HELD", encoded(self.name))))

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
