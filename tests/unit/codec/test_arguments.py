"""Arguments fit the signature and its types, or are refused; annotations are found wherever they are defined."""

from __future__ import annotations

import dataclasses
import functools
import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from outlast.codec.annotations import Hints, Unresolved
from outlast.codec.arguments import Arguments
from outlast.codec.values import Values
from outlast.errors import CodecError, InvalidArguments
from tests.unit.codec.kinds import LINE, ORDER, Line, Order

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTheTypeChecker

values = Values()


def checkout(order: Order, /, day: date, *more: int, gift: bool = False, **labels: str) -> int: ...


def there_and_back(fn: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    arguments = Arguments(fn, fn.__name__)
    data, _ = arguments.encode(values, args, kwargs)
    return arguments.decode(values, data)


def test_every_kind_of_parameter_comes_back():
    day = date(2026, 1, 2)
    assert there_and_back(checkout, ORDER, day) == ((ORDER, day), {})
    given = there_and_back(checkout, ORDER, day, 1, 2, gift=True, order="mine", b="2")
    assert given == ((ORDER, day, 1, 2), {"gift": True, "order": "mine", "b": "2"})


@pytest.mark.parametrize(
    "args, kwargs, why",
    [
        ((), {}, "missing a required"),
        ((ORDER,), {}, "missing a required argument: 'day'"),
        ((ORDER, "soon"), {}, "day: Invalid RFC3339"),
        ((ORDER, date(2026, 1, 2), "x"), {}, "more[0]: Expected `int`, got `str`"),
        ((ORDER, date(2026, 1, 2)), {"gift": 1}, "gift: Expected `bool`, got `int`"),
        ((ORDER, date(2026, 1, 2)), {"b": 1}, "labels[...]: Expected `str`, got `int`"),
        ((LINE, date(2026, 1, 2)), {}, "order: Object missing required field"),
    ],
    ids=range(7),
)
def test_arguments_that_do_not_fit_are_refused(args: Any, kwargs: Any, why: str):
    with pytest.raises(InvalidArguments) as raised:
        Arguments(checkout, "checkout").encode(values, args, kwargs)
    assert str(raised.value).startswith("checkout")
    assert why in str(raised.value)


def test_path_of_what_cannot_be_stored_begins_with_the_parameter():
    bad = dataclasses.replace(ORDER, lines=[LINE, LINE, LINE, Line(LINE.sku, 1j)])  # type: ignore[arg-type]
    with pytest.raises(CodecError, match=r"checkout: order\.lines\[3\]\.price cannot be stored: complex"):
        Arguments(checkout, "checkout").encode(values, (bad, date(2026, 1, 2)), {})


def test_nan_is_a_codec_error():
    def f(x: float) -> None: ...

    with pytest.raises(CodecError, match="x is nan"):
        Arguments(f, "f").encode(values, (float("nan"),), {})


def test_the_message_shows_which_arguments_are_given_by_place_or_by_name_only():
    def placed(a: int, /, b: int = 1, *, c: int = 2) -> None: ...

    with pytest.raises(InvalidArguments, match=re.escape("placed(a: 'int', /, b: 'int', *, c: 'int')")):
        Arguments(placed, "placed").bound((1, 2, 3), {})


def test_secret_default_is_not_shown_in_the_message():
    def f(x: int, token: str = "hunter2") -> None: ...

    with pytest.raises(InvalidArguments) as raised:
        Arguments(f, "f").encode(values, (), {})
    assert "hunter2" not in str(raised.value)
    assert "token: 'str'" in str(raised.value) or "token: str" in str(raised.value)


def test_digest_tells_different_arguments_apart():
    def digest(*args: Any, **kwargs: Any) -> str:
        return Arguments(checkout, "checkout").encode(values, args, kwargs)[1]

    day = date(2026, 1, 2)
    assert digest(ORDER, day) == digest(ORDER, day=day)
    assert digest(ORDER, day, a="1", b="2") == digest(ORDER, day, b="2", a="1")
    assert digest(ORDER, day) != digest(ORDER, date(2026, 1, 3))


def test_input_of_an_older_parameter_list_is_told():
    def before(x: int, y: int) -> None: ...
    def after(x: int) -> None: ...

    data, _ = Arguments(before, "f").encode(values, (1, 2), {})
    with pytest.raises(CodecError, match="does not take 'y'"):
        Arguments(after, "f").decode(values, data)


def test_input_without_a_parameter_that_is_required_by_now_is_told():
    def before(x: int) -> None: ...
    def after(x: int, *rest: int, y: int, z: int = 3, **more: int) -> None: ...
    def bearable(x: int, *rest: int, z: int = 3, **more: int) -> None: ...

    data, _ = Arguments(before, "f").encode(values, (1,), {})
    with pytest.raises(CodecError, match="f requires 'y', which this execution was started without"):
        Arguments(after, "f").decode(values, data)
    assert Arguments(bearable, "f").decode(values, data) == ((1,), {})


def test_a_parameter_may_be_added_in_front_of_others_with_a_default():
    def before(b: int, /, *rest: int) -> None: ...
    def after(a: int = 0, b: int = 0, /, *rest: int) -> None: ...

    data, _ = Arguments(before, "f").encode(values, (1, 2, 3), {})
    assert Arguments(after, "f").decode(values, data) == ((0, 1, 2, 3), {})


# ---- annotations --------------------------------------------------------------------------------------------------


def test_class_of_the_function_around_is_found():
    @dataclasses.dataclass
    class Local:
        number: int

    def f(x: Local) -> list[Local]: ...

    assert there_and_back(f, Local(3)) == ((Local(3),), {})
    assert Hints(f)["return"] == list[Local]


def later(x: DefinedBelow) -> DefinedBelow: ...


LATER = Arguments(later, "later")


@dataclasses.dataclass
class DefinedBelow:
    number: int


def test_class_that_is_defined_below_is_found():
    data, _ = LATER.encode(values, (DefinedBelow(3),), {})
    assert LATER.decode(values, data) == ((DefinedBelow(3),), {})
    assert LATER.result is DefinedBelow


def priced(price: OnlyForTheTypeChecker, count: int) -> date: ...


def test_annotation_that_cannot_be_resolved_leaves_the_others_alone():
    hints = Hints(priced)
    assert isinstance(hints["price"], Unresolved)
    assert hints["count"] is int
    assert hints["return"] is date
    assert there_and_back(priced, 3, 4) == ((3, 4), {})


def test_annotation_that_cannot_be_resolved_is_named_when_it_is_needed():
    with pytest.raises(InvalidArguments, match=r"OnlyForTheTypeChecker.*cannot be resolved.*TYPE_CHECKING"):
        there_and_back(priced, LINE, 4)


class Callable:
    def __call__(self, x: int) -> date: ...

    def method(self, x: int) -> date: ...


@pytest.mark.parametrize(
    "fn, result",
    [
        (functools.partial(checkout, gift=True), int),
        (Callable(), date),
        (Callable().method, date),
        (Line, Line),
        (len, Any),
        (lambda: 1, Any),
    ],
    ids=lambda value: type(value).__name__,
)
def test_result_of_any_callable(fn: Any, result: Any):
    assert Hints(fn)["return"] is result


def simple(number: int, text: str, sure: bool, other: int = 0) -> None: ...


@pytest.mark.parametrize(
    "args", [(1, "a", True), (-5, 'ü\n"', False, 2**62), (2**63, "", True), (1, "a", True, -(2**80))]
)
def test_what_is_written_at_once_is_what_is_written_one_by_one(args: tuple[Any, ...]):
    arguments = Arguments(simple, "simple")
    given = arguments.bound(args, {})
    raw = {name: msgspec.Raw(arguments.encode_one(values, name, value)) for name, value in given.items()}
    one_by_one = msgspec.json.encode(raw)
    assert arguments.encode(values, args, {}) == (one_by_one, values.digest(given, one_by_one))
    assert arguments.decode(values, one_by_one)[0][: len(args)] == args


def test_which_of_many_simple_ones_cannot_be_written_is_said():
    with pytest.raises(CodecError, match=r"^simple: text has half of a surrogate pair"):
        Arguments(simple, "simple").encode(values, (1, "\ud800", True), {})


def test_what_is_not_quite_simple_is_looked_at():
    with pytest.raises(InvalidArguments, match="number: Expected `int`, got `bool`"):
        Arguments(simple, "simple").encode(values, (True, "a", True), {})


def many(
    order: Order,
    /,
    day: date,
    path: Path,
    labels: dict[str, object],
    anything: Any,
    untyped,
    lines: tuple[Line, ...] = (),
) -> None: ...


GIVEN = (ORDER, date(2026, 1, 2), Path("/tmp"), {"a": [1, None]}, {"b": 1.5}, "x")


@pytest.mark.parametrize("args", [GIVEN, (*GIVEN, (LINE, LINE))])
def test_what_is_read_at_once_is_what_is_read_one_by_one(args: tuple[Any, ...]):
    arguments = Arguments(many, "many")
    data, _ = arguments.encode(values, args, {})
    assert arguments._shape is not None
    given, by_name = arguments.decode(values, data)
    assert (given, by_name) == arguments._decode_each(values, data) == ((*args, ())[: len(given)], {})


@pytest.mark.parametrize(
    "data, why",
    [
        (b'{"number":1,"text":"a"}', "simple requires 'sure', which this execution was started without"),
        (b'{"number":1,"text":"a","sure":true,"more":1}', "simple does not take 'more', which this execution was"),
        (b'{"number":"1","text":"a","sure":true}', "simple: number: Expected `int`, got `str`; it should be int"),
        (b"[1]", "simple: input: Expected `object`, got `array`"),
    ],
)
def test_what_cannot_be_read_at_once_is_said_of_the_one_that_it_is(data: bytes, why: str):
    with pytest.raises(CodecError, match=re.escape(why)):
        Arguments(simple, "simple").decode(values, data)


def test_parameters_that_no_type_has_as_fields_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise TypeError("no such field")

    monkeypatch.setattr(msgspec, "defstruct", refuse)
    arguments = Arguments(simple, "simple")
    data, _ = arguments.encode(values, (1, "a", True), {})
    assert arguments.decode(values, data) == ((1, "a", True, 0), {})
    assert arguments._shape is None


def test_what_was_pickled_is_read_one_by_one():
    def takes(one: object, other: int) -> None: ...

    pickling, arguments = Values(allow_pickle=True), Arguments(takes, "takes")
    data, _ = arguments.encode(pickling, (complex(1, 2), 3), {})
    assert arguments.decode(pickling, data) == ((complex(1, 2), 3), {})


def test_the_digest_is_that_of_arguments_in_order_whatever_order_they_are_declared_in():
    def in_order(amount: int, item: str = "", note: str = "") -> None: ...
    def one(item: str) -> None: ...
    def not_in_order(note: str, item: str, amount: int) -> None: ...

    for fn, args, kwargs in (
        (in_order, (1, "tea", "é"), {}),
        (in_order, (1,), {"note": "é"}),
        (in_order, (), {"note": "é", "item": "tea", "amount": 1}),
        (one, ("tea",), {}),
        (not_in_order, ("é", "tea", 1), {}),
    ):
        arguments = Arguments(fn, fn.__name__)
        data, digest = arguments.encode(values, args, kwargs)
        assert digest == values.digest(arguments.bound(args, kwargs), data)
    assert Arguments(in_order, "a").encode(values, (1, "tea", "é"), {})[1] == digest
