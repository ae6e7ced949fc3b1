"""The rules that every write obeys: each of the ten rules of the design, by name."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from outlast import limits
from outlast.errors import InvalidConfig, InvalidInput, LimitExceeded
from outlast.machine import facts
from outlast.machine.changes import Code, Insert, Matches, Refusal, lane_channel
from outlast.machine.decide import decide
from outlast.machine.invariants import violations
from outlast.model.attempt import Attempt, Outcome
from outlast.model.completion import Completion
from outlast.model.event import Event
from outlast.model.journal import JournalEntry
from outlast.model.outbox import Delivery
from outlast.model.partition import rendezvous
from outlast.model.retry import RetryPolicy
from outlast.model.status import Status, is_reason
from outlast.runtime.engine import Engine
from outlast.store.port import RESCAN, DueKind, Query, Store
from outlast.store.sqlite import SqliteStore
from outlast.testing.conformance import actors
from outlast.testing.conformance.harness import Conformance, World, refused
from outlast.testing.conformance.samples import suspended_execution


class TestRules(Conformance):
    # ---- 1 --------------------------------------------------------------------------------------------------------

    async def test_rule_01_every_write_of_a_worker_is_fenced(self, world: World, store: Store):
        held = await actors.running(store, retry=RetryPolicy(max_attempts=5))
        said: list[facts.AnyFact] = [
            actors.steps(held),
            actors.steps(held, "undo", unwinds=True),
            facts.Progressed(change_id="progress", epoch=held.epoch, value=b"{}"),
            actors.suspends(held, waits=("event:plan",)),
            actors.completes(held),
            actors.fails(held),
            facts.HandBack(change_id="back", epoch=held.epoch),
        ]
        for fact in said:
            guards = actors.decided(store, held, fact).guards
            fences = [g.fields for g in guards if isinstance(g, Matches) and g.key == held.key]
            assert any(f.get("epoch") == held.epoch and f.get("status") is Status.ACTIVE for f in fences)
        zombie_writes = [actors.decided(store, held, fact) for fact in said]
        world.clock.advance("11s")
        await actors.tell(store, "a", actors.loses_lease(held))
        await actors.claim_one(store, "w2")
        before = await actors.state(store, "a")
        assert not any(verdict.applied for verdict in await actors.commit(store, *zombie_writes))
        assert await actors.state(store, "a") == before

    async def test_rule_01_a_zombie_of_a_former_life_is_refused(self, world: World, store: Store):
        """Its execution was purged, and the id started anew: by a client, which draws where the epochs begin."""
        held = await actors.running(store, first_epoch=3_000_000_000)
        late = [
            actors.decided(store, held, fact)
            for fact in (actors.steps(held, "late"), actors.completes(held, b"late"), actors.fails(held))
        ]
        await actors.commit_one(store, actors.decided(store, held, actors.completes(held)))
        assert await store.purge(finished_before=world.clock.now_ms() + 1) == 1
        anew = await actors.running(store, first_epoch=17)
        assert anew.epoch == 18
        before = await actors.state(store, "a")
        assert not any(verdict.applied for verdict in await actors.commit(store, *late))
        assert not (
            await store.append(actors.NAMESPACE, "a", epoch=held.epoch, change_id="late", frames=[b"x"])
        ).applied
        assert await actors.state(store, "a") == before

    # ---- 2 --------------------------------------------------------------------------------------------------------

    async def test_rule_02_failures_crashes_and_suspensions_are_counted_apart(self, world: World, store: Store):
        held = await actors.running(store, retry=RetryPolicy(max_attempts=9, initial_ms=0), timeout_ms=1_000)
        await actors.tell(store, "a", actors.fails(held))
        held = await actors.claim_one(store)
        world.clock.advance("2s")
        await actors.tell(store, "a", actors.times_out(held))
        held = await actors.claim_one(store)
        world.clock.advance("11s")
        await actors.tell(store, "a", actors.loses_lease(held))
        held = await actors.claim_one(store)
        counts = (held.failures, held.crashes, held.attempt)
        assert counts == (2, 1, 4)
        for _ in range(3):
            await actors.tell(store, "a", actors.suspends(held, waits=("event:plan",)))
            await actors.tell(store, "a", actors.sends())
            held = await actors.claim_one(store)
        await actors.tell(store, "a", facts.HandBack(change_id="back", epoch=held.epoch))
        held = await actors.claim_one(store)
        assert (held.failures, held.crashes, held.attempt) == counts
        outcomes = [attempt.outcome for attempt in await actors.records(store, Attempt)]
        assert outcomes == [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.INTERRUPTED, None]

    async def test_rule_02_crashes_have_a_cap_of_their_own(self, world: World, store: Store):
        await actors.start(store, crash_cap=2)
        for expected in (Status.READY, Status.EXPIRED):
            held = await actors.claim_one(store)
            world.clock.advance("11s")
            await actors.tell(store, "a", actors.loses_lease(held))
            assert (await actors.look(store, "a")).status is expected
        execution = await actors.look(store, "a")
        assert (execution.cause, execution.crashes, execution.failures) == ("crashes", 2, 0)

    # ---- 3 --------------------------------------------------------------------------------------------------------

    async def test_rule_03_an_end_and_its_completion_are_one_commit(self, store: Store):
        held = await actors.running(store, parent=actors.ROOT)
        changes = actors.decided(store, held, actors.completes(held))
        kinds = {write.record.KIND for write in changes.writes if isinstance(write, Insert)}
        assert {"completion", "payload", "outbox"} <= kinds
        await actors.commit_one(store, changes)
        assert len(await actors.records(store, Completion)) == 1
        assert (await store.due(DueKind.OUTBOX, limit=10)).depth == 1

    async def test_rule_03_receiving_an_event_and_going_on_are_one_commit(self, store: Store):
        held = await actors.running(store)
        await actors.tell(store, "a", actors.sends(dedup="k"))
        received = actors.steps(held, "plan", op="receive", consumes=("plan", "k"))
        await actors.commit_one(store, actors.decided(store, held, received))
        assert [event.consumed for event in await actors.records(store, Event)] == [True]
        assert len(await actors.records(store, JournalEntry)) == 1
        twice = actors.steps(held, "plan", occurrence=2, op="receive", consumes=("plan", "k"))
        assert not (await actors.commit_one(store, actors.decided(store, held, twice))).applied
        assert len(await actors.records(store, JournalEntry)) == 1

    async def test_rule_03_an_event_and_the_wake_up_are_one_commit(self, store: Store):
        await actors.suspended(store)
        await actors.tell(store, "a", actors.sends())
        assert (await actors.look(store, "a")).status is Status.READY
        assert len(await actors.records(store, Event)) == 1

    async def test_rule_03_a_suspension_and_its_wake_time_are_one_commit(self, world: World, store: Store):
        held = await actors.running(store)
        at = world.clock.now_ms() + 5_000
        await actors.tell(store, "a", actors.suspends(held, wake_at=at))
        execution = await actors.look(store, "a")
        assert (execution.status, execution.wake_at, execution.worker) == (Status.SUSPENDED, at, None)

    # ---- 4 --------------------------------------------------------------------------------------------------------

    async def test_rule_04_terminal_operations_are_idempotent(self, store: Store):
        engine = Engine(store)
        held = await actors.running(store)
        assert (await engine.tell(actors.NAMESPACE, "a", actors.completes(held))).applied
        before = await actors.state(store, "a")
        same = await engine.tell(actors.NAMESPACE, "a", actors.completes(held))
        assert same.refusal is not None
        assert same.refusal.code is Code.ALREADY
        for different in (actors.fails(held), actors.cancels(), facts.DeadlinePassed(change_id="d")):
            told = await engine.tell(actors.NAMESPACE, "a", different)
            assert told.refusal is not None
            assert told.refusal.code is Code.TERMINAL
            assert "succeeded" in told.refusal.message
        assert await actors.state(store, "a") == before
        await engine.close()

    # ---- 5 --------------------------------------------------------------------------------------------------------

    async def test_rule_05_retention_counts_from_the_end(self, world: World, store: Store):
        held = await actors.running(store, retention_ms=1_000)
        await actors.commit_one(store, actors.decided(store, held, actors.steps(held)))
        await actors.tell(store, "a", actors.sends())
        world.clock.advance("365d")
        await store.renew("w1", lease_ttl_ms=actors.TTL_MS)
        assert await store.purge() == 0
        await actors.commit_one(store, actors.decided(store, held, actors.completes(held)))
        world.clock.advance("999ms")
        assert await store.purge() == 0
        world.clock.advance("1ms")
        assert await store.purge() == 1

    # ---- 6 --------------------------------------------------------------------------------------------------------

    async def test_rule_06_doorbells_are_hints(self, world: World, store: Store):
        other = await world.store()
        subscription = other.listen()
        channels = aiter(subscription)
        assert RESCAN in await asyncio.wait_for(anext(channels), 10)
        for number in range(5):
            await actors.start(store, f"x{number}")
        heard = await asyncio.wait_for(anext(channels), 10)
        assert heard - {RESCAN} == {lane_channel(actors.NAMESPACE, actors.LANE)}
        await subscription.close()
        await actors.start(store, "unheard")
        assert len(await actors.claimed_ids(other)) == 6

    # ---- 7 --------------------------------------------------------------------------------------------------------

    async def test_rule_07_past_a_limit_a_call_of_the_store_is_a_typed_error(self, store: Store):
        held = await actors.running(store)
        nothing = actors.changing(store, "a")
        calls = [
            store.commit([nothing] * (limits.BATCH_MAX_CHANGES + 1)),
            store.claim(actors.claim_request(limit=limits.CLAIM_MAX + 1)),
            store.load([held.key] * (limits.LOAD_MAX_KEYS + 1)),
            store.scan(Event.KIND, (actors.NAMESPACE, "a"), limit=limits.SCAN_MAX_RECORDS + 1),
            store.find(Query(namespace=actors.NAMESPACE, limit=limits.FIND_MAX + 1)),
            store.due(DueKind.TIMER, limit=limits.DUE_MAX + 1),
            store.purge(limit=limits.PURGE_MAX + 1),
            store.append(actors.NAMESPACE, "a", epoch=1, change_id="c", frames=[b"x" * (limits.FRAME_MAX_BYTES + 1)]),
        ]
        for call in calls:
            await refused(call, InvalidInput)

    async def test_rule_07_a_full_journal_is_refused_with_what_to_do(self, store: Store):
        held = await actors.running(store)
        answer = decide(actors.view_of(store, held), actors.steps(held, entries=limits.JOURNAL_MAX_ENTRIES), 0)
        assert isinstance(answer, Refusal)
        assert answer.code is Code.LIMIT
        assert "continue as new" in answer.message

    # ---- 8 --------------------------------------------------------------------------------------------------------

    # ---- 9 --------------------------------------------------------------------------------------------------------

    async def test_rule_09_two_engines_doing_the_same_repair_are_harmless(self, world: World, store: Store):
        engines = [Engine(other) for other in await world.stores(2)]
        await actors.start(store, "timer", delay_ms=1_000)
        held = await actors.running(store, "lease")
        await actors.ended(store, f"{actors.ROOT}/child", parent=actors.ROOT)
        world.clock.advance("1h")
        [delivery] = [item.record for item in (await store.due(DueKind.OUTBOX, limit=9)).items]
        assert isinstance(delivery, Delivery)
        await actors.start(store, actors.ROOT)
        for engine in engines:
            await engine.tell(actors.NAMESPACE, "timer", facts.Wake(change_id=actors.new_id(), cause="delay"))
            await engine.tell(actors.NAMESPACE, "lease", actors.loses_lease(held))
            await engine.deliver(delivery)
        assert (await actors.look(store, "timer")).inbox == 0
        assert (await actors.look(store, "lease")).crashes == 1
        assert (
            (await actors.look(store, actors.ROOT)).inbox == len(await actors.records(store, Event, actors.ROOT)) == 1
        )
        assert (await store.due(DueKind.OUTBOX, limit=9)).depth == 0
        for engine in engines:
            await engine.close()

    # ---- 10 -------------------------------------------------------------------------------------------------------

    async def test_rule_10_whatever_does_not_run_says_why(self, world: World, store: Store):
        retry = RetryPolicy(max_attempts=5, initial_ms=1_000)
        await actors.suspended(store, "event")
        held = await actors.running(store, "timer")
        await actors.tell(store, "timer", actors.suspends(held, wake_at=world.clock.now_ms() + 1))
        held = await actors.running(store, "deferred")
        await actors.tell(store, "deferred", actors.suspends(held, waits=("deferred:approval",)))
        held = await actors.running(store, "child")
        await actors.tell(store, "child", actors.suspends(held, waits=("child:child/ship",)))
        held = await actors.running(store, "version")
        await actors.tell(store, "version", actors.suspends(held, waits=("version",)))
        held = await actors.running(store, "retry", retry=retry)
        await actors.tell(store, "retry", actors.fails(held))
        await actors.start(store, "delay", delay_ms=1)
        await actors.start(store, "dependencies", after_dependencies=True)
        await actors.start(store, "operator")
        await actors.tell(store, "operator", facts.Hold(change_id="h"))
        found = (await store.find(Query(namespace=actors.NAMESPACE))).executions
        assert {execution.id: execution.reason for execution in found} == {
            "event": "event:plan",
            "timer": "timer",
            "deferred": "deferred:approval",
            "child": "child:child/ship",
            "version": "version",
            "retry": "retry",
            "delay": "delay",
            "dependencies": "dependencies",
            "operator": "operator",
        }
        assert all(is_reason(execution.reason or "") for execution in found)


@pytest.mark.parametrize(
    "options",
    [
        {"id": "x" * (limits.ID_MAX_CHARS + 1)},
        {"workflow": "x" * (limits.NAME_MAX_CHARS + 1)},
        {"input": b"x" * (limits.PAYLOAD_MAX_BYTES + 1)},
        {"tags": {f"t{n}": "v" for n in range(limits.TAGS_MAX + 1)}},
        {"tags": {"t": "x" * (limits.TAG_VALUE_MAX_CHARS + 1)}},
        {"requires": tuple(f"c{n}" for n in range(limits.REQUIRES_MAX + 1))},
        {"delay_ms": limits.DURATION_MAX_MS + 1},
    ],
    ids=["id", "workflow", "input", "tags", "tag value", "requires", "delay"],
)
def test_rule_07_past_a_limit_a_start_is_a_typed_error(options: dict[str, Any]):
    with pytest.raises(LimitExceeded) as caught:
        actors.start_fact(**options)
    assert caught.value.actual == caught.value.limit + 1


@pytest.mark.parametrize(
    "options",
    [{"if_exists": "maybe"}, {"delay_ms": 5, "after_dependencies": True}, {"crash_cap": 0}, {"delay_ms": -1}],
    ids=["if_exists", "delay with dependencies", "crash_cap", "negative delay"],
)
def test_rule_08_an_option_that_cannot_be_honoured_is_refused(options: dict[str, Any]):
    with pytest.raises(InvalidInput):
        actors.start_fact(**options)


@pytest.mark.parametrize("url", ["sqlite:///x.db?cache=shared", "sqlite:///x.db?synchronous=OFF", "sqlite://:memory:"])
def test_rule_08_an_option_of_a_store_that_it_does_not_know_is_refused(url: str):
    with pytest.raises(InvalidConfig):
        SqliteStore(url)


def test_rule_09_ownership_moves_little_when_a_worker_leaves():
    workers = [f"w{n}" for n in range(8)]
    owners = {p: rendezvous(p, workers) for p in range(64)}
    fewer = {p: rendezvous(p, workers[:-1]) for p in range(64)}
    assert all(fewer[p] == owner for p, owner in owners.items() if owner != workers[-1])
    assert rendezvous(0, []) is None


@pytest.mark.parametrize("fields", [{"reason": None}, {"waits": "", "wake_at": None}, {"reason": "because"}])
def test_rule_10_what_could_never_wake_breaks_an_invariant(fields: dict[str, Any]):
    assert violations(suspended_execution()) == []
    assert violations(msgspec.structs.replace(suspended_execution(), **fields))
