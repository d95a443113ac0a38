# SPDX-License-Identifier: MIT
"""The keeper of a node, which sends KEEP and ties anew what is loose; and the clock, which tells what has ended."""

from __future__ import annotations

import math
from typing import Any

from redis import exceptions as library

from ._errors import NoAck, NotHeld, Redirected
from ._hold import log
from ._leave import Leaving
from ._link import Link, Node, Then, Tie
from ._request import ms, now

PAUSE = 0.1  # after a round that has failed
IDLE = 5.0  # so often it is looked whether locks that were forgotten can end


class Keeping(Leaving):
    async def keep(self, node: Node) -> None:
        """The keeper of a node: does nothing but this, and waits for no other node."""
        while not self.closed:
            await self.doze(node, self.settings.interval if node.awake else IDLE)
            if self.closed:
                break
            if not node.busy():
                node.awake = False
                if not node.busy():
                    continue
                node.awake = True
            try:
                await self._round(node)
            except Exception as error:
                log.info("node %s: %s", node.name or "of the client", error)
                await self.look_around(self.settings.interval / 2)  # whom that asks may hang
                self._rehome(node)
                await self.sleep(PAUSE)  # its link's end has woken it
        self.end("closed")

    async def _round(self, node: Node) -> None:
        self.forget(node)
        link = await self.link(node, now() + self.settings.bound)
        if node.ties or node.waits:
            sent = now()
            entry = link.post(("DLOCK.KEEP", ms(self.settings.auto)), lambda reply: self._kept(node, link, sent, reply))
            try:
                await link.result(entry, sent + self.settings.bound)
            except NoAck as error:  # what is believed stays as it was; to give back needs no replica
                log.info("node %s: %s", node.name or "of the client", error)
        if link.surplus > 1:  # two in a row: it has ties that nobody knows of
            link = await self._replace(node, link)
        near = now() + self.settings.lease / 2 if link.short else None
        ties = list(node.ties.values())
        loose = [tie for tie in ties if tie.link is not link or (near is not None and tie.end() < near)]
        if loose:
            await self.retie(node, link, loose)
        await self._depart(node, link)

    async def _replace(self, node: Node, link: Link) -> Link:
        log.warning("the connection to %s keeps holds that nobody has: it is replaced", node.name or "the server")
        fresh = self.linked(node, await self.open(node, now() + self.settings.bound), instead=link)
        await self.retie(node, fresh, list(node.ties.values()))
        link.die(library.ConnectionError("replaced"))
        return fresh

    def _kept(self, node: Node, link: Link, sent: float, reply: Any) -> None:
        if not isinstance(reply, list):
            return
        ties, left, lost = reply
        if left is not None:
            link.believed, link.kept = sent + left / 1000 - self.settings.allowance, link.serial
            # It renews at two thirds. Where one hold may not last (dlock.max-hold-ms), each is asked for its own.
            link.short = left / 1000 < self.settings.lease / 2
        for _, token, reason in lost or ():
            tie = node.ties.get(token)
            if tie is None or tie.link is not link:
                continue
            if reason in (b"moved", b"renamed", b"taken", b"demoted"):
                with self.guard:
                    tie.detach()  # RENEW tells what has become of it
            else:
                self.lose(tie, reason.decode())
        link.surplus = link.surplus + 1 if ties > link.ties else 0
        if lost is None or ties < link.ties:
            with self.guard:
                for tie in list(node.ties.values()):
                    tie.detach()

    async def retie(self, node: Node, link: Link, ties: list[Tie]) -> None:
        """Ties our holds to this link, all in one go."""
        asked = []
        for tie in ties:
            with self.guard:
                if not any(one() is not None for one in tie.holds):  # what was just granted `adopt` puts back
                    node.ties.pop(tie.token, None)
                    tie.detach()
                    continue
            if tie.link is not None and tie.link.error is not None and tie.request.session:
                self.lose(tie, "session")  # it has ended with its connection
                continue
            asked.append((tie, link.post(tie.request.renew(tie.token), self._renewed(link, tie), tie.asking)))
        for tie, entry in asked:
            try:
                await link.result(entry, entry.sent + self.settings.bound)
            except Redirected as error:
                self._move(tie, self.redirected(error, node), error.ask)
            except library.ResponseError as error:
                if isinstance(error, library.ReadOnlyError):
                    raise
                log.warning("lock %r cannot be renewed: %s", tie.request.key, error)
            except (NotHeld, NoAck):
                pass

    def _renewed(self, link: Link, tie: Tie) -> Then:
        sent = now()

        def renewed(reply: Any) -> None:
            if isinstance(reply, NotHeld):
                self.lose(tie, "not held any more")
            elif isinstance(reply, int):
                with self.guard:
                    if tie.node.ties.get(tie.token) is tie:
                        tie.attach(link, self.believed(sent, reply / 1000))

        return renewed

    def _move(self, tie: Tie, target: Node, asking: bool = False) -> None:
        """That node's keeper renews it from now on."""
        with self.guard:
            if target is tie.node or tie.node.ties.pop(tie.token, None) is None:
                return
            tie.detach()
            tie.node, tie.asking, tie.request.node = target, asking, target
            known = target.ties.setdefault(tie.token, tie)
            if known is not tie:  # its owner has asked there again: it is one hold
                known.holds += tie.holds
                for hold in filter(None, (one() for one in tie.holds)):
                    hold._tie = hold._request.tie = known
            self.arm(known.end())
        self.rouse(target)

    def _rehome(self, node: Node) -> None:
        """What another node serves by now is that one's to keep."""
        if self.cluster:
            for tie in list(node.ties.values()):
                self._move(tie, self.serves(tie.request.key, node))
            node.tell(b"again")

    def expire(self) -> None:
        """Tells what has ended by the clock, and sets the alarm anew. Waits for nothing."""
        self.alarm = at = math.inf  # what is adopted meanwhile sets it, too
        ended = []
        for node in list(self.nodes.values()):
            for tie in list(node.ties.values()):
                end = tie.end()
                if end <= now():
                    self.lose(tie, "nobody has confirmed it before its end")
                    ended.append(tie)
                else:
                    at = min(at, end)
        with self.guard:
            self.arm(at)
        for tie in ended:
            self.drop(tie.request, tie.token)
