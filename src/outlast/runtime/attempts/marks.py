"""Which journaled failure an exception is: so that a retry knows which one escaped from the code."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from msgspec import Struct

from outlast.model.journal import OperationKey

_MARK = "__outlast_operation__"


def marked(error: Exception, key: OperationKey) -> Exception:
    with suppress(AttributeError):  # an exception that takes no attributes: a retry replays it
        BaseException.__setattr__(error, _MARK, key)  # not by code of its own
    return error


class Origins(Struct, frozen=True):
    """Where an error comes from: journaled failures, and whether a timeout of the code's own is among its causes."""

    failures: tuple[OperationKey, ...]
    timed_out: bool


def origins_of(error: BaseException) -> Origins:
    """Of an error, of what it was raised from, and of the members of a group."""
    found: dict[OperationKey, None] = {}
    timed_out = False
    seen: set[int] = set()

    def walk(raised: BaseException | None) -> None:
        nonlocal timed_out
        if raised is None or id(raised) in seen:
            return
        seen.add(id(raised))
        mark = getattr(raised, _MARK, None)
        if mark is not None:
            found[mark] = None
            return
        timed_out = timed_out or isinstance(raised, TimeoutError)
        if isinstance(raised, BaseExceptionGroup):
            for member in cast("BaseExceptionGroup[BaseException]", raised).exceptions:
                walk(member)
        walk(raised.__cause__ or (None if raised.__suppress_context__ else raised.__context__))

    walk(error)
    return Origins(tuple(found), timed_out)
