"""Ways to a server that need more than an address: TLS, and Sentinels that say who is the primary."""

import asyncio
import concurrent.futures
import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

import dlock_redis as dlock
from dlock_redis import _library
from stage import KEPT, LONG, PATIENCE, Server, addresses, close, command, primary_of_the_pair, text, until

HOW = {"lease": LONG, "hang_timeout": 30.0}
FOLLOWS = 8.0  # seconds: a former primary serves for eleven
LATE = 10.0  # no call takes so long, however busy the machine


def run(*words):
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def place():
    return "single"


@pytest.fixture
def tls(tmp_path):
    """Whose certificate is trusted, and where TLS ends that leads to the single server."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=test".split()
    run(*words, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    loop, to = asyncio.new_event_loop(), addresses("DLOCK_SINGLE")[0]

    async def pump(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
            writer.close()

    async def lead(reader, writer):
        there, away = await asyncio.open_connection(*to)
        await asyncio.gather(pump(reader, away), pump(there, writer))

    begun = loop.run_until_complete(asyncio.start_server(lead, "127.0.0.1", 0, ssl=context))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    yield str(certificate), "rediss://{}:{}".format(*begun.sockets[0].getsockname())
    loop.call_soon_threadsafe(loop.stop)


def test_tls(server, tls):
    trusted, url = tls
    with dlock.Locks(redis.Redis.from_url(url, ssl_ca_certs=trusted), **HOW) as locks:
        with locks.lock(server.key, PATIENCE) as hold:
            assert server.owners() == [hold.owner]
        server.hold()
        threading.Thread(target=lambda: (server.await_queued(1), server.hand_over())).start()
        with locks.lock(server.key, PATIENCE) as hold:  # the row comes through TLS as well
            assert hold.guard("SET", f"{server.key}:x", 1)
    server.await_gone()
    # The client does not trust this server, and reports that at once: to ask again would not help.
    with dlock.Locks(redis.Redis.from_url(url), **HOW) as locks:
        with pytest.raises(redis.ConnectionError, match="(?i)certificate"):
            locks.acquire(server.key)


def test_tls_asyncio(server, tls):
    trusted, url = tls

    async def work():
        client = redis.asyncio.Redis.from_url(url, ssl_ca_certs=trusted)
        async with dlock.AsyncLocks(client, **HOW) as locks:
            await asyncio.to_thread(server.hold)
            wait = asyncio.ensure_future(locks.acquire(server.key, PATIENCE))
            await asyncio.to_thread(server.await_queued, 1)
            await asyncio.to_thread(server.hand_over)
            await (await wait).release()
        await close(client)

    asyncio.run(work())
    server.await_gone()


@pytest.fixture
def sentinel(tmp_path):
    """The address of a Sentinel that watches the pair, and begins nothing by itself."""
    port = int(command("port"))
    host, watched = primary_of_the_pair()
    lines = [f"port {port}", "bind 127.0.0.1", f"dir {tmp_path}", f"sentinel monitor pair {host} {watched} 1"]
    lines += ["sentinel down-after-milliseconds pair 600000", "sentinel failover-timeout pair 20000"]
    (tmp_path / "sentinel.conf").write_text("\n".join(lines) + "\n")
    words = ["timeout", "120", "redis-server", str(tmp_path / "sentinel.conf"), "--sentinel"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        asked = redis.Redis("127.0.0.1", port)

        def ready():
            with contextlib.suppress(redis.RedisError):
                return any(one["master-link-status"] == "ok" for one in asked.sentinel_slaves("pair"))

        until(ready, "the Sentinel knows the replica")
        yield ("127.0.0.1", port)
    finally:
        process.terminate()
        process.wait()

        def switched():
            with contextlib.suppress(AssertionError):
                return command("switch")

        until(switched, "the stage has connections to the pair again")  # a Sentinel kills all that a new replica has


def promote(sentinel, key):
    """The Sentinel has the replica, which knows this lock, made primary, and the old one its replica."""
    before = primary_of_the_pair()
    (after,) = {*addresses("DLOCK_PAIR")} - {before}

    def known(address):
        with redis.Redis(*address) as one:
            shown = one.execute_command("DLOCK.INFO", key)
            return shown and text(shown)["holders"] and text(shown)["queue"]

    # After a sync without a disk the stream begins up to a second later.
    until(lambda: all(map(known, addresses("DLOCK_PAIR"))), "the replica knows the lock, too")
    new, old = redis.Redis(*after), redis.Redis(*before)
    redis.Redis(*sentinel).execute_command("SENTINEL", "FAILOVER", "pair")
    until(lambda: new.role()[0] == b"master", "the replica is primary")
    promoted = time.monotonic()
    until(lambda: text(new.execute_command("DLOCK.INFO", key))["holders"][0]["in"], "it is kept by the new primary")
    assert time.monotonic() - promoted < FOLLOWS, "the client has stayed with the former primary"

    def done():
        return old.role()[0] == b"slave" and old.info("replication")["master_link_status"] == "up"

    until(done, "the former primary is a replica")


def survives(server, hold):
    """What is held and who waits are as they were."""
    server.client.connection_pool.disconnect()
    until(lambda: server.info()["holders"][0]["in"], "it is kept by the new primary")
    assert server.info()["holders"][0]["token"] == hold.token and not hold.lost.is_set()
    server.await_queued(1)
    assert "/next#" in server.queue()[0]


@pytest.mark.skipif(not shutil.which("redis-server"), reason="there is no Sentinel")
@pytest.mark.stops("pair")
def test_a_sentinel_promotes_the_replica(sentinel):
    server = Server("pair")
    with dlock.Locks(Sentinel([sentinel]).master_for("pair"), **HOW) as locks:
        hold = locks.acquire(server.key, PATIENCE)
        waiter = threading.Thread(target=lambda: locks.acquire(server.key, 2 * PATIENCE, actor="next").release())
        waiter.start()
        server.await_queued(1)
        promote(sentinel, server.key)
        survives(server, hold)
        hold.release()
        waiter.join()
    server.await_gone()


@pytest.fixture
def silent():
    """The address of one that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()


def outlasts(server, token):
    until(lambda: server.info()["holders"][0]["held-ms"] > 1500 * KEPT, "what nobody keeps has ended")
    assert server.info()["holders"][0]["token"] == token


@pytest.mark.skipif(not shutil.which("redis-server"), reason="there is no Sentinel")
@pytest.mark.stops("pair")
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_silent_sentinel_ends_no_hold(sentinel, silent, kind):
    server = Server("pair")
    sentinels = [silent, sentinel, sentinel]

    async def work():
        async with dlock.AsyncLocks(AsyncSentinel(sentinels).master_for("pair"), lease=KEPT) as locks:
            hold = await locks.acquire(server.key, LATE)
            await asyncio.to_thread(outlasts, server, hold.token)
            assert not hold.lost
            await asyncio.wait_for(hold.release(), LATE)

    if kind == "asyncio":
        asyncio.run(work())
    else:
        with dlock.Locks(Sentinel(sentinels).master_for("pair"), lease=KEPT) as locks:
            hold = locks.acquire(server.key, LATE)
            outlasts(server, hold.token)
            assert not hold.lost
            began = time.monotonic()
            hold.release()
            assert time.monotonic() - began < LATE
    server.await_gone()


def test_a_sentinel_with_another_address():
    """As through a tunnel: redis-py's `force_master_ip`."""
    theirs = Sentinel([("localhost", 1)], force_master_ip="127.0.0.2")
    assert _library.for_threads(theirs.master_for("pair"), 3.0)._pool.sentinel_manager._force_master_ip == "127.0.0.2"


async def take_turns(locks, key):
    while True:
        with contextlib.suppress(dlock.DLockError):
            await (await locks.acquire(key)).release()
        await asyncio.sleep(0.01)


@pytest.mark.skipif(not shutil.which("redis-server"), reason="there is no Sentinel")
@pytest.mark.stops("pair")
def test_a_sentinel_promotes_the_replica_asyncio(sentinel):
    server = Server("pair")

    async def work():
        client = AsyncSentinel([sentinel]).master_for("pair")
        async with dlock.AsyncLocks(client, **HOW) as locks:
            hold = await locks.acquire(server.key, PATIENCE)
            wait = asyncio.ensure_future(locks.acquire(server.key, 2 * PATIENCE, actor="next"))
            await asyncio.to_thread(server.await_queued, 1)
            # Other calls learn of the new primary first, while the session's connection is in use.
            turns = asyncio.gather(*(take_turns(locks, f"{server.key}:{number}") for number in range(5)))
            await asyncio.to_thread(promote, sentinel, server.key)
            turns.cancel()
            await asyncio.to_thread(survives, server, hold)
            await hold.release()
            await (await wait).release()
        await close(client)

    asyncio.run(work())
    server.await_gone()


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
@pytest.mark.parametrize(
    "error",
    [redis.DataError("a bad argument"), TypeError("an option"), ImportError("no such module"), UnicodeError("a host")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_no_time_mends_a_mistake(kind, error, wrapped):
    """A wait without bound ends at once."""

    def fails():
        if wrapped:
            raise redis.ConnectionError("it does not connect") from error
        raise error

    class Wrong(redis.Connection):
        def connect(self):
            fails()

    class AsyncWrong(redis.asyncio.Connection):
        async def connect(self):
            fails()

    async def work():
        client = redis.asyncio.Redis(connection_pool=redis.asyncio.ConnectionPool(connection_class=AsyncWrong))
        async with dlock.AsyncLocks(client) as locks:
            await asyncio.wait_for(locks.acquire("key"), PATIENCE)

    with pytest.raises(redis.ConnectionError if wrapped else type(error)) as seen:
        if kind == "threads":
            client = redis.Redis(connection_pool=redis.ConnectionPool(connection_class=Wrong))
            with dlock.Locks(client) as locks, concurrent.futures.ThreadPoolExecutor(1) as pool:
                try:
                    pool.submit(locks.acquire, "key").result(PATIENCE)
                finally:
                    locks.close()
        else:
            asyncio.run(work())
    assert not isinstance(seen.value, TimeoutError)
