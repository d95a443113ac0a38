# SPDX-License-Identifier: MIT
"""Giving back, and leaving for good what nobody gives back: a wait that was given up, a hold that was forgotten."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from redis import exceptions as library

from ._core import Core
from ._errors import FAILURES, DLockError, NotHeld, Redirected, passes
from ._hold import HoldBase
from ._link import Link, Node, Parting
from ._request import Request, ms, now

BATCH = 100  # so many are left in one go


class Leaving(Core):
    async def release(self, hold: HoldBase) -> None:
        """Gives back what was granted, and nothing else."""
        if hold._pid != os.getpid():
            raise DLockError(f"{hold.key!r} is held by the process that has forked this one")
        self.check()
        lost, hold._over = hold._over, True
        if lost:
            raise NotHeld(f"NOTHELD lock {hold.key!r} was lost: {hold.reason or 'it was given back before'}")
        try:
            await self._release(hold)
        except NotHeld:
            raise
        except BaseException:
            self.drop(hold._request, hold.token)
            raise
        self.tell("released", hold.key, now() - hold._since)

    async def _release(self, hold: HoldBase) -> None:
        words, heard = hold._request.release("TOKEN", hold.token), True
        until = now() + self.settings.bound

        def released(node: Node, link: Link, sent: float, reply: Any) -> None:
            if _gone(reply):
                self.lose(hold._tie, "released")

        while True:
            try:
                await self.call(hold.key, words, until, released)
                return
            except NotHeld:
                if heard:
                    raise
                return  # the first one has given it back
            except Exception as error:
                if not passes(error) or now() >= until:
                    raise
                heard = heard and isinstance(error, library.ResponseError)
                await self.look_around(until - now())
                await self.sleep(0.02)

    async def let_go(self, hold: HoldBase, lease: float) -> None:
        """It lasts so long from now on and is not kept. Nobody is told of its end."""

        def renewed(node: Node, link: Link, sent: float, reply: Any) -> None:
            if isinstance(reply, int):
                hold._over = True
                self.lose(hold._tie, "let go")

        words = hold._request.words("RENEW", ms(lease), "TOKEN", hold.token)
        await self.call(hold.key, words, now() + self.settings.bound, renewed)

    # Leaving for good. The keeper hears what comes of it, and asks again as long as something of it may be left.

    def drop(self, request: Request, token: int = 0, link: Link | None = None) -> None:
        """In the background, and where a link is given the words are sent at once. Without a token: a wait."""
        node = request.node
        if node is not None and not self.closed:
            one = Parting(request, token, self._over_by())
            if link is not None and link.error is None:
                with contextlib.suppress(*FAILURES):
                    self._say(one, link)
            node.leaving.append(one)
            self.rouse(node)

    def forsake(self, request: Request, token: int) -> None:
        """A hold that the collector finds. The keeper is awake, since there is a tie."""
        if request.node is not None:
            request.node.leaving.append(Parting(request, token, self._over_by()))

    def leave(self, request: Request) -> None:
        """A wait: at once, behind all that was asked, since the program may end now."""
        with contextlib.suppress(*FAILURES):
            request.node = request.node or self.route(request.key)
            self.drop(request, link=request.node.link)

    def _over_by(self) -> float:
        """What is left now has ended by itself then."""
        return now() + max(self.settings.lease, self.settings.claim)

    def parting(self, request: Request) -> bool:
        """True if something of this owner's is still to be left."""
        names = request.names()
        return any(one.request.names() == names for node in list(self.nodes.values()) for one in list(node.leaving))

    def _say(self, one: Parting, link: Link) -> None:
        request, outer = one.request, one.request.outer

        def gone(reply: Any) -> None:
            if _gone(reply):
                self.lose(request.tie, "released")

        def held(reply: Any) -> None:
            # If an upgrade was granted before it could be left, the outer hold has ended: nothing of it is left over.
            if isinstance(reply, list) and reply[0] != outer:
                link.post(request.words("RELEASE", "TOKEN", reply[0], "HOLDS", 0), gone)

        if not one.token:
            link.post(request.words("CANCEL"))
            if request.before:
                link.post(request.words("HELD"), held)
        one.entry = link.post(request.release(*(("TOKEN", one.token) if one.token else ())), gone)
        one.link = link

    async def _depart(self, node: Node, link: Link) -> None:
        """Leaves what is to be left here, in one go: others are to be kept. No other node is waited for."""
        some = [(one, self.serves(one.request.key, node)) for one in list(node.leaving)[:BATCH]]
        for one, target in some:
            if target is node and one.link is not link:
                self._say(one, link)
        for one, target in some:
            if target is node:
                one.link = None
                try:
                    await link.result(one.entry, one.entry.sent + self.settings.bound)
                except Redirected as error:
                    if error.ask and now() < one.until:  # its slot is on the way
                        node.leaving.rotate(-1)
                        continue
                    target = self.redirected(error, node)
                except NotHeld:
                    pass
                except FAILURES as error:
                    if now() < one.until and (passes(error) or not isinstance(error, library.ResponseError)):
                        raise
                    self._give_up(one)
            if target is not node and now() < one.until:  # that one's keeper does it
                one.request.node = target
                target.leaving.append(one)
                self.rouse(target)
            node.leaving.popleft()  # not before: its owner may ask again when it is nowhere
        if len(some) == BATCH:
            self.rouse(node)

    def _give_up(self, one: Parting) -> None:
        """It is kept no longer: KEEP's count finds out if the server does."""
        if not one.request.before:
            self.lose(one.request.tie, "it cannot be given back")

    def forget(self, node: Node) -> None:
        """What has ended by itself while nobody could be asked."""
        while node.leaving and node.leaving[0].until <= now():
            self._give_up(node.leaving.popleft())


def _gone(reply: Any) -> bool:
    """Nothing of it is left."""
    return reply == 0 or isinstance(reply, NotHeld)
