"""The rules of takes, sessions and holds, without a server: what the client says, and what it makes of each answer."""

import gc
import threading
from collections import deque

import pytest
import redis

from dlock_redis import _clock, _session
from dlock_redis._settings import Settings
from dlock_redis._take import Request, Take

LEASE = 10.0


class Rules(_session.Sessions):
    """Sessions whose jobs nobody runs."""

    def __init__(self, **how):
        self.told_lost = []
        defaults = {"lease": LEASE, "hang_timeout": 30.0, "reply_timeout": 3.0, "clock_margin": 0.1, "observer": None}
        super().__init__(Settings(**{**defaults, **how}))

    def event(self):
        return threading.Event()

    def wake(self):
        pass

    def start(self, loop):
        pass

    def start_errands(self, place):
        pass

    def place(self, key):
        return ""

    def later(self, held):
        self.told_lost.append(held.handle())

    def said(self):
        """The commands that wait to be said, and those who wait for the answers."""
        return [(one.words, one) for errands in self.errands.values() for one in errands if one.is_needed()]


class Handle:
    """Stands for the program's Hold."""

    def __init__(self, held):
        self.held = held


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""

    class Moved:
        at = 1000.0

        def __call__(self):
            return self.at

    moved = Moved()
    for module in ("_clock", "_session", "_take", "_hold"):
        monkeypatch.setattr(f"dlock_redis.{module}.now", moved)
    return moved


@pytest.fixture
def rules(clock):
    return Rules()


def take(rules, wait=None, keys=("k",), **options):
    """A take that has sent its request."""
    one = Take(rules, Request(rules.settings, keys, **options), wait)
    one.next()
    return one


def granted(rules, token=1, session=7, **options):
    """A hold that was free."""
    one = take(rules, 0, **options)
    one.answered(_clock.now(), [token, session])
    [hold] = one.result(Handle)
    return hold.held


def test_a_session_with_nothing_in_it_is_forgotten(rules):
    """A program that holds nothing else gets another one from the server each time."""
    for number in range(1000):
        held = granted(rules, number + 1, number + 1)
        rules.released(held).answered(_clock.now(), 1)
    del held
    gc.collect()
    assert len(rules.by_id) <= 1


def test_a_lease_may_be_longer_than_a_session(clock):
    """SESSION's `ms` has a limit, `dlock.max-claim-ms`. A lease has none."""
    assert Rules(lease=3600.0).settings.hang_timeout == 30.0


def test_a_release_is_said_until_the_lease_is_over(rules, clock):
    held = granted(rules, lease=600.0)
    with pytest.raises(redis.TimeoutError), rules.carried(rules.released(held)) as errand:
        errand.answered(clock(), redis.TimeoutError("no answer"))
    clock.at += 599.0
    [(words, _)] = rules.said()
    assert words[:2] == ("DLOCK.RELEASE", b"k")
    clock.at += 1000.0
    assert not rules.said()


def test_a_try_without_an_answer_is_taken_back(rules, clock):
    """The server may have granted it, or may do so later."""
    one = take(rules, 0)
    one.answered(clock(), redis.TimeoutError("no answer"))
    with pytest.raises(redis.TimeoutError):
        one.result(Handle)
    [(words, _)] = rules.said()
    assert words == ("DLOCK.CANCEL", b"k", one.owner)


def test_a_try_that_was_refused_takes_nothing_back(rules, clock):
    for error in (redis.ConnectionError("refused"), redis.ResponseError("BUSY a script runs")):
        take(rules, 0).answered(clock(), error)
    assert not rules.said()


def test_stalls_put_off_no_loss_for_ever(clock):
    """A program that blocks its event loop again and again is told of its losses all the same."""
    alarm = _clock.Clock(lambda: None)
    seen = []
    for _ in range(10):
        began = clock()
        clock.at += 0.7  # it wanted to sleep for 0.05 s
        alarm.slept(began, 0.05, 3.0)
        for _ in range(10):
            began = clock()
            clock.at += 0.05
            alarm.slept(began, 0.05, 3.0)
            seen.append(alarm.is_over(began))
    assert not seen[0] and any(seen)


def test_a_renewal_does_not_undo_what_others_have_taken(rules, clock):
    """Its answer comes after the row that tells that another client has taken the hold out of the session."""
    held = granted(rules)
    session = held.session
    rules.gone(session)
    [(_, renewal)] = rules.said()
    sent = clock()
    rows = [[1, b"granted", b"k", held.owner, 1, 10_000], [2, b"taken", b"k", held.owner, 1, 5000]]
    rules.told(clock(), [8, 1, None, rows], b"k")
    renewal.answered(sent, [10_000, 8])
    assert held.session is None and held.until() <= clock() + 5.0


def test_what_is_forgotten_at_a_tick_is_told_by_the_next(rules, clock):
    """A finalizer may run between two lines of the clock's own work."""
    held = granted(rules)

    class Forgets(deque):
        def __bool__(self):
            if not len(self) and rules._forgotten is self:
                rules._forgotten = deque()
                rules.forget(held)
                return False
            return len(self) > 0

    rules._forgotten = Forgets()
    rules.tick()
    assert rules.clock.alarm <= clock()
    rules.tick()
    assert held.reason.startswith(("forgotten", "it was forgotten"))


def test_a_wait_that_is_queued_again_has_no_old_failure(rules, clock):
    one = take(rules, 5.0)
    one.answered(clock(), redis.ConnectionError("refused"))
    clock.at += 1.0
    one.next()
    one.answered(clock(), [0, 1, 7])
    session = rules.by_id[7]
    clock.at += 1.0
    rules.told(clock(), [7, 0, None, []], b"k")
    clock.at += 10.0
    assert one.next() is None and one.result(Handle) is None
    assert session.waits == set()
