# SPDX-License-Identifier: MIT
"""Locks of the dlock module, by redis-py, for threads (Locks) and for asyncio (AsyncLocks). Copy this file.

    locks = dlock.Locks(redis.Redis())                       # or RedisCluster, or sentinel.master_for(...)
    with locks.lock("stock", timeout=5) as hold:             # dlock.LockTimeout after 5 s
        hold.guard("SET", "stock:left", 41)                  # runs only while the lock is held: else dlock.Fenced

    locks = dlock.AsyncLocks(redis.asyncio.Redis())
    async with locks.lock("stock", shared=True, on_lost=stop) as hold:
        print(hold.token)

Locks opens a connection for each lock that it waits for or holds. AsyncLocks has three for all its tasks (in a
cluster two for each node, and one). No connect and no reply takes longer than three seconds, or the client's
socket_timeout if that is less. Times are in seconds.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import os
import random
import threading
import time
import uuid
import weakref

import redis
import redis.asyncio
from redis import exceptions as library
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry


class DLockError(redis.RedisError):
    """Whatever goes wrong with a lock."""


class NotHeld(DLockError):
    """The lock is not, or no longer, held under this name and token."""


class Fenced(DLockError):
    """A guarded command was not run: the lock is not held under this token."""


class Deadlock(DLockError):
    """The wait could never end."""


class Replaced(DLockError):
    """Somebody else asked under the same owner's name and has taken the place. Never asked again by itself."""


class LockTimeout(DLockError, TimeoutError):
    """The lock was not granted in time."""


_CODES = {"NOTHELD": NotHeld, "FENCED": Fenced, "DEADLOCK": Deadlock, "REPLACED": Replaced}
# What a reconnection, another node or a little time can mend, and what is among it but cannot be mended so.
_PASSING = (OSError, library.ConnectionError, library.TimeoutError, library.MovedError, library.AskError,
            library.TryAgainError, library.ClusterDownError, library.ReadOnlyError, library.MasterDownError,
            library.RedisClusterException)
_FINAL = (library.AuthenticationError, library.AuthorizationError)


def _error(error):
    """The same error as one of this module's types, or as it is."""
    code = str(error).split(maxsplit=1)[0].rstrip(":") if str(error) else ""
    return _CODES[code](str(error)) if code in _CODES else error


def _raise_if_final(word):
    """What a message says of a wait that has ended without a grant."""
    if word.upper() in _CODES:
        raise _CODES[word.upper()](f"{word.upper()} (told by a message)")
    if word in ("wrongtype", "refused"):
        raise DLockError(word)


def _passes(error):
    # UNBLOCKED: the server has become a replica while it let us wait.
    words = ("UNBLOCKED", "NOREPLICAS", "MISCONF")
    return isinstance(error, _PASSING) and not isinstance(error, _FINAL) or str(error).startswith(words)


def _root(error):
    """What a node has said, when the library says that it knows no cluster."""
    while isinstance(error, library.RedisClusterException) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__
    return error


# So long a connect or a reply may take; and so long a caller whose time is up waits for a server that does not answer.
_BOUND, _GRACE = 3.0, 1.0


def _pause():
    return random.uniform(0.02, 0.1)


class _Settings:
    """What Locks and AsyncLocks are made with: lease is what the lock has left when this program dies or loses
    the server; auto, how long a program that hangs keeps it; claim, how long a place is kept while we are away."""

    def __init__(self, client, lease=10.0, auto=60.0, claim=5.0, wait_slice=2.0):
        self.client, self.lease, self.auto, self.claim = client, lease, max(auto, lease), claim
        self.patience = min(self._pool_kwargs().get("socket_timeout") or _BOUND, _BOUND)
        self.slice = min(wait_slice, lease / 2, self.patience / 2)
        self.first = min(lease, max(3.0, 1.5 * self.slice))  # the lease until we have confirmed the grant
        self._closed, self._pid = False, os.getpid()

    def _bound(self, deadline, at_once):
        """How long to wait for a reply."""
        return self.patience if at_once else _left(deadline and deadline + _GRACE, self.patience)

    def _pool_kwargs(self):
        pool = getattr(self.client, "connection_pool", None)
        return pool.connection_kwargs if pool else self.client.get_connection_kwargs()


def _own(kwargs, bound, retry):
    """How a connection of ours is made: bounded, and tried once, whatever the library does by itself."""
    timeouts = {"socket_timeout": bound, **({} if "path" in kwargs else {"socket_connect_timeout": bound})}
    return {**kwargs, **timeouts, "retry": retry(NoBackoff(), 0)}


class _Request:
    """One owner's wish for one lock, as words of commands."""

    def __init__(self, settings, key, owner, shared, limit, session):
        self.settings, self.key, self.owner = settings, key, owner or str(uuid.uuid4())
        self.named, self.outer, self.before, self.asked = owner is not None, 0, 0, False
        self.limit = ["SHARED"] if shared else ["LIMIT", limit] if limit else []
        self.session = ["SESSION"] if session else []

    def within(self, held):
        """What the owner held before is not ours to give back, nor to tie to a connection of ours."""
        if held:
            self.outer, self.before, self.session = held[0], held[1], []

    def granted(self, token):
        """An upgrade is a new grant: the outer hold has ended with its token, and all of this one is ours."""
        if token != self.outer:
            self.before = 0

    def names(self):
        return tuple(name if isinstance(name, bytes) else str(name).encode() for name in (self.key, self.owner))

    def words(self, name, *rest):
        return (f"DLOCK.{name}", self.key, self.owner, *rest)

    def ask(self, *wait):
        s, verb = self.settings, "FAIRACQUIRE" if wait else "ACQUIRE"
        claim = ["CLAIM", _ms(s.claim)] if wait else []
        return self.words(verb, _ms(s.first), *wait, *claim, "HOLDS", self.before + 1, *self.limit, *self.session)

    def renew(self, token, auto=True):
        tie = [*self.session, "AUTO", _ms(self.settings.auto)] if auto and not self.before else []
        return self.words("RENEW", _ms(self.settings.lease), "TOKEN", token, *tie)

    def release(self, *token):
        return self.words("RELEASE", "HOLDS", self.before, *token)

    def release_upgrade(self, held):
        """An upgrade that came before we left has ended the outer hold: nobody knows its token."""
        return self.words("RELEASE", "TOKEN", held[0], "HOLDS", 0) if held and held[0] != self.outer else None


def _ms(seconds):
    return max(1, int(seconds * 1000))


def _left(deadline, slice_):
    return slice_ if deadline is None else min(slice_, deadline - time.monotonic())


def _deadline(timeout):
    return None if timeout is None else time.monotonic() + timeout


class _Hold:
    def __init__(self, locks, request, token, confirmed, on_lost, event):
        self._locks, self._request, self.token, self._on_lost = locks, request, token, on_lost
        self.key, self.owner, self.lost, self._over = request.key, request.owner, event, False
        self._ending, self._pid = threading.Lock(), os.getpid()
        self._confirmed(confirmed)

    def _confirmed(self, at):
        self._due, self._until = at + self._locks.lease / 3, at + self._locks.lease

    def _end(self):
        """Whether it is us who end it."""
        with self._ending:
            over, self._over = self._over, True
        return not over

    def _tell(self):
        try:
            if self._on_lost:
                self._on_lost(self)
        except Exception:
            logging.getLogger(__name__).exception("on_lost has failed")

    def _check(self):
        """Whether it can be released at all."""
        if self._pid != os.getpid():
            raise DLockError(f"{self.key!r} is held by the process that has forked this one")
        self._locks._check()


# ---- threads ----------------------------------------------------------------------------------------------------


def _begin(work):
    """What is done in a thread, since it has no bound of its own: names, sentinels and topologies are asked for."""
    future = concurrent.futures.Future()

    def run():
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="dlock connects", daemon=True).start()
    return future


def _result(future, within):
    try:
        return future.result(max(0, within))
    except concurrent.futures.TimeoutError:
        raise library.TimeoutError("the server does not answer") from None


class _Wire:
    """A connection that is nobody else's, to whoever serves the key. Opened when needed, again when lost."""

    def __init__(self, locks, key):
        self.locks, self.client, self.key, self.lock = locks, locks.client, key, threading.Lock()
        self.connection, self.closed = None, False
        self.asked = False  # there is a reply to come
        self.used = False  # something was asked

    def call(self, *words, within=None, follow=False):
        """The reply. To follow means to ask the target of a slot that is on its way."""
        end = time.monotonic() + (self.locks.patience if within is None else within)
        with self.lock:
            try:
                self._connect(self._kind, end)
                return self._say(words, end)
            except library.AskError as error:
                if not follow or isinstance(error, library.MovedError):
                    raise
                node = self.client.get_node(error.host, error.port)
                if node is None:
                    raise
                self._drop()
                self._connect(lambda: self._pool(node), end)
                self._say(("ASKING",), end)
                reply = self._say(words, end)
                self._drop()
                return reply

    def insist(self, *words):
        """The reply, within the bound, wherever the key goes meanwhile."""
        end = time.monotonic() + self.locks.patience
        while True:
            try:
                return self.call(*words, within=end - time.monotonic(), follow=True)
            except Exception as error:
                if not _passes(error) or time.monotonic() > end:
                    raise
                self.mend(end - time.monotonic())

    def mend(self, within=None):
        """After an error that passes: begins anew, where the cluster now says."""
        with self.lock:
            self._drop()
        self.locks._look_around(self.locks.patience if within is None else within)
        time.sleep(_pause())

    def close(self):
        self.closed = True
        self._drop()

    def _kind(self):
        if isinstance(self.client, redis.RedisCluster):
            return self._pool(self.client.get_node_from_key(self.key))
        return self.client.connection_pool

    def _pool(self, node):
        return self.client.get_redis_connection(node).connection_pool

    def _connect(self, kind, end):
        def connect(within=self.locks.patience):
            connection = pool.connection_class(**_own(pool.connection_kwargs, within, Retry))
            connection.connect()  # asks the sentinels first, if it is of their kind
            return connection

        if not self.closed and self.connection is None:
            pool = kind()  # not of the pool: of its kind
            left = max(0.001, end - time.monotonic())
            # Only to connect to an address is sure to be bounded. A thread costs as much as the rest of a lock.
            host = str(pool.connection_kwargs.get("host", ""))
            plain = pool.connection_class in (redis.Connection, redis.SSLConnection)
            if plain and (host.replace(".", "").isdigit() or ":" in host):
                self.connection = connect(min(left, self.locks.patience))
            else:
                self.connection = _result(_begin(connect), left)
        if self.closed:
            self._drop()
            raise library.ConnectionError("given up")

    def _say(self, words, end):
        connection, self.asked, self.used = self.connection, True, True
        try:
            connection.send_command(*words, check_health=False)
            if not connection.can_read(max(0, end - time.monotonic())):
                raise library.TimeoutError("the server does not answer")
            # An interrupt leaves the connection as it is: the reply is still to come.
            reply = connection.read_response(disconnect_on_error=False)
            self.asked = False
            return reply
        except library.ResponseError as error:
            self.asked = False
            raise _error(error) from None

    def _drop(self):
        connection, self.connection, self.asked = self.connection, None, False
        if connection is not None:
            connection.disconnect()


class Hold(_Hold):
    """A lock that is held. `lost` is an Event; `on_lost(hold)` is called by a thread of its own."""

    def __init__(self, locks, request, wire, token, confirmed, on_lost):
        self._wire, self._gone, self._kept = wire, threading.Event(), False
        super().__init__(locks, request, token, confirmed, on_lost, threading.Event())

    def guard(self, *command):
        """Runs a command in one step with the look whether the lock is still held under this token."""
        try:
            return self._locks.client.execute_command("DLOCK.GUARD", self.key, self.token, *command)
        except library.ResponseError as error:
            raise _error(error) from None

    def release(self):
        """Gives back what was granted here, and nothing else. NotHeld if it was lost."""
        self._check()
        self._end()
        self._gone.set()
        with self._locks._guard:
            self._locks._holds.discard(self)
        words = self._request.release("TOKEN", self.token)
        try:
            self._wire.call(*words)
        except Exception as error:
            if not _passes(error):
                raise
            heard = self._wire.asked
            try:
                self._locks._call(self.key, *words)
            except NotHeld:
                if not heard:
                    raise
        finally:
            self._wire.close()

    def __del__(self):
        self._gone.set()
        self._wire.close()  # nobody can release it any more: the server renews it no longer

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            self.release()
        except redis.RedisError:
            if error is None:  # never hide the real error
                raise

    def _keep(self):
        now = time.monotonic()
        try:
            try:
                self._wire.call(*self._request.renew(self.token))
            except library.MovedError:
                raise
            except library.AskError:  # the slot is on its way: we keep the time
                self._wire.call(*self._request.renew(self.token, auto=False), follow=True)
            self._confirmed(now)
        except NotHeld:
            self._lose()
        except Exception:  # whatever it is: it is tried again until the time is up
            self._wire.mend()

    def _lose(self):
        if self._end():
            self.lost.set()
            self._gone.set()
            self._wire.close()
            if self._on_lost:
                threading.Thread(target=self._tell, name="dlock has lost", daemon=True).start()

    def _forked(self):
        """In the child nobody keeps it."""
        self._over, self.lost, self._gone, self._ending = True, threading.Event(), threading.Event(), threading.Lock()
        self.lost.set()
        self._wire.lock = threading.Lock()
        self._wire.close()


def _keep_on(reference, gone):
    """Keeps one hold, in a thread of its own, so that none waits for another's server."""
    wait = 0.0
    while not gone.wait(wait):
        hold = reference()
        if hold is None:
            return
        wait = max(0.0, hold._due - time.monotonic())
        if wait == 0:
            hold._keep()
        hold = None  # or one that was given up without a release would be kept


class Locks(_Settings):
    """Locks for threads."""

    def __init__(self, client, **settings):
        super().__init__(client, **settings)
        self._clear()
        _all.add(self)

    def _clear(self):
        self._holds, self._keeper, self._guard, self._topology = weakref.WeakSet(), None, threading.Lock(), None

    def close(self):
        """Ends it: every call from now on is an error. What is still held is lost, and lives on until its lease."""
        with self._guard:
            self._closed, holds = True, list(self._holds)
        for hold in holds:
            hold._lose()

    def lock(self, key, timeout=None, **options):
        """Waits for the lock. Options: owner, shared, limit, session, on_lost.

        Nested locks of one actor should have one `owner`: only then can the server see a circle (Deadlock)."""
        hold = self.try_lock(key, timeout, **options)
        if hold is None:
            raise LockTimeout(f"{key!r} was not granted within {timeout} s")
        return hold

    def try_lock(self, key, timeout=0, *, owner=None, shared=False, limit=None, session=False, on_lost=None):
        """The same, but None when it is not granted in time."""
        self._check()
        request, wire = _Request(self, key, owner, shared, limit, session), _Wire(self, key)
        try:
            granted = self._wait(request, wire, _deadline(timeout), timeout == 0)
            hold = granted and self._hold(request, wire, granted, on_lost)
        except BaseException as error:
            if isinstance(error, Replaced) or not wire.used:  # the place is somebody else's; or there is none
                wire.close()
            else:
                self._depart(request, wire)
            raise
        if hold is None:
            if timeout == 0 or not wire.used:
                wire.close()  # it was refused, or never asked
            else:
                self._depart(request, wire)
        return hold

    def _hold(self, request, wire, granted, on_lost):
        hold = Hold(self, request, wire, *granted, on_lost)
        with self._guard:
            self._check()
            self._holds.add(hold)
            if self._keeper is None:
                self._keeper = threading.Thread(target=_watch, args=(weakref.ref(self),), name="dlock", daemon=True)
                self._keeper.start()
        return hold

    def many(self, keys, **options):
        """Locks of any slots, as a context manager whose value has a hold for each key."""
        return _Many(self, keys, options)

    def _wait(self, request, wire, deadline, at_once):
        looked = not request.named
        while True:
            self._check()
            left, bound = _left(deadline, self.slice), self._bound(deadline, at_once)
            if left <= 0 and not at_once:
                return None
            try:
                if not looked:  # an outer hold of this name is not ours to give back
                    request.within(wire.call(*request.words("HELD"), within=bound, follow=True))
                    looked = True
                    wire.used = False
                granted = wire.call(*(request.ask() if at_once else request.ask("BLOCK", _ms(left))), within=bound)
                if granted:
                    now = time.monotonic()
                    # We have it in hand: now it may be kept.
                    wire.call(*request.renew(granted[0]), within=self._bound(deadline, at_once))
                    request.granted(granted[0])
                    return granted[0], now
                if at_once:
                    return None
            except NotHeld:
                if request.before:
                    raise  # the outer hold has ended, and with it what was asked
                if at_once:
                    return None  # we were slower than the first lease
            except Exception as error:
                if not _passes(error):
                    raise
                if not at_once and _left(deadline, 1) <= 0:
                    continue  # who leaves looks for the answer on this connection
                if at_once and deadline + 1 < time.monotonic():
                    raise
                wire.mend(self._bound(deadline, at_once))

    def _depart(self, request, wire):
        """Leaves, in the background if the server does not answer."""
        def leave():
            try:
                self._leave(request, wire)
            finally:
                wire.close()

        thread = threading.Thread(target=leave, name="dlock leaves", daemon=True)
        thread.start()
        thread.join(_GRACE)

    def _leave(self, request, wire):
        """Until the waiting command has answered: no place, no hold beyond those of before."""
        other = _Wire(self, request.key)
        try:
            # Bounded, since an interrupt can come right after the answer was read: then there is none to come.
            answered, end = not wire.asked, None
            while True:
                # Look first: what is undone after the answer is undone for good.
                connection = wire.connection
                try:
                    answered = answered or connection is None or not connection.is_connected or connection.can_read(0.01)
                except (OSError, redis.RedisError):
                    answered = True
                other.insist(*request.words("CANCEL"))
                with contextlib.suppress(NotHeld, library.ResponseError):
                    other.insist(*request.release())
                with contextlib.suppress(NotHeld, library.ResponseError):
                    upgrade = request.before and request.release_upgrade(other.insist(*request.words("HELD")))
                    if upgrade:
                        other.insist(*upgrade)
                end = end or time.monotonic() + self.slice
                if answered or time.monotonic() > end:
                    return
        except (OSError, redis.RedisError):
            pass  # the server is away; its own rules end what is left: the claim, and the first lease
        finally:
            other.close()

    def _call(self, key, *words):
        wire = _Wire(self, key)
        try:
            return wire.insist(*words)
        finally:
            wire.close()

    def _look_around(self, within):
        """Asks where everything is now; one look for all who want to know."""
        if isinstance(self.client, redis.RedisCluster):
            with self._guard:
                if self._topology is None or self._topology.done():
                    self._topology = _begin(self.client.nodes_manager.initialize)
                topology = self._topology
            with contextlib.suppress(OSError, redis.RedisError):
                _result(topology, within)

    def _check(self):
        if self._closed:
            raise DLockError("these locks are closed")


_all = weakref.WeakSet()


def _forked():
    """The child begins with nothing of the parent's: no hold, no thread, no lock that another thread had."""
    for locks in list(_all):
        holds = list(locks._holds)
        locks._clear()
        for hold in holds:
            hold._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _watch(reference):
    """Looks at the clock, and waits for nothing else: no reply, no callback."""
    while True:
        locks, now = reference(), time.monotonic()
        if locks is None:
            return
        with locks._guard:
            holds = list(locks._holds)
        for hold in holds:
            try:
                if now > hold._until:
                    hold._lose()
                elif now >= hold._due and not hold._kept:
                    threading.Thread(target=_keep_on, args=(weakref.ref(hold), hold._gone), name="dlock keeps",
                                     daemon=True).start()
                    hold._kept = True
            except Exception:  # there may be no more threads now
                logging.getLogger(__name__).exception("a lock cannot be looked after")
        pause = min(locks.lease / 20, 0.1)
        hold = holds = locks = None  # or one that was given up without a release would be kept
        time.sleep(pause)


class _Many:
    """Locks in one fixed order under one owner. The server sees no circle that goes over several nodes: it is the
    order that prevents them, so whoever takes several of these locks should take them this way."""

    def __init__(self, locks, keys, options):
        self.locks, self.keys, self.holds = locks, sorted(set(keys)), {}
        self.options = {"owner": str(uuid.uuid4()), **options}
        self.timeout = self.options.pop("timeout", None)

    def __enter__(self):
        deadline = _deadline(self.timeout)
        try:
            for key in self.keys:
                left = None if deadline is None else max(0.001, deadline - time.monotonic())
                self.holds[key] = self.locks.lock(key, left, **self.options)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self.holds

    def __exit__(self, kind, error, trace):
        failed = None
        while self.holds:  # the last one first
            try:
                self.holds.popitem()[1].release()
            except redis.RedisError as one:
                failed = failed or one
        if failed and error is None:  # never hide the real error
            raise failed


# ---- asyncio ----------------------------------------------------------------------------------------------------


class _AsyncWire:
    """A connection that all tasks share, a command after the other; cancelled tasks do not disturb it."""

    def __init__(self, connection_class, kwargs, bound):
        self.connection, self.bound = connection_class(**_own(kwargs, bound, AsyncRetry)), bound
        self.lock, self.failures, self.closed = asyncio.Lock(), 0, False

    async def call(self, *words, look=None):
        return await asyncio.shield(asyncio.ensure_future(self._call(words, look)))

    async def _call(self, words, look):
        before = self.failures
        async with self.lock:
            if self.closed or self.failures != before:  # or each in the queue would wait for its own time-out
                raise library.ConnectionError("the server does not answer")
            try:
                if not self.connection.is_connected:
                    await _within(self.bound, self.connection.connect())
                if look:
                    look()
                await self.connection.send_command(*words, check_health=False)
                return await self.connection.read_response()
            except library.ResponseError as error:
                if isinstance(error, (library.ReadOnlyError, library.MasterDownError)):
                    await self.connection.disconnect(nowait=True)  # whoever is the primary now: not this one
                raise _error(error) from None
            except DLockError:  # from the look
                raise
            except Exception:
                self.failures += 1
                await self.connection.disconnect(nowait=True)
                raise


async def _within(seconds, coroutine):
    try:
        return await asyncio.wait_for(coroutine, max(0.0, seconds))
    except asyncio.TimeoutError:
        raise library.TimeoutError("the server does not answer") from None


class AsyncHold(_Hold):
    """A lock that is held by a task. `lost` is an asyncio.Event; `on_lost(hold)` is called in the event loop."""

    _clock = None

    async def guard(self, *command):
        """Runs a command in one step with the look whether the lock is still held under this token."""
        return await self._locks._library("DLOCK.GUARD", self.key, self.token, *command)

    async def release(self):
        """Gives back what was granted here, and nothing else. NotHeld if it was lost."""
        self._check()
        self._end()
        self._keeper.cancel()
        self._clock.cancel()
        words, unsure = self._request.release("TOKEN", self.token), False
        while True:
            try:
                return await self._locks._call(self.key, *words)
            except NotHeld:
                if unsure:  # an earlier one may have been heard
                    return
                raise
            except Exception as error:
                if not _passes(error) or time.monotonic() > self._until:
                    raise
                unsure = unsure or not isinstance(error, library.ResponseError)
                await self._locks._mend()

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, error, trace):
        try:
            await self.release()
        except redis.RedisError:
            if error is None:  # never hide the real error
                raise

    async def _keep(self):
        while not self._over:
            await asyncio.sleep(max(0.0, self._due - time.monotonic()))
            now = time.monotonic()
            try:
                try:
                    await self._locks._call(self.key, *self._request.renew(self.token))
                except library.MovedError:  # a kind of AskError
                    raise
                except library.AskError:
                    renewal = self._request.renew(self.token, auto=False)
                    await _within(self._locks.patience, self._locks._library(*renewal))
                if not self._over:
                    self._confirmed(now)
            except NotHeld:
                self._lose()
            except Exception as error:  # whatever it is: it is tried again until the time is up
                await self._locks._mend(error)

    def _confirmed(self, at):
        super()._confirmed(at)
        if self._clock:
            self._clock.cancel()
        self._clock = asyncio.get_running_loop().call_later(max(0.0, self._until - time.monotonic()), self._lose)

    def _lose(self):
        self._clock.cancel()
        if self._end():
            self.lost.set()
            self._tell()


class AsyncLocks(_Settings):
    """Locks for the tasks of one event loop. They wait by NOTIFY: one channel, one reader, a shared connection."""

    def __init__(self, client, **settings):
        super().__init__(client, **settings)
        self.slice = min(self.slice, self.first / 2)  # a lost message is noticed within the first lease
        self.cluster = hasattr(client, "get_node_from_key")
        self.channel = f"dlock:{uuid.uuid4()}"
        self._wires, self._waiting, self._reader, self._heard = {}, {}, None, asyncio.Event()
        self._leaving, self._holds, self._loop, self._refused = set(), weakref.WeakSet(), None, None

    def lock(self, key, timeout=None, **options):
        """Waits for the lock: `async with locks.lock(…) as hold` or `hold = await locks.lock(…)`. Options:
        owner, shared, limit, session, on_lost. Nested locks of one task should have one `owner`: only then can the
        server see a circle (Deadlock); tasks of their own need owners of their own."""
        return _Taking(self, key, timeout, options)

    async def try_lock(self, key, timeout=0, *, owner=None, shared=False, limit=None, session=False, on_lost=None):
        """The same, but None when it is not granted in time."""
        self._check()
        request, end = _Request(self, key, owner, shared, limit, session), _deadline(timeout)
        if timeout != 0:
            await self._listen(_left(end, self.patience))
        messages = asyncio.Queue()
        self._waiting.setdefault(request.names(), []).append(messages)
        try:
            granted = await self._wait(request, messages, end, timeout == 0)
            self._check()
        except BaseException as error:
            if request.asked and not isinstance(error, Replaced):
                await self._depart(request)
            raise
        finally:
            self._waiting[request.names()].remove(messages)
            if not self._waiting[request.names()]:
                del self._waiting[request.names()]
        if granted is None:
            return None
        hold = AsyncHold(self, request, *granted, on_lost, asyncio.Event())
        self._holds.add(hold)
        hold._keeper = asyncio.ensure_future(hold._keep())
        return hold

    @contextlib.asynccontextmanager
    async def many(self, keys, timeout=None, **options):
        """Locks of any slots in one fixed order under one owner; see _Many. The value has a hold for each key."""
        options, deadline = {"owner": str(uuid.uuid4()), **options}, _deadline(timeout)
        async with contextlib.AsyncExitStack() as stack:
            holds = {}
            for key in sorted(set(keys)):
                left = None if deadline is None else max(0.001, deadline - time.monotonic())
                holds[key] = await stack.enter_async_context(self.lock(key, left, **options))
            yield holds

    async def aclose(self):
        """Ends it: every call from now on is an error. What is still held is lost, and lives on until its lease."""
        self._closed = True
        for hold in list(self._holds):
            hold._keeper.cancel()
            hold._lose()
        while self._reader and not self._reader.done():
            self._reader.cancel()  # one that comes as the library gives up on a connection can get lost in it
            await asyncio.wait({self._reader}, timeout=1)
        for wire in self._wires.values():
            wire.closed = True
            await wire.connection.disconnect(nowait=True)

    def _check(self):
        if self._closed:
            raise DLockError("these locks are closed")
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop or self._pid != os.getpid():
            raise DLockError("these locks belong to another event loop or process: make an AsyncLocks for each")

    async def _wait(self, request, messages, deadline, at_once):
        wait_id = None

        def look():
            """The last one before we ask again: the end may have come with the end of the slice."""
            nonlocal wait_id
            while not messages.empty():
                word, _, number = messages.get_nowait()
                if number is not None and number == wait_id:
                    _raise_if_final(word)
            wait_id = None  # what comes from now on may be said of our own asking
            request.asked = True

        async def call(*words, look=None):
            calling = self._call(request.key, *words, look=look)
            if at_once or deadline is None:
                return await calling
            return await _within(deadline + _GRACE - time.monotonic(), calling)

        looked = not request.named
        while True:
            self._check()
            if not at_once and _left(deadline, 1) <= 0:
                if request.asked:
                    look()
                    await self._depart(request)
                return None
            try:
                if not looked:  # an outer hold of this name is not ours to give back
                    request.within(await call(*request.words("HELD")))
                    looked = True
                reply = await call(*(request.ask() if at_once else request.ask("NOTIFY", self.channel)), look=look)
                if reply and not reply[0]:
                    wait_id = reply[2]
                    # So many in a second ask again: who confirms a grant is not to wait for them.
                    again = max(self.slice, min(len(self._waiting) / 200, self.claim / 2))
                    reply = await self._message(messages, wait_id, _left(deadline, again))
                if reply:
                    now = time.monotonic()
                    await call(*request.renew(reply[0]))
                    request.granted(reply[0])
                    return reply[0], now
                if at_once:
                    return None
                for _ in range(3):  # what has arrived is read, parsed and dispatched
                    await asyncio.sleep(0)
            except NotHeld:
                if request.before:
                    raise  # the outer hold has ended, and with it what was asked
                if at_once:
                    return None
            except Exception as error:
                if not _passes(error) or at_once and deadline + 1 < time.monotonic():
                    raise
                if at_once or _left(deadline, 1) > 0:
                    await self._mend(error, self.patience if at_once else _left(deadline, self.patience))

    async def _message(self, messages, wait_id, seconds):
        """The grant, if it comes so soon; else None: ask again."""
        end = time.monotonic() + seconds
        while True:
            try:
                word, token, number = await asyncio.wait_for(messages.get(), max(0.0, end - time.monotonic()))
            except asyncio.TimeoutError:
                return None
            if number is None:
                return None  # we may have missed something
            if number != wait_id:
                continue  # of an earlier asking of ours
            if word == "granted":
                return (token,)
            _raise_if_final(word)
            return None  # moved, gone, cancelled

    async def _depart(self, request):
        """Leaves, in the background if the server does not answer, and whether or not we are cancelled."""
        leaving = asyncio.ensure_future(self._leave(request))
        self._leaving.add(leaving)  # or nobody would keep it
        leaving.add_done_callback(self._leaving.discard)
        await asyncio.wait({leaving}, timeout=_GRACE)

    async def _leave(self, request):
        """On the connection that asked, so after all that was asked."""
        for words in (request.words("CANCEL"), request.release()):
            await self._say(request, *words)
        upgrade = request.before and request.release_upgrade(await self._say(request, *request.words("HELD")))
        if upgrade:
            await self._say(request, *upgrade)

    async def _say(self, request, *words):
        """The reply, if it comes within three tries: else the server's own rules end what is left."""
        for _ in range(3):
            try:
                return await self._call(request.key, *words, asking=True)
            except library.ResponseError as error:
                if not _passes(error):
                    return None
            except (NotHeld, asyncio.CancelledError):
                return None
            except Exception:
                pass
            await self._mend()

    async def _listen(self, seconds):
        """Until the messages come. When they do not, waits ask again all the same."""
        if self._reader is None or self._reader.done():
            self._heard.clear()
            self._reader = asyncio.ensure_future(self._read())
        if not self._heard.is_set():
            heard = asyncio.ensure_future(self._heard.wait())
            try:
                await asyncio.wait({heard, self._reader}, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
            finally:
                heard.cancel()
            if self._refused:
                raise self._refused

    async def _read(self):
        """The dispatcher. After each (re)connection every waiter asks again, since messages may be lost."""
        self._refused = None
        while True:
            try:
                source = await self._source()
                pool = redis.asyncio.ConnectionPool(
                    connection_class=source.connection_class, **_own(source.connection_kwargs, self.patience, AsyncRetry))
                async with redis.asyncio.client.PubSub(pool) as pubsub:
                    await _within(self.patience, pubsub.subscribe(self.channel))
                    async for message in pubsub.listen():
                        if message["type"] == "subscribe":
                            self._heard.set()
                            for waiting in itertools.chain(*self._waiting.values()):
                                waiting.put_nowait((None, None, None))
                        elif message["type"] == "message":
                            self._dispatch(message["data"])
            except Exception as error:  # the connection is lost: begins anew
                if not _passes(_error(error)):
                    self._refused = error
                    return
                await self._mend()

    def _dispatch(self, data):
        data = data.encode() if isinstance(data, str) else data
        word, token, rest = data.split(b" ", 2)
        names = []
        for _ in range(2):
            size, rest = rest.split(b":", 1)
            names.append(rest[:int(size)])
            rest = rest[int(size) + 1:]
        for waiting in self._waiting.get(tuple(names), []):
            waiting.put_nowait((word.decode(), int(token), int(rest)))

    async def _call(self, key, *words, look=None, asking=False):
        """On the connection for what is held, or on the one for what is asked: those may be many."""
        source, asking = await self._source(key), asking or look is not None
        name = source.name if self.cluster else None, asking
        wire = self._wires.get(name)
        if wire is None:
            wire = self._wires[name] = _AsyncWire(source.connection_class, source.connection_kwargs, self.patience)
        return await wire.call(*words, look=look)

    async def _source(self, key=None):
        """Where a connection to whoever serves this key comes from, or to anybody."""
        if not self.cluster:
            return self.client.connection_pool
        if getattr(self.client, "_initialize", True):
            try:
                await _within(self.patience, self.client.initialize())
            except library.RedisClusterException as error:
                raise _root(error) from None
        return self.client.get_random_node() if key is None else self.client.get_node_from_key(key)

    async def _library(self, *words):
        if self.cluster:
            await self.client.initialize()  # of an unknown command it asks the nodes, whom it must know for that
        try:
            return await self.client.execute_command(*words)
        except library.ResponseError as error:
            raise _error(error) from None

    async def _mend(self, error=None, within=_BOUND):
        if isinstance(error, library.ReadOnlyError) and self._reader:  # it hears the wrong server
            self._reader.cancel()
            self._reader = asyncio.ensure_future(self._read())
        if self.cluster:
            with contextlib.suppress(OSError, redis.RedisError):
                await _within(within, self.client.nodes_manager.initialize())
        await asyncio.sleep(_pause())


class _Taking:
    def __init__(self, *arguments):
        self.arguments = arguments

    def __await__(self):
        return self._take().__await__()

    async def _take(self):
        locks, key, timeout, options = self.arguments
        hold = await locks.try_lock(key, timeout, **options)
        if hold is None:
            raise LockTimeout(f"{key!r} was not granted within {timeout} s")
        return hold

    async def __aenter__(self):
        self.hold = await self._take()
        return self.hold

    async def __aexit__(self, *error):
        return await self.hold.__aexit__(*error)
