"""The reconcilers of flows: with the primary path broken on purpose, each of them finishes the work alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from outlast import App, ExecutionNotFound, FlowFailed, FlowNotFound, Status, any_of
from outlast.errors import StoreUnavailable
from outlast.machine.changes import Changes, Delete, Patch
from outlast.machine.decide_flow import chunks, staged, staged_members
from outlast.model.flow import Summary, summary_key
from outlast.model.outbox import Delivery
from outlast.runtime.engine import Engine
from outlast.runtime.flows.carrying import Flows
from outlast.store.port import DueKind, Query
from tests.acceptance.conftest import Place, until
from tests.acceptance.flow_workflows import FAILS, member_is, statuses, workflows
from tests.acceptance.test_flow_cancels import cycle, engine_of


@pytest.fixture
def dead_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an end owes is lost, as if nobody carried it and somebody had struck it off."""

    async def lost(self: Flows, delivery: Delivery, fact: Any) -> bool:
        return False

    monkeypatch.setattr(Flows, "member_ended", lost)


async def turn(place: Place, app: App, *rows: str) -> None:
    """An hour later, one cycle of each."""
    await place.pass_time(app, "1h")
    for row in rows:
        await cycle(app, row)


@pytest.mark.usefixtures("dead_outbox")
async def test_the_dependency_reconciler_alone_resolves_edges_whose_upstream_has_ended(clocked: Place):
    app = clocked.app()
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        a, bad = flow.add("a", kit.number, 1), flow.add("bad", kit.fails)
        b = flow.add("b", kit.number, a.output)
        flow.add("sum", kit.add, a.output, b.output)
        below = flow.add("below", kit.number, bad.output)
        flow.add("deeper", kit.number, below.output)
        fh = await flow.start()
        await member_is(fh, "a", Status.SUCCEEDED)
        await member_is(fh, "bad", Status.FAILED)
        assert (await statuses(fh))["b"] == "blocked"
        await turn(clocked, app, "dependency")
        await member_is(fh, "b", Status.SUCCEEDED)
        assert (await statuses(fh))["below"] == "skipped"
        await turn(clocked, app, "dependency")
        await member_is(fh, "sum", Status.SUCCEEDED)
        assert (await statuses(fh))["deeper"] == "skipped"
        assert (await fh.status()).status is None, "nobody has counted"
        await turn(clocked, app, "flow_summary")
        with pytest.raises(FlowFailed):
            await fh.result("20s")
        assert await app.execution("f/sum").result() == 2


@pytest.mark.usefixtures("dead_outbox")
async def test_the_summary_reconciler_alone_ends_a_flow(clocked: Place):
    app = clocked.app()
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        for n in range(5):
            flow.add(f"m{n}", kit.number, n)
        fh = await flow.start()
        for n in range(5):
            await member_is(fh, f"m{n}", Status.SUCCEEDED)
        await turn(clocked, app, "flow_summary")
        assert await fh.result("20s") == {f"m{n}": n for n in range(5)}
        due = await engine_of(app).store.due(DueKind.SUMMARY, limit=10)
        assert due.depth == 0, "what has ended is looked at no more"


async def test_an_end_that_was_seen_too_late_to_be_counted_keeps_nobody_waiting_for_long(clocked: Place):
    app = clocked.app()
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        flow.add("early", kit.number, 1)
        waits = flow.add("waits", kit.waits)
        fh = await flow.start()
        engine, key = engine_of(app), summary_key("default", "f")

        async def counted() -> bool:
            [summary] = await engine.store.load([key])
            return isinstance(summary, Summary) and summary.succeeded == 1

        await until(counted, "the end of early is not counted")
        # As if it had been counted without early, whose record came to be seen only afterwards.
        await _write(engine, Patch(key, {"succeeded": 0}))
        await member_is(fh, waits.name, Status.SUSPENDED)
        await app.execution("f/waits").send("go", 2)
        await member_is(fh, waits.name, Status.SUCCEEDED)
        await until(counted, "the end of waits is not counted")
        assert (await fh.status()).status is None
        await clocked.pass_time(app, "6s")
        await cycle(app, "flow_summary")
        assert await fh.result("20s") == {"early": 1, "waits": 2}


async def test_a_summary_that_was_edited_by_hand_is_counted_anew(clocked: Place):
    app = clocked.app()
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        a, waits = flow.add("a", kit.number, 1), flow.add("waits", kit.waits)
        flow.add("b", kit.add, a.output, waits.output)
        fh = await flow.start()
        await member_is(fh, "a", Status.SUCCEEDED)
        engine, key = engine_of(app), summary_key("default", "f")

        async def counted() -> bool:
            await engine.flows.tally("default", "f")
            [summary] = await engine.store.load([key])
            return isinstance(summary, Summary) and summary.succeeded == 1

        await until(counted, "the end of a is not counted")
        await _write(engine, Patch(key, {"succeeded": 0, "failed": 2, "members": 5}))
        await turn(clocked, app, "flow_summary")
        [summary] = await engine.store.load([key])
        assert isinstance(summary, Summary)
        assert (summary.succeeded, summary.failed, summary.members) == (1, 0, 3)
        await app.execution("f/waits").send("go", 1)
        assert (await fh.result("20s"))["b"] == 2


async def test_the_sibling_reconciler_alone_cancels_what_is_no_longer_needed(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app()
    kit = workflows(app)
    whole = Flows.spare_siblings

    async def gone(self: Flows, namespace: str, execution_id: str) -> bool:
        return False

    async with app:
        monkeypatch.setattr(Flows, "spare_siblings", gone)
        flow = app.flow("f", id="f")
        fast, slow = flow.add("fast", kit.number, 1), flow.add("slow", kit.waits)
        flow.add("first", kit.number, 5).after(fast, slow, join=any_of(), on_satisfied="cancel_remaining")
        fh = await flow.start()
        await member_is(fh, "first", Status.SUCCEEDED)
        await member_is(fh, "slow", Status.SUSPENDED)
        monkeypatch.setattr(Flows, "spare_siblings", whole)
        assert (await cycle(app, "sibling_cancel")).processed == 0, "its grace is not over"
        await turn(clocked, app, "sibling_cancel")
        await member_is(fh, "slow", Status.CANCELLED)
        assert await fh.result("20s") == {"fast": 1, "first": 5}
        assert (await engine_of(app).store.due(DueKind.SIBLING, limit=10)).depth == 0


async def test_an_abandoned_stage_is_invisible_and_purged_and_can_be_finished_before(clocked: Place):
    app = clocked.app()
    kit = workflows(app)

    def large() -> Any:
        flow = app.flow("large", id="large")
        members = [flow.add(f"m{n}", kit.number.options(tags={"a": "b"}), n) for n in range(300)]
        flow.add("sum", kit.total, [member.output for member in members])
        return flow

    async def abandoned(engine: Engine) -> None:
        """A client that died in the middle of it."""
        new, members = large().built()
        partition, parts = engine.view("default", "large", None).partition, chunks(members)
        assert (await engine.commit(staged(partition, new))).applied
        for number in (0, 1):
            part = staged_members(partition, new, new.change_id, number, parts[number])
            assert (await engine.commit(part)).applied

    async with app:
        await abandoned(engine_of(app))
        assert await app.count() == 0
        with pytest.raises(FlowNotFound):
            await app.flow_handle("large").status()
        m0 = app.execution("large/m0")
        for say in (m0.info, m0.cancel, m0.hold, m0.interrupt, partial(m0.send, "go", 1), partial(m0.resolve, "a", 1)):
            with pytest.raises(ExecutionNotFound):
                await say()
        await clocked.pass_time(app, "59m")
        assert (await cycle(app, "flow_retention")).processed == 0
        await clocked.pass_time(app, "1m")
        assert (await cycle(app, "flow_retention")).processed == 1
        store = engine_of(app).store
        assert await store.count(Query(namespace="default")) == 0
        for kind in ("execution", "flow", "summary", "member", "dependency", "edge", "payload", "tag"):
            assert await store.scan(kind, ("default",)) == [], kind
        await abandoned(engine_of(app))
        fh = await large().start()
        assert (await fh.result("60s"))["sum"] == sum(range(300))


async def test_a_flow_past_its_retention_goes_with_all_its_members(clocked: Place):
    app = clocked.app()
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f", retention="1d")
        a = flow.add("a", kit.number, 1)
        flow.add("b", kit.number, a.output)
        fh = await flow.start()
        await fh.result("20s")
        await clocked.pass_time(app, "23h")
        await cycle(app, "flow_retention")
        assert (await fh.status()).status is Status.SUCCEEDED
        await clocked.pass_time(app, "1h")
        await cycle(app, "flow_retention")
        await cycle(app, "retention")
        with pytest.raises(FlowNotFound):
            await fh.status()
        store = engine_of(app).store
        for kind in ("execution", "flow", "summary", "member", "dependency", "edge", "payload", "completion"):
            assert await store.scan(kind, ("default",)) == [], kind


async def test_a_purge_takes_a_flow_as_a_whole_and_nothing_of_an_open_one(clocked: Place):
    app = clocked.app()
    kit = workflows(app)
    async with app:
        for name in ("open", "failed", "ended"):
            flow = app.flow("f", id=name)
            early = flow.add("early", kit.number, 1)
            late = flow.add("late", kit.fails if name == "failed" else kit.waits)
            flow.add("sum", kit.add, early.output, late.output)
            await flow.start()
            await member_is(app.flow_handle(name), "early", Status.SUCCEEDED)
        await app.execution("ended/late").send("go", 2)
        assert (await app.flow_handle("ended").result("20s"))["sum"] == 3
        with pytest.raises(FlowFailed):
            await app.flow_handle("failed").result("20s")
        await clocked.pass_time(app, "31d")
        await cycle(app, "retention")
        assert await app.purge("32d") == 0
        await app.flow_handle("failed").retry()
        assert await app.purge("30d") == 3
        with pytest.raises(FlowNotFound):
            await app.flow_handle("ended").status()
        await app.execution("open/late").send("go", 2)
        assert await app.flow_handle("open").result("20s") == {"early": 1, "late": 2, "sum": 3}
        assert (await statuses(app.flow_handle("failed")))["early"] == "succeeded"
        store = engine_of(app).store
        for kind in ("execution", "flow", "summary", "member", "dependency", "edge", "payload", "completion"):
            assert not [one for one in await store.scan(kind, ("default",)) if "ended" in str(one.key)], kind


async def test_a_flow_that_is_being_purged_is_not_retried(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    """Whoever purges it dies before it let go of the first member; another finishes that."""
    app = clocked.app()
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f", retention="1d")
        flow.add("a", kit.number, 1)
        flow.add("bad", kit.fails)
        fh = await flow.start()
        with pytest.raises(FlowFailed):
            await fh.result("20s")

        async def killed(*given: Any) -> bool:
            raise StoreUnavailable("killed")

        await clocked.pass_time(app, "1d")
        with monkeypatch.context() as patch:
            patch.setattr("outlast.runtime.flows.purging._let_go", killed)
            assert (await cycle(app, "flow_retention")).errors == 1
        with pytest.raises(FlowNotFound):
            await fh.retry()
        await clocked.pass_time(app, "1d")
        for _ in range(3):  # what failed backs off for a while
            await cycle(app, "flow_retention")
        await cycle(app, "retention")
        assert await app.count() == 0


async def test_a_retry_whose_process_died_is_finished_by_the_outbox(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    app = clocked.app()
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        bad = flow.add("bad", kit.fails, "once")
        flow.add("below", kit.number, bad.output)
        FAILS.add("once")
        fh = await flow.start()
        with pytest.raises(FlowFailed):
            await fh.result("20s")
        FAILS.discard("once")
        engine = engine_of(app)
        with monkeypatch.context() as patch:
            patch.setattr(engine.outbox, "post", lambda changes: None)
            await fh.retry()
        assert await statuses(fh) == {"bad": "failed", "below": "skipped"}
        await turn(clocked, app, "outbox")
        assert await fh.result("20s") == {"bad": 1, "below": 1}


async def _write(engine: Engine, *writes: Patch | Delete) -> None:
    partition = engine.view("default", "f", None).partition
    change = Changes(id="by hand", partition=partition, anchors=(writes[0].key,), writes=writes)
    assert (await engine.commit(change)).applied
