"""What a record of one store is in another: the same, but for where it lives and the numbers that stores give.

Pure: no store is asked here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from outlast.model.execution import Execution, execution_key
from outlast.model.flow import Flow, Summary, flow_key
from outlast.model.frame import Frame
from outlast.model.kinds import KINDS
from outlast.model.lane import Lane
from outlast.model.outbox import Delivery
from outlast.model.partition import partition_of
from outlast.model.record import Key, Record
from outlast.model.session import Session

GATES: tuple[type[Record], ...] = (Lane,)
"""Set for every partition: few, and made anew for the partitions of the target."""

NOT_COPIED = frozenset({Session.KIND})
"""Workers do not move: theirs end, and new ones begin."""

LAST: tuple[type[Record], ...] = (Execution, Delivery)
WALKED: tuple[type[Record], ...] = (
    *(kind for kind in KINDS.values() if kind not in (*GATES, *LAST) and kind.KIND not in NOT_COPIED),
    *LAST,
)
"""The kinds in the order of copying. An execution comes after all that belongs to it, so that no worker ever sees half
of one; what it owes to others comes after those others."""

SURVEYED: tuple[type[Record], ...] = (Execution, Flow, Summary)
"""What ids are given to, and what changes with all that happens to them."""


def placed(record: Record, partitions: int) -> Record:
    """The record as a store with so many partitions has it. What an execution owes lives with that execution."""
    if isinstance(record, Delivery):
        home = partition_of(record.namespace, record.source or record.target, partitions)
        return msgspec.structs.replace(record, partition=home)
    return record


def anchor_of(record: Record) -> Key:
    """What is locked while the record is written: the execution that it belongs to."""
    if isinstance(record, Flow | Summary) or "partition" in record.KEY:
        return record.key
    namespace, execution_id = record.key.values[:2]
    return execution_key(str(namespace), str(execution_id))


def rival_of(record: Record) -> Key | None:
    """What a store cannot have beside it: an execution and a flow of one id would name their children alike."""
    if isinstance(record, Flow):
        return execution_key(record.namespace, record.id)
    if isinstance(record, Execution) and "/" not in record.id:
        return flow_key(record.namespace, record.id)
    return None


def namespace_of(record: Record) -> str:
    return str(getattr(record, "namespace"))  # noqa: B009 (every kind that is copied has one)


def spread(gates: Sequence[Record], partitions_before: int, partitions: int) -> list[Record]:
    """Lanes for another number of partitions: one that is paused anywhere is paused everywhere."""
    if partitions == partitions_before:
        return list(gates)
    paused: dict[tuple[str, str], bool] = defaultdict(bool)
    for gate in gates:
        if isinstance(gate, Lane):
            paused[gate.namespace, gate.lane] |= gate.paused
    return [
        Lane(partition=p, namespace=namespace, lane=lane, paused=is_paused)
        for (namespace, lane), is_paused in sorted(paused.items())
        for p in range(partitions)
    ]


def plain(record: Record) -> Record:
    """Without the number that its store gave it."""
    return msgspec.structs.replace(record, seq=0) if record.SEQUENCED else record


def same(one: Record, other: Record) -> bool:
    return plain(one) == plain(other)


def weight(record: Record) -> int:
    """About how many bytes it has: enough to keep pages of large values small."""
    return 200 + sum(len(value) for name in ("value", "failure", "fact") if (value := getattr(record, name, None)))


def cut(records: Sequence[Record], most: int) -> Iterator[Sequence[Record]]:
    """The records in their order, in parts of about so many bytes at most; one that is larger comes alone."""
    first, size = 0, 0
    for number, record in enumerate(records):
        added = weight(record)
        if number > first and size + added > most:
            yield records[first:number]
            first, size = number, 0
        size += added
    if first < len(records):
        yield records[first:]


_encoder = msgspec.msgpack.Encoder()
_MODULUS = 1 << 256


class Digest:
    """A sum of hashes: the same for the same records, in whatever order they come."""

    def __init__(self, total: int = 0, records: int = 0) -> None:
        self.total, self.records = total, records

    def add(self, record: Record) -> None:
        record = plain(record)
        self._add((record.KIND, [getattr(record, name) for name in record.__struct_fields__]))

    def add_frame(self, namespace: str, execution_id: str, frame: Frame) -> None:
        """Its time is not of it: a store gives its own."""
        self._add((namespace, execution_id, frame.seq, frame.value))

    def _add(self, what: Any) -> None:
        hashed = int.from_bytes(sha256(_encoder.encode(what)).digest())
        self.total = (self.total + hashed) % _MODULUS
        self.records += 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and (self.total, self.records) == (other.total, other.records)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.total:064x}"[:16]
