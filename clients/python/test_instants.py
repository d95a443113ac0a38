"""What comes at the worst instant (a close, an interrupt, an error) leaves nothing over and stops nothing else."""

import asyncio
import concurrent.futures
import gc
import threading

import pytest
import redis
import redis.asyncio

import dlock_redis as dlock
from dlock_redis import _library, _session
from stage import KEPT, LEASE, PATIENCE, Proxy, Tasks, addresses, client, close, command, until
from test_dlock import alone, in_cluster


class Stop(BaseException):
    """As Ctrl-C, or the end of a task."""


@alone
def test_a_close_at_the_grant_is_told(server, make):
    class Closes(dlock.Observer):
        def granted(self, key, seconds):
            locks.locks._sessions.close("closed")

    locks = make(observer=Closes())
    assert locks.lock(server.key).lost.wait(PATIENCE)


@alone
def test_a_close_leaves_nobody_in_the_queue(server, make, monkeypatch):
    """The commands take a while on their way, and the close waits for the answers."""
    monkeypatch.setattr(_session, "CLOSING", PATIENCE)
    path = command("path {}:{}".format(*addresses("DLOCK_SINGLE")[0]))
    locks = make(host=path.split(":")[0], port=int(path.split(":")[1]))
    server.hold()
    wait = locks.start(server.key)
    server.await_queued(1)
    command(f"delay {path} 100")
    locks.end()
    assert not server.queue()
    with pytest.raises(dlock.DLockError, match="closed"):
        wait.result(PATIENCE)
    locks.end()
    command(f"close {path}")


@alone
def test_a_wait_that_was_cancelled_before_the_close_is_not_in_the_queue(server, monkeypatch):
    monkeypatch.setattr(_session, "CLOSING", PATIENCE)
    path = command("path {}:{}".format(*addresses("DLOCK_SINGLE")[0]))
    server.hold()

    async def work():
        client = redis.asyncio.Redis(host=path.split(":")[0], port=int(path.split(":")[1]))
        async with dlock.AsyncLocks(client) as locks:
            wait = asyncio.ensure_future(locks.acquire(server.key))
            await asyncio.to_thread(server.await_queued, 1)
            await asyncio.to_thread(command, f"delay {path} 100")
            wait.cancel()
            await asyncio.wait([wait])
        assert wait.cancelled() and not server.queue()
        await close(client)

    asyncio.run(work())
    command(f"close {path}")


@alone
def test_a_close_that_is_cancelled_keeps_no_session(server):
    path = command("path {}:{}".format(*addresses("DLOCK_SINGLE")[0]))

    async def work():
        client = redis.asyncio.Redis(host=path.split(":")[0], port=int(path.split(":")[1]))
        locks = dlock.AsyncLocks(client, lease=KEPT, hang_timeout=2.0 * PATIENCE)
        hold = await locks.acquire(server.key)
        await asyncio.to_thread(until, lambda: server.info()["holders"][0]["alive"], "its session is kept")
        await asyncio.to_thread(command, f"delay {path} 1000")
        locks._sessions.give_back(b"other", b"nobody", 1, 10.0)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(locks.aclose(), 0.1)
        assert hold.lost
        await asyncio.to_thread(server.await_gone)
        await close(client)

    asyncio.run(work())
    command(f"close {path}")


@alone
def test_a_close_in_another_event_loop_says_nothing(server, caplog):
    locks = []

    async def take():
        locks.append(dlock.AsyncLocks(client("single", redis.asyncio)))
        hold = await locks[0].acquire(server.key)
        locks[0]._sessions.give_back(b"other", b"nobody", 1, 10.0)
        return hold

    async def end():
        await locks[0].aclose()
        await locks[0].aclose()

    async def ended():
        await asyncio.wait_for(asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()})), PATIENCE)

    loop = asyncio.new_event_loop()
    hold = loop.run_until_complete(take())
    asyncio.run(end())
    assert hold.lost and hold.reason == "closed"
    loop.run_until_complete(ended())
    loop.run_until_complete(close(locks[0].client))
    loop.close()
    assert [record.getMessage() for record in caplog.records] == ["closed while holding 1 locks"]
    server.ask("DLOCK.FORCERELEASE", server.key)


@alone
def test_an_interrupt_after_the_grant_leaves_no_hold(server, make):
    class Interrupts(dlock.Observer):
        def granted(self, key, seconds):
            raise Stop

    locks = make(observer=Interrupts(), lease=600.0)
    with pytest.raises((Stop, concurrent.futures.CancelledError)) as told:
        locks.lock(server.key)
    del told
    gc.collect()
    server.await_gone()


@alone
def test_an_interrupt_while_it_is_given_back_leaves_no_hold(server, make, monkeypatch):
    locks = make(lease=600.0)
    hold = locks.lock(server.key)
    kind = _library.AsyncServer if isinstance(locks, Tasks) else _library.Server

    def interrupted(*_):
        raise Stop

    async def interrupted_later(*_):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(kind, "call", interrupted_later if isinstance(locks, Tasks) else interrupted)
        with pytest.raises((Stop, concurrent.futures.CancelledError)):
            hold.release()
    server.await_gone()


@alone
def test_no_thread_for_a_while(server, make, monkeypatch):
    """The process has too many threads when a wait begins. It ends as soon as there is one for its loop."""
    locks = make()
    if isinstance(locks, Tasks):
        pytest.skip("a loop is a task")
    locks.lock(f"{server.key}:other").release()  # there is a clock
    server.hold()
    start = threading.Thread.start

    def none_left(thread):
        if thread.name.startswith("dlock"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        wait = locks.start(server.key)
        until(lambda: server.queue(), "it is queued")
    server.hand_over()
    wait.result(PATIENCE).release()
    server.await_gone()


@alone
def test_a_program_that_cancels_all_tasks_may_still_wait(server, make):
    """And what it holds is kept as soon as it asks for anything."""
    locks, kept = make(lease=2 * LEASE), f"{server.key}:kept"
    if not isinstance(locks, Tasks):
        pytest.skip("threads are not cancelled")
    hold = locks.lock(kept)
    until(lambda: server.info(kept)["holders"][0]["alive"], "it is kept")
    server.hold()
    wait = locks.start(server.key)
    server.await_queued(1)

    async def cancel_all():
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    locks.run(cancel_all())
    with pytest.raises(concurrent.futures.CancelledError):
        wait.result(PATIENCE)
    wait = locks.start(server.key)
    until(lambda: len(server.queue()) == 1, "the first one has left")
    until(lambda: server.info(kept)["holders"][0]["held-ms"] > 4000 * LEASE, "what nobody keeps has ended")
    assert not hold.hold.lost.is_set()
    server.hand_over()
    wait.result(PATIENCE).release()
    server.await_gone()


@alone
def test_a_with_may_end_on_another_thread_or_task(server, make):
    """As a framework has its dependencies begin and end on whatever thread or task is free."""
    locks = make()
    if isinstance(locks, Tasks):
        lock = locks.locks.lock(server.key)
        hold = locks.run(lock.__aenter__())
        locks.run(lock.__aexit__(None, None, None))  # each is a task
    else:
        lock = locks.locks.lock(server.key)
        hold = lock.__enter__()
        locks.pool.submit(lock.__exit__, None, None, None).result(PATIENCE)
    server.await_gone()
    assert not hold.lost


@alone
def test_one_lock_of_many_threads_and_tasks(server, make):
    """Each `with` releases its own hold."""
    locks = make()
    lock, count = locks.locks.lock(server.key, limit=3), []

    def work():
        for _ in range(10):
            with lock as hold:
                count.append(hold.token)
                assert not hold.lost

    async def work_later():
        for _ in range(10):
            async with lock as hold:
                count.append(hold.token)
                assert not hold.lost

    tasks = isinstance(locks, Tasks)
    for done in [locks.submit(work_later()) if tasks else locks.pool.submit(work) for _ in range(6)]:
        done.result(PATIENCE)
    assert len(set(count)) == 60
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
def test_rows_and_answers_in_any_order(server, make):
    """The row `granted` is read before the answer to the request, which comes late."""
    locks = make()
    with Proxy(addresses("DLOCK_SINGLE")[0]) as path:
        slow = make(host=path.address[0], port=path.address[1])
        with slow.lock(f"{server.key}:kept"):
            server.hold(key=f"{server.key}:more")
            more = slow.start(f"{server.key}:more")  # the loop runs
            server.await_queued(1, f"{server.key}:more")
            wait = slow.start(server.key)
            with wait.result(PATIENCE) as hold:
                assert server.owners() == [hold.owner]
            server.hand_over(key=f"{server.key}:more")
            more.result(PATIENCE).release()
    locks.lock(server.key).release()
    server.await_gone()


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
