# SPDX-License-Identifier: MIT
"""The program's client as a template: connections of the same kind, with our bounds and without retries.

TLS, users, Unix sockets, Sentinels and clusters come along, because redis-py makes the connections."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis import exceptions as library
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from ._clock import now
from ._errors import FAILURES, typed

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout

Words = tuple[Any, ...]
CONNECTIONS = 16  # of tasks, to each server, however many ask it at once; a command that blocks has another
UNBOUNDED = 2**31  # a pool's connections: with a bound it would refuse a release while many wait
ASK_SENTINELS = 1.0  # seconds: a connection to a former primary lasts no longer

# Options tied to the program's own pool, and options that enable retries.
_STRANGE = ("maint_notifications", "oss_cluster_maint", "maintenance_", "parser_class", "orig_", "retry_on", "himport")
_OF_A_NODE = (
    "host",
    "port",
    "connection_class",
    "connection_pool",
    "redis_connect_func",
    "response_callbacks",
    "event",
)


def bounded(kwargs: dict[str, Any], within: float, retry: Any) -> dict[str, Any]:
    """Returns how a connection is made: bounded, tried once, RESP2, replies as bytes."""
    kept = {name: value for name, value in kwargs.items() if not name.startswith(_STRANGE)}
    kept |= {"socket_timeout": within, "retry": retry, "protocol": 2, "health_check_interval": 0}
    kept |= {"decode_responses": False}
    return kept if "path" in kept else {**kept, "socket_connect_timeout": within}


def _sentinel(pool: Any, kind: Any, within: float, retry: Any) -> Any:
    """Returns the same Sentinels, with our bounds: to ask all of them takes less time than a reply may take."""
    theirs = pool.sentinel_manager
    places = [one.connection_pool.connection_kwargs for one in theirs.sentinels]
    how = bounded(theirs.sentinel_kwargs, within / (len(places) + 1), retry)
    address = getattr(theirs, "_force_master_ip", None)  # older versions have none, and ignore it
    places = [(one["host"], one["port"]) for one in places]
    return kind(places, theirs.min_other_sentinels, how, force_master_ip=address)


def _of_pool(pool: Any, asked: Any, within: float, retry: Any) -> Any:
    """Returns a pool like this one. `asked`: the library's module, for threads or for tasks."""
    kwargs = bounded(pool.connection_kwargs, within, retry) | {"max_connections": UNBOUNDED}
    if not isinstance(pool, asked.sentinel.SentinelConnectionPool):
        return asked.ConnectionPool(connection_class=pool.connection_class, **kwargs)
    kwargs |= {"connection_class": pool.connection_class, "is_master": pool.is_master}
    kwargs.pop("connection_pool", None)
    sentinel = _sentinel(pool, asked.sentinel.Sentinel, within, retry)
    return asked.sentinel.SentinelConnectionPool(pool.service_name, sentinel, **kwargs)


def _of_cluster(client: Any, asked: Any, within: float, retry: Any) -> Any:
    node = asked.cluster.ClusterNode
    kwargs = bounded(client.get_connection_kwargs(), within, retry)
    kwargs = {name: value for name, value in kwargs.items() if not name.startswith(_OF_A_NODE)}
    kwargs["max_connections"] = UNBOUNDED  # per node
    kwargs["reinitialize_steps"] = 0  # else each fifth MOVED ends the connections under other tasks' calls
    if int(redis.__version__.split(".")[0]) < 6:
        kwargs["cluster_error_retry_attempts"] = 0
        del kwargs["retry"]
    known = client.get_nodes() or client.nodes_manager.startup_nodes.values()
    seeds = [node(one.host, one.port) for one in known]
    return type(client)(startup_nodes=seeds, address_remap=client.nodes_manager.address_remap, **kwargs)


def is_cluster(client: Any) -> bool:
    return isinstance(client, (redis.RedisCluster, redis.asyncio.RedisCluster))


def decoder(client: Any) -> Any:
    """Returns what decodes a reply as the program's client would."""
    encoder = client.get_encoder()

    def decode(one: Any) -> Any:
        return [decode(each) for each in one] if isinstance(one, list) else encoder.decode(one)

    return decode


def _typed(replies: list[Any]) -> list[Any]:
    return [typed(reply) if isinstance(reply, Exception) else reply for reply in replies]


class Server:
    """A server, or the primary that the Sentinels name, for threads."""

    def __init__(self, client: Any, within: float):
        self._pool: Any = _of_pool(client.connection_pool, redis, within, Retry(NoBackoff(), 0))
        self._made: Any = redis.Redis(connection_pool=self._pool)
        self._within = within
        self._ask_at = 0.0  # the Sentinels

    def call(self, words: Words) -> Any:
        """Returns the reply to one command. Raises an error of this package for one of the server."""
        try:
            return self._send(words)
        except FAILURES as error:
            self._leave_a_replica([error])
            raise typed(error) from error.__cause__

    def pipe(self, commands: Sequence[Words]) -> list[Any]:
        """Returns the replies to several commands, or their errors."""
        with self._client().pipeline(transaction=False) as pipe:
            for words in commands:
                pipe.execute_command(*words)
            replies = pipe.execute(raise_on_error=False)
        self._leave_a_replica(replies)
        return _typed(replies)

    def server(self, key: bytes) -> str:
        """Returns the name of the server of a key."""
        return ""

    def close(self) -> None:
        self._pool.disconnect()

    def _client(self) -> Any:
        if isinstance(self._pool, redis.sentinel.SentinelConnectionPool) and self._ask_at <= now():
            self._ask_at = now() + ASK_SENTINELS
            try:  # it ends the connections to a former primary
                self._pool.get_master_address()  # type: ignore[no-untyped-call]
            except FAILURES:
                self._ask_at = now() + self._within  # that took time, and the next calls have their own
        return self._made

    def _send(self, words: Words) -> Any:
        return self._client().execute_command(*words)

    def _leave_a_replica(self, replies: Sequence[object]) -> None:
        """New connections may find the primary."""
        if any(isinstance(reply, library.ReadOnlyError) for reply in replies):
            self._pool.disconnect(inuse_connections=False)


class Cluster(Server):
    """A cluster, for threads."""

    def __init__(self, client: Any, within: float):
        self._template = client
        self._within = within
        self._making = threading.RLock()
        self._made: Any = None
        self._failed: set[str] = set()  # nodes that have not answered a SESSION

    def server(self, key: bytes) -> str:
        with contextlib.suppress(*FAILURES):
            return str(self._made.get_node_from_key(key).name) if self._made is not None else ""
        return ""

    def close(self) -> None:
        if self._made is not None:
            self._made.close()
            self._made.disconnect_connection_pools()  # older versions leave them open

    def _client(self) -> Any:
        """Returns the library's client, which asks the nodes for their map as it is made."""
        if self._made is None:
            # Nobody waits for longer than for a reply behind another thread, or for ever behind a signal's handler.
            if not self._making.acquire(timeout=self._within):
                raise library.TimeoutError("no node of the cluster has answered yet")
            try:
                self._made = self._made or _of_cluster(self._template, redis, self._within, Retry(NoBackoff(), 0))
            finally:
                self._making.release()
        return self._made

    def _send(self, words: Words) -> Any:
        """Keeps a session by its server alone: while one node hangs, redis-py's cluster client blocks all calls.

        After a failure, and when the slot has moved, that client finds the server."""
        client = self._client()
        if words[0] != "DLOCK.SESSION":
            return client.execute_command(*words)
        with contextlib.suppress(library.MovedError, library.AskError, library.SlotNotCoveredError):
            node = client.get_node_from_key(words[1])
            if node.name not in self._failed:
                try:
                    return client.get_redis_connection(node).execute_command(*words)
                except FAILURES as error:
                    if not isinstance(error, library.ResponseError):
                        self._failed.add(node.name)
                    raise
        reply = client.execute_command(*words)
        self._failed.discard(self.server(words[1]))
        return reply

    def _leave_a_replica(self, replies: Sequence[object]) -> None:
        """The library does so."""


class AsyncServer:
    """A server, or the primary that the Sentinels name, for tasks."""

    def __init__(self, client: Any, within: float):
        self._within = within
        self._bound = 1.5 * within  # a SESSION blocks for half of it
        self._turns: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(CONNECTIONS))  # by server
        self._make(client, within, AsyncRetry(NoBackoff(), 0))

    def _make(self, client: Any, within: float, retry: Any) -> None:
        self._pool: Any = _of_pool(client.connection_pool, redis.asyncio, within, retry)
        self._client: Any = redis.asyncio.Redis(connection_pool=self._pool)
        self._ask_at = 0.0  # the Sentinels
        self._primary: Any = None  # its address, as the Sentinels last named it

    async def call(self, words: Words, within: float | None = None) -> Any:
        """Returns the reply to one command. Raises an error of this package for one of the server.

        `within`: how long a SESSION may take."""
        async with self._bounded():
            if words[0] == "DLOCK.SESSION":  # it may block
                return await self._keep(words, within)
            if words[0] == "DLOCK.FAIRACQUIRE" and words[4] != "IN":  # it blocks: releases would wait for a turn
                return await self._ask(words)
            async with self._turns[self.server(words[2 if words[0] == "DLOCK.MACQUIRE" else 1])]:
                return await self._ask(words)

    async def pipe(self, commands: Sequence[Words]) -> list[Any]:
        """Returns the replies to several commands, or their errors."""
        async with self._bounded(), self._client.pipeline(transaction=False) as pipe:
            for words in commands:
                pipe.execute_command(*words)
            replies = await pipe.execute(raise_on_error=False)
            await self._leave_a_replica(replies)
            return _typed(replies)

    def server(self, key: bytes) -> str:
        """Returns the name of the server of a key."""
        return ""

    async def aclose(self) -> None:
        await self._pool.disconnect()

    @contextlib.asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        try:
            async with timeout(self._bound):
                await self._prepare()
                yield
        except asyncio.TimeoutError:
            raise library.TimeoutError("the server does not answer") from None
        except AttributeError as error:  # the library's writer is None where another task has ended its connection
            raise library.ConnectionError(f"the connection is lost: {error}") from None
        except FAILURES as error:
            await self._leave_a_replica([error])
            raise typed(error) from error.__cause__

    async def _prepare(self) -> None:
        is_named = isinstance(self._pool, redis.asyncio.sentinel.SentinelConnectionPool)
        if is_named and self._ask_at <= now():
            self._ask_at = now() + ASK_SENTINELS
            try:
                primary = await self._pool.get_master_address()
            except FAILURES:
                self._ask_at = now() + self._within  # that took time, and the next calls have their own
                return
            former, self._primary = self._primary, primary
            if former not in (None, primary):
                # The pool leaves those in use, and takes them back: a SESSION would stay at the former primary.
                await self._pool.disconnect()

    async def _ask(self, words: Words) -> Any:
        return await self._client.execute_command(*words)

    async def _keep(self, words: Words, within: float | None) -> Any:
        async with timeout(within):
            return await self._ask(words)

    async def _leave_a_replica(self, replies: Sequence[object]) -> None:
        """New connections may find the primary."""
        if any(isinstance(reply, library.ReadOnlyError) for reply in replies):
            await self._pool.disconnect(inuse_connections=False)


class AsyncCluster(AsyncServer):
    """A cluster, for tasks."""

    def _make(self, client: Any, within: float, retry: Any) -> None:
        self._client = _of_cluster(client, redis.asyncio, within, retry)
        self._nodes: dict[str, Any] = {}  # by their names: by them its sessions are kept
        self._failed: set[str] = set()  # nodes that have not answered a SESSION
        self._ending: set[asyncio.Future[None]] = set()

    def server(self, key: bytes) -> str:
        with contextlib.suppress(*FAILURES, AttributeError):  # it has no map yet
            return str(self._client.get_node_from_key(key).name)
        return ""

    async def aclose(self) -> None:
        await (self._client.aclose() if hasattr(self._client, "aclose") else self._client.close())
        for node in self._nodes.values():
            await node.disconnect()

    async def _prepare(self) -> None:
        """There are no Sentinels."""

    async def _ask(self, words: Words) -> Any:
        if self._failed:  # they would not answer for the map either, and all calls wait for it
            manager = self._client.nodes_manager
            others = {name: node for name, node in manager.startup_nodes.items() if name not in self._failed}
            manager.startup_nodes = others or manager.startup_nodes
        await self._client.initialize()  # it asks any node until it has the map
        return await super()._ask(words)

    async def _keep(self, words: Words, within: float | None) -> Any:
        """Keeps a session by its server alone: when one node hangs, redis-py's cluster client ends all connections.

        After a failure, and when the slot has moved, that client finds the server, as soon as its own time is up."""
        name = self.server(words[1])
        if name and name not in self._failed:
            if name not in self._nodes:
                node: Any = self._client.get_node_from_key(words[1])
                how = self._client.get_connection_kwargs()
                self._nodes[name] = redis.asyncio.cluster.ClusterNode(node.host, node.port, **how)
            node = self._nodes[name]
            try:
                async with timeout(within):
                    return await node.execute_command(*words)
            except (library.MovedError, library.AskError):
                pass
            except library.ResponseError:
                raise
            except BaseException:  # also a cancelled call: its reply may be on the way
                self._failed.add(name)
                self._nodes.pop(name, None)
                ending = asyncio.ensure_future(node.disconnect())
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
                raise
        reply = await self._ask(words)
        self._failed.discard(self.server(words[1]))
        return reply

    async def _leave_a_replica(self, replies: Sequence[object]) -> None:
        """The library does so."""


def for_threads(client: redis.Redis | redis.RedisCluster, within: float) -> Server:
    """Returns connections like this client's."""
    return (Cluster if isinstance(client, redis.RedisCluster) else Server)(client, within)


def for_tasks(client: redis.asyncio.Redis | redis.asyncio.RedisCluster, within: float) -> AsyncServer:
    """Returns connections like this client's. Nothing is connected yet."""
    return (AsyncCluster if isinstance(client, redis.asyncio.RedisCluster) else AsyncServer)(client, within)
