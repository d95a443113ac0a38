# SPDX-License-Identifier: MIT
"""A lock over several masters that know nothing of each other.

    quorum = Quorum([redis.Redis(host) for host in ("one", "two", "three")])  # in the same order for every client
    with quorum.lock("stock", lease=10, wait=5) as hold:  # LockTimeout after 5 s, Unreachable if no majority votes
        while hold.left() > 1 and work():
            hold.renew(10)

A client holds the lock if it does so at a majority of the masters; docs/cluster.md of dlock has the recipe. The
clients are patterns: every hold has an owner and connections of its own, so threads may share a Quorum. Times are in
seconds.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ._clock import ms, now
from ._errors import LockTimeout
from ._library import bounded
from ._settings import Name

SILENCE = 1.0  # so long a master that did not answer is asked last
EARLIER_MS = 5  # how long before the first one's lease those at the others end
ROUNDING_MS, DRIFT = 2, 100  # servers count whole milliseconds; no clock is faster than another by a hundredth


class Unreachable(redis.ConnectionError):
    """No majority of the masters could vote at the last try. The text has the error of each that could not."""


class Quorum:
    """`reply_timeout` is how long a master may take to connect, and to answer what need not wait."""

    def __init__(self, masters: Iterable[redis.Redis], reply_timeout: float = 0.3):
        self.reply_timeout, self.masters = reply_timeout, list(masters)
        self._silent = [float("-inf")] * len(self.masters)  # when each did not answer

    def acquire(self, lock: Name, lease: float = 10.0, wait: float = 0.0) -> QuorumHold | None:
        """A hold, or None after `wait` (0: one try). Whatever interrupts it (Ctrl-C, too), nothing is left behind."""
        hold, end = QuorumHold(self, lock), now() + wait
        try:
            errors: list[str] = []
            while not hold._take(ms(lease), end):
                errors = [master.error for master in hold._masters if master.error]
                hold._give_back()
                hold._rename()
                pause = random.uniform(0.02, 0.2)  # or those who have split the votes would do it again
                if now() + pause >= end:
                    break
                time.sleep(pause)
            else:
                return hold
        except BaseException:
            hold.release()
            raise
        hold.release()
        if 2 * len(errors) >= len(self.masters):
            raise Unreachable(f"no majority of the masters has voted: {'; '.join(errors)}")
        return None

    def lock(self, lock: Name, lease: float = 10.0, wait: float = 0.0) -> QuorumHold:
        """The same, but LockTimeout instead of None."""
        hold = self.acquire(lock, lease, wait)
        if hold is None:
            raise LockTimeout(f"{lock!r} was not granted within {wait} s")
        return hold


class QuorumHold:
    """A lock that is held for sure until `deadline`: of CLOCK_BOOTTIME where there is one, else of time.monotonic().

    That clock runs while the machine is suspended, as the leases do."""

    def __init__(self, quorum: Quorum, lock: Name):
        self.lock, self.deadline, self._guard = lock, 0.0, threading.Lock()
        self._masters = [_Master(quorum, number) for number in range(len(quorum.masters))]
        self._first = self._masters[0]
        self._tokens: dict[_Master, int] = {}
        self._rename()

    def _rename(self) -> None:
        """A new owner for each try: a late command of the last try must not release what this one gets."""
        self.owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4()}"
        for master in self._masters:
            master.names = self.lock, self.owner

    @property
    def tokens(self) -> list[int | None]:
        """Each master's fencing token, or None."""
        return [self._tokens.get(master) for master in self._masters]

    def left(self) -> float:
        """Returns for how many seconds it is certainly held."""
        return max(0.0, self.deadline - now())

    def renew(self, lease: float = 10.0) -> bool:
        """Makes all leases new, the first master's last. False when no majority agrees: the old deadline stays."""
        with self._guard:  # the thread that renews need not be the one that releases
            return self._vote([one for one in [*self._others(), self._first] if one in self._tokens], ms(lease))

    def release(self) -> None:
        """Gives the lock back at all masters. What has ended before is no error."""
        with self._guard:
            self._give_back()
            self._tokens, self.deadline = {}, 0.0
            for master in self._masters:
                master.connection.disconnect()

    def __enter__(self) -> QuorumHold:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _take(self, lease: int, end: float) -> bool:
        """Waits at the first master that is there, then asks the others."""
        for master in self._masters:
            master.error = None
        for first in _silent_last(self._masters):
            self._first = first
            # 0 would be without bound, and a socket takes no time-out of a month.
            block = min(max(0.001, end - now()), 1e6)
            granted = self._first.ask("ACQUIRE", lease, "BLOCK", ms(block), wait=block)
            if granted:
                self._tokens = {self._first: granted[0]}
                return self._vote([self._first, *self._others()], lease)
            if not self._first.error:
                break
        return False

    def _vote(self, masters: list[_Master], lease: int) -> bool:
        """Renews where there is a token (a wait's reply does not say when the lease began), and asks the others."""
        begun, deadline = now(), float("inf")
        votes: dict[_Master, int] = {}
        for master in masters:
            if not master.reach():  # before we look at the clock: to connect is no part of the lease
                continue
            sent, length, token = now(), lease, self._tokens.get(master)
            if master is not self._first:
                length = max(1, int(lease - EARLIER_MS - (sent - begun) * 1000))
            reply = master.ask("RENEW", length, "TOKEN", token) if token else master.ask("ACQUIRE", length)
            if reply is not None:
                votes[master] = token or reply[0]
            if token and reply:  # dlock.max-hold-ms may have cut it
                length = min(length, reply)
                lease = length if master is self._first else lease
            deadline = min(deadline, sent + (length - ROUNDING_MS - length / DRIFT) / 1000)
        if 2 * len(votes) > len(self._masters) and now() < deadline:
            self._tokens, self.deadline = votes, deadline
            return True
        self.deadline = min(self.deadline, deadline)  # some have received a lease that may be shorter
        return False

    def _others(self) -> list[_Master]:
        return _silent_last(master for master in self._masters if master is not self._first)

    def _give_back(self) -> None:
        """Leaves at every master that was asked: who is next at the first one finds the others free."""
        for master in _silent_last([*self._others(), self._first]):
            master.leave()


class _Master:
    """A connection for one owner. Opened when needed, thrown away after a time-out."""

    def __init__(self, quorum: Quorum, number: int):
        pool, within = quorum.masters[number].connection_pool, quorum.reply_timeout
        kwargs = bounded(pool.connection_kwargs, within, Retry(NoBackoff(), 0))
        self.connection: Any = pool.connection_class(**kwargs)
        self.names: tuple[Name, str] = ("", "")
        self.quorum, self.number, self.reply_timeout = quorum, number, within
        self.asked = self.unanswered = False
        self.error: str | None = None

    def ask(self, name: str, *words: Any, wait: float = 0.0) -> Any:
        """The reply. None: it is a no, or there is an `error`."""
        if not self.reach():
            return None
        connection = self.connection
        try:
            self.asked = self.unanswered = True
            connection.send_command(f"DLOCK.{name}", *self.names, *words, check_health=False)
            if wait and not connection.can_read(wait + self.reply_timeout):
                raise redis.TimeoutError("no answer in time")
            # What did not answer keeps its connection: leave() says the last words there.
            reply = connection.read_response(disconnect_on_error=False)
            self.unanswered = False
            return reply
        except (OSError, redis.RedisError) as error:
            self.unanswered = isinstance(error, (redis.TimeoutError, TimeoutError))
            self._failed(error)
            return None

    def leave(self) -> None:
        """Releases what was granted or will be, and leaves the queue."""
        if not self.asked:
            return
        words: list[tuple[Any, ...]] = [("CANCEL",), ("RELEASE", "HOLDS", 0)]
        if self.unanswered and self.connection.is_connected:
            # Behind the request: on another connection it could overtake it, and find nothing to release.
            try:
                for name, *rest in words:
                    self.connection.send_command(f"DLOCK.{name}", *self.names, *rest, check_health=False)
            except (OSError, redis.RedisError):
                pass  # as good as unanswered: the lease ends it
            self._drop()
        else:
            for one in words:
                self.ask(*one)
        self.asked = False

    def reach(self) -> bool:
        """To connect is to ask, too: a master that hangs does not cost the whole wait."""
        self.error = None
        if self.unanswered:  # what comes late is not the next answer, and a wait ends with its connection
            self._drop()
        try:
            if self.connection.is_connected:
                try:
                    self.connection.can_read(0)
                except redis.ConnectionError:  # it has been closed since
                    self.connection.disconnect()
            self.connection.connect()
        except (OSError, redis.RedisError) as error:
            self._failed(error)
        return self.error is None

    def _failed(self, error: Exception) -> None:
        place = getattr(self.connection, "path", None) or f"{self.connection.host}:{self.connection.port}"
        self.error = f"{place}: {error}"
        if not isinstance(error, redis.ResponseError):
            self.quorum._silent[self.number] = now()
            if not self.unanswered:
                self._drop()

    def _drop(self) -> None:
        self.unanswered = False
        self.connection.disconnect()


def _silent_last(masters: Iterable[_Master]) -> list[_Master]:
    """Those that were silent a moment ago come last: nobody is kept waiting by one that hangs."""
    at = now()
    return sorted(masters, key=lambda master: at - master.quorum._silent[master.number] < SILENCE)
