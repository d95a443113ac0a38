"""A program of a run of failovers, for threads or for asyncio: `failover.py threads`, `failover.py asyncio`.

It keeps ten locks, and three workers take others in turn, until stdin ends. Each grant, release and loss is a line on
stdout, with the machine's monotonic clock in microseconds: so others can judge who has held what at the same time.
"""

import asyncio
import os
import random
import sys
import threading
import time

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.cluster import ClusterNode
from redis.sentinel import Sentinel

from dlock_redis import AsyncLocks, Locks

KIND = sys.argv[1]
TAG = "{" + os.environ["DLOCK_TAG"] + "}"
KEPT = [f"{TAG}kept:python-{KIND}:{number}" for number in range(10)]
TURNS = [f"{TAG}turn:{number}" for number in range(3)]
OWN = [f"{TAG}own:python-{KIND}"]
# For each worker: its locks, the shortest and the longest work, and the pause after it, in seconds.
WORKERS = [(TURNS, 0.005, 0.015, 0), (TURNS, 0.005, 0.015, 0), (OWN, 0.005, 0.005, 0.02)]
SETTINGS = {"lease": int(os.environ["DLOCK_LEASE_MS"]) / 1000, "hang_timeout": 20.0}
AFTER_AN_ERROR, TO_END = 0.1, 2.0  # seconds

ending = threading.Event()


def addresses(name):
    return [(host, int(port)) for host, port in (one.split(":") for one in os.environ[name].split(","))]


def client(sentinel, cluster, node):
    if "DLOCK_SENTINELS" in os.environ:
        return sentinel(addresses("DLOCK_SENTINELS")).master_for("locks")
    return cluster(startup_nodes=[node(*address) for address in addresses("DLOCK_CLUSTER")])


def say(line):
    os.write(1, f"{line}\n".encode())  # in one piece, whichever thread writes


def tell(what, hold):
    now = time.monotonic_ns() // 1000
    say(f"{what} {hold.key} {hold.token} {now}")


def lost(hold):
    if not ending.is_set():
        tell("lost", hold)


def complain(error):
    text = " ".join(f"{type(error).__name__}: {error}".split())
    os.write(2, f"{text}\n".encode())


def end(kept):
    ending.set()
    for hold in kept:
        if not hold.lost:
            say(f"kept {hold.key} {hold.token}")
    say("end")


def by_threads():
    locks = Locks(client(Sentinel, redis.RedisCluster, ClusterNode), **SETTINGS)

    def work(keys, shortest, longest, pause):
        while not ending.is_set():
            try:
                hold = locks.acquire(random.choice(keys), on_lost=lost)
                tell("have", hold)
                time.sleep(random.uniform(shortest, longest))
                tell("free", hold)
                hold.release()
            except Exception as error:
                complain(error)
                time.sleep(AFTER_AN_ERROR)
            time.sleep(pause)

    def release(hold):
        try:
            hold.release()
        except Exception as error:
            complain(error)

    kept = [locks.acquire(key, on_lost=lost) for key in KEPT]
    say("ready")
    threads = [threading.Thread(target=work, args=worker, daemon=True) for worker in WORKERS]
    for thread in threads:
        thread.start()
    sys.stdin.buffer.read()
    end(kept)
    releasing = [threading.Thread(target=release, args=(hold,), daemon=True) for hold in kept if not hold.lost]
    for thread in releasing:
        thread.start()
    until = time.monotonic() + TO_END
    for thread in threads + releasing:
        thread.join(max(0, until - time.monotonic()))
    locks.close()


async def by_asyncio():
    locks = AsyncLocks(client(AsyncSentinel, redis.asyncio.RedisCluster, AsyncClusterNode), **SETTINGS)

    async def work(keys, shortest, longest, pause):
        while not ending.is_set():
            try:
                hold = await locks.acquire(random.choice(keys), on_lost=lost)
                tell("have", hold)
                await asyncio.sleep(random.uniform(shortest, longest))
                tell("free", hold)
                await hold.release()
            except Exception as error:
                complain(error)
                await asyncio.sleep(AFTER_AN_ERROR)
            await asyncio.sleep(pause)

    async def release(hold):
        try:
            await hold.release()
        except Exception as error:
            complain(error)

    kept = [await locks.acquire(key, on_lost=lost) for key in KEPT]
    say("ready")
    tasks = [asyncio.create_task(work(*worker)) for worker in WORKERS]
    await asyncio.to_thread(sys.stdin.buffer.read)
    end(kept)
    tasks += [asyncio.create_task(release(hold)) for hold in kept if not hold.lost]
    await asyncio.wait(tasks, timeout=TO_END)
    await locks.aclose()


if KIND == "threads":
    by_threads()
else:
    asyncio.run(by_asyncio())
