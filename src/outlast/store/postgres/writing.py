"""The writes that are not a commit of changes: frames of a stream, and the purge of what has ended."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.model.partition import partition_of
from outlast.model.status import Status
from outlast.store.port import Appended, Filter
from outlast.store.postgres.connection import Pool, Session
from outlast.store.postgres.functions import CALLS
from outlast.store.postgres.time import StoreTime

PURGE_MAX_ROWS = 50_000
"""A purge stops after the execution that passes this many rows: no transaction grows without bound."""


async def append(
    pool: Pool,
    time: StoreTime,
    partition_count: int,
    namespace: str,
    execution_id: str,
    epoch: int,
    change_id: str,
    frames: Sequence[bytes],
) -> Appended:
    values = {
        "partition": partition_of(namespace, execution_id, partition_count),
        "namespace": namespace,
        "execution": execution_id,
        "status": Status.ACTIVE,
        "epoch": epoch,
        "change": change_id,
        "frames": msgspec.json.encode([frame.hex() for frame in frames]).decode(),
    }

    async def call(session: Session) -> Appended:
        [(applied, newest, now)] = await session.rows(CALLS["append"], {**values, **time.values()})
        time.saw(now)
        return Appended(applied, newest)

    return await pool.call("append", call)


async def purge(pool: Pool, time: StoreTime, finished_before: int | None, limit: int, filter: Filter) -> int:
    tag, value = filter.tag or (None, None)
    values = {
        "finished_before": finished_before,
        "most": limit,
        "namespace": filter.namespace,
        "tag": tag,
        "value": value,
        "rows_max": PURGE_MAX_ROWS,
    }

    async def call(session: Session) -> int:
        [(purged, now)] = await session.rows(CALLS["purge"], {**values, **time.values()})
        time.saw(now)
        return purged

    return await pool.call("purge", call)
