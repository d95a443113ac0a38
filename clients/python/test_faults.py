"""Whatever does not answer, may not, or is over: a hold is kept or told lost, and a call ends in its time."""

import asyncio
import json
import os
import threading
import time

import pytest
import redis

import dlock_redis as dlock
from stage import KEPT, LEASE, PATIENCE, Proxy, Server, Tasks, addresses, client, close, frozen, until
from test_dlock import alone, everywhere, in_cluster

LATE = 10.0  # no call that keeps its time takes so long, however busy the machine; one that does not takes longer


def raises(error, call, *arguments, within=LATE, **options):
    began = time.monotonic()
    with pytest.raises(error) as told:
        call(*arguments, **options)
    assert time.monotonic() - began < within
    return told.value


@in_cluster
def test_a_hung_node_stops_no_other(server, make):
    locks = make(hang_timeout=KEPT)  # for longer nothing is kept but by us
    locks.locks._core.settings.reply_timeout = KEPT  # who waits for the hung one keeps nothing else in time
    keys = [f"{{{i}{server.key[1:-5]}}}lock" for i in range(20)]
    holds = [locks.lock(key) for key in keys]
    hung = server.node(keys[0])
    port = hung.connection_pool.connection_kwargs["port"]
    dead = [hold for key, hold in zip(keys, holds) if server.client.get_node_from_key(key).port == port]
    healthy = [(key, hold) for key, hold in zip(keys, holds) if hold not in dead]
    assert dead and healthy
    with frozen(hung):
        for hold in dead:
            assert hold.lost.wait(PATIENCE)
        # They would have ended by now.
        until(lambda: server.info(healthy[0][0])["holders"][0]["held-ms"] > 13_000, "what nobody keeps has ended")
        for key, hold in healthy:
            assert not hold.lost.is_set() and server.info(key)["holders"][0]["token"] == hold.token
    for key, hold in healthy:
        hold.release()


@in_cluster
def test_a_map_that_nobody_tells_stops_no_keeper(server, make, monkeypatch):
    locks, answered = make(hang_timeout=3 * KEPT), threading.Event()
    core, stuck = locks.locks._core, []
    core.settings.reply_timeout = KEPT  # who waits so long for the map keeps nothing in time
    hold = locks.lock(server.key)
    if isinstance(locks, Tasks):
        async def hangs(*_, **__):
            stuck.append(True)
            while not answered.is_set():
                await asyncio.sleep(0.01)
    else:
        def hangs(*_, **__):
            stuck.append(True)
            answered.wait(PATIENCE)
    round_ = core._round

    async def fails(node):
        if stuck:
            return await round_(node)
        raise redis.ConnectionError("a round has failed")

    monkeypatch.setattr(type(core.client.nodes_manager), "initialize", hangs)
    monkeypatch.setattr(core, "_round", fails)
    try:
        until(lambda: stuck, "the map is asked for")
        until(lambda: server.info()["holders"][0]["held-ms"] > 2 * KEPT * 1000, "two leases have passed")
        assert not hold.lost.is_set()
    finally:
        answered.set()
    hold.release()


@everywhere
@pytest.mark.stops("single")
def test_the_end_is_told_by_the_clock(server, make):
    locks = make(lease=LEASE)
    told, stuck = [], threading.Event()
    hold = locks.lock(server.key, on_lost=told.append)
    others = [locks.lock(f"{server.key}:{i}") for i in range(3)]
    if not isinstance(locks, Tasks):
        others.append(locks.lock(f"{server.key}:stuck", on_lost=lambda _: stuck.wait(PATIENCE)))
    with frozen(server.node(server.key)):
        for one in [hold, *others]:
            assert one.lost.wait(LATE)
        until(lambda: told, "the callback has come")
    stuck.set()
    assert len(told) == 1


@alone
def test_silent_messages_cost_no_more_than_the_time_out(server, make):
    with Proxy(addresses("DLOCK_SINGLE")[0]) as path:
        path.freeze("SUBSCRIBE")
        host, port = path.address
        locks = make(host=host, port=port)
        server.hold()
        began = time.monotonic()
        # Longer than a stall of a busy machine, and over before the subscription is given up.
        assert locks.try_lock(server.key, 2.5) is None
        assert time.monotonic() - began < LATE
        wait = locks.start(server.key)
        server.await_tickets(1)
        next_owner = server.hand_over()
        with wait.result(PATIENCE) as hold:
            assert next_owner in (None, hold.owner)
    server.await_gone()


@in_cluster
def test_a_wrong_password_in_a_cluster_is_told_at_once(server, make):
    user = server.key.strip("{}")
    nodes = [redis.Redis(*address) for address in addresses("DLOCK_CLUSTER")]
    for node in nodes:
        node.execute_command("ACL", "SETUSER", user, "on", ">word", "~*", "&*", "+@all")
    locks = make(username=user, password="word")
    for node in nodes:
        node.execute_command("ACL", "SETUSER", user, "resetpass", ">other")
        node.execute_command("ACL", "DELUSER", user)
    error = raises(redis.exceptions.AuthenticationError, locks.lock, server.key)
    assert "invalid username-password pair" in str(error)


@pytest.fixture
def user(server):
    """Makes a user who may not do everything."""
    name = server.key.strip("{}")
    nodes = [server.client]
    if server.place == "cluster":
        nodes = [redis.Redis(*address) for address in addresses("DLOCK_CLUSTER")]

    def make(rule):
        for node in nodes:
            node.execute_command("ACL", "SETUSER", name, "on", ">word", "~*", "&*", "+@all", rule)
        return {"username": name, "password": "word"}

    yield make
    for node in nodes:
        node.execute_command("ACL", "DELUSER", name)


@alone
def test_an_orphan_ends_and_the_others_are_kept(server, make):
    locks, orphan = make(), f"{server.key}:orphan"
    hold = locks.lock(server.key)
    before = server.info()["holders"][0]["client"]
    link = next(iter(locks.locks._core.nodes.values())).link
    words = ("DLOCK.ACQUIRE", orphan, "nobody", int(KEPT * 1000), "AUTO", 600_000)
    if isinstance(locks, Tasks):
        locks.loop.call_soon_threadsafe(link.post, words)
    else:
        link.post(words)
    until(lambda: server.owners(orphan), "the link has a tie that the client knows nothing of")
    server.await_gone(orphan)
    until(lambda: server.info()["holders"][0]["client"] not in (0, before), "the other is tied to another connection")
    assert not hold.lost.is_set()
    hold.release()
    server.await_gone()


@alone
def test_what_others_tie_is_tied_again(server, make):
    locks = make()
    hold = locks.lock(server.key)
    # Somebody stops the renewals: RENEW tells what has become of it.
    server.ask("DLOCK.RENEW", server.key, hold.owner, int(KEPT * 1000))
    until(lambda: server.info()["holders"][0]["held-ms"] > 1.5 * KEPT * 1000, "its lease would have ended")
    assert server.info()["holders"][0]["auto"] == 1 and not hold.lost.is_set()
    server.client.rename(server.key, f"{server.key}:new")
    assert hold.lost.wait(PATIENCE)
    assert server.owners(f"{server.key}:new") == [hold.owner]
    server.ask("DLOCK.FORCERELEASE", f"{server.key}:new")


def in_child(work):
    """What work() gives in a child of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:  # whatever happens: a child that goes on would be a second pytest
            try:
                result = work()
            except BaseException as error:
                result = repr(error)
            os.write(writer, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as result:
        value = json.loads(result.read() or '"it was killed"')
    os.waitpid(child, 0)
    return value


def error_of(call, *arguments):
    try:
        return repr(call(*arguments))
    except dlock.DLockError as error:
        return type(error).__name__


@everywhere
def test_a_child_keeps_what_it_takes(server, place):
    locks = dlock.Locks(client(place), lease=8.0, hang_timeout=8.0)
    hold, other = locks.acquire(server.key), f"{server.key}:child"

    def child():
        seen = [hold.lost.is_set(), error_of(hold.release)]
        there = Server(place)
        with locks.lock(other, timeout=PATIENCE) as taken:
            until(lambda: there.info(other)["holders"][0]["held-ms"] > 17000, "what nobody keeps has ended")
            seen.append(taken.lost.is_set())
        return seen

    assert in_child(child) == [True, "DLockError", False]
    # The parent's is as it was.
    assert not hold.lost.is_set() and server.info()["holders"][0]["token"] == hold.token
    hold.release()
    server.await_gone()
    server.await_gone(other)


@everywhere
def test_another_loop_takes_nothing(server, place):
    locks = []

    async def make():
        locks.append(dlock.AsyncLocks(client(place, redis.asyncio)))
        async with locks[0].lock(server.key):
            pass
        return "taken"

    async def take():
        try:
            async with locks[0].lock(server.key):
                return "taken"
        except dlock.DLockError as error:
            return type(error).__name__

    async def take_and_end():
        return [await take(), await asyncio.to_thread(lambda: in_child(lambda: asyncio.run(take())))]

    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(make()) == "taken"
    assert asyncio.run(take_and_end()) == ["DLockError", "DLockError"]
    loop.run_until_complete(locks[0].aclose())
    loop.run_until_complete(close(locks[0].client))
    loop.close()
    server.await_gone()
