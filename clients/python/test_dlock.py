"""The tests that every language has, by the same names (clients/DESIGN.md), and what a program of Python relies on."""

import concurrent.futures
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
from stage import KEPT, LONG, PATIENCE, Tasks, client, until

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
def test_a_burst_at_the_start(server, locks, caplog):
    """The first calls of a client come at once. Each finds the server of its key, and ends no other's connection."""
    for hold in [locks.start(f"{server.key}:{number}") for number in range(50)]:
        hold.result(PATIENCE).release()
    assert not caplog.records


@everywhere
def test_wait_longer_than_the_time_out(server, make):
    server.hold()
    first = make(socket_timeout=0.4).start(server.key)
    server.await_queued(1)
    second = make().start(server.key)
    server.await_queued(2)
    until(lambda: server.info()["queue"][0]["waited-ms"] > 2000, "it has waited for five time-outs")
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
hold = locks.acquire(sys.argv[2])
sys.stdin.read()
"""


def process(place, key):
    here = os.path.dirname(os.path.abspath(__file__))
    return subprocess.Popen([sys.executable, "-c", WAITER, place, key], cwd=here, stdin=subprocess.PIPE)


def kill(child):
    child.send_signal(signal.SIGKILL)
    child.wait()


@alone
def test_killed_waiter(server, locks):
    server.hold()
    child = process(server.place, server.key)
    server.await_queued(1)
    after = locks.start(server.key)
    server.await_queued(2)
    kill(child)
    until(lambda: server.queue()[1:] == [] or server.info()["queue"][0]["kind"] == "absent", "the server has noticed")
    server.hand_over()
    hold = after.result(PATIENCE)
    assert server.owners() == [hold.owner] and server.queue() == []
    hold.release()
    server.await_gone()


@alone
def test_killed_at_the_grant(server, locks):
    for delay in [0, 0.0002, 0.001]:
        server.hold()
        child = process(server.place, server.key)
        server.await_queued(1)
        after = locks.start(server.key)
        server.await_queued(2)
        killer = threading.Thread(target=lambda: (time.sleep(delay), kill(child)))
        killer.start()
        server.hand_over()
        killer.join()
        # It had the lock for no longer than its lease, or its place for no longer than the server's claim window.
        hold = after.result(PATIENCE)
        assert server.owners() == [hold.owner] and server.queue() == []
        hold.release()
        server.await_gone()


@everywhere
def test_killed_holder(server, locks):
    messages = server.messages()
    child = process(server.place, server.key)
    until(lambda: server.owners(), "it is held")
    token = until(lambda: server.info()["holders"][0]["alive"] and server.info()["holders"][0]["token"], "it is kept")
    after = locks.start(server.key)
    server.await_queued(1)
    kill(child)
    assert messages() == f"expired {token}"
    after.result(PATIENCE).release()
    server.await_gone()


@everywhere
def test_on_lost(server, locks):
    told = []
    hold = locks.lock(server.key, on_lost=told.append)
    server.ask("DLOCK.FORCERELEASE", server.key)
    assert hold.lost.wait(PATIENCE)
    until(lambda: told, "the callback has come")
    with pytest.raises(dlock.NotHeld):
        hold.release()
    assert len(told) == 1 and told[0].token == hold.token


@alone
def test_an_upgrade_is_refused_at_once(server, locks):
    """A reader who wants to write waits for itself."""
    with locks.lock(server.key, actor="me", shared=True) as outer:
        with pytest.raises(dlock.Deadlock):
            locks.lock(server.key, actor="me")
        assert not outer.lost.is_set() and server.owners() == [outer.owner]
    server.await_gone()


@alone
def test_an_owner_begins_with_host_and_process_and_is_never_used_again(server, locks):
    owners = set()
    for _ in range(3):
        with locks.lock(server.key, actor="me") as hold:
            assert hold.owner.startswith(f"{socket.gethostname()}/{os.getpid()}/") and "/me#" in hold.owner
            assert server.owners() == [hold.owner]
            owners.add(hold.owner)
    assert len(owners) == 3
    server.await_gone()


@alone
@pytest.mark.parametrize("call", ["lock", "acquire", "try_lock"])
def test_old_names_of_options(server, call):
    with dlock.Locks(client("single")) as locks, pytest.warns(FutureWarning) as told:
        taken = getattr(locks, call)(server.key, timeout=PATIENCE, owner="me")
        with taken as hold:
            assert "/me#" in hold.owner
    told = [one for one in told if one.category is FutureWarning]
    assert {str(one.message).split()[0] for one in told} == {"timeout", "owner"}
    assert {one.filename for one in told} == {__file__}  # who uses the old name is shown


@pytest.mark.parametrize("call", ["lock", "acquire", "try_lock"])
def test_options_that_are_refused(call):
    ask = getattr(dlock.Locks(redis.Redis()), call)
    for wait in (0.0, 5) if call != "try_lock" else (None, 5):
        with pytest.raises(TypeError, match="old name of blocking_timeout; redis-py's timeout is lease"):
            ask("k", blocking_timeout=wait, timeout=10)
    for options, text in (
        ({"blocking": False}, "^blocking is no option of a lock: use try_lock$"),
        ({"shard": True}, "^shard is no option of a lock$"),
    ):
        with pytest.raises(TypeError, match=text):
            ask("k", **options)


def test_a_lease_is_longer_than_the_clocks_margin():
    """Else the lock would never be held."""
    for lease in (0.1, 0.05):
        with pytest.raises(ValueError, match="^clock_margin must be shorter than the lease"):
            dlock.Locks(redis.Redis(), lease=lease)
        with pytest.raises(ValueError, match="^lease must be longer than clock_margin"):
            dlock.Locks(redis.Redis()).lock("k", lease=lease)
    dlock.Locks(redis.Redis(), lease=0.05, clock_margin=0).lock("k", lease=0.01)


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
            assert not told.value.taken and isinstance(told.value.__cause__, redis.RedisError)
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
    with pytest.raises(dlock.LockTimeout) as told, locks.many(keys, blocking_timeout=5):
        pass
    assert told.value.taken
    assert [server.owners(key) for key in keys] == [[], [], ["other"], []]


@everywhere
def test_a_thousand_waits_in_one_session(server, make):
    tasks = make(lease=LONG, reply_timeout=PATIENCE)
    if not isinstance(tasks, Tasks):
        pytest.skip("a thousand threads are another test")
    server.hold()
    served = []

    async def work(i):
        async with tasks.locks.lock(server.key):
            served.append(i)

    works = [tasks.submit(work(i)) for i in range(1000)]
    server.await_queued(1000)
    order = [int(owner.rpartition("/")[2]) for owner in server.queue()]
    server.hand_over()
    for work in works:
        work.result(2 * PATIENCE)
    assert [i + 1 for i in served] == order
    server.await_gone()


@everywhere
def test_a_closed_client_keeps_no_session(server, make):
    locks = make(hang_timeout=2.0 * PATIENCE)
    hold = locks.lock(server.key)
    until(lambda: server.info()["holders"][0]["alive"], "its session is kept")
    locks.end()
    assert hold.lost.is_set()
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
