"""A step is told to the server in short, and does the same there."""

from __future__ import annotations

import pytest
from msgspec import structs

from outlast.machine.changes import Changes, Shape
from outlast.model.journal import JournalEntry
from outlast.store.valkey import ValkeyStore
from outlast.testing.conformance.actors import commit, decided, records, running, steps
from outlast.testing.valkey_server import ValkeyServer

STEPS = 40


def read_by(server: ValkeyServer) -> int:
    """The bytes that the server has read from all its clients."""
    stats = server.ask("INFO", "stats").decode().splitlines()
    return int(next(line for line in stats if line.startswith("total_net_input_bytes:")).partition(":")[2])


@pytest.mark.parametrize("kept", [Shape.STEP, None])
async def test_a_step_is_as_it_was_whether_it_is_told_in_short_or_not(server: ValkeyServer, kept: Shape | None):
    store = ValkeyStore(f"{server.url}?partitions=1")
    await store.migrate()
    await store.open()
    told: list[int] = []
    held = [await running(store, f"e{number:02}") for number in range(STEPS)]
    for shape in (Shape.STEP, kept):
        batch: list[Changes] = []
        for one in held:
            step = decided(store, one, steps(one, f"step {len(told)}"))
            assert step.shape is Shape.STEP
            batch.append(structs.replace(step, shape=shape))
        before = read_by(server)
        assert all(verdict.applied for verdict in await commit(store, *batch))
        told.append(read_by(server) - before)
    assert all([len(await records(store, JournalEntry, one.id)) == 2 for one in held])
    in_short, then = told
    if kept is Shape.STEP:
        assert abs(then - in_short) < STEPS
    else:
        assert then - in_short > 10 * STEPS, "each step takes less than ten bytes more the long way: it was not short"
    await store.close()
