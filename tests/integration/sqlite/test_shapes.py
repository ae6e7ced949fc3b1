"""Changes of each shape take the short way: a batch of any size is written by the same number of statements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outlast.machine.changes import Changes, Shape
from outlast.store.sqlite import SqliteStore
from outlast.testing import ManualClock
from outlast.testing.conformance.actors import commit, completes, decided, running, start_changes, start_fact, steps


class Statements:
    """Counts the statements that the writer has begun."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, point: str) -> None:
        self.number += point == "commit:statement"


@pytest.fixture
def statements() -> Statements:
    return Statements()


@pytest.fixture
async def store(tmp_path: Path, statements: Statements) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "shapes.db"), clock=ManualClock(), points=statements)
    await store.migrate()
    await store.open()
    yield store
    await store.close()


async def batch_of(store: SqliteStore, shape: Shape, mark: str, size: int) -> list[Changes]:
    names = [f"{mark}{n}" for n in range(size)]
    if shape is Shape.START:
        batch = [start_changes(store, start_fact(name)) for name in names]
    else:
        held = [await running(store, name) for name in names]
        facts = [steps(e, "one") if shape is Shape.STEP else completes(e) for e in held]
        batch = [decided(store, e, fact) for e, fact in zip(held, facts, strict=True)]
    assert {changes.shape for changes in batch} == {shape}
    return batch


async def written_by(store: SqliteStore, statements: Statements, batch: list[Changes]) -> int:
    before = statements.number
    assert all(verdict.applied for verdict in await commit(store, *batch))
    return statements.number - before


@pytest.mark.parametrize("shape", Shape)
async def test_a_batch_of_one_shape_takes_as_many_statements_as_a_single_change(
    store: SqliteStore, statements: Statements, shape: Shape
):
    few = await written_by(store, statements, await batch_of(store, shape, "few", 2))
    many = await written_by(store, statements, await batch_of(store, shape, "many", 12))
    executions = 10 if shape is Shape.START else 0  # each alone: its id may be taken
    assert many - few == executions


@pytest.mark.parametrize("shape", [Shape.STEP, Shape.END])
async def test_what_the_writer_does_not_know_is_read_and_written_one_by_one(
    store: SqliteStore, statements: Statements, shape: Shape
):
    """What the short way saves."""
    batch = await batch_of(store, shape, "many", 12)
    await store.purge(finished_before=0)  # then the writer forgets what it knew
    assert await written_by(store, statements, batch) >= 2 * 12
