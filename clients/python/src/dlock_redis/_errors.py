# SPDX-License-Identifier: MIT
"""What can go wrong with a lock, and which errors a little time can repair."""

from __future__ import annotations

import socket
import ssl

from redis import exceptions as library

# All that comes from below. (What the library says of clusters is none of its other errors.)
FAILURES = (OSError, library.RedisError, library.RedisClusterException)


class DLockError(library.RedisError):
    """Whatever goes wrong with a lock."""


class NotHeld(DLockError):
    """The lock is not, or no longer, held under this token."""


class Fenced(DLockError):
    """A guarded command was not run: the lock is not held under this token."""


class Deadlock(DLockError):
    """The wait could never end."""


class Replaced(DLockError):
    """Another client asked under the same owner's name and has taken the place. It is not asked for again."""


class QueueFull(DLockError):
    """One of the server's caps on places, holders and sessions is reached."""


class Quarantine(DLockError):
    """The server grants nothing for now: it is drained, or was promoted a moment ago. A wait asks again."""


class NoAck(DLockError):
    """Too few replicas have confirmed: as after a lost reply, what was asked may be in force."""


class LockTimeout(DLockError, TimeoutError):
    """The lock was not granted in time. `taken` says whether others had it.

    If it is false no server could say so, and `__cause__` is what went wrong."""

    def __init__(self, text: str, taken: bool = True):
        super().__init__(text)
        self.taken = taken


_KINDS: list[type[DLockError]] = [NotHeld, Fenced, Deadlock, Replaced, QueueFull, Quarantine, NoAck]
_TYPES = {kind.__name__.upper(): kind for kind in _KINDS}
_PASSING_CODES = {"UNBLOCKED", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "LOADING", "BUSY", "NOREPLICAS", "MISCONF"}
_PASSING_CODES |= {"READONLY", "MOVED", "ASK"}
# The library's own types leave out the server's word.
_PASSING_TYPES = (library.ReadOnlyError, library.ClusterDownError, library.TryAgainError, library.AskError)


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def typed(error: Exception) -> Exception:
    """Returns an error of the library as one of this package, or what a node has said to its cluster client."""
    if type(error) is library.ResponseError:
        kind = _TYPES.get(str(error).partition(" ")[0])
        return error if kind is None else kind(str(error))
    if isinstance(error, library.RedisClusterException):
        for cause in _causes(error):
            if isinstance(cause, (library.AuthenticationError, library.NoPermissionError)):
                return cause
    return error


# A mistake of a program or a library, which each attempt repeats.
_MISTAKES = (TypeError, ValueError, AttributeError, NameError, ImportError, NotImplementedError, library.DataError)


def is_unanswered(error: Exception) -> bool:
    """Returns true if the server may have read the command, or may do so later."""
    if isinstance(error, (library.BusyLoadingError, library.AuthenticationError)):
        return False
    if isinstance(error, library.RedisClusterException):  # it says how the search for the nodes failed, not the command
        return True
    never_sent = (ConnectionRefusedError, socket.gaierror)
    is_lost = isinstance(error, (OSError, library.ConnectionError, library.TimeoutError))
    return is_lost and not any(isinstance(cause, never_sent) for cause in _causes(error))


def is_answer(error: BaseException) -> bool:
    """Returns true for what a server has said for good. A refused login is about the connection."""
    return isinstance(error, (DLockError, library.ResponseError)) and not passes(error)


def passes(error: BaseException) -> bool:
    """Returns true if another connection, another node or a little time can repair it."""
    if isinstance(error, (NoAck, Quarantine, *_PASSING_TYPES)):
        return True
    if isinstance(error, (library.AuthenticationError, library.AuthorizationError, library.DataError, DLockError)):
        return False
    if isinstance(error, library.ResponseError):
        return str(error).split(" ", 1)[0] in _PASSING_CODES or str(error).startswith("ERR max number of clients")
    if isinstance(error.__cause__, _MISTAKES):
        return False
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return False
        if isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN:
            return False
    return isinstance(error, FAILURES)
