"""A lock over several masters: the tests that every language has, by the same names. See clients/DESIGN.md."""

import concurrent.futures
import contextlib
import random
import socket
import time

import pytest
import redis

from dlock_redis import quorum
from stage import PATIENCE, Master, Proxy, addresses, interrupted_when, until

LEASE = 600
BOUND = 3  # a client waits this long for one that hangs; all others have as long as they need


@pytest.fixture
def masters():
    key = f"{random.getrandbits(48):x}:quorum"
    return [Master(address, key) for address in addresses("DLOCK_MASTERS")]


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield pool


@contextlib.contextmanager
def listener():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as one:
        yield one.getsockname()


@pytest.fixture
def dead():
    """Addresses where nobody listens."""
    with listener() as one, listener() as another:
        pass
    return [redis.Redis(*one), redis.Redis(*another)]


@pytest.fixture
def hung():
    """It accepts and never answers."""
    with listener() as address:
        yield redis.Redis(*address)


def locks(*masters, reply_timeout=PATIENCE):
    return quorum.Quorum([one.client if isinstance(one, Master) else one for one in masters], reply_timeout)


def held(master, owner):
    return master.ask("DLOCK.HELD", master.key, owner)


def check_left(hold, masters):
    """The client never believes longer than a master."""
    for _ in range(20):
        for master in masters:
            server_s = held(master, hold.owner)[2] / 1000
            assert 0 < hold.left() <= server_s  # asked last, so that no time passes in its favour


@pytest.mark.parametrize("where", ["the third is dead", "the third hangs", "the first is dead"])
def test_quorum_a_majority_is_enough(masters, dead, hung, where):
    a, b, _ = masters
    three = {"the third is dead": [a, b, dead[0]], "the third hangs": [a, b, hung]}.get(where, [dead[0], a, b])
    client, other = (locks(*three, reply_timeout=BOUND) for _ in range(2))
    hold = client.acquire(a.key, LEASE, PATIENCE)
    assert hold.tokens == [held(one, hold.owner)[0] if one in (a, b) else None for one in three]
    check_left(hold, (a, b))
    assert other.acquire(a.key, LEASE) is None
    with pytest.raises(quorum.LockTimeout):
        other.lock(a.key, LEASE)
    assert a.owners() == b.owners() == [hold.owner]
    hold.release()
    assert held(a, hold.owner) is held(b, hold.owner) is None
    assert hold.left() == 0 and not hold.renew(LEASE)
    with other.lock(a.key, LEASE, PATIENCE) as second:
        assert a.owners() == b.owners() == [second.owner] != [hold.owner]
    assert a.owners() == b.owners() == []


def test_quorum_a_minority_is_not(masters, dead):
    a, b, c = masters
    with pytest.raises(quorum.Unreachable) as told:
        locks(a, *dead).acquire(a.key, LEASE)
    for one in dead:
        assert str(one.connection_pool.connection_kwargs["port"]) in str(told.value)
    assert a.ask("DLOCK.INFO", a.key) is None
    for one in (b, c):
        one.hold()
    assert locks(a, b, c).acquire(a.key, LEASE, 1) is None
    assert a.ask("DLOCK.INFO", a.key) is None
    assert b.owners() == c.owners() == ["other"]
    # Who refuses has no vote either, and says why.
    for one in (b, c):
        one.client.set(one.key, "no lock")
    with pytest.raises(quorum.Unreachable, match="WRONGTYPE.*WRONGTYPE"):
        locks(a, b, c).acquire(a.key, LEASE)
    assert a.ask("DLOCK.INFO", a.key) is None


def test_quorum_waits_in_one_queue(masters, pool):
    a = masters[0]

    def first():
        hold = locks(*masters).acquire(a.key, LEASE, PATIENCE)
        ends = [one.client.pexpiretime(one.key) for one in masters]
        if ends[0] - max(ends[1:]) > 2:
            return hold
        hold.release()  # an answer has taken longer than the leases are apart

    hold = until(first, "the first master's lease ends last: who is next there finds the others free")
    waits = []
    for number, client in enumerate([locks(*masters), locks(*masters, reply_timeout=3.5)]):
        waits.append(pool.submit(client.acquire, a.key, LEASE, 2 * PATIENCE))
        a.await_queued(number + 1)
    in_line = a.queue()
    assert len(set(in_line + [hold.owner])) == 3
    assert [one.queue() for one in masters[1:]] == [[], []]
    until(lambda: a.info()["queue"][1]["waited-ms"] > 5000, "a wait has outlasted the bound for other answers")
    assert a.queue() == in_line
    hold.release()
    hold = waits[0].result(2 * PATIENCE)
    assert hold.owner == in_line[0]
    assert hold.tokens == [held(one, hold.owner)[0] for one in masters]
    hold.release()
    hold = waits[1].result(2 * PATIENCE)
    assert hold.owner == in_line[1]
    assert a.owners() == [hold.owner] and hold.tokens.count(None) < 2
    hold.release()
    a.await_gone()
    # The first one gets the release last: a token tells when it was granted, and all these servers have one clock.
    hold = locks(*masters).acquire(a.key, LEASE, PATIENCE)
    for one in masters:
        one.ask("DLOCK.SESSION", one.key, "nobody", 60_000)
        one.ask("DLOCK.FAIRACQUIRE", one.key, "next", 600_000, "BLOCK", 0, "IN", "nobody")
    hold.release()
    first, *others = [held(one, "next")[0] for one in masters]
    assert first > max(others)
    for one in masters:
        one.hand_over("next")


def test_quorum_renews_and_notices_the_loss(masters):
    a, b, c = masters
    hold = locks(a, b, c).acquire(a.key, 5, PATIENCE)
    tokens = hold.tokens
    for _ in range(7):
        until(lambda: hold.left() < 3.5, "a third of the lease has passed")
        assert hold.renew(5)
    assert a.info()["holders"][0]["held-ms"] > 10_000
    assert hold.renew(LEASE)
    assert hold.tokens == tokens == [held(one, hold.owner)[0] for one in masters]
    check_left(hold, masters)
    before = hold.deadline
    for one in (b, c):
        one.ask("DLOCK.FORCERELEASE", one.key)
    assert not hold.renew(2 * LEASE)
    assert hold.deadline == before
    with pytest.raises(redis.ResponseError, match="FENCED"):
        b.ask("DLOCK.GUARD", b.key, tokens[1], "SET", f"{b.key}:x", 1)
    # A lease that was made shorter at a few is not believed to be the old one.
    assert not hold.renew(LEASE / 10)
    check_left(hold, [a])
    hold.release()
    assert [one.owners() for one in masters] == [[], [], []]


def test_quorum_is_left_when_cancelled(masters, hung, pool):
    a, b, c = masters
    hold = locks(a, b, c).acquire(a.key, LEASE, PATIENCE)
    after = []

    def both_wait():
        a.await_queued(1)
        after.append(pool.submit(locks(a, b, c).acquire, a.key, LEASE, 2 * PATIENCE))
        a.await_queued(2)
        return True

    cancelled = locks(a, b, c)
    assert interrupted_when(both_wait, lambda: cancelled.acquire(a.key, LEASE, 2 * PATIENCE)) is None
    a.await_queued(1)
    hold.release()
    with after[0].result(2 * PATIENCE) as hold:
        assert a.owners() == b.owners() == c.owners() == [hold.owner]
    # Some have granted it already: the client releases it there.
    asked = locks(a, b, hung)
    assert interrupted_when(lambda: until(b.owners, "it is held"), lambda: asked.acquire(a.key, LEASE)) is None
    assert a.owners() == b.owners() == []


@pytest.mark.parametrize("silent, others", [(0, (1, 2)), (0, (0, 1, 2)), (1, (2,))],
                         ids=["the first", "a queue at the first", "a split vote"])
def test_quorum_gives_back_where_nobody_answered(masters, silent, others):
    for number in others:
        masters[number].hold()
    with Proxy(addresses("DLOCK_MASTERS")[silent]) as path:
        # The request is on its way, and arrives when no client waits for it any longer.
        path.freeze("DLOCK.ACQUIRE")
        three = [redis.Redis(*path.address) if one is masters[silent] else one for one in masters]
        with contextlib.suppress(quorum.Unreachable):  # on a busy machine others may also be silent
            assert locks(*three, reply_timeout=0.3).acquire(masters[0].key, LEASE, 1) is None
        assert path.is_frozen()
        path.thaw()
        path.await_quiet()
    for number in others:
        masters[number].hand_over()
    assert [master.ask("DLOCK.INFO", master.key) for master in masters] == [None, None, None]


def test_quorum_asks_the_silent_one_last(masters):
    a, b, c = masters
    held = []

    def asks_it_last():
        client = locks(redis.Redis(*path.address), b, c, reply_timeout=0.3)
        with contextlib.suppress(quorum.Unreachable):  # on a busy machine the second may pass, and b may also be silent
            for _ in range(2):
                held.clear()
                with client.lock(a.key, LEASE, 5) as hold:
                    owner = hold.owner
            return held == [[owner], [owner]]

    with Proxy(addresses("DLOCK_MASTERS")[0], lambda: held.extend([b.owners(), c.owners()])) as path:
        path.freeze()
        until(asks_it_last, "the others have granted it when the silent one is asked")


def test_quorum_ends_while_the_machine_is_suspended(masters, monkeypatch):
    a, *_ = masters
    hold = locks(*masters).lock(a.key, LEASE)
    clock = time.clock_gettime
    with monkeypatch.context() as patch:
        patch.setattr(time, "clock_gettime", lambda which: clock(which) + LEASE * (which == time.CLOCK_BOOTTIME))
        assert hold.left() == 0
    assert hold.left() > 0
    hold.release()
