"""What README.md and docs/clients.md show and say of redis-py: their examples, and what the library does by itself."""

import asyncio
import concurrent.futures
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

import dlock_redis as dlock
from stage import PATIENCE, Server, addresses, until


@pytest.fixture
def server():
    return Server("single")


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield pool


def client(**options):
    host, port = addresses("DLOCK_SINGLE")[0]
    return redis.Redis(host=host, port=port, **options)


@pytest.mark.parametrize("page", ["README.md", "docs/clients.md"])
def test_the_printed_program_runs_as_it_is(page, tmp_path):
    """As a reader uses it: copied from the page, in a directory without anything, by the installed package."""
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    host, port = addresses("DLOCK_SINGLE")[0]
    left = redis.Redis(host=host, port=port)
    left.delete("stock:left")
    assert "port=6379" in program
    program = program.replace("port=6379", f"port={port}")
    # -I: neither this directory nor PYTHONPATH helps it.
    command = [sys.executable, "-I", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert left.get("stock:left") == b"41"
    until(lambda: not left.exists("stock"), "nothing is held")


def test_asyncio_example(server):
    stock, lost = server.key, []

    async def work():
        host, port = addresses("DLOCK_SINGLE")[0]
        locks = dlock.AsyncLocks(redis.asyncio.Redis(host=host, port=port))
        async with locks.lock(stock, on_lost=lost.append) as hold:
            print(hold.token)
        async with locks.many(["a" + stock, "b" + stock], blocking_timeout=5) as holds:
            print([hold.token for hold in holds.values()])
        await locks.aclose()
        await locks.client.aclose()

    asyncio.run(work())
    assert not lost
    server.await_gone()


WAIT = ("DLOCK.FAIRACQUIRE", 600_000, "BLOCK", 60_000)


def wait(client, key, owner):
    return client.execute_command(WAIT[0], key, owner, *WAIT[1:])


def test_time_out_loses_the_place(server, pool):
    """The library gives up on the reply, reconnects, and asks again: behind who came meanwhile."""
    server.hold()
    one = pool.submit(wait, client(socket_timeout=5.0), server.key, "one")
    server.await_queued(1)
    two = pool.submit(wait, client(socket_timeout=None), server.key, "two")
    server.await_queued(2)
    assert server.queue() == ["one", "two"]
    until(lambda: server.queue() == ["two", "one"] or one.done(), "the place is lost")
    assert server.hand_over() == "two"
    assert two.result(PATIENCE)[1] == 1
    server.ask("DLOCK.FORCERELEASE", server.key)
    try:
        one.result(PATIENCE)
    except redis.RedisError:
        pass  # its tries were over before


def test_no_time_out_keeps_it(server, pool):
    server.hold()
    one = pool.submit(wait, client(socket_timeout=None), server.key, "one")
    server.await_queued(1)
    before = server.info()["queue"][0]["client"]
    until(lambda: server.info()["queue"][0]["waited-ms"] > 6000, "it has waited for longer than the library's default")
    assert server.info()["queue"][0]["client"] == before
    assert server.hand_over() == "one"
    assert one.result(PATIENCE)[1] == 1
