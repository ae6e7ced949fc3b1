"""Who cancels because of what it saw, and is then held up: what was opened again since goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import outlast
from outlast import App, ExecutionNotFound, FlowFailed, FlowNotFound, Status, any_of
from outlast.machine import facts
from outlast.machine.changes import Changes, Delete, Patch
from outlast.machine.decide_flow import chunks, staged, staged_members
from outlast.model.execution import Execution
from outlast.model.flow import Flow, FlowState
from outlast.model.outbox import Delivery
from outlast.model.partition import home_of
from outlast.runtime.engine import Engine
from outlast.runtime.family import TOGETHER_MAX, open_children
from outlast.runtime.flows import reopening
from outlast.runtime.flows.carrying import Flows
from outlast.runtime.outbox import Outbox
from outlast.store.port import DueKind, Filter
from tests.acceptance.conftest import Gate, Place, status_is, until
from tests.acceptance.flow_workflows import FAILS, member_is, workflows
from tests.acceptance.test_flow_cancels import cycle, engine_of
from tests.acceptance.test_flow_nets import turn


class Late:
    """The first call of a method that is about this waits at the gate; the others pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, about: Callable[..., bool]) -> None:
        self.gate, self._about = Gate(), about
        self._task: asyncio.Task[Any] | None = None
        whole = getattr(Engine, method)

        async def held_up(engine: Engine, *args: Any, **options: Any) -> Any:
            if self._task is None and about(*args):
                self._task = asyncio.current_task()
                await self.gate()
            return await whole(engine, *args, **options)

        monkeypatch.setattr(Engine, method, held_up)

    async def goes_on(self) -> None:
        """… and comes to its end."""
        assert self._task is not None
        self.gate.open()
        async with asyncio.timeout(20):
            await asyncio.wait([self._task])


def cancel_of(execution_id: str) -> Callable[..., bool]:
    def about(namespace: str, target: str, fact: facts.Fact) -> bool:
        return target == execution_id and isinstance(fact, facts.CancelRequested)

    return about


def stop_of_a_flow(changes: Changes) -> bool:
    return any(
        isinstance(write, Patch) and write.key.kind == Flow.KIND and write.fields.get("state") is FlowState.STOPPED
        for write in changes.writes
    )


def family(app: App, **options: Any) -> Any:
    @app.workflow
    async def child() -> str:
        return await outlast.receive("go", str)

    @app.step
    async def ends() -> None:
        if "parent" in FAILS:
            raise ValueError("broken")

    @app.workflow
    async def parent() -> None:
        await child.options(id="child", **options).start()
        await outlast.receive("end")
        await ends()
        await outlast.receive("end")

    FAILS.add("parent")
    return parent


@pytest.fixture(autouse=True)
def nothing_fails():
    yield
    FAILS.clear()


@pytest.fixture
def one_carrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is owed is carried in process, or not at all."""
    monkeypatch.setenv("OUTLAST_RECONCILER_OUTBOX_ENABLED", "no")


@pytest.fixture
def by_hand(one_carrier: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What is owed is carried by the test alone; until this is called."""
    post = Outbox.post
    monkeypatch.setattr(Outbox, "post", lambda self, changes: None)
    return lambda: monkeypatch.setattr(Outbox, "post", post)


async def waits_for(handle: Any, reason: str) -> None:
    async def does() -> bool:
        try:
            return (await handle.info()).reason == reason
        except ExecutionNotFound:
            return False  # not begun yet

    await until(does, f"{handle} does not wait for {reason}")


@pytest.mark.parametrize("detached", [False, True])
async def test_who_closes_a_child_late_does_not_cancel_one_that_was_retried(
    app: App, monkeypatch: pytest.MonkeyPatch, detached: bool
):
    child_id = "child" if detached else "it/child"
    late = Late(monkeypatch, "tell", cancel_of(child_id))
    parent = family(app, **({"detached": True, "parent_close": "cancel"} if detached else {}))
    async with app:
        handle, child = await parent.options(id="it").start(), app.execution(child_id)
        await waits_for(child, "event:go")
        await handle.send("end")
        await late.gate.reached()
        await status_is(child, "cancelled")  # the reconciler has carried it, too
        await child.retry()
        await waits_for(child, "event:go")
        await late.goes_on()
        assert (await child.info()).status is Status.SUSPENDED
        await child.send("go", "on")
        assert await child.result(timeout=20) == "on"


@pytest.mark.usefixtures("one_carrier")
async def test_who_closes_a_child_late_leaves_it_to_a_parent_that_was_retried(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app()
    late = Late(monkeypatch, "tell", cancel_of("it/child"))
    parent = family(app)
    async with app:
        handle, child = await parent.options(id="it").start(), app.execution("it/child")
        await waits_for(child, "event:go")
        await handle.send("end")
        await late.gate.reached()
        await status_is(handle, "failed")
        FAILS.clear()
        await handle.retry()
        await waits_for(handle, "event:end")
        await late.goes_on()
        assert (await child.info()).status is Status.SUSPENDED
        await handle.send("end")
        await status_is(handle, "succeeded")
        await status_is(child, "cancelled")


async def test_who_closes_a_flow_late_does_not_cancel_one_that_was_retried(app: App, monkeypatch: pytest.MonkeyPatch):
    kit = workflows(app)
    late = Late(monkeypatch, "commit_timed", stop_of_a_flow)

    @app.workflow
    async def host() -> None:
        flow = app.flow("kept", id="kept")
        flow.add("waits", kit.waits)
        await flow.start()
        await outlast.receive("end")

    async with app:
        handle, fh = await host.options(id="host").start(), app.flow_handle("kept")
        await waits_for(app.execution("kept/waits"), "event:go")
        await handle.send("end")
        await late.gate.reached()

        async def cancelled() -> bool:
            return (await fh.status()).status is Status.CANCELLED

        await until(cancelled, "the reconciler does not cancel it")
        await fh.retry()
        await member_is(fh, "waits", Status.SUSPENDED)
        await late.goes_on()
        assert not (await fh.status()).cancelling
        await app.execution("kept/waits").send("go", 7)
        assert await fh.result("20s") == {"waits": 7}


def with_an_unneeded_sibling(app: App, kit: Any) -> Any:
    """`slow` is not needed any more once `first` goes on and `other` cannot."""
    FAILS.add("bad")
    flow = app.flow("f", id="f")
    fast, slow, bad = flow.add("fast", kit.waits), flow.add("slow", kit.waits), flow.add("bad", kit.fails, "bad")
    flow.add("first", kit.number, 5).after(fast, slow, join=any_of(), on_satisfied="cancel_remaining")
    flow.add("other", kit.add, bad.output, slow.output)
    return flow


@pytest.fixture
def spares_later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Whoever settles a join dies before it cancels what is no longer needed; until this is called."""
    whole = Flows.spare_siblings

    async def died(self: Flows, namespace: str, execution_id: str) -> bool:
        return False

    monkeypatch.setattr(Flows, "spare_siblings", died)
    return lambda: monkeypatch.setattr(Flows, "spare_siblings", whole)


async def test_who_spares_a_sibling_late_does_not_cancel_one_that_is_needed_once_more(
    clocked: Place, monkeypatch: pytest.MonkeyPatch, spares_later: Callable[[], None]
):
    app = clocked.app()
    kit = workflows(app)
    late = Late(monkeypatch, "tell", cancel_of("f/slow"))
    async with app:
        fh = await with_an_unneeded_sibling(app, kit).start()
        await member_is(fh, "other", Status.SKIPPED)
        await app.execution("f/fast").send("go", 1)
        await member_is(fh, "first", Status.SUCCEEDED)
        spares_later()
        spares = asyncio.create_task(engine_of(app).flows.spare_siblings("default", "f/first"))
        await late.gate.reached()
        await turn(clocked, app, "sibling_cancel")
        await member_is(fh, "slow", Status.CANCELLED)
        with pytest.raises(FlowFailed, match="bad"):
            await fh.result("20s")
        FAILS.clear()
        await fh.retry()
        await member_is(fh, "slow", Status.SUSPENDED)
        await late.goes_on()
        await spares
        await app.execution("f/slow").send("go", 2)
        assert (await fh.result("20s"))["other"] == 3


async def test_while_a_flow_is_retried_nobody_says_what_it_no_longer_needs(
    clocked: Place, monkeypatch: pytest.MonkeyPatch, gate: Gate, spares_later: Callable[[], None]
):
    app = clocked.app()
    kit = workflows(app)
    reopen = reopening._reopen

    async def slowly(engine: Engine, flow: Flow, view: Any, turn: str | None) -> None:
        if view.execution.id == "f/other":
            await gate()
        await reopen(engine, flow, view, turn)

    monkeypatch.setattr(reopening, "_reopen", slowly)
    async with app:
        fh = await with_an_unneeded_sibling(app, kit).start()
        await app.execution("f/fast").send("go", 1)
        await member_is(fh, "first", Status.SUCCEEDED)
        await app.execution("f/slow").cancel()
        with pytest.raises(FlowFailed, match="bad"):
            await fh.result("20s")
        spares_later()
        FAILS.clear()
        await fh.retry()
        await gate.reached()
        await member_is(fh, "slow", Status.READY)
        await turn(clocked, app, "sibling_cancel")
        assert (await app.execution("f/slow").info()).status is Status.READY
        gate.open()
        await app.execution("f/slow").send("go", 2)
        assert (await fh.result("20s"))["other"] == 3


@pytest.mark.usefixtures("by_hand")
async def test_a_child_that_begins_after_its_parent_was_retried_ends_with_it(clocked: Place):
    app = clocked.app()
    parent = family(app, detached=True, parent_close="cancel")
    async with app:
        handle, child = await parent.options(id="it").start(), app.execution("child")
        await handle.send("end")
        await status_is(handle, "failed")
        await carried(app, facts.CloseChildren)
        FAILS.clear()
        await handle.retry()
        await waits_for(handle, "event:end")
        await carried(app, facts.Start)
        await waits_for(child, "event:go")
        await handle.send("end")
        await status_is(handle, "succeeded")
        await carried(app, facts.CloseChildren)
        await status_is(child, "cancelled")


@pytest.mark.usefixtures("by_hand")
async def test_many_children_that_have_not_begun_keep_nobody_from_closing_the_others(clocked: Place):
    app = clocked.app()
    kit, many = workflows(app), TOGETHER_MAX + 10

    @app.workflow
    async def parent() -> None:
        for n in range(many):
            await kit.waits.options(id=f"far-{n}", detached=True, parent_close="cancel").start()
            await kit.waits.options(id=f"near-{n}").start()

    async with app:
        await parent.options(id="it").start()
        await status_is(app.execution("it"), "succeeded")
        await carried(app, facts.CloseChildren)
        assert await app.count(status="cancelled") == many
        left = await open_children(engine_of(app), "default", "it")
        assert [child.id for child in left] == [f"far-{n}" for n in range(many)]


async def carried(app: App, kind: type[facts.Fact]) -> list[Delivery]:
    """What is owed of that kind."""
    engine = engine_of(app)
    due = await engine.store.due(DueKind.OUTBOX, limit=1_000)
    debts = [item.record for item in due.items if isinstance(item.record, Delivery)]
    some = [debt for debt in debts if isinstance(facts.decode_debt(debt.fact), kind)]
    assert some, f"no {kind.__name__} is owed"
    for debt in some:
        await engine.outbox.deliver(debt)
    return some


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("parent_close", ["abandon", "cancel"])
async def test_who_carries_a_start_late_does_not_start_again_what_has_ended_and_was_purged(
    clocked: Place, parent_close: str
):
    app = clocked.app()
    kit = workflows(app)

    @app.workflow
    async def parent() -> None:
        await kit.number.options(id="child", detached=True, parent_close=parent_close).start(1)
        await outlast.receive("end")

    async with app:
        await parent.options(id="it").start()
        await waits_for(app.execution("it"), "event:end")
        [late] = await carried(app, facts.Start)
        assert await app.execution("child").result(timeout=20) == 1
        await clocked.pass_time(app, "1h")
        assert await app.purge(older_than="1m") == 1
        await engine_of(app).outbox.deliver(late)
        with pytest.raises(ExecutionNotFound):
            await app.execution("child").info()


async def test_who_carries_the_start_of_a_flow_late_does_not_start_again_what_has_ended_and_was_purged(
    clocked: Place, by_hand: Callable[[], None]
):
    app = clocked.app()
    kit = workflows(app)

    @app.workflow
    async def parent() -> None:
        flow = app.flow("f", id="f")
        flow.add("one", kit.number, 1)
        await flow.start()
        await outlast.receive("end")

    async with app:
        await parent.options(id="it").start()
        await waits_for(app.execution("it"), "event:end")
        by_hand()
        [late] = await carried(app, facts.StartFlow)
        assert await app.flow_handle("f").result("20s") == {"one": 1}
        await clocked.pass_time(app, "1h")
        assert await app.purge(older_than="1m") == 1
        with pytest.raises(FlowNotFound):
            await app.flow_handle("f").status()
        await engine_of(app).outbox.deliver(late)
        with pytest.raises(FlowNotFound):
            await app.flow_handle("f").status()


@pytest.mark.usefixtures("by_hand")
async def test_who_carries_a_word_late_does_not_tell_it_to_another_of_that_name(clocked: Place):
    app = clocked.app()
    kit = workflows(app)

    @app.workflow
    async def tells() -> None:
        await kit.waits.execution("target").send("go", 1)
        await outlast.receive("end")

    async with app:
        first = await kit.waits.options(id="target").start()
        await tells.options(id="it").start()
        await waits_for(app.execution("it"), "event:end")
        [late] = await carried(app, facts.EventSent)
        assert await first.result(timeout=20) == 1
        await clocked.pass_time(app, "1h")
        assert await app.purge(older_than="1m") == 1
        second = await kit.waits.options(id="target").start()
        await waits_for(second, "event:go")
        await engine_of(app).outbox.deliver(late)
        await second.send("go", 2)
        assert await second.result(timeout=20) == 2


async def test_a_retried_parent_does_not_wait_for_a_child_that_ended_meanwhile_and_was_purged(clocked: Place):
    app = clocked.app()
    kit = workflows(app)

    @app.step
    async def breaks() -> None:
        if FAILS:
            raise ValueError("broken")

    @app.workflow
    async def parent() -> int:
        child = await kit.waits.options(id="child", parent_close="abandon").start()
        await breaks()
        return await child.result()

    FAILS.add("parent")
    async with app:
        handle, child = await parent.options(id="it").start(), app.execution("it/child")
        await status_is(handle, "failed")
        await waits_for(child, "event:go")
        await child.send("go", 1)
        await status_is(child, "succeeded")
        await clocked.pass_time(app, "1h")
        await let_go(app, "it/child")
        FAILS.clear()
        await handle.retry()
        with pytest.raises(ExecutionNotFound, match="it/child"):
            await handle.result(timeout=20)


async def test_a_retried_parent_does_not_wait_for_a_flow_that_ended_meanwhile_and_was_purged(clocked: Place):
    app = clocked.app()
    kit = workflows(app)

    @app.step
    async def breaks() -> None:
        if FAILS:
            raise ValueError("broken")

    @app.workflow
    async def parent() -> int:
        flow = app.flow("f", id="f", parent_close="abandon", retention="1m")
        flow.add("waits", kit.waits)
        fh = await flow.start()
        await breaks()
        return (await fh.result())["waits"]

    FAILS.add("parent")
    async with app:
        handle, member = await parent.options(id="it").start(), app.execution("f/waits")
        await status_is(handle, "failed")
        await waits_for(member, "event:go")
        await member.send("go", 1)
        assert await app.flow_handle("f").result("20s") == {"waits": 1}
        await turn(clocked, app, "flow_retention", "retention")
        FAILS.clear()
        await handle.retry()
        with pytest.raises(FlowNotFound, match="'f'"):
            await handle.result(timeout=20)


async def let_go(app: App, execution_id: str) -> None:
    """Purge it alone, as its retention does."""
    engine = engine_of(app)
    execution = await engine.look("default", execution_id)
    assert execution is not None
    change = Patch(execution.key, {"purge_at": 0})
    partition = home_of(execution, engine.store.partitions)
    verdict = await engine.commit(Changes(id="let go", partition=partition, anchors=(execution.key,), writes=(change,)))
    assert verdict.applied
    assert await engine.store.purge(filter=Filter(namespace="default")) == 1


@pytest.mark.usefixtures("by_hand")
async def test_a_retried_parent_does_not_wait_at_its_end_for_a_child_that_ended_meanwhile(clocked: Place):
    app = clocked.app()
    parent = family(app, parent_close="wait")
    async with app:
        handle, child = await parent.options(id="it").start(), app.execution("it/child")
        await waits_for(child, "event:go")
        await waits_for(handle, "event:end")
        await handle.cancel()
        await status_is(handle, "cancelled")
        await status_is(child, "cancelled")
        await carried(app, facts.ChildCompleted)
        FAILS.clear()
        await handle.retry()
        await handle.send("end")
        await waits_for(handle, "event:end")
        await carried(app, facts.CloseChildren)
        await handle.send("end")
        await handle.result(timeout=20)


def deletes_a(kind: str) -> Callable[[Changes], bool]:
    return lambda changes: any(isinstance(write, Delete) and write.key.kind == kind for write in changes.writes)


def lets_a_member_go(changes: Changes) -> bool:
    [first, *_] = changes.writes
    return isinstance(first, Patch) and first.key.kind == Execution.KIND and set(first.fields) == {"purge_at"}


@pytest.mark.parametrize("kind", [Execution.KIND, Flow.KIND])
async def test_who_purges_a_stage_late_does_not_purge_what_was_started_since(
    clocked: Place, monkeypatch: pytest.MonkeyPatch, kind: str
):
    app = clocked.app()
    kit = workflows(app)
    late = Late(monkeypatch, "commit", deletes_a(kind))

    def large() -> Any:
        flow = app.flow("large", id="large")
        members = [flow.add(f"m{n}", kit.number, n) for n in range(300)]
        flow.add("sum", kit.total, [member.output for member in members])
        return flow

    async with app:
        engine = engine_of(app)
        new, members = large().built()
        partition, [first, *_] = engine.view("default", "large", None).partition, chunks(members)
        assert (await engine.commit(staged(partition, new))).applied
        assert (await engine.commit(staged_members(partition, new, new.change_id, 0, first))).applied
        await clocked.pass_time(app, "1h")
        purging = asyncio.create_task(cycle(app, "flow_retention"))
        await late.gate.reached()
        fh = await large().start()
        await late.goes_on()
        await purging
        assert (await fh.result("60s"))["sum"] == sum(range(300))


async def test_who_purges_a_flow_late_does_nothing_to_the_next_one_of_that_id(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    app = clocked.app()
    kit = workflows(app)
    late = Late(monkeypatch, "commit", lets_a_member_go)

    def flow(workflow: Any) -> Any:
        made = app.flow("f", id="f", retention="1h")
        made.add("one", workflow, 1)
        return made

    async with app:
        assert await (await flow(kit.number).start()).result("20s") == {"one": 1}
        await clocked.pass_time(app, "2h")
        purging = asyncio.create_task(cycle(app, "flow_retention"))
        await late.gate.reached()
        await turn(clocked, app, "flow_retention", "retention")
        fh = await flow(kit.waits).start()
        await member_is(fh, "one", Status.SUSPENDED)
        await late.goes_on()
        await purging
        await app.execution("f/one").send("go", 2)
        assert await fh.result("20s") == {"one": 2}


@pytest.mark.usefixtures("by_hand")
async def test_who_forgets_old_generations_late_does_not_forget_those_of_the_next_one_of_that_id(clocked: Place):
    app, marks = clocked.app(), list[str]()

    @app.step
    async def mark(word: str) -> None:
        marks.append(word)

    @app.workflow
    async def turns(word: str, left: int) -> int:
        await mark(word)
        if left:
            outlast.continue_as_new(word, left - 1)
        return await outlast.receive("go", int)

    async with app:
        first = await turns.options(id="it").start("first", 1)
        await first.send("go", 1)
        assert await first.result(timeout=20) == 1
        await clocked.pass_time(app, "1h")
        assert await app.purge(older_than="1m") == 1
        second = await turns.options(id="it").start("second", 0)
        await waits_for(second, "event:go")
        await carried(app, facts.Forget)
        await second.send("go", 2)
        assert await second.result(timeout=20) == 2
        assert marks == ["first", "first", "second"]


async def test_a_count_that_is_held_up_while_its_app_closes_is_not_left_behind(
    place: Place, monkeypatch: pytest.MonkeyPatch, gate: Gate
):
    """Whoever asked for it has gone: it would go on with a store that is closed, and fail with nobody to see it."""
    app, edges = place.app(), Flows._edges
    kit = workflows(app)
    held: list[asyncio.Task[Any] | None] = []
    monkeypatch.setattr("outlast.runtime.outbox.CLOSE_S", 0.05)
    monkeypatch.setattr("outlast.runtime.flows.carrying.CLOSE_S", 0.05)

    async def held_up(flows: Flows, namespace: str, execution_id: str, drained: str) -> Any:
        if execution_id == "f/sum" and not held:
            held.append(asyncio.current_task())
            await gate()
        return await edges(flows, namespace, execution_id, drained)

    monkeypatch.setattr(Flows, "_edges", held_up)
    async with app:
        flow = app.flow("f", id="f")
        one, two = flow.add("one", kit.number, 1), flow.add("two", kit.number, 2)
        flow.add("sum", kit.add, one.output, two.output)
        fh = await flow.start()
        await gate.reached()
    [count] = held
    assert count is not None
    assert count.done()
    async with app:
        assert await fh.result("30s") == {"one": 1, "two": 2, "sum": 3}
