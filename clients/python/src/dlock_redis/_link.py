# SPDX-License-Identifier: MIT
"""A server that we talk to: its two connections, and who waits there; and what a server renews for a connection."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redis import exceptions as library

from ._request import Request, now
from ._resp import Incomplete, Word, pack, parse

if TYPE_CHECKING:
    from ._hold import HoldBase

Then = Callable[[Any], None]


class Renewal:
    """What one owner holds of one lock, and the server renews for a link. Several holds of one name share it."""

    __slots__ = ("holds", "link", "node", "request", "serial", "token", "until")

    def __init__(self, request: Request, token: int, node: Node):
        self.request, self.token, self.node, self.until, self.serial = request, token, node, 0.0, 0
        self.link: Link | None = None  # None: the server does not renew it for a link that we know
        self.holds: list[weakref.ref[HoldBase]] = []

    def attach(self, link: Link, until: float) -> None:
        """The server has said that it renews it for this link."""
        self.until = max(self.end(), until)
        if self.link is not link:
            self.detach()
            link.renewals += 1
            self.link = link
        link.serial += 1
        self.serial = link.serial

    def detach(self) -> None:
        if self.link is not None:
            self.until = self.end()
            self.link.renewals -= 1
            self.link = None

    def end(self) -> float:
        """Returns until when it is ours for sure."""
        link = self.link
        return max(self.until, link.believed) if link is not None and self.serial <= link.kept else self.until

    def live(self) -> list[HoldBase]:
        """Returns the holds that the program has, and has not given back."""
        return [hold for one in self.holds if (hold := one()) is not None and not hold._over]


def own_copy(error: BaseException) -> BaseException:
    """A dead link has one error for all who wait. Each raises its own: a traceback belongs to one thread."""
    try:
        return type(error)(*error.args)
    except TypeError:
        return library.ConnectionError(str(error))


class Entry:
    """A command whose reply is to come."""

    __slots__ = ("done", "gate", "reply", "sent", "then")

    def __init__(self, then: Then | None):
        self.then, self.done, self.sent = then, False, now()
        self.reply: Any = None
        self.gate: Any = None


class Link:
    """One connection that everybody shares. How bytes come and go is the subclasses' business."""

    def __init__(self, reply_timeout: float):
        self.reply_timeout = reply_timeout
        self.pending: deque[Entry] = deque()
        self.rest = b""
        self.error: Exception | None = None
        self.renewals = self.serial = self.kept = self.surplus = 0
        self.believed, self.short = 0.0, False  # KEEP's one number for all renewals; another says more of one

    def post(self, words: tuple[Word, ...], then: Then | None = None, asking: bool = False) -> Entry:
        """Sends a command and waits for nothing."""
        raise NotImplementedError

    async def result(self, entry: Entry, until: float) -> Any:
        """Returns its reply, or raises its error. A reply that is missing for too long ends the link."""
        raise NotImplementedError

    async def call(self, words: tuple[Word, ...], until: float, then: Then | None = None) -> Any:
        return await self.result(self.post(words, then), until)

    def peer(self) -> Any:
        """Returns the address of the other end."""
        raise NotImplementedError

    def die(self, error: Exception) -> None:
        """All that was asked has failed, and nothing can be asked any more."""
        raise NotImplementedError

    def answered(self, entry: Entry) -> None:
        """Wakes the caller that waits for it."""
        raise NotImplementedError

    def feed(self, data: bytes) -> None:
        """Bytes have come."""
        data = self.rest + data if self.rest else data
        at = 0
        try:
            while at < len(data):
                reply, at = parse(data, at)
                self.came(reply)
        except Incomplete:
            pass
        self.rest = data[at:]

    def came(self, reply: Any) -> None:
        entry = self.pending.popleft()
        entry.reply = reply
        if entry.then is not None:
            entry.then(reply)
        self.answered(entry)

    def late(self, entry: Entry) -> Exception:
        """Returns the error for a caller that has waited long enough."""
        error = library.TimeoutError("the server does not answer")
        if now() - entry.sent >= self.reply_timeout:
            self.die(error)
        return error

    def value(self, entry: Entry) -> Any:
        if isinstance(entry.reply, library.ReadOnlyError):
            # It has become a replica: who is primary now is found by connecting.
            self.die(library.ConnectionError(str(entry.reply)))
        if isinstance(entry.reply, Exception):
            raise own_copy(entry.reply)
        return entry.reply

    @staticmethod
    def packed(words: tuple[Word, ...], asking: bool) -> bytes:
        return (b"*1\r\n$6\r\nASKING\r\n" if asking else b"") + pack(words)


class Subscriber(Link):
    """The connection on which a node's notifications come."""

    def __init__(self, *how: Any, node: Node, channel: str):
        super().__init__(*how)
        self.node, self.channel = node, channel
        self.heard_at, self.pinged, self.is_subscribed = now(), False, False

    def subscribed(self, error: Exception | None) -> None:
        """Notifications come from now on, or will not."""
        raise NotImplementedError

    def feed(self, data: bytes) -> None:
        self.heard_at, self.pinged = now(), False
        super().feed(data)

    def came(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            if not self.is_subscribed:  # else it may not PING, and to say so is an answer
                self.subscribed(reply)
                self.die(reply)
        elif reply[0] == b"subscribe":
            self.is_subscribed = True
            self.pending.clear()
            self.subscribed(None)
        else:
            self.node.notified(reply)

    def idle(self) -> None:
        """Nothing has come for a second. A path that has fallen silent loses notifications without a word."""
        if not self.pinged:
            self.heard_at, self.pinged = now(), bool(self.node.waits)
            if self.pinged and self.error is None:
                self.post(("PING",))
                self.pending.clear()
        elif now() - self.heard_at > self.reply_timeout:
            self.die(library.TimeoutError("no messages come any more"))


class Wait:
    """The notifications of one place in a queue."""

    def tell(self, word: bytes, token: int, number: int) -> None:
        raise NotImplementedError

    async def next(self, until: float) -> tuple[bytes, int, int] | None:
        """Returns the next notification, or None."""
        raise NotImplementedError


class Node:
    """A server that we talk to, and what we have there."""

    def __init__(self, name: str):
        self.name = name
        self.link: Link | None = None
        self.subscriber: Link | None = None
        self.subscribe_denied = False
        self.keeper: Any = None
        self.kick: Any = None
        self.awake = False  # its keeper has something to keep
        self.refusal: Exception | None = None  # why it was last refused to keep what is held here
        self.waits: dict[bytes, dict[bytes, list[Wait]]] = {}  # by key and owner

    def all_waits(self) -> list[Wait]:
        return [wait for owners in list(self.waits.values()) for waits in list(owners.values()) for wait in list(waits)]

    def tell(self, word: bytes) -> None:
        """All who wait."""
        for wait in self.all_waits():
            wait.tell(word, 0, 0)

    def notified(self, message: Any) -> None:
        """Reads a message on our channel. Anybody may publish there, so one that is none of the server's is ignored."""
        if not isinstance(message, list) or message[0] != b"message":
            return
        try:
            word, token, rest = message[2].split(b" ", 2)
            names = []
            for _ in range(2):
                size, rest = rest.split(b":", 1)
                names.append(rest[: int(size)])
                rest = rest[int(size) + 1 :]
            told = word, int(token), int(rest)
        except ValueError:
            return
        for wait in list(self.waits.get(names[0], {}).get(names[1], ())):
            wait.tell(*told)


def own(kwargs: dict[str, Any], reply_timeout: float, retry: Any) -> dict[str, Any]:
    """Returns how a connection of ours is made: bounded, tried once, RESP2, whatever the library does by itself."""
    strange = ("maint_notifications", "oss_cluster_maint", "parser_class", "orig_", "maintenance_")
    kept = {name: value for name, value in kwargs.items() if not name.startswith(strange)}
    kept |= {"socket_timeout": reply_timeout, "retry": retry, "protocol": 2, "health_check_interval": 0}
    return kept if "path" in kept else {**kept, "socket_connect_timeout": reply_timeout}
