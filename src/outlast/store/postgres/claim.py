"""Claim and renew, natively. Claim writes exactly what `decide(view, Claim)` gives; conformance compares them."""

from __future__ import annotations

import asyncio

from outlast.model.execution import Execution
from outlast.store.port import Claimed, ClaimedExecution, ClaimRequest, Held, Renewed
from outlast.store.postgres.connection import Pool, Session
from outlast.store.postgres.functions import CALLS
from outlast.store.postgres.statements import TABLES
from outlast.store.postgres.time import StoreTime

_TABLE = TABLES[Execution.KIND]
LOOKS, PAUSE_S = 5, 0.002
"""Work that was passed over because somebody had it locked is looked at again a moment later, so often."""


async def claim(pool: Pool, time: StoreTime, partitions: int, request: ClaimRequest) -> Claimed:
    renew = not time.lives(request.worker, request.lease_ttl_ms)

    async def call(session: Session) -> tuple[Claimed, bool]:
        values = {
            "namespace": request.namespace,
            "lanes": list(dict.fromkeys(request.lanes)),
            "serves": [f"{workflow}|{version}" for workflow, version in sorted(request.serves)],
            "offers": sorted(request.capabilities),
            "worker": request.worker,
            "claim": request.claim_id,
            "most": request.limit,
            "ttl_ms": request.lease_ttl_ms,
            "suspects": request.suspects,
            "partitions": partitions,
            "renew": renew,
            **time.values(),
        }
        rows = await session.rows(CALLS["claim"], values)
        now = time.saw(rows[0]["now_ms"])
        if renew:
            time.renewed(request.worker, now + request.lease_ttl_ms)
        taken: list[ClaimedExecution] = []
        for row in rows:
            if row["input"] is not None:
                execution = _TABLE.record(row[5:])
                assert isinstance(execution, Execution)
                taken.append(ClaimedExecution(execution, row["input"], row["began_at"]))
        return Claimed(now, taken, rows[0]["more"]), bool(rows[0]["passed_over"])

    looks = 0
    while True:
        claimed, passed_over = await pool.call("claim", call)
        looks += 1
        if claimed.executions or not passed_over or looks == LOOKS:
            return claimed
        await asyncio.sleep(PAUSE_S)


async def renew(pool: Pool, time: StoreTime, partitions: int, worker: str, lease_ttl_ms: int) -> Renewed:
    async def call(session: Session) -> Renewed:
        values = {
            "worker": worker,
            "ttl_ms": lease_ttl_ms,
            "partitions": partitions,
            **time.values(),
        }
        rows = await session.rows(CALLS["renew"], values)
        now = time.saw(rows[0]["now_ms"])
        time.renewed(worker, now + lease_ttl_ms)
        return Renewed(now, [Held(*row[1:]) for row in rows if row["id"] is not None])

    return await pool.call("renew", call)
