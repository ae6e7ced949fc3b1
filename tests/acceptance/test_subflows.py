"""Flows that workflow code starts: durable, owned by the execution that started them, and waited for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import outlast
from outlast import App, CodecError, FlowCancelled, FlowConflict, FlowFailed, FlowRefused, InvalidInput, Status
from outlast.app import store_for
from outlast.errors import LimitExceeded
from outlast.machine import facts
from outlast.model.event import Event, ended_name
from outlast.model.flow import whole_of
from outlast.model.outbox import Delivery
from outlast.store.port import DueKind
from outlast.testing import Crash, CrashPoints, ManualClock
from tests.acceptance.conftest import Place, status_is, until
from tests.acceptance.flow_workflows import member_is, workflows
from tests.acceptance.test_flow_cancels import cycle, engine_of
from tests.acceptance.test_flow_maps import Page

pytestmark = pytest.mark.on_carried


def hosts(app: App) -> Any:
    kit = workflows(app)

    @app.workflow
    async def page(number: int) -> Page:
        return Page(number, ["word"])

    @app.workflow
    async def sums(count: int, fails: bool = False) -> int:
        flow = app.flow("sub", id="sub")
        parts = [flow.add(f"n{n}", kit.number, n) for n in range(count)]
        flow.add("sum", kit.total, [part.output for part in parts])
        if fails:
            flow.add("bad", kit.fails)
        fh = await flow.start()
        return (await fh.result())["sum"]

    @app.workflow
    async def typed() -> list[Page]:
        flow = app.flow("typed")
        flow.add("one", page, 1)
        flow.map(page, [2, 3])
        outputs = await (await flow.start()).result()
        return [outputs["one"], outputs["page"][1]]

    @app.workflow
    async def keeps(policy: Literal["cancel", "abandon", "wait"]) -> str:
        flow = app.flow("kept", id=f"kept-{policy}", parent_close=policy)
        flow.add("waits", kit.waits)
        await flow.start()
        return await outlast.receive("stop", str)

    @app.step
    async def mark() -> None: ...

    @app.workflow
    async def keeps_and_waits() -> int:
        flow = app.flow("kept", id="kept")
        flow.add("waits", kit.waits)
        fh = await flow.start()
        await mark()
        return (await fh.result())["waits"]

    @app.workflow
    def plainly(count: int) -> int:
        flow = app.flow("plain", id="plain")
        flow.add("n", kit.number, count)
        return flow.sync.start().result()["n"]

    return SimpleNamespace(
        kit=kit, sums=sums, typed=typed, keeps=keeps, keeps_and_waits=keeps_and_waits, plainly=plainly
    )


async def test_a_workflow_starts_a_flow_and_waits_for_it(app: App):
    made = hosts(app)
    async with app:
        handle = await made.sums.options(id="host").start(4)
        assert await handle.result(timeout=20) == 6
        assert [entry.op for entry in await handle.journal()] == ["start", "flow"]
        assert (await app.flow_handle("sub").result())["sum"] == 6
        assert [page.number for page in await made.typed()] == [1, 3]
        assert await made.plainly.aio(3) == 3

        async def settled() -> bool:
            return (await engine_of(app).store.due(DueKind.OUTBOX, limit=9)).depth == 0

        await until(settled, "something is owed for ever")


async def test_its_failure_is_the_codes_to_see(app: App):
    made = hosts(app)
    async with app:
        with pytest.raises(FlowFailed, match=r"bad \(failed: ValueError: no x\)"):
            await made.sums(2, fails=True)


async def test_outputs_that_are_too_large_together_are_the_codes_to_see(app: App, monkeypatch: pytest.MonkeyPatch):
    @app.workflow
    async def text(length: int) -> str:
        return "x" * length

    @app.workflow
    async def host() -> str:
        flow = app.flow("sub", id="sub")
        for name in ("a", "b"):
            flow.add(name, text, 1_000)
        fh = await flow.start()
        try:
            return str(len(await fh.result()))
        except LimitExceeded as error:
            return str(error)

    monkeypatch.setattr("outlast.limits.PAYLOAD_MAX_BYTES", 1_500)
    async with app:
        handle = await host.start()
        assert "result of flow 'sub': 2,0" in await handle.result(timeout=20)
        outputs = await app.flow_handle("sub").result()
        assert len(outputs["a"]) == 1_000, "outside of workflows each is a value of its own"


async def test_an_output_that_cannot_be_read_is_the_codes_to_see(app: App):
    @app.workflow
    async def number() -> int:
        return 1

    @app.workflow
    async def host() -> str:
        flow = app.flow("sub", id="sub")
        flow.add("n", number)
        fh = await flow.start()
        fh._annotations = {"n": str}  # as if its workflow had been changed meanwhile
        with pytest.raises(CodecError) as refused:
            await fh.result()
        return str(refused.value)

    async with app:
        assert "it should be str" in await (await host.start()).result(timeout=20)


async def test_a_member_of_a_flow_starts_another_and_both_are_cancelled(app: App):
    made = hosts(app)
    async with app:
        flow = app.flow("f", id="f")
        flow.add("m", made.keeps, "cancel")
        flow.add("free", made.keeps, "abandon")
        fh = await flow.start()
        for name in ("cancel", "abandon"):
            await until(lambda name=name: exists(app, f"kept-{name}/waits"), "the flow does not begin")
            await status_is(app.execution(f"kept-{name}/waits"), Status.SUSPENDED)
        await member_is(fh, "m", Status.SUSPENDED)
        await fh.cancel(reason="enough")
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        with pytest.raises(FlowCancelled, match="its parent 'f/m' ended"):
            await app.flow_handle("kept-cancel").result("20s")
        assert (await app.flow_handle("kept-abandon").status()).status is None


async def test_a_fork_does_not_wait_for_the_flow_of_another(app: App):
    made = hosts(app)
    async with app:
        handle = await made.keeps_and_waits.options(id="host").start()
        await until(lambda: exists(app, "kept/waits"), "the flow does not begin")
        await status_is(handle, Status.SUSPENDED)  # by then its mark is recorded
        fork = await handle.fork(from_step="mark")
        with pytest.raises(FlowRefused, match="wait for it in a step"):
            await fork.result(timeout=20)
        await app.execution("kept/waits").send("go", 7)
        assert await handle.result(timeout=20) == 7


async def exists(app: App, execution_id: str) -> bool:
    return await engine_of(app).look("default", execution_id) is not None


@pytest.mark.parametrize("policy, status", [("cancel", "cancelled"), ("abandon", None), ("wait", "succeeded")])
async def test_an_end_of_the_code_does_with_the_flow_as_parent_close_says(app: App, policy: str, status: str | None):
    made = hosts(app)
    async with app:
        handle = await made.keeps.options(id="host").start(policy)
        await until(lambda: exists(app, f"kept-{policy}/waits"), "the flow does not begin")
        await handle.send("stop", "now")
        if policy == "wait":
            await status_is(handle, Status.SUSPENDED)
            await app.execution("kept-wait/waits").send("go", 1)
        assert await handle.result(timeout=20) == "now"

        async def ended() -> bool:
            return (await app.flow_handle(f"kept-{policy}").status()).status == status

        await until(ended, f"the flow is not {status}")


@pytest.mark.parametrize("first", [facts.StartFlow, facts.CloseChildren])
async def test_a_flow_that_begins_after_its_parent_ended_is_not_left_behind(
    clocked: Place, monkeypatch: pytest.MonkeyPatch, first: type[facts.Fact]
):
    app = clocked.app()
    made = hosts(app)
    async with app:
        outbox = engine_of(app).outbox
        monkeypatch.setattr(outbox, "post", lambda changes: None)
        handle = await made.keeps.options(id="host").start("cancel")
        await status_is(handle, Status.SUSPENDED)
        assert not await exists(app, "kept-cancel/waits")
        await handle.cancel()
        due = await engine_of(app).store.due(DueKind.OUTBOX, limit=9)
        debts = [item.record for item in due.items if isinstance(item.record, Delivery)]
        for debt in sorted(debts, key=lambda debt: not isinstance(facts.decode_debt(debt.fact), first)):
            await outbox.deliver(debt)
        info = await app.flow_handle("kept-cancel").status()
        assert info.cancelling or info.status is Status.CANCELLED


async def test_the_nets_alone_carry_its_start_and_its_end(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    app = clocked.app()
    made = hosts(app)
    async with app:
        monkeypatch.setattr(engine_of(app).outbox, "post", lambda changes: None)
        handle = await made.sums.options(id="host").start(2)

        async def ended() -> bool:
            await cycle(app, "outbox")
            return (await handle.info()).status is Status.SUCCEEDED

        await until(ended, "nobody carries what is owed")


async def test_flows_that_cannot_be_started_inside_say_so(app: App, monkeypatch: pytest.MonkeyPatch):
    made = hosts(app)

    @app.workflow
    async def takes(flow_id: str, members: int = 1) -> str:
        flow = app.flow("taken", id=flow_id)
        for n in range(members):
            flow.add(f"m{n}", made.kit.number, n)
        try:
            await (await flow.start()).result()
        except (FlowConflict, LimitExceeded) as error:
            return str(error)
        return "fine"

    @app.workflow
    async def others(flow_id: str) -> str:
        try:
            await outlast_handle(app, flow_id).result()
        except FlowRefused as error:
            return str(error)
        return "fine"

    async with app:
        flow = app.flow("outside", id="outside")
        flow.add("waits", made.kit.waits)
        await flow.start()
        assert "other members" in await takes("outside")
        await made.kit.number.options(id="execution").start(1)
        assert "the id of an execution" in await takes("execution")
        assert "over the limit" in await takes("large", members=201)
        assert "records is over the limit" in await takes("wide", members=200)
        monkeypatch.setattr("outlast.limits.PAYLOAD_MAX_BYTES", 1_000)
        assert "bytes is over the limit" in await takes("heavy", members=150)
        monkeypatch.undo()
        assert "wait for it in a step" in await others("outside")
        with pytest.raises(InvalidInput, match="inside a workflow"):
            await app.flow("x", parent_close="wait").start()
        with pytest.raises(InvalidInput, match="parent_close"):
            app.flow("x", parent_close="never")  # type: ignore[arg-type]


async def test_a_refusal_that_comes_while_its_parent_looks_is_one(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    app = clocked.app()
    made = hosts(app)

    @app.workflow
    async def takes() -> str:
        flow = app.flow("taken", id="taken")
        flow.add("one", made.kit.number, 1)
        with pytest.raises(FlowConflict) as refused:
            await (await flow.start()).result()
        return str(refused.value)

    async with app:
        engine = engine_of(app)
        monkeypatch.setattr(engine.outbox, "post", lambda changes: None)
        heads = engine.flows.heads
        looks = 0

        async def then_refused(namespace: str, flow_id: str) -> Any:
            nonlocal looks
            looks += 1
            found = await heads(namespace, flow_id)
            if looks == 1:
                await cycle(app, "outbox")
            return found

        await made.kit.number.options(id="taken").start(1)
        monkeypatch.setattr(engine.flows, "heads", then_refused)
        assert "the id of an execution" in await takes()
        assert looks > 1


async def test_a_flow_that_begins_and_ends_while_its_parent_looks_has_ended(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app()
    made = hosts(app)
    async with app:
        engine = engine_of(app)
        post, posted = engine.outbox.post, list[Any]()
        monkeypatch.setattr(engine.outbox, "post", posted.append)
        heads = engine.flows.heads
        looks = 0

        async def then_ended(namespace: str, flow_id: str) -> Any:
            nonlocal looks
            looks += 1
            found = await heads(namespace, flow_id)
            if looks == 1:
                monkeypatch.setattr(engine.outbox, "post", post)
                for changes in posted:
                    post(changes)

                async def told() -> bool:
                    name = ended_name(whole_of("sub"))
                    return bool(await engine.store.scan(Event.KIND, ("default", "host", name)))

                await until(told, "the flow did not end")
            return found

        monkeypatch.setattr(engine.flows, "heads", then_ended)
        handle = await made.sums.options(id="host").start(2)
        assert await handle.result() == 1
        assert looks > 1


def outlast_handle(app: App, flow_id: str) -> outlast.FlowHandle:
    return outlast.FlowHandle(app, flow_id)


@pytest.mark.parametrize("point", ["commit:begin", "commit:reply"])
@pytest.mark.parametrize("nth", range(1, 16, 2))
async def test_a_crash_changes_nothing(place: Place, nth: int, point: str):
    clock, points = ManualClock(), CrashPoints()
    points.crash_at(point, nth=nth)
    came: Any = None
    for life in (points, CrashPoints()):
        app = place.app(
            store=lambda life=life: store_for(place.url, clock=clock, points=life), lease_ttl="1d", resident=0
        )
        came = await lived(app, clock, life)
        if came is not None:
            break
    assert came == 3


async def lived(app: App, clock: ManualClock, points: CrashPoints) -> int | None:
    made = hosts(app)
    try:
        async with app:
            opened = app._opened
            assert opened is not None

            async def end() -> int:
                assert opened.reconcilers is not None
                assert opened.worker is not None
                handle = await made.sums.options(id="host").start(3)
                clock.advance("2d")
                for row in ("lease_expiry", "outbox"):
                    await opened.reconcilers.cycle(row)
                opened.worker.kick()
                return await handle.result(timeout=30)

            ending = asyncio.create_task(end())
            while not ending.done() and not points.crashed:
                await asyncio.wait((ending,), timeout=0.005)
            if not points.crashed:
                return ending.result()
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            app._opened = None
            await asyncio.gather(opened.abandon(), return_exceptions=True)
    except Crash:
        pass  # while it was opened, or closed
    return None
