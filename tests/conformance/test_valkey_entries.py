"""What steps are is told to Valkey in short (`Batch._step`), and comes to what it would at length."""

from __future__ import annotations

import pytest

from outlast.machine.changes import Changes
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.store.port import Store
from outlast.store.valkey.commit import Batch
from outlast.testing.conformance import actors
from outlast.testing.conformance.batches import BatchConformance
from outlast.testing.conformance.harness import Conformance, World
from tests.conformance.valkey_harness import ValkeyHarness, the_server


@pytest.fixture
def harness() -> ValkeyHarness:
    server = the_server()
    return ValkeyHarness([server], server.url)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[bool, int]:
    """What comes first to a batch is told at length: so is all that is committed one by one. How often which was."""
    in_short = Batch._step
    counts = {True: 0, False: 0}

    def step(self: Batch, changes: Changes) -> None:
        short = self._count > 1
        counts[short] += 1
        (in_short if short else Batch._any)(self, changes)

    monkeypatch.setattr(Batch, "_step", step)
    return counts


class TestShortAndAtLength(BatchConformance):
    @pytest.fixture(autouse=True)
    def both(self, told: dict[bool, int]):
        yield
        assert min(told.values()) > 10


class TestInShort(Conformance):
    @pytest.fixture(autouse=True)
    def only_in_short(self, monkeypatch: pytest.MonkeyPatch):
        long_way = Batch._any

        def goes(self: Batch, changes: Changes) -> None:
            assert "late" not in changes.id
            long_way(self, changes)

        monkeypatch.setattr(Batch, "_any", goes)

    async def test_what_stands_is_told(self, world: World, store: Store) -> None:
        held = await actors.running(store)
        first, again, other = (
            actors.decided(store, held, actors.steps(held, change_id=f"late {name}")) for name in ("1", "1", "2")
        )
        applied, repeated, refused = await actors.commit(store, first, again, other)
        assert applied.applied
        assert not applied.again
        assert repeated.applied
        assert repeated.again
        assert not refused.applied
        assert isinstance(refused.current, JournalEntry)
        assert refused.current.change_id == first.id

    async def test_a_zombie_is_told_what_its_execution_is(self, world: World, store: Store) -> None:
        held = await actors.running(store)
        before = actors.decided(store, held, actors.steps(held, "charge", change_id="late 1"))
        assert (await actors.commit_one(store, before)).applied
        world.clock.advance("11s")
        await actors.tell(store, "a", actors.loses_lease(held))
        taken = await actors.claim_one(store, "w2")
        late = actors.decided(store, held, actors.steps(held, "late", change_id="late 2"))
        refused, repeated = await actors.commit(store, late, before)
        assert not refused.applied
        assert refused.refused_by == late.guards[0]
        assert isinstance(refused.current, Execution)
        assert refused.current == await actors.look(store, "a")
        assert refused.current.epoch == taken.epoch
        assert repeated.applied
        assert repeated.again

    async def test_nobodys_step_is_refused(self, store: Store) -> None:
        held = await actors.running(store)
        nobody = actors.same_but(held, id="nobody")
        assert isinstance(nobody, Execution)
        refused = await actors.commit_one(store, actors.decided(store, nobody, actors.steps(nobody, change_id="late")))
        assert not refused.applied
        assert refused.current is None


del BatchConformance, Conformance
