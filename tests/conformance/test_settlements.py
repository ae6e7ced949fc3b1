"""The commit contract, settled: each of the twelve settlements of the design, by name."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.errors import ReplyLost
from outlast.machine import facts
from outlast.machine.changes import Add, Changes, Insert, Matches, Patch
from outlast.model.completion import Completion
from outlast.model.event import Event
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import EdgeAnswer, Flow, FlowState
from outlast.model.journal import JournalEntry
from outlast.model.partition import partition_of
from outlast.model.payload import Payload
from outlast.model.record import Key, Now
from outlast.model.retry import RetryPolicy
from outlast.model.status import Status
from outlast.store.port import DueKind, Query, Store
from outlast.store.sqlite import SqliteStore
from outlast.testing.conformance import actors
from outlast.testing.conformance.harness import Conformance, World, refused


class TestSettlements(Conformance):
    # ---- 1 --------------------------------------------------------------------------------------------------------

    async def test_settlement_01_anchors_are_locked_before_guards_are_read(self, world: World, store: Store):
        """Two processes, two records, named in opposite order: one of each pair is applied, and none is stuck."""
        left, right = await world.stores(2)
        one, two = execution_key(actors.NAMESPACE, "family/1"), execution_key(actors.NAMESPACE, "family/2")
        await actors.start(store, **actors.member(1))
        await actors.start(store, **actors.member(2))

        def both(first: Key, second: Key, turn: int) -> Changes:
            return Changes(
                id=actors.new_id(),
                partition=actors.partition(store, actors.ROOT),
                anchors=(first, second),
                guards=(Matches(first, {"priority": turn}), Matches(second, {"priority": turn})),
                writes=(Patch(second, {"priority": turn + 1}), Patch(first, {"priority": turn + 1})),
            )

        for turn in range(50):
            calls = [left.commit([both(one, two, turn)]), right.commit([both(two, one, turn)])]
            committed = await asyncio.gather(*calls)
            assert sorted(answer.verdicts[0].applied for answer in committed) == [False, True]
        assert (await actors.look(store, "family/1")).priority == (await actors.look(store, "family/2")).priority == 50

    async def test_settlement_01_changes_that_share_an_anchor_apply_in_order_and_refuse_alone(self, store: Store):
        await actors.start(store)
        key = execution_key(actors.NAMESPACE, "a")
        batch = [
            actors.changing(
                store,
                "a",
                Patch(key, {"priority": new}),
                Add(key, "inbox", 1),
                guards=[Matches(key, {"priority": old})],
            )
            for old, new in [(0, 1), (0, 9), (1, 2)]
        ]
        assert [v.applied for v in await actors.commit(store, *batch)] == [True, False, True]
        execution = await actors.look(store, "a")
        assert (execution.priority, execution.inbox) == (2, 2)

    # ---- 2 --------------------------------------------------------------------------------------------------------

    async def test_settlement_02_outside_writes_never_touch_the_holders_fields(self, store: Store):
        held = await actors.running(store)
        said: list[facts.AnyFact] = [
            actors.sends(),
            actors.resolves(),
            facts.Hold(change_id="h"),
            facts.Release(change_id="r"),
            actors.cancels(),
        ]
        for number, fact in enumerate(said, start=1):
            assert (await actors.tell(store, "a", fact)).inbox == number
        expected = actors.same_but(held, inbox=len(said), cancel_requested=True)
        assert await actors.look(store, "a") == expected

    async def test_settlement_02_a_step_needs_no_read_and_its_verdict_tells_of_a_cancel(self, store: Store):
        held = await actors.running(store)
        await actors.tell(store, "a", actors.cancels())
        verdict = await actors.commit_one(store, actors.decided(store, held, actors.steps(held)))
        assert (verdict.applied, verdict.inbox) == (True, 1)

    async def test_settlement_02_suspend_is_refused_if_something_came(self, store: Store):
        held = await actors.running(store)
        await actors.tell(store, "a", actors.sends())
        assert not (
            await actors.commit_one(store, actors.decided(store, held, actors.suspends(held, waits=("event:plan",))))
        ).applied

    async def test_settlement_02_a_completion_beats_a_cancel_not_yet_observed(self, store: Store):
        held = await actors.running(store)
        await actors.tell(store, "a", actors.cancels())
        assert (await actors.commit_one(store, actors.decided(store, held, actors.completes(held)))).applied
        assert (await actors.look(store, "a")).status is Status.SUCCEEDED

    async def test_settlement_02_at_any_wake_cancel_comes_first(self, world: World, store: Store):
        held = await actors.running(store)
        await actors.commit_one(store, actors.decided(store, held, actors.steps(held, unwinds=True)))
        wake_at = world.clock.now_ms() + 1_000
        await actors.tell(store, "a", actors.suspends(held, waits=("event:plan",), wake_at=wake_at))
        await actors.tell(store, "a", actors.cancels())
        world.clock.advance("1h")
        resumed = await actors.claim_one(store)
        assert resumed.cancel_requested

    # ---- 3 --------------------------------------------------------------------------------------------------------

    async def test_settlement_03_refusal_by_ones_own_record_is_success(self, world: World):
        store, points = await world.with_points()
        held = await actors.running(store)
        for fact in (actors.steps(held), actors.sends(), actors.completes(held)):
            changes = actors.decided(store, await actors.look(store, "a"), fact)
            points.lose_reply("commit")
            await refused(store.commit([changes]), ReplyLost)
            verdict = await actors.commit_one(store, changes)
            assert (verdict.applied, verdict.again) == (True, True)
        assert len(await actors.records(store, Completion)) == len(await actors.records(store, Event)) == 1

    async def test_settlement_03_a_claim_whose_reply_was_lost_is_found_by_its_id(self, world: World):
        store, points = await world.with_points()
        await actors.start(store)
        request = actors.claim_request()
        points.lose_reply("claim")
        await refused(store.claim(request), ReplyLost)
        [found] = (await store.claim(request)).executions
        assert found.execution.epoch == 1

    async def test_settlement_03_additions_to_an_inbox_stand_beside_a_record_that_must_not_exist(self, store: Store):
        held = await actors.running(store)
        said = [
            actors.sends(),
            actors.resolves(),
            actors.cancels(),
            facts.Hold(change_id="h"),
        ]
        for fact in said:
            writes = actors.decided(store, held, fact).writes
            assert any(isinstance(write, Add) for write in writes)
            assert any(isinstance(write, Insert) for write in writes)

    # ---- 4 --------------------------------------------------------------------------------------------------------

    async def test_settlement_04_leases_hang_on_a_session(self, world: World, store: Store):
        held = [await actors.running(store, name) for name in ("a", "b")]
        before = [await actors.look(store, name) for name in ("a", "b")]
        world.clock.advance("9s")
        renewed = await store.renew("w1", lease_ttl_ms=actors.TTL_MS)
        assert {lease.id for lease in renewed.held} == {"a", "b"}
        assert [await actors.look(store, name) for name in ("a", "b")] == before
        world.clock.advance("9s")
        assert not (await actors.tell(store, "a", actors.loses_lease(held[0]))).applied
        world.clock.advance("1s")
        assert (await actors.tell(store, "a", actors.loses_lease(held[0]))).applied
        assert [lease.id for lease in (await store.renew("w1", lease_ttl_ms=actors.TTL_MS)).held] == ["b"]
        assert not (await actors.tell(store, "b", actors.loses_lease(held[1]))).applied

    # ---- 5 --------------------------------------------------------------------------------------------------------

    async def test_settlement_05_time_is_the_stores_and_never_goes_back(self, world: World, store: Store):
        changes = actors.start_changes(store, actors.start_fact("a", delay_ms=1_000))
        world.clock.advance("1h")
        committed = await store.commit([changes])
        assert (await actors.look(store, "a")).wake_at == committed.now + 1_000
        world.clock.turn_back("1d")
        assert (await store.due(DueKind.TIMER, limit=1)).now >= committed.now
        assert (await store.commit([])).now >= committed.now

    # ---- 6 --------------------------------------------------------------------------------------------------------

    @pytest.mark.slow
    async def test_settlement_06_fan_in_of_ten_thousand_edges_is_drained_in_batches(self, world: World, store: Store):
        """Upstreams insert only; one guarded change at a time counts them, and a delivery repeated counts once."""
        edges, batch, repeated = 10_000, 500, 3
        await actors.start(store, "flow/member", flow="flow", after_dependencies=True)
        flow = Flow(namespace=actors.NAMESPACE, id="flow", state=FlowState.OPEN, created_at=0, change_id="f")
        await actors.put(store, actors.partition(store, "flow"), flow)

        def edge(number: int) -> Changes:
            record = EdgeAnswer(
                namespace=actors.NAMESPACE,
                execution="flow/member",
                upstream=f"flow/{number:05}",
                answer="satisfied",
                answered_at=Now(),
                change_id=f"edge-{number}",
            )
            return actors.changing(store, "flow/member", Insert(record), change_id=record.change_id)

        async def insert(writer: Store, numbers: range) -> None:
            for begin in range(numbers.start, numbers.stop, batch):
                changes = [edge(number) for number in range(begin, min(begin + batch, numbers.stop))]
                for _ in range(repeated if begin == numbers.start else 1):
                    assert all(v.applied for v in await actors.commit(writer, *changes))

        async def drain(drainer: Store) -> int:
            """Count what was not counted, from the place where the count stands; whoever was faster wins."""
            counted, after, lost = 0, None, 0
            while counted < edges:
                page = await drainer.scan(EdgeAnswer.KIND, (actors.NAMESPACE, "flow/member"), after=after, limit=batch)
                changes = actors.changing(
                    drainer,
                    "flow/member",
                    Patch(flow.key, {"revision": counted + len(page)}),
                    guards=[Matches(flow.key, {"revision": counted})],
                )
                if page and (await actors.commit_one(drainer, changes)).applied:
                    counted, after = counted + len(page), page[-1].key
                else:
                    lost += bool(page)
                    await asyncio.sleep(0.001)
                    stored = await actors.load_one(drainer, flow.key, Flow)
                    assert stored is not None
                    while counted < stored.revision:
                        missed = await drainer.scan(
                            EdgeAnswer.KIND,
                            (actors.NAMESPACE, "flow/member"),
                            after=after,
                            limit=stored.revision - counted,
                        )
                        counted, after = counted + len(missed), missed[-1].key
            return lost

        writers = await world.stores(2)
        half = edges // 2
        drainers = await world.stores(2)
        await asyncio.gather(
            insert(writers[0], range(half)), insert(writers[1], range(half, edges)), *[drain(d) for d in drainers]
        )
        stored = await actors.load_one(store, flow.key, Flow)
        assert stored is not None
        assert stored.revision == edges

    async def test_settlement_06_a_flow_in_staging_is_not_claimable(self, store: Store):
        await actors.start(store, "flow/member", flow="flow")
        flow = Flow(namespace=actors.NAMESPACE, id="flow", state=FlowState.STAGING, created_at=0, change_id="f")
        await actors.put(store, actors.partition(store, "flow"), flow)
        assert await actors.claimed_ids(store) == []

    # ---- 7 --------------------------------------------------------------------------------------------------------

    async def test_settlement_07_claim_has_its_gates(self, store: Store):
        stopped = Flow(namespace=actors.NAMESPACE, id="stopped", state=FlowState.STOPPED, created_at=0, change_id="f")
        await actors.put(store, actors.partition(store, "stopped"), stopped)
        await actors.pause(store, "paused")
        gated: list[dict[str, Any]] = [
            {"id": "lane", "lane": "paused"},
            {"id": "stopped/member", "flow": "stopped"},
            {"id": "version", "version": "0"},
            {"id": "capability", "requires": ("gpu",)},
        ]
        for options in gated:
            await actors.start(store, **options, priority=9)
        await actors.start(store, "free")
        assert await actors.claimed_ids(store, lanes=(actors.LANE, "paused"), limit=100) == ["free"]

    # ---- 8 --------------------------------------------------------------------------------------------------------

    # ---- 9 --------------------------------------------------------------------------------------------------------

    async def test_settlement_09_the_journal_is_insert_only_by_its_whole_key(self, store: Store):
        held = await actors.running(store)
        first = actors.steps(held, "charge", scope="", occurrence=1)
        others = [
            actors.steps(held, "charge", scope="", occurrence=2),
            actors.steps(held, "charge", scope="gather:1", occurrence=1),
            actors.steps(held, "refund", scope="", occurrence=1),
        ]
        for fact in (first, *others):
            assert (await actors.commit_one(store, actors.decided(store, held, fact))).applied
        again = actors.steps(held, "charge", scope="", occurrence=1, value=b"other")
        verdict = await actors.commit_one(store, actors.decided(store, held, again))
        assert isinstance(verdict.current, JournalEntry)
        assert (verdict.applied, verdict.current.value) == (False, first.value)
        assert len(await actors.records(store, JournalEntry)) == 4

    async def test_settlement_09_a_retry_supersedes_only_the_failure_that_escaped(self, store: Store):
        held = await actors.running(store, retry=RetryPolicy(max_attempts=2, initial_ms=0))
        for name in ("caught", "escaped"):
            await actors.commit_one(store, actors.decided(store, held, actors.steps(held, name, outcome="failed")))
        await actors.commit_one(
            store, actors.decided(store, held, actors.fails(held, supersedes=(("", "escaped", 1),)))
        )
        assert [(e.name, e.outcome) for e in await actors.records(store, JournalEntry)] == [("caught", "failed")]

    # ---- 10 -------------------------------------------------------------------------------------------------------

    async def test_settlement_10_a_feeds_cursor_skips_nothing(self, world: World, store: Store):
        cursor: str | None = None
        seen: list[str] = []
        for number in range(6):
            await actors.ended(store, f"x{number}", retention_ms=1_000)
            page = await store.completions(after=cursor, limit=1 + number % 2)
            seen += [completion.execution for completion in page.completions]
            cursor = page.cursor
            if number == 3:
                world.clock.advance("1s")
                await store.purge()
        assert seen == [f"x{number}" for number in range(6)]

    # ---- 12 -------------------------------------------------------------------------------------------------------

    async def test_settlement_12_a_step_rewrites_neither_the_execution_nor_its_payloads(self, store: Store):
        held = await actors.running(store)
        before = await actors.state(store, "a")
        changes = actors.decided(store, held, actors.steps(held))
        assert [type(write) for write in changes.writes] == [Insert]
        await actors.commit_one(store, changes)
        after = await actors.state(store, "a")
        assert after.pop("a journal") != before.pop("a journal")
        assert after == before


PLACED = [35, 7, 14, 40, 4, 44]


def test_settlement_08_a_family_lives_together_and_placement_is_fixed():
    assert partition_of("default", "order-42", 64) == partition_of("default", "order-42/ship/label", 64)
    # Written down: a placement that changed would orphan what is stored.
    placed = [partition_of("default", f"order-{n}", 64) for n in range(6)]
    assert placed == PLACED
    assert partition_of("a", "bc", 1 << 20) != partition_of("ab", "c", 1 << 20)
    counts = [0] * 16
    for number in range(16_000):
        counts[partition_of("default", f"x{number}", 16)] += 1
    assert min(counts) > 800
    assert max(counts) < 1_200


def test_settlement_12_nothing_wide_is_on_the_row_that_is_read_and_written_most():
    assert not any("bytes" in str(field.type) for field in msgspec.structs.fields(Execution))


# ---- 11 -----------------------------------------------------------------------------------------------------------


class TestProcesses(Conformance):
    """Real processes on one file."""

    pytestmark = pytest.mark.slow

    async def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "shared.db"
        store = SqliteStore(str(path))
        await store.migrate()
        return path

    def spawn(self, path: Path, name: str, seconds: float, *crash: str) -> subprocess.Popen[str]:
        script = Path(__file__).with_name("writer_process.py")
        command = [sys.executable, str(script), str(path), name, str(seconds), *crash]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, processes: list[subprocess.Popen[str]]) -> list[str]:
        """Let all begin at once; the last line of each."""
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        try:
            outputs = [process.communicate(timeout=60)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        return [output.strip().splitlines()[-1] if output.strip() else "" for output in outputs]

    async def test_settlement_11_four_processes_share_one_file_fairly(self, tmp_path: Path):
        path = await self.file(tmp_path)
        lines = self.run([self.spawn(path, f"p{n}", 3.0) for n in range(4)])
        reports = [json.loads(line) for line in lines]
        made = [report["made"] for report in reports]
        fair = sum(made) / 4
        assert min(made) > fair / 3, f"a process was starved: {made}"
        assert max(report["longest_s"] for report in reports) < 3.0
        store = SqliteStore(str(path))
        await store.open()
        for number, count in enumerate(made):
            assert await store.count(Query(namespace=actors.NAMESPACE, tags={"writer": f"p{number}"})) == count
        await store.close()

    @pytest.mark.parametrize("point", ["commit:begin", "commit:statement", "commit:commit", "commit:reply"])
    async def test_settlement_11_a_process_killed_while_it_writes_holds_up_nobody(self, tmp_path: Path, point: str):
        path = await self.file(tmp_path)
        dying, living = self.spawn(path, "dying", 20.0, point, "9"), self.spawn(path, "living", 1.0)
        last_answered, report = self.run([dying, living])
        assert dying.returncode == -signal.SIGKILL
        made = json.loads(report)["made"]
        assert made > 0
        store = SqliteStore(str(path))
        await store.open()
        assert await store.count(Query(namespace=actors.NAMESPACE, tags={"writer": "living"})) == made
        survived = await store.count(Query(namespace=actors.NAMESPACE, tags={"writer": "dying"}))
        answered = int(last_answered or 0)
        assert answered <= survived <= answered + 1
        for number in range(survived):
            assert len(await actors.records(store, Payload, f"dying-{number}")) == 1
        await store.close()
