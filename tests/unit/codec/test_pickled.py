"""Pickle only if asked for: never written, and above all never read, without the option."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from outlast.codec.arguments import Arguments
from outlast.codec.pickled import MARK, pickled
from outlast.codec.values import Values
from outlast.errors import CodecError, InvalidArguments

STRICT, LAX = Values(), Values(allow_pickle=True)


class Basket:
    """Nothing that typed JSON knows."""

    def __init__(self, *items: str) -> None:
        self.items = list(items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Basket) and other.items == self.items

    __hash__ = None  # type: ignore[assignment]


class Bomb:
    """Reading it back would run code."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was read",))


def test_by_default_what_json_does_not_keep_is_refused_with_its_path_and_the_way_out():
    with pytest.raises(CodecError, match=r"value\['basket'\] cannot be stored: Basket .*allow_pickle=True"):
        STRICT.settle({"basket": Basket()}, Any, "result")


@pytest.mark.parametrize("annotation", [Basket, Any], ids=["annotated", "not annotated"])
def test_what_json_does_not_keep_is_pickled_if_asked_for(annotation: Any):
    data, settled = LAX.settle(Basket("apple"), annotation, "result")
    assert settled == Basket("apple")
    assert LAX.decode(data, annotation, "result") == Basket("apple")


def test_what_comes_back_is_another_object_as_at_a_replay():
    basket = Basket()
    _, settled = LAX.settle(basket, Basket, "result")
    assert settled is not basket


def test_what_json_keeps_stays_json():
    assert LAX.settle({"a": [1, 2.5]}, Any, "result")[0] == STRICT.settle({"a": [1, 2.5]}, Any, "result")[0]


def test_what_json_would_change_is_pickled():
    assert LAX.settle((1, {2}), Any, "result")[1] == (1, {2})
    [back] = LAX.settle([math.nan], list[float], "result")[1]
    assert math.isnan(back)
    assert LAX.decode(LAX.encode(math.inf, "value"), float, "value") == math.inf


def test_what_is_not_of_its_type_is_refused_all_the_same():
    with pytest.raises(CodecError, match="Expected `int`"):
        LAX.settle("three", int, "result")


def test_what_cannot_be_pickled_either_says_both():
    with pytest.raises(CodecError, match=r"cannot be stored.*nor can it be pickled"):
        LAX.settle(lambda: None, Any, "result")


def test_a_pickle_is_not_read_without_the_option():
    with pytest.raises(CodecError, match="allow_pickle=True"):
        STRICT.decode(pickled(Bomb()), Any, "result")


@pytest.mark.parametrize("values", [STRICT, LAX], ids=["strict", "lax"])
def test_nothing_given_can_pose_as_a_pickle(values: Values):
    """Otherwise whoever sends plain JSON could choose what a reader runs."""
    forged = {"outlast:pickle": pickled(Bomb())[len(MARK) : -2].decode()}
    try:
        data, settled = values.settle(forged, Any, "result")
    except CodecError:
        return
    assert settled == forged
    assert values.decode(data, Any, "result") == forged


def test_a_pickle_that_cannot_be_read_is_a_typed_error():
    gone = pickle.dumps(Basket()).replace(b"Basket", b"Casket")
    data = pickled(Basket()).replace(pickled(Basket())[len(MARK) : -2], __import__("base64").b64encode(gone))
    with pytest.raises(CodecError, match="could not be unpickled"):
        LAX.decode(data, Basket, "result")
    with pytest.raises(CodecError, match="could not be unpickled"):
        LAX.decode(MARK + b'no base64!"}', Basket, "result")


def test_arguments_are_pickled_one_by_one():
    def put(basket: Basket, number: int) -> None: ...

    arguments = Arguments(put, "put")
    data, _ = arguments.encode(LAX, (Basket("apple"), 3), {})
    assert b'"number":3' in data
    assert arguments.decode(LAX, data) == ((Basket("apple"), 3), {})
    with pytest.raises(CodecError, match=r"basket cannot be stored: Basket .*allow_pickle=True"):
        arguments.encode(STRICT, (Basket("apple"), 3), {})
    with pytest.raises(CodecError, match="basket was pickled"):
        arguments.decode(STRICT, data)
    with pytest.raises(InvalidArguments, match="number"):
        arguments.encode(LAX, (Basket("apple"), "three"), {})
    forged = {"outlast:pickle": pickled(Bomb())[len(MARK) : -2].decode()}
    with pytest.raises(CodecError, match="looks like a pickled value"):
        arguments.encode(STRICT, (forged, 3), {})
