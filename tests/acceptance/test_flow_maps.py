"""Maps over a list that is known only at run time: fanned out when it is there, joined in order, whatever crashes."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import outlast
from outlast import App, FlowFailed, InvalidFlow, Status, any_of
from outlast.app import store_for
from outlast.errors import LimitExceeded
from outlast.model.completion import Completion
from outlast.testing import Crash, CrashPoints, ManualClock
from tests.acceptance.conftest import Place
from tests.acceptance.crashing import fresh
from tests.acceptance.flow_workflows import FAILS, member_is, statuses, workflows
from tests.acceptance.test_flow_cancels import engine_of


@dataclass
class Page:
    number: int
    words: list[str]


def mapping(app: App) -> Any:
    @app.workflow
    async def listing(count: int) -> list[int]:
        return list(range(count))

    @app.workflow
    async def twice(x: int) -> int:
        return 2 * x

    @app.workflow
    async def pages(count: int) -> dict[str, list[Page]]:
        return {"pages": [Page(n, ["word"] * n) for n in range(count)]}

    @app.workflow
    async def words(page: Page) -> Page:
        return Page(page.number, sorted(page.words))

    @app.workflow
    async def anything(what: Any) -> Any:
        return what

    @app.workflow
    async def nothing(x: int) -> None:
        return None

    return SimpleNamespace(**{name: value for name, value in locals().items() if name != "app"})


def mapped(app: App, kit: Any, count: int, max_parallel: int | None = None) -> outlast.Flow:
    flow = app.flow("m", id="m")
    listing = flow.add("listing", kit.listing, count)
    flow.map(kit.twice, listing.output, name="items", max_parallel=max_parallel)
    return flow


@pytest.mark.parametrize("count, max_parallel", [(0, None), (0, 3), (1, 1), (5, None), (7, 3), (300, None), (300, 7)])
async def test_the_items_of_an_output_are_mapped_when_it_is_there(app: App, count: int, max_parallel: int | None):
    kit = mapping(app)
    total = workflows(app).total
    async with app:
        flow = app.flow("m", id="m")
        listing = flow.add("listing", kit.listing, count)
        items = flow.map(kit.twice, listing.output, name="items", max_parallel=max_parallel)
        flow.add("sum", total, items.output)
        fh = await flow.start()
        outputs = await fh.result("60s")
        assert outputs["items"] == [2 * n for n in range(count)]
        assert outputs["items[*]"] == count
        assert outputs["sum"] == sum(outputs["items"])
        assert (await fh.status()).members == count + 4
        edges = (await fh.graph()).edges
        assert {("items[*]", "items"), *((f"items[{n}]", "items") for n in range(count))} <= set(edges)


async def test_no_more_than_max_parallel_are_on_their_way_at_any_time(app: App):
    kit = mapping(app)
    now = most = 0
    together = asyncio.Event()

    @app.step
    async def busy(x: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 3:
            together.set()
        await together.wait()
        await asyncio.sleep(0.01)
        now -= 1
        return x

    @app.workflow
    async def each(x: int) -> int:
        return await busy(x)

    async with app:
        flow = app.flow("m", id="m")
        flow.map(each, flow.add("listing", kit.listing, 20).output, max_parallel=3)
        assert (await (await flow.start()).result("60s"))["each"] == list(range(20))
    assert most == 3


async def test_items_keep_their_types_and_may_be_a_part_of_the_output(app: App):
    kit = mapping(app)
    async with app:
        flow = app.flow("m", id="m")
        given = flow.add("pages", kit.pages, 3)
        back = flow.map(kit.words.options(tags={"a": "b"}, priority=3), given.output["pages"])
        again = flow.map(kit.words, back.output, name="again")
        flow.add("last", kit.anything, [again.output])
        outputs = await (await flow.start()).result("20s")
        assert outputs["words"] == outputs["again"] == [Page(n, ["word"] * n) for n in range(3)]
        wanted = [{"number": n, "words": ["word"] * n} for n in range(3)]
        assert outputs["last"] == [wanted], "no type is declared of it"
        assert await app.execution("m/words[2]").result() == wanted[2]
        assert {info.id for info in await app.find(tags={"a": "b"})} == {f"m/words[{n}]" for n in range(3)}


async def test_results_are_of_the_type_that_their_workflow_declares(app: App):
    kit = mapping(app)

    @app.workflow
    async def odd(page: Page) -> Page:
        if page.number % 2 == 0:
            raise ValueError("even")
        return page

    def written(flow_id: str) -> outlast.Flow:
        flow = app.flow("m", id=flow_id)
        flow.map(kit.words, [Page(1, ["b", "a"])], name="all")
        flow.map(kit.words, [], name="none")
        flow.map(odd, [Page(n, []) for n in range(3)], name="any").after(join=any_of(), on_satisfied="cancel_remaining")
        flow.map(kit.nothing, [1], name="nothing")
        return flow

    @app.workflow
    async def inside() -> list[str]:
        outputs = await (await written("inside").start()).result()
        return [repr(outputs[name]) for name in ("all", "none", "any", "nothing")]

    async with app:
        outputs = await (await written("outside").start()).result("20s")
        assert outputs["all"] == [Page(1, ["a", "b"])]
        assert (outputs["none"], outputs["nothing"]) == ([], [None])
        assert outputs["any"] == [None, Page(1, []), None]
        found = [repr(outputs[name]) for name in ("all", "none", "any", "nothing")]
        assert await (await inside.start()).result("20s") == found


async def test_the_same_flow_started_again_is_the_same(app: App):
    kit = mapping(app)
    async with app:
        await mapped(app, kit, 3).start()
        fh = await mapped(app, kit, 3).start()
        assert (await fh.result("20s"))["items"] == [0, 2, 4]
        with pytest.raises(outlast.FlowConflict):
            await mapped(app, kit, 3, max_parallel=2).start()


@pytest.mark.parametrize(
    "given, said", [({"a": 1}, "an object"), ("abc", "a text"), (None, "nothing"), (7, "a number"), (True, "true")]
)
async def test_what_is_no_list_fails_and_says_so(app: App, given: Any, said: str):
    kit = mapping(app)
    async with app:
        flow = app.flow("m", id="m")
        flow.map(kit.twice, flow.add("given", kit.anything, given).output, name="items")
        fh = await flow.start()
        with pytest.raises(FlowFailed, match=f"a list is mapped, but what its upstream gave is {said}"):
            await fh.result("20s")
        assert await statuses(fh) == {"given": "succeeded", "items[*]": "failed", "items": "skipped"}
        with pytest.raises(InvalidFlow, match="map 'items'"):
            await app.execution("m/items[*]").result()


async def test_a_list_that_was_pickled_is_mapped_and_anything_else_is_not(place: Place):
    app = place.app(allow_pickle=True)

    @app.workflow
    async def odd(what: str) -> Any:
        return [complex(1, 2), 3] if what == "list" else complex(1, 2)

    @app.workflow
    async def double(x: Any) -> str:
        return str(2 * x)

    async with app:
        flow = app.flow("m", id="m")
        flow.map(double, flow.add("given", odd, "list").output, name="items")
        assert (await (await flow.start()).result("20s"))["items"] == ["(2+4j)", "6"]
        flow = app.flow("n", id="n")
        flow.map(double, flow.add("given", odd, "number").output, name="items")
        with pytest.raises(FlowFailed, match="what its upstream gave is complex"):
            await (await flow.start()).result("20s")


async def test_the_items_of_an_output_are_mapped_by_a_workflow_that_takes_any_number(place: Place):
    app = place.app(allow_pickle=True)
    kit = mapping(app)

    @app.workflow
    async def shown(*given: Any) -> str:
        return repr(given)

    @app.workflow
    async def summed(*given: int) -> int:
        return sum(given)

    @app.workflow
    async def odd() -> Any:
        return [complex(1, 2), 3]

    async with app:
        flow = app.flow("m", id="m")
        listing = flow.add("listing", kit.listing, 3)
        flow.map(summed, listing.output)
        flow.map(shown, listing.output, name="known")
        flow.map(shown, flow.add("odd", odd).output, name="pickled")
        outputs = await (await flow.start()).result("20s")
        assert outputs["summed"] == [0, 1, 2]
        assert outputs["known"] == ["(0,)", "(1,)", "(2,)"]
        assert outputs["pickled"] == ["((1+2j),)", "(3,)"]


async def test_maps_that_cannot_be_are_refused_at_the_call(app: App):
    kit, others = mapping(app), workflows(app)
    flow = app.flow("m", id="m")
    one, many = flow.add("one", others.number, 1), flow.add("many", kit.listing, 3)
    with pytest.raises(InvalidFlow, match=r"takes list.*'one' gives int"):
        flow.map(kit.twice, one.output)
    with pytest.raises(InvalidFlow, match=r"takes list.str., but 'many' gives list.int."):
        flow.map(others.text, many.output)
    with pytest.raises(InvalidFlow, match="max_parallel"):
        flow.map(kit.twice, many.output, max_parallel=0)
    with pytest.raises(LimitExceeded, match="characters"):
        flow.map(kit.twice, many.output, name="x" * 249)
    with pytest.raises(outlast.InvalidInput, match="no id"):
        flow.map(kit.twice.options(id="mine"), many.output, name="named")
    flow = app.flow("m", id="m")
    flow.map(kit.twice, flow.add("many", kit.listing, 3).output).after(join=outlast.quorum(1))
    async with app:
        with pytest.raises(InvalidFlow, match=r"it needs all_of\(\) its items, not quorum\(1\)"):
            await flow.start()
        assert await app.count() == 0


@pytest.mark.parametrize(
    "items, options, said",
    [
        ([1, 2, "bad"], {}, "Expected `int`"),
        ([1, 2, 3], {"name": "taken"}, r"two members 'taken\[2\]'"),
        (5, {}, "a map takes a list, or the output"),
        (None, {}, "a map takes a list, or the output"),
        ([1, 2], {"max_parallel": "2"}, "max_parallel must be a whole number"),
        ([1, 2], {"max_parallel": 1.5}, "max_parallel must be a whole number"),
    ],
    ids=str,
)
def test_nothing_is_left_of_a_map_that_was_refused(app: App, items: Any, options: Any, said: str):
    kit = mapping(app)
    flow = app.flow("m", id="m")
    flow.add("taken[2]", kit.twice, 1)
    with pytest.raises(outlast.InvalidInput, match=said):
        flow.map(kit.twice, items, **options)
    assert [member.name for member in flow.built()[1]] == ["taken[2]"]
    flow.map(kit.twice, [1, 2])


async def test_nothing_is_left_of_a_map_over_the_limit(app: App, monkeypatch: pytest.MonkeyPatch):
    kit = mapping(app)
    flow = app.flow("m", id="m")
    many = flow.add("many", kit.listing, 3)
    monkeypatch.setattr("outlast.limits.FLOW_MEMBERS_MAX", 2)
    for items in (itertools.count(), many.output):
        with pytest.raises(LimitExceeded, match="members"):
            flow.map(kit.twice, items)
        assert [member.name for member in flow.built()[1]] == ["many"]


async def test_more_items_than_a_flow_may_have_are_refused_before_any_is_added(
    app: App, monkeypatch: pytest.MonkeyPatch
):
    kit = mapping(app)
    async with app:
        flow = mapped(app, kit, 20)
        monkeypatch.setattr("outlast.limits.FLOW_MEMBERS_MAX", 20)
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="items"):
            await fh.result("20s")
        with pytest.raises(LimitExceeded):
            await app.execution("m/items[*]").result()
        assert (await fh.status()).members == 3


async def test_an_item_that_fails_skips_the_results_and_a_retry_keeps_the_others(app: App):
    kit, others = mapping(app), workflows(app)
    good = False

    @app.workflow
    async def picky(x: int) -> int:
        if x == 4 and not good:
            raise ValueError("not four")
        return x

    async with app:
        flow = app.flow("m", id="m")
        items = flow.map(picky, flow.add("listing", kit.listing, 9).output, max_parallel=2)
        flow.add("sum", others.total, items.output)
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="not four"):
            await fh.result("20s")
        ends = await statuses(fh)
        assert {name for name, end in ends.items() if end != "succeeded"} == {"picky[4]", "picky", "sum"}
        good = True
        await fh.retry()
        outputs = await fh.result("20s")
        assert outputs["picky"] == list(range(9))
        assert outputs["sum"] == sum(range(9))


@pytest.mark.parametrize("max_parallel", [1, 2, 20])
async def test_items_that_wait_for_their_turn_are_cancelled_if_nobody_needs_them(app: App, max_parallel: int):
    begun: list[int] = []

    @app.workflow
    async def item(number: int) -> int:
        begun.append(number)
        return number if number == 0 else await outlast.receive("go", int)

    async with app:
        flow = app.flow("m", id="m")
        mapped = flow.map(item, range(20), name="items", max_parallel=max_parallel)
        mapped.after(join=any_of(), on_satisfied="cancel_remaining")
        fh = await flow.start()
        assert await fh.result("20s") == {"items[0]": 0, "items": [0, *[None] * 19]}
        assert {*begun} <= {*range(max_parallel + 1)}, "one may have had its turn by the first, and no other"


async def test_results_that_do_without_failures_have_none_in_their_place(app: App):
    kit = mapping(app)

    @app.workflow
    async def odd(x: int) -> int:
        if x % 2 == 0:
            raise ValueError("even")
        return x

    async with app:
        flow = app.flow("m", id="m")
        items = flow.map(odd, flow.add("listing", kit.listing, 5).output).after(on_failure="run")
        flow.add("last", kit.anything, items.output)
        fh = await flow.start()
        with pytest.raises(FlowFailed):
            await fh.result("20s")
        assert await app.execution("m/last").result() == [None, 1, None, 3, None]


async def test_a_flow_that_grows_may_map_outputs_too(app: App):
    kit = mapping(app)

    @app.workflow
    async def grows(count: int) -> None:
        growth = outlast.flow()
        growth.map(kit.twice, growth.add("listing", kit.listing, count).output, name="items")
        await growth.start()

    async with app:
        flow = app.flow("m", id="m")
        flow.add("grows", grows, 4)
        assert (await (await flow.start()).result("20s"))["items"] == [0, 2, 4, 6]


@pytest.mark.parametrize("max_parallel", [None, 1])
async def test_no_item_runs_if_the_map_ended_before_all_were_added(
    app: App, monkeypatch: pytest.MonkeyPatch, max_parallel: int | None
):
    """Its name is taken by what another member added, which is found out when some of them stand already."""
    monkeypatch.setattr("outlast.limits.FLOW_GROWTH_MAX", 2)
    kit = mapping(app)

    @app.workflow
    async def grower() -> None:
        growth = outlast.flow()
        growth.add("items[5]", kit.twice, 1)
        await growth.start()

    async with app:
        flow = mapped(app, kit, 6, max_parallel)
        flow.add("grower", grower)
        flow._members["listing"].after("grower")
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="already"):
            await fh.result("20s")
        ends = await statuses(fh)
        assert ends.pop("items[5]") == ends.pop("listing") == ends.pop("grower") == "succeeded"
        assert ends.pop("items[*]") == "failed"
        assert ends == dict.fromkeys(("items", *(f"items[{n}]" for n in range(4))), "skipped")


def before_part(app: App, monkeypatch: pytest.MonkeyPatch, part: int, happens: Callable[[], Awaitable[Any]]) -> None:
    """It happens once, when `items[*]` looks who joins what it is about to add. Each part has two items."""
    monkeypatch.setattr("outlast.limits.FLOW_GROWTH_MAX", 2)
    engine, due = engine_of(app), [happens]
    views = engine.flows.views

    async def look(partition: int, namespace: str, ids: list[str], *rest: Any) -> Any:
        looks = ids == ["m/items"] and not rest and due
        if looks and (part == 1 or await views(partition, namespace, ["m/items[1]"])):
            await due.pop()()
        return await views(partition, namespace, ids, *rest)

    monkeypatch.setattr(engine.flows, "views", look)


@pytest.mark.parametrize("part", [1, 2])
async def test_a_map_whose_results_nobody_waits_for_any_more_adds_nothing_more(
    app: App, monkeypatch: pytest.MonkeyPatch, part: int
):
    kit = mapping(app)
    async with app:
        before_part(app, monkeypatch, part, lambda: app.execution("m/items").cancel())
        fh = await mapped(app, kit, 2 * part).start()
        with pytest.raises(FlowFailed):
            await fh.result("20s")
        ends = await statuses(fh)
        assert ends.pop("listing") == "succeeded"
        assert ends.pop("items") == ends.pop("items[*]") == "cancelled"
        assert ends == dict.fromkeys((f"items[{n}]" for n in range(2 * part - 2)), "skipped")
        await fh.retry()
        assert (await fh.result("20s"))["items"] == [2 * n for n in range(2 * part)]


@pytest.mark.parametrize("part, max_parallel", [(1, None), (2, None), (2, 1)])
async def test_a_map_that_a_join_does_not_need_is_cancelled_as_a_whole(
    app: App, monkeypatch: pytest.MonkeyPatch, part: int, max_parallel: int | None
):
    kit, others = mapping(app), workflows(app)
    FAILS.add("report")

    async def satisfied() -> None:
        await app.execution("m/fast").send("go", 1)
        await member_is(app.flow_handle("m"), "items", Status.CANCELLED)

    async with app:
        before_part(app, monkeypatch, part, satisfied)
        flow = mapped(app, kit, 2 * part, max_parallel)
        fast, first = flow.add("fast", others.waits), flow.add("first", others.number, 5)
        first.after(fast, "items", join=any_of(), on_satisfied="cancel_remaining")
        flow.add("report", others.fails, "report").after(first)
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="report"):
            await fh.result("20s")
        FAILS.discard("report")
        await fh.retry()
        outputs = await fh.result("20s")
        assert outputs == {"listing": list(range(2 * part)), "fast": 1, "first": 5, "report": 1}
        ends = await statuses(fh)
        assert ends["items"] == ends["items[*]"] == "cancelled"
        assert [ends[f"items[{n}]"] for n in range(2 * part - 2)] == ["skipped"] * (2 * part - 2)


# ---- crashes ------------------------------------------------------------------------------------------------------

POINTS_MAX = 2_000


class Life:
    """A process with the flow, until that has ended or the process has died."""

    def __init__(self, place: Place, clock: ManualClock, points: CrashPoints) -> None:
        self.points, self.clock = points, clock
        self.app = place.app(store=lambda: store_for(place.url, clock=clock, points=points), lease_ttl="1d", resident=0)
        self.kit = mapping(self.app)

    async def live(self) -> list[int] | None:
        try:
            async with self.app:
                opened = self.app._opened
                assert opened is not None
                ending = asyncio.create_task(self._end())
                while not ending.done() and not self.points.crashed:
                    await asyncio.wait((ending,), timeout=0.005)
                if self.points.crashed:
                    ending.cancel()
                    await asyncio.gather(ending, return_exceptions=True)
                    self.app._opened = None
                    await asyncio.gather(opened.abandon(), return_exceptions=True)
                    return None
                return ending.result()
        except Crash:
            return None  # while it was opened, or closed

    async def _end(self) -> list[int]:
        fh = await mapped(self.app, self.kit, 5, max_parallel=2).start()
        opened = self.app._opened
        assert opened is not None
        assert opened.reconcilers is not None
        assert opened.worker is not None
        self.clock.advance("2d")
        for row in ("lease_expiry", "outbox"):
            await opened.reconcilers.cycle(row)
        opened.worker.kick()
        return (await fh.result("60s"))["items"]


async def crashes_once(place: Place, point: str, nth: int) -> bool:
    """False if there is no such point any more."""
    clock, points = ManualClock(), CrashPoints()
    points.crash_at(point, nth=nth)
    came = await Life(place, clock, points).live()
    if points.crashed is None:
        assert came == [0, 2, 4, 6, 8]
        return False
    heir = Life(place, clock, CrashPoints())
    assert await heir.live() == [0, 2, 4, 6, 8]
    reader = place.app(store=lambda: store_for(place.url, clock=clock))
    async with reader.client():
        fh = reader.flow_handle("m")
        assert (await fh.status()).counts == {Status.SUCCEEDED: 8}
        found = await engine_of(reader).store.scan(Completion.KIND, ("default",))
        ends = Counter(one.execution for one in found if isinstance(one, Completion))
        assert len(ends) == 8
        assert set(ends.values()) == {1}, "everybody ended once"
    return True


@pytest.mark.parametrize("nth", range(2, 30, 3))
async def test_a_crash_after_a_commit_changes_nothing(place: Place, nth: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outlast.limits.FLOW_GROWTH_MAX", 2)
    await crashes_once(place, "commit:reply", nth)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", ["*:begin", "*:reply"])
async def test_a_crash_at_any_await_changes_nothing(tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch):
    """The store is asked some hundred times: at each of them in turn."""
    monkeypatch.setattr("outlast.limits.FLOW_GROWTH_MAX", 2)
    for nth in range(1, POINTS_MAX):
        if not await crashes_once(Place(await fresh("sqlite", tmp_path, nth)), point, nth):
            assert nth > 30
            return
    pytest.fail("it never came to an end")
