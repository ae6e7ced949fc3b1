"""The reconcilers on a store: each row repairs what it is for, alone, without the help of any primary path."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from outlast.config import Config
from outlast.machine import facts
from outlast.machine.changes import Changes, Delete, Insert, Patch, Put
from outlast.model.attempt import Attempt, Outcome
from outlast.model.child import ChildEnd
from outlast.model.completion import Completion, completion_key
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.outbox import Delivery
from outlast.model.record import Now, Record
from outlast.model.session import Session
from outlast.model.status import Status
from outlast.model.tag import Tag, tag_key
from outlast.reconcilers import ROWS, Reconcilers, Row, rows_for
from outlast.reconcilers.sharing import STEAL_AFTER_INTERVALS, Sharing
from outlast.runtime.engine import Engine
from outlast.runtime.entropy import SeededEntropy
from outlast.store.port import DueKind, Filter, Store
from outlast.testing.conformance import actors
from outlast.testing.conformance.harness import Conformance, World

_seeds = itertools.count(1)


def reconcilers_on(store: Store, *, rows: tuple[Row, ...] = ROWS, **options: Any) -> Reconcilers:
    """A driver whose cycles a test turns by hand. Each has change ids of its own, as each process has."""
    return Reconcilers(Engine(store, entropy=SeededEntropy(next(_seeds)), patience_s=0.0), rows, **options)


async def repaired(store: Store, row: str) -> int:
    report = await reconcilers_on(store).cycle(row)
    assert report.errors == 0
    return report.processed


class ReconcilerConformance(Conformance):
    # ---- leases and timeouts --------------------------------------------------------------------------------------

    async def test_lease_expiry_interrupts_the_attempt_and_lets_another_worker_claim(
        self, world: World, store: Store
    ) -> None:
        await actors.running(store)
        assert await repaired(store, "lease_expiry") == 0
        world.clock.advance("10s")
        assert await repaired(store, "lease_expiry") == 1
        execution = await actors.look(store, "a")
        assert (execution.status, execution.crashes, execution.failures) == (Status.READY, 1, 0)
        [attempt] = await actors.records(store, Attempt)
        assert attempt.outcome is Outcome.INTERRUPTED
        taken = await actors.claim_one(store, "w2")
        assert (taken.epoch, taken.attempt) == (2, 2)

    async def test_a_workflow_that_kills_its_process_expires_at_the_crash_cap(self, world: World, store: Store) -> None:
        await actors.start(store, crash_cap=2)
        for _ in range(2):
            await actors.claim_one(store)
            world.clock.advance("11s")
            assert await repaired(store, "lease_expiry") == 1
        execution = await actors.look(store, "a")
        assert (execution.status, execution.cause) == (Status.EXPIRED, "crashes")
        [completion] = await actors.records(store, Completion)
        assert completion.status is Status.EXPIRED

    async def test_crashes_with_progress_between_them_do_not_end_it(self, world: World, store: Store) -> None:
        await actors.start(store, crash_cap=2, life_crash_cap=4)
        for number in range(4):
            held = await actors.claim_one(store)
            assert (await actors.tell(store, "a", actors.steps(held, f"step{number}"))).applied
            assert (await actors.look(store, "a")).crashes_since_progress == 0
            world.clock.advance("11s")
            assert await repaired(store, "lease_expiry") == 1
        execution = await actors.look(store, "a")
        assert (execution.status, execution.cause, execution.crashes) == (Status.EXPIRED, "crashes_in_life", 4)

    async def test_a_crash_that_was_decided_before_a_step_is_refused_after_it(self, world: World, store: Store) -> None:
        """Its lease has lapsed, and nobody has taken it: it may still record."""
        await actors.start(store, crash_cap=2)
        await actors.claim_one(store)
        world.clock.advance("11s")
        assert await repaired(store, "lease_expiry") == 1
        held = await actors.claim_one(store)
        world.clock.advance("11s")
        lost = actors.decided(store, held, actors.loses_lease(held))
        assert (await actors.tell(store, "a", actors.steps(held))).applied
        verdict = await actors.commit_one(store, lost)
        assert not verdict.applied
        assert await repaired(store, "lease_expiry") == 1
        execution = await actors.look(store, "a")
        assert (execution.status, execution.crashes, execution.crashes_since_progress) == (Status.READY, 2, 1)

    async def test_steps_in_flight_together_reset_the_counter_together(self, world: World, store: Store) -> None:
        await actors.start(store)
        await actors.claim_one(store)
        world.clock.advance("11s")
        assert await repaired(store, "lease_expiry") == 1
        held = await actors.claim_one(store)
        assert held.crashes_since_progress == 1
        batch = [actors.decided(store, held, actors.steps(held, f"step{number}")) for number in range(3)]
        verdicts = await actors.commit(store, *batch)
        assert [verdict.applied for verdict in verdicts] == [True] * 3
        execution = await actors.look(store, "a")
        assert (execution.crashes, execution.crashes_since_progress, execution.crashes_since_suspension) == (1, 0, 1)

    async def test_attempt_timeout_needs_a_live_session_and_lease_expiry_a_lapsed_one(
        self, world: World, store: Store
    ) -> None:
        await actors.running(store, timeout_ms=5_000)
        world.clock.advance("11s")
        # Both times have passed: the process is dead, so it is a crash and not a timeout.
        assert await repaired(store, "attempt_timeout") == 0
        await store.renew("w1", lease_ttl_ms=10_000)
        # … and once it renewed, it is a timeout and not a crash.
        assert await repaired(store, "lease_expiry") == 0
        assert await repaired(store, "attempt_timeout") == 1
        execution = await actors.look(store, "a")
        assert (execution.status, execution.cause) == (Status.EXPIRED, "attempt_timeout")
        assert (execution.failures, execution.crashes) == (1, 0)

    async def test_a_timed_out_attempt_is_retried_after_its_backoff(self, world: World, store: Store) -> None:
        retry = facts.RetryPolicy(max_attempts=2, initial_ms=3_000, jitter=0.0)
        await actors.running(store, timeout_ms=5_000, retry=retry)
        world.clock.advance("5s")
        assert await repaired(store, "attempt_timeout") == 1
        execution = await actors.look(store, "a")
        assert (execution.status, execution.reason, execution.cause) == (Status.BLOCKED, "retry", "attempt_timeout")
        world.clock.advance("3s")
        assert await repaired(store, "timer") == 1
        assert (await actors.look(store, "a")).status is Status.READY

    # ---- time -----------------------------------------------------------------------------------------------------

    async def test_execution_deadline_expires_whatever_it_is_doing(self, world: World, store: Store) -> None:
        await actors.running(store, "active", deadline_ms=1_000)
        await actors.suspended(store, "asleep", deadline_ms=1_000)
        await actors.start(store, "late", deadline_ms=1_000)
        await actors.start(store, "later", deadline_ms=1_000, delay_ms=5_000)
        await actors.start(store, "fine", deadline_ms=60_000)
        world.clock.advance("1s")
        assert await repaired(store, "execution_deadline") == 4
        for execution_id in ("active", "asleep", "late", "later"):
            execution = await actors.look(store, execution_id)
            assert (execution.status, execution.cause) == (Status.EXPIRED, "deadline")
        assert (await actors.look(store, "fine")).status is Status.READY

    async def test_timer_wakes_sleeps_delays_and_backoffs_when_they_are_due_and_not_before(
        self, world: World, store: Store
    ) -> None:
        held = await actors.running(store, "sleeper")
        wake_at = await store.now() + 1_000
        await actors.tell(store, "sleeper", actors.suspends(held, wake_at=wake_at))
        await actors.start(store, "delayed", delay_ms=1_000)
        world.clock.advance("999ms")
        assert await repaired(store, "timer") == 0
        world.clock.advance("1ms")
        assert await repaired(store, "timer") == 2
        assert await actors.claimed_ids(store) == ["sleeper", "delayed"]  # resumed before new

    async def test_two_timers_reconciling_at_once_wake_once(self, world: World) -> None:
        one, two = await world.stores(2)
        for number in range(50):
            await actors.start(one, f"d{number}", delay_ms=1_000)
        world.clock.advance("1s")
        drivers = [reconcilers_on(one), reconcilers_on(two)]
        reports = await asyncio.gather(*(driver.cycle("timer") for driver in drivers))
        assert sum(report.processed for report in reports) == 50
        assert sum(report.errors for report in reports) == 0

    # ---- outbox ---------------------------------------------------------------------------------------------------

    async def test_outbox_alone_tells_the_parent_that_its_child_ended(self, store: Store) -> None:
        await self._parent_and_ended_child(store)
        assert await repaired(store, "outbox") == 1
        parent = await actors.look(store, "p")
        assert parent.status is Status.READY
        [told] = await actors.records(store, Event, "p")
        assert (told.name, told.dedup) == ("outlast:ended:p/c", "1")
        assert ChildEnd.decode(told.value or b"") == ChildEnd(status=Status.SUCCEEDED, value=b'"done"')
        assert (await store.due(DueKind.OUTBOX, limit=10)).items == []

    async def test_a_delivery_that_is_repeated_tells_the_parent_once(self, store: Store) -> None:
        await self._parent_and_ended_child(store)
        [item] = (await store.due(DueKind.OUTBOX, limit=10)).items
        assert isinstance(item.record, Delivery)
        engine = Engine(store)
        await engine.tell("shop", "p", facts.decode_fact(item.record.fact))  # delivered, and the process died here
        before = await actors.look(store, "p")
        assert await repaired(store, "outbox") == 1
        assert await actors.look(store, "p") == before
        assert (await store.due(DueKind.OUTBOX, limit=10)).items == []

    async def test_a_delivery_to_an_ended_execution_is_struck_off(self, store: Store) -> None:
        await self._parent_and_ended_child(store)
        await actors.tell(store, "p", actors.cancels())
        assert await repaired(store, "outbox") == 1
        assert (await store.due(DueKind.OUTBOX, limit=10)).items == []

    async def test_an_unreadable_delivery_is_counted_and_struck_off(self, store: Store) -> None:
        await self._owe(store, "bad", b"\xc1 not a fact")
        report = await reconcilers_on(store).cycle("outbox")
        assert (report.processed, report.errors) == (0, 1)
        assert (await store.due(DueKind.OUTBOX, limit=10)).items == []

    async def _parent_and_ended_child(self, store: Store) -> None:
        held = await actors.running(store, "p")
        await actors.tell(store, "p", actors.suspends(held, waits=("child:p/c",)))
        await actors.ended(store, "p/c", parent="p")

    async def _owe(self, store: Store, name: str, fact: bytes) -> None:
        delivery = Delivery(
            partition=0,
            id=name,
            namespace=actors.NAMESPACE,
            target="nobody",
            fact=fact,
            due_at=Now(),
            created_at=Now(),
            change_id=name,
        )
        changes = Changes(id=name, partition=0, anchors=(delivery.key,), writes=(Insert(delivery),))
        assert (await actors.commit_one(store, changes)).applied

    # ---- retention, sessions --------------------------------------------------------------------------------------

    async def test_retention_purges_what_ended_long_enough_ago(self, world: World, store: Store) -> None:
        await actors.ended(store, "old", retention_ms=1_000)
        await actors.ended(store, "kept")
        world.clock.advance("500ms")
        await actors.ended(store, "young", retention_ms=1_000)
        world.clock.advance("500ms")
        assert await repaired(store, "retention") == 1
        assert await actors.load_one(store, actors.execution_key("shop", "old"), Execution) is None
        assert await actors.records(store, Completion, "old") == []
        assert (await actors.look(store, "kept")).status is Status.SUCCEEDED
        assert (await actors.look(store, "young")).status is Status.SUCCEEDED

    async def test_session_expiry_removes_dead_sessions_that_hold_nothing(self, world: World, store: Store) -> None:
        await actors.running(store, "a", worker="holds")
        await store.renew("idle", lease_ttl_ms=10_000)
        await store.renew("alive", lease_ttl_ms=60_000)
        world.clock.advance("10s")
        assert await repaired(store, "session_expiry") >= 1
        workers = {session.worker for session in await self._sessions(store)}
        assert workers == {"holds", "alive"}
        assert await repaired(store, "lease_expiry") == 1
        await reconcilers_on(store).cycle("session_expiry")
        assert {session.worker for session in await self._sessions(store)} == {"alive"}

    async def _sessions(self, store: Store) -> list[Session]:
        found: list[Record] = []
        for partition in range(store.partitions):
            found += await store.scan(Session.KIND, (partition,))
        return [session for session in found if isinstance(session, Session)]

    # ---- index check ----------------------------------------------------------------------------------------------

    async def test_index_check_repairs_tags_and_completions_and_says_so(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        await actors.ended(store, "a", tags={"team": "blue"})
        await actors.start(store, "b", tags={"team": "red"})
        stray = Tag(namespace=actors.NAMESPACE, execution="b", tag="stray", value="x")
        await self._spoil(store, "a", Delete(tag_key("shop", "a", "team")), Delete(completion_key("shop", "a", 1)))
        await self._spoil(store, "b", Put(stray), Patch(tag_key("shop", "b", "team"), {"value": "green"}))
        with caplog.at_level(logging.WARNING):
            assert await repaired(store, "index_check") == 2
        assert "'team' was not indexed" in caplog.text
        assert "without a completion" in caplog.text
        assert "'stray' was indexed but is not there" in caplog.text
        [completion] = await actors.records(store, Completion)
        assert completion.status is Status.SUCCEEDED
        assert [(tag.tag, tag.value) for tag in await actors.records(store, Tag, "b")] == [("team", "red")]
        assert await repaired(store, "index_check") == 0

    async def test_index_check_walks_page_by_page_and_begins_again(self, store: Store) -> None:
        for number in range(5):
            await actors.start(store, f"e{number}", tags={"n": str(number)})
            await self._spoil(store, f"e{number}", Delete(tag_key("shop", f"e{number}", "n")))
        row = next(msgspec.structs.replace(row, batch=2) for row in ROWS if row.name == "index_check")
        driver = reconcilers_on(store, rows=(row,))
        assert [(await driver.cycle("index_check")).processed for _ in range(4)] == [2, 2, 1, 0]

    async def _spoil(self, store: Store, execution_id: str, *writes: Delete | Patch | Put) -> None:
        assert (await actors.commit_one(store, actors.changing(store, execution_id, *writes))).applied

    # ---- the driver -----------------------------------------------------------------------------------------------

    async def test_a_batch_bounds_a_cycle_and_the_oldest_come_first(self, world: World, store: Store) -> None:
        for number in range(5):
            await actors.start(store, f"d{number}", delay_ms=1_000 + number)
        world.clock.advance("2s")
        row = next(msgspec.structs.replace(row, batch=2) for row in ROWS if row.name == "timer")
        driver = reconcilers_on(store, rows=(row,))
        report = await driver.cycle("timer")
        assert (report.processed, report.full) == (2, True)
        assert driver.metrics["timer"].depth == 5
        ready = [f"d{n}" for n in range(5) if (await actors.look(store, f"d{n}")).status is Status.READY]
        assert ready == ["d0", "d1"]

    async def test_the_filter_restricts_repairs_to_a_namespace_and_an_instance_tag(
        self, world: World, store: Store
    ) -> None:
        await actors.start(store, "ours", delay_ms=1, tags={"instance": "blue"})
        await actors.start(store, "theirs", delay_ms=1, tags={"instance": "green"})
        await actors.start(store, "foreign", delay_ms=1, namespace="other", tags={"instance": "blue"})
        world.clock.advance("1s")
        config = Config(reconcile_namespace="shop", reconcile_tag=("instance", "blue"))
        rows = rows_for(config)
        assert all(row.filter == Filter(namespace="shop", tag=("instance", "blue")) for row in rows)
        assert (await reconcilers_on(store, rows=rows).cycle("timer")).processed == 1
        assert (await actors.look(store, "ours")).status is Status.READY
        assert (await actors.look(store, "theirs")).status is Status.BLOCKED
        assert (await actors.look(store, "foreign", "other")).status is Status.BLOCKED

    async def test_a_failing_item_is_counted_backs_off_and_never_blocks_the_rest(
        self, world: World, store: Store
    ) -> None:
        for number in range(4):
            await actors.start(store, f"d{number}", delay_ms=number + 1)
        world.clock.advance("1s")
        tries: list[str] = []
        timer = next(row for row in ROWS if row.name == "timer")

        async def repair(engine: Engine, record: Record) -> bool:
            assert isinstance(record, Execution)
            tries.append(record.id)
            if record.id in ("d0", "d1"):
                raise RuntimeError("poison")
            assert timer.repair is not None
            return await timer.repair(engine, record)

        row = msgspec.structs.replace(timer, batch=2, repair=repair, repair_together=None)
        driver = reconcilers_on(store, rows=(row,))
        first = await driver.cycle("timer")
        assert (first.processed, first.errors) == (0, 2)
        second = await driver.cycle("timer")
        assert (second.processed, second.errors) == (2, 0), "the poisoned ones took the places of the others"
        third = await driver.cycle("timer")
        assert (third.processed, third.errors) == (0, 2), "they are tried again after their backoff"
        await driver.cycle("timer")
        assert tries == ["d0", "d1", "d2", "d3", "d0", "d1"]
        assert (driver.metrics["timer"].errors, driver.metrics["timer"].processed) == (4, 2)

    async def test_what_changed_since_the_look_does_not_keep_the_others_from_their_repair(
        self, world: World, store: Store
    ) -> None:
        """They are told together, upon what was seen: whatever is not so any more is told by itself."""
        for number in range(3):
            await actors.start(store, f"d{number}", delay_ms=1_000)
        world.clock.advance("4s")
        timer = next(row for row in ROWS if row.name == "timer")

        async def too_late(engine: Engine, records: Sequence[Record]) -> list[bool]:
            await actors.tell(store, "d1", actors.cancels())
            assert timer.repair_together is not None
            done = await timer.repair_together(engine, records)
            assert done == [record.key.values[1] != "d1" for record in records]
            return done

        driver = reconcilers_on(store, rows=(msgspec.structs.replace(timer, repair_together=too_late),))
        report = await driver.cycle("timer")
        assert (report.processed, report.errors, report.skipped) == (2, 0, 1)
        ended = [(await actors.look(store, f"d{number}")).status for number in range(3)]
        assert ended == [Status.READY, Status.CANCELLED, Status.READY]

    async def test_a_failed_sample_keeps_the_last_depth_and_lag(self, world: World, store: Store) -> None:
        for number in range(3):
            await actors.start(store, f"d{number}", delay_ms=1_000)
        world.clock.advance("4s")
        timer = next(row for row in ROWS if row.name == "timer")

        async def leave(engine: Engine, record: Record) -> bool:
            return False

        row = msgspec.structs.replace(timer, repair=leave, repair_together=None)
        driver = reconcilers_on(store, rows=(row,))
        await driver.cycle("timer")
        seen = (driver.metrics["timer"].depth, driver.metrics["timer"].lag_s)
        assert seen == (3, 3.0)
        await store.close()
        report = await driver.cycle("timer")
        assert report.errors == 1
        assert (driver.metrics["timer"].depth, driver.metrics["timer"].lag_s) == seen
        assert driver.metrics["timer"].cycles == 2

    async def test_partitions_are_shared_between_live_processes_and_stolen_when_overdue(
        self, world: World, store: Store
    ) -> None:
        await store.renew("one", lease_ttl_ms=3_600_000)
        await store.renew("two", lease_ttl_ms=3_600_000)
        for number in range(20):
            await actors.start(store, f"d{number}", delay_ms=1_000)
        world.clock.advance("1s")
        timer = next(row for row in ROWS if row.name == "timer")
        drivers = {name: reconcilers_on(store, sharing=Sharing(store, name)) for name in ("one", "two")}
        reports = {name: (await driver.cycle("timer")).processed for name, driver in drivers.items()}
        assert sum(reports.values()) == 20
        if store.partitions == 1:
            assert sorted(reports.values()) == [0, 20]
        stranger = reconcilers_on(store, sharing=Sharing(store, "stranger"))
        await actors.start(store, "late", delay_ms=1_000)
        world.clock.advance("1s")
        assert (await stranger.cycle("timer")).processed == 0
        world.clock.advance(STEAL_AFTER_INTERVALS * timer.interval_ms / 1_000 + 0.001)
        assert (await stranger.cycle("timer")).processed == 1

    async def test_the_driver_runs_every_enabled_row_and_stops(self, world: World, store: Store) -> None:
        await actors.start(store, "d", delay_ms=1)
        world.clock.advance("1s")
        pauses: list[float] = []
        repaired = asyncio.Event()

        async def pause(delay_s: float, /) -> None:
            pauses.append(delay_s)
            # Another row may pause while the one that repaired it is still counting.
            if driver.metrics["timer"].cycles and (await actors.look(store, "d")).status is Status.READY:
                repaired.set()
            await asyncio.Event().wait()

        env = {"OUTLAST_RECONCILER_RETENTION_ENABLED": "no", "OUTLAST_RECONCILER_TIMER_INTERVAL": "2s"}
        driver = reconcilers_on(store, rows=rows_for(Config.load(env)), pause=pause)
        driver.start()
        await asyncio.wait_for(repaired.wait(), 10)
        await driver.stop()
        assert driver.metrics["retention"].cycles == 0
        assert driver.metrics["timer"].cycles >= 1
        assert any(1.8 <= delay_s <= 2.2 for delay_s in pauses)

    async def test_every_row_survives_a_store_that_does_not_answer(self, store: Store) -> None:
        await store.close()
        driver = reconcilers_on(store)
        for row in ROWS:
            assert (await driver.cycle(row.name)).errors == 1
