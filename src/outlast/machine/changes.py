"""What the machine answers: `Changes` to be committed as one, or a `Refusal`.

A `Changes` names its anchors (the records that a store locks, in key order), its guards (read under those locks) and
its writes. All of it lives in one partition. Either every guard holds and every write is applied, or nothing is.

Every write is safe to repeat: an insert meets its own record (same `change_id`), which means "done before", and an
addition stands only beside an insert, so that it cannot be applied twice.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from outlast.model.execution import Execution
from outlast.model.kinds import KINDS
from outlast.model.payload import Payload
from outlast.model.record import Key, Now, Plain, Record
from outlast.model.status import TERMINAL, Status

_EXECUTION = Execution.KIND
_VALUES: dict[type | str, str] = {
    name: field.name
    for kind in KINDS.values()
    for field in msgspec.structs.fields(kind)
    if field.type in (bytes, bytes | None)
    for name in (kind, kind.KIND)
}
"""The kinds whose records carry values of the user's, by class and by name, and the field: each has at most one."""


class View(Struct, frozen=True, gc=False):
    """What is known of an execution when a fact about it arrives; `execution` is None if there is none."""

    partition: int
    execution: Execution | None


# ---- guards -------------------------------------------------------------------------------------------------------


class Matches(Struct, frozen=True, gc=False):
    """The record exists and has these values."""

    key: Key
    fields: dict[str, Plain]


class Absent(Struct, frozen=True, gc=False):
    """There is no such record."""

    key: Key


class TimeReached(Struct, frozen=True, gc=False):
    """The record exists and its time has come: not null, and not after the commit."""

    key: Key
    field: str


class TimeAhead(Struct, frozen=True, gc=False):
    """The record exists and its time lies after the commit."""

    key: Key
    field: str


class GoneOrPast(Struct, frozen=True, gc=False):
    """The record is gone, or its time has come: the guard of every takeover."""

    key: Key
    field: str


Guard: TypeAlias = Matches | Absent | TimeReached | TimeAhead | GoneOrPast


# ---- writes -------------------------------------------------------------------------------------------------------


class Insert(Struct, frozen=True, gc=False):
    """A new record; that there is none with its key is guarded by itself."""

    record: Record


class Patch(Struct, frozen=True, gc=False):
    """New values for some fields of a record that exists."""

    key: Key
    fields: dict[str, Plain | Now]


class Put(Struct, frozen=True, gc=False):
    """The record, whether or not one was there: for gates that an operator sets."""

    record: Record


class Delete(Struct, frozen=True, gc=False):
    """No such record any more."""

    key: Key


class Add(Struct, frozen=True, gc=False):
    """`amount` more in a counter field of a record that exists."""

    key: Key
    field: str
    amount: int


Write: TypeAlias = Insert | Patch | Put | Delete | Add

_LANE = "lane:"
HOME = "home"
"""The ring of the partition itself; the store knows its number."""
ENDS = "ends"
"""The same for those who wait for ends there, and nobody else: what its own holder ends leaves nothing to be heard by
those who hold others."""


def lane_channel(namespace: str, lane: str) -> str:
    return f"{_LANE}{namespace}:{lane}"


def is_lane_channel(channel: str) -> bool:
    return channel.startswith(_LANE)


def partition_channel(partition: int) -> str:
    return f"partition:{partition}"


def ends_channel(partition: int) -> str:
    return f"ends:{partition}"


def channel_of(ring: str, partition: int) -> str:
    """What is rung for a ring of a change of this partition."""
    if ring == HOME:
        return partition_channel(partition)
    return ends_channel(partition) if ring == ENDS else ring


class Shape(StrEnum):
    """What a change declares to be, for stores that have a short path for it. `machine/shapes.py` says it exactly."""

    STEP = "step"
    """One more entry in the journal of an execution, by its holder."""
    START = "start"
    """A new execution, and what belongs to it."""
    END = "end"
    """The end of an execution, by its holder."""


class Changes(Struct, frozen=True, kw_only=True, gc=False):
    """One guarded, all-or-nothing change of one partition."""

    id: str
    partition: int
    anchors: tuple[Key, ...]
    guards: tuple[Guard, ...] = ()
    writes: tuple[Write, ...] = ()
    rings: tuple[str, ...] = ()
    """Whom to ring once it is durable: `channel_of` names the channel of each."""
    shape: Shape | None = None
    """Declared where it is built. Whoever amends a change takes its shape away."""


def started_by(changes: Changes) -> list[Execution]:
    """The executions that it makes."""
    return [write.record for write in changes.writes if type(write) is Insert and isinstance(write.record, Execution)]


def is_end(changes: Changes) -> bool:
    """Whether an execution ends by it, and none begins in its place: an end of a member that hands on is none."""
    ends = False
    for write in changes.writes:
        if type(write) is Patch and (status := write.fields.get("status")) is not None:
            if status is Status.ACTIVE:
                return False
            ends = ends or status in TERMINAL
    return ends


def size_of(changes: Changes) -> int:
    """The bytes of its values; what it has beside them is small."""
    size = 0
    for write in changes.writes:
        if type(write) is Insert or type(write) is Put:
            record = write.record
            if type(record) is Payload:  # almost every value is in one
                size += len(record.value)
            elif (name := _VALUES.get(type(record))) is not None:
                size += len(getattr(record, name) or b"")
        elif type(write) is Patch and (name := _VALUES.get(write.key.kind)) is not None:
            value = write.fields.get(name)
            size += len(value) if type(value) is bytes else 0
    return size


class Code(StrEnum):
    """Why a fact was refused."""

    UNKNOWN = "unknown"
    ALREADY = "already"
    CONFLICT = "conflict"
    TERMINAL = "terminal"
    NOT_HOLDER = "not_holder"
    NOT_DUE = "not_due"
    NOT_ALLOWED = "not_allowed"
    LIMIT = "limit"


class Refusal(Struct, frozen=True, gc=False):
    """Nothing to write, and why. `ALREADY` means that the fact's effect stands: repeating it answers the same."""

    code: Code
    message: str


def patched(record: Record, fields: dict[str, Any], now: int) -> Record:
    """The record after a patch committed at `now`."""
    settled = {name: now + value.plus_ms if type(value) is Now else value for name, value in fields.items()}
    return msgspec.structs.replace(record, **settled)


def inserted(record: Record, now: int) -> Record:
    """The record as a store keeps it when it is inserted at `now` (its `seq`, if any, is the store's to give)."""
    at = {name: now + time.plus_ms for name in record.TIMES if type(time := getattr(record, name)) is Now}
    return msgspec.structs.replace(record, **at)


def execution_after(view: View, changes: Changes, now: int) -> Execution | None:
    """What the view's execution is once `changes` are committed at `now`."""
    execution = outline_after(view, changes)
    return None if execution is None else _execution(inserted(execution, now))


def outline_after(view: View, changes: Changes) -> Execution | None:
    """… but for its times, which may still be relative to the commit."""
    execution = view.execution
    for write in changes.writes:
        if type(write) is Insert:
            if type(write.record) is Execution:
                execution = write.record
        elif execution is None:
            continue
        elif type(write) is Patch and write.key.kind == _EXECUTION:
            execution = _replaced(execution, write.fields)
        elif type(write) is Add and write.key.kind == _EXECUTION:
            count = getattr(execution, write.field) + write.amount
            execution = _replaced(execution, {write.field: count})
    return execution


def _replaced(execution: Execution, fields: dict[str, Any]) -> Execution:
    return msgspec.structs.replace(execution, **fields)


def _execution(record: Record) -> Execution:
    assert isinstance(record, Execution)
    return record
