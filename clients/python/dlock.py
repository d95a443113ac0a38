# SPDX-License-Identifier: MIT
"""Locks of the dlock module, by redis-py, for threads (Locks) and for asyncio (AsyncLocks). Copy this file.

    locks = dlock.Locks(redis.Redis())                       # or RedisCluster, or sentinel.master_for(...)
    with locks.lock("stock", timeout=5) as hold:             # dlock.LockTimeout after 5 s
        hold.guard("SET", "stock:left", 41)                  # runs only while the lock is held: else dlock.Fenced

    locks = dlock.AsyncLocks(redis.asyncio.Redis())
    async with locks.lock("stock", shared=True, on_lost=stop) as hold:
        print(hold.token)

Locks opens a connection for each lock that it waits for or holds. AsyncLocks has two for all its tasks (in a
cluster one for each node, and one). Times are in seconds.
"""

import asyncio
import contextlib
import itertools
import logging
import random
import threading
import time
import uuid
import weakref

import redis
from redis import exceptions as library


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
# What a reconnection, another node or a little time can mend.
_PASSING = (OSError, library.ConnectionError, library.TimeoutError, library.MovedError, library.AskError,
            library.TryAgainError, library.ClusterDownError, library.ReadOnlyError, library.MasterDownError,
            library.SlotNotCoveredError)


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
    return isinstance(error, _PASSING) or str(error).startswith(("UNBLOCKED", "NOREPLICAS", "MISCONF"))


# So long a caller whose time is up waits for a server that does not answer.
_GRACE = 1.0


def _pause():
    return random.uniform(0.02, 0.1)


class _Settings:
    """What Locks and AsyncLocks are made with: lease is what the lock has left when this program dies or loses
    the server; auto, how long a program that hangs keeps it; claim, how long a place is kept while we are away."""

    def __init__(self, client, lease=10.0, auto=60.0, claim=5.0, wait_slice=2.0):
        self.client, self.lease, self.auto, self.claim = client, lease, max(auto, lease), claim
        self.patience = self._pool_kwargs().get("socket_timeout") or 5.0
        self.slice = min(wait_slice, lease / 2, self.patience / 2)
        self.first = min(lease, max(3.0, 1.5 * self.slice))  # the lease until we have confirmed the grant

    def _bound(self, deadline, at_once):
        """How long to wait for a reply."""
        return self.patience if at_once else _left(deadline and deadline + _GRACE, self.patience)

    def _pool_kwargs(self):
        pool = getattr(self.client, "connection_pool", None)
        return pool.connection_kwargs if pool else self.client.get_connection_kwargs()


class _Request:
    """One owner's wish for one lock, as words of commands."""

    def __init__(self, settings, key, owner, shared, limit, session):
        self.settings, self.key, self.owner = settings, key, owner or str(uuid.uuid4())
        self.named, self.outer, self.before = owner is not None, 0, 0
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
        self._confirmed(confirmed)

    def _confirmed(self, at):
        self._due, self._until = at + self._locks.lease / 3, at + self._locks.lease

    def _lose(self):
        if not self._over:
            self._over = True
            self.lost.set()
            try:
                if self._on_lost:
                    self._on_lost(self)
            except Exception:
                logging.getLogger(__name__).exception("on_lost has failed")


# ---- threads ----------------------------------------------------------------------------------------------------


class _Wire:
    """A connection that is nobody else's, to whoever serves the key. Opened when needed, again when lost."""

    def __init__(self, client, key):
        self.client, self.key, self.connection, self.closed, self.asked = client, key, None, False, False
        self.lock = threading.Lock()

    def send(self, *words):
        if self.closed:
            raise library.ConnectionError("given up")
        if self.connection is None:
            client = self.client
            if isinstance(client, redis.RedisCluster):
                client = client.get_redis_connection(client.get_node_from_key(self.key))
            pool = client.connection_pool  # not of the pool: of its kind
            self.connection = pool.connection_class(**pool.connection_kwargs)
            self.connection.connect()  # asks the sentinels first, if it is of their kind
        self.connection.send_command(*words, check_health=False)

    def call(self, *words, within=None):
        with self.lock:
            self.asked = True
            self.send(*words)
            try:
                if within is not None and not self.connection.can_read(max(0, within)):
                    raise library.TimeoutError("the server does not answer")
                # An interrupt leaves the connection as it is: the reply is still to come.
                reply = self.connection.read_response(disconnect_on_error=False)
                self.asked = False
                return reply
            except library.ResponseError as error:
                self.asked = False
                raise _error(error) from None

    def mend(self):
        """After an error that passes: begins anew, where the cluster now says."""
        self._drop()
        if isinstance(self.client, redis.RedisCluster):
            try:
                self.client.nodes_manager.initialize()
            except (OSError, redis.RedisError):
                pass
        time.sleep(_pause())

    def close(self):
        self.closed = True
        self._drop()

    def _drop(self):
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.disconnect()


class Hold(_Hold):
    """A lock that is held. `lost` is an Event; `on_lost(hold)` is called by the thread that keeps the holds."""

    def guard(self, *command):
        """Runs a command in one step with the look whether the lock is still held under this token."""
        try:
            return self._locks.client.execute_command("DLOCK.GUARD", self.key, self.token, *command)
        except library.ResponseError as error:
            raise _error(error) from None

    def release(self):
        """Gives back what was granted here, and nothing else. NotHeld if it was lost."""
        self._over = True
        with self._locks._guard:
            self._locks._holds.discard(self)
        words = self._request.release("TOKEN", self.token)
        try:
            self._wire.call(*words)
        except Exception as error:
            if not _passes(error):
                raise
            try:
                self._locks._call(*words)
            except NotHeld:
                if isinstance(error, library.ResponseError):  # else the first one may have been heard
                    raise
        finally:
            with self._wire.lock:
                self._wire.close()

    def __del__(self):
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
            except library.AskError:  # the slot is on its way: the library finds the hold, and we keep the time
                self._locks._call(*self._request.renew(self.token, auto=False))
            self._confirmed(now)
        except NotHeld:
            self._lose()
        except Exception:  # whatever it is, the other holds are to be kept
            with self._wire.lock:
                self._wire.mend()
            if time.monotonic() > self._until:
                self._lose()


class Locks(_Settings):
    """Locks for threads."""

    def __init__(self, client, **settings):
        super().__init__(client, **settings)
        self._holds, self._keeper, self._guard = weakref.WeakSet(), None, threading.Lock()

    def lock(self, key, timeout=None, **options):
        """Waits for the lock. Options: owner, shared, limit, session, on_lost.

        Nested locks of one actor should have one `owner`: only then can the server see a circle (Deadlock)."""
        hold = self.try_lock(key, timeout, **options)
        if hold is None:
            raise LockTimeout(f"{key!r} was not granted within {timeout} s")
        return hold

    def try_lock(self, key, timeout=0, *, owner=None, shared=False, limit=None, session=False, on_lost=None):
        """The same, but None when it is not granted in time."""
        request, wire = _Request(self, key, owner, shared, limit, session), _Wire(self.client, key)
        if request.named:  # an outer hold of this name is not ours to give back
            request.within(self._call(*request.words("HELD")))
        try:
            granted = self._wait(request, wire, _deadline(timeout), timeout == 0)
        except BaseException as error:
            if isinstance(error, Replaced):  # the place is somebody else's
                wire.close()
            else:
                self._depart(request, wire)
            raise
        if granted is None:
            self._depart(request, wire)
            return None
        hold = Hold(self, request, *granted, on_lost, threading.Event())
        hold._wire = wire
        with self._guard:
            self._holds.add(hold)
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep_all, name="dlock", daemon=True)
                self._keeper.start()
        return hold

    def many(self, keys, **options):
        """Locks of any slots, as a context manager whose value has a hold for each key."""
        return _Many(self, keys, options)

    def _wait(self, request, wire, deadline, at_once):
        while True:
            left = _left(deadline, self.slice)
            if left <= 0 and not at_once:
                return None
            try:
                ask = request.ask() if at_once else request.ask("BLOCK", _ms(left))
                granted = wire.call(*ask, within=self._bound(deadline, at_once))
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
                wire.mend()
                if at_once and deadline + 1 < time.monotonic():
                    raise

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
                self._call(*request.words("CANCEL"))
                with contextlib.suppress(NotHeld, library.ResponseError):
                    self._call(*request.release())
                with contextlib.suppress(NotHeld, library.ResponseError):
                    upgrade = request.before and request.release_upgrade(self._call(*request.words("HELD")))
                    if upgrade:
                        self._call(*upgrade)
                end = end or time.monotonic() + self.slice
                if answered or time.monotonic() > end:
                    return
        except (OSError, redis.RedisError):
            pass  # the server is away; its own rules end what is left: the claim, and the first lease

    def _call(self, *words):
        try:
            return self.client.execute_command(*words)
        except library.ResponseError as error:
            raise _error(error) from None

    def _keep_all(self):
        while True:
            now = time.monotonic()
            with self._guard:
                holds = [hold for hold in self._holds if hold._due <= now and not hold._over]
            for hold in holds:
                hold._keep()
            hold = holds = None  # or one that was given up without a release would be kept
            time.sleep(min(self.lease / 20, 0.25))


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

    def __init__(self, connection_class, kwargs):
        self.connection, self.lock = connection_class(**kwargs), asyncio.Lock()

    async def call(self, *words, look=None):
        return await asyncio.shield(asyncio.ensure_future(self._call(words, look)))

    async def _call(self, words, look):
        async with self.lock:
            try:
                if not self.connection.is_connected:
                    await self.connection.connect()
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
                await self.connection.disconnect(nowait=True)
                raise


class AsyncHold(_Hold):
    """A lock that is held by a task. `lost` is an asyncio.Event; `on_lost(hold)` is called in the event loop."""

    async def guard(self, *command):
        """Runs a command in one step with the look whether the lock is still held under this token."""
        return await self._locks._library("DLOCK.GUARD", self.key, self.token, *command)

    async def release(self):
        """Gives back what was granted here, and nothing else. NotHeld if it was lost."""
        self._over = True
        self._keeper.cancel()
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
                    await self._locks._library(*self._request.renew(self.token, auto=False))
                self._confirmed(now)
            except NotHeld:
                self._lose()
            except Exception as error:
                await self._locks._mend(error)
                if time.monotonic() > self._until:
                    self._lose()


class AsyncLocks(_Settings):
    """Locks for the tasks of one event loop. They wait by NOTIFY: one channel, one reader, a shared connection."""

    def __init__(self, client, **settings):
        super().__init__(client, **settings)
        self.slice = min(self.slice, self.first / 2)  # a lost message is noticed within the first lease
        self.cluster = hasattr(client, "get_node_from_key")
        self.channel = f"dlock:{uuid.uuid4()}"
        self._wires, self._waiting, self._reader, self._heard = {}, {}, None, asyncio.Event()
        self._leaving = set()

    def lock(self, key, timeout=None, **options):
        """Waits for the lock: `async with locks.lock(…) as hold` or `hold = await locks.lock(…)`. Options:
        owner, shared, limit, session, on_lost. Nested locks of one task should have one `owner`: only then can the
        server see a circle (Deadlock); tasks of their own need owners of their own."""
        return _Taking(self, key, timeout, options)

    async def try_lock(self, key, timeout=0, *, owner=None, shared=False, limit=None, session=False, on_lost=None):
        """The same, but None when it is not granted in time."""
        request = _Request(self, key, owner, shared, limit, session)
        await self._listen()
        if request.named:
            request.within(await self._library(*request.words("HELD")))
        messages = asyncio.Queue()
        self._waiting.setdefault(request.names(), []).append(messages)
        try:
            granted = await self._wait(request, messages, _deadline(timeout), timeout == 0)
        except BaseException as error:
            if not isinstance(error, Replaced):
                await self._depart(request)
            raise
        finally:
            self._waiting[request.names()].remove(messages)
            if not self._waiting[request.names()]:
                del self._waiting[request.names()]
        if granted is None:
            return None
        hold = AsyncHold(self, request, *granted, on_lost, asyncio.Event())
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
        """Ends the connections. What is still held lives on until its lease."""
        while self._reader and not self._reader.done():
            self._reader.cancel()  # one that comes as the library gives up on a connection can get lost in it
            await asyncio.wait({self._reader}, timeout=1)
        for wire in self._wires.values():
            await wire.connection.disconnect(nowait=True)

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

        async def call(*words, look=None):
            calling = self._call(request.key, *words, look=look)
            if at_once or deadline is None:
                return await calling
            try:
                return await asyncio.wait_for(calling, max(0.0, deadline + _GRACE - time.monotonic()))
            except asyncio.TimeoutError:
                raise library.TimeoutError("the server does not answer") from None

        while True:
            if not at_once and _left(deadline, 1) <= 0:
                look()
                await self._depart(request)
                return None
            try:
                reply = await call(*(request.ask() if at_once else request.ask("NOTIFY", self.channel)), look=look)
                if reply and not reply[0]:
                    wait_id = reply[2]
                    reply = await self._message(messages, wait_id, _left(deadline, self.slice))
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
                    await self._mend(error)

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
                return await self._call(request.key, *words)
            except library.ResponseError as error:
                if not _passes(error):
                    return None
            except (NotHeld, asyncio.CancelledError):
                return None
            except Exception:
                pass
            await self._mend()

    async def _listen(self):
        if self._reader is None:
            self._reader = asyncio.ensure_future(self._read())
        await self._heard.wait()

    async def _read(self):
        """The dispatcher. After each (re)connection every waiter asks again, since messages may be lost."""
        while True:
            try:
                async with self.client.pubsub() as pubsub:
                    await pubsub.subscribe(self.channel)
                    async for message in pubsub.listen():
                        if message["type"] == "subscribe":
                            self._heard.set()
                            for waiting in itertools.chain(*self._waiting.values()):
                                waiting.put_nowait((None, None, None))
                        elif message["type"] == "message":
                            self._dispatch(message["data"])
            except Exception:  # the connection is lost: begins anew
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

    async def _call(self, key, *words, look=None):
        if self.cluster:
            await self.client.initialize()
            source = self.client.get_node_from_key(key)
        else:
            source = self.client.connection_pool
        name = source.name if self.cluster else None
        wire = self._wires.get(name)
        if wire is None:
            wire = self._wires[name] = _AsyncWire(source.connection_class, source.connection_kwargs)
        return await wire.call(*words, look=look)

    async def _library(self, *words):
        if self.cluster:
            await self.client.initialize()  # of an unknown command it asks the nodes, whom it must know for that
        try:
            return await self.client.execute_command(*words)
        except library.ResponseError as error:
            raise _error(error) from None

    async def _mend(self, error=None):
        if isinstance(error, library.ReadOnlyError) and self._reader:  # it hears the wrong server
            self._reader.cancel()
            self._reader = asyncio.ensure_future(self._read())
        if self.cluster:
            try:
                await self.client.nodes_manager.initialize()
            except (OSError, redis.RedisError):
                pass
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
