"""Whether an output can be an argument: refused only if it certainly cannot, wherever it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from outlast.authoring.fitting import fits, part_of, places_in


@dataclass
class Order:
    item: str
    prices: list[int]


class Row(msgspec.Struct, array_like=True):
    item: str


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
        (tuple[int, str], (5,), Any),
        (tuple[int, ...], (7,), int),
        (Order, ("prices", 0), int),
        (Order | None, ("item",), str),
        (Annotated[Order, "note"], ("item",), str),
        (Page, ("rows", "x", "prices"), list[int]),
        (Typed, ("item",), str),
        (Order, ("nothing",), Any),
        (Order | Page, ("item",), Any),
        (list[int], ("x",), Any),
        (Lost, ("item",), Any),
        (int, ("x",), Any),
        (Any, ("x", 1), Any),
    ],
    ids=str,
)
def test_a_part_is_what_is_declared_of_it(annotation: Any, path: tuple[Any, ...], found: Any):
    assert part_of(annotation, path) == found


def test_values_of_a_kind_are_found_at_any_depth():
    class Mark:
        pass

    one, two, three = Mark(), Mark(), Mark()
    order: Any = Order("pen", [1, two])  # type: ignore[list-item]
    found = {where: (mark, declared) for where, mark, declared in places_in({"a": [one, order], "b": three}, Any, Mark)}
    assert found == {"['a'][0]": (one, Any), "['a'][1].prices[1]": (two, int), "['b']": (three, Any)}
