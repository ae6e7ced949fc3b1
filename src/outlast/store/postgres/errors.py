"""What PostgreSQL says, in Outlast's words; and which of it passes if one tries again."""

# asyncpg has no stubs; what is used of it here are its errors.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import re

import asyncpg

from outlast.errors import (
    InvalidInput,
    OutlastError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

TAKEN = "23505"
"""An insert met a record, and nothing was written. Ours if the table is; else the user's own."""
REFUSED = "OL003"
"""Our own: a guard of the change that ends a transaction does not hold."""


LOCKED = "55P03"
"""Waited for a lock for longer than `lock_timeout`."""


CROWDED = "53300"
"""There are as many connections as the server, the database or the role may have."""


UNDONE_BEFORE = "25P02"
"""A statement before has failed, and with it the whole transaction."""


class KeyTaken(StoreError):
    """`TAKEN` or `REFUSED`, inside of the store: what stands there is looked at first, then it is asked again."""


class KeyHeld(StoreError):
    """`LOCKED`, inside of the store, by a transaction that has inserted the same execution and is still open."""


_UNDONE = {"40001", "40P01"}
"""The server undid the transaction for another's sake: the same one works if it is done again."""
_AWAY = {
    "53000", "53200", CROWDED, "53400",  # out of memory, connections, …
    LOCKED, "57014",  # waited too long for a lock, or for the whole statement
    "57P01", "57P02", "57P03", "57P04", "57P05",  # shut down, starting up, cut off
    "25P03", "25P04",
}  # fmt: skip
_CONNECTION_CLASS = "08"
_READ_ONLY = {"25006"}
_FULL = {"53100"}
_CORRUPT = {"XX001", "XX002"}
_DATA_CLASSES = ("22", "23")
DENIED = "42501"
"""The role may not do this."""
_DENIED = {DENIED, "28000", "28P01"}
_NO_DATABASE = {"3D000"}

_TUPLE = re.compile(r"\(\d+,\d+\)")

LOST: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    EOFError,
)
"""What is raised when a connection broke, or could not be made."""


def sqlstate(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or "")


def is_refused(error: BaseException) -> bool:
    """`TAKEN` by a record of ours, or `REFUSED`."""
    state = sqlstate(error)
    return state == REFUSED or (state == TAKEN and getattr(error, "schema_name", None) == "outlast")


def is_held(error: BaseException) -> bool:
    """`LOCKED` at the key of a new execution: at a tuple, which only the server's context tells, in any language."""
    context = str(getattr(error, "context", None) or "") if sqlstate(error) == LOCKED else ""
    return "INTO outlast.execution (" in context and _TUPLE.search(context) is not None


def was_undone(error: BaseException) -> bool:
    return sqlstate(error) in _UNDONE


def is_away(error: BaseException) -> bool:
    """Whether the same call may succeed on another connection, or a little later."""
    state = sqlstate(error)
    if state:
        return state in _AWAY or state.startswith(_CONNECTION_CLASS)
    if isinstance(error, asyncpg.DataError | asyncpg.exceptions.UnsupportedClientFeatureError):
        return False
    return isinstance(error, LOST)


def translated(url: str, error: BaseException) -> BaseException:
    """The same, as an error of the store."""
    if isinstance(error, OutlastError) or not isinstance(error, Exception):
        return error
    state = sqlstate(error)
    if isinstance(error, asyncpg.DataError | UnicodeEncodeError | OverflowError) or state.startswith(_DATA_CLASSES):
        return _because(InvalidInput(f"a value that a record cannot have: {error}"), error)
    if state in _READ_ONLY:
        return _because(StoreReadOnly(f"{url} can be read but not written ({error}): is it a standby?"), error)
    if state in _FULL:
        return _because(StoreFull(f"no room left on the server of {url} ({error}): free some, then go on"), error)
    if state in _CORRUPT:
        return _because(StoreCorrupt(f"{url}: {error}: restore it from a backup"), error)
    if state in _DENIED:
        return _because(StoreError(f"{url} refuses: {error}: check the role and its grants (docs/postgres.md)"), error)
    if state in _NO_DATABASE:
        return _because(StoreError(f"{url}: {error}: create the database first"), error)
    if was_undone(error) or is_away(error):
        return _because(StoreUnavailable(f"{url} does not answer now ({error or type(error).__name__})"), error)
    return _because(StoreError(f"{url}: {type(error).__name__}: {error}"), error)


def _because(ours: OutlastError, theirs: Exception) -> OutlastError:
    ours.__cause__ = theirs
    return ours
