# SPDX-License-Identifier: MIT
"""The program's client as a template: another one of the same kind, with our bounds and without retries.

TLS, users, Unix sockets, Sentinels and clusters come along, because redis-py makes the connections."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

# What belongs to the template's own pool, or makes a call more than one attempt.
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
    """Returns how a connection of ours is made: bounded, tried once, RESP2, replies as bytes."""
    kept = {name: value for name, value in kwargs.items() if not name.startswith(_STRANGE)}
    kept |= {"socket_timeout": within, "retry": retry, "protocol": 2, "health_check_interval": 0}
    kept |= {"decode_responses": False}
    return kept if "path" in kept else {**kept, "socket_connect_timeout": within}


def _sentinel(pool: Any, kind: Any, within: float) -> Any:
    """Returns the same Sentinels, with our bounds: the program may have set none."""
    theirs = pool.sentinel_manager
    places = [one.connection_pool.connection_kwargs for one in theirs.sentinels]
    how = {**theirs.sentinel_kwargs, "socket_timeout": within, "socket_connect_timeout": within}
    return kind([(one["host"], one["port"]) for one in places], theirs.min_other_sentinels, how)


def _of_pool(pool: Any, asked: Any, within: float, retry: Any) -> Any:
    """Returns a pool like this one. `asked`: the library's module, for threads or for tasks."""
    kwargs = bounded(pool.connection_kwargs, within, retry)
    if not isinstance(pool, asked.sentinel.SentinelConnectionPool):
        return asked.ConnectionPool(connection_class=pool.connection_class, **kwargs)
    kwargs |= {"connection_class": pool.connection_class, "is_master": pool.is_master}
    kwargs.pop("connection_pool", None)
    sentinel = _sentinel(pool, asked.sentinel.Sentinel, within)
    return asked.sentinel.SentinelConnectionPool(pool.service_name, sentinel, **kwargs)


def _of_cluster(client: Any, asked: Any, within: float, retry: Any) -> Any:
    node = asked.cluster.ClusterNode
    kwargs = bounded(client.get_connection_kwargs(), within, retry)
    kwargs = {name: value for name, value in kwargs.items() if not name.startswith(_OF_A_NODE)}
    kwargs["reinitialize_steps"] = 0  # else each fifth MOVED ends the connections under other tasks' calls
    if int(redis.__version__.split(".")[0]) < 6:
        kwargs["cluster_error_retry_attempts"] = 0
        del kwargs["retry"]
    known = client.get_nodes() or client.nodes_manager.startup_nodes.values()
    seeds = [node(one.host, one.port) for one in known]
    return type(client)(startup_nodes=seeds, address_remap=client.nodes_manager.address_remap, **kwargs)


def for_threads(client: redis.Redis | redis.RedisCluster, within: float) -> Any:
    """Returns a client like this one. (A cluster is asked for its nodes.)"""
    retry = Retry(NoBackoff(), 0)
    if isinstance(client, redis.RedisCluster):
        return _of_cluster(client, redis, within, retry)
    return redis.Redis(connection_pool=_of_pool(client.connection_pool, redis, within, retry))


def for_tasks(client: redis.asyncio.Redis | redis.asyncio.RedisCluster, within: float) -> Any:
    """Returns a client like this one. Nothing is connected yet."""
    retry = AsyncRetry(NoBackoff(), 0)
    if isinstance(client, redis.asyncio.RedisCluster):
        return _of_cluster(client, redis.asyncio, within, retry)
    return redis.asyncio.Redis(connection_pool=_of_pool(client.connection_pool, redis.asyncio, within, retry))


def node_of_a_cluster(client: redis.asyncio.RedisCluster, key: bytes) -> Any:
    """Returns the server of a key, with connections of its own."""
    node: Any = client.get_node_from_key(key)  # type: ignore[arg-type]
    how: dict[str, Any] = client.get_connection_kwargs()
    return redis.asyncio.cluster.ClusterNode(node.host, node.port, **how)


def decoder(client: Any) -> Any:
    """Returns what decodes a reply as the program's client would."""
    encoder = (getattr(client, "get_encoder", None) or client.connection_pool.get_encoder)()

    def decode(one: Any) -> Any:
        return [decode(each) for each in one] if isinstance(one, list) else encoder.decode(one)

    return decode
