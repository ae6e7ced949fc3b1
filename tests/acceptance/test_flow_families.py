"""What members start is theirs: children, near and far, are cancelled with their member as their parent-close says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import outlast
from outlast import App, FlowCancelled, Status
from outlast.machine import facts
from outlast.model.outbox import Delivery
from outlast.store.port import DueKind
from tests.acceptance.conftest import Place, status_is, until
from tests.acceptance.flow_workflows import member_is, workflows
from tests.acceptance.test_flow_cancels import canceller_dies, cycle, engine_of


def families(app: App) -> Any:
    @app.workflow
    async def child() -> int:
        return await outlast.receive("go", int)

    @app.workflow
    async def nested() -> int:
        return await child.options(id="inner")()

    @app.workflow
    async def member() -> None:
        for name in ("near", "left"):
            await child.options(id=name, parent_close="abandon" if name == "left" else "cancel").start()
        await nested.options(id="deep").start()
        # Many, so that some of them live in other partitions.
        for n in range(6):
            await child.options(id=f"far-{n}", detached=True, parent_close="cancel").start()
        await child.options(id="free", detached=True).start()
        await outlast.receive("go", int)

    return SimpleNamespace(child=child, nested=nested, member=member)


CANCELLED = ("f/m/near", "f/m/deep", "f/m/deep/inner", *(f"far-{n}" for n in range(6)))
SPARED = ("f/m/left", "free")


async def started(app: App, kit: Any) -> outlast.FlowHandle:
    flow = app.flow("f", id="f")
    flow.add("m", kit.member)
    fh = await flow.start()
    await is_complete(app, fh)
    return fh


async def is_complete(app: App, fh: outlast.FlowHandle) -> None:
    """The member waits, and so does its family: detached ones may be on their way when their parent waits."""
    await member_is(fh, "m", Status.SUSPENDED)

    async def all_wait() -> bool:
        return {one.id for one in await app.find(status=Status.SUSPENDED)} >= {*CANCELLED, *SPARED}

    await until(all_wait, "the family is not complete")


async def test_children_of_members_are_cancelled_with_their_flow(app: App):
    kit = families(app)
    async with app:
        fh = await started(app, kit)
        await fh.cancel(reason="enough")
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        for name in CANCELLED:
            await status_is(app.execution(name), Status.CANCELLED)
        for name in SPARED:
            assert (await app.execution(name).info()).status is Status.SUSPENDED


async def test_the_nets_alone_cancel_the_families_of_members(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    """Whoever cancels the flow is gone at once, and nobody carries what an end owes."""
    app = clocked.app()
    kit = families(app)
    async with app:
        fh = await started(app, kit)
        canceller_dies(monkeypatch)
        monkeypatch.setattr(engine_of(app).outbox, "post", lambda changes: None)
        await fh.cancel(reason="enough")
        await clocked.pass_time(app, "6s")
        await cycle(app, "cancel_backlog")
        await member_is(fh, "m", Status.CANCELLED)

        async def cancelled() -> bool:
            await cycle(app, "outbox")
            return all([(await app.execution(name).info()).status is Status.CANCELLED for name in CANCELLED])

        await until(cancelled, "families are left behind")
        for name in SPARED:
            assert (await app.execution(name).info()).status is Status.SUSPENDED


async def test_siblings_that_are_not_needed_any_more_take_their_children_along(app: App):
    kit, others = families(app), workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        slow, fast = flow.add("m", kit.member), flow.add("fast", others.waits)
        flow.add("first", others.number, 1).after(slow, fast, join=outlast.any_of(), on_satisfied="cancel_remaining")
        fh = await flow.start()
        await is_complete(app, fh)
        await app.execution("f/fast").send("go", 1)
        assert await fh.result("20s") == {"fast": 1, "first": 1}
        for name in CANCELLED:
            await status_is(app.execution(name), Status.CANCELLED)


@pytest.mark.parametrize("first", [facts.Start, facts.CloseChildren])
async def test_a_child_that_begins_after_its_parent_ended_is_not_left_behind(
    clocked: Place, monkeypatch: pytest.MonkeyPatch, first: type[facts.Fact]
):
    """Both words are owed; whichever is carried first, the child ends with its parent."""
    app = clocked.app()

    @app.workflow
    async def child() -> int:
        return await outlast.receive("go", int)

    @app.workflow
    async def parent() -> None:
        for n in range(6):
            await child.options(id=f"far-{n}", detached=True, parent_close="cancel").start()
        await child.options(id="free", detached=True).start()
        await outlast.receive("go", int)

    async with app:
        outbox = engine_of(app).outbox
        monkeypatch.setattr(outbox, "post", lambda changes: None)
        handle = await parent.options(id="parent").start()
        await status_is(handle, Status.SUSPENDED)
        await handle.cancel()
        assert (await handle.info()).status is Status.CANCELLED
        due = await engine_of(app).store.due(DueKind.OUTBOX, limit=100)
        debts = [item.record for item in due.items if isinstance(item.record, Delivery)]
        assert len(debts) == 8
        for debt in sorted(debts, key=lambda debt: not isinstance(facts.decode_debt(debt.fact), first)):
            await outbox.deliver(debt)
        for n in range(6):
            info = await app.execution(f"far-{n}").info()
            assert info.status is Status.CANCELLED
        assert not (await app.execution("free").info()).status.terminal
        await cycle(app, "outbox")
        assert (await engine_of(app).store.due(DueKind.OUTBOX, limit=100)).depth == 0
