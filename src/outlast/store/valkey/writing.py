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
    purged, partition, place = 0, 0, None
    while purged < limit and partition < partitions:
        asked = packed((now or False, index, before, limit - purged, filtered(filter), place_behind(place)))
        [gone, place] = (await call("purge", {partition: asked}))[partition]
        purged += gone
        if place is None:
            partition += 1
    return purged


def place_behind(place: Sequence[bytes] | None) -> tuple[str, ...] | bool:
    """Where a call stopped to look, as scripts read it; from the beginning if it is none."""
    return False if place is None else tuple(part.decode() for part in place)


def filtered(filter: Filter) -> tuple[Any, ...]:
    """A filter as scripts read it."""
    tag, value = filter.tag or (False, False)
    return (filter.namespace if filter.namespace is not None else False, tag, value)
