"""Flows: DAGs of executions with data on their edges, joins, skips, retries and maps, on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import outlast
from outlast import (
    App,
    FlowConflict,
    FlowFailed,
    FlowNotFound,
    FlowRefused,
    InvalidArguments,
    InvalidFlow,
    Status,
    any_of,
    quorum,
)
from outlast.errors import InvalidName, LimitExceeded, StoreClosed
from tests.acceptance.conftest import Place, until
from tests.acceptance.flow_workflows import FAILS, Order, member_is, statuses, workflows

# ---- data ---------------------------------------------------------------------------------------------------------


async def test_outputs_are_passed_and_make_the_edges(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("sums", id="sums-1")
        one, two = flow.add("one", kit.number, 1), flow.add("two", kit.number, 2)
        both = flow.add("both", kit.add, one.output, b=two.output)
        flow.add("all", kit.total, [one.output, both.output, 10])
        fh = await flow.start()
        assert await fh.result("20s") == {"one": 1, "two": 2, "both": 3, "all": 14}
        assert (await app.execution("sums-1/both").info()).status is Status.SUCCEEDED
        graph = await fh.graph()
        assert set(graph.edges) == {("one", "both"), ("two", "both"), ("one", "all"), ("both", "all")}
        status = await fh.status()
        assert (status.status, status.members, status.counts) == (Status.SUCCEEDED, 4, {Status.SUCCEEDED: 4})
        assert status.critical_path[-2:] == ("both", "all")


async def test_outputs_go_into_fields_of_dataclasses_and_dicts_and_parts_of_them_out_again(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("shop", id="shop-1")
        pen = flow.add("pen", kit.order, "pen", 3)
        ink = flow.add("ink", kit.prices, Order("ink", pen.output.price), {"pen": pen.output.price})
        flow.add("price", kit.number, ink.output["ink"])
        assert (await (await flow.start()).result("20s"))["price"] == 3


async def test_a_part_that_is_not_there_skips_who_wants_it_and_says_why(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("shop", id="shop-1")
        pen = flow.add("pen", kit.prices, Order("pen", 1), {})
        flow.add("price", kit.number, pen.output["ink"])
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="has no 'ink'"):
            await fh.result("20s")
        assert await statuses(fh) == {"pen": "succeeded", "price": "skipped"}


@pytest.mark.parametrize("given", [None, 5, "ink", [1], {"pen": 1}], ids=str)
async def test_what_has_no_such_part_skips_who_wants_it_whatever_it_is(app: App, given: Any):
    kit = workflows(app)
    async with app:
        flow = app.flow("shop", id="shop-1")
        flow.add("price", kit.number, flow.add("pen", kit.itself, given).output["ink"])
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="has no 'ink'"):
            await fh.result("20s")
        assert await statuses(fh) == {"pen": "succeeded", "price": "skipped"}


async def test_numbers_are_keys_of_dicts_and_places_in_lists(app: App):
    kit = workflows(app)

    @app.workflow
    async def floors() -> dict[int, list[str]]:
        return {1: ["shoes", "hats"]}

    async with app:
        flow = app.flow("shop", id="shop-1")
        flow.add("last", kit.text, flow.add("floors", floors).output[1][-1])
        assert (await (await flow.start()).result("20s"))["last"] == "hats"


async def test_outputs_that_are_there_need_no_time(app: App):
    kit = workflows(app)
    async with app:
        later = app.flow("later", id="later")
        later.add("number", kit.number.options(delay="1h"), 1)
        with pytest.raises(TimeoutError, match="it goes on"):
            await (await later.start()).result(timeout=0)
        flow = app.flow("shop", id="shop-1")
        flow.add("number", kit.number, 1)
        fh = await flow.start()
        assert await fh.result() == await fh.result(timeout=0)


@pytest.mark.parametrize(
    "written", [{"what": "output", "upstreams": ["one"]}, "hello", {"outlast:reference+": 1}], ids=str
)
async def test_what_looks_like_a_reference_arrives_as_it_was_written(app: App, written: Any):
    kit = workflows(app)
    async with app:
        flow = app.flow("odd", id="odd")
        one = flow.add("one", kit.number, 1)
        flow.add("odd", kit.itself, {"it": {"outlast:reference": written}, "one": one.output})
        outputs = await (await flow.start()).result("20s")
        assert outputs["odd"] == {"it": {"outlast:reference": written}, "one": 1}


# ---- refusals -----------------------------------------------------------------------------------------------------


async def test_what_cannot_work_is_refused_and_nothing_is_written(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("bad", id="bad")
        a, b = flow.add("a", kit.number, 1), flow.add("b", kit.number, 2)
        with pytest.raises(InvalidFlow, match="two members 'a'"):
            flow.add("a", kit.number, 1)
        with pytest.raises(InvalidFlow, match="must not contain '/'"):
            flow.add("a/b", kit.number, 1)
        with pytest.raises(InvalidFlow, match="x takes str, but 'a' gives int"):
            flow.add("c", kit.text, a.output)
        with pytest.raises(InvalidArguments):
            flow.add("c", kit.number, "one")
        with pytest.raises(InvalidFlow, match="at least 1"):
            quorum(0)
        c = flow.add("c", kit.add, a.output, b.output)
        a.after(c)
        with pytest.raises(InvalidFlow, match=r"circles: (a → c → a|c → a → c)"):
            await flow.start()
        for wrong, said in (
            (lambda f: f.add("d", kit.number, 1).after("d"), "wait for itself"),
            (lambda f: f.add("d", kit.number, 1).after("nobody"), "'nobody', which is no member"),
            (
                lambda f: f.add("d", kit.number, 1).after(f.add("e", kit.number, 2), join=quorum(2)),
                "but has 1 upstreams",
            ),
            (lambda f: f.add("d", kit.number, 1).after(join=any_of()), "but has 0 upstreams"),
            (
                lambda f: (f.add("p[1]", kit.number, 1), f.map(kit.number, f.add("d", kit.itself, 1).output, name="p")),
                r"'p\[1\]' has the name of an item that map 'p' will add",
            ),
            (lambda f: None, "no members"),
        ):
            flow = app.flow("bad", id="bad")
            wrong(flow)
            with pytest.raises(InvalidFlow, match=said):
                await flow.start()
        with pytest.raises(FlowNotFound):
            await app.flow_handle("bad").status()
        assert await app.count() == 0


def test_a_name_of_which_no_id_can_be_made_asks_for_one(app: App):
    kit = workflows(app)
    with pytest.raises(InvalidName, match="flow 'etl/nightly': must not contain '/' unless an id is given"):
        app.flow("etl/nightly")
    with pytest.raises(LimitExceeded, match="name of a flow without an id: 250 characters is over the limit of 220"):
        app.flow("n" * 250)
    app.flow("n" * 220).add("m", kit.number, 1)
    assert app.flow("etl/nightly", id="etl-1").id == "etl-1"
    with pytest.raises(LimitExceeded, match="id of a member: 257 characters is over the limit of 255"):
        app.flow("f", id="i" * 255).add("m", kit.number, 1)


def test_outputs_of_other_types_are_refused_wherever_they_stand(app: App):
    kit = workflows(app)
    flow = app.flow("bad", id="bad")
    word, pen = flow.add("word", kit.text, "x"), flow.add("pen", kit.order, "pen", 3)
    prices = flow.add("prices", kit.prices, Order("ink", 1), {"pen": pen.output.price})
    for given, said in (
        (lambda: flow.add("c", kit.total, [1, word.output]), r"xs\[1\] takes int, but 'word' gives str"),
        (lambda: flow.add("c", kit.prices, Order("ink", word.output), {}), r"order.price takes int, but 'word'"),
        (lambda: flow.add("c", kit.prices, Order("ink", 1), {"a": word.output}), r"by_name\['a'\] takes int"),
        (lambda: flow.add("c", kit.number, pen.output), "x takes int, but 'pen' gives Order"),
        (lambda: flow.add("c", kit.number, pen.output.item), r"'pen', at \['item'\], gives str"),
        (lambda: flow.add("c", kit.text, prices.output["ink"]), r"'prices', at \['ink'\], gives int"),
        (lambda: flow.map(kit.number, pen.output.item), r"map 'number' takes list\[int\], but 'pen', at"),
    ):
        with pytest.raises(InvalidFlow, match=said):
            given()
    flow.add("c", kit.itself, {"any": [word.output, pen.output["item"]]})


def test_members_of_another_flow_are_refused(app: App):
    kit = workflows(app)
    flow, other = app.flow("f", id="f"), app.flow("g", id="g")
    for each in (flow, other):
        each.add("a", kit.number, 1)
    stranger = other.add("b", kit.fails)
    for given in (
        lambda: flow.add("c", kit.number, stranger.output),
        lambda: flow.add("d", kit.total, [stranger.output]),
        lambda: flow.add("e", kit.told, stranger.failure, 1),
        lambda: flow.add("f", kit.number, 1).after(stranger),
    ):
        with pytest.raises(InvalidFlow, match="cannot wait for <member 'b' of flow 'g'>"):
            given()


def test_no_text_is_made_of_what_is_not_known_yet_and_nothing_decided_by_it(app: App):
    kit = workflows(app)
    flow = app.flow("f", id="f")
    a = flow.add("a", kit.number, 1)
    for wrong in (
        lambda: f"{a.output}",
        lambda: str(a.output),
        lambda: f"{a.output:>5}",
        lambda: bool(a.output),
        lambda: a.output == 3,
        lambda: a.output != 3,
    ):
        with pytest.raises(InvalidFlow, match="is not known yet"):
            wrong()
    one: Any = a.output
    assert {one: "as a key"}[one] == "as a key"


def test_a_flow_over_the_limits_is_refused(app: App, monkeypatch: pytest.MonkeyPatch):
    kit = workflows(app)
    monkeypatch.setattr("outlast.limits.FLOW_MEMBERS_MAX", 3)
    flow = app.flow("large")
    for n in range(3):
        flow.add(f"m{n}", kit.number, n)
    with pytest.raises(LimitExceeded):
        flow.add("m3", kit.number, 3)
    monkeypatch.setattr("outlast.limits.FLOW_EDGES_MAX", 1)
    flow = app.flow("dense")
    a = flow.add("a", kit.number, 1)
    flow.add("b", kit.number, 1).after(a)
    flow.add("c", kit.number, 1).after(a)
    with pytest.raises(LimitExceeded):
        flow.built()


async def test_the_same_id_is_the_same_flow_and_with_other_members_a_conflict(app: App):
    kit = workflows(app)

    def flow(x: int) -> outlast.Flow:
        made = app.flow("same", id="same")
        made.add("a", kit.number, x)
        return made

    async with app:
        first = await flow(1).start()
        assert await first.result("20s") == {"a": 1}
        assert await (await flow(1).start()).result("20s") == {"a": 1}
        with pytest.raises(FlowConflict, match="other members"):
            await flow(2).start()
        await kit.number.options(id="taken").start(1)
        other = app.flow("taken", id="taken")
        other.add("a", kit.number, 1)
        with pytest.raises(FlowConflict, match="execution"):
            await other.start()
        with pytest.raises(FlowNotFound):
            await app.flow_handle("nowhere").result("20s")
        assert await app.count() == 2


# ---- joins --------------------------------------------------------------------------------------------------------


async def test_a_flow_is_the_same_whatever_the_order_of_its_sets_and_dicts(app: App):
    kit = workflows(app)

    @app.workflow
    async def picked(of: set[int], at: Any, x: int) -> int:
        return x

    def flow(of: set[int], at: dict[Any, Any]) -> outlast.Flow:
        flow = app.flow("f", id="f")
        one = flow.add("one", kit.number, 1)
        flow.add("picked", picked, of, {**at, "x": [one.output, of]}, one.output)
        return flow

    # Both fall into one slot of a set: they come as they were put in.
    assert list({0, 8}) != list({8, 0})
    async with app:
        await flow({0, 8}, {"a": 1, 2: {8, 0}}).start()
        fh = await flow({8, 0}, {2: {0, 8}, "a": 1}).start()
        assert (await fh.result("20s"))["picked"] == 1
        with pytest.raises(FlowConflict):
            await flow({8, 1}, {2: {0, 8}, "a": 1}).start()


async def test_a_failure_skips_all_that_needs_it_and_nothing_else(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        bad, good = flow.add("bad", kit.fails), flow.add("good", kit.number, 2)
        skipped = flow.add("skipped", kit.add, bad.output, good.output)
        flow.add("below", kit.number, skipped.output)
        flow.add("beside", kit.number, good.output)
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="bad") as raised:
            await fh.result("20s")
        assert set(raised.value.members) == {"bad", "skipped", "below"}
        assert await statuses(fh) == {
            "bad": "failed",
            "good": "succeeded",
            "skipped": "skipped",
            "below": "skipped",
            "beside": "succeeded",
        }


async def test_any_of_and_quorum_make_up_for_failures(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        bad, a, b = flow.add("bad", kit.fails), flow.add("a", kit.number, 1), flow.add("b", kit.number, 2)
        flow.add("any", kit.number, 3).after(bad, a, join=any_of())
        flow.add("two", kit.total, [1, 2]).after(bad, a, b, join=quorum(2))
        assert await (await flow.start()).result("20s") == {"a": 1, "b": 2, "any": 3, "two": 3}


async def test_a_join_makes_up_for_a_whole_branch(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        lost = flow.add("lost", kit.number, flow.add("bad", kit.fails).output)
        found = flow.add("found", kit.number, flow.add("good", kit.number, 2).output)
        flow.add("first", kit.itself, [lost.output, found.output]).after(join=any_of())
        fh = await flow.start()
        assert await fh.result("20s") == {"good": 2, "found": 2, "first": [None, 2]}
        assert (await statuses(fh))["lost"] == "skipped"


async def test_a_clean_up_makes_up_for_nothing_however_it_ends(app: App):
    kit = workflows(app)
    FAILS.discard("tidy")
    async with app:
        for name in ("x", "tidy"):  # fails, succeeds
            flow = app.flow("f", id=f"f-{name}")
            bad, good = flow.add("bad", kit.fails), flow.add("good", kit.number, 2)
            clean_up = flow.add("clean-up", kit.fails, name).after(bad, on_failure="run")
            flow.add("first", kit.number, 1).after(clean_up, good, join=any_of())
            with pytest.raises(FlowFailed, match="bad"):
                await (await flow.start()).result("20s")


async def test_a_quorum_is_impossible_as_soon_as_too_many_failed(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        slow, one, two = flow.add("slow", kit.waits), flow.add("one", kit.fails), flow.add("two", kit.fails)
        flow.add("quorum", kit.number, 1).after(slow, one, two, join=quorum(2))
        fh = await flow.start()
        await member_is(fh, "quorum", Status.SKIPPED)
        assert (await statuses(fh))["slow"] in ("active", "suspended", "ready")
        info = await fh.status()
        assert info.status is None
        await app.execution("f/slow").send("go", 1)
        with pytest.raises(FlowFailed):
            await fh.result("20s")


async def test_a_satisfied_join_cancels_what_nobody_needs_any_more(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        fast, slow, shared = flow.add("fast", kit.number, 1), flow.add("slow", kit.waits), flow.add("shared", kit.waits)
        flow.add("first", kit.number, 5).after(fast, slow, shared, join=any_of(), on_satisfied="cancel_remaining")
        flow.add("other", kit.number, shared.output)
        fh = await flow.start()
        await member_is(fh, "slow", Status.CANCELLED)
        assert (await statuses(fh))["shared"] != "cancelled"
        await app.execution("f/shared").send("go", 7)
        assert await fh.result("20s") == {"fast": 1, "shared": 7, "first": 5, "other": 7}


async def test_what_was_cancelled_needs_nothing_any_more(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        fast, slow = flow.add("fast", kit.waits), flow.add("slow", kit.waits)
        flow.add("given_up", kit.number, slow.output)
        flow.add("first", kit.number, 5).after(fast, slow, join=any_of(), on_satisfied="cancel_remaining")
        fh = await flow.start()
        await app.execution("f/given_up").cancel()
        await app.execution("f/fast").send("go", 1)
        with pytest.raises(FlowFailed, match="given_up"):
            await fh.result("20s")
        assert (await statuses(fh))["slow"] == "cancelled"


async def test_what_only_cancelled_siblings_waited_for_is_cancelled_too(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        fast = flow.add("fast", kit.number, 1)
        top, shared = flow.add("top", kit.waits), flow.add("shared", kit.waits)
        middle = flow.add("middle", kit.number, top.output)
        low = flow.add("low", kit.total, [middle.output, shared.output])
        other = flow.add("other", kit.number, top.output)
        flow.add("keeps", kit.number, shared.output)
        first = flow.add("first", kit.number, 5)
        first.after(other, fast, low, join=any_of(), on_satisfied="cancel_remaining")
        fh = await flow.start()
        for name in ("low", "other", "middle", "top"):
            await member_is(fh, name, Status.CANCELLED)
        assert (await statuses(fh))["shared"] != "cancelled", "another needs it"
        await app.execution("f/shared").send("go", 2)
        assert await fh.result("20s") == {"fast": 1, "shared": 2, "keeps": 2, "first": 5}


async def test_a_member_may_run_on_failure_and_sees_all_of_it(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        bad, good = flow.add("bad", kit.fails), flow.add("good", kit.number, 4)
        flow.add("clean-up", kit.told, bad.failure, good.output).after(on_failure="run")
        fine = flow.add("fine", kit.told, good.failure, good.output).after(on_failure="run")
        flow.add("below", kit.text, fine.output)
        fh = await flow.start()
        with pytest.raises(FlowFailed, match="bad"):
            await fh.result("20s")
        assert await app.execution("f/clean-up").result() == "bad failed: no x (4)"
        assert await app.execution("f/below").result() == "fine"


async def test_after_may_be_said_again_and_adds_to_what_was_said(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        bad, good, slow = flow.add("bad", kit.fails), flow.add("good", kit.number, 4), flow.add("slow", kit.waits)
        flow.add("clean-up", kit.told, bad.failure, good.output).after(bad, on_failure="run").after(good)
        first = flow.add("first", kit.number, 1).after(good, join=any_of(), on_satisfied="cancel_remaining")
        first.after(slow)
        with pytest.raises(FlowFailed, match="bad"):
            await (await flow.start()).result("20s")
        assert await app.execution("f/clean-up").result() == "bad failed: no x (4)"
        assert (await app.execution("f/slow").info()).status is Status.CANCELLED


@pytest.mark.parametrize(
    "wrong", [{"join": "all"}, {"on_satisfied": "stop"}, {"on_failure": "stop"}, {"others": (5,)}], ids=str
)
def test_nothing_is_left_of_an_after_that_was_refused(app: App, wrong: dict[str, Any]):
    kit = workflows(app)
    flow = app.flow("f", id="f")
    one, two = flow.add("one", kit.number, 1), flow.add("two", kit.number, 2)
    options: dict[str, Any] = {"join": any_of(), "on_satisfied": "cancel_remaining", "on_failure": "run", **wrong}
    before = flow.built()[0].digest
    with pytest.raises(InvalidFlow):
        two.after(one, *options.pop("others", ()), **options)
    assert flow.built()[0].digest == before


async def test_members_have_options_of_their_own_but_no_name(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        flow.add("a", kit.number.options(tags={"site": "paris"}, priority=3), 1)
        await (await flow.start()).result("20s")
        assert [info.id for info in await app.find(tags={"site": "paris"})] == ["f/a"]
        other = app.flow("g")
        other.add("a", kit.number.options(id="mine"), 1)
        with pytest.raises(outlast.InvalidInput, match="named by it"):
            await other.start()


# ---- large --------------------------------------------------------------------------------------------------------


async def test_a_map_gives_its_results_in_order_however_many_run_at_once(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("m", id="m")
        squares = flow.map(kit.number, range(60), max_parallel=7)
        flow.add("sum", kit.total, squares.output)
        outputs = await (await flow.start()).result("60s")
        assert outputs["number"] == list(range(60))
        assert outputs["sum"] == sum(range(60))


async def test_a_map_over_nothing_gives_nothing(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("m", id="m")
        nothing = flow.map(kit.number, [], max_parallel=2)
        flow.add("sum", kit.total, nothing.output)
        assert await (await flow.start()).result("20s") == {"number": [], "sum": 0}


async def test_a_large_flow_is_staged_and_opened_as_a_whole(place: Place):
    app = place.app()
    kit = workflows(app)
    async with app.client():
        flow = app.flow("large", id="large")
        members = [flow.add(f"m{n}", kit.number, n) for n in range(600)]
        flow.add("sum", kit.total, [member.output for member in members])
        client = app.opened()
        commit = client._engine.commit
        seen: list[tuple[int, int]] = []

        async def watched(changes: Any, **options: Any) -> Any:
            seen.append((await app.count(), len(seen)))
            return await commit(changes, **options)

        client._engine.commit = watched
        await flow.start()
        assert len(seen) > 3
        assert {count for count, _ in seen} == {0}
        assert await app.count() == 601
    async with app:
        assert (await app.flow_handle("large").result("60s"))["sum"] == sum(range(600))


@pytest.mark.parametrize("members", [3, 900])
async def test_a_flow_one_of_whose_ids_is_taken_is_refused_as_a_whole(app: App, members: int):
    kit = workflows(app)

    @app.workflow
    async def leaves_a_child() -> None:
        await kit.waits.options(id="m1", parent_close="abandon").start()

    async with app:
        await leaves_a_child.options(id="f").start()

        async def alone() -> bool:
            await app.purge("0s")
            return [info.id for info in await app.find()] == ["f/m1"]

        await until(alone, "the child did not outlive its parent")
        flow = app.flow("f", id="f")
        for n in range(members):
            flow.add(f"m{n}", kit.number, n)
        with pytest.raises(FlowConflict):
            await flow.start()
        with pytest.raises(FlowNotFound):
            await app.flow_handle("f").status()
        assert [info.id for info in await app.find()] == ["f/m1"]


# ---- once more ----------------------------------------------------------------------------------------------------


async def test_a_retry_opens_what_failed_and_was_skipped_and_keeps_what_succeeded(app: App):
    kit = workflows(app)
    FAILS.add("later")
    async with app:
        flow = app.flow("f", id="f")
        good, bad = flow.add("good", kit.number, 1), flow.add("bad", kit.fails, "later")
        both = flow.add("both", kit.add, good.output, bad.output)
        flow.add("below", kit.number, both.output)
        fh = await flow.start()
        with pytest.raises(FlowFailed):
            await fh.result("20s")
        with pytest.raises(outlast.ExecutionRefused, match="retried with it"):
            await app.execution("f/bad").retry()
        before = await app.execution("f/good").info()
        await fh.retry()
        with pytest.raises(FlowFailed):  # still so
            await fh.result("20s")
        FAILS.discard("later")
        await fh.retry()
        assert await fh.result("20s") == {"good": 1, "bad": 1, "both": 2, "below": 2}
        after = await app.execution("f/good").info()
        assert (after.generation, after.finished_at) == (before.generation, before.finished_at)
        assert (await fh.status()).counts == {Status.SUCCEEDED: 4}
        with pytest.raises(FlowRefused, match="succeeded"):
            await fh.retry()


async def test_whoever_awaits_a_flow_when_the_app_is_closed_is_told(app: App):
    @app.workflow
    async def listener() -> None:
        await outlast.receive("more")

    async with app:
        flow = app.flow("f", id="f")
        flow.add("a", listener)
        fh = await flow.start()
        awaited = asyncio.create_task(fh.result())
        await member_is(fh, "a", Status.SUSPENDED)
    with pytest.raises(StoreClosed, match="closed while somebody waited"):
        await asyncio.wait_for(awaited, 20)


def test_the_blocking_face(app: App):
    kit = workflows(app)

    async def run() -> None:
        async with app:
            flow = app.flow("f", id="f")
            flow.add("a", kit.number, 1)

            def blocking() -> dict[str, Any]:
                fh = flow.sync.start()
                assert fh.graph().members[0].name == "a"
                outputs = fh.result("20s")
                assert fh.status().status is Status.SUCCEEDED
                with pytest.raises(FlowRefused):
                    fh.cancel()
                with pytest.raises(FlowRefused):
                    fh.retry()
                return outputs

            assert await asyncio.to_thread(blocking) == {"a": 1}

    asyncio.run(run())
