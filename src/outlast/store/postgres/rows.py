"""The rows of one operation of a call, in groups: what rows share is said once.

Rows that are written together are mostly alike: a hundred starts differ in id, epoch and digest, and have forty fields
in common; to say those for each of them is most of what the server would read, twice. Which fields go where is fixed by
kind (`Table.shared`), so that the statements can be: a group says the shared ones, each of its rows the rest.

A row is a struct, which is made and encoded in a fraction of the time of a dict; what is null in it is left out. Values
of the user's go as base64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import astuple

from outlast.errors import InvalidInput
from outlast.model.record import Record
from outlast.store.postgres.statements import TABLES, Table

Picking: TypeAlias = Callable[[Any], tuple[Any, ...]]
Group: TypeAlias = dict[str, Any]


class _Varied:
    """Rows of these fields, beside the number of their change and its partition."""

    __slots__ = ("_made", "_names", "_seen", "_table")

    def __init__(self, table: Table, names: tuple[str, ...]) -> None:
        assert not any(table.columns[name].is_time for name in names), "only a group says times"
        self._table, self._names = table, names
        fields = [("ix", int), ("partition", int), *((name, Any, None) for name in names)]
        self._made = msgspec.defstruct("Row", fields, omit_defaults=True, gc=False)
        self._seen: set[tuple[type, ...]] = set()
        """Types that were found to be right."""

    def row(self, values: tuple[Any, ...], number: int, partition: int) -> Any:
        kinds = tuple(map(type, values))
        if kinds not in self._seen:
            for name, value in zip(self._names, values, strict=True):
                self._table.check(name, value)
            self._seen.add(kinds)
        return self._made(number, partition, *values)


class _Inserted:
    """How the records of a kind are taken apart."""

    __slots__ = ("shared", "varied", "varied_values")

    def __init__(self, table: Table) -> None:
        self.shared = _picking([table.fields.index(name) for name in table.shared])
        self.varied_values = _picking([table.fields.index(name) for name in table.varied])
        self.varied = _Varied(table, table.varied)


class _Patched:
    """How patches of the same fields are: which of them are shared, and their marks."""

    __slots__ = ("key_shared", "key_varied", "marks", "shared", "shared_names", "varied", "varied_values")

    def __init__(self, table: Table, names: tuple[str, ...]) -> None:
        for name in names:
            table.column(name)
        if not table.key_names.isdisjoint(names):
            raise InvalidInput(f"the key of a record cannot be patched: {', '.join(table.key)}")
        key = table.kind.KEY
        self.marks = sum(table.bits[name] for name in names)
        shared = [name for name in names if name in table.shared]
        varied = [name for name in names if name not in table.shared]
        self.shared, self.varied_values = _picking(shared), _picking(varied)
        self.key_shared = _picking([n for n, name in enumerate(key) if name in table.shared])
        self.key_varied = _picking([n for n, name in enumerate(key) if name not in table.shared])
        self.shared_names = (*(name for name in key if name in table.shared), *shared)
        self.varied = _Varied(table, (*(name for name in key if name not in table.shared), *varied))


def _picking(which: list[Any]) -> Picking:
    """Those items of a mapping or sequence, as a tuple however many they are."""
    if len(which) > 1:
        return itemgetter(*which)
    if not which:
        return lambda _: ()
    [only] = which
    return lambda items: (items[only],)


_INSERTED = {name: _Inserted(table) for name, table in TABLES.items() if table.shared}
_PATCHED: dict[tuple[str, tuple[str, ...]], _Patched] = {}


class Groups:
    """Gathers rows of a kind that has shared fields; `rows` is what the server is given."""

    __slots__ = ("_groups", "_inserted", "_table", "rows")

    def __init__(self, table: Table) -> None:
        self._table = table
        self._inserted = _INSERTED[table.name]
        self._groups: dict[Any, list[Any]] = {}
        self.rows: list[Group] = []

    def insert(self, record: Record, number: int, partition: int) -> None:
        inserted, values = self._inserted, astuple(record)
        shared = inserted.shared(values)
        try:
            group = self._groups.get(shared)
        except TypeError:
            group = None  # not a plain value: `_opened` says which
        if group is None:
            group = self._opened(shared, {}, self._table.shared, shared)
        group.append(inserted.varied.row(inserted.varied_values(values), number, partition))

    def patch(self, key: tuple[str | int, ...], fields: Mapping[str, Any], number: int, partition: int) -> None:
        names = tuple(fields)
        patched = _PATCHED.get((self._table.name, names))
        if patched is None:
            patched = _PATCHED[self._table.name, names] = _Patched(self._table, names)
        shared = (*patched.key_shared(key), *patched.shared(fields))
        of = (names, shared)
        try:
            group = self._groups.get(of)
        except TypeError:
            group = None
        if group is None:
            group = self._opened(of, {"fields": patched.marks}, patched.shared_names, shared)
        varied = (*patched.key_varied(key), *patched.varied_values(fields))
        group.append(patched.varied.row(varied, number, partition))

    def _opened(self, of: Any, group: Group, names: tuple[str, ...], values: tuple[Any, ...]) -> list[Any]:
        rows: list[Any] = []
        group |= self._table.carried(names, values)
        group["rows"] = rows
        self._groups[of] = rows
        self.rows.append(group)
        return rows
