# SPDX-License-Identifier: MIT
"""RESP2, both ways. The library makes the connections; who writes and reads on them is here."""

from __future__ import annotations

from typing import Any

from redis import exceptions as library

from ._errors import from_server

Word = bytes | str | int | float


class Incomplete(Exception):
    """The rest of the reply is still to come."""


def pack(words: tuple[Word, ...]) -> bytes:
    """A command as bytes."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def parse(data: bytes, at: int) -> tuple[Any, int]:
    """One reply, and where the next one begins. Errors are values."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, line, at = data[at], data[at + 1 : end], end + 2
    if kind == 0x3A:  # :
        return int(line), at
    if kind == 0x2A:  # *
        count = int(line)
        if count < 0:
            return None, at
        values = []
        for _ in range(count):
            value, at = parse(data, at)
            values.append(value)
        return values, at
    if kind == 0x24:  # $
        size = int(line)
        if size < 0:
            return None, at
        if len(data) < at + size + 2:
            raise Incomplete
        return data[at : at + size], at + size + 2
    if kind == 0x2B:  # +
        return line, at
    if kind == 0x2D:  # -
        return from_server(line.decode(errors="replace")), at
    raise library.InvalidResponse(f"unexpected reply: {data[:20]!r}")
