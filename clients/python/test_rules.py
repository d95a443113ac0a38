"""The rules of takes, sessions and holds, without a server: what the client says, and what it makes of each answer."""

import asyncio
import concurrent.futures
import contextlib
import gc
import socket
import threading
import time
from collections import deque
from types import SimpleNamespace

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

import dlock_redis as dlock
from dlock_redis import _clock, _library, _session
from dlock_redis._hold import HoldBase
from dlock_redis._settings import Settings
from dlock_redis._take import Request, Take

LEASE = 10.0
KEPT = []  # the program's holds


class Rules(_session.Sessions):
    """Sessions whose jobs nobody runs."""

    def __init__(self, **how):
        self.told_lost, self.jobs, self.no_threads = [], [], False
        defaults = {"lease": LEASE, "hang_timeout": 30.0, "reply_timeout": 3.0, "clock_margin": 0.1, "observer": None}
        super().__init__(Settings(**{**defaults, **how}))

    def event(self):
        return threading.Event()

    def wake(self):
        pass

    def bell(self):
        return threading.Event()

    def start(self, job):
        if self.no_threads:
            raise RuntimeError("can't start new thread")
        self.jobs.append(job)

    def server(self, key):
        return ""

    def later(self, on_lost, hold):
        self.told_lost.append(hold)

    def hold(self, held):
        """Stands for the program's Hold."""
        return HoldBase(SimpleNamespace(_sessions=self), held)

    def said(self):
        """The commands that wait to be said, and those who wait for the answers."""
        return [(one.words, one) for to in self.errands.values() for one in to.waiting if one.is_needed()]


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when the test moves it."""

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
    one = Take(rules, Request(rules.settings, keys, wait, **options), rules.hold)
    one.next()
    return one


def granted(rules, token=1, session=7, **options):
    """A hold that was free."""
    one = take(rules, 0, **options)
    one.answered(_clock.now(), [token, session])
    [hold] = one.result()
    KEPT.append(hold)  # else it would be a forgotten one
    return hold._held


def test_a_session_with_nothing_in_it_isforgotten(rules):
    """A program that holds nothing else gets another one from the server each time."""
    for number in range(1000):
        held = granted(rules, number + 1, number + 1)
        rules.released(held).answered(_clock.now(), 1)
    del held
    KEPT.clear()
    gc.collect()
    assert len(rules.by_id) <= 1 and not rules.held and not rules.asked and not rules.forgotten


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
        one.result()
    [(words, _)] = rules.said()
    assert words == ("DLOCK.CANCEL", b"k", one.owner)


def test_a_try_that_was_refused_takes_nothing_back(rules, clock):
    refused = redis.ConnectionError("refused")
    refused.__context__ = ConnectionRefusedError()
    for error in (refused, redis.ResponseError("BUSY a script runs"), redis.exceptions.BusyLoadingError("loading")):
        take(rules, 0).answered(clock(), error)
    assert not rules.said()


def test_stalls_put_off_no_loss_for_ever(rules, clock):
    """A program that blocks its event loop again and again still learns of its losses."""
    seen = []
    for _ in range(10):
        began = clock()
        clock.at += 0.7  # it wanted to sleep for 0.05 s
        rules.clock.slept(began, 0.05)
        for _ in range(10):
            began = clock()
            clock.at += 0.05
            rules.clock.slept(began, 0.05)
            seen.append(rules.clock.is_over(began))
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


def test_what_isforgotten_at_a_tick_is_told_by_the_next(rules, clock):
    """A finalizer may run between two lines of the clock's own work."""
    held = granted(rules)

    class Late(deque):
        def __bool__(self):
            if not len(self) and rules.forgotten is self:
                rules.forgotten = deque()
                rules.forget(held)
                return False
            return len(self) > 0

    rules.forgotten = Late()
    rules.tick()
    assert not held.over
    rules.clock.next()
    assert "forgotten" in held.reason


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
    assert one.next() is None and one.result() is None
    assert session.waits == set()


def test_a_loss_at_the_grant_is_told(rules, clock):
    """The rows `granted` and `forced` come by one answer, before the caller has its hold."""
    one = take(rules, None, on_lost=print)
    one.answered(clock(), [0, 1, 7])
    rows = [[1, b"granted", b"k", one.owner, 1, 9000], [2, b"forced", b"k", one.owner, 1, 0]]
    rules.told(clock(), [7, 2, None, rows], b"k")
    [hold] = one.result()
    assert rules.told_lost == [hold]


def test_a_refused_release_after_ends_the_hold(rules, clock):
    """A hold that the program has ended stays over, and is no hold that nobody keeps or reports."""
    held = granted(rules)
    rules.released_after(held, 3600.0).answered(clock(), redis.ResponseError("ERR ms must be less"))
    assert held.over and held.session is None
    [(words, _)] = rules.said()  # its lease is to end it
    assert words == ("DLOCK.RENEW", b"k", held.owner, 10_000, "TOKEN", 1)


def is_blocking(rules, clock):
    """A session whose loop has sent a SESSION that waits for rows."""
    take(rules).answered(clock(), [0, 1, 7])
    [loop] = [job for job in rules.jobs if isinstance(job, _session.Loop)]
    assert "BLOCK" not in loop.next()
    loop.answered(clock(), [7, 0, None, []])
    assert loop.next()[-2:] == ("BLOCK", 1000)
    return loop


@pytest.mark.parametrize("lease, times", [(1.0, 1), (0.75, 2)])
def test_a_hold_that_is_shorter_than_the_wait_for_rows_is_kept(rules, clock, lease, times):
    loop, sent = is_blocking(rules, clock), clock()
    held, renewals = granted(rules, lease=lease), []
    while clock() < sent + 1.0:
        clock.at += 0.01
        if rules.clock.alarm <= clock():
            rules.tick()
        for words, errand in rules.said():
            if not errand.done:
                renewals.append(words[0])
                errand.answered(clock(), [int(lease * 1000), 7])
    assert not held.over and renewals == ["DLOCK.RENEW"] * times
    loop.answered(sent, [7, 0, int(lease * 1000), []])
    assert loop.next()[-2:] == ("BLOCK", int(lease * 1000 / 6))


def test_no_hold_that_the_session_keeps_in_time_is_renewed_by_itself(rules, clock):
    loop, held = is_blocking(rules, clock), granted(rules, lease=3.0)
    for _ in range(10):
        sent = clock()
        clock.at += loop._block
        rules.tick()
        loop.answered(sent, [7, 0, 3000, []])
        loop.next()
    assert loop._block == 0.5 and not held.over and not rules.said()


def test_a_session_that_was_answered_late_is_said_again_at_once(rules, clock):
    loop = is_blocking(rules, clock)
    sent = clock()
    clock.at += 1.0 + LEASE / 6 + 0.1
    loop.answered(sent, [7, 0, None, []])
    assert "BLOCK" not in loop.next() and loop.within == 3.0
    loop.answered(clock(), [7, 0, None, []])
    assert "BLOCK" in loop.next() and loop.within == 4.0
    granted(rules, lease=1.5)
    loop.answered(clock(), [7, 0, None, []])
    clock.at += 0.1
    assert loop.next()[-2:] == ("BLOCK", 250) and loop.within == 0.75


def test_an_errand_ends_by_an_answer(rules, clock):
    """A failure to connect is none, whatever time may do about it: the session may be kept by another connection."""
    not_found = redis.ConnectionError("Error -2 connecting to locks.example")
    not_found.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    for error, ends in (
        (not_found, False),
        (redis.AuthenticationError("WRONGPASS"), False),
        (redis.ResponseError("NOREPLICAS"), False),
        (redis.exceptions.NoPermissionError("this user has no permissions"), True),
        (dlock.NotHeld("NOTHELD"), True),
    ):
        errand = rules.released(granted(rules))
        errand.answered(clock(), error)
        assert errand.done is ends, error


def test_a_release_after_that_finds_the_lock_lost_says_so(rules, clock):
    """Unlike a RELEASE, of which an earlier attempt may have arrived."""
    for seconds, lost in ((None, False), (60.0, True), (0.5, False)):
        with pytest.raises(dlock.NotHeld) if lost else contextlib.nullcontext():
            held = granted(rules)
            with rules.carried(rules.released_after(held, seconds) if seconds else rules.released(held)) as errand:
                errand.answered(clock(), redis.TimeoutError("no answer"))
                clock.at += 0.6  # an earlier one may have done it, and half a second is over by then
                errand.answered(clock(), dlock.NotHeld("NOTHELD"))


@pytest.mark.parametrize("ends", ["release_after", "forgotten"])
def test_what_was_left_to_its_lease_stays_taken(rules, clock, ends):
    """The row of its grant is in an answer that was under way, or a renewal has put it back into the session."""
    held = granted(rules)
    owner = held.owner
    if ends == "forgotten":
        rules.forget(held)
        rules.tick()
        [(_, renewal)] = rules.said()
    else:
        renewal = rules.released_after(held, 60.0)
    renewal.answered(clock(), [60_000])
    row = [1, b"granted", b"k", owner, 1, 9000]
    del held, renewal
    KEPT.clear()
    rules.errands.clear(), rules.jobs.clear()
    gc.collect()
    clock.at += 3.0
    rules.tick()
    rules.told(clock(), [7, 1, None, [row]], b"k")
    [(words, again)] = rules.said()
    assert words == ("DLOCK.RENEW", b"k", owner, 57_000 if ends == "release_after" else 7000, "TOKEN", 1)
    again.answered(clock(), [57_000])
    del again
    rules.errands.clear(), rules.jobs.clear()
    clock.at += 30.0
    assert rules.clock.alarm <= clock()
    rules.tick()
    gc.collect()
    assert not rules.held and not rules.left


@pytest.mark.parametrize("seconds, left", [(60.0, 59_000), (0.5, 1)])
def test_a_late_renewal_keeps_nothing_that_was_left_to_its_lease(rules, clock, seconds, left):
    """It was under way, and has put the hold back into the session. The server would renew it for ever."""
    held = granted(rules)
    rules.renew(held)
    [(_, late)] = rules.said()
    rules.released_after(held, seconds).answered(clock(), [int(seconds * 1000)])
    clock.at += 1.0
    late.answered(clock(), [60_000, 7])
    [(words, _)] = rules.said()
    assert words == ("DLOCK.RENEW", b"k", held.owner, left, "TOKEN", 1)


def test_a_search_for_nodes_may_hide_a_request_that_was_sent(rules, clock):
    """The library's client of a cluster looks for the nodes after a time-out, and reports what came of that."""
    error = redis.exceptions.RedisClusterException("Redis Cluster cannot be connected")
    error.__cause__ = redis.ConnectionError("refused")
    error.__cause__.__context__ = ConnectionRefusedError()
    one = take(rules, 0)
    one.answered(clock(), error)
    [(words, _)] = rules.said()
    assert words == ("DLOCK.CANCEL", b"k", one.owner)


def test_a_close_waits_for_what_is_yet_to_be_said(rules, clock):
    rules.give_back(b"k", b"o", 5, 10.0)
    wait = take(rules)
    wait.answered(clock(), [0, 1, 7])
    assert rules.close("closed") and not rules.close("closed")
    with pytest.raises(dlock.DLockError, match="closed"):
        wait.result()
    with pytest.raises(dlock.DLockError, match="closed"):
        take(rules)
    [job] = rules.errands.values()
    assert [words[0] for words in job.next()] == ["DLOCK.RELEASE", "DLOCK.CANCEL"]
    closing = _session.Closing(rules)
    assert closing.next()
    job.answered(clock(), [1, redis.TimeoutError("no answer")])
    clock.at += 0.2
    assert [words[0] for words in job.next()] == ["DLOCK.CANCEL"] and closing.next()
    clock.at += 1.0
    assert closing.next() is None  # it has had its time
    rules.stop()
    assert job.next() is None and rules.clock.next() is None
    rules.give_back(b"k", b"o", 6, 10.0)
    assert not rules.said()


def test_a_close_waits_for_no_more_than_that(rules, clock):
    rules.give_back(b"k", b"o", 5, 10.0)
    [job] = rules.errands.values()
    job.next()
    job.answered(clock(), [1])
    assert job.next() is None
    rules.close("closed")
    assert _session.Closing(rules).next() is None


def test_what_cannot_work_in_the_background_now_does_so_later(rules, clock):
    """The process has too many threads: a wait and a release do not count as being worked on."""
    held = granted(rules)
    rules.no_threads = True
    one = take(rules)
    one.answered(clock(), [0, 1, 7])
    rules.give_back(b"k", b"o", 5, 10.0)
    assert not any(isinstance(job, (_session.Loop, _session.Errands)) for job in rules.jobs)
    rules.no_threads = False
    clock.at += 1.0
    assert rules.clock.alarm <= clock()
    rules.tick()
    assert {type(job) for job in rules.jobs[1:]} == {_session.Loop, _session.Errands}
    assert held.session.loop is not None


def test_a_job_that_fails_is_begun_again(rules, clock):
    """As by a reply that nobody expects, or when a program cancels all its tasks."""
    one = take(rules)
    one.answered(clock(), [0, 1, 7])
    rules.give_back(b"k", b"o", 5, 10.0)
    rules.jobs.pop(0)
    before, rules.jobs[:] = list(rules.jobs), []
    assert len(before) == 2
    for job in before:
        job.ended()
    clock.at += 1.0
    rules.tick()
    assert {type(job) for job in rules.jobs} == {type(job) for job in before}


def test_a_fake_lock_has_one_holder(monkeypatch):
    """Threads of a test ask at the same time."""
    locks, fits = dlock.FakeLocks(), dlock.FakeLocks._fits

    def slowly(self, new):
        free = fits(self, new)
        time.sleep(0.01)
        return free

    monkeypatch.setattr(dlock.FakeLocks, "_fits", slowly)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        holds = [one for one in pool.map(lambda _: locks.try_lock("k"), range(8)) if one]
    assert len(holds) == 1
    with holds[0] as hold:
        hold.release()
    assert not locks.holds


def test_fake_locks_of_tasks():
    async def work():
        lost = []

        async def told(hold):
            lost.append(hold.key)

        async def answers(*command):
            return command[0]

        locks = dlock.AsyncFakeLocks()
        async with locks.lock("k", on_lost=told) as hold:
            assert await hold.guard("GET", "x") is None and locks.commands == [("GET", "x")]
            locks.reply = answers
            assert await hold.guard("DECR", "x") == "DECR" and hold.token and hold.left() > 0
            assert await locks.try_lock("k") is None and await locks.is_held("k")
            with pytest.raises(dlock.LockTimeout):
                await locks.acquire("k", 0.01)
            next_one = asyncio.ensure_future(locks.acquire("k", 5))
            await asyncio.sleep(0)
            await hold.release()
            kept = await next_one
        locks.lose(kept)
        await asyncio.wait_for(kept.lost.wait(), 1)
        with pytest.raises(dlock.Fenced):
            await kept.guard("GET", "x")
        with pytest.raises(dlock.NotHeld):
            await kept.release()
        assert kept.lost and kept.reason == "forced" and not lost  # only the first one had on_lost
        locks.lose(await locks.acquire("k", on_lost=told))
        await asyncio.sleep(0)
        assert lost == ["k"]
        await (await locks.acquire("k")).release_after(5)
        assert await locks.try_lock("k") is None
        async with locks.many(["a", "b"]) as both:
            assert sorted(both) == ["a", "b"] and await locks.is_held("a")
            assert await both["b"].guard("GET", "x") == "GET"
        assert not await locks.is_held("a")
        open_one = await locks.acquire("other")
        await locks.aclose()
        assert open_one.lost and open_one.reason == "closed"

    asyncio.run(work())


class Nodes:
    """Stands for redis-py's client of a cluster."""

    def __init__(self, **servers):
        self.servers, self.asked = servers, []

    def get_node_from_key(self, key):
        if key not in self.servers:
            raise redis.exceptions.SlotNotCoveredError("no node")
        return SimpleNamespace(name=self.servers[key])

    def execute_command(self, *words):
        self.asked.append(words)
        return "answered"


def test_a_session_of_a_slot_without_a_server_has_the_library_look_for_it():
    cluster = _library.Cluster(None, 3.0)
    cluster._made = nodes = Nodes()
    assert cluster.call(("DLOCK.SESSION", "k")) == "answered" and nodes.asked


def test_nobody_waits_for_long_behind_another_threads_connect(monkeypatch):
    goes_on, cluster = threading.Event(), _library.Cluster(None, 0.05)
    monkeypatch.setattr(_library, "_of_cluster", lambda *_: goes_on.wait() and Nodes())
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(cluster.call, ("DLOCK.HELD", "k"))
        try:
            with pytest.raises(redis.TimeoutError):
                cluster.call(("DLOCK.HELD", "k"))
        finally:
            goes_on.set()
        assert first.result() == "answered"


def test_the_handler_of_a_signal_may_connect_within_a_connect(monkeypatch):
    cluster, calls = _library.Cluster(None, 3.0), []

    def makes(*_):
        calls.append(1)
        if len(calls) == 1:
            assert cluster.call(("DLOCK.HELD", "k")) == "answered"
        return Nodes()

    monkeypatch.setattr(_library, "_of_cluster", makes)
    assert cluster.call(("DLOCK.HELD", "k")) == "answered"


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_sentinels_that_do_not_answer_are_asked_less_often(kind, monkeypatch):
    """To ask them takes a part of a call's time. There is a connection to the primary."""
    at, asked = [1000.0], []
    monkeypatch.setattr(_library, "now", lambda: at[0])

    def search():
        asked.append(at[0])
        at[0] += 2.25
        raise redis.ConnectionError("no Sentinel answers")

    async def search_later():
        search()

    async def answer_later(*_):
        return "answered"

    async def work(client):
        server = _library.for_tasks(client, 3.0)
        monkeypatch.setattr(server._pool, "get_master_address", search_later)
        monkeypatch.setattr(server, "_client", SimpleNamespace(execute_command=answer_later))
        return [await server.call(("DLOCK.HELD", "k")) for _ in range(3)]

    if kind == "threads":
        server = _library.for_threads(redis.sentinel.Sentinel([("localhost", 1)]).master_for("primary"), 3.0)
        monkeypatch.setattr(server._pool, "get_master_address", search)
        monkeypatch.setattr(server, "_made", SimpleNamespace(execute_command=lambda *_: "answered"))
        seen = [server.call(("DLOCK.HELD", "k")) for _ in range(3)]
    else:
        seen = asyncio.run(work(redis.asyncio.sentinel.Sentinel([("localhost", 1)]).master_for("primary")))
    assert seen == ["answered"] * 3 and asked == [1000.0]


def test_a_connection_that_another_task_has_ended_is_no_mistake():
    """The library raises an AttributeError then. What was said in that batch is said again."""

    class Ended:
        @contextlib.asynccontextmanager
        async def pipeline(self, transaction):
            raise AttributeError("'NoneType' object has no attribute 'write'")
            yield

    async def work():
        server = _library.AsyncServer(redis.asyncio.Redis(), 3.0)
        server._client = Ended()
        await server.pipe([("DLOCK.RELEASE", "k", "o")])

    with pytest.raises(redis.ConnectionError):
        asyncio.run(work())


def test_a_session_has_a_bound_of_its_own():
    class Silent(_library.AsyncServer):
        async def _ask(self, words):
            await asyncio.sleep(60)

    async def work():
        await asyncio.wait_for(Silent(redis.asyncio.Redis(), 60.0).call(("DLOCK.SESSION", "k"), 0.05), 10)

    with pytest.raises(redis.TimeoutError):
        asyncio.run(work())


def test_several_keys_wait_for_a_turn_at_their_own_server():
    class Nodes(_library.AsyncServer):
        def server(self, key):
            return "theirs" if key == b"k" else "another"

        async def _ask(self, words):
            return "answered"

    async def work():
        nodes = Nodes(redis.asyncio.Redis(), 0.2)
        nodes._turns["another"] = asyncio.Semaphore(0)
        return await nodes.call(("DLOCK.MACQUIRE", 2, b"k", b"l"))

    assert asyncio.run(work()) == "answered"
