"""What `lock_class` gives: redis-py's own tests, and what they do not look at."""

import asyncio
import concurrent.futures
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis
import redis.asyncio

import dlock_redis as dlock
from stage import PATIENCE, Proxy, addresses, client, close, until

URL = "redis://{}:{}/9".format(*addresses("DLOCK_SINGLE")[0])
HERE = Path(__file__).parent


@pytest.fixture
def place():
    return "single"


@pytest.mark.skipif("DLOCK_REDIS_SOURCE" not in os.environ, reason="run.sh fetches redis-py's tests")
def test_its_own_suite():
    words = [sys.executable, *"-m pytest --quiet -p no:cacheprovider -p redis_suite -W ignore --redis-url".split(), URL]
    tests = ["tests/test_lock.py", "tests/test_asyncio/test_lock.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    source = os.environ["DLOCK_REDIS_SOURCE"]
    for _ in range(3):  # its locks last 0.1 s: a busy machine may need longer to give one back
        told = subprocess.run([*words, *tests], cwd=source, env=environment, capture_output=True, text=True)
        tests = re.findall(r"^FAILED (\S+)", told.stdout, re.MULTILINE)
        if not tests:
            break
    assert told.returncode == 0, told.stdout[-5000:]
    assert " passed" in told.stdout


def test_with_a_timeout_it_ends_and_without_one_it_is_kept(server):
    one = client("single")
    short = one.lock(server.key, timeout=6, lock_class=dlock.RedisLock)
    kept = one.lock(f"{server.key}:kept", lock_class=dlock.RedisLock)
    assert short.acquire(blocking=False) and kept.acquire(blocking=False)
    assert server.info()["holders"][0]["auto"] == 0
    until(lambda: not short.owned(), "its time is over")
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        short.extend(1)
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        short.release()
    until(lambda: server.info(kept.name)["holders"][0]["held-ms"] > 11_000, "its lease would have ended")
    assert kept.owned()
    kept.release()
    server.await_gone(kept.name)


def test_old_and_new_programs_exclude_each_other(server):
    one, other = client("single"), client("single")
    old, new = other.lock(server.key, timeout=30), one.lock(server.key, timeout=30, lock_class=dlock.RedisLock)
    assert old.acquire() and new.locked() and not new.owned()
    assert not new.acquire(blocking=False)
    assert not new.acquire(sleep=2.6, blocking_timeout=5)  # it asks twice, and each reply may come as late as any other
    old.release()
    assert new.acquire(blocking_timeout=5)
    assert not old.acquire(blocking=False)
    new.release()
    assert old.acquire(blocking=False)
    old.release()


def test_asyncio_waits_in_the_queue(server):
    async def work():
        one = client("single", redis.asyncio)
        first, second = (one.lock(server.key, lock_class=dlock.AsyncRedisLock) for _ in range(2))
        assert await first.acquire()
        wait = asyncio.ensure_future(second.acquire(blocking_timeout=30))
        await asyncio.to_thread(server.await_queued, 1)
        await first.release()
        assert await wait and await second.owned() and not await first.owned()
        await second.release()
        await one.aclose()

    asyncio.run(work())


def test_a_try_of_a_taken_lock_is_one_command(server):
    one, other = client("single"), client("single")
    assert one.lock(server.key, timeout=30, lock_class=dlock.RedisLock).acquire()
    lock, before = other.lock(server.key, timeout=30, lock_class=dlock.RedisLock), threading.active_count()
    for _ in range(10):
        assert not lock.acquire(blocking=False)
    assert not lock._all._sessions.errands and threading.active_count() <= before + 1


def test_a_cancelled_acquire_leaves_the_queue(server):
    async def work():
        one = client("single", redis.asyncio)
        locks = [one.lock(server.key, timeout=600, lock_class=dlock.AsyncRedisLock) for _ in range(3)]
        locks[0]._all._sessions.settings.reply_timeout = 60.0  # the place would stay for twice as long
        assert await locks[0].acquire()
        wait = asyncio.ensure_future(locks[1].acquire())
        await asyncio.to_thread(server.await_tickets, 1)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        await asyncio.to_thread(server.await_tickets, 0)
        await locks[0].release()
        assert await locks[2].acquire(blocking=False)
        await locks[2].release()
        await one.aclose()

    asyncio.run(work())
    server.await_gone()


@pytest.mark.parametrize("place", ["single", "cluster"])
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_release_has_a_connection_beside_many_waits(server, place, kind):
    """Each wait blocks one. By itself a pool of redis-py has a hundred at most."""
    count = 110

    async def work():
        one = client(place, redis.asyncio)
        locks = [dlock.AsyncRedisLock(one, server.key, timeout=600, blocking_timeout=PATIENCE) for _ in range(count)]
        holder = dlock.AsyncRedisLock(one, server.key, timeout=600)

        async def turn(lock):
            assert await lock.acquire()
            await lock.release()

        assert await holder.acquire()
        turns = asyncio.gather(*map(turn, locks))
        await asyncio.to_thread(server.await_tickets, count)
        await holder.release()
        await turns
        await close(one)

    if kind == "asyncio":
        asyncio.run(work())
        return
    one = client(place)
    holder = dlock.RedisLock(one, server.key, timeout=600)

    def turn():
        with dlock.RedisLock(one, server.key, timeout=600, blocking_timeout=PATIENCE):
            pass

    assert holder.acquire()
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        turns = [pool.submit(turn) for _ in range(count)]
        server.await_tickets(count)
        holder.release()
        for one_turn in turns:
            one_turn.result(PATIENCE)


def test_what_another_object_has_released_is_not_owned(server):
    one = client("single")
    first, second = (one.lock(server.key, timeout=30, lock_class=dlock.RedisLock) for _ in range(2))
    assert first.acquire()
    second.local.token = first.local.token
    first.release()
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        second.release()


def test_a_late_release_ends_no_later_hold_of_the_same_token(server):
    with Proxy(addresses("DLOCK_SINGLE")[0]) as path:
        host, port = path.address
        lock = redis.Redis(host, port).lock(server.key, timeout=30, lock_class=dlock.RedisLock)
        path.freeze("DLOCK.ACQUIRE")  # the connection that says this
        with pytest.raises(dlock.LockTimeout):
            lock.acquire(blocking_timeout=1, token="mine")
        path.word = None
        assert lock.acquire(blocking_timeout=PATIENCE, token="mine")
        with dlock.Locks(client("single")) as locks, concurrent.futures.ThreadPoolExecutor(1) as pool:
            other = pool.submit(locks.acquire, server.key, PATIENCE)
            server.await_queued(1)
            path.thaw()
            until(lambda: server.info()["holders"][0]["held-ms"] > 3000, "what was said before has been read")
            assert lock.owned() and not other.done()
            lock.release()
            other.result(PATIENCE).release()
        server.await_gone()
