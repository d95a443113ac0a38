# SPDX-License-Identifier: MIT
"""What all locks of one client share: nodes, the way to the server of a key, and what is renewed.

On it stand taking and giving back (`_take`), and keeping (`_keep`). Nothing in these three knows of threads or event
loops. What waits is a coroutine. In asyncio a task runs it; in threads each thing that it awaits blocks the thread
instead, so that it ends at the first `send` (`_threads.run`).

- A *node* is a server that we talk to. Its *link* is the one connection for all commands of all locks. Replies come in
  the order of the commands, and what a reply changes is changed as it is read (`then`), whether or not anybody waits.
- A *renewal* is a hold that the server renews for our link (AUTO). One KEEP a second moves the believed end of all
  renewals of its link, tells what was lost, and counts them, so that none is kept that we do not know of.
- A *wait* is a place in a queue. Its end is notified on a channel of ours, on a second connection, the *subscriber*.
"""

from __future__ import annotations

import itertools
import math
import os
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from redis import exceptions as library
from redis.crc import key_slot

from ._errors import FAILURES, DLockError, Redirected, passes
from ._hold import HoldBase, log
from ._link import Link, Node, Renewal, Then, Wait
from ._request import Name, Request, Settings, encoded, now, owner_name
from ._resp import Word

Told = Callable[[Node, Link, float, Any], None]


class Connecting(library.TimeoutError):
    """A connect goes on, and another node may serve the key meanwhile."""


class Named:
    """What an owner that the program has named asks of a lock. What is unanswered may end nothing it gets later."""

    __slots__ = ("asking", "left", "suffix", "unanswered")

    def __init__(self) -> None:
        self.asking = 0  # requests
        self.unanswered = 0  # commands that may end a hold of an earlier suffix
        self.suffix = ""  # what the server knows the owner by now
        self.left: Request | None = None  # that was given up while others asked


class Core:
    """What `Locks` and `AsyncLocks` have in common."""

    def __init__(self, client: Any, settings: Settings):
        self.client, self.settings = client, settings
        self.cluster = hasattr(client, "get_node_from_key")
        self._begin()

    def _begin(self) -> None:
        """As new: at first, and in a forked child."""
        self.nodes: dict[str, Node] = {}
        self.moved: dict[int, str] = {}  # by slot
        self.asking: dict[bytes, str] = {}  # by key: its slot is on the way to that node, and the key is there
        self.renewals: dict[tuple[bytes, int], Renewal] = {}  # by key and token
        self.held: dict[tuple[bytes, bytes], Renewal] = {}  # by key and owner, as the program names it
        self.named: dict[tuple[bytes, bytes], Named] = {}  # by key and owner
        self.forgotten: deque[HoldBase] = deque()  # that the program has dropped
        self.closed, self.pid, self.alarm, self.grace = False, os.getpid(), math.inf, 0.0
        self.id, self.owners = uuid.uuid4().hex[:16], itertools.count(1)
        self.channel = f"dlock:{uuid.uuid4()}"
        self.refreshed = 0.0

    # What threads and tasks differ in.

    guard: AbstractContextManager[Any]  # for the renewals, and the alarm

    async def open(self, node: Node, until: float) -> Link:
        """Opens a new connection to the node. One that hangs is accompanied by another each second."""
        raise NotImplementedError

    async def link(self, node: Node, until: float) -> Link:
        """Returns the node's link, opened if there is none. All who come meanwhile wait for the same one."""
        raise NotImplementedError

    async def subscribe(self, node: Node, until: float) -> None:
        """Waits until notifications come from the node."""
        raise NotImplementedError

    async def refresh(self, within: float) -> None:
        """Asks the cluster anew who serves what."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def idle(self, node: Node, seconds: float) -> None:
        """Sleeps until the node's keeper is needed."""
        raise NotImplementedError

    def wait(self) -> Wait:
        raise NotImplementedError

    def wake(self, node: Node) -> None:
        """Wakes the node's keeper at once, and starts it if there is none."""
        raise NotImplementedError

    def rearm(self) -> None:
        """The alarm has been set to another time."""
        raise NotImplementedError

    def later(self, work: Callable[[], object]) -> None:
        """Runs what belongs to the program, where it holds up nothing of ours."""
        raise NotImplementedError

    # Where.

    async def ready(self, until: float) -> None:
        """Before a key's node can be known."""

    def route(self, key: Name) -> Node:
        """Returns the node that serves the key, as far as we know."""
        if not self.cluster:
            return self.node("")
        name = self.asking.get(encoded(key)) or self.moved.get(key_slot(encoded(key)))
        return self.node(name or self.client.get_node_from_key(key).name)

    def route_or(self, key: Name, otherwise: Node) -> Node:
        """Returns the same for a keeper, which asks its own node if nobody is known."""
        try:
            return self.route(key)
        except FAILURES:
            return otherwise

    def node(self, name: str) -> Node:
        node = self.nodes.get(name)
        return node if node is not None else self.nodes.setdefault(name, Node(name))

    def redirected(self, error: Redirected, key: Name, by: Node) -> Node:
        """Returns the node that serves it instead. A server that does not know its own name gives the port only."""
        host, _, port = error.address.rpartition(":")
        address = error.address if host else f"{by.name.rpartition(':')[0]}:{port}"
        if error.ask:
            self.asking[encoded(key)] = address
        else:
            self.asking.pop(encoded(key), None)
            self.moved[error.slot] = address
        return self.node(address)

    async def call(
        self, key: Name, words: tuple[Word, ...], until: float, then: Told | None = None, request: Request | None = None
    ) -> tuple[Any, Node]:
        """Returns the reply of the server that serves the key, and which that is."""
        if self.cluster:
            await self.ready(until)
        node = self.route(key)
        for _ in range(4):
            link = await self.link(node, until)
            if request is not None:
                request.node, request.link = node, link
            told = None if then is None else _bind(then, node, link, now())
            try:
                asking = bool(self.asking) and self.asking.get(encoded(key)) == node.name
                return await link.result(link.post(words, told, asking), until), node
            except Redirected as error:
                node, last = self.redirected(error, key, node), error
        raise last

    async def refresh_routes(self, within: float) -> None:
        """After an error that passes."""
        if self.cluster and now() - self.refreshed > 0.1:
            self.refreshed = now()
            try:
                await self.refresh(within)
            except Exception as why:  # whatever fails in the library, we go on with what we know
                log.debug("the cluster does not say who serves what: %s", why)

    def routes_refreshed(self) -> None:
        self.moved.clear()
        self.asking.clear()

    def linked(self, node: Node, link: Link, instead: Link | None = None) -> Link:
        """Makes it the node's link. It may lead to another server, so the notifications have to come from there."""
        with self.guard:
            known = node.link
            if known is None or known is instead or known.error is not None:
                known = node.link = link
        if known is not link:  # somebody else was faster
            link.die(library.ConnectionError("there is another"))
            return known
        if node.subscriber is not None:
            node.subscriber.die(library.ConnectionError("the link is new"))
        if self.closed:
            link.die(library.ConnectionError("closed"))
        return link

    def listening(self, node: Node, subscriber: Link, beside: Link | None) -> None:
        """Makes it the node's subscriber. If the link has been replaced meanwhile, it may hear the old server."""
        node.subscriber = subscriber
        if self.closed or node.link is not beside:
            subscriber.die(library.ConnectionError("closed" if self.closed else "the link is new"))

    def subscribe_refused(self, node: Node, why: BaseException | None) -> None:
        """If the server does not allow it, it is not asked again."""
        if isinstance(why, library.ResponseError) and not passes(why) and not node.subscribe_denied:
            node.subscribe_denied = True
            log.warning("waits ask again and again, since messages cannot be heard: %s", why)

    def ended(self, node: Node, link: Link) -> None:
        """A link is dead: its ephemeral holds are over, and what else was on it is renewed for another one at once."""
        was_used = link is node.link
        for renewal in list(self.renewals.values()):
            if renewal.link is link:
                was_used = True
                if renewal.request.ephemeral:
                    self.lose(renewal, "closed")
        node.tell(b"again")
        if was_used and self.is_busy(node):
            self.wake(node)

    # What is held.

    def owner(self, name: Name | None) -> Name:
        """Returns the name of an owner on the server. No other client has the same; without a name no other hold."""
        if name is None:
            return owner_name(f"{self.id}-{next(self.owners)}")
        if not isinstance(name, (str, bytes)):
            raise TypeError(f"owner must be str or bytes, not {name!r}")
        if not name:
            raise ValueError("owner must not be empty")
        return owner_name(name, self.id)

    def believed(self, sent: float, lease: float) -> float:
        """Returns the end of a lease that the server has begun after it was asked. (It counts whole milliseconds.)"""
        return sent + lease - 0.002 - self.settings.clock_margin

    def is_busy(self, node: Node) -> bool:
        """Returns true if its keeper has something to do."""
        return bool(node.waits or self.forgotten) or any(one.node is node for one in list(self.renewals.values()))

    def granted(self, request: Request, node: Node, link: Link, token: int, end: float) -> None:
        """The server has said that this is held, and that it renews it for this link."""
        with self.guard:
            known = self.renewals.get((request.names[0], token))
            renewal = known or Renewal(request, token, node)
            self.renewals[(request.names[0], token)] = self.held[request.who] = renewal
            renewal.node = node
            renewal.attach(link, end)
            request.renewal = renewal

    def attach(self, renewal: Renewal, hold: HoldBase) -> None:
        """The program has a hold of it now."""
        request = renewal.request
        with self.guard:
            renewal.holds = [*map(weakref.ref, renewal.live()), weakref.ref(hold)]
            self.renewals.setdefault((request.names[0], renewal.token), renewal)
            self.held.setdefault(request.who, renewal)
            if self.closed:
                self.lose(renewal, "closed")
            self.arm(renewal.end())
        if not renewal.node.awake:
            self.wake(renewal.node)

    def lose(self, renewal: Renewal | None, reason: str) -> None:
        """It is held no more, and each hold of the program is told."""
        if renewal is None:
            return
        with self.guard:
            who = renewal.request.who
            if self.renewals.get((who[0], renewal.token)) is renewal:
                del self.renewals[(who[0], renewal.token)]
            if self.held.get(who) is renewal:
                del self.held[who]
            renewal.detach()
            for hold in renewal.live():
                hold._tell_lost(reason)

    def arm(self, at: float) -> None:
        """Something ends then. Under the guard: the earliest is the alarm."""
        if at < self.alarm:
            self.alarm = at
            self.rearm()

    def decoded(self, value: Any) -> Any:
        """Returns a reply as the program's client would."""
        encoder = getattr(self.client, "get_encoder", None) or self.client.connection_pool.get_encoder
        decode = encoder().decode

        def all_of(one: Any) -> Any:
            return [all_of(each) for each in one] if isinstance(one, list) else decode(one)

        return all_of(value)

    def tell(self, what: str, *about: Any) -> None:
        """Calls the observer. It may fail, and nothing else does."""
        try:
            getattr(self.settings.observer, what)(*about)
        except Exception:
            log.exception("the observer has failed")

    # The end.

    def check(self) -> None:
        """An error if nothing may be asked any more."""
        if self.closed:
            raise DLockError("these locks are closed")

    def end(self, reason: str) -> None:
        """Everything ends: what is held is told lost, and lives on until its lease."""
        self.closed = True
        if self.renewals:
            log.warning("%s with %d locks held: they are lost", reason, len(self.renewals))
        for renewal in list(self.renewals.values()):
            self.lose(renewal, reason)
        for node in list(self.nodes.values()):
            node.tell(b"closed")
            for link in (node.link, node.subscriber):
                if link is not None:
                    link.die(library.ConnectionError(reason))
            self.wake(node)
        self.rearm()


def _bind(then: Told, node: Node, link: Link, sent: float) -> Then:
    return lambda reply: then(node, link, sent, reply)
