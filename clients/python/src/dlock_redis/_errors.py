# SPDX-License-Identifier: MIT
"""What can go wrong with a lock, and which of it a little time can mend."""

from __future__ import annotations

import socket
import ssl

from redis import exceptions as library

# All that comes from below. (What the library says of clusters is none of its other errors.)
FAILURES = (OSError, library.RedisError, library.RedisClusterException)


class DLockError(library.RedisError):
    """Whatever goes wrong with a lock."""


class NotHeld(DLockError):
    """The lock is not, or no longer, held under this name and token."""


class Fenced(DLockError):
    """A guarded command was not run: the lock is not held under this token."""


class Deadlock(DLockError):
    """The wait could never end."""


class Replaced(DLockError):
    """Somebody else asked under the same owner's name and has taken the place. Never asked again by itself."""


class QueueFull(DLockError):
    """One of the server's caps on places and holders is reached."""


class Quarantine(DLockError):
    """The server grants nothing for now, and this request may not wait."""


class NoAck(DLockError):
    """Too few replicas have confirmed: as after a lost reply, what was asked may be in force."""


class LockTimeout(DLockError, TimeoutError):
    """The lock was not granted in time. `__cause__` is what the server failed to do, if it was not just taken."""


class Redirected(library.ResponseError):
    """Another node of the cluster serves the key."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        code, slot, self.address = text.split()[:3]
        self.ask, self.slot = code == "ASK", int(slot)


_TYPES: dict[str, type[Exception]] = {
    "NOTHELD": NotHeld,
    "FENCED": Fenced,
    "DEADLOCK": Deadlock,
    "REPLACED": Replaced,
    "QUEUEFULL": QueueFull,
    "QUARANTINE": Quarantine,
    "NOACK": NoAck,
    "MOVED": Redirected,
    "ASK": Redirected,
    "NOPERM": library.NoPermissionError,
    "NOAUTH": library.AuthenticationError,
    "READONLY": library.ReadOnlyError,
    "OOM": library.OutOfMemoryError,
}
_PASSING_CODES = {"UNBLOCKED", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "LOADING", "BUSY", "NOREPLICAS", "MISCONF"}
_PASSING_CODES |= {"READONLY", "MOVED", "ASK"}  # UNBLOCKED: the server has become a replica while it let us wait


def from_server(text: str) -> Exception:
    """Returns the server's error as a type, with the server's own words."""
    code = text.split(maxsplit=1)[0].rstrip(":") if text.strip() else ""
    return _TYPES.get(code, library.ResponseError)(text)


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def root(error: BaseException) -> BaseException:
    """What a node has said, where the library says that it knows no cluster."""
    if isinstance(error, library.RedisClusterException):
        for cause in _causes(error):
            if isinstance(cause, (library.AuthenticationError, library.NoPermissionError)):
                return cause
    return error


# A mistake of a program or a library, which each attempt repeats.
_MISTAKES = (TypeError, ValueError, AttributeError, NameError, ImportError, NotImplementedError, library.DataError)


def passes(error: BaseException) -> bool:
    """Returns true if another connection, another node or a little time can mend it."""
    if isinstance(error, NoAck):
        return True
    if isinstance(error, _MISTAKES) or isinstance(error.__cause__, _MISTAKES):
        return False
    if isinstance(error, (library.AuthenticationError, library.AuthorizationError, DLockError)):
        return False
    if isinstance(error, library.ResponseError):
        return str(error).split(" ", 1)[0] in _PASSING_CODES or str(error).startswith("ERR max number of clients")
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return False
        if isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN:
            return False
    return isinstance(error, FAILURES)
