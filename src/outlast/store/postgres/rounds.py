"""Which changes of a batch can share a call: those of which none sees what another one writes.

One statement of a call patches a record once, and reads its guards before anything is written. So a change that depends
on one before it waits for the next call; the order of those that meet is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from outlast.machine.changes import Absent, Add, Changes, Guard, Insert, Matches, Patch, Put, Write
from outlast.model.record import Key

Numbered: TypeAlias = tuple[int, Changes]

_WHOLE = "*"


def next_round(waiting: list[Numbered]) -> tuple[list[Numbered], list[Numbered]]:
    """Those that neither see nor touch what one before them writes; and the rest, which keeps its order."""
    if len(waiting) == 1:
        return waiting, []
    some: list[Numbered] = []
    rest: list[Numbered] = []
    written: dict[Key, set[str]] = {}
    read: dict[Key, set[str]] = {}
    put_off: set[Key] = set()
    for numbered in waiting:
        changes = numbered[1]
        reads = [(guard.key, _read_by(guard)) for guard in changes.guards]
        writes = [(key_of(write), _written_by(write)) for write in changes.writes]
        keys = [*changes.anchors, *(key for key, _ in reads), *(key for key, _ in writes)]
        late = put_off and not put_off.isdisjoint(keys)
        if late or _depends(reads, writes, written, read):
            put_off.update(keys)
            rest.append(numbered)
            continue
        for key, fields in writes:
            written.setdefault(key, set()).update(fields)
        for key, fields in reads:
            read.setdefault(key, set()).update(fields)
        some.append(numbered)
    return some, rest


def _depends(
    reads: list[tuple[Key, Sequence[str]]],
    writes: list[tuple[Key, Sequence[str]]],
    written: dict[Key, set[str]],
    read: dict[Key, set[str]],
) -> bool:
    """Whether it reads what was written, writes what was written, or writes what was read (and may yet be shown)."""
    for key, fields in reads:
        before = written.get(key)
        if before and (_WHOLE in before or any(field in before or f"+{field}" in before for field in fields)):
            return True
    for key, fields in writes:
        before = written.get(key)
        if before and (_WHOLE in fields or not (_are_additions(fields) or _are_additions(before))):
            # One statement patches a record once; and a call adds last, so what replaces a sum comes behind it.
            return True
        if before and any(
            field.lstrip("+") in before or (field[0] != "+" and f"+{field}" in before) for field in fields
        ):
            return True
        seen = read.get(key)
        if seen is not None and any(field == _WHOLE or field.lstrip("+") in seen for field in fields):
            return True
    return False


def _are_additions(fields: Collection[str]) -> bool:
    """Additions commute with each other, and with a patch of other fields."""
    return all(field[0] == "+" for field in fields)


def _read_by(guard: Guard) -> Sequence[str]:
    if type(guard) is Matches:
        return tuple(guard.fields)
    return () if isinstance(guard, Absent | Matches) else (guard.field,)


def _written_by(write: Write) -> Sequence[str]:
    match write:
        case Patch(_, fields):
            return tuple(fields)
        case Add(_, field, _):
            return (f"+{field}",)
        case _:
            return (_WHOLE,)


def key_of(write: Write) -> Key:
    return write.record.key if isinstance(write, Insert | Put) else write.key
