"""Programs of their own, by the package as it is installed, with nothing else: what a user does and sees."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stage import PATIENCE, Server, addresses, command, until

HERE = Path(__file__).parent
PYTHON = os.environ.get("DLOCK_ALONE", sys.executable)
MYPY = os.environ.get("DLOCK_MYPY", str(Path(sys.executable).parent / "mypy"))
BEGINS = """
import asyncio, gc, json, logging, os, signal, sys, threading, time
import redis, redis.asyncio
import dlock_redis as dlock
from dlock_redis import AsyncLocks, Locks, RedisLock
host, port, key = sys.argv[1], int(sys.argv[2]), sys.argv[3]
client, tasks = redis.Redis(host, port), redis.asyncio.Redis(host=host, port=port)
logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
def say(what):
    print(json.dumps(what), flush=True)
"""


@pytest.fixture
def server():
    return Server("single")


class Program:
    """A program that runs, and says something, a line of JSON each."""

    def __init__(self, server, text, address=None):
        host, port = address or addresses("DLOCK_SINGLE")[0]
        words = [PYTHON, "-c", BEGINS + textwrap.dedent(text), host, str(port), server.key]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment())

    def said(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else pytest.fail(self.process.stderr.read())

    def go(self):
        """Lets the program continue, which waits for a line of input."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        """What it has said, and logged."""
        out, log = self.process.communicate(timeout=3 * PATIENCE)
        assert self.process.returncode == 0, log
        return [json.loads(line) for line in out.splitlines()], log


def environment(**more):
    alone = {"PYTHONPATH"} if "DLOCK_ALONE" in os.environ else set()
    return {name: value for name, value in {**os.environ, **more}.items() if name not in alone or name in more}


def path():
    name = command("path {}:{}".format(*addresses("DLOCK_SINGLE")[0]))
    host, port = name.split(":")
    return name, (host, int(port))


KINDS = pytest.mark.parametrize("kind", ["threads", "asyncio"])


@KINDS
def test_a_guarded_command_is_sent_once(server, kind):
    """Its reply is lost: whether it has run is open, and it does not run again."""
    name, address = path()
    text = {
        "threads": """
            with Locks(client) as locks:
                hold = locks.acquire(key)
                say("held")
                os.read(0, 1)
                try:
                    hold.guard("INCR", key + ":n")
                    say("answered")
                except redis.RedisError as error:
                    say(type(error).__name__)
                time.sleep(1)  # nothing comes later
        """,
        "asyncio": """
            async def work():
                async with AsyncLocks(tasks) as locks:
                    hold = await locks.acquire(key)
                    say("held")
                    os.read(0, 1)
                    try:
                        await hold.guard("INCR", key + ":n")
                        say("answered")
                    except redis.RedisError as error:
                        say(type(error).__name__)
                    await asyncio.sleep(1)
            asyncio.run(work())
        """,
    }[kind]
    program = Program(server, text, address)
    assert program.said() == "held"
    command(f"delay {name} 1500")  # for the way there and back
    program.go()
    until(lambda: server.client.get(f"{server.key}:n"), "it has run")
    command(f"cut {name}")
    command(f"delay {name} 0")
    said, _ = program.end()
    assert server.client.get(f"{server.key}:n") == b"1"
    assert said[0] != "answered"
    command(f"close {name}")


@KINDS
def test_a_guarded_command_takes_no_longer_than_a_reply(server, kind):
    name, address = path()
    text = {
        "threads": """
            locks = Locks(client)
            hold = locks.acquire(key)
            say("held")
            os.read(0, 1)
            began = time.monotonic()
            try:
                hold.guard("SET", key + ":x", 1)
            except redis.RedisError as error:
                say(time.monotonic() - began)
            os._exit(0)
        """,
        "asyncio": """
            async def work():
                locks = AsyncLocks(tasks)
                hold = await locks.acquire(key)
                say("held")
                os.read(0, 1)
                began = time.monotonic()
                try:
                    await hold.guard("SET", key + ":x", 1)
                except redis.RedisError as error:
                    say(time.monotonic() - began)
                os._exit(0)
            asyncio.run(work())
        """,
    }[kind]
    program = Program(server, text, address)
    assert program.said() == "held"
    command(f"silence {name}")
    program.go()
    said, _ = program.end()
    assert said[0] < 3 + 4  # three seconds, and a busy machine
    command(f"close {name}")


@KINDS
def test_fenced_is_a_loss(server, kind):
    text = {
        "threads": """
            with Locks(client) as locks:
                hold = locks.acquire(key, actor="x")
                client.execute_command("DLOCK.FORCERELEASE", key)
                try:
                    hold.guard("SET", key + ":x", 1)
                except dlock.Fenced:
                    say([hold.lost.is_set(), bool(hold.lost), hold.reason in ("fenced", "forced")])
        """,
        "asyncio": """
            async def work():
                async with AsyncLocks(tasks) as locks:
                    hold = await locks.acquire(key, actor="x")
                    client.execute_command("DLOCK.FORCERELEASE", key)
                    try:
                        await hold.guard("SET", key + ":x", 1)
                    except dlock.Fenced:
                        say([hold.lost.is_set(), bool(hold.lost), hold.reason in ("fenced", "forced")])
            asyncio.run(work())
        """,
    }[kind]
    assert Program(server, text).end()[0] == [[True, True, True]]


def test_a_hold_that_is_not_lost_is_not_lost(server):
    text = """
        with Locks(client) as locks, locks.lock(key) as hold:
            say(bool(hold.lost))
            say("yes" if hold.lost else "no")
    """
    assert Program(server, text).end()[0] == [False, "no"]


def test_a_signals_handler_releases(server):
    """The main thread waits for a reply. Its handler releases a lock meanwhile."""
    name, address = path()
    command(f"delay {name} 20")
    text = """
        locks = Locks(client)
        other = redis.Redis(host, port)
        took, done = [], threading.Event()
        def handler(*_):
            began = time.monotonic()
            holds.pop().release()
            took.append(time.monotonic() - began)
        signal.signal(signal.SIGUSR1, handler)
        holds = [locks.acquire(f"{key}:{i}") for i in range(8)]
        def interrupt():
            while holds:
                before = len(holds)
                os.kill(os.getpid(), signal.SIGUSR1)
                while len(holds) == before and not done.is_set():
                    time.sleep(0.003)
        thread = threading.Thread(target=interrupt)
        thread.start()
        while holds:
            locks.acquire(key).release()
        done.set()
        thread.join()
        say(max(took) < 2.5)
        say([locks.is_held(f"{key}:{i}") for i in range(8)])
        locks.close()
    """
    assert Program(server, text, address).end()[0] == [True, [False] * 8]
    command(f"close {name}")


@KINDS
def test_a_forgotten_hold_is_lost(server, kind):
    """Of the hold only its event is kept."""
    text = {
        "threads": """
            locks = Locks(client, lease=3)
            lost = locks.acquire(key).lost
            gc.collect()
            say(lost.wait(10))
            locks.close()
        """,
        "asyncio": """
            async def work():
                locks = AsyncLocks(tasks, lease=3)
                lost = (await locks.acquire(key)).lost
                gc.collect()
                await asyncio.wait_for(lost.wait(), 10)
                say(True)
                await locks.aclose()
            asyncio.run(work())
        """,
    }[kind]
    said, log = Program(server, text).end()
    assert said == [True] and "forgotten" in log
    server.await_gone()


def test_the_hold_of_a_task_that_has_ended_is_lost(server):
    text = """
        async def work():
            locks = AsyncLocks(tasks, lease=3)
            async def forgets():
                hold = await locks.acquire(key)
            await asyncio.create_task(forgets())
            gc.collect()
            for _ in range(100):
                if not await locks.is_held(key):
                    break
                await asyncio.sleep(0.05)
            say(await locks.is_held(key))
            await locks.aclose()
        asyncio.run(work())
    """
    said, log = Program(server, text).end()
    assert said == [False] and "forgotten" in log


@KINDS
def test_after_a_pause_it_asks_first(server, kind):
    """The process stalls for longer than its lease, and the server renews it anyway."""
    text = {
        "threads": """
            locks = Locks(client, lease=2)
            hold = locks.acquire(key)
            time.sleep(1.5)  # it has grown old enough to be kept
            say("held")
            time.sleep(2)  # of the clock of the machine: it has stalled
            deadline = time.monotonic() + 10
            while not hold.left() and not hold.lost.is_set() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(1)
            say([hold.lost.is_set(), hold.left() > 0])
            hold.release()
            locks.close()
        """,
        "asyncio": """
            async def work():
                locks = AsyncLocks(tasks, lease=2)
                hold = await locks.acquire(key)
                await asyncio.sleep(1.5)
                say("held")
                await asyncio.sleep(2)
                deadline = time.monotonic() + 10
                while not hold.left() and not hold.lost.is_set() and time.monotonic() < deadline:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(1)
                say([hold.lost.is_set(), hold.left() > 0])
                await hold.release()
                await locks.aclose()
            asyncio.run(work())
        """,
    }[kind]
    program = Program(server, text)
    assert program.said() == "held"
    program.process.send_signal(signal.SIGSTOP)
    until(lambda: server.info()["holders"][0]["held-ms"] > 6000, "three leases have passed, and the server renews it")
    program.process.send_signal(signal.SIGCONT)
    assert program.end()[0] == [[False, True]]


def test_two_commands_a_lock(server):
    """As redis-py's own lock: one takes it, one gives it back. A turn in a queue takes three."""
    name, address = path()
    text = """
        lock = client.lock(key, timeout=10, lock_class=RedisLock)
        with lock:
            pass
        say("warm")
        sys.stdin.read(1)
        for _ in range(50):
            with lock:
                pass
        say("done")
        sys.stdin.read(1)
        locks = Locks(client, lease=600)
        def work():
            for _ in range(20):
                locks.acquire(key).release()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        say("taken")
        sys.stdin.read(1)
        os._exit(0)
    """
    host, port = address
    words = [PYTHON, "-c", BEGINS + textwrap.dedent(text), host, str(port), server.key]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(), bufsize=1
    )

    def counted(word):
        assert json.loads(process.stdout.readline()) == word
        seen = int(command(f"commands {name}"))
        process.stdin.write("\n")
        return seen

    before, after, taken = counted("warm"), counted("done"), counted("taken")
    process.wait()
    assert after - before <= 2 * 50 + 2
    assert taken - after <= 3 * 80 + 30  # a loop begins and ends, and may be a row behind
    command(f"close {name}")


def test_locks_without_a_server(server):
    text = """
        from dlock_redis import Fenced, FakeLocks, LockTimeout, NotHeld
        locks = FakeLocks()
        lost = []
        with locks.lock("stock", on_lost=lost.append) as hold:
            hold.guard("SET", "stock:left", 41)
            say([locks.try_lock("stock"), locks.is_held("stock"), bool(locks.try_lock("other"))])
            locks.lose(hold)
            for call in (lambda: hold.guard("SET", "x", 1), hold.release):
                try:
                    call()
                except (Fenced, NotHeld) as error:
                    say(type(error).__name__)
            locks.holds.append(hold)
        say([len(lost), locks.commands == [("SET", "stock:left", 41)], hold.reason])
        with locks.lock("readers", shared=True), locks.lock("readers", shared=True):
            say(locks.try_lock("readers"))
        with locks.many(["b", "a"]) as holds:
            say(sorted(holds))
        locks.acquire("period").release_after(0.2)
        say([locks.try_lock("period"), bool(locks.try_lock("period", 5))])
        try:
            locks.acquire("period", 0)
        except LockTimeout as error:
            say(error.taken)
    """
    assert Program(server, text).end()[0] == [
        [None, True, True], "Fenced", "NotHeld", [1, True, "forced"], None, ["a", "b"], [None, True], True,
    ]


MISTAKES = """\
import asyncio
import redis
import redis.asyncio
from dlock_redis import AsyncLocks, Locks, Quorum

locks = Locks(redis.Redis())
tasks = AsyncLocks(redis.asyncio.Redis())

@locks.lock("stock")
def work(count: int) -> str:
    return str(count)

def told(name: str) -> None: ...

Locks(redis.asyncio.Redis())  # 1: of the other kind
AsyncLocks(redis.Redis())  # 2
locks.try_lock("stock", 5).release()  # 3: it may be None
locks.acquire("stock", shard=True)  # 4: no such option
locks.acquire("stock", limit="3")  # 5: no number
locks.lock("stock", on_lost=told)  # 6: it gets a hold
work("three")  # 7: the decorator keeps the types
locks.acquire("stock").guard("SET", "x", None)  # 8: no argument of a command
locks.lock("stock").token  # 9: nothing is taken
tasks.acquire("stock").release()  # 10: it is to be awaited
Locks(redis.Redis(), lease="10")  # 11
locks.acquire(5)  # 12
number: int = work(3)  # 13
"""


def test_a_checker_of_types_finds_mistakes(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(MISTAKES)
    words = [MYPY, "--strict", "--python-executable", PYTHON, "--cache-dir", str(tmp_path / "cache"), str(program)]
    env = environment(MYPYPATH=environment().get("PYTHONPATH", ""))
    told = subprocess.run(words, capture_output=True, text=True, env=env)
    found = {int(line) for line in re.findall(r"program.py:(\d+): error", told.stdout)}
    wrong = {number for number, line in enumerate(MISTAKES.splitlines(), 1) if re.search(r"# \d+", line)}
    assert found == wrong, told.stdout


FORWARDS = """
import os, socket
real, to = socket.getaddrinfo, int(os.environ["DLOCK_PORT"])
socket.getaddrinfo = lambda host, port, *how, **more: real("127.0.0.1", to if port == 6379 else port, *how, **more)
"""


PAGES = [(HERE / "README.md", number) for number in range(5)] + [(HERE.parents[1] / "README.md", 0)]


@pytest.mark.parametrize(("page", "number"), PAGES)
def test_the_programs_of_the_page(server, tmp_path, page, number):
    """Each program of both READMEs as it is printed, behind those before it, in an empty directory.
    Their server is the one at 6379.
    """
    programs = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    if number >= len(programs):
        assert programs
        pytest.skip("there are no more")
    (tmp_path / "sitecustomize.py").write_text(FORWARDS)
    (tmp_path / "program.py").write_text("\n".join(programs[: number + 1]).replace("from __future__", "# "))
    before = environment().get("PYTHONPATH", "")
    env = environment(
        PYTHONPATH=f"{tmp_path}:{before}", DLOCK_PORT=str(addresses("DLOCK_SINGLE")[0][1]), PYTHONWARNINGS="error"
    )
    words = [PYTHON, "program.py"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "lost" not in done.stderr


def test_old_names_of_settings(server):
    text = """
        import warnings
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            locks = Locks(client, queue_grace=4)
            AsyncLocks(tasks, queue_grace=4)
        say([[str(one.message), one.filename] for one in told if one.category is DeprecationWarning])
        try:
            Locks(client, bond=3)
        except TypeError as error:
            say(str(error))
        locks.close()
    """
    said, _ = Program(server, text).end()
    assert said[0] == [["queue_grace is the server's dlock.claim-window-ms now", "<string>"]] * 2
    assert "bond" in said[1]
