"""Placement: where an execution lives. Ids route to partitions; a family lives together.

The partition is a hash of the namespace and the id up to the first `/`, modulo the number of partitions, which is
fixed when a store is created and kept in it. SHA-256, not a short hash: the placement must never differ between
versions, machines or languages.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from outlast.model.record import Record


def root_of(execution_id: str) -> str:
    """The id that decides the placement: `order-42/ship/label` lives with `order-42`."""
    return execution_id.partition("/")[0]


def partition_of(namespace: str, execution_id: str, partitions: int) -> int:
    """The partition of an execution, in `range(partitions)`."""
    if partitions == 1:
        return 0
    return _hashed(namespace, root_of(execution_id)) % partitions


@lru_cache(maxsize=1_000)
def _hashed(namespace: str, root: str) -> int:
    """Remembered for a while: whoever starts an execution asks again when it begins, and when it is looked for."""
    # The length keeps ("a", "bc") and ("ab", "c") apart.
    return int.from_bytes(sha256(f"{len(namespace)}:{namespace}:{root}".encode()).digest()[:8])


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
