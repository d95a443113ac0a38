"""Clients that contend for one lock with a Python library, for the benchmark's hot lock.

Prints a line for each time a client got the lock: its number, when it asked and when it was granted, in
nanoseconds from the start. Each client has a thread and a connection of its own.
"""

import argparse
import threading
import time

import redis
import redis_lock


def redis_py(sleep_s):
    return lambda connection, key: connection.lock(key, timeout=30, sleep=sleep_s)


WAYS = {
    "redis-py-100ms": redis_py(0.1),
    "redis-py-1ms": redis_py(0.001),
    "python-redis-lock": lambda connection, key: redis_lock.Lock(connection, key, expire=30),
}


def contend(make, arguments, door, results):
    connection = redis.Redis(port=arguments.port)
    connection.ping()
    grants = []
    door.wait()
    start = arguments.start
    while (asked := time.monotonic_ns()) < start[0] + arguments.duration_ms * 1_000_000:
        lock = make(connection, "hot")
        lock.acquire()
        grants.append((asked - start[0], time.monotonic_ns() - start[0]))
        if arguments.section_us:
            time.sleep(arguments.section_us / 1e6)
        lock.release()
    results.append(grants)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("port", type=int)
    parser.add_argument("clients", type=int)
    parser.add_argument("section_us", type=int)
    parser.add_argument("duration_ms", type=int)
    arguments = parser.parse_args()
    arguments.start = [0]

    def open_door():
        arguments.start[0] = time.monotonic_ns()

    door = threading.Barrier(arguments.clients, action=open_door)
    results = []
    threads = [
        threading.Thread(target=contend, args=(WAYS[arguments.way], arguments, door, results))
        for _ in range(arguments.clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(results) != arguments.clients:
        raise SystemExit("a client failed")
    for number, grants in enumerate(results):
        for asked, granted in grants:
            print(number, asked, granted)


main()
