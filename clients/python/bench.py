"""dlock-redis next to redis-py's Lock and python-redis-lock, on one server in one run. Prints Markdown."""

import asyncio
import os
import socket
import statistics
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

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


WATCH = client()


def clocks():
    """Seconds that have passed, and those of the processor that this process and the server have used."""
    cpu = WATCH.info("cpu")
    return time.perf_counter(), time.process_time(), cpu["used_cpu_user"] + cpu["used_cpu_sys"]


def since(began):
    """Pairs a second, and the microseconds of the processor for each, the client's and the server's."""
    wall, ours, servers = (now - before for now, before in zip(clocks(), began, strict=True))
    return PAIRS / wall, 1e6 * ours / PAIRS, 1e6 * servers / PAIRS


def newest():
    """The id of the newest connection. Those of the last measurement may still be ending."""
    return max(int(one["id"]) for one in WATCH.client_list())


def connections(before):
    """Connections that are newer than this."""
    return sum(int(one["id"]) > before for one in WATCH.client_list())


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
    began = clocks()
    for _ in range(PAIRS):
        pair(int)
    seen = since(began)
    one.end()
    return seen


async def uncontended_tasks():
    locks = dlock.AsyncLocks(redis.asyncio.Redis(host=HOST, port=int(PORT)))
    other = redis.asyncio.Redis(host=HOST, port=int(PORT))
    theirs, rounds = other.lock(name(), timeout=10), {"dlock-redis": [], "redis-py Lock": []}
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
            began = clocks()
            for _ in range(PAIRS):
                await once()
            rounds[title].append(since(began))
    await locks.aclose()
    await other.aclose()
    return rounds


def contended(kind, workers):
    """Waits in milliseconds, sorted, and the turns of each worker within the time. Waits that outlast it also count."""
    one, key, waits, turns = kind(), name(), [], [0] * workers
    end = time.perf_counter() + CONTENDED_SECONDS
    ready = threading.Barrier(workers)

    def work(number):
        pair = one.taker(key)

        def had():
            now = time.perf_counter()
            waits.append(now - began)
            turns[number] += now < end

        ready.wait()
        while (began := time.perf_counter()) < end:
            pair(had)

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


def queued():
    return WATCH.info("dlock")["dlock_places_queued"]


def connections_of_threads(count):
    """Connections while this many threads wait for one held lock. They take it in turn in the end."""
    before, locks, key = newest(), dlock.Locks(client()), name()

    def turn():
        with locks.acquire(key):
            pass

    with ThreadPoolExecutor(count) as threads:
        with locks.acquire(key):
            for _ in range(count):
                threads.submit(turn)
            while queued() < count:
                time.sleep(0.01)
            seen = connections(before)
    locks.close()
    return seen


async def connections_of_tasks(count):
    before, server, key = newest(), redis.asyncio.Redis(host=HOST, port=int(PORT)), name()
    locks = dlock.AsyncLocks(server)

    async def turn():
        async with await locks.acquire(key):
            pass

    async with await locks.acquire(key):
        turns = asyncio.gather(*(turn() for _ in range(count)))
        while queued() < count:
            await asyncio.sleep(0.01)
        seen = connections(before)
    await turns
    await locks.aclose()
    await server.aclose()
    return seen


def held(count):
    """Commands a second on the wire while this many locks are held, and connections."""
    path = command(f"path {HOST}:{PORT}")
    host, port = path.split(":")
    before = newest()
    locks = dlock.Locks(client(host=host, port=int(port)))
    holds = [locks.acquire(f"{name()}:{number}") for number in range(count)]
    ours = connections(before)
    first = int(command(f"commands {path}"))
    time.sleep(10)
    rate = (int(command(f"commands {path}")) - first) / 10
    lost = sum(hold.lost.is_set() for hold in holds)
    locks.close()
    return rate, ours, lost


def percentile(values, part):
    return values[min(len(values) - 1, int(len(values) * part))]


def print_uncontended(rounds, theirs):
    """A row for each title; `theirs` is the title of the popular lock."""
    popular = statistics.median(rate for rate, _, _ in rounds[theirs])
    for title, seen in rounds.items():
        rates, ours, servers = zip(*seen, strict=True)
        rate = statistics.median(rates)
        print(
            f"| {title} | {rate:.0f} | {min(rates):.0f}, {max(rates):.0f} | {rate / popular:.2f}"
            f" | {statistics.median(ours):.0f} | {statistics.median(servers):.1f} |"
        )


def main():
    kinds = [Ours, RedisPy, PythonRedisLock]
    print(f"\n{os.environ['DLOCK_SERVER']}, redis-py {redis.__version__}; medians of {ROUNDS} interleaved rounds\n")
    rounds = {kind.title: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind in kinds:
            rounds[kind.title].append(uncontended(kind))
    print("| uncontended | pairs a second | least, most | of redis-py's | client µs a pair | server µs a pair |")
    print("|---|---|---|---|---|---|")
    print_uncontended(rounds, RedisPy.title)
    tasks = asyncio.run(uncontended_tasks())
    print_uncontended({f"asyncio: {title}": seen for title, seen in tasks.items()}, f"asyncio: {RedisPy.title}")
    print("\n| workers on one lock | | turns a second | wait p50 ms | p99 ms | p99.9 ms | longest ms", end="")
    print(" | fewest and most turns |\n|---|---|---|---|---|---|---|---|")
    for workers in (16, 100):
        for kind in kinds:
            waits, turns = contended(kind, workers)
            print(
                f"| {workers} | {kind.title} | {sum(turns) / CONTENDED_SECONDS:.0f} | {percentile(waits, 0.5):.1f}"
                f" | {percentile(waits, 0.99):.1f} | {percentile(waits, 0.999):.1f} | {waits[-1]:.1f}"
                f" | {min(turns)}, {max(turns)} |"
            )
    print("\n| tasks that wait for one held lock | | connections |\n|---|---|---|")
    for count in (1, 100, 1_000):
        print(f"| {count} | {Ours.title} | {connections_of_threads(count)} |")
        print(f"| {count} | asyncio: {Ours.title} | {asyncio.run(connections_of_tasks(count))} |")
    print(f"\n32 tasks on free locks at 50 ms: {asyncio.run(thirty_two_at_50_ms()):.2f} round trips together")
    print("\n| locks held in one process | | commands a second | connections | lost |\n|---|---|---|---|---|")
    for count in (100, 10_000):
        rate, ours, lost = held(count)
        print(f"| {count} | {Ours.title} | {rate:.1f} | {ours} | {lost} |")


if __name__ == "__main__":
    main()
