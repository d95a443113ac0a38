"""The servers of a test, what they show, and the two kinds of clients as one: threads, and tasks of an event loop."""

import asyncio
import concurrent.futures
import contextlib
import functools
import json
import os
import random
import signal
import socket
import threading
import time

import pytest
import redis
import redis.asyncio

import dlock_redis as dlock

PATIENCE = int(os.environ.get("PATIENCE", "30"))
LEASE = 1.5  # of a hold that is to end soon: a stall of a busy machine also ends it
KEPT = 4 * LEASE  # it ends in no stall of a busy machine
LONG = 15.0  # no fault takes so long, however busy the machine
SETTINGS = {"lease": KEPT, "hang_timeout": 30.0}


def addresses(name):
    return [(host, int(port)) for host, port in (one.split(":") for one in os.environ[name].split(","))]


def until(condition, what):
    end = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"gave up waiting until {what}"
        time.sleep(0.02)


def command(line):
    """Has something done to the servers, or on the way to them."""
    with socket.create_connection(addresses("DLOCK_CONTROL")[0]) as connection, connection.makefile("rw") as lines:
        lines.write(line + "\n")
        lines.flush()
        answer = lines.readline().strip()
    assert answer.startswith("ok "), answer
    return answer[3:]


control = command


@contextlib.contextmanager
def frozen(*clients):
    """These servers hang meanwhile."""
    processes = [one.info("server")["process_id"] for one in clients]
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
            until(lambda: open(f"/proc/{process}/stat").read().rpartition(")")[2].split()[0] == "T", "it stands still")
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


class Proxy:
    """A path to a server that can fall silent: what is on its way then comes when it is thawed, the end too."""

    def __init__(self, address, asked=lambda: None):
        self.server, self.asked, self.word, self.silent = address, asked, None, False
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address, self.gates, self.sockets, self.pumps = self.listener.getsockname(), [], [], []
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self, word=None):
        """All connections, or each that says this word."""
        if word:
            self.word = word.encode()
            return
        self.silent = True
        for gate in self.gates:
            gate.clear()

    def thaw(self):
        self.word, self.silent = None, False
        for gate in self.gates:
            gate.set()

    def is_frozen(self):
        return not all(gate.is_set() for gate in self.gates)

    def await_quiet(self):
        """Both ends have closed all connections: the server has read all that was sent."""
        until(lambda: not any(pump.is_alive() for pump in self.pumps), "nothing is on its way")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.listener.close()
        self.thaw()
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.asked()
                server, gate = socket.create_connection(self.server), threading.Event()
                self.sockets += [client, server]
                self.gates.append(gate)
                if not self.silent:
                    gate.set()
                for pair in ((client, server), (server, client)):
                    self.pumps.append(threading.Thread(target=self._pump, args=(*pair, gate), daemon=True))
                    self.pumps[-1].start()

    def _pump(self, source, target, gate):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.word and self.word in data:
                    gate.clear()
                gate.wait()
                target.sendall(data)
        gate.wait()
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def interrupted_when(ready, work):
    """Ctrl-C while work() waits. Gives its value if that has come all the same."""
    def interrupt():
        if ready():
            os.kill(os.getpid(), signal.SIGINT)

    # Where this process runs in the background it may have inherited that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    helper, value = threading.Thread(target=interrupt), None
    try:
        helper.start()
        value = work()
        helper.join()
    except KeyboardInterrupt:
        pass
    helper.join()
    return value


def in_child(work):
    """What work() gives in a child of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:  # whatever happens: a child that continues would be a second pytest
            try:
                result = work()
            except BaseException as error:
                result = repr(error)
            os.write(writer, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as result:
        value = json.loads(result.read() or '"it was killed"')
    os.waitpid(child, 0)
    return value


def error_of(call, *arguments):
    try:
        return repr(call(*arguments))
    except dlock.DLockError as error:
        return type(error).__name__


def generates():
    yield


async def generates_later():
    yield


async def runs_later():
    pass


class Later:
    async def __call__(self):
        pass


async def hands_on():
    return generates()


def primary_of_the_pair():
    def is_primary(address):
        try:
            with redis.Redis(*address) as one:
                return one.role()[0] in (b"master", "master")
        except redis.RedisError:
            return False

    return next((one for one in addresses("DLOCK_PAIR") if is_primary(one)), addresses("DLOCK_PAIR")[0])


class PairConnection(redis.Connection):
    """Goes to whoever of the pair is the primary, as a connection by Sentinel does."""

    def connect(self):
        self.host, self.port = primary_of_the_pair()
        super().connect()


class AsyncPairConnection(redis.asyncio.Connection):
    async def connect(self):
        self.host, self.port = await asyncio.to_thread(primary_of_the_pair)
        await super().connect()


def client(place, module=redis, **options):
    if place == "cluster":
        host, port = addresses("DLOCK_CLUSTER")[0]
        kind = redis.RedisCluster if module is redis else redis.asyncio.RedisCluster
        return kind(host=host, port=port, **options)
    if place == "pair":
        kind = PairConnection if module is redis else AsyncPairConnection
        return module.Redis(connection_pool=module.ConnectionPool(connection_class=kind, **options))
    host, port = addresses("DLOCK_SINGLE")[0]
    return module.Redis(**{"host": host, "port": port, **options})


class Server:
    """What the server shows of its locks."""

    def __init__(self, place):
        self.place, self.client = place, client(place)
        self.key = f"{{{random.getrandbits(48):x}}}lock"

    def control(self, line):
        """Has something done to the servers, and finds their roles again."""
        control(line)
        if self.place == "pair":
            self.client.connection_pool.disconnect()

    def ask(self, *words):
        return self.client.execute_command(*words)

    def node(self, key):
        """A client of whoever serves this key now; some nodes may know it later than others."""
        if self.place != "cluster":
            return self.client

        def serves(address):
            try:
                node = redis.Redis(*address)
                node.exists(key)  # or MOVED
                return node if node.role()[0] in (b"master", "master") else None
            except redis.RedisError:
                return None

        return until(lambda: next(filter(None, map(serves, addresses("DLOCK_CLUSTER"))), None), f"{key} is served")

    def info(self, key=None):
        reply = self.ask("DLOCK.INFO", key or self.key, "COUNT", 5000)
        return text(reply) if reply else {"holders": [], "queue": [], "held": 0, "queued": 0}

    def owners(self, key=None):
        return [holder["owner"] for holder in self.info(key)["holders"]]

    def queue(self, key=None):
        return [place["owner"] for place in self.info(key)["queue"]]

    def await_queued(self, count, key=None):
        def there():
            queue = self.info(key)["queue"]
            return len(queue) == count and not any(place["kind"] == "absent" for place in queue)

        until(there, f"{count} are queued, and nobody is absent")

    def await_tickets(self, count, key=None):
        """Waits for that many in the queue. They may be absent: a client without messages polls."""
        until(lambda: len(self.queue(key)) == count, f"{count} have tickets")

    def await_gone(self, key=None):
        until(lambda: self.ask("DLOCK.INFO", key or self.key) is None, "nobody holds it and nobody waits")

    def hold(self, owner="other", key=None, *options):
        """Another owner takes it, for longer than any test lasts."""
        reply = self.ask("DLOCK.ACQUIRE", key or self.key, owner, 600_000, *options)
        assert reply, "the lock is taken"
        return reply[0]

    def hand_over(self, owner="other", key=None):
        """Releases it, and returns the next holder in the same step."""
        key = key or self.key
        with self.node(key).pipeline(transaction=True) as step:
            step.execute_command("DLOCK.RELEASE", key, owner, "HOLDS", 0)
            step.execute_command("DLOCK.HELD", key)
            held = step.execute()[1]
        return held and held[3].decode()

    def messages(self, key=None):
        """The unlock messages of a lock from now on."""
        key, pubsub = key or self.key, self.node(key or self.key).pubsub()
        if self.place == "cluster":
            pubsub.ssubscribe(f"__dlock@0__:{key}")
            read = lambda: pubsub.get_sharded_message(timeout=PATIENCE)
        else:
            pubsub.subscribe(f"__dlock@0__:{key}")
            read = lambda: pubsub.get_message(timeout=PATIENCE)
        assert "subscribe" in read()["type"]
        return lambda: read()["data"].decode()


class Master(Server):
    """One of the servers that know nothing of each other."""

    def __init__(self, address, key):
        self.place, self.client, self.key = "single", redis.Redis(*address), key


def text(value):
    """INFO's map with words for bytes, however the protocol has sent it."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {text(name): text(one) for name, one in value.items()}
    if isinstance(value, list):
        if value and len(value) % 2 == 0 and value[0] in (b"state", b"owner"):
            return text(dict(zip(value[::2], value[1::2])))
        return [text(one) for one in value]
    return value


class Threads:
    """dlock.Locks, each call in a thread."""

    def __init__(self, place, lease=KEPT, hang_timeout=30.0, reply_timeout=3.0, observer=None, **options):
        how = {"lease": lease, "hang_timeout": hang_timeout, "reply_timeout": reply_timeout, "observer": observer}
        self.locks = dlock.Locks(client(place, **options), **how)
        self.pool = concurrent.futures.ThreadPoolExecutor(64)
        self.stacks = []  # of `many`

    def end(self):
        self.locks.close()

    def lock(self, key, timeout=PATIENCE, **options):
        return self.locks.acquire(key, timeout, **options)

    def try_lock(self, key, timeout=0, **options):
        return self.locks.try_lock(key, timeout, **options)

    def start(self, key, timeout=PATIENCE, **options):
        return self.pool.submit(self.locks.acquire, key, timeout, **options)

    def many(self, keys, **options):
        return self.locks.many(keys, **options)

    def all_of(self, keys, timeout):
        """The holds, for as long as the test likes; None if one is taken."""
        stack = contextlib.ExitStack()
        try:
            holds = stack.enter_context(self.locks.many(keys, timeout))
        except dlock.LockTimeout as error:
            if error.taken:
                return None
            raise
        self.stacks.append(stack)
        return list(holds.values())

    def start_all(self, keys, timeout):
        return self.pool.submit(self.all_of, keys, timeout)

    child_takes = True

    def release_in_child(self, hold):
        hold.release()

    def in_child(self, key):
        with self.locks.lock(key, PATIENCE) as hold:
            return not hold.lost

    def works_that_return_early(self):
        of_functions = [generates, generates_later, functools.partial(generates)]
        of_tasks = [runs_later, functools.partial(runs_later), Later()]
        return [*of_functions, *of_tasks, lambda: runs_later(), lambda: generates()]

    def locked(self, key, work):
        self.locks.lock(key)(work)()

    def releases_in_block(self, key):
        with self.locks.lock(key) as hold:
            hold.release()
            with pytest.raises(dlock.NotHeld):
                hold.release()

    def cancel_when(self, ready, key):
        """Ctrl-C while lock() waits. Gives the hold if it was granted all the same."""
        return interrupted_when(ready, lambda: self.locks.acquire(key, PATIENCE))

    def close(self):
        self.locks.close()
        self.pool.shutdown(wait=False)


class TaskHold:
    """An AsyncHold for a test that is no task itself."""

    def __init__(self, tasks, hold):
        self.tasks, self.hold, self.token, self.owner, self.lost = tasks, hold, hold.token, hold.owner, self
        self.key = hold.key
        self.heard = threading.Event()
        tasks.run(self._watch())

    async def _watch(self):
        lost, heard = self.hold.lost, self.heard

        async def watch():
            await lost.wait()
            heard.set()

        self.watcher = asyncio.ensure_future(watch())

    def wait(self, timeout):
        return self.heard.wait(timeout)

    def is_set(self):
        return self.hold.lost.is_set()

    def forget(self):
        """The test no longer refers to the AsyncHold."""
        self.tasks.loop.call_soon_threadsafe(self.watcher.cancel)
        self.hold = None

    def guard(self, *command):
        return self.tasks.run(self.hold.guard(*command))

    def release(self):
        self.tasks.run(self.hold.release())

    def release_after(self, seconds):
        self.tasks.run(self.hold.release_after(seconds))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.tasks.run(self.hold.__aexit__(*error))


def close(client):
    """Of redis.asyncio; the oldest has no aclose."""
    return (client.aclose if hasattr(client, "aclose") else client.close)()


class Tasks:
    """dlock.AsyncLocks, each call as a task."""

    def __init__(self, place, lease=KEPT, hang_timeout=30.0, reply_timeout=3.0, observer=None, **options):
        self.loop = asyncio.new_event_loop()
        self.pool, self.stacks = concurrent.futures.ThreadPoolExecutor(8), []
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

        async def make():
            redis_client = client(place, redis.asyncio, **options)
            how = {"lease": lease, "hang_timeout": hang_timeout, "reply_timeout": reply_timeout, "observer": observer}
            return dlock.AsyncLocks(redis_client, **how)

        self.locks = self.run(make())

    def submit(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine):
        return self.submit(coroutine).result(2 * PATIENCE)

    async def _lock(self, key, timeout, options):
        return await self.locks.acquire(key, timeout, **options)

    def lock(self, key, timeout=PATIENCE, **options):
        return TaskHold(self, self.run(self._lock(key, timeout, options)))

    def try_lock(self, key, timeout=0, **options):
        hold = self.run(self.locks.try_lock(key, timeout, **options))
        return hold and TaskHold(self, hold)

    def start(self, key, timeout=PATIENCE, **options):
        inner, outer = self.submit(self._lock(key, timeout, options)), concurrent.futures.Future()

        def done(inner):
            if inner.cancelled():
                outer.cancel()
            elif inner.exception():
                outer.set_exception(inner.exception())
            else:  # TaskHold waits for the loop, which must not wait for itself
                threading.Thread(target=lambda: outer.set_result(TaskHold(self, inner.result()))).start()

        inner.add_done_callback(done)
        return outer

    def many(self, keys, **options):
        manager = self.locks.many(keys, **options)

        class Many:
            def __enter__(_):
                return self.run(manager.__aenter__())

            def __exit__(_, *error):
                self.run(manager.__aexit__(*error))

        return Many()

    def all_of(self, keys, timeout):
        stack = contextlib.AsyncExitStack()
        try:
            holds = self.run(stack.enter_async_context(self.locks.many(keys, timeout)))
        except dlock.LockTimeout as error:
            if error.taken:
                return None
            raise
        self.stacks.append(stack)
        return [TaskHold(self, hold) for hold in holds.values()]

    def start_all(self, keys, timeout):
        return self.pool.submit(self.all_of, keys, timeout)

    child_takes = True

    def release_in_child(self, hold):
        asyncio.run(hold.hold.release())

    def in_child(self, key):
        async def take():
            async with self.locks.lock(key, PATIENCE) as hold:
                return not hold.lost

        return asyncio.run(take())

    def works_that_return_early(self):
        return [generates, generates_later, functools.partial(generates), hands_on]

    def locked(self, key, work):
        self.run(self.locks.lock(key)(work)())

    def releases_in_block(self, key):
        async def work():
            async with self.locks.lock(key) as hold:
                await hold.release()
                with pytest.raises(dlock.NotHeld):
                    await hold.release()

        self.run(work())

    def end(self):
        self.run(self.locks.aclose())

    def cancel_when(self, ready, key):
        """task.cancel() while lock() waits. Gives the hold if it was granted all the same."""
        async def work():
            task = asyncio.ensure_future(self._lock(key, PATIENCE, {}))
            await asyncio.to_thread(ready)
            task.cancel()
            try:
                return await task
            except asyncio.CancelledError:
                return None

        hold = self.run(work())
        return hold and TaskHold(self, hold)

    def close(self):
        async def end():
            # A cancel that comes as the library gives up on a connection can get lost in it.
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=1)
            await self.locks.aclose()
            await close(self.locks.client)

        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)


KINDS = {"threads": Threads, "asyncio": Tasks}
