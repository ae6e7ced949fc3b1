"""The writes that are not a commit of changes: frames of a stream, and the purge of what has ended."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence

from outlast.model.kinds import OF_EXECUTION
from outlast.model.status import Status
from outlast.store.port import Appended, Filter
from outlast.store.sqlite.connection import Transaction
from outlast.store.sqlite.reading import filtered
from outlast.store.sqlite.statements import TABLES, statement

PURGE_MAX_ROWS = 50_000
"""A purge stops after the execution that passes this many rows: no transaction grows without bound."""

_BELONGINGS = [
    *(statement("purge:belongings").format(table=TABLES[kind.KIND].name) for kind in OF_EXECUTION),
    statement("purge:belongings").format(table="outlast_frame"),
]


def append(
    tx: Transaction, namespace: str, execution_id: str, epoch: int, change_id: str, frames: Sequence[bytes]
) -> Appended:
    stream = (namespace, execution_id)
    last = tx.rows(statement("append_last"), stream)
    newest = last[0][0] if last else 0
    if tx.rows(statement("append_seen"), (*stream, change_id))[0][0]:
        return Appended(True, newest)
    holder = tx.rows(statement("append_fence"), stream)
    if not holder or holder[0] != (Status.ACTIVE, epoch):
        return Appended(False, newest)
    values = [(*stream, newest + n, tx.now, frame, change_id) for n, frame in enumerate(frames, start=1)]
    tx.many(statement("append"), values)
    return Appended(True, newest + len(frames))


def purge(tx: Transaction, finished_before: int | None, limit: int, filter: Filter) -> int:
    part = "retention" if finished_before is None else "finished"
    text, values = filtered(filter, "id")
    values |= {"limit": limit}
    values |= {"now": tx.now} if finished_before is None else {"finished_before": finished_before}
    ended = tx.rows(statement(f"purge:{part}").format(filter=text), values)
    rows = purged = 0
    for execution in ended:
        before = tx.cursor.connection.total_changes()
        for belongings in _BELONGINGS:
            tx.rows(belongings, execution)
        tx.rows(statement("purge:execution"), execution)
        purged += 1
        rows += tx.cursor.connection.total_changes() - before
        if rows >= PURGE_MAX_ROWS:
            break
    return purged
