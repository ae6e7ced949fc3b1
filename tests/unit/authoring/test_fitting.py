"""Whether an output can be an argument: refused only if it certainly cannot, wherever it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest

from outlast.authoring.fitting import Absent, fits
from outlast.authoring.parts import part_of, places_in, plain_in, stored_path

A = TypeVar("A")
B = TypeVar("B")


@dataclass
class Order:
    item: str
    prices: list[int]


class Row(msgspec.Struct, array_like=True):
    item: str


class Renamed(msgspec.Struct, rename="camel", tag_field="kind", tag=True):
    unit_price: int


class TaggedRow(msgspec.Struct, array_like=True, tag=True):
    item: str


class Place(NamedTuple):
    city: str
    floor: int


@dataclass
class Pair(Generic[A, B]):
    first: A
    second: B


class Page(msgspec.Struct):
    rows: dict[str, Order]


class Typed(TypedDict):
    item: str


@dataclass
class Lost:
    item: Nowhere  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "given, taken",
    [
        (int, float),
        (int, int | None),
        (int | None, int),
        (Order, dict[str, Any]),
        (dict[str, Any], Order),
        (Order, Typed),
        (Row, list[str]),
        (datetime, str),
        (list[int], Sequence[int]),
        (tuple[int, ...], list[int]),
        (Any, int),
        (Order, object),
        (Pair[int, str], dict[str, int]),
        (dict[str, int], Pair[int, str]),
        (Pair[int, str], Pair[int, int]),
    ],
    ids=str,
)
def test_what_may_be_fits(given: Any, taken: Any):
    assert fits(given, taken)


@pytest.mark.parametrize(
    "given, taken",
    [
        (int, str),
        (bool, int),
        (type(None), int),
        (list[str], list[int]),
        (dict[str, str], Mapping[str, int]),
        (Order, int),
        (Order, list[str]),
        (str, Order),
        (list[int], Typed),
        (int | str, list[int]),
    ],
    ids=str,
)
def test_what_cannot_be_does_not(given: Any, taken: Any):
    assert not fits(given, taken)


@pytest.mark.parametrize(
    "annotation, path, found",
    [
        (dict[str, int], ("a",), int),
        (dict[int, str], (1,), str),
        (list[int], (0,), int),
        (tuple[int, str], (1,), str),
        (tuple[int, str], (5,), Absent(tuple[int, str], 5)),
        (tuple[int, ...], (7,), int),
        (Order, ("prices", 0), int),
        (Order | None, ("item",), str),
        (Annotated[Order, "note"], ("item",), str),
        (Page, ("rows", "x", "prices"), list[int]),
        (Typed, ("item",), str),
        (Order, ("nothing",), Absent(Order, "nothing")),
        (Order | Page, ("item",), Any),
        (list[int], ("x",), Absent(list[int], "x")),
        (Lost, ("item",), Any),
        (int, ("x",), Absent(int, "x")),
        (int, ("x", "y"), Absent(int, "x")),
        (Row, ("item",), str),
        (Row, (0,), str),
        (Row, ("price",), Absent(Row, "price")),
        (Renamed, ("unit_price",), int),
        (Renamed, ("unitPrice",), int),
        (Renamed, ("kind",), Any),
        (Pair[int, str], ("first",), int),
        (Pair[int, str], ("second",), str),
        (Pair, ("first",), Any),
        (Place, ("floor",), int),
        (Typed, ("extra",), Any),
        (Any, ("x", 1), Any),
    ],
    ids=str,
)
def test_a_part_is_what_is_declared_of_it(annotation: Any, path: tuple[Any, ...], found: Any):
    assert part_of(annotation, path) == found


@pytest.mark.parametrize(
    "annotation, path, stored",
    [
        (Renamed, ("unit_price",), ("unitPrice",)),
        (Renamed, ("unitPrice",), ("unitPrice",)),
        (list[Renamed | None], (1, "unit_price"), (1, "unitPrice")),
        (Row, ("item",), (0,)),
        (TaggedRow, ("item",), (1,)),
        (Place, ("floor",), (1,)),
        (Order, ("item",), ("item",)),
        (Any, ("unit_price",), ("unit_price",)),
    ],
    ids=str,
)
def test_json_may_have_a_part_elsewhere(annotation: Any, path: tuple[Any, ...], stored: tuple[Any, ...]):
    assert stored_path(annotation, path) == stored


def test_plain_parts_are_told_with_what_is_declared_of_them():
    class Mark:
        pass

    order: Any = Order("pen", [1, Mark()])  # type: ignore[list-item]
    value = {"a": [order, Order("ink", [2])], "b": Typed(item="x")}
    found = plain_in(value, dict[str, list[Order]], Mark, "x")
    assert found == [
        ("x['a'][0].item", "pen", str),
        ("x['a'][0].prices[0]", 1, int),
        ("x['a'][1]", Order("ink", [2]), Order),
        ("x['b']", Typed(item="x"), list[Order]),
    ]
    # What else may take an order does not mind what is in its fields.
    assert plain_in([order], list[Any], Mark, "x") == plain_in(order, dict[str, Any], Mark, "x") == []
    assert plain_in(value, Any, Mark, "x") == plain_in(Order("ink", [2]), Order, Mark, "x") == []


def test_values_of_a_kind_are_found_at_any_depth():
    class Mark:
        pass

    one, two, three = Mark(), Mark(), Mark()
    order: Any = Order("pen", [1, two])  # type: ignore[list-item]
    found = {where: (mark, declared) for where, mark, declared in places_in({"a": [one, order], "b": three}, Any, Mark)}
    assert found == {"['a'][0]": (one, Any), "['a'][1].prices[1]": (two, int), "['b']": (three, Any)}
