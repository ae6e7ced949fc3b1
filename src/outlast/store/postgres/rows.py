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


class _Way:
    """How values of one shape become a row of a group: which of them the group says, and which the row."""

    __slots__ = ("_seen", "_table", "kinds", "made", "marks", "shared", "shared_names", "varied", "varied_names")

    def __init__(self, table: Table, names: tuple[str, ...], marks: int | None = None) -> None:
        """`names` are those of the values, in their order; `marks` those of a patch."""
        shared = [at for at, name in enumerate(names) if name in table.shared]
        varied = [at for at, name in enumerate(names) if name in table.varied]
        self.shared, self.varied = _picking(shared), _picking(varied)
        self.shared_names = tuple(names[at] for at in shared)
        self.varied_names = tuple(names[at] for at in varied)
        assert not any(table.columns[name].is_time for name in self.varied_names), "only a group says times"
        fields = [("ix", int), ("partition", int), *((name, Any, None) for name in self.varied_names)]
        self.made = msgspec.defstruct("Row", fields, omit_defaults=True, gc=False)
        self.marks = marks
        self._table = table
        self.kinds: tuple[type, ...] = ()
        """Types of a row that were found to be right, last; and before it:"""
        self._seen: set[tuple[type, ...]] = set()

    def check(self, kinds: tuple[type, ...], values: tuple[Any, ...]) -> None:
        if kinds not in self._seen:
            for name, value in zip(self.varied_names, values, strict=True):
                self._table.check(name, value)
            self._seen.add(kinds)
        self.kinds = kinds


def _patching(table: Table, names: tuple[str, ...]) -> _Way:
    """The way of patches of these fields; the values of the key come first."""
    for name in names:
        table.column(name)
    if not table.key_names.isdisjoint(names):
        raise InvalidInput(f"the key of a record cannot be patched: {', '.join(table.key)}")
    return _Way(table, (*table.kind.KEY, *names), sum(table.bits[name] for name in names))


def _picking(which: list[Any]) -> Picking:
    """Those items of a mapping or sequence, as a tuple however many they are."""
    if len(which) > 1:
        return itemgetter(*which)
    if not which:
        return lambda _: ()
    [only] = which
    return lambda items: (items[only],)


_INSERTED = {name: _Way(table, table.fields) for name, table in TABLES.items() if table.shared}
_PATCHED: dict[tuple[str, tuple[str, ...]], _Way] = {}


class Groups:
    """Gathers rows of a kind that has shared fields; `rows` is what the server is given."""

    __slots__ = ("_groups", "_inserted", "_names", "_patched", "_shared", "_some", "_table", "_way", "rows")

    def __init__(self, table: Table) -> None:
        self._table = table
        self._inserted = _INSERTED[table.name]
        self._names: tuple[str, ...] | None = None
        self._patched = self._inserted
        self._groups: dict[Any, list[Any]] = {}
        # Most rows are of the group of the one before: that one is at hand.
        self._way: _Way | None = None
        self._shared: tuple[Any, ...] = ()
        self._some: list[Any] = []
        self.rows: list[Group] = []

    def insert(self, record: Record, number: int, partition: int) -> None:
        self._add(self._inserted, astuple(record), number, partition)

    def patch(self, key: tuple[str | int, ...], fields: Mapping[str, Any], number: int, partition: int) -> None:
        names = tuple(fields)
        if names != self._names:
            patched = _PATCHED.get((self._table.name, names))
            if patched is None:
                patched = _PATCHED[self._table.name, names] = _patching(self._table, names)
            self._names, self._patched = names, patched
        self._add(self._patched, (*key, *fields.values()), number, partition)

    def _add(self, way: _Way, values: tuple[Any, ...], number: int, partition: int) -> None:
        shared = way.shared(values)
        if way is not self._way or shared != self._shared:
            self._turn_to(way, shared)
        varied = way.varied(values)
        kinds = tuple(map(type, varied))
        if kinds != way.kinds:
            way.check(kinds, varied)
        self._some.append(way.made(number, partition, *varied))

    def _turn_to(self, way: _Way, shared: tuple[Any, ...]) -> None:
        of = (way, shared)
        try:
            rows = self._groups.get(of)
        except TypeError:
            rows = None  # not a plain value: `carried` says which
        if rows is None:
            group: Group = {} if way.marks is None else {"fields": way.marks}
            group |= self._table.carried(way.shared_names, shared)
            group["rows"] = rows = []
            self._groups[of] = rows
            self.rows.append(group)
        self._way, self._shared, self._some = way, shared, rows
