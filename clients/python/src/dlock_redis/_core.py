# SPDX-License-Identifier: MIT
"""What both kinds of locks do, written once: ask, wait, keep, lose, leave.

Nothing here knows of threads or event loops. What waits is a coroutine. In asyncio a task runs it; in threads each
thing that it awaits blocks the thread instead, so that it ends at the first `send` (`_threads.run`).

- A *node* is a server that we talk to. Its *link* is the one connection for all commands of all locks. Replies come in
  the order of the commands, and what a reply changes is changed as it is read (`then`), whether or not anybody waits.
- A *tie* is a hold that the server renews for our link (AUTO). One KEEP a second moves the believed end of all ties
  of its link, tells what was lost, and counts the ties, so that none is kept that we do not know of.
- A *wait* is a place in a queue. Its end is told on a channel of ours, heard on a second connection, the *ear*.
"""

from __future__ import annotations

import logging
import math
import os
import random
import uuid
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from redis import exceptions as library
from redis.crc import key_slot

from ._errors import FAILURES, DLockError, LockTimeout, NoAck, NotHeld, Redirected, Replaced, from_server, passes
from ._link import Link, Node, Then, Tie, Wait, name_of
from ._request import Name, Request, Settings, ms, now
from ._resp import Word

log = logging.getLogger("dlock_redis")

GRACE = 0.5  # so much longer a caller whose time is up waits for a reply that is on its way
WARN_EVERY = 10.0
BATCH = 100  # so many are left in one go
IDLE = 5.0  # so often it is looked whether locks that were forgotten can end

Told = Callable[[Node, Link, float, Any], None]


class HoldBase:
    """A lock that is held."""

    lost: Any
    _event: Callable[[], Any]

    def __init__(self, locks: Any, request: Request, tie: Tie, on_lost: Callable[[Any], object] | None):
        core: Core = locks._core
        self.key, self.owner, self.token, self.lost = request.key, request.owner, tie.token, self._event()
        self._locks, self._core, self._request, self._tie, self._on_lost = locks, core, request, tie, on_lost
        self._over, self._since, self._pid, self.reason = False, now(), os.getpid(), ""
        core.adopt(request, tie, self)

    def left(self) -> float:
        """For so many seconds it is ours for sure, if nothing is heard of the server any more."""
        return 0.0 if self._over else max(0.0, self._tie.end() - now())

    def __del__(self) -> None:
        # Nobody can give it back any more. The collector may run anywhere: nothing is done here that could wait.
        if not getattr(self, "_over", True):
            self._core.forsake(self._request, self.token)

    def _forked(self) -> None:
        raise NotImplementedError

    def _tell_lost(self, reason: str) -> None:
        if self._over:
            return
        self._over, self.reason = True, reason
        level = logging.DEBUG if self._core.closed else logging.WARNING
        log.log(level, "lock %r of %r is lost: %s", self.key, self.owner, reason)
        self._core.tell("lost", self.key, reason)
        self.lost.set()
        if self._on_lost is not None:
            self._core.later(self._callback)

    def _callback(self) -> None:
        try:
            if self._on_lost is not None:
                self._on_lost(self)
        except Exception:
            log.exception("on_lost has failed")


class Core:
    """All that Locks or AsyncLocks have: nodes, and what is done with them."""

    def __init__(self, client: Any, settings: Settings):
        self.client, self.settings = client, settings
        self.cluster = hasattr(client, "get_node_from_key")
        self._begin()

    def _begin(self) -> None:
        """As new: at first, and in a forked child."""
        self.nodes: dict[str, Node] = {}
        self.moved: dict[int, str] = {}
        self.closed, self.pid, self.alarm = False, os.getpid(), math.inf
        self.channel = f"dlock:{uuid.uuid4()}"
        self.refreshed = 0.0

    # What the kinds differ in.

    guard: AbstractContextManager[Any]  # for the ties of a node

    def mutex(self) -> Any:
        """For whoever opens a connection to a node."""
        raise NotImplementedError

    async def open(self, node: Node, until: float) -> Link:
        """A new connection to the node."""
        raise NotImplementedError

    async def link(self, node: Node, until: float) -> Link:
        """The node's link, opened if there is none. Whoever comes meanwhile waits for the same one."""
        raise NotImplementedError

    async def listen(self, node: Node, until: float) -> None:
        """Until messages come from the node."""
        raise NotImplementedError

    async def refresh(self, within: float) -> None:
        """Asks the cluster anew who serves what."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def doze(self, node: Node, seconds: float) -> None:
        """Sleeps until the node's keeper is needed."""
        raise NotImplementedError

    def wait(self, names: tuple[bytes, bytes]) -> Wait:
        raise NotImplementedError

    def rouse(self, node: Node) -> None:
        """Wakes the node's keeper, at once."""
        raise NotImplementedError

    def rearm(self) -> None:
        """The alarm has been set to another time."""
        raise NotImplementedError

    def later(self, work: Callable[[], object]) -> None:
        """Runs what belongs to the program, where it holds up nothing of ours."""
        raise NotImplementedError

    def linked(self, node: Node, link: Link) -> Link:
        """The node's link from now on. Where it goes the messages come from: it may be another server."""
        node.link = link
        if node.ear is not None:
            node.ear.die(library.ConnectionError("the link is new"))
        if self.closed:
            link.die(library.ConnectionError("closed"))
        return link

    def tell(self, what: str, *about: Any) -> None:
        """Whoever counts may fail, and nothing else does."""
        try:
            getattr(self.settings.observer, what)(*about)
        except Exception:
            log.exception("the observer has failed")

    # Where.

    async def ready(self, until: float) -> None:
        """Before a key's node can be known."""

    def route(self, key: Name) -> Node:
        """Who serves the key, as far as we know."""
        if not self.cluster:
            return self.node("")
        slot = key_slot(name_of(key))
        name = self.moved.get(slot)
        if name is None:
            name = self.client.get_node_from_key(key).name
        return self.node(name)

    def node(self, name: str) -> Node:
        node = self.nodes.get(name)
        return node if node is not None else self.nodes.setdefault(name, Node(name, self.mutex()))

    async def call(
        self,
        key: Name,
        words: tuple[Word, ...],
        until: float,
        then: Told | None = None,
    ) -> tuple[Any, Node]:
        """The reply of whoever serves the key, and who that is."""
        await self.ready(until)
        node, asking = self.route(key), False
        for _ in range(4):
            link = await self.link(node, until)
            sent = now()
            told = None if then is None else _bind(then, node, link, sent)
            try:
                return await link.result(link.post(words, told, asking), until), node
            except Redirected as error:
                if not error.ask:
                    self.moved[error.slot] = error.address
                node, asking, last = self.node(error.address), error.ask, error
        raise last

    async def look_around(self, error: BaseException, within: float) -> None:
        """After an error that passes."""
        if isinstance(error, library.ReadOnlyError):
            for node in list(self.nodes.values()):
                if node.link is not None:  # it has become a replica: who is primary now is found by connecting
                    node.link.die(library.ConnectionError(str(error)))
        if self.cluster and now() - self.refreshed > 0.1:
            self.refreshed = now()
            try:
                await self.refresh(within)
                self.moved.clear()
            except FAILURES as why:
                log.debug("the cluster does not say who serves what: %s", why)

    # Taking.

    async def take(self, request: Request, timeout: float | None) -> Tie | None:
        """The tie of what was granted; None if it is taken. A time-out of 0: one try."""
        began = now()
        try:
            tie = await self._take(request, timeout, began)
        except BaseException as error:
            if request.asked and not isinstance(error, Replaced):
                self.leave(request)
            self.tell("refused", request.key, now() - began, error)
            raise
        finally:
            if request.queued:
                self.tell("waited", request.key)
        if tie is None:
            if request.queued:
                self.leave(request)  # its claim would keep the place
            self.tell("refused", request.key, now() - began, None)
        else:
            self.tell("granted", request.key, now() - began)
        return tie

    async def _take(self, request: Request, timeout: float | None, began: float) -> Tie | None:
        deadline = None if timeout is None else began + timeout
        end = began + self.settings.bound if timeout == 0 else deadline
        warned = -math.inf
        before: Exception | None = None
        while True:
            self.check()
            try:
                return await self._attempt(request, timeout == 0, deadline, end)
            except Exception as error:
                if isinstance(error, NotHeld) and not request.before:
                    pass  # the grant has ended before it was confirmed
                elif not passes(error) or (timeout == 0 and isinstance(error, (NoAck, library.TimeoutError))):
                    raise
                left = math.inf if end is None else end - now()
                if left <= 0:
                    if timeout == 0:
                        raise
                    # The end has cut the last try short: the reason is what was heard before.
                    why = before if before and isinstance(error, library.TimeoutError) else error
                    raise LockTimeout(f"{request.key!r} was not granted within {timeout} s: {why}") from why
                before = error
                if now() - warned >= WARN_EVERY:
                    log.warning("still waiting for lock %r: %s", request.key, error)
                    warned = now()
                await self.look_around(error, min(left, self.settings.bound))
                await self.sleep(min(left, random.uniform(0.02, 0.1)))

    def _until(self, end: float | None) -> float:
        bound = now() + self.settings.bound
        return bound if end is None else min(bound, end + GRACE)

    async def _attempt(self, request: Request, at_once: bool, deadline: float | None, end: float | None) -> Tie | None:
        key = request.key
        if not request.looked:  # an outer hold of this name is not ours to give back
            while any(one.owner == request.owner and one.key == key for one in self.departing()):
                if end is not None and now() >= end:
                    raise library.TimeoutError("this owner's last wait is still to be left")
                await self.sleep(0.01)
            request.within((await self.call(key, request.words("HELD"), self._until(end)))[0])
        request.asked = True

        def granted(node: Node, link: Link, sent: float, reply: Any) -> None:
            if isinstance(reply, list):
                self.tie(request, node, link, reply[0], sent)

        if not request.queued:
            reply, request.node = await self.call(key, request.take(at_once), self._until(end), granted)
            if reply or at_once:
                return request.tie if reply else None
            request.queued = True
            self.tell("waiting", key)
        await self.ready(self._until(end))
        node = self.route(key)
        if not node.deaf:
            try:
                await self.listen(node, self._until(end))
            except library.ResponseError as error:
                node.deaf = True
                log.warning("waits block on connections of their own, since messages cannot be heard: %s", error)
            except FAILURES as error:
                if not passes(error):
                    raise
                if deadline is not None and now() >= deadline:
                    return None
                return await self._block(request, deadline, end)
        return await (self._block if node.deaf else self._queue)(request, deadline, end)

    async def _queue(self, request: Request, deadline: float | None, end: float | None) -> Tie | None:
        """Waits by NOTIFY."""
        names = name_of(request.key), name_of(request.owner)
        heard, wait = self.route(request.key), self.wait(names)
        heard.waits.setdefault(names, []).append(wait)
        self.wake(heard)
        try:
            if heard.ear is None or heard.ear.error is not None:  # as we came
                raise library.ConnectionError("messages are not heard")
            block = () if deadline is None else ("BLOCK", ms(deadline - now()))
            words = request.wait("NOTIFY", self.channel, *block)
            reply, request.node = await self.call(request.key, words, self._until(end))
            if request.node is not heard:
                raise library.TryAgainError("TRYAGAIN the slot has moved")
            if reply is None:
                return None
            if reply[0]:
                return await self._confirm(request, reply[0], end)
            while True:
                message = await wait.next(math.inf if deadline is None else deadline + GRACE)
                self.check()
                if message is None:
                    return None
                word, token, number = message
                if number not in (0, reply[2]):
                    continue  # of an earlier asking of ours
                if word == b"granted":
                    return await self._confirm(request, token, end)
                if word == b"timeout":
                    return None
                if word == b"noack":
                    raise NoAck("NOACK too few replicas have confirmed the grant")
                if word in (b"deadlock", b"replaced", b"notheld", b"wrongtype", b"refused"):
                    raise from_server(f"{word.decode().upper()} (told by a message)")
                raise library.ConnectionError(f"the wait has ended: {word.decode()}")  # moved, gone, cancelled, again
        finally:
            heard.waits[names].remove(wait)
            if not heard.waits[names]:
                del heard.waits[names]

    async def _block(self, request: Request, deadline: float | None, end: float | None) -> Tie | None:
        """Waits by BLOCK in slices, on a connection of its own."""
        bound = self.settings.bound
        request.node = self.route(request.key)
        link = await self.open(request.node, self._until(end))
        try:
            while True:
                part = bound / 2 if deadline is None else min(bound / 2, deadline - now())
                reply = await link.call(request.wait("BLOCK", ms(part)), now() + part + bound)
                self.check()
                if reply:
                    return await self._confirm(request, reply[0], end)
                if deadline is not None and now() >= deadline:
                    return None
        finally:
            link.die(library.ConnectionError("the wait is over"))

    async def _confirm(self, request: Request, token: int, end: float | None) -> Tie:
        def renewed(node: Node, link: Link, sent: float, reply: Any) -> None:
            if isinstance(reply, int):
                self.tie(request, node, link, token, sent, reply)

        _, request.node = await self.call(request.key, request.renew(token), self._until(end), renewed)
        assert request.tie is not None
        return request.tie

    # Ties.

    def tie(self, request: Request, node: Node, link: Link, token: int, sent: float, lease: int | None = None) -> None:
        """The server has said that it renews this hold for this link."""
        seconds = self.settings.lease if lease is None else lease / 1000
        with self.guard:
            if request.outer not in (0, token):  # an upgrade: the outer hold has ended with its token
                self._lose(node, node.ties.get(request.outer), "upgraded")
                request.outer, request.before = token, 0
            tie = node.ties.get(token)
            if tie is None:
                tie = node.ties[token] = Tie(request, token)
            tie.attach(link, sent + seconds - 0.002 - self.settings.allowance)
            request.tie = tie

    def adopt(self, request: Request, tie: Tie, hold: HoldBase) -> None:
        """Somebody has it now."""
        assert request.node is not None
        with self.guard:
            tie.holds.append(weakref.ref(hold))
            request.node.ties.setdefault(tie.token, tie)
        self.wake(request.node)
        if tie.end() < self.alarm:
            self.alarm = tie.end()
            self.rearm()

    def wake(self, node: Node) -> None:
        if not node.awake:
            node.awake = True
            self.rouse(node)

    def _lose(self, node: Node, tie: Tie | None, reason: str) -> None:
        if tie is not None and node.ties.pop(tie.token, None) is not None:
            tie.detach()
            for one in tie.holds:
                hold = one()
                if hold is not None:
                    hold._tell_lost(reason)

    def lose(self, node: Node, tie: Tie | None, reason: str) -> None:
        with self.guard:
            self._lose(node, tie, reason)

    def expire(self) -> None:
        """Tells what has ended by the clock, and sets the alarm anew. Waits for nothing."""
        at = math.inf
        for node in list(self.nodes.values()):
            for tie in list(node.ties.values()):
                end = tie.end()
                if end <= now():
                    self.lose(node, tie, "nobody has confirmed it before its end")
                    self.drop(tie.request, tie.token)
                else:
                    at = min(at, end)
        self.alarm = at

    def find(self, tie: Tie) -> Node | None:
        return next((node for node in list(self.nodes.values()) if node.ties.get(tie.token) is tie), None)

    # Giving back.

    async def release(self, hold: HoldBase) -> None:
        """Gives back what was granted, and nothing else."""
        if hold._pid != os.getpid():
            raise DLockError(f"{hold.key!r} is held by the process that has forked this one")
        self.check()
        request, tie = hold._request, hold._tie
        lost, hold._over = hold._over, True
        if lost:
            raise NotHeld(f"NOTHELD lock {hold.key!r} was lost: {hold.reason or 'it was given back before'}")
        heard, until = True, now() + self.settings.bound

        def released(node: Node, link: Link, sent: float, reply: Any) -> None:
            if reply == 0 or isinstance(reply, NotHeld):
                self.lose(self.find(tie) or node, tie, "released")

        while True:
            try:
                await self.call(hold.key, request.release("TOKEN", hold.token), until, released)
                break
            except NotHeld:
                if heard:
                    raise
                break  # the first one has given it back
            except Exception as error:
                if not passes(error) or now() >= until:
                    self.drop(request, hold.token)
                    raise
                heard = heard and isinstance(error, library.ResponseError)
                await self.look_around(error, until - now())
                await self.sleep(0.02)
            except BaseException:
                self.drop(request, hold.token)
                raise
        self.tell("released", hold.key, now() - hold._since)

    async def let_go(self, hold: HoldBase, lease: float) -> None:
        """It lasts so long from now on and is not kept. Nobody is told of its end."""
        request, tie = hold._request, hold._tie

        def renewed(node: Node, link: Link, sent: float, reply: Any) -> None:
            if isinstance(reply, int):
                hold._over = True
                self.lose(self.find(tie) or node, tie, "let go")

        words = request.words("RENEW", ms(lease), "TOKEN", hold.token)
        await self.call(hold.key, words, now() + self.settings.bound, renewed)

    def drop(self, request: Request, token: int = 0) -> None:
        """Leaves for good, in the background. Without a token it is the wait that is left."""
        node = request.node
        if node is not None and not self.closed:
            node.leaving.append((now() + max(self.settings.lease, self.settings.claim), request, token))
            node.awake = True
            self.rouse(node)

    def forsake(self, request: Request, token: int) -> None:
        """The same for what the collector finds. The keeper is awake, since there is a tie."""
        if request.node is not None:
            request.node.leaving.append((now() + self.settings.lease, request, token))

    def leave(self, request: Request) -> None:
        """On the link, if it lives: behind all that was asked."""
        request.asked = False
        if request.node is None:
            try:
                request.node = self.route(request.key)
            except FAILURES:
                return
        link = request.node.link
        if link is not None and link.error is None and not request.before:
            try:
                link.post(request.words("CANCEL"))
                link.post(request.release(), lambda reply: self._left(request, reply))
                return
            except FAILURES:
                pass
        self.drop(request)

    def _left(self, request: Request, reply: Any) -> None:
        if request.tie is not None and request.node is not None and (reply == 0 or isinstance(reply, NotHeld)):
            self.lose(request.node, request.tie, "left")
        elif isinstance(reply, Exception) and passes(reply):
            self.drop(request)

    def departing(self) -> list[Request]:
        return [request for node in list(self.nodes.values()) for _, request, _ in list(node.leaving)]

    async def _depart(self, node: Node, link: Link) -> None:
        """Gives back what is to be left at this node, in one go: others are to be kept. No other node is waited for."""
        asked = []
        for one in list(node.leaving)[:BATCH]:
            _, request, token = one
            here = self.route(request.key) is node
            if here and not token:
                link.post(request.words("CANCEL"))
                if request.before:
                    await self._leave_upgrade(link, request)
            asked.append((one, link.post(request.release(*(("TOKEN", token) if token else ()))) if here else None))
        for (deadline, request, token), entry in asked:
            target = self.route(request.key)
            try:
                if entry is not None and await link.result(entry, entry.sent + self.settings.bound) == 0:
                    self.lose(node, node.ties.get(token) or request.tie, "released")
            except Redirected as error:
                if error.ask:  # its slot is on the way
                    node.leaving.rotate(-1)
                    continue
                self.moved[error.slot] = error.address
                target = self.node(error.address)
            except NotHeld:
                self.lose(node, node.ties.get(token) or request.tie, "released")
            except FAILURES as error:
                if now() < deadline and (passes(error) or not isinstance(error, library.ResponseError)):
                    raise
            one = node.leaving.popleft()
            if target is not node:  # that one's keeper does it
                request.node = target
                target.leaving.append(one)
                target.awake = True
                self.rouse(target)
        if len(asked) == BATCH:
            self.rouse(node)

    async def _leave_upgrade(self, link: Link, request: Request) -> None:
        """If an upgrade was granted before it could be left, the outer hold has ended: nothing of it is left over."""
        held = await link.call(request.words("HELD"), now() + self.settings.bound)
        if held and held[0] != request.outer:
            link.post(request.words("RELEASE", "TOKEN", held[0], "HOLDS", 0))

    # Keeping.

    async def keep(self, node: Node) -> None:
        """The keeper of a node: does nothing but this, and waits for no other node."""
        while not self.closed:
            await self.doze(node, self.settings.interval if node.awake else IDLE)
            if self.closed:
                break
            if not (node.ties or node.waits or node.leaving):
                node.awake = False
                if not (node.ties or node.waits or node.leaving):
                    continue
                node.awake = True
            try:
                await self._round(node)
            except Exception as error:
                log.info("node %s: %s", node.name or "of the client", error)
                await self.look_around(error, self.settings.interval / 2)  # whom that asks may hang
                self._rehome(node)
        self.end("closed")

    async def _round(self, node: Node) -> None:
        link = await self.link(node, now() + self.settings.bound)
        loose = [tie for tie in list(node.ties.values()) if tie.link is not link]
        if loose:
            await self.retie(node, link, loose)
        if link.surplus > 1:  # two in a row: it has ties that nobody knows of
            log.warning("the connection to %s keeps holds that nobody has: it is replaced", node.name or "the server")
            fresh = await self.open(node, now() + self.settings.bound)
            self.linked(node, fresh)
            await self.retie(node, fresh, list(node.ties.values()))
            link.die(library.ConnectionError("replaced"))
            link = fresh
        if node.ties or node.waits:
            sent = now()
            entry = link.post(("DLOCK.KEEP", ms(self.settings.auto)), lambda reply: self._kept(node, link, sent, reply))
            try:
                await link.result(entry, sent + self.settings.bound)
            except NoAck as error:  # what is believed stays as it was; to give back needs no replica
                log.info("node %s: %s", node.name or "of the client", error)
        await self._depart(node, link)

    def _kept(self, node: Node, link: Link, sent: float, reply: Any) -> None:
        if not isinstance(reply, list):
            return
        ties, left, lost = reply
        if left is not None:
            link.believed, link.kept = sent + left / 1000 - self.settings.allowance, link.serial
        for _, token, reason in lost or ():
            tie = node.ties.get(token)
            if tie is None or tie.link is not link:
                continue
            if reason in (b"moved", b"renamed", b"taken", b"demoted"):
                with self.guard:
                    tie.detach()  # RENEW tells what has become of it
                self.rouse(node)
            else:
                self.lose(node, tie, reason.decode())
        link.surplus = link.surplus + 1 if ties > link.ties else 0
        if lost is None or ties < link.ties:
            with self.guard:
                for tie in list(node.ties.values()):
                    tie.detach()
            self.rouse(node)

    async def retie(self, node: Node, link: Link, ties: list[Tie]) -> None:
        """Ties our holds to this link, all in one go."""
        asked = []
        for tie in ties:
            with self.guard:
                if not any(one() is not None for one in tie.holds):
                    node.ties.pop(tie.token, None)
                    tie.detach()
                    continue
            if tie.link is not None and tie.link.error is not None and tie.request.session:
                self.lose(node, tie, "session")  # it has ended with its connection
                continue
            asked.append((tie, link.post(tie.request.renew(tie.token), self._renewed(node, link, tie))))
        for tie, entry in asked:
            try:
                await link.result(entry, entry.sent + self.settings.bound)
            except NotHeld:
                pass
            except Redirected as error:
                if not error.ask:
                    self.moved[error.slot] = error.address
                self._move(node, self.node(error.address), tie)
            except library.ResponseError as error:
                if isinstance(error, library.ReadOnlyError):
                    raise
                log.warning("lock %r cannot be renewed: %s", tie.request.key, error)
            except NoAck:
                pass

    def _renewed(self, node: Node, link: Link, tie: Tie) -> Then:
        sent = now()

        def renewed(reply: Any) -> None:
            with self.guard:
                if isinstance(reply, int) and tie.token in node.ties:
                    tie.attach(link, sent + reply / 1000 - 0.002 - self.settings.allowance)
                elif isinstance(reply, NotHeld):
                    self._lose(node, tie, "not held any more")

        return renewed

    def _move(self, node: Node, target: Node, tie: Tie) -> None:
        if target is node:
            return
        with self.guard:
            if node.ties.pop(tie.token, None) is not None:
                tie.detach()
                target.ties[tie.token] = tie
                tie.request.node = target
        target.awake = True
        self.rouse(target)

    def _rehome(self, node: Node) -> None:
        """What another node serves by now is that one's to keep."""
        if self.cluster:
            for tie in list(node.ties.values()):
                try:
                    self._move(node, self.route(tie.request.key), tie)
                except FAILURES:
                    return
            node.tell(b"again")

    # The end.

    def check(self) -> None:
        """An error if nothing may be asked any more."""
        if self.closed:
            raise DLockError("these locks are closed")

    def end(self, reason: str) -> None:
        """Everything ends: what is held is told lost, and lives on until its lease."""
        self.closed = True
        held = sum(len(node.ties) for node in list(self.nodes.values()))
        if held:
            log.warning("%s with %d locks held: they are lost", reason, held)
        for node in list(self.nodes.values()):
            for tie in list(node.ties.values()):
                self.lose(node, tie, reason)
            node.tell(b"closed")
            for link in (node.link, node.ear):
                if link is not None:
                    link.die(library.ConnectionError(reason))
            self.rouse(node)
        self.rearm()


def _bind(then: Told, node: Node, link: Link, sent: float) -> Then:
    return lambda reply: then(node, link, sent, reply)


def own(kwargs: dict[str, Any], bound: float, retry: Any) -> dict[str, Any]:
    """How a connection of ours is made: bounded, tried once, RESP2, whatever the library does by itself."""
    strange = ("maint_notifications", "oss_cluster_maint", "parser_class", "orig_", "maintenance_")
    kept = {name: value for name, value in kwargs.items() if not name.startswith(strange)}
    kept |= {"socket_timeout": bound, "retry": retry, "protocol": 2, "health_check_interval": 0}
    return kept if "path" in kept else {**kept, "socket_connect_timeout": bound}
