# SPDX-License-Identifier: MIT
"""A server that we talk to: its two connections, what it keeps for us, and who waits there."""

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


class Tie:
    """A hold that a link's server renews for us."""

    __slots__ = ("asking", "holds", "link", "node", "request", "serial", "token", "until")

    def __init__(self, request: Request, token: int, node: Node):
        self.request, self.token, self.node, self.until, self.serial = request, token, node, 0.0, 0
        self.asking = False  # its slot is on the way to this node
        self.link: Link | None = None
        self.holds: list[weakref.ref[HoldBase]] = []

    def attach(self, link: Link, until: float) -> None:
        """The server has said that it renews it for this link."""
        self.until = max(self.end(), until)
        if self.link is not link:
            self.detach()
            link.ties += 1
            self.link = link
        link.serial += 1
        self.serial = link.serial

    def detach(self) -> None:
        if self.link is not None:
            self.until = self.end()
            self.link.ties -= 1
            self.link = None

    def end(self) -> float:
        """Until then it is ours."""
        link = self.link
        return max(self.until, link.believed) if link is not None and self.serial <= link.kept else self.until


def own_copy(error: Exception) -> Exception:
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

    def __init__(self, bound: float):
        self.bound = bound
        self.pending: deque[Entry] = deque()
        self.rest = b""
        self.error: Exception | None = None
        self.ties = self.serial = self.kept = self.surplus = 0
        self.believed, self.short = 0.0, False  # KEEP's one number for all ties; another says more of one

    def post(self, words: tuple[Word, ...], then: Then | None = None, asking: bool = False) -> Entry:
        """Sends a command and waits for nothing."""
        raise NotImplementedError

    async def result(self, entry: Entry, until: float) -> Any:
        """Its reply, as a value or as an error. Nothing for longer than the bound: the link is dead."""
        raise NotImplementedError

    async def call(self, words: tuple[Word, ...], until: float) -> Any:
        return await self.result(self.post(words), until)

    def die(self, error: Exception) -> None:
        """All that was asked has failed, and nothing can be asked any more."""
        raise NotImplementedError

    def answered(self, entry: Entry) -> None:
        """Wakes whoever waits for it."""
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
        """The error for who has waited long enough."""
        error = library.TimeoutError("the server does not answer")
        if now() - entry.sent >= self.bound:
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


class Hearing(Link):
    """The ear: the connection on which a node's messages are heard."""

    def __init__(self, *how: Any, node: Node, channel: str):
        super().__init__(*how)
        self.node, self.channel = node, channel
        self.heard_at, self.pinged, self.hears = now(), False, False

    def subscribed(self, error: Exception | None) -> None:
        """Messages come from now on, or will not."""
        raise NotImplementedError

    def feed(self, data: bytes) -> None:
        self.heard_at, self.pinged = now(), False
        super().feed(data)

    def came(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            if not self.hears:  # else it may not PING, and to say so is an answer
                self.subscribed(reply)
                self.die(reply)
        elif reply[0] == b"subscribe":
            self.hears = True
            self.pending.clear()
            self.subscribed(None)
        else:
            self.node.heard(reply)

    def idle(self) -> None:
        """Nothing has come for a second. A path that has fallen silent loses messages without a word."""
        if not self.pinged:
            self.heard_at, self.pinged = now(), bool(self.node.waits)
            if self.pinged and self.error is None:
                self.post(("PING",))
                self.pending.clear()
        elif now() - self.heard_at > self.bound:
            self.die(library.TimeoutError("no messages come any more"))


class Wait:
    """What is told of one place in a queue."""

    def tell(self, word: bytes, token: int, number: int) -> None:
        raise NotImplementedError

    async def next(self, until: float) -> tuple[bytes, int, int] | None:
        """The next message, or None."""
        raise NotImplementedError


class Parting:
    """What is to be given back: a hold, or without a token a wait. It has ended by itself at `until`."""

    __slots__ = ("entry", "link", "request", "token", "until")
    entry: Entry  # of the last word, if it was said on that link

    def __init__(self, request: Request, token: int, until: float):
        self.request, self.token, self.until = request, token, until
        self.link: Link | None = None


class Node:
    """A server that we talk to, and what we have there."""

    def __init__(self, name: str, opening: Any):
        self.name, self.opening = name, opening
        self.link: Link | None = None
        self.ear: Link | None = None
        self.keeper: Any = None
        self.kick: Any = None
        self.deaf = self.awake = False  # it may not subscribe; its keeper has something to keep
        self.ties: dict[int, Tie] = {}
        self.waits: dict[tuple[bytes, bytes], list[Wait]] = {}
        self.blocked: set[Link] = set()  # of waits that hear no messages
        self.leaving: deque[Parting] = deque()

    def busy(self) -> bool:
        """True if its keeper has something to do."""
        return bool(self.ties or self.waits or self.leaving)

    def tell(self, word: bytes) -> None:
        """All who wait."""
        for waits in list(self.waits.values()):
            for wait in list(waits):
                wait.tell(word, 0, 0)

    def heard(self, message: Any) -> None:
        """A message on our channel. Anybody may publish there: what does not read like one of the server's is none."""
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
        for wait in list(self.waits.get((names[0], names[1]), ())):
            wait.tell(*told)


def own(kwargs: dict[str, Any], bound: float, retry: Any) -> dict[str, Any]:
    """How a connection of ours is made: bounded, tried once, RESP2, whatever the library does by itself."""
    strange = ("maint_notifications", "oss_cluster_maint", "parser_class", "orig_", "maintenance_")
    kept = {name: value for name, value in kwargs.items() if not name.startswith(strange)}
    kept |= {"socket_timeout": bound, "retry": retry, "protocol": 2, "health_check_interval": 0}
    return kept if "path" in kept else {**kept, "socket_connect_timeout": bound}
