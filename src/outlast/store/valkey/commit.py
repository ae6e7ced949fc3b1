"""Changes as the commit function reads them, and its verdicts as the engine does.

Everything that can be wrong with a value is found here, before anything is sent: a function that fails fails all the
changes that it was given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from outlast.errors import InvalidInput
from outlast.machine.changes import (
    Absent,
    Add,
    Changes,
    Delete,
    GoneOrPast,
    Guard,
    Insert,
    Matches,
    Patch,
    Put,
    Shape,
    TimeAhead,
    TimeReached,
    channel_of,
)
from outlast.machine.shapes import HOLDER_FIELDS
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.record import Key, Now, Plain
from outlast.store.port import Verdict
from outlast.store.valkey.keys import field
from outlast.store.valkey.layout import EXACT, LAYOUTS, head_of, layout_of, pack

_EXECUTION = Execution.KIND

_GUARDS: dict[type, int] = {Matches: 1, Absent: 2, TimeReached: 3, TimeAhead: 4, GoneOrPast: 5}
_WRITES: dict[type, int] = {Insert: 1, Patch: 2, Put: 3, Delete: 4, Add: 5}
"""As scripts know them."""
_WHOLE = (Insert, Put)
VALUES_MAX = 4_000
"""So many values a script has at hand when it unpacks them one by one; more come in a table."""

Arguments: TypeAlias = tuple[bytes, ...]
"""What a function is given."""


def packed(argument: object, *blobs: bytes) -> Arguments:
    """The arguments of a function: one that is packed, and bytes, which the scripts' msgpack has no word for."""
    return (pack(argument), *blobs)


class Batch:
    """The changes of one partition, in order."""

    __slots__ = ("_blobs", "_changes", "_count", "_named", "_partition")

    def __init__(self, partition: int, arguments: list[bytes]) -> None:
        """What it has beside its values goes to the end of `arguments`, and is named by its place there."""
        self._partition = partition
        self._named: Named | None = None
        self._count = 0
        self._changes: list[Any] = []
        self._blobs = arguments

    def add(self, changes: Changes) -> None:
        self._count += 1
        if changes.shape is Shape.STEP:
            self._step(changes)
        else:
            self._any(changes)

    def _step(self, changes: Changes) -> None:
        """As `_any`, in short: an entry of the journal of an execution, if that is as it was."""
        fence: Any = changes.guards[0]
        entry: Any = changes.writes[0]
        of, name, body, times = LAYOUTS[JournalEntry.KIND].packed(entry.record)
        self._blobs.append(body)
        self._changes += (0, of, name, changes.id, len(self._blobs), times, *_fence(*fence.fields.values()))

    def _any(self, changes: Changes) -> None:
        told, blobs = self._changes, self._blobs
        named = self._named
        if named is None:
            named = self._named = Named()
        known, number = named.by_key, named.number
        guards, writes, rings = changes.guards, changes.writes, changes.rings
        anchor = 0
        for key in changes.anchors:
            if key.kind == _EXECUTION:
                anchor = known.get(key) or number(key)
                break
        # Writes are named first: those of one owner stand together, and its records are read at once.
        written: list[Any] = []
        for write in writes:
            if isinstance(write, _WHOLE):
                record = write.record
                of, name, body, times = LAYOUTS[record.KIND].packed(record)
                blobs.append(body)
                written += (_WRITES[type(write)], named.number_of(of, name), len(blobs), times)
                continue
            key = write.key
            written += (_WRITES[type(write)], known.get(key) or number(key))
            if isinstance(write, Patch):
                written.append(len(write.fields))
                written += layout_of(key.kind).some(write.fields, blobs)
            elif isinstance(write, Add):
                written += (layout_of(key.kind).position(write.field), _exact(write.amount))
        begins = len(told)
        told += (0, changes.id, anchor, len(guards))
        for guard in guards:
            key = guard.key
            told += (_GUARDS[type(guard)], known.get(key) or number(key))
            if isinstance(guard, Matches):
                told.append(len(guard.fields))
                told += LAYOUTS[key.kind].compared(guard.fields, blobs)
            elif not isinstance(guard, Absent):
                told.append(LAYOUTS[key.kind].position(guard.field))
        told.append(len(writes))
        told += written
        told.append(len(rings))
        for ring in rings:
            told.append(channel_of(ring, self._partition))
        told[begins] = len(told) - begins

    def packed(self, now: int | None) -> bytes:
        told = [now or False, *(_NOTHING_NAMED if self._named is None else self._named.told()), self._count]
        told += self._changes
        batch = pack(told)
        return batch if len(told) > VALUES_MAX else batch[len(head_of(len(told))) :]


class Named:
    """The records that changes name by number: most are named more than once."""

    __slots__ = ("_count", "_its", "_numbers", "_own", "_owner", "_owners", "_turns", "by_key")

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}
        """By owner and field; …"""
        self.by_key: dict[Key, int] = {}
        """… and, of those that were named by their keys, by these: it is seldom needed to make names of them."""
        self._own: list[str] = []
        """The fields of the partition's own records; …"""
        self._owners: list[Any] = []
        """… and the other owners as they were named, one after the other: each, how many records of it, and these."""
        self._turns = 1
        """So many owners are told, the partition first; one that is named again in between is told again."""
        self._owner: str = ""
        self._its = 0
        """The last of them, and where it is told how many records it has."""
        self._count = 0

    def told(self) -> list[Any]:
        """How many owners, then of each: itself, how many records of it are named, their fields."""
        return [self._turns, "", len(self._own), *self._own, *self._owners]

    def number(self, key: Key) -> int:
        """The number of a record that was not named by its key before."""
        number = self.by_key[key] = self.number_of(*field(key))
        return number

    def number_of(self, of: str, name: str) -> int:
        numbers = self._numbers.get(of)
        if numbers is None:
            numbers = self._numbers[of] = {}
        number = numbers.get(name)
        if number is not None:
            return number
        if of:
            owners = self._owners
            if of != self._owner:
                owners += (of, 0)
                self._owner, self._its = of, len(owners) - 1
                self._turns += 1
            owners[self._its] += 1
            owners.append(name)
            number = self._count = self._count + 1
        else:
            self._own.append(name)
            number = -len(self._own)
        numbers[name] = number
        return number


_NOTHING_NAMED = Named().told()


@lru_cache(maxsize=1_000)
def _fence(status: Plain, epoch: Plain) -> tuple[Any, ...]:
    """How a script is told what a holder's fence compares."""
    told = LAYOUTS[_EXECUTION].compared(dict(zip(HOLDER_FIELDS, (status, epoch), strict=True)), [])
    return (len(HOLDER_FIELDS), *told)


def _exact(amount: int) -> int:
    if not -EXACT < amount < EXACT:
        raise InvalidInput(f"{amount} is too large to be added")
    return amount


def batched(batch: Sequence[Changes], places: Mapping[int, Sequence[int]], now: int | None) -> Arguments:
    """The arguments of one call for some partitions, of which each has the changes at these places of a batch."""
    arguments = [b""] * len(places)
    for number, (partition, its) in enumerate(places.items()):
        some = Batch(partition, arguments)
        for place in its:
            some.add(batch[place])
        arguments[number] = some.packed(now)
    return tuple(arguments)


_APPLIED = {inbox: Verdict(True, inbox) for inbox in range(10)}
"""What most changes are told."""


def takes_room(changes: Changes) -> bool:
    """Not if it only deletes, and patches numbers and times: so is what has ended marked, and let go."""
    return not all(
        isinstance(write, Delete)
        or (isinstance(write, Patch) and all(isinstance(value, int | Now) for value in write.fields.values()))
        for write in changes.writes
    )


def verdict_of(changes: Changes, answer: Any) -> Verdict:
    if type(answer) is int:
        return _APPLIED.get(answer) or Verdict(True, answer)
    if type(answer) is bytes:
        return Verdict(True, int(answer))
    what, inbox = int(answer[0]), None if answer[1] is None else int(answer[1])
    if what == 1:
        return Verdict(True, inbox)
    if what == 2:
        return Verdict(True, inbox, again=True)
    number, row = int(answer[2]), answer[3]
    if number > 0:
        guard: Guard = changes.guards[number - 1]
    else:
        write = changes.writes[-number - 1]
        assert isinstance(write, Insert)
        guard = Absent(write.record.key)
    current = None if row is None else LAYOUTS[guard.key.kind].record(row)
    return Verdict(False, inbox, refused_by=guard, current=current)
