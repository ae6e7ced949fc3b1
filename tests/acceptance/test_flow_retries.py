"""A flow that is retried: what did not succeed runs again, as a retry of it alone would let it run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import outlast
from outlast import App, FlowCancelled, FlowFailed, Status, any_of
from outlast.runtime.flows import reopening
from tests.acceptance.conftest import Gate
from tests.acceptance.flow_workflows import FAILS, member_is, statuses, workflows


async def test_a_step_that_failed_runs_again_and_what_was_done_does_not(app: App):
    kit, calls, broken = workflows(app), list[str](), True

    @app.step
    async def works(name: str) -> int:
        calls.append(name)
        if name == "second" and broken:
            raise ValueError("broken")
        return 1

    @app.workflow
    async def two() -> int:
        return await works("first") + await works("second")

    async with app:
        flow = app.flow("f", id="f")
        flow.add("below", kit.number, flow.add("two", two).output)
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="broken"):
            await fh.result("20s")
        broken = False
        await fh.retry()
        assert await fh.result("20s") == {"two": 2, "below": 2}
        assert calls == ["first", "second", "second"]


async def test_what_a_cancel_cut_short_goes_on(app: App, gate: Gate):
    kit = workflows(app)

    @app.step
    async def works() -> int:
        await gate()
        return 7

    @app.workflow
    async def one() -> int:
        return await works()

    async with app:
        flow = app.flow("f", id="f")
        flow.add("below", kit.number, flow.add("one", one).output)
        fh = await flow.start()
        await gate.reached()
        await fh.cancel(wait=True)
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        gate.open()
        await fh.retry()
        assert await fh.result("20s") == {"one": 7, "below": 7}


async def test_what_a_retry_opened_can_be_told_and_cancelled_at_once(app: App):
    """A retry that was only accepted left its members as they had ended: they refused what they were told next."""
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        a, b = flow.add("a", kit.waits), flow.add("b", kit.waits)
        flow.add("sum", kit.total, [a.output, b.output])
        fh = await flow.start()
        await fh.cancel(wait=True)
        await fh.retry()
        assert Status.CANCELLED not in (await fh.status()).counts
        assert (await fh.cancel(reason="after all", wait=True)).cancelled == 3
        await fh.retry()
        await app.execution("f/a").send("go", 3)
        await app.execution("f/b").send("go", 4)
        assert (await fh.result("20s"))["sum"] == 7


async def test_what_was_undone_begins_anew(app: App):
    kit, done, broken = workflows(app), list[str](), True

    @app.step
    async def take_back(what: str) -> None:
        done.append(f"{what} back")

    @app.step
    async def take(what: str) -> None:
        done.append(what)

    @app.step
    async def pay() -> int:
        if broken:
            raise ValueError("no money")
        return 5

    @app.workflow
    async def buys(what: str, price: int) -> int:
        await take(what)
        await outlast.compensate(take_back, what)
        return price + await pay()

    async with app:
        flow = app.flow("f", id="f")
        bought = flow.add("buys", buys, "pen", flow.add("price", kit.number, 2).output)
        flow.add("below", kit.number, bought.output)
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="no money"):
            await fh.result("20s")
        assert done == ["pen", "pen back"]
        await fh.retry()
        with pytest.raises(FlowFailed, match="no money"):  # still so
            await fh.result("20s")
        assert done == ["pen", "pen back"] * 2
        broken = False
        await fh.retry()
        assert await fh.result("20s") == {"price": 2, "buys": 7, "below": 7}
        assert done == ["pen", "pen back", "pen", "pen back", "pen"]
        assert set((await statuses(fh)).values()) == {"succeeded"}


@pytest.mark.parametrize("policy", ["flow_only", "cancel_pending"])
async def test_what_succeeded_while_the_flow_was_stopped_is_passed_on_at_once(app: App, gate: Gate, policy: Any):
    kit = workflows(app)

    @app.step
    async def works() -> int:
        await gate()
        return 7

    @app.workflow
    async def one() -> int:
        return await works()

    async with app:
        flow = app.flow("f", id="f")
        above = flow.add("one", one)
        flow.add("below", kit.add, above.output, flow.add("beside", kit.number, 1).output)
        flow.add("alone", kit.number, above.output)
        fh = await flow.start()
        await gate.reached()
        await member_is(fh, "beside", Status.SUCCEEDED)
        await fh.cancel(policy=policy)
        gate.open()
        await member_is(fh, "one", Status.SUCCEEDED)
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        await fh.retry()
        assert await fh.result("10s") == {"one": 7, "beside": 1, "below": 8, "alone": 7}


async def test_a_flow_all_of_which_succeeded_while_it_was_stopped_ends_with_its_retry(app: App, gate: Gate):
    """Nothing runs again whose end would be counted."""

    @app.workflow
    async def code() -> int:
        await gate()
        return 7

    async with app:
        flow = app.flow("f", id="f")
        flow.add("only", code)
        fh = await flow.start()
        await gate.reached()
        await fh.cancel("flow_only")
        gate.open()
        assert await app.execution("f/only").result("20s") == 7
        await fh.retry()
        assert await fh.result("20s") == {"only": 7}


@pytest.mark.parametrize("known", [True, False], ids=["items", "output"])
async def test_no_more_items_of_a_map_run_at_once_than_before(app: App, known: bool):
    broken, running, most = True, 0, 0

    @app.step
    async def works(x: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        if broken and x % 4 < 3:
            raise ValueError("broken")
        return x

    @app.workflow
    async def item(x: int) -> int:
        return await works(x)

    @app.workflow
    async def listing(count: int) -> list[int]:
        return list(range(count))

    async with app:
        flow = app.flow("f", id="f")
        items: Any = range(30) if known else flow.add("listing", listing, 30).output
        flow.map(item, items, name="items", max_parallel=3)
        fh = await flow.start()
        for still in (True, False):
            with pytest.raises(FlowFailed):
                await fh.result("20s")
            broken = still  # before: what is retried begins at once
            await fh.retry()
        assert (await fh.result("20s"))["items"] == list(range(30))
        assert most == 3


async def test_a_sibling_that_was_not_needed_any_more_is_not_needed_by_a_retry(app: App):
    kit = workflows(app)
    FAILS.add("report")
    async with app:
        flow = app.flow("f", id="f")
        fast, slow = flow.add("fast", kit.number, 1), flow.add("slow", kit.waits)
        above = flow.add("above", kit.waits)
        lost = flow.add("lost", kit.number, above.output)
        first = flow.add("first", kit.number, 5)
        first.after(fast, slow, lost, join=any_of(), on_satisfied="cancel_remaining")
        flow.add("report", kit.fails, "report").after(first)
        fh = await flow.start()
        await member_is(fh, "slow", Status.CANCELLED)
        await member_is(fh, "lost", Status.CANCELLED)
        with pytest.raises(FlowFailed, match="report"):
            await fh.result("20s")
        FAILS.discard("report")
        await fh.retry()
        assert await fh.result("20s") == {"fast": 1, "first": 5, "report": 1}
        ends = await statuses(fh)
        assert ends["slow"] == ends["lost"] == ends["above"] == "cancelled"


async def test_a_retry_opens_again_what_was_not_needed_if_somebody_needs_it_now(app: App):
    kit = workflows(app)
    FAILS.add("late")
    async with app:
        flow = app.flow("f", id="f")
        fast, slow = flow.add("fast", kit.waits), flow.add("slow", kit.waits)
        late = flow.add("late", kit.fails, "late")
        flow.add("both", kit.add, slow.output, late.output)
        flow.add("first", kit.number, 5).after(fast, slow, join=any_of(), on_satisfied="cancel_remaining")
        fh = await flow.start()
        await member_is(fh, "both", Status.SKIPPED)
        await app.execution("f/fast").send("go", 1)
        with pytest.raises(FlowFailed, match="late"):
            await fh.result("20s")
        FAILS.discard("late")
        await fh.retry()
        await member_is(fh, "slow", Status.SUSPENDED)
        await app.execution("f/slow").send("go", 2)
        assert (await fh.result("20s"))["both"] == 3


async def test_a_clean_up_does_not_say_that_what_was_cancelled_is_not_needed(app: App):
    """Its join would cancel what remains, but was never satisfied."""
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        slow = flow.add("slow", kit.waits)
        cleans = flow.add("clean-up", kit.number, 5)
        cleans.after(slow, join=any_of(), on_satisfied="cancel_remaining", on_failure="run")
        fh = await flow.start()
        await app.execution("f/slow").cancel()
        with pytest.raises(FlowFailed, match="slow"):
            await fh.result("20s")
        await fh.retry()
        await member_is(fh, "slow", Status.SUSPENDED)
        await app.execution("f/slow").send("go", 2)
        assert await fh.result("20s") == {"slow": 2, "clean-up": 5}


async def test_items_of_a_map_that_were_not_needed_are_not_needed_by_a_retry(app: App):
    kit = workflows(app)
    FAILS.add("report")

    @app.workflow
    async def item(number: int) -> int:
        return number if number == 0 else await outlast.receive("go", int)

    async with app:
        flow = app.flow("f", id="f")
        mapped = flow.map(item, range(6), name="items", max_parallel=2)
        mapped.after(join=any_of(), on_satisfied="cancel_remaining")
        flow.add("report", kit.fails, "report").after(mapped)
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="report"):
            await fh.result("20s")
        FAILS.discard("report")
        await fh.retry()
        assert (await fh.result("20s"))["report"] == 1
        assert [(await statuses(fh))[f"items[{n}]"] for n in range(1, 6)] == ["cancelled"] * 5


async def test_who_carries_a_retry_late_does_not_retry_what_failed_since(app: App, monkeypatch: pytest.MonkeyPatch):
    """Two processes open the members again; one of them is slow, and the other was done long before."""
    calls, planned = list[str](), reopening._planned
    slow, go_on, late = asyncio.Event(), asyncio.Event(), list[asyncio.Task[Any] | None]()

    async def slowly(*args: Any) -> Any:
        if not late:
            late.append(asyncio.current_task())
            slow.set()
            await go_on.wait()
        return await planned(*args)

    monkeypatch.setattr(reopening, "_planned", slowly)

    @app.step
    async def works() -> int:
        calls.append("tried")
        raise ValueError("broken")

    @app.workflow
    async def one() -> int:
        return await works()

    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        flow.add("below", kit.number, flow.add("one", one).output)
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="broken"):
            await fh.result("20s")
        await fh.retry()
        await asyncio.wait_for(slow.wait(), 20)
        with pytest.raises(FlowFailed, match="broken"):  # the reconciler has carried it, too
            await fh.result("20s")
        assert calls == ["tried"] * 2
        go_on.set()
        [carries] = late
        assert carries is not None
        await asyncio.wait([carries])
        assert await statuses(fh) == {"one": Status.FAILED, "below": Status.SKIPPED}
        assert (await fh.status()).status is Status.FAILED
        assert calls == ["tried"] * 2
