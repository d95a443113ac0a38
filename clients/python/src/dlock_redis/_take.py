# SPDX-License-Identifier: MIT
"""Taking a lock, waiting for it (by NOTIFY, or by asking again where messages cannot be heard), and giving it back."""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Callable
from typing import Any, TypeVar

from redis import exceptions as library

from ._core import Connecting, Core, Named
from ._errors import FAILURES, Deadlock, DLockError, LockTimeout, NoAck, NotHeld, Replaced, from_server, passes
from ._hold import HoldBase, log
from ._link import Link, Node, Renewal
from ._request import Request, ms, now

GRACE = 0.5  # so much longer a caller whose time is up waits for a reply that is on its way
POLL = 0.25
WARN_EVERY = 10.0

H = TypeVar("H")


class Taking(Core):
    async def take(self, request: Request, timeout: float | None, hold: Callable[[int], H]) -> H | None:
        """Returns the hold of what was granted, made of its token; None if it is taken. A time-out of 0: one try."""
        began = now()
        self.check()
        self._enter(request)
        try:
            with self.guard:
                held = None if (own := self._held_already(request)) is None else hold(own.token)
            if held is None:
                token = await self._take(request, timeout, began)
                held = None if token is None else hold(token)  # from here on the collector gives it back
        except BaseException as error:
            if request.asked and not isinstance(error, Replaced):
                self.leave(request)
            self.tell("refused", request.key, now() - began, error)
            raise
        else:
            if held is None and request.queued:
                self.leave(request)  # its ticket would keep the place
        finally:
            self._exit(request)
            if request.queued:
                self.tell("waited", request.key)
        if held is None:
            self.tell("refused", request.key, now() - began, None)
        else:
            self.tell("granted", request.key, now() - began)
        return held

    # Names that the program uses again. What is unanswered may be read late, and must end nothing granted later.

    def _enter(self, request: Request) -> None:
        if request.named:
            with self.guard:
                self.named.setdefault(request.who, Named()).asking += 1

    def _exit(self, request: Request) -> None:
        if request.named:
            with self.guard:
                named = self.named.get(request.who)
                if named is None:
                    return  # this process has been forked meanwhile
                named.asking -= 1
                left, named.left = (None, named.left) if named.asking else (named.left, None)
                if left is not None:
                    self.leave(left)
                self._tidy(request)

    def _tidy(self, request: Request) -> None:
        named = self.named.get(request.who)
        if named is not None and not named.asking and not named.unanswered:
            del self.named[request.who]

    def _rename(self, request: Request) -> Callable[[], None]:
        """Gives the owner another name, until that is called: what is about to be said has been answered."""
        if not request.named:
            return lambda: None
        with self.guard:
            named = self.named.setdefault(request.who, Named())
            named.unanswered += 1
            named.suffix = f".{next(self.owners)}"

        def answered() -> None:
            with self.guard:
                named.unanswered -= 1
                self._tidy(request)

        return answered

    def _held_already(self, request: Request) -> Renewal | None:
        """What its owner holds here: a second hold is one more of it, and sends nothing."""
        renewal = self.held.get(request.who) if request.renewed else None
        if renewal is None or renewal.end() <= now() or not renewal.live():
            return None
        if renewal.request.most > request.most:
            raise Deadlock(
                f"DEADLOCK {request.key!r} is held by the same owner, whose hold lets in others: give it back first"
            )
        if renewal.request.permits < request.permits:
            raise ValueError(
                f"permits must be at most {renewal.request.permits}, which the owner's hold of {request.key!r} has, "
                f"not {request.permits}: give it back, and ask again"
            )
        request.renewal = renewal
        return renewal

    async def _take(self, request: Request, timeout: float | None, began: float) -> int | None:
        """Asks again after what passes, until the time is up."""
        deadline = None if timeout is None else began + timeout
        end = began + self.settings.reply_timeout if timeout == 0 else deadline
        warned = -math.inf
        before: Exception | None = None
        while True:
            self.check()
            try:
                return await self._attempt(request, timeout == 0, deadline, end)
            except Exception as error:
                again = isinstance(
                    error, (NotHeld, Connecting)
                )  # the grant has ended before it was confirmed; or no word yet
                if timeout == 0 and not again:  # a try is one attempt
                    await self.refresh_routes(0)
                    raise
                if not again and not passes(error):
                    raise
                left = math.inf if end is None else end - now()
                if left <= 0:
                    if timeout == 0:
                        raise
                    # The end has cut the last attempt short: the reason is what was heard before.
                    why = before if before and isinstance(error, library.TimeoutError) else error
                    raise LockTimeout(f"{request.key!r} was not granted within {timeout} s: {why}") from why
                before = error
                if now() - warned >= WARN_EVERY:
                    log.warning("still waiting for lock %r: %s", request.key, error)
                    warned = now()
                await self.refresh_routes(min(left, self.settings.reply_timeout))
                await self.sleep(min(left, random.uniform(0.02, 0.1)))

    def _until(self, end: float | None) -> float:
        latest = now() + self.settings.reply_timeout
        return latest if end is None else min(latest, end + GRACE)

    async def _attempt(self, request: Request, at_once: bool, deadline: float | None, end: float | None) -> int | None:
        key = request.key
        if self.cluster:
            await self.ready(self._until(end))
        node = self.route(key)
        if node.refusal is not None and request.renewed:  # what nobody can keep is not taken
            link = await self.link(node, self._until(end))
            await link.call(("DLOCK.KEEP", ms(self.settings.hang_timeout)), self._until(end))
            node.refusal = None
        # If an answer was lost, the server may have granted it then. How much is left (`dlock.max-hold-ms`) RENEW says.
        again, request.asked = request.asked, True
        if request.named:
            request.add(self.named[request.who].suffix)

        def granted(node: Node, link: Link, sent: float, reply: Any) -> None:
            if isinstance(reply, list) and request.renewed:
                self.granted(request, node, link, reply[0], self.believed(sent, request.lease))

        # Where others of ours wait it is taken: one command less.
        if not request.queued and (at_once or request.names[0] not in node.waits):
            told = None if again else granted
            reply, _ = await self.call(key, request.take(at_once), self._until(end), told, request)
            if reply and again:
                return await self._confirm(request, reply[0], end)
            if reply or at_once:
                return reply[0] if reply else None
        if not request.queued:
            request.queued = True
            self.tell("waiting", key)
        node = self.route(key)
        if not node.subscribe_denied:
            try:
                await self.subscribe(node, self._until(end))
            except FAILURES as error:
                if not node.subscribe_denied:
                    if not passes(error):
                        raise
                    if deadline is not None and now() >= deadline:
                        return None
                    return await self._poll(request, deadline, end)
        return await (self._poll if node.subscribe_denied else self._queue)(request, deadline, end)

    async def _queue(self, request: Request, deadline: float | None, end: float | None) -> int | None:
        """Waits by NOTIFY."""
        key, owner = request.names
        node, wait = self.route(request.key), self.wait()
        node.waits.setdefault(key, {}).setdefault(owner, []).append(wait)
        if not node.awake:
            self.wake(node)
        try:
            if node.subscriber is None or node.subscriber.error is not None:  # as we came
                raise library.ConnectionError("messages are not heard")
            block = () if deadline is None else ("BLOCK", ms(deadline - now()))
            words = request.wait("NOTIFY", self.channel, *block)
            reply, asked = await self.call(request.key, words, self._until(end), None, request)
            if asked is not node:
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
                raise library.ConnectionError(f"the server has ended the wait: {word.decode(errors='replace')}")
        finally:
            node.waits[key][owner].remove(wait)
            if not node.waits[key][owner]:
                del node.waits[key][owner]
                if not node.waits[key]:
                    del node.waits[key]

    async def _poll(self, request: Request, deadline: float | None, end: float | None) -> int | None:
        """Asks again and again, until messages are heard. The ticket keeps the place in between."""
        while True:
            later = now() + POLL if deadline is None else min(now() + POLL, deadline)
            if later <= now():
                return None
            node = self.route(request.key)
            if not node.subscribe_denied:
                is_subscribed = False
                with contextlib.suppress(*FAILURES):
                    await self.subscribe(node, later)
                    is_subscribed = True
                if is_subscribed:
                    return await self._queue(request, deadline, end)
            await self.sleep(later - now())
            self.check()
            reply, _ = await self.call(request.key, request.wait(), self._until(end), None, request)
            if reply:
                return await self._confirm(request, reply[0], end)

    async def _confirm(self, request: Request, token: int, end: float | None) -> int:
        def renewed(node: Node, link: Link, sent: float, reply: Any) -> None:
            if isinstance(reply, int) and request.renewed:
                self.granted(request, node, link, token, self.believed(sent, reply / 1000))

        await self.call(request.key, request.renew(token), self._until(end), renewed, request)
        return token

    # Giving back.

    async def release(self, hold: HoldBase) -> None:
        """Gives back what was granted, and nothing else. The last hold of its owner ends it."""
        if hold._pid != os.getpid():
            raise DLockError(f"{hold.key!r} is held by the process that has forked this one")
        self.check()
        renewal, who = hold._renewal, hold._renewal.request.who
        with self.guard:
            over, hold._over = hold._over, True
            is_last = not renewal.live()
            if is_last and not over and self.held.get(who) is renewal:
                del self.held[who]
        if over:
            raise NotHeld(f"NOTHELD lock {hold.key!r} was lost: {hold.reason or 'it was given back before'}")
        if is_last:
            try:
                await self._release(renewal)
            except NotHeld:
                raise
            except BaseException:
                self.abandon(renewal)
                raise
        self.tell("released", hold.key, now() - hold._since)

    async def _release(self, renewal: Renewal) -> None:
        request, heard = renewal.request, True
        words = request.release("TOKEN", renewal.token)
        until, answered = now() + self.settings.reply_timeout, self._rename(request)

        def released(node: Node, link: Link, sent: float, reply: Any) -> None:
            if _is_gone(reply):
                self.lose(renewal, "released")
                answered()

        while True:
            try:
                await self.call(request.key, words, until, released)
                return
            except NotHeld:
                if heard:
                    raise
                return  # the first one has given it back
            except Exception as error:
                if not passes(error) or now() >= until:
                    raise
                heard = heard and isinstance(error, library.ResponseError)
                await self.refresh_routes(until - now())
                await self.sleep(0.02)

    def abandon(self, renewal: Renewal) -> None:
        """Gives back what nobody has any more, once. If that does not arrive, KEEP counts one too many."""
        link, request = renewal.link or renewal.node.link, renewal.request
        answered = self._rename(request)  # without a link, too: the server may hold it for less than a lease
        self.lose(renewal, "given up")
        if link is not None and link.error is None:
            with contextlib.suppress(*FAILURES):
                link.post(request.release("TOKEN", renewal.token), lambda reply: answered())

    def leave_to_lease(self, renewal: Renewal) -> None:
        """Has the server renew it no more, and end it by its lease. Until then its owner has another name."""
        link = renewal.link
        self._rename(renewal.request)
        self.lose(renewal, "forgotten")
        if link is not None and link.error is None:  # else the server renews it for nobody
            with contextlib.suppress(*FAILURES):
                link.post(renewal.request.leave_to_lease(renewal.token))

    def leave(self, request: Request) -> None:
        """Takes a request back, behind it and on its link. If that has died, the place has died with it."""
        link = request.link
        if link is None or link.error is not None:
            return
        with self.guard:
            named = self.named.get(request.who)
            if named is not None and named.asking > 1:  # the place is another request's: the last of them leaves
                named.left = request
                return
            with contextlib.suppress(*FAILURES):
                link.post(request.words("CANCEL"))
                held = self.held.get(request.who)
                if request.fixed or (held is not None and held.live()):
                    return  # it is another hold's, or may be later
                answered = self._rename(request)

                def released(reply: Any) -> None:
                    if _is_gone(reply):
                        self.lose(request.renewal, "released")
                    answered()

                link.post(request.release(), released)


def _is_gone(reply: Any) -> bool:
    """Returns true if nothing of it is left."""
    return reply == 0 or isinstance(reply, NotHeld)
