"""Flows that grow while they run: a member adds others behind itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import outlast
from outlast import App, FlowCancelled, FlowFailed, FlowRefused, InvalidFlow, Status, WrongPlace
from outlast.errors import LimitExceeded
from tests.acceptance.conftest import Place
from tests.acceptance.crashing import Crash, CrashPoints
from tests.acceptance.flow_workflows import member_is, statuses, workflows

pytestmark = pytest.mark.on_carried


def growing(app: App, kit: Any) -> Any:
    @app.workflow
    async def expand(count: int, *, fails: bool = False) -> int:
        growth = outlast.flow()
        items = [growth.add(f"item-{n}", kit.number, n) for n in range(count)]
        growth.add("sum", kit.total, [item.output for item in items])
        await growth.start()
        if fails:
            raise ValueError("after growing")
        return count

    return expand


async def test_a_member_adds_members_behind_itself(app: App):
    kit = workflows(app)
    expand = growing(app, kit)
    async with app:
        flow = app.flow("f", id="f")
        flow.add("expand", expand, 5)
        fh = await flow.start()
        outputs = await fh.result("20s")
        assert outputs == {"expand": 5, "sum": 10, **{f"item-{n}": n for n in range(5)}}
        assert (await fh.status()).members == 7
        assert ("expand", "item-3") in (await fh.graph()).edges


@pytest.mark.parametrize("flow_id", ["nightly 2026-11-15", "a,b", "a|b"])
async def test_a_flow_grows_whatever_its_id(app: App, flow_id: str):
    expand = growing(app, workflows(app))
    async with app:
        flow = app.flow("growing", id=flow_id)
        flow.add("expand", expand, 3)
        assert (await (await flow.start()).result("20s"))["sum"] == 3


async def test_it_adds_more_behind_what_it_added_before(app: App):
    kit = workflows(app)

    @app.workflow
    async def expand() -> None:
        growth = outlast.flow()
        first = growth.add("first", kit.number, 1)
        await growth.start()
        growth.add("second", kit.add, first.output, 1)
        await growth.start()
        outlast.flow().add("never", kit.number, 1).after("first", "second")
        more = outlast.flow()
        more.add("third", kit.number, 3).after("first", "second")
        await more.start()

    async with app:
        flow = app.flow("f", id="f")
        flow.add("expand", expand)
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="never accepted: 'never'"):
            await fh.result("20s")
        assert set((await fh.graph()).edges) == {
            ("expand", "first"),
            ("first", "second"),
            ("first", "third"),
            ("second", "third"),
        }


async def test_what_is_added_comes_behind_what_was_there_in_the_order_in_which_it_was_added(app: App):
    kit = workflows(app)

    @app.workflow
    async def listing() -> list[int]:
        return [1, 2]

    @app.workflow
    async def expand() -> int:
        growth = outlast.flow()
        for part in "ab":
            for number in range(3):
                growth.add(f"{part}{number}", kit.number, number)
            await growth.start()
        return 1

    async with app:
        flow = app.flow("grows", id="grows")
        flow.map(kit.number, flow.add("listing", listing).output, name="m").after(flow.add("expand", expand))
        fh = await flow.start()
        outputs = list(await fh.result("20s"))
        assert outputs == [member.name for member in (await fh.graph()).members]
        assert outputs[:4] == ["listing", "m[*]", "m", "expand"]
        assert [name for name in outputs[4:] if name[0] != "m"] == ["a0", "a1", "a2", "b0", "b1", "b2"]
        assert [name for name in outputs[4:] if name[0] == "m"] == ["m[0]", "m[1]"]


async def test_what_was_added_before_passes_on_what_it_gives(app: App):
    kit = workflows(app)

    @app.workflow
    def expand() -> None:
        growth = outlast.flow()
        first = growth.add("first", kit.number, 1)
        growth.sync.start()
        growth.add("second", kit.add, first.output, 1)
        growth.sync.start()

    async with app:
        flow = app.flow("f", id="f")
        flow.add("expand", expand)
        assert await (await flow.start()).result("20s") == {"expand": None, "first": 1, "second": 2}


async def test_what_was_added_is_skipped_if_the_one_that_added_it_fails(app: App):
    kit = workflows(app)
    expand = growing(app, kit)
    async with app:
        flow = app.flow("f", id="f")
        flow.add("expand", expand, 2, fails=True)
        fh = await flow.start()
        with pytest.raises(FlowFailed):
            await fh.result("20s")
        assert await statuses(fh) == {"expand": "failed", "item-0": "skipped", "item-1": "skipped", "sum": "skipped"}


async def test_what_begins_anew_finds_what_it_added_before(app: App):
    kit, broken, pages = workflows(app), True, 2

    @app.step
    async def undo() -> None: ...

    @app.step
    async def risky() -> None:
        if broken:
            raise RuntimeError("not yet")

    @app.workflow
    async def grower() -> int:
        await outlast.compensate(undo)
        growth = outlast.flow()
        each = [growth.add(f"page-{n}", kit.number, n) for n in range(pages)]
        growth.add("sum", kit.total, [page.output for page in each[:2]])
        await growth.start()
        await risky()
        return pages

    async with app:
        flow = app.flow("f", id="f")
        flow.add("grower", grower)
        fh = await flow.start()
        for _ in range(2):
            with pytest.raises(FlowFailed, match="not yet"):
                await fh.result("20s")
            await fh.retry()
        with pytest.raises(FlowFailed, match="not yet"):
            await fh.result("20s")
        broken, pages = False, 3
        await fh.retry()
        assert await fh.result("20s") == {"grower": 3, "page-0": 0, "page-1": 1, "sum": 1, "page-2": 2}
        assert (await fh.status()).members == 5


async def test_what_goes_on_as_new_may_add_the_same_again_and_nothing_else_of_that_name(app: App):
    kit, said = workflows(app), list[str]()

    @app.workflow
    async def loop(turn: int) -> int:
        growth = outlast.flow()
        growth.add("same", kit.number, 1)
        await growth.start()
        growth.add("other", kit.number, turn)
        try:
            await growth.start()
        except InvalidFlow as error:
            said.append(str(error))
        if turn < 2:
            outlast.continue_as_new(turn + 1)
        return turn

    async with app:
        flow = app.flow("f", id="f")
        flow.add("loop", loop, 1)
        assert await (await flow.start()).result("20s") == {"loop": 2, "same": 1, "other": 1}
        assert said == ["flow 'f' has a member 'f/other' already"]


async def test_a_flow_that_is_cancelled_does_not_grow(app: App):
    kit = workflows(app)
    said: list[str] = []

    @app.workflow
    async def late() -> None:
        await outlast.receive("go", int)
        growth = outlast.flow()
        growth.add("more", kit.number, 1)
        try:
            await growth.start()
        except FlowRefused as error:
            said.append(str(error))

    async with app:
        flow = app.flow("f", id="f")
        flow.add("late", late)
        fh = await flow.start()
        await member_is(fh, "late", Status.SUSPENDED)
        # It runs when the flow is stopped: the code goes on, and is refused.
        engine = app.opened()._engine
        heads = engine.flows.heads

        async def stopped_meanwhile(*name: str) -> Any:
            gate, summary = await heads(*name)
            assert gate is not None
            return outlast_replace(gate), summary

        engine.flows.heads = stopped_meanwhile  # type: ignore[method-assign]
        await app.execution("f/late").send("go", 1)
        await app.execution("f/late").result("20s")
        engine.flows.heads = heads
        assert said
        assert "does not grow" in said[0]


def outlast_replace(gate: Any) -> Any:
    from msgspec import structs

    from outlast.model.flow import FlowState

    return structs.replace(gate, state=FlowState.STOPPED)


@pytest.mark.parametrize("colour", ["async", "def"])
async def test_a_member_whose_flow_is_cancelled_while_it_grows_hears_of_the_cancel_and_a_retry_grows_it(
    app: App, monkeypatch: pytest.MonkeyPatch, colour: str
):
    """It heard of a refusal first, by chance: that was recorded, and the first retry of the flow failed by it."""
    kit, said = workflows(app), list[str]()

    @app.step
    async def leaves(error: str) -> None:
        said.append(error)
        await asyncio.sleep(0.1)

    @app.workflow(name="grows-async")
    async def grows() -> None:
        growth = outlast.flow()
        growth.add("more", kit.number, 1)
        try:
            await growth.start()
        except BaseException as error:
            await leaves(type(error).__name__)
            raise

    @app.workflow(name="grows-def")
    def grows_in_a_thread() -> None:
        growth = outlast.flow()
        growth.add("more", kit.number, 1)
        try:
            growth.sync.start()
        except BaseException as error:
            leaves.sync(type(error).__name__)
            raise

    async with app:
        flow = app.flow("f", id="f")
        flow.add("grows", grows if colour == "async" else grows_in_a_thread)
        fh, flows = app.flow_handle("f"), app.opened()._engine.flows
        heads, due = flows.heads, ["stopped"]

        async def stopped_meanwhile(namespace: str, flow_id: str) -> Any:
            if due:
                due.pop()
                with monkeypatch.context() as patches:  # nobody carries it to the members, until the grace is over
                    patches.setattr("outlast.client.flows.cancel_members", _nothing)
                    await fh.cancel(reason="enough")
            return await heads(namespace, flow_id)

        monkeypatch.setattr(flows, "heads", stopped_meanwhile)
        await flow.start()
        with pytest.raises(FlowCancelled, match="enough"):
            await fh.result("20s")
        assert said == ["CancelledError"]
        await fh.retry()
        assert await fh.result("20s") == {"grows": None, "more": 1}


async def _nothing(*_: Any, **__: Any) -> None: ...


async def test_growth_is_refused_where_it_cannot_be(app: App, monkeypatch: pytest.MonkeyPatch):
    kit = workflows(app)
    monkeypatch.setattr("outlast.limits.FLOW_GROWTH_MAX", 3)
    said: list[str] = []

    @app.workflow
    async def tries() -> None:
        for wrong in (
            lambda g: None,
            lambda g: g.add("tries", kit.number, 1),
            lambda g: g.add("there", kit.number, 1),
            lambda g: g.add("x", kit.number, 1).after("nobody"),
            lambda g: [g.add(f"x{n}", kit.number, n) for n in range(4)],
        ):
            growth = outlast.flow()
            try:
                wrong(growth)
                await growth.start()
            except (InvalidFlow, LimitExceeded) as error:
                said.append(str(error))

    @app.workflow
    async def alone() -> None:
        outlast.flow()

    async with app:
        flow = app.flow("f", id="f")
        flow.add("tries", tries)
        flow.add("there", kit.number, 1)
        fh = await flow.start()
        await fh.result("20s")
        assert len(said) == 5
        for text, words in zip(
            said, ("nothing was added", "two members", "already", "only for 'tries'", "members at once"), strict=True
        ):
            assert words in text
        with pytest.raises(WrongPlace, match="no member of a flow"):
            await alone()
    with pytest.raises(WrongPlace):
        outlast.flow()


@pytest.mark.parametrize("nth", [4, 6, 8, 10, 12, 14])
async def test_a_crash_while_it_grows_adds_everything_once(clocked: Place, nth: int):
    """The commit that grows it, and the entry that says so, are two: between them it may die."""
    clock = clocked._clock
    assert clock is not None
    points = CrashPoints()
    from outlast.app import store_for

    mortal = App(
        clocked.url,
        store=lambda: store_for(clocked.url, clock=clock, points=points),
        lease_ttl="1d",
        reconcile_shared=False,
    )
    expand = growing(mortal, workflows(mortal))
    flow = mortal.flow("f", id="f")
    flow.add("expand", expand, 3)
    points.crash_at("commit:reply", nth=nth)
    try:
        async with mortal:
            opened = mortal._opened
            fh = await flow.start()
            await fh.result("2s")
    except (Crash, outlast.OutlastError, TimeoutError):
        mortal._opened = None
        if opened is not None:
            await _quietly(opened.abandon())
    heir = clocked.app()
    growing(heir, workflows(heir))
    async with heir:
        again = heir.flow("f", id="f")
        again.add("expand", heir.registry.newest("expand"), 3)
        fh = await again.start()
        await clocked.pass_time(heir, "2d")
        assert heir._opened is not None
        assert heir._opened.reconcilers is not None
        await heir._opened.reconcilers.cycle("outbox")
        assert (await fh.result("20s"))["sum"] == 3
        assert (await fh.status()).members == 5


async def _quietly(awaitable: Any) -> None:
    try:
        await awaitable
    except BaseException as error:
        if not isinstance(error, Crash | outlast.OutlastError):
            raise
