"""How the database is. Filled in below."""

from __future__ import annotations

from outlast.store.port import Check, Health, ReadyLane
from outlast.store.postgres.connection import Session
from outlast.store.postgres.migrate import SCHEMA
from outlast.store.postgres.statements import statement


async def health(session: Session, *, deep: bool) -> Health:
    ready = [ReadyLane(*row) for row in await session.rows(statement("health_ready"))]
    return Health([Check(name="schema", found=f"{SCHEMA}, the one that this version of Outlast needs")], ready)
