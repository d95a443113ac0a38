"""What comes at the worst instant (a close, an interrupt, an error) leaves nothing over and stops nothing else."""

import gc
import math
import threading

import pytest
import redis

import dlock_redis as dlock
from dlock_redis import _link
from stage import KEPT, LEASE, PATIENCE, Proxy, Tasks, addresses, until
from test_dlock import alone, in_cluster
from test_faults import raises, user  # noqa: F401


class Stop(BaseException):
    """As Ctrl-C, or the end of a task."""


@alone
def test_a_close_at_the_grant_is_told(server, make):
    locks = make()
    core = locks.locks._core
    granted = core.granted

    def closes(*how):
        granted(*how)
        core.end("closed")

    core.granted = closes
    assert locks.lock(server.key).lost.wait(PATIENCE)


@alone
def test_a_close_while_it_subscribes_leaves_no_connection(server, make):
    with Proxy(addresses("DLOCK_SINGLE")[0]) as path:
        path.freeze("SUBSCRIBE")
        locks = make(host=path.address[0], port=path.address[1])
        locks.locks._core.settings.reply_timeout = PATIENCE
        server.hold()
        wait = locks.start(server.key)
        until(path.is_frozen, "it subscribes")
        locks.end()
        path.thaw()
        raises(dlock.DLockError, wait.result, PATIENCE)
        path.await_quiet()


@alone
def test_the_clock_looks_at_what_is_taken_meanwhile(server, make, monkeypatch):
    locks = make()
    if isinstance(locks, Tasks):
        pytest.skip("nothing is taken meanwhile in one thread")
    hold, core, taken = locks.lock(server.key), locks.locks._core, []
    end, here = _link.Renewal.end, threading.current_thread()

    def slow(tie):
        if threading.current_thread() is not here:
            return end(tie)
        if tie is hold._renewal:
            taken.append(locks.start(f"{server.key}:other").result(PATIENCE))
        return math.inf

    with monkeypatch.context() as patch:
        patch.setattr(_link.Renewal, "end", slow)
        core.expire()
    assert core.alarm <= taken[0]._renewal.end()


@alone
def test_what_was_given_back_is_not_remembered(server, locks):
    outer = locks.lock(server.key, owner="me")
    for _ in range(50):
        locks.lock(server.key, owner="me").release()
    assert len(getattr(outer, "hold", outer)._renewal.holds) <= 2
    outer.release()


@alone
def test_an_interrupt_after_the_grant_leaves_no_hold(server, make):
    class Interrupts(dlock.Observer):
        def granted(self, key, seconds):
            raise Stop

    locks = make()
    locks.locks._core.settings.observer = Interrupts()
    with pytest.raises(Stop) as told:
        locks.lock(server.key)
    del told
    gc.collect()
    server.await_gone()


@alone
def test_an_interrupt_while_it_is_given_back_leaves_no_hold(server, make, monkeypatch):
    locks = make(hang_timeout=600.0)
    hold, core = locks.lock(server.key), locks.locks._core
    call = core.call

    async def fails(key, words, *how):
        if words[0] == "DLOCK.RELEASE":
            raise redis.ConnectionError("no path")
        return await call(key, words, *how)

    async def interrupted(seconds):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(core, "call", fails)
        patch.setattr(core, "sleep", interrupted)
        with pytest.raises(Stop):
            hold.release()
    server.await_gone()


@alone
def test_no_thread_for_a_callback_stops_no_clock(server, make, monkeypatch, caplog):
    with Proxy(addresses("DLOCK_SINGLE")[0]) as path:
        locks = make(host=path.address[0], port=path.address[1], lease=LEASE)
        if isinstance(locks, Tasks):
            pytest.skip("a callback is a task")
        start = threading.Thread.start

        def none_left(thread):
            if thread.name == "dlock on_lost":
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", none_left)
        holds = [locks.lock(f"{server.key}:{i}", on_lost=print) for i in range(2)]
        path.freeze()
        for hold in holds:
            assert hold.lost.wait(PATIENCE)
    assert "can't start new thread" in caplog.text


@alone
def test_what_cannot_be_left_stops_no_clock(server, make, monkeypatch):
    def fails(*_):
        raise RuntimeError("can't start new thread")

    with Proxy(addresses("DLOCK_SINGLE")[0]) as path:
        locks = make(host=path.address[0], port=path.address[1], lease=LEASE)
        holds = [locks.lock(f"{server.key}:{i}") for i in range(2)]
        monkeypatch.setattr(locks.locks._core, "abandon", fails)
        path.freeze()
        for hold in holds:
            assert hold.lost.wait(PATIENCE)


@in_cluster
def test_a_map_that_fails_in_the_library_stops_no_keeper(server, make, monkeypatch):
    locks, rounds = make(), []
    hold, core = locks.lock(server.key), locks.locks._core
    round_ = core._round
    if isinstance(locks, Tasks):
        async def broken(*_, **__):
            raise KeyError("a defect of the library's")
    else:
        def broken(*_, **__):
            raise KeyError("a defect of the library's")

    async def fails_first(node):
        rounds.append(node)
        if len(rounds) == 1:
            raise redis.ConnectionError("a round has failed")
        await round_(node)

    monkeypatch.setattr(type(core.client.nodes_manager), "initialize", broken)
    monkeypatch.setattr(core, "_round", fails_first)
    until(lambda: len(rounds) > 2, "it is kept")
    hold.release()


@in_cluster
def test_a_slot_that_moves_for_longer_than_a_lease_ends_no_hold(server, make):
    hold, slot = make(lease=KEPT).lock(server.key), server.client.keyslot(server.key)
    masters = [redis.Redis(*one) for one in addresses("DLOCK_CLUSTER")]
    masters = [one for one in masters if one.role()[0] in (b"master", "master")]
    source = server.node(server.key)
    names = {one.execute_command("CLUSTER", "MYID").decode(): one for one in masters}
    here = source.execute_command("CLUSTER", "MYID").decode()
    there = next(name for name in names if name != here)
    target = names[there].connection_pool.connection_kwargs
    try:
        names[there].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", here)
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", there)
        source.execute_command("MIGRATE", target["host"], target["port"], server.key, 0, 5000)
        # The key is there, and the slot is not.
        until(lambda: server.info()["holders"][0]["held-ms"] > 2 * KEPT * 1000, "two leases have passed")
        assert not hold.lost.is_set()
    finally:
        for one in [names[there], source, *masters]:
            one.execute_command("CLUSTER", "SETSLOT", slot, "NODE", there)
    assert server.info()["holders"][0]["token"] == hold.token
    hold.release()
