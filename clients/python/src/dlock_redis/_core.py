# SPDX-License-Identifier: MIT
"""What all locks of one client share: nodes, the way to whoever serves a key, and the ties.

On it stand giving back (`_leave`), taking and waiting (`_take`), and keeping (`_keep`). Nothing in these four knows of
threads or event loops. What waits is a coroutine. In asyncio a task runs it; in threads each thing that it awaits
blocks the thread instead, so that it ends at the first `send` (`_threads.run`).

- A *node* is a server that we talk to. Its *link* is the one connection for all commands of all locks. Replies come in
  the order of the commands, and what a reply changes is changed as it is read (`then`), whether or not anybody waits.
- A *tie* is a hold that the server renews for our link (AUTO). One KEEP a second moves the believed end of all ties
  of its link, tells what was lost, and counts the ties, so that none is kept that we do not know of.
- A *wait* is a place in a queue. Its end is told on a channel of ours, heard on a second connection, the *ear*.
"""

from __future__ import annotations

import math
import os
import uuid
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from redis import exceptions as library
from redis.crc import key_slot

from ._errors import FAILURES, DLockError, Redirected, passes
from ._hold import HoldBase, log
from ._link import Link, Node, Then, Tie, Wait
from ._request import Name, Request, Settings, name_of, now
from ._resp import Word

Told = Callable[[Node, Link, float, Any], None]


class Core:
    """What `Locks` and `AsyncLocks` have in common."""

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

    # What threads and tasks differ in.

    guard: AbstractContextManager[Any]  # for the ties, and the alarm

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

    def wait(self) -> Wait:
        raise NotImplementedError

    def rouse(self, node: Node) -> None:
        """Wakes the node's keeper, at once: it has something to do."""
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
        """Who serves the key, as far as we know."""
        if not self.cluster:
            return self.node("")
        slot = key_slot(name_of(key))
        name = self.moved.get(slot)
        if name is None:
            name = self.client.get_node_from_key(key).name
        return self.node(name)

    def serves(self, key: Name, otherwise: Node) -> Node:
        """The same for a keeper, which asks its own node where nobody is known."""
        try:
            return self.route(key)
        except FAILURES:
            return otherwise

    def node(self, name: str) -> Node:
        node = self.nodes.get(name)
        return node if node is not None else self.nodes.setdefault(name, Node(name, self.mutex()))

    def redirected(self, error: Redirected, by: Node) -> Node:
        """Who serves it instead. ASK is for one command. Who does not know its own name gives the port only."""
        host, _, port = error.address.rpartition(":")
        address = error.address if host else f"{by.name.rpartition(':')[0]}:{port}"
        if not error.ask:
            self.moved[error.slot] = address
        return self.node(address)

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
            told = None if then is None else _bind(then, node, link, now())
            try:
                return await link.result(link.post(words, told, asking), until), node
            except Redirected as error:
                node, asking, last = self.redirected(error, node), error.ask, error
        raise last

    async def look_around(self, within: float) -> None:
        """After an error that passes."""
        if self.cluster and now() - self.refreshed > 0.1:
            self.refreshed = now()
            try:
                await self.refresh(within)
                self.moved.clear()
            except Exception as why:  # whatever fails in the library, we go on with what we know
                log.debug("the cluster does not say who serves what: %s", why)

    def linked(self, node: Node, link: Link, instead: Link | None = None) -> Link:
        """The node's link from now on. Where it goes the messages come from: it may be another server."""
        with self.guard:
            known = node.link
            if known is None or known is instead or known.error is not None:
                known = node.link = link
        if known is not link:  # somebody else was faster
            link.die(library.ConnectionError("there is another"))
            return known
        if node.ear is not None:
            node.ear.die(library.ConnectionError("the link is new"))
        if self.closed:
            link.die(library.ConnectionError("closed"))
        return link

    def listening(self, node: Node, ear: Link, beside: Link | None) -> None:
        """The node's ear from now on. If the link has been replaced meanwhile, it may hear the old server."""
        node.ear = ear
        if self.closed or node.link is not beside:
            ear.die(library.ConnectionError("closed" if self.closed else "the link is new"))

    def deafen(self, node: Node, why: Exception | None) -> None:
        """If the server refuses to let it hear, it is not asked again."""
        if isinstance(why, library.ResponseError) and not passes(why) and not node.deaf:
            node.deaf = True
            log.warning("waits block on connections of their own, since messages cannot be heard: %s", why)

    def ended(self, node: Node, link: Link) -> None:
        """A link is dead: its sessions are over, and what else was on it is tied anew at once."""
        for tie in list(node.ties.values()):
            if tie.link is link and tie.request.session:
                self.lose(tie, "session")
        node.tell(b"again")
        if node.link is link and node.busy():
            self.rouse(node)

    # Ties.

    def believed(self, sent: float, lease: float) -> float:
        """The end of a lease that the server has begun after it was asked. (It counts whole milliseconds.)"""
        return sent + lease - 0.002 - self.settings.allowance

    def tie(self, request: Request, node: Node, link: Link, token: int, end: float) -> None:
        """The server has said that it renews this hold for this link."""
        with self.guard:
            if request.outer not in (0, token):  # an upgrade: the outer hold has ended with its token
                self.lose(node.ties.get(request.outer), "upgraded")
                request.outer, request.before = token, 0
            tie = node.ties.get(token)
            if tie is None:
                tie = node.ties[token] = Tie(request, token, node)
            tie.attach(link, end)
            request.tie = tie

    def adopt(self, tie: Tie, hold: HoldBase) -> None:
        """Somebody has it now."""
        with self.guard:
            tie.holds = [one for one in tie.holds if (known := one()) is not None and not known._over]
            tie.holds.append(weakref.ref(hold))
            tie.node.ties.setdefault(tie.token, tie)
            if self.closed:
                self.lose(tie, "closed")
            self.arm(tie.end())
        self.wake(tie.node)

    def lose(self, tie: Tie | None, reason: str) -> None:
        """It is held no more: who has it is told."""
        with self.guard:
            if tie is not None and tie.node.ties.get(tie.token) is tie:
                del tie.node.ties[tie.token]
                tie.detach()
                for one in tie.holds:
                    hold = one()
                    if hold is not None:
                        hold._tell_lost(reason)

    def arm(self, at: float) -> None:
        """Something ends then. Under the guard: the earliest is the alarm."""
        if at < self.alarm:
            self.alarm = at
            self.rearm()

    def wake(self, node: Node) -> None:
        if not node.awake:
            self.rouse(node)

    def tell(self, what: str, *about: Any) -> None:
        """Whoever counts may fail, and nothing else does."""
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
        held = sum(len(node.ties) for node in list(self.nodes.values()))
        if held:
            log.warning("%s with %d locks held: they are lost", reason, held)
        for node in list(self.nodes.values()):
            for tie in list(node.ties.values()):
                self.lose(tie, reason)
            node.tell(b"closed")
            for link in (node.link, node.ear, *node.blocked):
                if link is not None:
                    link.die(library.ConnectionError(reason))
            self.rouse(node)
        self.rearm()


def _bind(then: Told, node: Node, link: Link, sent: float) -> Then:
    return lambda reply: then(node, link, sent, reply)
