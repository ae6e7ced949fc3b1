"""Families: changes that touch two executions of a partition, and what the outbox does for parents and children."""

from __future__ import annotations

import asyncio

from outlast.machine import facts
from outlast.model.deferred import Deferred
from outlast.model.event import CHILD, UNDELIVERED, Event
from outlast.model.execution import Execution, ParentClose, execution_key
from outlast.model.journal import JournalEntry
from outlast.model.outbox import Delivery
from outlast.model.payload import Payload
from outlast.model.status import Status
from outlast.runtime.engine import Engine
from outlast.runtime.forgetting import PART
from outlast.store.port import DueKind, Store
from outlast.testing.conformance import actors
from outlast.testing.conformance.actors import NAMESPACE
from outlast.testing.conformance.harness import Conformance, World


class FamilyConformance(Conformance):
    async def test_a_child_and_the_entry_that_starts_it_are_one_commit(self, store: Store) -> None:
        held = await actors.running(store, "p")
        assert (await actors.tell(store, "p", starts_child(held))).applied
        assert (await actors.look(store, "p/c")).parent == "p"
        assert (await actors.look(store, "p")).has_children
        assert [entry.name for entry in await actors.records(store, JournalEntry, "p")] == ["ship"]
        assert await actors.claimed_ids(store) == ["p/c"]

    async def test_a_child_that_exists_refuses_the_entry_too(self, store: Store) -> None:
        held = await actors.running(store, "p")
        await actors.start(store, "p/c", parent="p")
        verdict = await actors.tell(store, "p", starts_child(held))
        assert not verdict.applied
        assert verdict.refused_by is not None
        assert verdict.refused_by.key == (await actors.look(store, "p/c")).key
        assert await actors.records(store, JournalEntry, "p") == []
        assert await actors.records(store, Event, "p") == []

    async def test_a_zombie_starts_no_child(self, world: World, store: Store) -> None:
        held = await actors.running(store, "p")
        world.clock.advance("11s")
        await actors.tell(store, "p", actors.loses_lease(held))
        assert not (await actors.commit_one(store, actors.decided(store, held, starts_child(held)))).applied
        assert await actors.load_one(store, execution_key(NAMESPACE, "p/c"), Execution) is None

    async def test_a_start_of_a_child_whose_reply_was_lost_is_the_same_start(self, store: Store) -> None:
        held = await actors.running(store, "p")
        changes = actors.decided(store, held, starts_child(held))
        first, again = await actors.commit(store, changes, changes)
        assert (first.applied, first.again, again.applied, again.again) == (True, False, True, True)
        assert len(await actors.records(store, Payload, "p/c")) == 1

    async def test_a_cancel_ends_a_parent_and_its_children_in_one_commit(self, store: Store) -> None:
        held = await parent_and_child(store)
        await actors.tell(store, "p", actors.suspends(held, waits=("child:p/c",)))
        engine = Engine(store)
        assert (await engine.tell(NAMESPACE, "p", actors.cancels())).applied
        assert [(await actors.look(store, name)).status for name in ("p", "p/c")] == [Status.CANCELLED] * 2
        await engine.close()

    async def test_the_outbox_closes_the_children_of_an_ended_parent(self, store: Store) -> None:
        held = await parent_and_child(store)
        await actors.tell(store, "p", actors.completes(held))
        assert (await actors.look(store, "p/c")).status is Status.READY
        await carry_all(store)
        assert (await actors.look(store, "p/c")).status is Status.CANCELLED
        assert [event.name for event in await actors.records(store, Event, "p")] == []

    async def test_a_parent_that_was_opened_again_keeps_its_children(self, store: Store) -> None:
        held = await parent_and_child(store)
        await actors.tell(store, "p", actors.fails(held))
        await actors.tell(store, "p", facts.Retry(change_id="again"))
        await carry_all(store)
        assert (await actors.look(store, "p/c")).status is Status.READY
        names = [event.name for event in await actors.records(store, Event, "p")]
        assert CHILD in names

    async def test_old_generations_are_dropped_in_parts_however_many_records_they_left(self, store: Store) -> None:
        held = await actors.running(store, "p")
        many = PART * 2 + 1
        entries = [actors.steps(held, occurrence=number, entries=number) for number in range(many)]
        for begin in range(0, many, 500):
            batch = [actors.decided(store, held, entry) for entry in entries[begin : begin + 500]]
            await actors.commit(store, *batch)
        await actors.tell(store, "p", actors.resolves())
        await actors.tell(store, "p", facts.Continue(change_id="on", epoch=held.epoch, input=b"[2]"))
        await carry_all(store)
        assert await actors.records(store, JournalEntry, "p") == []
        assert await actors.records(store, Deferred, "p") == []
        assert [payload.generation for payload in await actors.records(store, Payload, "p")] == [2]
        assert await actors.claimed_ids(store) == ["p"]

    async def test_events_that_were_not_received_survive_a_new_generation(self, store: Store) -> None:
        held = await actors.running(store, "p")
        for number in range(3):
            await actors.tell(store, "p", actors.sends(value=str(number).encode()))
        first, *_ = await actors.records(store, Event, "p")
        await actors.tell(store, "p", actors.steps(held, "plan", consumes=(first.name, first.dedup)))
        await actors.tell(store, "p", facts.Continue(change_id="on", epoch=held.epoch, input=b"[2]"))
        await carry_all(store)
        left = [event.value for event in await actors.records(store, Event, "p") if not event.consumed]
        assert left == [b"1", b"2"]

    async def test_a_word_that_two_carry_at_once_arrives_once(self, world: World, store: Store) -> None:
        held = await actors.running(store, "p")
        await actors.start(store, "other")
        await actors.tell(store, "p", owes(store, held, "other"))
        stores = await world.stores(5)
        await asyncio.gather(*(carry_all(one) for one in stores))
        assert len(await actors.records(store, Event, "other")) == 1
        assert (await actors.look(store, "other")).inbox == 1

    async def test_a_word_for_nobody_is_struck_off_and_recorded_with_its_sender(self, store: Store) -> None:
        held = await actors.running(store, "p")
        await actors.tell(store, "p", owes(store, held, "nobody"))
        await carry_all(store)
        [note] = await actors.records(store, Event, "p")
        assert (note.name, note.consumed) == (UNDELIVERED, True)

    async def test_a_start_with_an_event_is_one_commit_and_again_only_the_event(self, store: Store) -> None:
        engine = Engine(store)
        for number in range(3):
            fact = actors.start_fact("cart", sends=(facts.Sent("item", str(number).encode()),))
            assert (await engine.begin(fact)).applied
        assert [event.value for event in await actors.records(store, Event, "cart")] == [b"0", b"1", b"2"]
        assert (await actors.look(store, "cart")).inbox == 3
        await engine.close()


def starts_child(held: Execution) -> facts.StepRecorded:
    child = actors.start_fact(f"{held.id}/c", parent=held.id)
    return actors.steps(held, "ship", op="start", starts=child, adopts=(child.id, ParentClose.CANCEL))


def owes(store: Store, held: Execution, target: str) -> facts.StepRecorded:
    home = actors.partition(store, held.id)
    told = actors.sends(change_id=f"{home}>word")
    return actors.steps(held, target, op="send", tells=(facts.Tell(told.change_id, target, facts.encode_fact(told)),))


async def parent_and_child(store: Store) -> Execution:
    held = await actors.running(store, "p")
    assert (await actors.tell(store, "p", starts_child(held))).applied
    return await actors.look(store, "p")


async def carry_all(store: Store) -> None:
    """What the outbox's reconciler does, until nothing is owed."""
    engine = Engine(store)
    while items := (await store.due(DueKind.OUTBOX, limit=100)).items:
        for item in items:
            assert isinstance(item.record, Delivery)
            await engine.deliver(item.record)
    await engine.close()
