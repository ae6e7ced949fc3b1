"""Cancelling flows: at once at the gate, in the background for the members, finished by a reconciler after a crash."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import outlast
from outlast import App, FlowCancelled, FlowHandle, FlowNotFound, FlowRefused, InvalidInput, Status
from outlast.errors import InvalidName, StoreUnavailable
from outlast.machine.changes import Changes, Delete, Insert, Patch
from outlast.model.execution import execution_key
from outlast.model.flow import Edge, Flow, Member, flow_key, member_key, whole_of
from outlast.model.record import settled
from outlast.observe.metrics import RECONCILER_DEPTH, RECONCILER_DUE, ReconcilerMetrics
from outlast.reconcilers.driver import Report
from outlast.runtime.engine import Engine
from outlast.runtime.flows import stopping
from outlast.store.port import DueKind, Filter
from tests.acceptance.conftest import Place, claims_no_more
from tests.acceptance.flow_workflows import UNDONE, member_is, statuses, workflows
from tests.waiting import until


def engine_of(app: App) -> Engine:
    assert app._opened is not None
    return app._opened._engine


async def cycle(app: App, name: str) -> Report:
    assert app._opened is not None
    assert app._opened.reconcilers is not None
    return await app._opened.reconcilers.cycle(name)


async def backlog(app: App) -> list[str]:
    due = await engine_of(app).store.due(DueKind.CANCEL, limit=10)
    return [item.record.id for item in due.items if isinstance(item.record, Flow)]


def canceller_dies(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> asyncio.Event:
    """Whoever cancels a flow is gone after so many members; the reconcilers are not."""
    whole, gone = stopping.cancel_members, asyncio.Event()

    async def cut_off(engine: Engine, namespace: str, flow_id: str, **options: Any) -> Any:
        if after:
            await whole(engine, namespace, flow_id, most=after)
        gone.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("outlast.client.flows.cancel_members", cut_off)
    return gone


async def test_all_members_are_cancelled_whatever_they_are_doing(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        done, waits = flow.add("done", kit.number, 1), flow.add("waits", kit.waits)
        flow.add("blocked", kit.number, waits.output)
        flow.add("delayed", kit.number.options(delay="1h"), 2)
        undoes = flow.add("undoes", kit.undoes, "cancelled flow")
        fh = await flow.start()
        await member_is(fh, "waits", Status.SUSPENDED)
        await member_is(fh, "undoes", Status.SUSPENDED)
        answer = await fh.cancel(reason="not today")
        assert not answer.already
        with pytest.raises(FlowCancelled, match="not today"):
            await fh.result("20s")
        ends = await statuses(fh)
        assert ends.pop("done") == "succeeded"
        assert set(ends.values()) == {"cancelled"}
        assert "cancelled flow" in UNDONE, "its undos have run"
        again = await fh.cancel(reason="other")
        assert again.already
        assert (await fh.status()).reason == "not today"
        assert not await backlog(app)
        assert done.name == "done"
        assert undoes.name == "undoes"


async def test_a_cancel_that_waits_returns_when_all_have_ended(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        for n in range(40):
            flow.add(f"m{n}", kit.waits)
        fh = await flow.start()
        answer = await fh.cancel(wait=True)
        assert (answer.cancelled, answer.scheduled) == (40, 0)


async def test_from_the_acceptance_on_nothing_is_claimed(place: Place, monkeypatch: pytest.MonkeyPatch):
    """Also if nobody is there to cancel the members."""
    canceller_dies(monkeypatch)
    app = place.app()
    kit = workflows(app)
    async with app.client():
        flow = app.flow("f", id="f")
        for n in range(20):
            flow.add(f"m{n}", kit.number, n)
        fh = await flow.start()
        answer = await fh.cancel()
        assert (answer.cancelled, answer.scheduled) == (0, 20)
    async with app.worker(reconcilers=False):
        await asyncio.sleep(0.3)
        assert set((await statuses(fh)).values()) == {"ready"}


async def test_what_runs_may_go_on_if_only_the_pending_are_cancelled(app: App):
    kit = workflows(app)
    gate = asyncio.Event()

    @app.step
    async def at_the_gate() -> None:
        await gate.wait()

    @app.workflow
    async def gated() -> int:
        await at_the_gate()
        return 1

    async with app:
        flow = app.flow("f", id="f")
        runs, waits = flow.add("runs", gated), flow.add("waits", kit.waits)
        flow.add("below", kit.number, runs.output)
        fh = await flow.start()
        await member_is(fh, "runs", Status.ACTIVE)
        await member_is(fh, "waits", Status.SUSPENDED)
        await fh.cancel("cancel_pending")
        await member_is(fh, waits.name, Status.CANCELLED)
        await member_is(fh, "below", Status.CANCELLED)
        assert (await statuses(fh))["runs"] == "active"
        with pytest.raises(FlowRefused, match="with policy cancel_pending, and not with cancel_all"):
            await fh.cancel()
        gate.set()
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        assert (await statuses(fh))["runs"] == "succeeded"


async def test_flow_only_shuts_the_gate_and_a_retry_opens_it(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        waits = flow.add("waits", kit.waits)
        flow.add("below", kit.number, waits.output)
        fh = await flow.start()
        await member_is(fh, "waits", Status.SUSPENDED)
        assert (await fh.cancel("flow_only")).scheduled == 0
        assert (await fh.cancel("flow_only")).already
        with pytest.raises(FlowRefused, match="with policy flow_only, and not with cancel_all"):
            await fh.cancel()
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        await app.execution("f/waits").send("go", 3)
        await asyncio.sleep(0.1)
        assert await statuses(fh) == {"waits": "ready", "below": "blocked"}
        await fh.retry()
        assert await fh.result("20s") == {"waits": 3, "below": 3}


async def test_what_was_cancelled_is_retried(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        one, waits = flow.add("one", kit.number, 1), flow.add("waits", kit.waits)
        flow.add("sum", kit.add, one.output, waits.output)
        fh = await flow.start()
        await member_is(fh, "waits", Status.SUSPENDED)
        await member_is(fh, "one", Status.SUCCEEDED)
        await fh.cancel(wait=True)
        await fh.retry()
        await member_is(fh, "waits", Status.SUSPENDED)
        await app.execution("f/waits").send("go", 3)
        assert await fh.result("20s") == {"one": 1, "waits": 3, "sum": 4}


async def test_what_cannot_be_cancelled_says_so(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        flow.add("a", kit.number, 1)
        fh = await flow.start()
        await fh.result("20s")
        with pytest.raises(FlowRefused, match="succeeded"):
            await fh.cancel()
        with pytest.raises(FlowNotFound):
            await app.flow_handle("nowhere").cancel()
        with pytest.raises(FlowNotFound):
            await app.flow_handle("nowhere").retry()
        with pytest.raises(InvalidInput, match="policy"):
            await fh.cancel("everything")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="cancel reason"):
            await fh.cancel(reason="x" * 3_000)
        for reason in (None, 5):
            with pytest.raises(InvalidInput, match="cancel reason must be a text"):
                await fh.cancel(reason=reason)  # type: ignore[arg-type]
        with pytest.raises(InvalidName):
            app.flow_handle("f/a")


# ---- the backlog --------------------------------------------------------------------------------------------------


async def cancelled_by_who_died(
    clocked: Place, app: App, monkeypatch: pytest.MonkeyPatch, members: int = 12, after: int = 0, **options: Any
) -> Any:
    kit = workflows(app)
    gone = canceller_dies(monkeypatch, after)
    claims_no_more(app)
    flow = app.flow("f", id="f")
    for n in range(members):
        flow.add(f"m{n}", kit.waits.options(tags={"n": str(n % 2)}), **options)
    fh = await flow.start()
    await fh.cancel(reason="why not")
    await gone.wait()
    return fh


async def test_the_backlog_is_finished_after_the_grace_and_not_before(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    app = clocked.app()
    async with app:
        fh = await cancelled_by_who_died(clocked, app, monkeypatch, after=5)
        assert (await cycle(app, "cancel_backlog")).processed == 0
        assert list((await statuses(fh)).values()).count("cancelled") == 5
        await clocked.pass_time(app, "5s")
        assert await backlog(app) == ["f"]
        report = await cycle(app, "cancel_backlog")
        assert (report.processed, report.errors) == (1, 0)
        assert set((await statuses(fh)).values()) == {"cancelled"}
        assert await backlog(app) == []
        with pytest.raises(FlowCancelled, match="why not"):
            await fh.result("20s")
        journal = await engine_of(app).store.scan("event", ("default", "f/m7", "outlast:cancel"))
        assert [msgspec.structs.asdict(event)["value"] for event in journal] == [b"why not"]


async def test_a_cycle_takes_a_bounded_part_of_a_flow(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    app = clocked.app()
    monkeypatch.setattr("outlast.reconcilers.flows.CYCLE_MAX", 5)
    async with app:
        fh = await cancelled_by_who_died(clocked, app, monkeypatch)
        await clocked.pass_time(app, "5s")
        left: list[int] = []
        for _ in range(3):
            report = await cycle(app, "cancel_backlog")
            assert report.full, "there may be more: it does not wait for its next turn"
            assert report.processed == 1
            left.append(list((await statuses(fh)).values()).count("ready"))
        assert left == [7, 2, 0]
        assert await backlog(app) == []
        assert (await cycle(app, "cancel_backlog")).processed == 0


async def test_a_reason_that_cannot_be_read_is_waited_for_and_never_invented(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app()
    async with app:
        fh = await cancelled_by_who_died(clocked, app, monkeypatch)
        await clocked.pass_time(app, "5s")
        engine = engine_of(app)
        key = flow_key("default", "f")

        async def set_reason(reason: str | None) -> None:
            partition = engine.view("default", "f", None).partition
            write = Patch(key, {"reason": reason})
            await engine.commit(Changes(id=reason or "none", partition=partition, anchors=(key,), writes=(write,)))

        await set_reason(None)
        assert (await cycle(app, "cancel_backlog")).errors == 1
        assert set((await statuses(fh)).values()) == {"ready"}
        assert await backlog(app) == ["f"], "it is still owed"
        await set_reason("why not")
        for _ in range(4):
            await cycle(app, "cancel_backlog")
        assert set((await statuses(fh)).values()) == {"cancelled"}


async def test_what_fails_for_now_stays_owed_and_what_fails_for_good_does_not_poison_the_rest(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app()
    async with app:
        fh = await cancelled_by_who_died(clocked, app, monkeypatch)
        await clocked.pass_time(app, "5s")
        whole = stopping._reached
        trouble: dict[str, Exception] = {
            "f/m3": StoreUnavailable("later"),
            "f/m4": InvalidInput("never"),
            "f/m5": RuntimeError("nobody expects it"),
        }

        async def troubled(engine: Engine, flow: Flow, view: Any, **options: Any) -> bool:
            if view.execution.id in trouble:
                raise trouble[view.execution.id]
            return await whole(engine, flow, view, **options)

        monkeypatch.setattr(stopping, "_reached", troubled)
        await cycle(app, "cancel_backlog")
        ends = await statuses(fh)
        assert [name for name, status in ends.items() if status == "ready"] == ["m3", "m4", "m5"]
        assert await backlog(app) == ["f"]
        del trouble["f/m3"], trouble["f/m5"]
        await cycle(app, "cancel_backlog")
        assert (await statuses(fh))["m3"] == (await statuses(fh))["m5"] == "cancelled"
        assert (await statuses(fh))["m4"] == "ready", "it was acknowledged, and not tried again"
        assert await backlog(app) == []


async def test_an_entry_that_names_nothing_is_dropped(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stopping, "DROPPED_MAX", 1)
    app = clocked.app()
    async with app:
        fh = await cancelled_by_who_died(clocked, app, monkeypatch)
        await clocked.pass_time(app, "5s")
        engine = engine_of(app)
        partition = engine.view("default", "f", None).partition
        ghost = Edge(namespace="default", execution=whole_of("f"), downstream="f/ghost", change_id="g")
        gone = (execution_key("default", "f/m2"), member_key("default", "f/m2"))
        writes = (Insert(ghost), *(Delete(key) for key in gone))
        await engine.commit(Changes(id="by hand", partition=partition, anchors=gone, writes=writes))
        assert (await cycle(app, "cancel_backlog")).processed == 1
        assert set((await statuses(fh)).values()) == {"cancelled"}
        assert await backlog(app) == ["f"], "one at a time"
        assert (await cycle(app, "cancel_backlog")).processed == 1
        assert await backlog(app) == []
        with pytest.raises(FlowCancelled, match="why not"):
            await fh.result("20s")
        assert (await fh.status()).members == 11, "it does not wait for what is not there"


async def test_a_flow_does_not_wait_for_a_member_that_is_gone(app: App):
    """Nor does it take the end of one that is gone for the end of another."""
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        for name in ("one", "two", "gone"):
            flow.add(name, kit.waits)
        flow.add("gone too", kit.number, 1)
        fh = await flow.start()
        await member_is(fh, "gone too", Status.SUCCEEDED)
        engine = engine_of(app)
        gone = [key("default", f"f/{name}") for name in ("gone", "gone too") for key in (execution_key, member_key)]
        partition = engine.view("default", "f", None).partition
        writes = tuple(Delete(key) for key in gone)
        await engine.commit(Changes(id="by hand", partition=partition, anchors=tuple(gone), writes=writes))
        answer = await asyncio.wait_for(fh.cancel(wait=True), 20)
        assert (answer.cancelled, answer.scheduled) == (2, 0)
        assert (await fh.status()).members == 2
        assert await backlog(app) == []


async def test_members_outside_of_the_filter_stay_owed(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    app = clocked.app()
    async with app:
        fh = await cancelled_by_who_died(clocked, app, monkeypatch)
        await clocked.pass_time(app, "5s")
        engine = engine_of(app)
        done = await stopping.cancel_members(engine, "default", "f", most=500, filter=Filter(tag=("n", "1")))
        assert (done.acknowledged, done.owed) == (6, 6)
        assert await backlog(app) == ["f"]
        assert sorted((await statuses(fh)).values()).count("ready") == 6
        await cycle(app, "cancel_backlog")
        assert await backlog(app) == []


async def running_flows(app: App, gate: asyncio.Event, count: int) -> list[FlowHandle]:
    """Each has a member that runs until the gate opens, and then waits."""

    @app.step
    async def at_the_gate() -> None:
        await gate.wait()

    @app.workflow
    async def gated() -> int:
        await at_the_gate()
        return await outlast.receive("go", int)

    handles: list[FlowHandle] = []
    for n in range(count):
        flow = app.flow("r", id=f"r{n}")
        flow.add("runs", gated)
        handles.append(await flow.start())
    for fh in handles:
        await member_is(fh, "runs", Status.ACTIVE)
    return handles


async def test_flows_that_let_go_on_what_runs_do_not_keep_others_waiting(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    """More of them than a cycle takes."""
    monkeypatch.setenv("OUTLAST_RECONCILER_CANCEL_BACKLOG_BATCH", "2")
    monkeypatch.setenv("OUTLAST_RECONCILER_CANCEL_BACKLOG_INTERVAL", "1h")
    app, gate = clocked.app(), asyncio.Event()
    async with app:
        assert app._opened is not None
        assert app._opened.reconcilers is not None
        metrics = app._opened.reconcilers.metrics["cancel_backlog"]
        handles = await running_flows(app, gate, 5)
        for fh in handles:
            await fh.cancel("cancel_pending")
        await until_put_off(app, handles)
        await clocked.pass_time(app, "5s")
        victim = await cancelled_by_who_died(clocked, app, monkeypatch)
        await clocked.pass_time(app, "5s")
        for _ in range(4):
            assert (await cycle(app, "cancel_backlog")).errors == 0
            assert metrics.depth >= 5, "what is put off is owed still"
        assert set((await statuses(victim)).values()) == {"cancelled"}
        await cycle(app, "cancel_backlog")
        assert (metrics.depth, metrics.due) == (5, 0)
        for fh in handles:
            assert await statuses(fh) == {"runs": "active"}
        gate.set()


async def until_put_off(app: App, handles: list[FlowHandle]) -> None:
    keys, now = [flow_key("default", fh.id) for fh in handles], await engine_of(app).store.now()

    async def all_are() -> bool:
        flows = [flow for flow in await engine_of(app).store.load(keys) if isinstance(flow, Flow)]
        return all(now < (settled(flow.cancel_at) or 0) < now + stopping.GRACE_MS for flow in flows)

    await until(all_are, "a flow is not put off")


async def test_what_ran_and_waits_now_is_cancelled_soon_however_long_it_ran(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OUTLAST_RECONCILER_CANCEL_BACKLOG_INTERVAL", "1h")
    app, gate = clocked.app(), asyncio.Event()
    async with app:
        [fh] = await running_flows(app, gate, 1)
        await fh.cancel("cancel_pending")
        await until_put_off(app, [fh])
        for passes, is_due in (("1s", True), ("1s", True), ("2h", True), ("29s", False)):
            await clocked.pass_time(app, passes)
            assert await backlog(app) == (["r0"] if is_due else []), passes
            await cycle(app, "cancel_backlog")
        gate.set()
        await member_is(fh, "runs", Status.SUSPENDED)
        await clocked.pass_time(app, "1s")
        await cycle(app, "cancel_backlog")
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        assert await statuses(fh) == {"runs": "cancelled"}
        assert await backlog(app) == []


async def test_the_last_acknowledgement_takes_the_flow_off_the_backlog_in_one_commit(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app()
    async with app:
        await cancelled_by_who_died(clocked, app, monkeypatch, members=3)
        await clocked.pass_time(app, "5s")
        engine = engine_of(app)
        commit, seen = engine.commit_timed, list[tuple[int, bool]]()

        async def watched(changes: Changes) -> Any:
            acks = sum(type(w) is Patch and w.fields.get("acknowledged") is True for w in changes.writes)
            cleared = any(type(w) is Patch and w.key.kind == "flow" and "cancel_at" in w.fields for w in changes.writes)
            if acks or cleared:
                seen.append((acks, cleared))
            return await commit(changes)

        monkeypatch.setattr(engine, "commit_timed", watched)
        await cycle(app, "cancel_backlog")
        assert seen[:3] == [(1, False), (1, False), (1, True)]


async def test_one_that_has_ended_counts_as_done(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    app = clocked.app()
    async with app:
        fh = await cancelled_by_who_died(clocked, app, monkeypatch, members=3)
        for n in range(3):
            await app.execution(f"f/m{n}").cancel("by hand")
        await clocked.pass_time(app, "5s")
        await cycle(app, "cancel_backlog")
        assert await backlog(app) == []
        members = await engine_of(app).store.load([member_key("default", f"f/m{n}") for n in range(3)])
        ended_first = (await fh.status()).status is Status.CANCELLED
        assert ended_first or all(isinstance(member, Member) and member.acknowledged for member in members)


async def test_the_gauge_counts_what_is_owed_also_within_the_grace(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    app = clocked.app()
    async with app:
        await cancelled_by_who_died(clocked, app, monkeypatch)
        assert app._opened is not None
        assert app._opened.reconcilers is not None
        metrics = app._opened.reconcilers.metrics["cancel_backlog"]
        await cycle(app, "cancel_backlog")
        assert (metrics.depth, metrics.due) == (1, 0)
        assert exported(metrics) == {RECONCILER_DEPTH: 1, RECONCILER_DUE: 0}
        await clocked.pass_time(app, "5s")
        monkeypatch.setattr(stopping, "_reached", _fails)
        await cycle(app, "cancel_backlog")
        assert (metrics.depth, metrics.due) == (1, 1)
        monkeypatch.undo()
        await cycle(app, "cancel_backlog")
        await cycle(app, "cancel_backlog")
        assert exported(metrics) == {RECONCILER_DEPTH: 0, RECONCILER_DUE: 0}


def exported(metrics: ReconcilerMetrics) -> dict[str, float]:
    wanted = (RECONCILER_DEPTH, RECONCILER_DUE)
    return {name: value for name, _, value in metrics.samples("cancel_backlog") if name in wanted}


async def test_a_failed_look_leaves_the_gauge_as_it_was(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    app = clocked.app()
    async with app:
        await cancelled_by_who_died(clocked, app, monkeypatch)
        await clocked.pass_time(app, "5s")
        assert app._opened is not None
        assert app._opened.reconcilers is not None
        metrics = app._opened.reconcilers.metrics["cancel_backlog"]
        monkeypatch.setattr(stopping, "_reached", _fails)
        await cycle(app, "cancel_backlog")
        assert metrics.depth == 1
        store = engine_of(app).store

        async def away(*args: Any, **options: Any) -> Any:
            raise StoreUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(store, "due", away)
            await cycle(app, "cancel_backlog")
        assert metrics.depth == 1


async def _fails(*args: Any, **options: Any) -> bool:
    raise StoreUnavailable("later")


async def test_who_carries_a_cancel_late_does_not_cancel_what_is_retried(app: App, monkeypatch: pytest.MonkeyPatch):
    """Two processes cancel the members; one of them is slow, and meanwhile the flow has ended, and is tried again."""
    owed, slow, go_on, late = stopping._owed, asyncio.Event(), asyncio.Event(), list[asyncio.Task[Any] | None]()

    async def slowly(*args: Any) -> Any:
        found = await owed(*args)
        if not late:
            late.append(asyncio.current_task())
            slow.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(stopping, "_owed", slowly)
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        flow.add("one", kit.waits)
        flow.add("two", kit.waits)
        fh = await flow.start()
        for name in ("one", "two"):
            await member_is(fh, name, Status.SUSPENDED)
        await fh.cancel()
        await asyncio.wait_for(slow.wait(), 20)
        done = await stopping.cancel_members(engine_of(app), "default", "f")
        assert done.acknowledged == 2
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        await fh.retry()
        for name in ("one", "two"):
            await member_is(fh, name, Status.SUSPENDED)
        go_on.set()
        [carries] = late
        assert carries is not None
        await asyncio.wait([carries])
        assert await statuses(fh) == {"one": "suspended", "two": "suspended"}
        assert not (await app.execution("f/one").info()).cancel_requested
        await fh.cancel(wait=True)
        assert await statuses(fh) == {"one": "cancelled", "two": "cancelled"}
