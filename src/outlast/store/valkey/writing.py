"""The writes that are not a commit of changes: frames of a stream, and the purge of what has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast.model.status import Status
from outlast.store.port import Appended, Filter
from outlast.store.valkey.claim import Call
from outlast.store.valkey.commit import packed
from outlast.store.valkey.keys import owner


async def append(
    call: Call,
    partition: int,
    stream: tuple[str, str],
    epoch: int,
    change_id: str,
    frames: Sequence[bytes],
    now: int | None,
) -> Appended:
    asked = packed((now or False, owner(*stream), Status.ACTIVE, epoch, change_id), *frames)
    [applied, newest] = (await call("append", {partition: asked}))[partition]
    return Appended(applied == 1, newest)


async def purge(
    call: Call, finished_before: int | None, limit: int, filter: Filter, partitions: int, now: int | None
) -> int:
    """Partition by partition: how many each may take is known when those before it have answered."""
    index = "retention" if finished_before is None else "finished"
    before = False if finished_before is None else finished_before
    purged = 0
    for partition in range(partitions):
        if purged == limit:
            break
        asked = packed((now or False, index, before, limit - purged, filtered(filter)))
        purged += (await call("purge", {partition: asked}))[partition]
    return purged


def filtered(filter: Filter) -> tuple[Any, ...]:
    """A filter as scripts read it."""
    tag, value = filter.tag or (False, False)
    return (filter.namespace if filter.namespace is not None else False, tag, value)
