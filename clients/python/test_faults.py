"""Servers that do not answer or refuse: a hold is kept or reported lost, and a call ends in its time."""

import asyncio
import gc
import random
import threading
import time

import pytest
import redis

import dlock_redis as dlock
from stage import KEPT, LEASE, PATIENCE, Server, Tasks, addresses, client, close, error_of, frozen, in_child, until
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
    # A client that waits for the hung one keeps nothing else in time. (asyncio's RENEW has to wait for it once.)
    locks = make(hang_timeout=KEPT, reply_timeout=KEPT)
    if isinstance(locks, Tasks):
        locks = make(hang_timeout=KEPT, reply_timeout=KEPT / 3)
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
def test_a_hung_node_is_not_asked_for_the_map(server, make, monkeypatch):
    # All calls wait for the map, and the library asks the nodes for it in any order.
    locks, looks = make(hang_timeout=KEPT, reply_timeout=KEPT / 3), []
    hold = locks.lock(server.key)
    hung = server.node(server.key)
    port = hung.connection_pool.connection_kwargs["port"]
    keys = [f"{{{i}{server.key[1:-5]}}}other" for i in range(20)]
    other = next(key for key in keys if server.client.get_node_from_key(key).port != port)
    monkeypatch.setattr(random, "shuffle", lambda nodes: looks.append([node.port for node in nodes]))
    with frozen(hung):
        assert hold.lost.wait(PATIENCE)
        until(lambda: locks.lock(other).release() or looks, "the map is asked for")
    assert not any(port in asked for asked in looks)


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


@alone
def test_what_others_take_is_believed_until_its_end(server, make):
    """Another client has renewed it for nobody: it lasts until that lease ends, and this client does not release it."""
    locks = make()
    hold = locks.lock(server.key)
    until(lambda: server.info()["holders"][0]["alive"], "it is kept")
    server.ask("DLOCK.RENEW", server.key, hold.owner, int(2 * KEPT * 1000))
    until(lambda: "taken" in getattr(hold, "hold", hold)._held.trouble, "the row has come")
    assert not hold.lost.is_set()
    assert hold.lost.wait(PATIENCE) and server.owners() in ([hold.owner], [])
    other = locks.lock(f"{server.key}:other")
    until(lambda: server.info(other.key)["holders"][0]["alive"], "it is kept")
    server.client.rename(other.key, f"{server.key}:new")
    assert other.lost.wait(PATIENCE)
    assert server.owners(f"{server.key}:new") == [other.owner]
    server.ask("DLOCK.FORCERELEASE", f"{server.key}:new")


@alone
def test_a_late_renewal_keeps_nothing_that_was_left_to_its_lease(server, make):
    """It was under way when the hold was left to its lease, and its session is kept for another hold."""
    locks = make()
    other = locks.lock(f"{server.key}:other")
    until(lambda: server.info(other.key)["holders"][0]["alive"], "it is kept")
    hold = locks.lock(server.key)
    hold.release_after(KEPT)
    words = (hold.owner, int(KEPT * 1000), "TOKEN", hold.token, "IN", locks.locks._sessions.name)
    server.ask("DLOCK.RENEW", server.key, *words)
    server.await_gone()
    other.release()


@everywhere
def test_a_child_keeps_what_it_takes(server, place):
    locks = dlock.Locks(client(place), lease=8.0, hang_timeout=8.0)
    hold, other = locks.acquire(server.key), f"{server.key}:child"

    def child():
        seen = [hold.lost.is_set(), error_of(hold.release), error_of(hold.guard, "SET", server.key, 1)]
        there = Server(place)
        with locks.lock(other, PATIENCE) as taken:
            until(lambda: there.info(other)["holders"][0]["held-ms"] > 17000, "what nobody keeps has ended")
            seen.append(taken.lost.is_set())
        return seen

    assert in_child(child) == [True, "DLockError", "DLockError", False]
    # The parent's is as it was.
    assert not hold.lost.is_set() and server.info()["holders"][0]["token"] == hold.token
    hold.release()
    server.await_gone()
    server.await_gone(other)


@alone
def test_a_child_that_forgets_a_hold_leaves_it_to_the_parent(server, place):
    locks = dlock.Locks(client(place), lease=KEPT, hang_timeout=8.0)
    holds, other = [locks.acquire(server.key)], f"{server.key}:child"
    until(lambda: server.info()["holders"][0]["alive"], "its session is kept")

    def child():
        with locks.lock(other, PATIENCE):
            holds.clear()
            gc.collect()
            until(lambda: not locks._sessions.errands, "all is said")
            time.sleep(0.5)
        return "done"

    assert in_child(child) == "done"
    until(lambda: server.info()["holders"][0]["held-ms"] > 2000 * KEPT, "what nobody keeps has ended")
    assert not holds[0].lost.is_set()
    holds[0].release()
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
    assert asyncio.run(take_and_end()) == ["DLockError", "taken"]  # a child has one of its own
    loop.run_until_complete(locks[0].aclose())
    loop.run_until_complete(close(locks[0].client))
    loop.close()
    server.await_gone()
