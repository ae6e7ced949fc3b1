"""What members of a flow take from each other: parts of outputs, failures, and plain values beside them."""

from __future__ import annotations

import asyncio
import pickle
from base64 import b64encode
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec
import pytest

from outlast import App, CodecError, FlowFailed, InvalidFlow, InvalidInput, UpstreamFailure
from tests.acceptance.conftest import Place
from tests.acceptance.flow_workflows import Order, workflows

A = TypeVar("A")
B = TypeVar("B")


class Camel(msgspec.Struct, rename="camel"):
    unit_price: int


class Row(msgspec.Struct, array_like=True, tag=True):
    item: str
    price: int


class Size(StrEnum):
    SMALL = "small"


class Shelf(NamedTuple):
    room: str
    floor: int


@dataclass
class Pair(Generic[A, B]):
    first: A
    second: B


@dataclass
class Basket:
    customer: int
    prices: list[int]
    note: str | None = None


def shop(app: App) -> Any:
    @app.workflow
    async def camel(price: int) -> Camel:
        return Camel(price)

    @app.workflow
    async def row() -> Row | None:
        return Row("pen", 2)

    @app.workflow
    async def shelf() -> Shelf:
        return Shelf("back", 3)

    @app.workflow
    async def pair() -> Pair[int, str]:
        return Pair(4, "four")

    @app.workflow
    async def paid(basket: Basket) -> int:
        return sum(basket.prices)

    return SimpleNamespace(**{name: value for name, value in locals().items() if name != "app"})


# ---- parts of outputs ---------------------------------------------------------------------------------------------


async def test_fields_are_found_where_json_has_them(app: App):
    kit, made = workflows(app), shop(app)
    async with app:
        flow = app.flow("f", id="f")
        cheap = flow.add("cheap", made.camel, 1)
        row, shelf, pair = flow.add("row", made.row), flow.add("shelf", made.shelf), flow.add("pair", made.pair)
        mapped = flow.map(made.camel, [5, 6])
        parts = [cheap.output.unit_price, cheap.output["unitPrice"], row.output.price, shelf.output.floor]
        parts += [pair.output.first, mapped.output[1].unit_price]
        flow.add("all", kit.itself, parts)
        flow.add("text", kit.text, pair.output.second)
        outputs = await (await flow.start()).result("20s")
        assert outputs["all"] == [1, 1, 2, 3, 4, 6]
        assert outputs["text"] == "four"


def test_a_part_that_cannot_be_there_is_refused_at_the_call(app: App):
    kit, made = workflows(app), shop(app)
    flow = app.flow("f", id="f")
    cheap, pair, number = flow.add("cheap", made.camel, 1), flow.add("pair", made.pair), flow.add("one", kit.number, 1)
    mapped = flow.map(made.camel, [5, 6])
    for given, said in (
        (lambda: cheap.output.price, "'cheap' gives no 'price': there is none in Camel"),
        (lambda: cheap.output.unit_price.cents, "gives no 'cents': there is none in int"),
        (lambda: pair.output.third, "gives no 'third': there is none in .*Pair"),
        (lambda: number.output["x"], "'one' gives no 'x': there is none in int"),
        (lambda: cast("Any", mapped.output).first, "gives no 'first': there is none in list"),
        (lambda: mapped.output[0].first, "gives no 'first': there is none in Camel"),
        (lambda: mapped.output[1:], "nothing can be cut out of it"),
        (lambda: mapped.output[number.output], "has a key .* or a place, not <output of member 'one'>"),
        (lambda: mapped.output[cast("Any", 1.5)], "or a place, not 1.5"),
        (lambda: mapped.output[True], "or a place, not True"),
    ):
        with pytest.raises(InvalidFlow, match=said):
            flow.add("x", kit.itself, {"x": [given()]})
    with pytest.raises(InvalidFlow, match="gives no 'price'"):
        flow.map(kit.itself, cheap.output.price)


async def test_keys_may_be_anything_that_json_writes_as_text(app: App):
    kit = workflows(app)

    @app.workflow
    async def by_size() -> dict[Size, dict[date, int]]:
        return {Size.SMALL: {date(2026, 11, 15): 3}}

    async with app:
        flow = app.flow("f", id="f")
        flow.add("one", kit.number, flow.add("prices", by_size).output[Size.SMALL][date(2026, 11, 15)])
        assert (await (await flow.start()).result("20s"))["one"] == 3


# ---- beside outputs -----------------------------------------------------------------------------------------------


async def test_what_stands_beside_an_output_is_checked_as_well(app: App):
    kit, made = workflows(app), shop(app)
    async with app:
        flow = app.flow("f", id="f")
        one = flow.add("one", kit.number, 1)
        for wrong, said in (
            (
                lambda: flow.add("x", made.paid, Basket(cast("Any", "Ada"), [one.output])),
                "basket.customer: Expected `int`",
            ),
            (
                lambda: flow.add("x", made.paid, Basket(1, [one.output, cast("Any", "2")])),
                r"basket.prices\[1\]: Expected `int`",
            ),
            (
                lambda: flow.add("x", made.paid, {"customer": "Ada", "prices": [one.output]}),
                r"\['customer'\]: Expected",
            ),
            (lambda: flow.add("x", kit.total, [one.output, "2"]), r"xs\[1\]: Expected `int`, got `str`"),
            (lambda: flow.add("x", kit.prices, one.output, {"a": one.output, "b": "2"}), r"'one' gives int"),
            (
                lambda: flow.add("x", kit.prices, Order("a", 1), {"a": one.output, "b": "2"}),
                r"by_name\['b'\]: Expected",
            ),
        ):
            with pytest.raises(InvalidInput, match=said):
                wrong()
        flow.add("paid", made.paid, Basket(1, [one.output, 2]))
        flow.add("any", kit.itself, {"basket": Basket(cast("Any", "Ada"), [one.output]), "set": {one.output}})
        outputs = await (await flow.start()).result("20s")
        assert outputs["paid"] == 3
        assert outputs["any"] == {"basket": {"customer": "Ada", "prices": [1], "note": None}, "set": [1]}


# ---- failures -----------------------------------------------------------------------------------------------------


async def test_a_failure_says_for_what_cause_its_member_ended(app: App):
    kit = workflows(app)

    @app.workflow(timeout="100ms")
    async def slow() -> int:
        await asyncio.get_running_loop().create_future()
        return 1

    @app.workflow
    async def causes(failures: list[UpstreamFailure | None]) -> list[str]:
        return [f"{failure.status}, {failure.cause}, {failure.message}" for failure in failures if failure is not None]

    async with app:
        flow = app.flow("f", id="f")
        late, bad = flow.add("late", slow), flow.add("bad", kit.fails)
        below = flow.add("below", kit.number, bad.output)
        flow.add("told", causes, [one.failure for one in (late, bad, below)]).after(on_failure="run")
        with pytest.raises(FlowFailed):
            await (await flow.start()).result("20s")
        assert await app.execution("f/told").result() == [
            "expired, attempt_timeout, ",
            "failed, failed, no x",
            "skipped, bad failed, ",
        ]


async def test_an_output_that_does_not_fit_the_code_of_today_fails_its_member(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        flow.add("number", kit.number, flow.add("any", kit.itself, "text").output)
        with pytest.raises(FlowFailed):
            await (await flow.start()).result("20s")
        with pytest.raises(CodecError, match="Expected `int`, got `str`"):
            await app.execution("f/number").result()


EXPLODED: list[str] = []


def explode(what: str) -> None:
    EXPLODED.append(what)


class Bomb:
    """Reading it back runs code."""

    def __reduce__(self) -> Any:
        return (explode, ("a pickle of a stranger was read",))


FROM_THE_WEB = {"items": [{"outlast:pickle": b64encode(pickle.dumps(Bomb())).decode()}]}


async def test_what_only_looks_pickled_is_never_read_as_a_pickle(place: Place):
    app = place.app(allow_pickle=True)
    kit = workflows(app)

    async with app:
        flow = app.flow("f", id="f")
        page = flow.add("page", kit.itself, FROM_THE_WEB)
        text = flow.add("text", kit.itself, FROM_THE_WEB["items"][0]["outlast:pickle"])
        flow.add("part", kit.itself, page.output["items"][0])
        flow.add("listed", kit.itself, [page.output["items"][0]])
        flow.map(kit.itself, page.output["items"], name="items")
        flow.add("made", kit.itself, {"outlast:pickle": text.output})
        flow.add("whole", kit.itself, page.output)
        fh = await flow.start()
        with pytest.raises(FlowFailed):
            await fh.result("20s")
        assert not EXPLODED
        ends = {member.name: member.cause for member in (await fh.graph()).members if member.status != "succeeded"}
        assert ends.keys() == {"part", "listed", "items[*]", "items", "made"}
        for name in ("part", "listed"):
            assert "the output of 'page' has a part that looks like a pickled value" in (ends[name] or "")
        assert "an argument looks like a pickled value" in (ends["made"] or "")
        with pytest.raises(CodecError, match="map 'items': item 0 looks like a pickled value"):
            await app.execution("f/items[*]").result()
        assert await app.execution("f/whole").result() == FROM_THE_WEB


async def test_what_was_pickled_is_an_argument_by_itself_or_none(place: Place):
    app = place.app(allow_pickle=True)
    kit = workflows(app)

    @app.workflow
    async def odd(number: int) -> Any:
        return complex(number, 0)

    async with app:
        flow = app.flow("f", id="f")
        one = flow.add("one", odd, 1)
        flow.add("alone", kit.itself, one.output)
        flow.add("listed", kit.itself, [one.output])
        flow.add("part", kit.itself, one.output["real"])
        flow.map(odd, [1, 2], name="mapped")
        fh = await flow.start()
        with pytest.raises(FlowFailed):
            await fh.result("20s")
        ends = {member.name: member.cause for member in (await fh.graph()).members if member.status != "succeeded"}
        assert ends.keys() == {"listed", "part", "mapped"}
        assert "the output of 'one' was pickled, and can only be an argument by itself" in (ends["listed"] or "")
        assert "the output of 'mapped[0]' was pickled" in (ends["mapped"] or "")
        assert "no part of it can be taken" in (ends["part"] or "")
        assert await app.execution("f/alone").result() == 1 + 0j


def test_a_failure_is_no_number(app: App):
    kit = workflows(app)
    flow = app.flow("f", id="f")
    bad = flow.add("bad", kit.fails)
    with pytest.raises(InvalidFlow, match=r"x takes int, but the failure of 'bad' is .*UpstreamFailure \| None"):
        flow.add("x", kit.number, bad.failure)


# ---- where they may stand -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pickles", [False, True])
async def test_outside_its_flow_an_output_is_no_argument(place: Place, pickles: bool):
    app = place.app(allow_pickle=pickles)
    kit = workflows(app)
    one = app.flow("f", id="f").add("one", kit.itself, 1)
    async with app:
        for given in (one.output, one.output.part, {"x": [one.failure]}):
            with pytest.raises(CodecError, match=r"of member 'one'>, which can only be an argument of a member"):
                await kit.itself.start(given)
