"""A value comes back equal, by its annotation, or is refused where it is given, with the path of the culprit."""

from __future__ import annotations

import dataclasses
import enum
import math
import subprocess
import sys
from collections import OrderedDict
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import limits
from outlast.codec.values import Values
from outlast.errors import CodecError, InvalidInput, LimitExceeded
from tests.unit.codec.kinds import (
    LINE,
    ORDER,
    ROUND_TRIPS,
    Address,
    Attrs,
    BigOrder,
    Line,
    Model,
    Order,
    Point,
    Renamed,
    Secretive,
    Size,
    Sku,
    Tree,
    Unequal,
)

values = Values()


def same(one: object, other: object) -> bool:
    if isinstance(one, Decimal):
        return str(one) == str(other)
    if isinstance(one, Unequal):
        return isinstance(other, Unequal) and repr(one) == repr(other)
    return one == other


@pytest.mark.parametrize("value, annotation", ROUND_TRIPS, ids=lambda value: str(value)[:40])
def test_value_is_the_same_live_and_replayed(value: Any, annotation: Any):
    data, live = values.settle(value, annotation, "it")
    replayed = values.decode(data, annotation, "it")
    assert same(live, value)
    assert same(replayed, live)
    assert type(replayed) is type(live)
    if annotation not in (float, Any, object, Sku, bytearray) and not isinstance(value, int):
        assert type(live) is type(value)


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain_json)
def test_plain_json_comes_back_without_an_annotation(value: object):
    data, live = values.settle(value, Any, "it")
    assert live == value
    assert values.decode(data, Any, "it") == value


def test_dict_keeps_its_order():
    assert list(values.settle({"b": 1, "a": 2}, dict[str, int], "it")[1]) == ["b", "a"]


def test_tuple_without_an_annotation_is_a_list():
    assert values.settle((1, (2, 3)), Any, "it")[1] == [1, [2, 3]]


@pytest.mark.parametrize(
    "value, annotation, seen",
    [
        ({"sku": "tea", "price": "3.50", "colour": "red"}, Line, LINE),
        ({"firstName": "Ada"}, Renamed, Renamed("Ada")),
        ({"number": 1}, Attrs, Attrs(1)),
        ({"number": 1}, Model, Model(number=1)),
        ("2026-01-02", date, date(2026, 1, 2)),
        ([2, 1], set[int], {1, 2}),
        ([1, 2.0], Point, Point(1, 2.0)),
        (["tea", "milk"], tuple[str, ...], ("tea", "milk")),
    ],
    ids=str,
)
def test_plain_json_may_be_given_for_a_declared_type(value: Any, annotation: Any, seen: Any):
    assert values.settle(value, annotation, "it")[1] == seen


class Opaque:
    pass


@attrs.define
class Hiding:
    _needed: int | None
    _known: dict[int, int] = attrs.field(factory=dict)


@attrs.define
class Cached:
    number: int
    _known: dict[int, int] = attrs.field(factory=dict)


class Uneven(enum.Enum):
    ONE = 1
    TWO = "two"


cyclic: list[Any] = [1]
cyclic.append({"again": cyclic})
deep: list[Any] = []
for _ in range(100_000):  # Python 3.13 takes ten times as much as 3.11
    deep = [deep]
odd_offset = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1, seconds=9)))
bad_line = Line(Sku("tea"), 1j)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value, annotation, path, why",
    [
        (math.nan, float, "value", "nan"),
        (math.inf, float | None, "value", "inf"),
        ({"a": [1.0, -math.inf]}, Any, "value['a'][1]", "-inf"),
        (Order(ORDER.id, [LINE, bad_line], ORDER.placed), Order, "value.lines[1].price", "complex"),
        (Opaque(), Any, "value", "Opaque"),
        ([Opaque], Any, "value[0]", "type"),
        ({"a": "\ud800"}, Any, "value['a']", "surrogate"),
        ({"\ud800": 1}, Any, "key '\\ud800' of value", "surrogate"),
        (cyclic, Any, "value[1]['again']", "contains itself"),
        (deep, Any, "value", "contains itself, or is nested too deeply"),
        ({1: "a", "1": "b"}, Any, "value", "the same in JSON"),
        ({1: "a"}, Any, "value", "key 1 as key '1'"),
        ({(1, 2): "a"}, Any, "key (1, 2) of value", "cannot be stored"),
        ({True: "a"}, dict[bool, str], "key True of value", "cannot be stored"),
        (2**60 + 1, float, "value", "1.15"),
        (10**5_000, int, "value", "int"),
        (odd_offset, datetime, "value", "datetime"),
        ({odd_offset}, set[datetime], "value", "nothing that is equal"),
        ({1, 2}, Any, "value", "annotate it"),
        (LINE, Any, "value", "Line"),
        ([LINE], list, "value[0]", "dict"),
        (Point(1), Any, "value", "Point"),
        (b"ab", Any, "value", "annotate it"),
        (Decimal(1), Any, "value", "annotate it"),
        (BigOrder(Sku("x"), Decimal(1), discount=3), Line, "value", "BigOrder"),
        ({"street": "x", "strete": "y"}, Address, "value", "key 'strete' as nothing"),
        ({"sku": "x", "price": "1", "colur": "red"}, Line, "value['colur']", "no such field"),
        (Secretive(1, 7), Secretive, "value._hidden", "7 as 3; a private field of an attrs class is not stored"),
        ([Hiding(1)], list[Hiding], "value[0]._needed", "1 as nothing; a private field of an attrs class"),
        (Hiding(None, {1: 2}), Any, "value._needed", "None as nothing"),
        ("red", int, "value", "Expected `int`, got `str`"),
        (True, int, "value", "Expected `int`, got `bool`"),
        ({"sku": "x", "price": []}, Line, "value.price", "Expected `decimal`, got `array`"),
        ({"number": "x"}, Model, "value", "valid integer"),
        (3, None, "value", "Expected `null`, got `int`"),
        (LINE, Line | Tree, "value cannot be read as", "JSON does not say which of them it was. Declare one class"),
        (Model(number=1), Model | Line, "value cannot be read as", "or msgspec Structs with a tag"),
        (Uneven.ONE, Uneven, "value cannot be read as Uneven", "all str or all int"),
        (Size, Any, "value", "cannot be stored"),
        (OrderedDict({"a": Opaque()}), dict[str, Any], "value['a']", "Opaque"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_would_change_is_refused_with_its_path(value: Any, annotation: Any, path: str, why: str):
    with pytest.raises(CodecError) as raised:
        values.settle(value, annotation, "result of step 'charge'")
    message = str(raised.value)
    assert message.startswith("result of step 'charge': ")
    assert path in message
    assert why in message
    assert len(message) < 1_000


UNKEPT = [math.nan, {"a": [math.inf]}, {1: "a", "1": "b"}, Opaque(), Hiding(1), Cached(1, {1: 2})]


@pytest.mark.parametrize("value", UNKEPT, ids=range(6))
def test_value_without_a_known_reader_is_refused_too(value: Any):
    with pytest.raises(CodecError):
        values.encode(value, "event")


@pytest.mark.parametrize("annotation", [annotation for _, annotation in ROUND_TRIPS], ids=str)
def test_what_reads_a_value_is_readable(annotation: Any):
    Values().refuse_unreadable(annotation, "it")


class Plain:
    """A class that no value is read as."""


@pytest.mark.parametrize("annotation", [5, "int", [int], Plain, str.upper], ids=str)
def test_an_annotation_by_which_nothing_can_be_read_is_refused(annotation: Any):
    fresh = Values()
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"^it: "):
            fresh.refuse_unreadable(annotation, "it")


def test_what_was_pickled_is_read_as_any_class():
    Values(allow_pickle=True).refuse_unreadable(Plain, "it")
    with pytest.raises(InvalidInput):
        Values(allow_pickle=True).refuse_unreadable(5, "it")


@dataclasses.dataclass(frozen=True, eq=False)
class Token:
    number: int


def test_a_set_of_what_is_never_equal_comes_back():
    assert {one.number for one in values.settle({Token(1), Token(2)}, set[Token], "it")[1]} == {1, 2}
    assert len(values.settle({Decimal("NaN")}, set[Decimal], "it")[1]) == 1


def test_a_private_field_that_has_its_default_comes_back():
    assert values.settle(Cached(1), Cached, "it")[1] == Cached(1)
    assert values.decode(values.encode(Cached(1), "it"), Cached, "it") == Cached(1)


def test_a_time_keeps_its_offset_and_loses_its_zone():
    """As docs/values.md says."""
    paris = ZoneInfo("Europe/Paris")
    noon = datetime(2026, 3, 28, 12, tzinfo=paris)  # the day before the clocks change
    back = values.settle(noon, datetime, "it")[1]
    assert back == noon
    assert back.utcoffset() == timedelta(hours=1)
    assert back + timedelta(days=1) != noon + timedelta(days=1)
    assert back.astimezone(paris) + timedelta(days=1) == noon + timedelta(days=1)


def test_forgotten_await_is_told():
    async def fetch(): ...

    with pytest.raises(CodecError, match="was an await forgotten"):
        values.settle(fetch(), Any, "it")


def test_payload_over_the_limit_is_refused():
    with pytest.raises(LimitExceeded):
        values.settle("x" * limits.PAYLOAD_MAX_BYTES, str, "it")


class Reversing:
    """A hook: not what anybody would call encryption."""

    def encode(self, data: bytes) -> bytes:
        return b"!" + data[::-1]

    def decode(self, data: bytes) -> bytes:
        if data[:1] != b"!":
            raise ValueError("not mine")
        return data[:0:-1]


def test_hook_turns_bytes_both_ways():
    hooked = Values(Reversing())
    data, live = hooked.settle(ORDER, Order, "it")
    assert data.startswith(b"!}")
    assert live == hooked.decode(data, Order, "it") == ORDER


def test_hook_that_raises_gives_a_typed_error():
    hooked = Values(Reversing())
    with pytest.raises(CodecError, match="Reversing: ValueError: not mine") as raised:
        hooked.decode(b"3", int, "it")
    assert isinstance(raised.value.__cause__, ValueError)


class Careless:
    def encode(self, data: bytes) -> Any:
        return data.decode()

    def decode(self, data: bytes) -> Any:
        return None


def test_hook_must_give_bytes():
    with pytest.raises(CodecError, match="gave str, not bytes"):
        Values(Careless()).encode(3, "it")
    with pytest.raises(CodecError, match="gave NoneType, not bytes"):
        Values(Careless()).decode(b"3", int, "it")
    with pytest.raises(CodecError, match="no method encode"):
        Values(object())  # type: ignore[arg-type]


def test_hook_may_make_a_value_too_long():
    class Doubling(Reversing):
        def encode(self, data: bytes) -> bytes:
            return data * 2

    with pytest.raises(LimitExceeded):
        Values(Doubling()).encode("x" * (limits.PAYLOAD_MAX_BYTES // 2), "it")


def test_digest_does_not_depend_on_order():
    def digest(value: object) -> str:
        return values.digest(value, values.plain(value, "it"))

    assert digest({"a": 1, "b": {2, 1}}) == digest({"b": {1, 2}, "a": 1})
    assert digest({2: "b", 1: "a"}) == digest({1: "a", 2: "b"})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest(Model(number=1, names={"a", "b"})) == digest(Model(number=1, names={"b", "a"}))


def test_digest_is_the_same_in_every_process():
    code = (
        "from outlast.codec.values import Values; from tests.unit.codec.kinds import *; v = Values();"
        "x = [ORDER, Model(number=1, names=set('abcdef')), {1: set('abcdef')}];"
        "print(v.digest(x, b''), end='')"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
