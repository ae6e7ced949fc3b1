"""Everything that only reads: load, scan, find, count, due, frames, completions. Runs on the reader's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from outlast.errors import InvalidInput
from outlast.machine.invariants import check
from outlast.model.completion import Completion
from outlast.model.execution import Execution
from outlast.model.flow import Flow, Member, Summary
from outlast.model.frame import Frame
from outlast.model.outbox import Delivery
from outlast.model.record import Key, Record, settled
from outlast.model.session import Session
from outlast.model.status import Status
from outlast.store.conditions import conditions_of
from outlast.store.port import (
    OWED,
    Due,
    DueItem,
    DueKind,
    Feed,
    Filter,
    Page,
    Query,
    cursor_number,
    cursor_of,
    filter_of,
)
from outlast.store.sqlite.connection import Transaction
from outlast.store.sqlite.fences import FOREVER_MS
from outlast.store.sqlite.statements import TABLES, Table, statement

_EXECUTION = TABLES[Execution.KIND]
_HELD = frozenset({Status.ACTIVE})
DEPTH_MAX = 100_000
FEW = 5_000
"""So many executions with a tag are read and sorted in a few milliseconds; of more, the newest are near at hand."""


def load(tx: Transaction, keys: Sequence[Key]) -> list[Record | None]:
    found: list[Record | None] = []
    for key in keys:
        table = _table_of(key)
        rows = tx.rows(table.load, key.values)
        found.append(_checked(table, rows[0]) if rows else None)
    return found


def scan(tx: Transaction, kind: str, prefix: tuple[str | int, ...], after: Key | None, limit: int) -> list[Record]:
    table = TABLES[kind]
    if len(prefix) > len(table.kind.KEY):
        raise InvalidInput(f"scan: {prefix!r} is longer than a key of {kind}")
    values: tuple[Any, ...] = prefix
    if after is not None:
        if _table_of(after) is not table or after.values[: len(prefix)] != prefix:
            raise InvalidInput(f"scan: {after} is not under {kind}{prefix!r}, so it is no place to go on from")
        values = (*prefix, *_position(tx, table, after))
    rows = tx.rows(table.scan(len(prefix), after=after is not None), (*values, limit))
    if table.kind is Execution:
        return [_checked(table, row) for row in rows]
    return [table.record(row) for row in rows]


def _position(tx: Transaction, table: Table, after: Key) -> tuple[Any, ...]:
    """Where a scan goes on: behind the key, or behind the number of its record."""
    if not table.kind.SEQUENCED:
        return after.values
    rows = tx.rows(table.read(("seq",)), after.values)
    return rows[0] if rows else (0,)


def _table_of(key: Key) -> Table:
    table = TABLES[key.kind]
    if len(key.values) != len(table.kind.KEY):
        raise InvalidInput(f"{key} is not a key: {key.kind} has {', '.join(table.kind.KEY)}")
    return table


def _checked(table: Table, row: tuple[Any, ...]) -> Record:
    record = table.record(row)
    return check(record) if isinstance(record, Execution) else record


# ---- find ---------------------------------------------------------------------------------------------------------


def find(tx: Transaction, query: Query) -> Page:
    executions = _found(tx, query)
    if len(executions) < query.limit:
        return Page(executions, None)
    last = executions[-1]
    return Page(executions, cursor_of(settled(last.created_at) or 0, last.id))


def _found(tx: Transaction, query: Query) -> list[Execution]:
    if len(query.status) > 1:
        # Each status in its own order, then the newest of all: one index can't give several in order.
        merged = [execution for one in _by_status(query) for execution in _found(tx, one)]
        merged.sort(key=lambda execution: (execution.created_at, execution.id), reverse=True)
        return merged[: query.limit]
    conditions, values = _conditions(query)
    source = _source(tx, query, few=FEW)
    sql = statement("find:select").format(
        columns=_EXECUTION.columns_of_x, source=source, conditions=conditions, listed=_only_listed(tx, query)
    )
    rows = tx.rows(sql, {**values, "limit": query.limit})
    return [check(record) for row in rows if isinstance(record := _EXECUTION.record(row), Execution)]


def count(tx: Transaction, query: Query) -> int:
    if len(query.status) > 1:
        return sum(count(tx, one) for one in _by_status(query))
    conditions, values = _conditions(query)
    source = _source(tx, query, few=None)
    sql = statement("find:count").format(source=source, conditions=conditions, listed=_only_listed(tx, query))
    return tx.rows(sql, values)[0][0]


def _by_status(query: Query) -> list[Query]:
    return [msgspec.structs.replace(query, status=frozenset({status})) for status in query.status]


def _conditions(query: Query) -> tuple[str, dict[str, Any]]:
    """Of at most one status. It says which index knows those that have it: exactly the active are held by somebody."""
    conditions, values = conditions_of(query, statement, list)
    if query.status:
        conditions += " " + statement("find:held" if query.status == _HELD else "find:not_held")
    return conditions, values


def _only_listed(tx: Transaction, query: Query) -> str:
    """Members of flows that are being staged are left out; there are hardly ever any."""
    staging = tx.rows(statement("find:staging"), {"namespace": query.namespace})
    return statement("find:listed") if staging else ""


def _source(tx: Transaction, query: Query, *, few: int | None) -> str:
    """Where to begin: with the first tag that fewer executions have (any, if all are to be counted), else in order."""
    for number, (tag, value) in enumerate(query.tags.items()):
        asked = {"namespace": query.namespace, "tag": tag, "value": value, "limit": few}
        if few is None or tx.rows(statement("find:tagged"), asked)[0][0] < few:
            return statement("find:by_tag").format(n=number)
    return statement("find:by_lease" if query.status == _HELD else "find:in_order")


# ---- due ----------------------------------------------------------------------------------------------------------

_DUE_TABLE = {
    DueKind.OUTBOX: TABLES[Delivery.KIND],
    DueKind.SESSION: TABLES[Session.KIND],
    DueKind.FLOW: TABLES[Flow.KIND],
    DueKind.CANCEL: TABLES[Flow.KIND],
    DueKind.SUMMARY: TABLES[Summary.KIND],
    DueKind.DEPENDENCY: TABLES[Summary.KIND],
    DueKind.SIBLING: TABLES[Member.KIND],
}
_EXECUTION_ID = {DueKind.OUTBOX: "target", DueKind.SIBLING: "execution"}


def due(tx: Transaction, kind: DueKind, limit: int, filter: Filter) -> Due:
    table = _DUE_TABLE.get(kind, _EXECUTION)
    text, values = filtered(filter_of(kind, filter), _EXECUTION_ID.get(kind, "id"))
    part = statement(f"due:{kind}").format(columns=table.columns_of_x, filter=text)
    rows = tx.rows(part, {"now": tx.now, "limit": limit, **values})
    items = [DueItem(row[0], table.record(row[1:])) for row in rows]
    # To count needs nothing but the index: no row is looked at.
    counted = statement("due:depth").format(part=statement(f"due:{kind}").format(columns="1", filter=text))
    depth = len(items)
    if depth == limit:
        depth = tx.rows(counted, {"now": tx.now, "limit": DEPTH_MAX, **values})[0][0]
    owed = None
    if kind in OWED:
        owed = tx.rows(counted, {"now": FOREVER_MS, "limit": FOREVER_MS, **values})[0][0]
    next_at = None
    if kind is DueKind.TIMER:
        next_at = tx.rows(statement("due:next_timer").format(filter=text), {"now": tx.now, **values})[0][0]
    return Due(tx.now, items, depth, next_at, owed)


def filtered(filter: Filter, id_column: str) -> tuple[str, dict[str, Any]]:
    """The conditions of a filter, and their values."""
    parts: list[str] = []
    values: dict[str, Any] = {}
    if filter.namespace is not None:
        parts.append(statement("filter:namespace"))
        values["namespace"] = filter.namespace
    if filter.tag is not None:
        parts.append(statement("filter:tag").format(id=id_column))
        values["tag"], values["value"] = filter.tag
    return " ".join(parts), values


# ---- streams ------------------------------------------------------------------------------------------------------


def frames(tx: Transaction, namespace: str, execution_id: str, after: int, limit: int) -> list[Frame]:
    return [Frame(*row) for row in tx.rows(statement("frames"), (namespace, execution_id, after, limit))]


def completions(tx: Transaction, after: str | None, limit: int, filter: Filter) -> Feed:
    """One writer at a time numbers completions in commit order, so everything above the cursor is still to come."""
    table = TABLES[Completion.KIND]
    text, values = filtered(filter, "execution")
    sql = statement("completions").format(columns=table.columns_of_x, filter=text)
    start = 0 if after is None else cursor_number(after, "completions")
    rows = tx.rows(sql, {"after": start, "limit": limit, **values})
    found = [record for row in rows if isinstance(record := table.record(row), Completion)]
    if len(found) == limit:
        return Feed(found, str(found[-1].seq))
    newest = tx.rows(statement("completions_newest"))[0][0]
    return Feed(found, str(max(start, newest)))
