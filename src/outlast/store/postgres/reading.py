"""Everything that only reads: load, scan, find, count, due, frames, completions."""

from __future__ import annotations

import asyncio
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
from outlast.model.partition import partition_of
from outlast.model.record import Key, Record, settled
from outlast.model.session import Session as WorkerSession
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
from outlast.store.postgres.connection import Session
from outlast.store.postgres.statements import TABLES, Table, statement
from outlast.store.postgres.time import StoreTime

_EXECUTION = TABLES[Execution.KIND]
DEPTH_MAX = 100_000
FOREVER_MS = 2**62
"""Later than every time, and more than any number of rows."""
FEW = 5_000
"""So many executions with a tag are read and sorted in a few milliseconds; of more, the newest are near at hand."""
FEED_LOOKS, FEED_PAUSE_S = 10, 0.002
"""A feed waits this long for a transaction that is just ending, before it says that there is nothing new."""


async def now(session: Session, time: StoreTime) -> int:
    rows = await session.rows(statement("now"), time.values())
    return time.saw(rows[0]["now_ms"])


async def load(session: Session, partitions: int, keys: Sequence[Key], *, checked: bool = True) -> list[Record | None]:
    """In the order of the keys, one statement per kind."""
    found: list[Record | None] = [None] * len(keys)
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        TABLES[key.kind].check_key(key)
        places.setdefault(key.kind, []).append(place)
    for kind, its_places in places.items():
        table = TABLES[kind]
        rows: list[dict[str, Any]] = []
        for place in its_places:
            values = keys[place].values
            rows.append(table.key_row(values, table.partition_of(values, partitions) or 0))
        sql = statement("load").format(
            kind=kind,
            columns=table.select,
            key=", ".join(table.key),
            key_types=table.typed(table.key),
            same_key=" AND ".join(f"t.{name} = q.{name}" for name in table.key),
        )
        for row in await session.rows(sql, {"keys": _json(rows)}):
            record = table.record(row[1:])
            found[its_places[row[0] - 1]] = check(record) if checked and isinstance(record, Execution) else record
    return found


def _json(rows: list[dict[str, Any]]) -> str:
    try:
        return msgspec.json.encode(rows).decode()
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidInput(f"a value that a key cannot have: {error}") from error


async def scan(
    session: Session, partitions: int, kind: str, prefix: tuple[str | int, ...], after: Key | None, limit: int
) -> list[Record]:
    table = TABLES[kind]
    if len(prefix) > len(table.kind.KEY):
        raise InvalidInput(f"scan: {prefix!r} is longer than a key of {kind}")
    conditions, values = _under(table, prefix, partitions)
    order = table.kind.KEY
    if table.kind.SEQUENCED:
        order, conditions = ("seq",), f"{conditions} AND x.seq >= 0"  # always so; it opens the index of the order
    going_on = ""
    if after is not None:
        if TABLES[after.kind] is not table or after.values[: len(prefix)] != prefix:
            raise InvalidInput(f"scan: {after} is not under {kind}{prefix!r}, so it is no place to go on from")
        table.check_key(after)
        at = await _position(session, table, after, partitions)
        values |= {f"at_{n}": value for n, value in enumerate(at)}
        going_on = (
            f"AND ({', '.join(f'x.{name}' for name in order)}) > ({', '.join(f':at_{n}' for n in range(len(at)))})"
        )
    everywhere = not table.by_partition and len(prefix) < 2 and not table.kind.SEQUENCED
    values["partitions"] = partitions
    sql = statement("scan:everywhere" if everywhere else "scan:here").format(
        kind=kind,
        columns=table.select,
        prefix=conditions,
        after=going_on,
        order=", ".join(f"x.{name}" for name in order),
    )
    rows = await session.rows(sql, {**values, "limit": limit})
    return [_checked(table, row) for row in rows]


def _under(table: Table, prefix: tuple[str | int, ...], partitions: int) -> tuple[str, dict[str, Any]]:
    parts = [f"x.{name} = :key_{n}" for n, name in enumerate(table.kind.KEY[: len(prefix)])]
    values: dict[str, Any] = {f"key_{n}": value for n, value in enumerate(prefix)}
    for name, value in zip(table.kind.KEY, prefix, strict=False):
        table.check(name, value)
    home = None if table.by_partition else table.partition_of(prefix, partitions)
    if home is not None:
        parts.insert(0, "x.partition = :home")
        values["home"] = home
    return " AND ".join(parts) or "true", values


async def _position(session: Session, table: Table, after: Key, partitions: int) -> tuple[Any, ...]:
    """Where a scan goes on: behind the key, or behind the number of its record."""
    if not table.kind.SEQUENCED:
        return after.values
    conditions, values = _under(table, after.values, partitions)
    rows = await session.rows(statement("scan_seq").format(kind=table.name, prefix=conditions), values)
    return (rows[0]["seq"],) if rows else (0,)


def _checked(table: Table, row: Any) -> Record:
    record = table.record(row)
    return check(record) if isinstance(record, Execution) else record


# ---- find ---------------------------------------------------------------------------------------------------------


async def find(session: Session, query: Query) -> Page:
    executions = await _found(session, query)
    if len(executions) < query.limit:
        return Page(executions, None)
    last = executions[-1]
    return Page(executions, cursor_of(settled(last.created_at) or 0, last.id))


async def _found(session: Session, query: Query) -> list[Execution]:
    several = sorted(query.status) if len(query.status) > 1 else []
    asked = msgspec.structs.replace(query, status=frozenset()) if several else query
    conditions, values = conditions_of(asked, _by_status if query.status else statement, list)
    source, more = await _source(session, query, few=FEW)
    if several:
        more, values["status"] = f"{more} {statement('find:status_each')}", several
    sql = statement("find:select").format(
        columns=_EXECUTION.select,
        source=source,
        conditions=f"{more} {conditions}",
        listed=await _only_listed(session, query),
    )
    if several:
        sql = statement("find:each").format(columns=_EXECUTION.select, one=sql)
    rows = await session.rows(sql, {**values, "limit": query.limit})
    return [check(record) for row in rows if isinstance(record := _EXECUTION.record(row), Execution)]


def _by_status(part: str) -> str:
    """With a status the workflow is only compared: by its index all that ever ended of it would be looked at."""
    return statement("find:workflow_too" if part == "find:workflow" else part)


async def count(session: Session, query: Query) -> int:
    conditions, values = conditions_of(query, statement, list)
    source, more = await _source(session, query, few=None)
    listed = await _only_listed(session, query)
    sql = statement("find:count").format(source=source, conditions=f"{more} {conditions}", listed=listed)
    return (await session.rows(sql, values))[0]["n"]


async def _only_listed(session: Session, query: Query) -> str:
    """Members of flows that are being staged are left out; there are hardly ever any."""
    staging = await session.rows(statement("find:staging"), {"namespace": query.namespace})
    return statement("find:listed") if staging else ""


async def _source(session: Session, query: Query, *, few: int | None) -> tuple[str, str]:
    """Where to begin: with the first tag that fewer executions have (any, if all are to be counted), else in order."""
    for number, (tag, value) in enumerate(query.tags.items()):
        asked = {"namespace": query.namespace, "tag": tag, "value": value, "limit": few}
        if few is None or (await session.rows(statement("find:tagged"), asked))[0]["n"] < few:
            return statement("find:by_tag"), statement("find:by_tag_condition").format(n=number)
    return statement("find:in_order"), ""


# ---- due ----------------------------------------------------------------------------------------------------------

_DUE_TABLE = {
    DueKind.OUTBOX: TABLES[Delivery.KIND],
    DueKind.SESSION: TABLES[WorkerSession.KIND],
    DueKind.FLOW: TABLES[Flow.KIND],
    DueKind.CANCEL: TABLES[Flow.KIND],
    DueKind.SUMMARY: TABLES[Summary.KIND],
    DueKind.DEPENDENCY: TABLES[Summary.KIND],
    DueKind.SIBLING: TABLES[Member.KIND],
}
_FILTERED_BY = {DueKind.OUTBOX: ("target", "tag_elsewhere"), DueKind.SIBLING: ("execution", "tag")}


async def due(session: Session, time: StoreTime, kind: DueKind, limit: int, filter: Filter) -> Due:
    at = await now(session, time)
    table = _DUE_TABLE.get(kind, _EXECUTION)
    # What is owed is kept where it was caused: its target may live in another partition.
    text, values = filtered(filter_of(kind, filter), *_FILTERED_BY.get(kind, ("id", "tag")))
    part = statement(f"due:{kind}").format(columns=table.select, filter=text)
    rows = await session.rows(part, {"now": at, "limit": limit, **values})
    items = [DueItem(row[0], table.record(row[1:])) for row in rows]
    depth, counted = len(items), statement("due:depth").format(part=part)
    if depth == limit:
        depth = (await session.rows(counted, {"now": at, "limit": DEPTH_MAX, **values}))[0]["n"]
    owed = None
    if kind in OWED:
        owed = (await session.rows(counted, {"now": FOREVER_MS, "limit": FOREVER_MS, **values}))[0]["n"]
    next_at = None
    if kind is DueKind.TIMER:
        later = statement("due:next_timer").format(filter=text)
        next_at = (await session.rows(later, {"now": at, **values}))[0]["next_at"]
    return Due(at, items, depth, next_at, owed)


def filtered(filter: Filter, id_column: str, tag_part: str = "tag") -> tuple[str, dict[str, Any]]:
    """The conditions of a filter, and their values."""
    parts: list[str] = []
    values: dict[str, Any] = {}
    if filter.namespace is not None:
        parts.append(statement("filter:namespace"))
        values["namespace"] = filter.namespace
    if filter.tag is not None:
        parts.append(statement(f"filter:{tag_part}").format(id=id_column))
        values["tag"], values["value"] = filter.tag
    return " ".join(parts), values


# ---- streams ------------------------------------------------------------------------------------------------------


async def frames(
    session: Session, partitions: int, namespace: str, execution_id: str, after: int, limit: int
) -> list[Frame]:
    values = {
        "partition": partition_of(namespace, execution_id, partitions),
        "namespace": namespace,
        "execution": execution_id,
        "after": after,
        "limit": limit,
    }
    return [Frame(*row) for row in await session.rows(statement("frames"), values)]


async def completions(session: Session, after: str | None, limit: int, filter: Filter) -> Feed:
    """Up to the oldest transaction under way: everything above the cursor is still to come."""
    table = TABLES[Completion.KIND]
    before = "0:0" if after is None else after
    tx, _, seq = before.partition(":")
    start = {"after_tx": str(cursor_number(tx, "completions")), "after_seq": cursor_number(seq, "completions")}
    text, values = filtered(filter, "execution")
    sql = statement("completions:page").format(columns=table.select, filter=text)
    looks = 0
    while True:
        [(horizon, more)] = await session.rows(statement("completions:horizon"))
        rows = await session.rows(sql, {**start, "horizon": horizon, "limit": limit, **values})
        looks += 1
        if rows or not more or looks == FEED_LOOKS:
            break
        await asyncio.sleep(FEED_PAUSE_S)
    found = [record for row in rows if isinstance(record := table.record(row[1:]), Completion)]
    cursors = [f"{row['tx']}:{completion.seq}" for row, completion in zip(rows, found, strict=True)]
    if len(found) == limit:
        return Feed(found, cursors[-1], cursors)
    # Below the horizon nothing is left: go on behind the newest there, also if the filter does not show it.
    newest = await session.rows(statement("completions:newest"), {"horizon": horizon})
    return Feed(found, max([before, *(f"{tx}:{seq}" for tx, seq in newest)], key=_place), cursors)


def _place(cursor: str) -> tuple[int, int]:
    tx, _, seq = cursor.partition(":")
    return int(tx), int(seq)
