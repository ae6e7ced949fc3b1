"""The rows of one operation of a call, in groups: what rows share is said once.

Rows that are written together are mostly alike: a hundred starts differ in id, epoch and digest, and have forty
fields in common; to say those for each of them is most of what the server would read, twice. Which fields go where is
fixed by kind (`Table.shared`), so that the statements can be: a group says the shared ones, each of its rows the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, TypeAlias

from outlast.errors import InvalidInput
from outlast.model.record import Record
from outlast.store.postgres.statements import Table

Row: TypeAlias = dict[str, Any]
Picking: TypeAlias = Callable[[Any], tuple[Any, ...]]


class Shape:
    """What patches of the same fields have in common: which of them are shared, and their marks."""

    __slots__ = ("key_shared", "key_varied", "marks", "shared", "shared_names", "varied", "varied_names")

    def __init__(self, table: Table, names: tuple[str, ...]) -> None:
        for name in names:
            table.column(name)
        if not table.key_names.isdisjoint(names):
            raise InvalidInput(f"the key of a record cannot be patched: {', '.join(table.key)}")
        key = table.kind.KEY
        self.marks = sum(table.bits[name] for name in names)
        shared = [name for name in names if name in table.shared]
        varied = [name for name in names if name not in table.shared]
        self.shared, self.varied = _picking(shared), _picking(varied)
        self.key_shared = _picking([n for n, name in enumerate(key) if name in table.shared])
        self.key_varied = _picking([n for n, name in enumerate(key) if name not in table.shared])
        self.shared_names = (*(name for name in key if name in table.shared), *shared)
        self.varied_names = (*(name for name in key if name not in table.shared), *varied)


_SHAPES: dict[tuple[str, tuple[str, ...]], Shape] = {}


def _picking(which: list[Any]) -> Picking:
    """Those items of a mapping or sequence, as a tuple however many they are."""
    if len(which) > 1:
        return itemgetter(*which)
    if not which:
        return lambda _: ()
    [only] = which
    return lambda items: (items[only],)


class Groups:
    """Gathers rows of a kind that has shared fields; `rows` is what the server is given."""

    __slots__ = ("_groups", "_table", "rows")

    def __init__(self, table: Table) -> None:
        self._table = table
        self._groups: dict[Any, list[Row]] = {}
        self.rows: list[Row] = []

    def insert(self, record: Record, number: int, partition: int) -> None:
        table = self._table
        values = table.shared_of(record)
        group = self._of(values)
        if group is None:
            group = self._opened(values, {}, table.shared, values)
        group.append(table.varied_row(table.varied, table.varied_of(record), number, partition))

    def patch(self, key: tuple[str | int, ...], fields: Mapping[str, Any], number: int, partition: int) -> None:
        table, names = self._table, tuple(fields)
        shape = _SHAPES.get((table.name, names))
        if shape is None:
            shape = _SHAPES[table.name, names] = Shape(table, names)
        values = (*shape.key_shared(key), *shape.shared(fields))
        of = (names, values)
        group = self._of(of)
        if group is None:
            group = self._opened(of, {"fields": shape.marks}, shape.shared_names, values)
        varied = (*shape.key_varied(key), *shape.varied(fields))
        group.append(table.varied_row(shape.varied_names, varied, number, partition))

    def _of(self, of: Any) -> list[Row] | None:
        try:
            return self._groups.get(of)
        except TypeError:
            return None  # not a plain value: `_opened` says which

    def _opened(self, of: Any, group: Row, names: tuple[str, ...], values: tuple[Any, ...]) -> list[Row]:
        rows: list[Row] = []
        group |= self._table.carried(names, values)
        group["rows"] = rows
        self._groups[of] = rows
        self.rows.append(group)
        return rows
