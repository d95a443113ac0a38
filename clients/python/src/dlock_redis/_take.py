# SPDX-License-Identifier: MIT
"""Taking a lock, and waiting for it: by NOTIFY, or by BLOCK where messages cannot be heard."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, TypeVar

from redis import exceptions as library

from ._errors import FAILURES, LockTimeout, NoAck, NotHeld, Replaced, from_server, passes
from ._hold import HoldBase, log
from ._leave import Leaving
from ._link import Link, Node, Tie
from ._request import Request, ms, now

GRACE = 0.5  # so much longer a caller whose time is up waits for a reply that is on its way
WARN_EVERY = 10.0

H = TypeVar("H", bound=HoldBase)


class Taking(Leaving):
    async def take(self, request: Request, timeout: float | None, hold: Callable[[Tie], H]) -> H | None:
        """The hold on what was granted; None if it is taken. A time-out of 0: one try."""
        began = now()
        try:
            tie = await self._take(request, timeout, began)
            held = None if tie is None else hold(tie)  # from here on the collector gives it back, whatever happens
        except BaseException as error:
            if request.asked and not isinstance(error, Replaced):
                self.leave(request)
            self.tell("refused", request.key, now() - began, error)
            raise
        finally:
            if request.queued:
                self.tell("waited", request.key)
        if held is None:
            if request.queued:
                self.leave(request)  # its claim would keep the place
            self.tell("refused", request.key, now() - began, None)
        else:
            self.tell("granted", request.key, now() - began)
        return held

    async def _take(self, request: Request, timeout: float | None, began: float) -> Tie | None:
        """Asks again after what passes, until the time is up."""
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
                await self.look_around(min(left, self.settings.bound))
                await self.sleep(min(left, random.uniform(0.02, 0.1)))

    def _until(self, end: float | None) -> float:
        bound = now() + self.settings.bound
        return bound if end is None else min(bound, end + GRACE)

    async def _attempt(self, request: Request, at_once: bool, deadline: float | None, end: float | None) -> Tie | None:
        key = request.key
        if not request.looked:
            await self._look(request, end)
        request.asked = True

        def granted(node: Node, link: Link, sent: float, reply: Any) -> None:
            if isinstance(reply, list):
                self.tie(request, node, link, reply[0], self.believed(sent, self.settings.lease))

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
            except FAILURES as error:
                if not node.deaf:
                    if not passes(error):
                        raise
                    if deadline is not None and now() >= deadline:
                        return None
                    return await self._block(request, deadline, end)
        return await (self._block if node.deaf else self._queue)(request, deadline, end)

    async def _look(self, request: Request, end: float | None) -> None:
        """An outer hold of this name is not ours to give back."""
        while self.parting(request):
            if end is not None and now() >= end:
                raise library.TimeoutError("this owner's last wait is still to be left")
            await self.sleep(0.01)
            self.check()
        request.within((await self.call(request.key, request.words("HELD"), self._until(end)))[0])

    async def _queue(self, request: Request, deadline: float | None, end: float | None) -> Tie | None:
        """Waits by NOTIFY."""
        names = request.names()
        heard, wait = self.route(request.key), self.wait()
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
                # moved, gone, cancelled, again
                raise library.ConnectionError(f"the wait has ended: {word.decode(errors='replace')}")
        finally:
            heard.waits[names].remove(wait)
            if not heard.waits[names]:
                del heard.waits[names]

    async def _block(self, request: Request, deadline: float | None, end: float | None) -> Tie | None:
        """Waits by BLOCK in slices, on a connection of its own."""
        bound = self.settings.bound
        request.node = self.route(request.key)
        node = request.node
        link = await self.open(node, self._until(end))
        node.blocked.add(link)
        try:
            self.check()
            while True:
                part = bound / 2 if deadline is None else min(bound / 2, deadline - now())
                reply = await link.call(request.wait("BLOCK", ms(part)), now() + part + bound)
                self.check()
                if reply:
                    return await self._confirm(request, reply[0], end)
                if deadline is not None and now() >= deadline:
                    return None
        finally:
            node.blocked.discard(link)
            link.die(library.ConnectionError("the wait is over"))

    async def _confirm(self, request: Request, token: int, end: float | None) -> Tie:
        def renewed(node: Node, link: Link, sent: float, reply: Any) -> None:
            if isinstance(reply, int):
                self.tie(request, node, link, token, self.believed(sent, reply / 1000))

        _, request.node = await self.call(request.key, request.renew(token), self._until(end), renewed)
        assert request.tie is not None
        return request.tie
