"""How things are named in Valkey. Only this file and `scripts/records.lua`, which must agree with it, make names.

Every key of a partition has the partition's hash tag, so all of it lives in one slot and one function call sees it as
one: `{outlast:3}:of:…`. The values of a record's key are written so that bytes sort as the values do: a text
ends in a zero byte (zeros within it are escaped), a number is its length as a letter and its digits. So the names
stay readable in a shell.

    {outlast:3}:clock                     the newest time that any write used
    {outlast:3}:head                      the same as in {outlast}:store, as one text
    {outlast:3}:seq                       the newest number given to a record
    {outlast:3}:of:OWNER                  an execution and all that belongs to it, or what is the partition's own: a
                                          hash, the letter of a kind and the rest of the key to the packed record
    {outlast:3}:keys:OWNER                the same keys in the order of a scan, if there are many; a sequenced record
                                          has its number before the rest
    {outlast:3}:owners:                   who has records
    {outlast:3}:INDEX:GROUP               an index of `layout.py`, by group
    {outlast:3}:groups:INDEX              the groups of an index that are not empty
    {outlast:3}:frames:OWNER, appends:OWNER   a stream, and who has written to it
    {outlast:3}:bell                      the partition's doorbell (a channel)
    {outlast}:store                       what is fixed when the store is created
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from outlast.errors import InvalidInput
from outlast.model.execution import Execution
from outlast.model.kinds import KINDS, OF_EXECUTION
from outlast.model.partition import partition_of
from outlast.model.record import Key

NUMBERS = {name: number for number, name in enumerate(KINDS, start=1)}
"""Kinds as scripts know them."""
_KEY_FIELDS = {name: kind.KEY for name, kind in KINDS.items()}
LETTERS = tuple(chr(64 + number) for number in NUMBERS.values())
"""… and as records are named, in the same order."""
OWNED = frozenset(kind.KIND for kind in (Execution, *OF_EXECUTION))
"""What lives with an execution, itself included: (namespace, id) begins the key."""
_KINDS = {name: (letter, len(_KEY_FIELDS[name]), name in OWNED) for name, letter in zip(KINDS, LETTERS, strict=True)}
LISTED = 100
"""An owner of more records than this has a list of them. Fewer are sorted by who reads them: executions are written
often, and scanned seldom."""


def text(value: str) -> str:
    """A text, so that what follows does not change its place."""
    if "\0" in value or "\1" in value:
        value = value.replace("\1", "\1\2").replace("\0", "\1\1")
    return f"{value}\0"


def whole(value: int) -> str:
    digits = str(value)
    if value < 0:
        raise InvalidInput(f"a key cannot hold the negative number {value}")
    return f"{chr(96 + len(digits))}{digits}"


def encoded(values: tuple[str | int, ...]) -> str:
    try:
        return "".join([text(value) if isinstance(value, str) else whole(value) for value in values])
    except TypeError as error:
        raise InvalidInput(f"{values!r} is not a key: {error}") from error


_rest = lru_cache(maxsize=1_000)(encoded)


@lru_cache(maxsize=1_000)
def owner(namespace: str | int, execution_id: str | int) -> str:
    """The execution that records belong to, as a name."""
    return text(str(namespace)) + text(str(execution_id))


def place(key: Key) -> tuple[int, str, str]:
    """A record's kind, owner (empty if it has none) and the rest of its key, as scripts know them."""
    of, name = field(key)
    return NUMBERS[key.kind], of, name[1:]


def field(key: Key) -> tuple[str, str]:
    """A record's owner, and its field in the hash of that owner."""
    kind, values = key.kind, key.values
    known = _KINDS.get(kind)
    if known is None:
        raise InvalidInput(f"there is no kind of record {kind!r}")
    letter, size, owned = known
    if len(values) != size:
        raise InvalidInput(f"{key} is not a key: {kind} has {', '.join(_KEY_FIELDS[kind])}")
    if owned:
        return owner(values[0], values[1]), letter + _rest(values[2:]) if size > 2 else letter
    return "", letter + _rest(values)


def named_by(kind: str, fields: Sequence[str]) -> Callable[[Sequence[Any]], tuple[str, str]]:
    """`field` of records of a kind, by these fields of theirs, which are known to be of their types."""
    letter, size, owned = _KINDS[kind]
    at = [fields.index(name) for name in _KEY_FIELDS[kind]]
    if not owned:
        every = itemgetter(*at)
        return lambda row: ("", letter + _rest(every(row)))
    first, second, *others = at
    if not others:
        return lambda row: (owner(row[first], row[second]), letter)
    if size == 3:
        third = others[0]
        return lambda row: (owner(row[first], row[second]), letter + _rest((row[third],)))
    rest = itemgetter(*others)
    return lambda row: (owner(row[first], row[second]), letter + _rest(rest(row)))


def home(key: Key, partitions: int) -> int:
    """The partition that a record lives in."""
    if _KEY_FIELDS[key.kind][0] == "partition":
        partition = key.values[0]
        if not isinstance(partition, int) or not 0 <= partition < partitions:
            raise InvalidInput(f"{key}: there is no partition {partition!r}")
        return partition
    return partition_of(str(key.values[0]), str(key.values[1]), partitions)


class Names:
    """The keys of one store: `prefix` keeps several apart in one database."""

    def __init__(self, prefix: str) -> None:
        self.store = f"{{{prefix}}}:store"
        self._prefix = prefix
        self._clocks: dict[int, str] = {}

    def clock(self, partition: int) -> str:
        """The one key that every call declares: it says where the partition is."""
        made = self._clocks.get(partition)
        if made is None:
            made = self._clocks[partition] = f"{{{self._prefix}:{partition}}}:clock"
        return made

    def bell(self, partition: int) -> str:
        return f"{{{self._prefix}:{partition}}}:bell"


def slot_of(key: str) -> int:
    """The cluster's slot of a key: CRC16 (XMODEM) of its tag, modulo 16,384."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    crc = 0
    for byte in key.encode():
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
        crc &= 0xFFFF
    return crc % 16_384
