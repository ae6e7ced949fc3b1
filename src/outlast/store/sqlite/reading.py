"""Everything that only reads: load, scan, find, count, due, frames, completions. Runs on the reader's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from outlast.errors import InvalidInput
from outlast.machine.invariants import check
from outlast.model.completion import Completion
from outlast.model.execution import Execution
from outlast.model.frame import Frame
from outlast.model.outbox import Delivery
from outlast.model.record import Key, Record
from outlast.model.session import Session
from outlast.store.port import Due, DueItem, DueKind, Feed, Filter, Page, Query
from outlast.store.sqlite.connection import Transaction
from outlast.store.sqlite.statements import TABLES, Table, statement

_EXECUTION = TABLES[Execution.KIND]
DEPTH_MAX = 100_000


def load(tx: Transaction, keys: Sequence[Key]) -> list[Record | None]:
    found: list[Record | None] = []
    for key in keys:
        table = TABLES[key.kind]
        rows = tx.rows(table.load, key.values)
        found.append(_checked(table, rows[0]) if rows else None)
    return found


def scan(tx: Transaction, kind: str, prefix: tuple[str | int, ...], after: Key | None, limit: int) -> list[Record]:
    table = TABLES[kind]
    values: tuple[Any, ...] = prefix
    if after is not None:
        values = (*prefix, *_position(tx, table, after))
    rows = tx.rows(table.scan(len(prefix), after=after is not None), (*values, limit))
    return [_checked(table, row) for row in rows]


def _position(tx: Transaction, table: Table, after: Key) -> tuple[Any, ...]:
    """Where a scan goes on: behind the key, or behind the number of its record."""
    if not table.kind.SEQUENCED:
        return after.values
    rows = tx.rows(table.read(("seq",)), after.values)
    return rows[0] if rows else (0,)


def _checked(table: Table, row: tuple[Any, ...]) -> Record:
    record = table.record(row)
    return check(record) if isinstance(record, Execution) else record


# ---- find ---------------------------------------------------------------------------------------------------------


def find(tx: Transaction, query: Query) -> Page:
    conditions, values = _conditions(query)
    sql = statement("find:select").format(columns=_EXECUTION.columns_of_x, conditions=conditions)
    rows = tx.rows(sql, {**values, "limit": query.limit})
    executions = [check(record) for row in rows if isinstance(record := _EXECUTION.record(row), Execution)]
    if len(executions) < query.limit:
        return Page(executions, None)
    last = executions[-1]
    return Page(executions, f"{last.created_at}:{last.id}")


def count(tx: Transaction, query: Query) -> int:
    conditions, values = _conditions(query)
    return tx.rows(statement("find:count").format(conditions=conditions), values)[0][0]


def _conditions(query: Query) -> tuple[str, dict[str, Any]]:
    parts: list[str] = []
    values: dict[str, Any] = {"namespace": query.namespace}

    def add(part: str, **more: Any) -> None:
        parts.append(statement(f"find:{part}"))
        values.update(more)

    if len(query.status) == 1:
        add("status_one", status=next(iter(query.status)))
    elif query.status:
        add("status_any", status=msgspec.json.encode(sorted(query.status)).decode())
    if query.workflow is not None:
        add("workflow", workflow=query.workflow)
    if query.lane is not None:
        add("lane", lane=query.lane)
    for number, (tag, value) in enumerate(query.tags.items()):
        parts.append(statement("find:tag").format(n=number))
        values |= {f"tag_{number}": tag, f"value_{number}": value}
    if query.id_prefix:
        # The next string that does not begin with the prefix: its last character, plus one.
        add(
            "id_prefix",
            id_prefix=query.id_prefix,
            id_prefix_end=query.id_prefix[:-1] + chr(ord(query.id_prefix[-1]) + 1),
        )
    if query.created_from is not None:
        add("created_from", created_from=query.created_from)
    if query.created_before is not None:
        add("created_before", created_before=query.created_before)
    if query.after is not None:
        created_at, colon, execution_id = query.after.partition(":")
        if not colon or not created_at.isdigit():
            raise InvalidInput(f"{query.after!r} is not a cursor of find")
        add("after", after_created_at=int(created_at), after_id=execution_id)
    return " ".join(parts), values


# ---- due ----------------------------------------------------------------------------------------------------------

_DUE_TABLE = {DueKind.OUTBOX: TABLES[Delivery.KIND], DueKind.SESSION: TABLES[Session.KIND]}
_EXECUTION_ID = {DueKind.OUTBOX: "target"}


def due(tx: Transaction, kind: DueKind, limit: int, filter: Filter) -> Due:
    table = _DUE_TABLE.get(kind, _EXECUTION)
    text, values = filtered(filter, _EXECUTION_ID.get(kind, "id"))
    if kind is DueKind.SESSION:
        # A session belongs to a worker, not to a namespace: no filter applies.
        text, values = "", {}
    part = statement(f"due:{kind}").format(columns=table.columns_of_x, filter=text)
    rows = tx.rows(part, {"now": tx.now, "limit": limit, **values})
    items = [DueItem(row[0], table.record(row[1:])) for row in rows]
    depth = len(items)
    if depth == limit:
        counted = statement("due:depth").format(part=part)
        depth = tx.rows(counted, {"now": tx.now, "limit": DEPTH_MAX, **values})[0][0]
    return Due(tx.now, items, depth)


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
    if after is not None and not after.isdigit():
        raise InvalidInput(f"{after!r} is not a cursor of completions")
    table = TABLES[Completion.KIND]
    text, values = filtered(filter, "execution")
    sql = statement("completions").format(columns=table.columns_of_x, filter=text)
    start = int(after or 0)
    rows = tx.rows(sql, {"after": start, "limit": limit, **values})
    found = [record for row in rows if isinstance(record := table.record(row), Completion)]
    if len(found) == limit:
        return Feed(found, str(found[-1].seq))
    newest = tx.rows(statement("completions_newest"))[0][0]
    return Feed(found, str(max(start, newest)))
