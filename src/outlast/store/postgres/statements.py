"""The store's SQL: files in `queries/`, filled in with the names that `model/kinds.py` declares.

Only identifiers are ever filled in, and only declared ones; values are always bound, by name (`:name`). A file may have
several parts (`-- part: name`).
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import Any

import msgspec

from outlast.errors import InvalidInput
from outlast.model.execution import Execution
from outlast.model.kinds import KINDS
from outlast.model.partition import partition_of
from outlast.model.record import Key, Now, Record

_PART = re.compile(r"^-- part: (\w+)$", re.MULTILINE)
_NAME = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)")

_VARIED = {
    "execution": {"partition", "id", "parent", "tags", "input_digest", "epoch", "claim_id", "change_id"},
    "payload": {"partition", "execution", "value", "change_id"},
    "attempt": {"partition", "execution", "epoch", "failure", "change_id"},
    "journal": {"partition", "execution", "occurrence", "value", "epoch", "position", "change_id"},
    "completion": {"partition", "execution", "tags", "change_id"},
    "member": {"partition", "execution", "flow", "name", "position", "after", "drained", "change_id"},
    "dependency": {"partition", "execution", "downstream", "change_id"},
    "edge": {"partition", "execution", "upstream", "change_id"},
}
"""Of the kinds that are written in hundreds: the fields that differ from row to row. The rest is mostly shared."""

RELATIVE = -(2**62)
"""A time relative to the commit is written this far below every absolute one; the server settles it."""


@cache
def _text(name: str) -> str:
    return files("outlast.store.postgres").joinpath("queries", f"{name}.sql").read_text()


@cache
def statement(name: str) -> str:
    """The statement of `queries/NAME.sql`, or of one of its parts: `due:timer`."""
    file, _, part = name.partition(":")
    text = _text(file)
    if part:
        pieces = _PART.split(text)
        text = dict(zip(pieces[1::2], pieces[2::2], strict=True))[part]
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()


@cache
def _positional(sql: str) -> tuple[str, tuple[str, ...]]:
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return _NAME.sub(number, sql), tuple(names)


def bound(sql: str, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The statement as the server takes it, and its values in order."""
    text, names = _positional(sql)
    return text, [values[name] for name in names]


class Column:
    """One field of a kind: its type on the server, and what Python values it takes."""

    def __init__(self, name: str, annotation: Any, *, is_time: bool) -> None:
        self.name = name
        union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
        options: tuple[Any, ...] = typing.get_args(annotation) if union else (annotation,)
        self.optional = type(None) in options
        [plain] = [option for option in options if option not in (type(None), Now)]
        self.is_time = is_time
        self.python: type = next(base for base in (bool, int, str, bytes) if issubclass(plain, base))
        self.type = {bool: "boolean", int: "bigint", str: "text", bytes: "bytea"}[self.python]

    def takes(self, value: object) -> bool:
        value_type = type(value)
        if value_type is Now:
            return self.is_time
        if value_type is type(None):
            return self.optional
        if self.python is str:
            return issubclass(value_type, str)
        return value_type is self.python


class Table:
    """One kind of record as a table: its columns, and the way of a record to and from a row."""

    def __init__(self, kind: type[Record]) -> None:
        hints = typing.get_type_hints(kind)
        names = [field.name for field in msgspec.structs.fields(kind)]
        self.kind = kind
        self.name = kind.KIND
        self.fields = tuple(names)
        self.by_partition = kind.KEY[0] == "partition"
        self.columns = {name: Column(name, hints[name], is_time=name in kind.TIMES) for name in names}
        self.key = kind.KEY if self.by_partition else ("partition", *kind.KEY)
        self.written = [name for name in names if name != "seq" or not kind.SEQUENCED]
        if not self.by_partition:
            self.written.insert(0, "partition")
        varied = _VARIED.get(self.name)
        self.shared = () if varied is None else tuple(name for name in self.written if name not in varied)
        """The fields that a group of rows says for all of them (see rows.py)."""
        self.varied = tuple(name for name in self.written if name not in self.shared and name != "partition")
        if "execution" in names:
            self.owner_of = attrgetter("namespace", "execution")
        elif kind is Execution:
            self.owner_of = attrgetter(*kind.KEY)
        self.key_names = frozenset(self.key)
        self._bytes_at = [at for at, name in enumerate(names) if self.columns[name].python is bytes]
        self.select = ", ".join(f"x.{name}" for name in names)
        self.has_change_id = "change_id" in names
        self.bits = {name: 1 << n for n, name in enumerate(names)}
        """A patch's mark for each field that it is about."""
        assert len(names) < 63, "a bigint has a bit for each field"
        assert not {"ix", "fields"} & set(names), "a row has these beside its own"
        self._seen: dict[tuple[type, ...], tuple[list[str], list[str]]] = {}
        """Types that were found to be right: which fields are left out, and which JSON can't carry as they are."""
        self._seen_patches: dict[tuple[Any, ...], tuple[int, list[str], list[str]]] = {}
        """Of a patch: its fields and their types; and first of all its marks."""
        self._seen_keys: set[tuple[type, ...]] = set()
        self._seen_shared: dict[tuple[Any, ...], tuple[list[str], list[str]]] = {}

    def type_of(self, name: str) -> str:
        return "int" if name == "partition" else self.columns[name].type

    def typed(self, names: Iterable[str]) -> str:
        return ", ".join(f"{name} {self.type_of(name)}" for name in names)

    # ---- to rows --------------------------------------------------------------------------------------------------

    def row(self, record: Record, number: int, partition: int) -> dict[str, Any]:
        """The record as JSON can carry it, beside the number of its change."""
        row: dict[str, Any] = msgspec.structs.asdict(record)
        kinds = tuple(map(type, row.values()))
        seen = self._seen.get(kinds)
        if seen is None:
            self._check_all(row)
            seen = self._seen[kinds] = _left_out(row), _special(row)
        for name in seen[0]:
            del row[name]
        for name in seen[1]:
            row[name] = _carried(row[name])
        row["ix"] = number
        if not self.by_partition:
            row["partition"] = partition
        return row

    def carried(self, names: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
        """These fields as JSON can carry them; what is null is left out."""
        kinds = (names, *map(type, values))
        seen = self._seen_shared.get(kinds)
        row = dict(zip(names, values, strict=True))
        if seen is None:
            self._check_all(row)
            seen = self._seen_shared[kinds] = _left_out(row), _special(row)
        for name in seen[0]:
            del row[name]
        for name in seen[1]:
            row[name] = _carried(row[name])
        return row

    def _check_all(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.check(name, value)

    def check(self, name: str, value: Any) -> None:
        column = self.column(name)
        if not column.takes(value):
            raise InvalidInput(f"{self.name}.{name} cannot be {value!r}: it is {column.type}")

    def column(self, name: str) -> Column:
        column = self.columns.get(name)
        if column is None:
            raise InvalidInput(f"{self.name} has no field {name!r}")
        return column

    def patch(self, row: dict[str, Any], fields: dict[str, Any]) -> None:
        """Adds to a row of this key some fields as JSON can carry them, beside the marks that say which they are."""
        kinds = (*fields, *map(type, fields.values()))
        seen = self._seen_patches.get(kinds)
        if seen is None:
            self._check_all(fields)
            if fields.keys() & set(self.key):
                raise InvalidInput(f"the key of a record cannot be patched: {', '.join(self.key)}")
            marks = sum(self.bits[name] for name in fields)
            seen = self._seen_patches[kinds] = marks, _left_out(fields), _special(fields)
        row.update(fields)
        for name in seen[1]:
            del row[name]
        for name in seen[2]:
            row[name] = _carried(row[name])
        row["fields"] = row.get("fields", 0) | seen[0]

    def plain_guard(self, name: str, value: Any) -> Any:
        """What a guard compares a field with: of any type, since no value may equal it."""
        if name not in self.columns:
            raise InvalidInput(f"{self.name} has no field {name!r}")
        return _carried(value)

    def key_row(self, values: tuple[str | int, ...], partition: int) -> dict[str, Any]:
        row: dict[str, Any] = dict(zip(self.kind.KEY, values, strict=False))  # checked before
        if not self.by_partition:
            row["partition"] = partition
        return row

    # ---- from rows ------------------------------------------------------------------------------------------------

    def plain(self, values: list[Any]) -> list[Any]:
        """The fields of a record that came as JSON: there bytes are in hexadecimal."""
        for at in self._bytes_at:
            if values[at] is not None:
                values[at] = bytes.fromhex(values[at])
        return values

    def record(self, values: Iterable[Any]) -> Record:
        return self.kind.decode(dict(zip(self.fields, values, strict=True)))

    def partition_of(self, values: tuple[str | int, ...], partitions: int) -> int | None:
        """Where records under this key, or under this beginning of one, live; None if anywhere."""
        if self.by_partition:
            return int(values[0]) if values else None
        return partition_of(str(values[0]), str(values[1]), partitions) if len(values) > 1 else None

    def check_key(self, key: Key) -> None:
        kinds = tuple(map(type, key.values))
        if kinds in self._seen_keys:
            return
        if len(key.values) != len(self.kind.KEY):
            raise InvalidInput(f"{key} is not a key: {key.kind} has {', '.join(self.kind.KEY)}")
        for name, value in zip(self.kind.KEY, key.values, strict=True):
            self.check(name, value)
        self._seen_keys.add(kinds)


def _left_out(values: Mapping[str, Any]) -> list[str]:
    """What a row need not say: a field that it does not have is null."""
    return [name for name, value in values.items() if value is None]


def _special(values: Mapping[str, Any]) -> list[str]:
    return [name for name, value in values.items() if type(value) in (Now, bytes)]


def _carried(value: Any) -> Any:
    if type(value) is bytes:
        return "\\x" + value.hex()
    return RELATIVE + value.plus_ms if type(value) is Now else value


class _Tables(dict[str, Table]):
    def __missing__(self, kind: str) -> Table:
        raise InvalidInput(f"there is no kind of record {kind!r}")


TABLES = _Tables({name: Table(kind) for name, kind in KINDS.items()})
