# SPDX-License-Identifier: MIT
"""The keeper of a node, which sends KEEP and renews what is not renewed; and the clock, which tells what has ended."""

from __future__ import annotations

import math
from typing import Any

from redis import exceptions as library

from ._errors import FAILURES, NoAck, NotHeld, Redirected, passes
from ._hold import log
from ._link import Entry, Link, Node, Renewal, Then
from ._request import ms, now
from ._take import Taking

PAUSE = 0.1  # after a round that has failed
IDLE = 5.0  # so often it is looked whether locks that were forgotten can end
OVERDUE = 1.0  # after so long without a reply it is asked anew who is primary
STALL = 0.5  # by so much a clock that is on time is late at most


class Keeping(Taking):
    async def keep(self, node: Node) -> None:
        """The keeper of a node: does nothing but this, and waits for no other node."""
        while not self.closed:
            await self.idle(node, self.settings.interval if node.awake else IDLE)
            if self.closed:
                break
            if not self.is_busy(node):
                node.awake = False
                if not self.is_busy(node):
                    continue
                node.awake = True
            try:
                await self._round(node)
            except Exception as error:
                log.info("node %s: %s", node.name or "of the client", error)
                if isinstance(error, FAILURES) and not passes(error):
                    self._refused(node, error)
                await self.refresh_routes(self.settings.interval / 2)  # whom that asks may hang
                self._reroute(node)
                await self.sleep(PAUSE)  # its link's end has woken it
        self.end("closed")

    def _of(self, node: Node) -> list[Renewal]:
        return [one for one in list(self.renewals.values()) if one.node is node]

    async def _round(self, node: Node) -> None:
        self._lose_forgotten()
        renewals = self._of(node)
        if not renewals and not node.waits:
            return
        link = await self._say_keep(node, await self.link(node, now() + self.settings.reply_timeout))
        if link.surplus > 1:  # two in a row: the server renews what nobody knows of
            link = await self._replace(node, link)
        near = now() + self.settings.lease / 2 if link.short else None
        unrenewed = [one for one in self._of(node) if one.link is not link or (near is not None and one.end() < near)]
        if unrenewed:
            await self.renew(node, link, unrenewed)

    def _lose_forgotten(self) -> None:
        """Nobody refers to these holds any more: a mistake. What they protect may still run, so none is released."""
        while self.forgotten:
            hold = self.forgotten.popleft()
            if not hold._over:
                hold._tell_lost("forgotten: nothing refers to the hold any more, and it was not released")
                if not hold._renewal.live():
                    self.leave_to_lease(hold._renewal)

    async def _say_keep(self, node: Node, link: Link) -> Link:
        """Says KEEP, and returns the link that has answered."""
        sent = now()
        words = ("DLOCK.KEEP", ms(self.settings.hang_timeout))
        entry = link.post(words, lambda reply: self._kept(node, link, sent, reply))
        try:
            await link.result(entry, sent + OVERDUE)
        except NoAck as error:  # what is believed stays as it was
            log.info("node %s: %s", node.name or "of the client", error)
        except library.TimeoutError:
            if link.error is not None:
                raise
            return await self._ask_anew(node, link, entry)
        return link

    async def _ask_anew(self, node: Node, link: Link, entry: Entry) -> Link:
        """A reply is overdue, and another server may be primary: a connection to it that answers replaces this one."""
        while not entry.done and now() < entry.sent + self.settings.reply_timeout:
            await self.refresh_routes(OVERDUE)
            self._reroute(node)
            if not self._of(node) and not node.waits:
                break
            if self.cluster:  # a node has one address
                break
            fresh = None
            try:
                fresh = await self.open(node, now() + OVERDUE)
                if fresh.peer() == link.peer():  # the same one, which has its reasons: a replica may have to confirm
                    raise library.ConnectionError("it is primary still, as far as is known")
                await fresh.call(("DLOCK.KEEP", ms(self.settings.hang_timeout)), now() + OVERDUE)
            except FAILURES as error:
                log.info("node %s: %s", node.name or "of the client", error)
                if fresh is not None:
                    fresh.die(library.ConnectionError("it is not needed"))
                await self.sleep(OVERDUE / 2)
                continue
            if entry.done:
                fresh.die(library.ConnectionError("it is not needed"))
                break
            self.linked(node, fresh, instead=link)
            link.die(library.TimeoutError("another connection answers, and this one does not"))
            return fresh
        await link.result(entry, entry.sent + self.settings.reply_timeout)
        return link

    async def _replace(self, node: Node, link: Link) -> Link:
        log.warning("the connection to %s keeps holds that nobody has: it is replaced", node.name or "the server")
        fresh = self.linked(node, await self.open(node, now() + self.settings.reply_timeout), instead=link)
        await self.renew(node, fresh, self._of(node))
        link.die(library.ConnectionError("replaced"))
        return fresh

    def _refused(self, node: Node, error: Exception) -> None:
        if node.refusal is None:
            log.warning("locks cannot be kept, and no other is taken meanwhile: %s", error)
        node.refusal = error

    def _kept(self, node: Node, link: Link, sent: float, reply: Any) -> None:
        if not isinstance(reply, list):
            return
        node.refusal = None
        count, left, lost = reply
        if left is not None:
            link.believed, link.kept = sent + left / 1000 - self.settings.clock_margin, link.serial
            # It renews at two thirds. Where one hold may not last (dlock.max-hold-ms), each is asked for its own.
            link.short = left / 1000 < self.settings.lease / 2
        for key, token, reason in lost or ():
            renewal = self.renewals.get((key, token))
            if renewal is None or renewal.link is not link:
                continue
            if reason in (b"moved", b"renamed", b"taken", b"demoted"):
                with self.guard:
                    renewal.detach()  # RENEW tells what has become of it
            else:
                self.lose(renewal, reason.decode())
        link.surplus = link.surplus + 1 if count > link.renewals else 0
        if lost is None or count < link.renewals:
            with self.guard:
                for renewal in list(self.renewals.values()):
                    if renewal.link is link:
                        renewal.detach()

    async def renew(self, node: Node, link: Link, renewals: list[Renewal]) -> None:
        """Has the server renew our holds for this link, all in one go."""
        asked = []
        for renewal in renewals:
            with self.guard:
                if not renewal.live():  # what was just granted `attach` puts back
                    self.lose(renewal, "nobody has it")
                    continue
            if renewal.link is not None and renewal.link.error is not None and renewal.request.ephemeral:
                self.lose(renewal, "closed")  # it has ended with its connection
                continue
            asking = self.asking.get(renewal.request.names[0]) == node.name
            words = renewal.request.renew(renewal.token)
            asked.append((renewal, link.post(words, self._renewed(link, renewal), asking)))
        for renewal, entry in asked:
            try:
                await link.result(entry, entry.sent + self.settings.reply_timeout)
            except Redirected as error:
                self._move(renewal, self.redirected(error, renewal.request.key, node))
            except library.ResponseError as error:
                if isinstance(error, library.ReadOnlyError):
                    raise
                log.warning("lock %r cannot be renewed: %s", renewal.request.key, error)
            except (NotHeld, NoAck):
                pass

    def _renewed(self, link: Link, renewal: Renewal) -> Then:
        sent = now()

        def renewed(reply: Any) -> None:
            if isinstance(reply, NotHeld):
                self.lose(renewal, "not held any more")
            elif isinstance(reply, int):
                with self.guard:
                    if self.renewals.get((renewal.request.names[0], renewal.token)) is renewal:
                        renewal.attach(link, self.believed(sent, reply / 1000))

        return renewed

    def _move(self, renewal: Renewal, target: Node) -> None:
        """That node's keeper renews it from now on."""
        if target is not renewal.node:
            with self.guard:
                renewal.detach()
                renewal.node = target
            self.wake(target)

    def _reroute(self, node: Node) -> None:
        """What another node serves by now is that one's to keep."""
        if self.cluster:
            for renewal in self._of(node):
                self._move(renewal, self.route_or(renewal.request.key, node))
            node.tell(b"again")

    def stalled(self) -> None:
        """This process stood still. What it does not believe any more the server may have renewed: it asks first."""
        with self.guard:
            self.grace = now() + self.settings.reply_timeout
            self.alarm = min(self.alarm, self.grace)
        for node in list(self.nodes.values()):
            if self.is_busy(node):
                self.wake(node)

    def expire(self) -> None:
        """Tells what has ended by the clock, and sets the alarm anew. Waits for nothing."""
        self.alarm = at = math.inf  # what is attached meanwhile sets it, too
        ended = []
        for renewal in list(self.renewals.values()):
            end = max(renewal.end(), self.grace)
            if end <= now():
                refusal = renewal.node.refusal
                self.lose(
                    renewal,
                    "nobody has confirmed it before its end"
                    if refusal is None
                    else f"the server refuses to keep it: {refusal}",
                )
                ended.append(renewal)
            else:
                at = min(at, end)
        with self.guard:
            self.arm(at)
        for renewal in ended:
            self.abandon(renewal)
