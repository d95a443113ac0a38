"""No two lead: the leader's process is killed, is stopped, or is cut off."""

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading

import pytest
import redis

import dlock_redis as dlock
from stage import KEPT, LONG, PATIENCE, addresses, client, command, until

# A candidate in a process of its own. As long as it believes that it leads it appends its term by guarded writes.
CANDIDATE = """
import asyncio, json, sys, time
import redis, redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry
import dlock_redis as dlock

host, port, name, me, lease, kind = sys.argv[1:]

def say(*what):
    print(json.dumps(what) + "\\n", end="", flush=True)  # in one piece: two threads say something

def threads():
    client = redis.Redis(host, int(port), socket_timeout=1, retry=Retry(NoBackoff(), 0))
    locks = dlock.Locks(client, lease=float(lease), hang_timeout=8.0)
    election = dlock.Election(locks, name, me, on_lost=lambda _: say("steps down"))
    while True:
        say("leads", election.campaign())
        while election.is_leader():
            try:
                election.guard("RPUSH", name + ":log", election.term or 0)
            except dlock.Fenced:
                say("fenced")
            except redis.RedisError:
                pass
            time.sleep(0.01)

async def tasks():
    client = redis.asyncio.Redis(host=host, port=int(port))
    locks = dlock.AsyncLocks(client, lease=float(lease), hang_timeout=8.0)
    election = dlock.AsyncElection(locks, name, me, on_lost=lambda _: say("steps down"))
    while True:
        say("leads", await election.campaign())
        while election.is_leader():
            try:
                await asyncio.wait_for(election.guard("RPUSH", name + ":log", election.term or 0), 1)
            except dlock.Fenced:
                say("fenced")
            except (redis.RedisError, asyncio.TimeoutError):
                pass
            await asyncio.sleep(0.01)

threads() if kind == "threads" else asyncio.run(tasks())
"""


@pytest.fixture
def candidate(server, request):
    begun = []

    def start(me, kind, address=None):
        host, port = address or addresses("DLOCK_SINGLE")[0]
        words = [sys.executable, "-c", CANDIDATE, host, str(port), server.key, me, str(KEPT), kind]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        begun.append(process)
        process.said = queue.SimpleQueue()
        threading.Thread(target=lambda: [process.said.put(line) for line in process.stdout], daemon=True).start()
        return process

    yield start
    for one in begun:
        one.kill()
        one.wait()


def said(process):
    return json.loads(process.said.get(timeout=PATIENCE))


@pytest.fixture
def place():
    return "single"


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
@pytest.mark.parametrize("fault", ["kill", "stop", "cut"])
def test_no_two_lead(server, candidate, fault, kind):
    path = command("path {}:{}".format(*addresses("DLOCK_SINGLE")[0])) if fault == "cut" else None
    host, port = path.split(":") if path else addresses("DLOCK_SINGLE")[0]
    first = candidate("one", kind, (host, int(port)))
    assert said(first)[0] == "leads"
    second = candidate("two", kind)
    server.await_queued(1)
    until(lambda: server.client.llen(f"{server.key}:log"), "it has written")
    if fault == "kill":
        os.kill(first.pid, signal.SIGKILL)
    elif fault == "stop":
        os.kill(first.pid, signal.SIGSTOP)
    else:
        command(f"silence {path}")
        assert said(first) == ["steps down"]
        # It has stepped down by itself, before the server would let another one lead.
        assert server.owners() and "/one#" in server.owners()[0]
    word, term = said(second)
    assert word == "leads"
    until(lambda: server.client.lindex(f"{server.key}:log", -1) == b"%d" % term, "the next one has written")
    if fault == "stop":
        os.kill(first.pid, signal.SIGCONT)
        assert until(lambda: said(first)[0] == "steps down", "it knows that it leads no more")
    elif fault == "cut":
        command(f"sound {path}")
    if fault != "kill":
        server.await_queued(1)  # it stands for election again
        written = server.client.llen(f"{server.key}:log")
        until(lambda: server.client.llen(f"{server.key}:log") > written + 20, "more was written")
    terms = [int(one) for one in server.client.lrange(f"{server.key}:log", 0, -1)]
    assert terms == sorted(terms) and term in terms  # a busy machine may have elected more
    if path:
        command(f"close {path}")


def test_who_and_observe(server):
    locks = dlock.Locks(client("single"), lease=LONG)
    one, two = (dlock.Election(locks, server.key, me=me) for me in ("one", "two"))
    assert one.leader() is None and one.term is None and not one.is_leader()
    with pytest.raises(dlock.NotHeld):
        one.guard("SET", f"{server.key}:x", 1)
    seen = one.observe(0.01)
    assert next(seen) is None
    term = one.campaign()
    assert one.campaign() == term == one.term and one.is_leader() and 0 < one.left() <= LONG
    assert next(seen) == dlock.Leader("one", term) == two.leader()
    assert two.campaign(blocking_timeout=0) is None and not two.is_leader()
    one.resign()
    one.resign()
    with two:
        assert next(seen) == ("two", two.term) and two.term > term
        server.ask("DLOCK.FORCERELEASE", server.key)
        until(lambda: not two.is_leader(), "it steps down")
    assert next(seen) is None
    locks.close()


def test_asyncio_who_and_observe(server):
    async def work():
        async with dlock.AsyncLocks(client("single", redis.asyncio), lease=LONG) as locks:
            one, two = (dlock.AsyncElection(locks, server.key, me=me) for me in ("one", "two"))
            seen = one.observe(0.01)
            assert await anext(seen) is None
            async with one:
                assert await anext(seen) == ("one", one.term) == await two.leader()
                wait = asyncio.ensure_future(two.campaign())
                await asyncio.to_thread(server.await_queued, 1)
            assert await asyncio.wait_for(wait, PATIENCE) == two.term
            await two.resign()
            await locks.client.aclose()

    asyncio.run(work())


def test_two_campaigns_of_one_candidate(server, monkeypatch):
    """The time of the second one is up after the first one has won."""
    with dlock.Locks(client("single"), lease=LONG) as locks:
        election, take = dlock.Election(locks, server.key), locks._take

        def wins_meanwhile(request):
            if request.wait is None:
                return take(request)
            assert election.campaign()
            return None

        monkeypatch.setattr(locks, "_take", wins_meanwhile)
        assert election.campaign(5.0) and election.is_leader()
        election.resign()
    server.await_gone()

    async def work():
        async with dlock.AsyncLocks(client("single", redis.asyncio), lease=LONG) as locks:
            election, take = dlock.AsyncElection(locks, server.key), locks._take

            async def wins_meanwhile(request):
                if request.wait is None:
                    return await take(request)
                assert await election.campaign()
                return None

            monkeypatch.setattr(locks, "_take", wins_meanwhile)
            assert await election.campaign(5.0) and election.is_leader()
            await election.resign()
            await locks.client.aclose()

    asyncio.run(work())
    server.await_gone()


def test_an_error_of_the_work_comes_through(server, monkeypatch):
    def fails(*_):
        raise redis.ConnectionError("no path")

    async def fails_too(*_):
        fails()

    locks = dlock.Locks(client("single"), lease=LONG)
    with pytest.raises(KeyError), dlock.Election(locks, server.key) as one:
        monkeypatch.setattr(one._hold, "release", fails)
        raise KeyError("of the work")
    locks.close()

    async def work():
        async with dlock.AsyncLocks(client("single", redis.asyncio), lease=LONG) as locks:
            with pytest.raises(KeyError):
                async with dlock.AsyncElection(locks, f"{server.key}:asyncio") as one:
                    monkeypatch.setattr(one._hold, "release", fails_too)
                    raise KeyError("of the work")
            await locks.client.aclose()

    asyncio.run(work())


def test_bad_candidates(server):
    locks = dlock.Locks(client("single"))
    with pytest.raises(TypeError, match="locks"):
        dlock.AsyncElection(locks, "x")
    with pytest.raises(ValueError, match="key"):
        dlock.Election(locks, "")
    with pytest.raises(TypeError, match="timeout"):
        dlock.Election(locks, "x").campaign("5s")


def test_lead(server):
    """It resigns when the work has returned or failed, and refuses work that returns before it is done."""
    with dlock.Locks(client("single"), lease=LONG) as locks:
        election, other = (dlock.Election(locks, server.key, me=me) for me in ("one", "two"))

        def work(leading):
            assert leading is election and other.lead(lambda _: "other", 0) is None
            return leading.leader().who

        assert election.lead(work) == "one" and not election.is_leader()
        with pytest.raises(ZeroDivisionError):
            election.lead(lambda _: 1 / 0)
        with pytest.raises(TypeError, match="before the work"):
            election.lead(lambda _: (one for one in "work"))
        assert other.lead(lambda leading: leading.me) == "two"
    server.await_gone()

    async def works():
        async with dlock.AsyncLocks(client("single", redis.asyncio), lease=LONG) as locks:
            election = dlock.AsyncElection(locks, server.key, me="one")

            async def work(leading):
                return (await leading.leader()).who

            assert await election.lead(work) == "one" and await election.leader() is None
            await locks.client.aclose()

    asyncio.run(works())
