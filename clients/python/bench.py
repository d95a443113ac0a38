"""dlock-redis next to redis-py's Lock and python-redis-lock, on one server in one run. Prints Markdown."""

import asyncio
import os
import socket
import statistics
import threading
import time
import uuid

import redis
import redis.asyncio
import redis_lock

import dlock_redis as dlock

HOST, PORT = os.environ["DLOCK_SINGLE"].split(":")
PAIRS, ROUNDS, CONTENDED_SECONDS = 2000, 5, 6.0


def client(**options):
    return redis.Redis(**{"host": HOST, "port": int(PORT), **options})


def command(line):
    host, port = os.environ["DLOCK_CONTROL"].split(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rw") as lines:
        lines.write(line + "\n")
        lines.flush()
        return lines.readline().split()[1]


def name():
    return f"bench:{uuid.uuid4()}"


class Ours:
    title = "dlock-redis"

    def __init__(self):
        self.locks = dlock.Locks(client())

    def taker(self, key):
        def pair(work):
            with self.locks.acquire(key):
                work()

        return pair

    def end(self):
        self.locks.close()


class RedisPy:
    title = "redis-py Lock"

    def __init__(self):
        self.client = client()

    def taker(self, key):
        lock = self.client.lock(key, timeout=10)

        def pair(work):
            with lock:
                work()

        return pair

    def end(self):
        self.client.close()


class PythonRedisLock(RedisPy):
    title = "python-redis-lock"

    def taker(self, key):
        def pair(work):
            with redis_lock.Lock(self.client, key, expire=10):
                work()

        return pair


def uncontended(kind):
    one, key = kind(), name()
    pair = one.taker(key)
    pair(int)
    began = time.perf_counter()
    for _ in range(PAIRS):
        pair(int)
    took = time.perf_counter() - began
    one.end()
    return PAIRS / took


async def uncontended_tasks():
    locks = dlock.AsyncLocks(redis.asyncio.Redis(host=HOST, port=int(PORT)))
    other = redis.asyncio.Redis(host=HOST, port=int(PORT))
    theirs, rates = other.lock(name(), timeout=10), {"dlock-redis": [], "redis-py Lock": []}
    key = name()

    async def ours_once():
        async with await locks.acquire(key):
            pass

    async def theirs_once():
        async with theirs:
            pass

    for _ in range(ROUNDS):
        for title, once in (("dlock-redis", ours_once), ("redis-py Lock", theirs_once)):
            await once()
            began = time.perf_counter()
            for _ in range(PAIRS):
                await once()
            rates[title].append(PAIRS / (time.perf_counter() - began))
    await locks.aclose()
    return {title: statistics.median(values) for title, values in rates.items()}


def contended(kind, workers):
    """Waits in milliseconds, sorted, and the turns of each worker."""
    one, key, waits, turns = kind(), name(), [], [0] * workers
    end = time.perf_counter() + CONTENDED_SECONDS
    ready = threading.Barrier(workers)

    def work(number):
        pair, mine = one.taker(key), []
        ready.wait()
        while (began := time.perf_counter()) < end:
            pair(lambda began=began: mine.append(time.perf_counter() - began))
            turns[number] += 1
        waits.extend(mine)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.end()
    return sorted(1000 * wait for wait in waits), turns


async def thirty_two_at_50_ms():
    """Round trips that 32 tasks need together for 32 free locks, taken and released."""
    path = command(f"path {HOST}:{PORT}")
    command(f"delay {path} 50")
    host, port = path.split(":")
    locks = dlock.AsyncLocks(redis.asyncio.Redis(host=host, port=int(port)))
    async with await locks.acquire(name()):
        pass

    async def once(key):
        async with await locks.acquire(key):
            pass

    keys = [name() for _ in range(32)]
    began = time.perf_counter()
    await asyncio.gather(*(once(key) for key in keys))
    took = time.perf_counter() - began
    await locks.aclose()
    return took / 0.05


def held(count):
    """Commands a second on the wire while this many locks are held, and connections."""
    path = command(f"path {HOST}:{PORT}")
    host, port = path.split(":")
    watch = client()
    before = len(watch.client_list())
    locks = dlock.Locks(client(host=host, port=int(port)))
    holds = [locks.acquire(f"{name()}:{number}") for number in range(count)]
    connections = len(watch.client_list()) - before
    first = int(command(f"commands {path}"))
    time.sleep(10)
    rate = (int(command(f"commands {path}")) - first) / 10
    lost = sum(hold.lost.is_set() for hold in holds)
    locks.close()
    return rate, connections, lost


def percentile(values, part):
    return values[min(len(values) - 1, int(len(values) * part))]


def main():
    kinds = [Ours, RedisPy, PythonRedisLock]
    print(f"\n{os.environ['DLOCK_SERVER']}, redis-py {redis.__version__}; medians of {ROUNDS} interleaved rounds\n")
    rates = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind in kinds:
            rates[kind].append(uncontended(kind))
    theirs = statistics.median(rates[RedisPy])
    print("| uncontended, one thread | pairs a second | of redis-py's |\n|---|---|---|")
    for kind in kinds:
        rate = statistics.median(rates[kind])
        print(f"| {kind.title} | {rate:.0f} | {rate / theirs:.2f} |")
    tasks = asyncio.run(uncontended_tasks())
    for title, rate in tasks.items():
        print(f"| asyncio: {title} | {rate:.0f} | {rate / tasks['redis-py Lock']:.2f} |")
    print("\n| workers on one lock | | turns a second | wait p50 ms | p99 ms | longest ms | fewest and most turns |")
    print("|---|---|---|---|---|---|---|")
    for workers in (16, 100):
        for kind in kinds:
            waits, turns = contended(kind, workers)
            print(
                f"| {workers} | {kind.title} | {len(waits) / CONTENDED_SECONDS:.0f} | {percentile(waits, 0.5):.1f}"
                f" | {percentile(waits, 0.99):.1f} | {waits[-1]:.1f} | {min(turns)}, {max(turns)} |"
            )
    print(f"\n32 tasks on free locks at 50 ms: {asyncio.run(thirty_two_at_50_ms()):.2f} round trips together")
    print("\n| locks held in one process | commands a second | connections | lost |\n|---|---|---|---|")
    for count in (100, 10_000):
        rate, connections, lost = held(count)
        print(f"| {count} | {rate:.1f} | {connections} | {lost} |")


if __name__ == "__main__":
    main()
