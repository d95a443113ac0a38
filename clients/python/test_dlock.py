"""The tests that every language has, by the same names (see ../README.md), and what a program of Python relies on."""

import concurrent.futures
import functools
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref

import pytest
import redis
import redis.asyncio

import dlock_redis as dlock
from stage import KEPT, KINDS, LONG, PATIENCE, Tasks, client, until

everywhere = pytest.mark.parametrize("place", ["single", "cluster"], indirect=True)
alone = pytest.mark.parametrize("place", ["single"], indirect=True)
in_cluster = pytest.mark.parametrize("place", ["cluster"], indirect=True)
replicated = pytest.mark.parametrize("place", ["cluster", "pair"], indirect=True)


@everywhere
def test_counts_to_a_thousand(server, locks):
    count, data = f"{server.key}:count", server.client

    def work():
        for _ in range(20):
            with locks.lock(server.key):
                data.set(count, int(data.get(count) or 0) + 1)

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        for done in [pool.submit(work) for _ in range(50)]:
            done.result()
    assert int(data.get(count)) == 1000
    server.await_gone()


@everywhere
def test_wait_longer_than_the_time_out(server, make):
    server.hold()
    first = make(socket_timeout=0.4).start(server.key)
    connection = until(lambda: server.queue() and server.info()["queue"][0]["client"], "it waits")
    second = make().start(server.key)
    server.await_queued(2)
    until(lambda: server.info()["queue"][0]["waited-ms"] > 2000, "it has waited for five time-outs")
    # The library's time-out has cut nothing: between two slices nobody may be there, but no other connection is.
    assert until(lambda: server.info()["queue"][0]["client"], "it waits") == connection
    in_line = server.queue()
    assert server.hand_over() == in_line[0]
    hold = first.result(PATIENCE)
    assert hold.owner == in_line[0] and server.info()["holders"][0]["holds"] == 1
    hold.release()
    second.result(PATIENCE).release()
    server.await_gone()


@everywhere
def test_cancelled_wait(server, locks, make):
    server.hold()
    others = make()
    after = []

    def ready():
        server.await_queued(1)
        after.append(others.start(server.key))
        server.await_queued(2)
        return True

    assert locks.cancel_when(ready, server.key) is None
    server.await_queued(1)
    next_owner = server.hand_over()
    hold = after[0].result(PATIENCE)
    assert hold.owner == next_owner
    hold.release()
    server.await_gone()


@everywhere
def test_cancel_at_the_grant(server, locks):
    had = 0
    for i in range(30):
        server.hold()

        def ready():
            server.await_queued(1)
            threading.Thread(target=server.hand_over).start()
            time.sleep(random.uniform(0, 0.002))  # so that all orders come about
            return True

        hold = locks.cancel_when(ready, server.key)
        if hold:
            had += 1
            hold.release()
        until(lambda: server.owners() != ["other"], "it is handed over")
        server.await_gone()


WAITER = """
import sys, redis, dlock_redis as dlock, stage
locks = dlock.Locks(stage.client(sys.argv[1]), **stage.SETTINGS)
hold = locks.acquire(sys.argv[2], ephemeral=sys.argv[3] == "ephemeral")
sys.stdin.read()
"""


def process(place, key, how):
    here = os.path.dirname(os.path.abspath(__file__))
    return subprocess.Popen([sys.executable, "-c", WAITER, place, key, how], cwd=here, stdin=subprocess.PIPE)


def kill(child):
    child.send_signal(signal.SIGKILL)
    child.wait()


@alone
def test_killed_waiter(server, locks):
    server.hold()
    child = process(server.place, server.key, "")
    server.await_queued(1)
    after = locks.start(server.key)
    server.await_queued(2)
    kill(child)
    until(lambda: server.info()["queue"][0]["kind"] in ("absent", "ticket") and
          (server.info()["queue"][0]["client"] == 0 or server.info()["queued"] == 1), "the server has noticed")
    server.hand_over()
    hold = after.result(PATIENCE)
    assert server.owners() == [hold.owner] and server.queue() == []
    hold.release()
    server.await_gone()


@alone
def test_killed_at_the_grant(server, locks):
    for delay in [0, 0.0002, 0.001]:
        server.hold()
        child = process(server.place, server.key, "")
        server.await_queued(1)
        after = locks.start(server.key)
        server.await_queued(2)
        killer = threading.Thread(target=lambda: (time.sleep(delay), kill(child)))
        killer.start()
        server.hand_over()
        killer.join()
        # It had the lock for no longer than its first lease, or its place for no longer than its claim.
        hold = after.result(PATIENCE)
        assert server.owners() == [hold.owner] and server.queue() == []
        hold.release()
        server.await_gone()


@everywhere
@pytest.mark.parametrize("how", ["ephemeral", ""])
def test_killed_holder(server, locks, how):
    messages = server.messages()
    child = process(server.place, server.key, how)
    until(lambda: server.owners(), "it is held")
    # The child has confirmed it: else it would end by its first lease.
    token = until(lambda: server.info()["holders"][0]["auto"] and server.info()["holders"][0]["token"], "it is kept")
    after = locks.start(server.key)
    server.await_queued(1)
    kill(child)
    assert messages() == f"{'closed' if how else 'expired'} {token}"
    after.result(PATIENCE).release()
    server.await_gone()


@alone
def test_keeps_it_for_ten_leases(server):
    clients = [kind("single") for kind in KINDS.values()]  # both at once, since it takes its time
    holds = [client.lock(f"{server.key}:{i}") for i, client in enumerate(clients)]
    for hold in holds:
        for end in range(1, 11):  # one by one: `until` has no patience for ten of them
            until(lambda: server.info(hold.key)["holders"][0]["held-ms"] > end * KEPT * 1000, f"lease {end} has passed")
        assert server.info(hold.key)["holders"][0]["auto"] == 1
        assert server.info(hold.key)["holders"][0]["token"] == hold.token
        assert not hold.lost.is_set()
        assert hold.guard("SET", f"{server.key}:x", 1)
        hold.release()
        server.await_gone(hold.key)
    for one in clients:
        one.close()


@everywhere
@pytest.mark.parametrize("loss", [["DLOCK.FORCERELEASE"], ["DEL"]], ids=["forced_release", "deleted_key"])
def test_told_of(server, locks, loss):
    told = []
    hold = locks.lock(server.key, on_lost=told.append)
    server.ask(*loss, server.key)
    assert hold.lost.wait(PATIENCE)
    until(lambda: told, "the callback has come")
    with pytest.raises(dlock.NotHeld):
        hold.release()
    assert len(told) == 1 and told[0].token == hold.token


@alone
def test_an_upgrade_is_refused_at_once(server, locks):
    """A reader who wants to write waits for itself."""
    with locks.lock(server.key, owner="me", shared=True) as outer:
        with pytest.raises(dlock.Deadlock, match="give it back first"):
            locks.lock(server.key, owner="me")
        assert not outer.lost.is_set() and server.owners() == [outer.owner]
    server.await_gone()


@alone
def test_an_owner_begins_with_host_and_process(server, locks):
    with locks.lock(server.key, owner="me") as hold:
        assert hold.owner.startswith(f"{socket.gethostname()}/{os.getpid()}/me#") and server.owners() == [hold.owner]
        with locks.lock(server.key, owner="me", shared=True) as inner:  # what it has is enough for that, too
            assert (inner.token, inner.owner) == (hold.token, hold.owner)
            assert server.info()["holders"][0]["holds"] == 1  # it is counted here
    server.await_gone()


@alone
@pytest.mark.stops("single")
def test_wait_over_a_pause(server, locks):
    locks.lock(server.key).release()  # it is connected
    server.ask("CLIENT", "PAUSE", 600_000, "WRITE")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            # The server answers nothing, and the caller gets an answer all the same.
            with pytest.raises(dlock.LockTimeout) as told:
                pool.submit(locks.try_lock, server.key, 0.1).result(PATIENCE)
            assert "does not answer" in str(told.value.__cause__)
        finally:
            server.ask("CLIENT", "UNPAUSE")
    server.await_gone()


@everywhere
def test_an_error_of_the_work_comes_through(server, locks):
    with pytest.raises(ZeroDivisionError), locks.lock(server.key):  # and not that of giving back
        server.ask("DLOCK.FORCERELEASE", server.key)
        raise ZeroDivisionError


@everywhere
def test_many_over_several_slots(server, locks):
    keys = [f"{{{i}{server.key[1:-5]}}}m" for i in range(4)]

    def work(keys):
        for _ in range(15):
            with locks.many(keys) as holds:
                assert len({hold.token for hold in holds.values()}) == len(keys)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, keys), pool.submit(work, keys[::-1])]:
            done.result(PATIENCE)
    server.hold("other", keys[2])
    with pytest.raises(dlock.LockTimeout), locks.many(keys, timeout=5):
        pass
    assert [server.owners(key) for key in keys] == [[], [], ["other"], []]


@everywhere
def test_a_thousand_waits_on_one_connection(server, make):
    tasks = make(lease=LONG)
    if not isinstance(tasks, Tasks):
        pytest.skip("a thousand threads are another test")
    # On a busy machine a thousand tasks may ask again or confirm late: place and grant are to be there all the same.
    settings = tasks.locks._core.settings
    settings.first, settings.queue_grace = LONG, 60.0
    settings.reply_timeout = 30.0  # nor is the connection for messages given up, for which some would wait on their own

    async def listen():
        async with tasks.locks.lock(server.key):
            pass

    # Tasks that wait for the subscription would ask after those that come when it is there.
    tasks.run(listen())
    server.hold()
    served = []

    async def work(i):
        async with tasks.locks.lock(server.key):
            served.append(i)

    works = [tasks.submit(work(i)) for i in range(1000)]
    server.await_queued(1000)
    assert len({place["client"] for place in server.info()["queue"]}) == 1
    server.hand_over()
    for work in works:
        work.result(2 * PATIENCE)
    assert served == list(range(1000))
    server.await_gone()


@alone
def test_a_hold_keeps_its_locks_alive(server, make):
    """`return Locks(client).acquire(key)`: nothing else refers to the Locks."""
    locks = make(lease=KEPT)
    hold, kind, tasks = locks.lock(server.key), type(locks.locks), locks if isinstance(locks, Tasks) else None
    gone = weakref.ref(locks.locks)
    made, locks.locks = locks.locks, kind(client("single", redis.asyncio if tasks else redis))
    del made
    gc.collect()
    until(lambda: server.info()["holders"][0]["held-ms"] > 2000 * KEPT, "what nobody keeps has ended")
    assert not hold.lost.is_set() and gone() is not None
    hold.release()
    server.await_gone()


@alone
def test_a_forgotten_hold_is_left_to_its_lease(server, make, caplog):
    """What it protects may still run."""
    locks = make(lease=KEPT)
    hold = locks.lock(server.key, owner="me")
    token = hold.token
    if isinstance(locks, Tasks):
        hold.forget()
    del hold
    gc.collect()
    until(lambda: "forgotten" in caplog.text, "it is told")

    def untied():
        (holder,) = server.info()["holders"]
        assert holder["token"] == token
        return not holder["auto"]

    until(untied, "the server renews it no more")
    assert locks.try_lock(server.key, owner="me") is None  # nor does its owner have it again
    with locks.lock(server.key, owner="me") as hold:
        assert hold.token > token


def generates():
    yield


async def generates_later():
    yield


async def runs_later():
    pass


class Later:
    async def __call__(self):
        pass


@alone
def test_a_decorator_refuses_what_returns_before_its_work(server, locks):
    lock, tasks = locks.locks.lock(server.key), isinstance(locks, Tasks)
    refused = [generates, generates_later, functools.partial(generates)]
    for work in refused if tasks else [*refused, runs_later, functools.partial(runs_later), Later()]:
        with pytest.raises(TypeError, match="before the work"):
            lock(work)

    async def hands_on():
        return generates()

    returns = [lock(hands_on)] if tasks else [lock(lambda: runs_later()), lock(lambda: generates())]
    for work in returns:
        with pytest.raises(TypeError, match="before the work"):
            locks.run(work()) if tasks else work()
    server.await_gone()
    if tasks:
        assert locks.run(lock(runs_later)()) is None
