"""Placement: where an execution lives. Ids route to partitions; a family lives together.

The partition is a hash of the namespace and the id up to the first `/`, modulo the number of partitions, which is
fixed when a store is created and kept in it. SHA-256, not a short hash: the placement must never differ between
versions, machines or languages.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from outlast.model.record import Record

_REMEMBERED_MAX = 4_096


def root_of(execution_id: str) -> str:
    """The id that decides the placement: `order-42/ship/label` lives with `order-42`."""
    return execution_id.partition("/")[0]


def partition_of(namespace: str, execution_id: str, partitions: int) -> int:
    """The partition of an execution, in `range(partitions)`."""
    return 0 if partitions == 1 else _placed(namespace, root_of(execution_id), partitions)


@lru_cache(_REMEMBERED_MAX)
def _placed(namespace: str, root: str, partitions: int) -> int:
    """Remembered: an execution that runs is placed again and again, and so is its family."""
    # The length keeps ("a", "bc") and ("ab", "c") apart.
    text = f"{len(namespace)}:{namespace}:{root}"
    return int.from_bytes(sha256(text.encode()).digest()[:8]) % partitions


def home_of(record: Record, partitions: int) -> int:
    """Where a record lives: by its own word, or by the execution that it belongs to."""
    partition = getattr(record, "partition", None)
    if partition is not None:
        return partition
    namespace, execution_id = record.key.values[:2]
    return partition_of(str(namespace), str(execution_id), partitions)


def rendezvous(partition: int, workers: list[str]) -> str | None:
    """The worker that should repair this partition (advisory): highest hash wins, so few move when workers change."""
    if not workers:
        return None
    return max(workers, key=lambda worker: (sha256(f"{partition}:{worker}".encode()).digest(), worker))
