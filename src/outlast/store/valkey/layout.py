"""How records are laid out: which value stands where, which types it may have, and the indexes that scripts keep.

All of it is read from `model/kinds.py`; only the indexes are named here. A record is the sequence of its values: null
as false, a flag as 0 or 1, a number that a double cannot hold exactly as its digits. A new one is sent packed, but for
its times. Of single values a time relative to the commit is sent as its milliseconds, with its position below zero;
bytes as the number of the argument that holds them, with their position behind `BESIDE`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, StrEnum
from hashlib import sha256
from operator import itemgetter
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct, ValidationError, convert, defstruct
from msgspec.structs import astuple

from outlast.errors import CorruptState, InvalidInput
from outlast.model.completion import Completion
from outlast.model.execution import Execution
from outlast.model.flow import Flow, Member, Summary
from outlast.model.kinds import KINDS
from outlast.model.outbox import Delivery
from outlast.model.record import Now, Plain, Record
from outlast.model.session import Session
from outlast.model.tag import Tag
from outlast.store.port import DueKind
from outlast.store.valkey.keys import LETTERS, LISTED, named_by

EXACT = 2**53
"""Numbers below this are exact in a script."""
LARGEST = 2**63
PRIORITY_DIGITS, RESUMED_DIGITS, TIME_DIGITS = 7, 1, 14
"""Widths in the order of claims; a time has fourteen digits until the year 5138."""
BESIDE = 1_000
"""More than any record has values."""
DIFFERENT: Any = True
"""Equal to no value that a record can have."""


TAILS_MAX = 1_000
_NULL = b"\xc2"
_SHORT = [bytes([0xA0 | size]) if size < 32 else bytes([0xD9, size]) for size in range(1 << 8)]
"""What short texts begin with."""
_OTHERWISE = (NoneType, bool, int, Now, bytes)
"""The types of values that are sent otherwise than they are, in the order of `Some`."""
_pack = msgspec.msgpack.Encoder().encode
_unpack: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list[Any]).decode

Where: TypeAlias = list[int]
"""Which of several values."""


class Some(NamedTuple):
    """Some values of a kind, as they are sent: where each stands, with room for it behind; and which of them are sent
    otherwise than they are. Numbers seldom are, and often there is nothing else."""

    stand: list[Any]
    plain: bool
    nulls: Where
    flags: Where
    numbers: Where
    relative: Where
    beside: Where


class Layout:
    """One kind of record."""

    def __init__(self, number: int, kind: type[Record]) -> None:
        fields = msgspec.structs.fields(kind)
        hints = get_type_hints(kind)
        self.number = number
        self.kind = kind
        allowed = {field.name: _allowed(hints[field.name]) for field in fields}
        self.blobs = tuple(name for name in allowed if bytes in allowed[name])
        assert len(self.blobs) <= 1, "a record has one value of the user's"
        last = (*self.blobs, *kind.TIMES, *(("seq",) if kind.SEQUENCED else ()))
        first = tuple(name for name in allowed if name not in last)
        self.fields = first + last
        """In the order in which they are stored: what a script adds to a record that comes packed is at its end."""
        self.positions = {name: position for position, name in enumerate(self.fields, start=1)}
        self._first = first
        # All of them are found among the values of a record in the order in which they are declared.
        declared = [field.name for field in fields]
        self._first_of = itemgetter(*map(declared.index, first))
        self._blob = declared.index(self.blobs[0]) if self.blobs else None
        times = [declared.index(name) for name in kind.TIMES]
        self._times_of: Callable[[tuple[Any, ...]], Any] = itemgetter(*times) if times else _no_times
        self._named = named_by(kind.KIND, first)
        self.head = head_of(len(self.fields))
        """What a table of its values begins with; it is not stored."""
        self._skipped = len(head_of(len(first)))
        self._tails: dict[Any, str] = {(): ""}
        """How times that are relative are told: by the one that a kind has, or by all of them."""
        self._readers = [_reader(allowed[name], name in kind.FLAGS, kind.WORDS.get(name)) for name in self.fields]
        self._flags = [number for number, name in enumerate(self.fields) if name in kind.FLAGS]
        self._words = [
            (number, _words(kind.WORDS[name])) for number, name in enumerate(self.fields) if name in kind.WORDS
        ]
        self._numbers = [number for number, name in enumerate(self.fields) if int in allowed[name]]
        self._allowed = allowed
        self._row = defstruct(
            f"{kind.KIND}_row", [(name, _exactly(hints[name])) for name in first], array_like=True, gc=False
        )
        """What the values of a whole record must be, for the library to see to: each by itself takes long."""
        self._optional = [number for number, name in enumerate(first) if NoneType in allowed[name]]
        self._some: dict[tuple[str | type, ...], Some] = {}
        """Of some of their values, by fields and types."""

    def position(self, field: str) -> int:
        position = self.positions.get(field)
        if position is None:
            raise InvalidInput(f"{self.kind.KIND} has no field {field!r}")
        return position

    def packed(self, record: Record) -> tuple[str, str, bytes, str]:
        """A whole record, to be written: its owner and its field there, all but its times and its number, and how a
        script is told its times."""
        declared = astuple(record)
        row = values = self._first_of(declared)
        try:
            convert(row, self._row)
        except ValidationError:
            values = self._digits_told(row)
        if self._optional or self._flags:
            values = [*values]
            for number in self._optional:
                if values[number] is None:
                    values[number] = False
            for number in self._flags:  # a flag is never among the last
                values[number] = 1 if values[number] else 0
        body = pack(values)[self._skipped :]
        if self._blob is not None:
            value = declared[self._blob]
            if type(value) is bytes:
                body += _raw(value)
            else:
                self._check(self.blobs[0], value)  # raises, if it is not nothing
                body += _NULL
        of, name = self._named(row)
        times = self._times_of(declared)
        tail = self._tails.get(times)
        return of, name, body, self._tail(times) if tail is None else tail

    def _digits_told(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """What cannot be told as it is: of numbers that are too large their digits."""
        for name, value in zip(self._first, row, strict=True):
            self._check(name, value)
        return tuple(
            _digits(value, f"{self.kind.KIND}.{name}") if type(value) is int and not -EXACT < value < EXACT else value
            for name, value in zip(self._first, row, strict=True)
        )

    def _tail(self, times: Any) -> str:
        every: tuple[Any, ...] = times if len(self.kind.TIMES) > 1 else (times,)
        for name, time in zip(self.kind.TIMES, every, strict=True):
            self._check(name, time)
        tail = "".join([_time_told(time, self.kind.KIND) + "," for time in every])
        if all(time is None or type(time) is Now for time in every) and len(self._tails) < TAILS_MAX:
            self._tails[times] = tail
        return tail

    def some(self, fields: Mapping[str, Plain | Now], blobs: list[bytes]) -> list[Any]:
        """Some values, to be written: where each stands, and the value."""
        shape = (*fields, *map(type, fields.values()))
        known = self._some.get(shape)
        if known is None:
            known = self._some[shape] = self._shaped(fields)
        stand, plain, nulls, flags, numbers, relative, beside = known
        flat = stand.copy()
        flat[1::2] = fields.values()
        for number in numbers:
            if not -EXACT < flat[number] < EXACT:
                flat[number] = _digits(flat[number], f"{self.kind.KIND}.{self.fields[flat[number - 1] - 1]}")
        if plain:
            return flat
        for number in nulls:
            flat[number] = False
        for number in flags:
            flat[number] = 1 if flat[number] else 0
        for number in relative:
            flat[number] = flat[number].plus_ms
        for number in beside:
            blobs.append(flat[number])
            flat[number] = len(blobs)
        return flat

    def _shaped(self, fields: Mapping[str, Plain | Now]) -> Some:
        stand: list[Any] = []
        for field, value in fields.items():
            stand += (_stands(self.position(field), type(value)), None)
            self._check(field, value)
        shape = tuple(map(type, fields.values()))
        plain = not any(one is not int and one in shape for one in _OTHERWISE)
        return Some(stand, plain, *([2 * number + 1 for number in _are(shape, one)] for one in _OTHERWISE))

    def compared(self, fields: Mapping[str, Plain], blobs: list[bytes]) -> list[Any]:
        """As `some`, to be compared: a value of another type than the field is equal to nothing."""
        try:
            return self.some(fields, blobs)
        except InvalidInput:
            return [part for field, value in fields.items() for part in self._compared(field, value, blobs)]

    def _compared(self, field: str, value: Plain, blobs: list[bytes]) -> list[Any]:
        try:
            return self.some({field: value}, blobs)
        except InvalidInput:
            return [self.position(field), False if value is None else DIFFERENT]

    def _check(self, field: str, value: Any) -> None:
        allowed = self._allowed[field]
        if type(value) not in allowed and not (str in allowed and isinstance(value, str)):
            raise InvalidInput(f"a value that a record cannot have: {self.kind.KIND}.{field} = {value!r}")

    def record(self, row: bytes | Sequence[Any]) -> Record:
        """A record that a script answered: packed, or as its values."""
        if isinstance(row, bytes):
            return self._unpacked(row)
        values = {
            name: None if value is None else read(value)
            for name, read, value in zip(self.fields, self._readers, row, strict=True)
        }
        return self.kind(**values)

    def _unpacked(self, row: bytes) -> Record:
        values: list[Any] = [None if value is False else value for value in _unpack(self.head + row)]
        for number in self._flags:
            values[number] = bool(int(values[number]))
        for number, words in self._words:
            word = values[number]
            if word is not None:
                values[number] = words[word.encode()]
        for number in self._numbers:
            if type(values[number]) is str:  # too large for a script: its digits
                values[number] = int(values[number])
        return self.kind(**dict(zip(self.fields, values, strict=True)))


def _allowed(hint: Any) -> frozenset[type]:
    """The types of the values that a field may have."""
    if get_origin(hint) in (Union, types.UnionType):
        return frozenset[type]().union(*(_allowed(part) for part in get_args(hint)))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return frozenset({hint, str})
    assert isinstance(hint, type), hint
    return frozenset({hint})


def pack(value: object) -> bytes:
    try:
        return _pack(value)
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{error.object!r} cannot be stored: it is not text ({error.reason})") from error
    except (OverflowError, TypeError) as error:
        raise InvalidInput(f"a value that cannot be stored: {error}") from error


def head_of(size: int) -> bytes:
    """What an array of so many values begins with, when it is packed."""
    if size < 16:
        return bytes([0x90 | size])
    return b"\xdc" + size.to_bytes(2) if size < 1 << 16 else b"\xdd" + size.to_bytes(4)


def _raw(value: bytes) -> bytes:
    """Bytes as scripts pack a text: they know no other."""
    size = len(value)
    if size < 1 << 8:
        return _SHORT[size] + value
    return (b"\xda" + size.to_bytes(2) if size < 1 << 16 else b"\xdb" + size.to_bytes(4)) + value


def _no_times(declared: tuple[Any, ...]) -> tuple[()]:
    return ()


def _exactly(hint: Any) -> Any:
    """The hint of a field, for numbers that a script can hold."""
    if hint is int:
        return Annotated[int, Meta(gt=-EXACT, lt=EXACT)]
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(_exactly(part) for part in get_args(hint))]  # noqa: UP007 (of parts that are not known here)
    return hint


def _are(shape: tuple[type, ...], type_: type) -> Where:
    """Which of the values have this type."""
    return [number for number, one in enumerate(shape) if one is type_]


def _time_told(time: int | Now | None, where: str) -> str:
    """A time as a script reads it behind a packed record: none, relative to the commit, a number, or digits."""
    if time is None:
        return ""
    if type(time) is Now:
        return f"+{time.plus_ms}"
    assert isinstance(time, int)
    return f"={time}" if -EXACT < time < EXACT else f"'{_digits(time, where)}"


def _stands(position: int, type_: type) -> int:
    """The position of a value, which also says how it is sent."""
    if type_ is Now:
        return -position
    return position + BESIDE if type_ is bytes else position


def _digits(value: int, where: str) -> str:
    if not -LARGEST <= value < LARGEST:
        raise InvalidInput(f"{where}: {value} is too large to be stored: at most 64 bits")
    return str(value)


class _Words(dict[bytes, Any]):
    """What the few words of a field mean."""

    def __missing__(self, word: object) -> Any:
        raise CorruptState(f"a record says {word!r}, where only these may stand: {', '.join(map(repr, self))}")


def _words(words: type[StrEnum]) -> _Words:
    return _Words({word.value.encode(): word for word in words})


def _reader(allowed: frozenset[type], flag: bool, words: type[StrEnum] | None) -> Callable[[Any], Any]:
    if flag:
        return lambda value: bool(int(value))
    if words is not None:
        return _words(words).__getitem__
    if bytes in allowed:
        return bytes
    if str in allowed:
        return bytes.decode
    return int


LAYOUTS = {name: Layout(number, kind) for number, (name, kind) in enumerate(KINDS.items(), start=1)}


def layout_of(kind: str) -> Layout:
    layout = LAYOUTS.get(kind)
    if layout is None:
        raise InvalidInput(f"there is no kind of record {kind!r}")
    return layout


# ---- indexes ------------------------------------------------------------------------------------------------------


class Part(Struct, frozen=True):
    """One part of an index's member: a text, or a number of fixed width, going up, or down from `top`."""

    field: str
    up: int | None = None
    down: int | None = None
    top: int = 0


class Index(Struct, frozen=True, kw_only=True):
    """A sorted set per group. Its members are ordered by `score`, or by their own bytes."""

    name: str
    kind: str
    where: str | None = None
    """Only records in which this is not null."""
    unless: str | None = None
    """Only records in which this is null."""
    group: tuple[str, ...] = ()
    score: str | None = None
    member: tuple[Part, ...] = ()
    """Of what its members are made; the record's key, if nothing is said."""
    registry: bool = False
    """Whether the groups that are not empty are listed."""

    @property
    def fields(self) -> tuple[str, ...]:
        """All that the place of a record in this index depends on."""
        named = (self.where, self.unless, *self.group, self.score, *(part.field for part in self.member))
        return tuple(dict.fromkeys(name for name in named if name is not None))


def _time(name: str, kind: str, field: str) -> Index:
    return Index(name=name, kind=kind, where=field, score=field)


_E = Execution.KIND
_NEWEST = (Part("created_at", up=TIME_DIGITS), Part("id"))
ORDER = (
    Part("priority", down=PRIORITY_DIGITS, top=1_000_000),
    Part("resumed", down=RESUMED_DIGITS, top=1),
    Part("ready_at", up=TIME_DIGITS),
)
"""The order of claims; the id decides what is left."""

INDEXES = (
    Index(
        name="ready",
        kind=_E,
        where="ready_at",
        group=("namespace", "lane", "route"),
        member=(*ORDER, Part("id")),
        registry=True,
    ),
    Index(
        name="held",
        kind=_E,
        where="worker",
        group=("worker",),
        member=(Part("claim_id"), Part("namespace"), Part("id")),
        registry=True,
    ),
    _time("timer", _E, "wake_at"),
    _time("timeout", _E, "attempt_deadline_at"),
    _time("deadline", _E, "deadline_at"),
    _time("retention", _E, "purge_at"),
    Index(name="finished", kind=_E, where="finished_at", unless="flow", score="finished_at"),
    Index(name="created", kind=_E, group=("namespace",), member=_NEWEST),
    Index(name="status", kind=_E, group=("namespace", "status"), member=_NEWEST),
    Index(name="workflow", kind=_E, group=("namespace", "workflow"), member=_NEWEST),
    _time("delivery", Delivery.KIND, "due_at"),
    _time("session_end", Session.KIND, "expires_at"),
    _time("flow_retention", Flow.KIND, "purge_at"),
    _time("flow_cancel", Flow.KIND, "cancel_at"),
    Index(name="staging", kind=Flow.KIND, where="staged_at", group=("namespace",), score="staged_at"),
    _time("summary_check", Summary.KIND, "check_at"),
    _time("summary_depend", Summary.KIND, "depend_at"),
    _time("member_siblings", Member.KIND, "siblings_at"),
    Index(name="tagged", kind=Tag.KIND, group=("namespace", "tag", "value"), member=(Part("execution"),)),
    *(
        Index(name=f"order_{name}", kind=name, where="seq", score="seq")
        for name, kind in KINDS.items()
        if kind.SEQUENCED
    ),
)

DUE: dict[DueKind, tuple[str, str, str]] = {
    DueKind.LEASE: (_E, "held", "claimed_at"),
    DueKind.TIMEOUT: (_E, "timeout", "attempt_deadline_at"),
    DueKind.DEADLINE: (_E, "deadline", "deadline_at"),
    DueKind.TIMER: (_E, "timer", "wake_at"),
    DueKind.RETENTION: (_E, "retention", "purge_at"),
    DueKind.OUTBOX: (Delivery.KIND, "delivery", "due_at"),
    DueKind.SESSION: (Session.KIND, "session_end", "expires_at"),
    DueKind.FLOW: (Flow.KIND, "flow_retention", "purge_at"),
    DueKind.CANCEL: (Flow.KIND, "flow_cancel", "cancel_at"),
    DueKind.SUMMARY: (Summary.KIND, "summary_check", "check_at"),
    DueKind.DEPENDENCY: (Summary.KIND, "summary_depend", "depend_at"),
    DueKind.SIBLING: (Member.KIND, "member_siblings", "siblings_at"),
}
"""The kind of record, the index and the time of each kind of due."""

EXECUTION_ID = {_E: "id", Delivery.KIND: "target", Completion.KIND: "execution", Member.KIND: "execution"}
"""Which field names the execution that a record is about."""


def fingerprint() -> str:
    """Of all that stored data depends on: another one means that data was written by other code."""
    declared: list[object] = [(LETTERS, LISTED)]
    declared += [(name, layout.fields, KINDS[name].KEY, KINDS[name].SEQUENCED) for name, layout in LAYOUTS.items()]
    declared += [msgspec.structs.astuple(index) for index in INDEXES]
    return sha256(repr(declared).encode()).hexdigest()[:16]
