"""Values of every kind that the codec promises, with the annotation that reads them back."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar

import attrs
import msgspec
import pydantic

T = TypeVar("T")
Sku = NewType("Sku", str)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Line:
    sku: Sku
    price: Decimal
    colour: Colour | None = None


@dataclasses.dataclass(frozen=True)
class Order:
    id: uuid.UUID
    lines: list[Line]
    placed: datetime
    tags: frozenset[str] = frozenset()
    by_size: dict[Size, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class BigOrder(Line):
    discount: int = 0


@dataclasses.dataclass(eq=False)
class Unequal:
    """Two of them are never equal, and still the same."""

    number: int
    price: Decimal


@dataclasses.dataclass(slots=True)
class Slotted:
    number: int


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]
    next: str | None = None


@dataclasses.dataclass
class Tree:
    value: int
    children: list[Tree] = dataclasses.field(default_factory=list)


class Renamed(msgspec.Struct, rename="camel"):
    first_name: str


class Ok(msgspec.Struct, tag=True):
    value: int


class Err(msgspec.Struct, tag=True):
    why: str


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Address(TypedDict, total=False):
    street: str
    number: int


@attrs.define
class Attrs:
    number: int
    days: list[date] = attrs.field(factory=list)


@attrs.define
class Secretive:
    number: int
    _hidden: int = 3


class Model(pydantic.BaseModel):
    number: int
    price: Decimal = Decimal("1.10")
    when: datetime | None = None
    names: set[str] = set()
    other: pydantic.JsonValue = None


class Aliased(pydantic.BaseModel):
    number: int = pydantic.Field(alias="theNumber")
    when: date = pydantic.Field(serialization_alias="day", default=date(2026, 1, 2))


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    when: date


class Envelope(pydantic.BaseModel, Generic[T]):
    content: T


@dataclasses.dataclass
class Mixed:
    model: Model
    struct: Ok
    attrs: Attrs
    point: Point
    where: Path


LINE = Line(Sku("tea"), Decimal("3.50"), Colour.RED)
ORDER = Order(
    uuid.UUID(int=7),
    [LINE, Line(Sku("milk"), Decimal("1E+2"))],
    datetime(2026, 11, 15, 10, 0, 0, 123456, UTC),
    frozenset({"b", "a"}),
    {Size.LARGE: 2, Size.SMALL: 1},
)

ROUND_TRIPS: list[tuple[Any, Any]] = [
    (None, None),
    (True, bool),
    (7, int),
    (2**64, int),
    (-(2**200), int),
    (7, float),
    (1.5, float),
    (-0.0, float),
    (5e-324, float),
    ("", str),
    ("a\x00b \U0001f600 \u2028", str),
    (b"\x00\xff", bytes),
    (bytearray(b"ab"), bytearray),
    (datetime(2026, 11, 15, 1, 2, 3, 4, UTC), datetime),
    (datetime(2026, 11, 15, 1, 2, 3, 4, timezone(timedelta(hours=-3, minutes=-30))), datetime),
    (datetime(2026, 11, 15, 1, 2, 3), datetime),  # noqa: DTZ001
    (datetime.max, datetime),  # noqa: DTZ901
    (date(1, 1, 1), date),
    (time(1, 2, 3, 4), time),
    (time(1, 2, tzinfo=UTC), time),
    (timedelta(days=-3, microseconds=7), timedelta),
    (timedelta.max, timedelta),
    (Decimal("1.10"), Decimal),
    (Decimal("NaN"), Decimal),
    (Decimal("-Infinity"), Decimal),
    (uuid.UUID(int=3), uuid.UUID),
    (Colour.RED, Colour),
    (Size.SMALL, Size),
    (Rights.READ | Rights.WRITE, Rights),
    ([1, "a", None], list),
    ([[1], []], list[list[int]]),
    ((1, "a"), tuple[int, str]),
    ((1, 2, 3), tuple[int, ...]),
    ({3, 1}, set[int]),
    (frozenset({date(2026, 1, 1)}), frozenset[date]),
    ({"b": 1, "a": 2}, dict[str, int]),
    ({2: "b", 1: "a"}, dict[int, str]),
    ({date(2026, 1, 1): [1]}, dict[date, list[int]]),
    ({Colour.RED: {1}}, dict[Colour, set[int]]),
    ({uuid.UUID(int=3): None}, dict[uuid.UUID, None]),
    (None, Optional[int]),  # noqa: UP045
    (3, int | None),
    ("x", int | str),
    (date(2026, 1, 1), date | int),
    (Sku("x"), Sku),
    ("a", Literal["a", "b"]),
    ({"street": "x"}, Address),
    (Point(1, 2.0), Point),
    (LINE, Line),
    (ORDER, Order),
    ([ORDER, ORDER], list[Order]),
    (Unequal(1, Decimal("NaN")), Unequal),
    (Slotted(1), Slotted),
    (Page([LINE], "x"), Page[Line]),
    (Page([date(2026, 1, 1)]), Page[date]),
    (Tree(1, [Tree(2, [Tree(3)])]), Tree),
    (Renamed("Ada"), Renamed),
    (Ok(3), Ok | Err),
    ([Ok(3), Err("no")], list[Ok | Err]),
    (Attrs(1, [date(2026, 1, 1)]), Attrs),
    (Model(number=1, when=datetime(2026, 1, 1, tzinfo=UTC), names={"a"}), Model),
    (Aliased(theNumber=3), Aliased),
    (Strict(when=date(2026, 1, 1)), Strict),
    (Envelope[date](content=date(2026, 1, 1)), Envelope[date]),
    (None, Model | None),
    ([Model(number=1)], list[Model]),
    (Mixed(Model(number=1), Ok(1), Attrs(1), Point(1), Path("/a")), Mixed),
    (Path("a/b"), Path),
    (PurePosixPath("/a"), PurePosixPath),
    ({"a": [1, 2.5, None, {"b": True}]}, Any),
    ([1], object),
]
