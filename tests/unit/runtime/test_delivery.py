"""What is owed to another execution stays owed until that execution has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outlast.errors import StoreClosed
from outlast.machine import facts
from outlast.model.outbox import Delivery
from outlast.runtime.engine import Engine
from outlast.store.port import DueKind, Store
from outlast.store.sqlite import SqliteStore
from outlast.testing import CrashPoints

NS = "default"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "outlast.db"))
    await store.migrate()
    await store.open()
    yield store
    await store.close()


async def start(engine: Engine, execution_id: str, parent: str | None = None) -> None:
    what = {"workflow": "checkout", "version": "1", "input": b"[]", "input_digest": "d"}
    fact = facts.Start(change_id=f"start {execution_id}", namespace=NS, id=execution_id, parent=parent, **what)
    assert (await engine.tell(NS, execution_id, fact)).applied


async def owed(store: Store) -> list[Delivery]:
    due = await store.due(DueKind.OUTBOX, limit=10)
    return [item.record for item in due.items if isinstance(item.record, Delivery)]


async def test_a_delivery_cut_off_at_any_commit_is_owed_or_done(store: SqliteStore, tmp_path: Path):
    """A process that dies between its commits has either told the target, or left the delivery for the next one."""
    engine = Engine(store)
    for nth in (1, 2):
        family = f"order-{nth}"
        await start(engine, family)
        await start(engine, f"{family}/ship", parent=family)
        await engine.tell(NS, f"{family}/ship", facts.CancelRequested(change_id=f"cancel {nth}"))
        [delivery] = await owed(store)
        points = CrashPoints()
        dying = SqliteStore(str(tmp_path / "outlast.db"), points=points)
        await dying.open()
        points.crash_at("commit:begin", nth=nth)
        try:
            await Engine(dying).deliver(delivery)
        except StoreClosed:
            assert points.crashed
        await dying.close()
        told = await store.scan("event", (NS, family))
        assert told or await owed(store) == [delivery]
        assert bool(points.crashed) == (nth < 2), "in one partition, telling and striking off are one commit"
        if points.crashed:
            await engine.deliver(delivery)
        assert len(await store.scan("event", (NS, family))) == 1
        assert await owed(store) == []
    await engine.close()
