"""Claim and renew, natively. Claim writes exactly what `decide(view, Claim)` gives; conformance compares them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import cast

from outlast import limits
from outlast.errors import CorruptState
from outlast.machine.changes import patched
from outlast.machine.decide_holder import claim_fields
from outlast.machine.facts import Claim
from outlast.model.attempt import Attempt
from outlast.model.event import Event
from outlast.model.execution import Execution, Route, parse_route
from outlast.model.journal import JournalEntry
from outlast.model.lease import EARLY_EVENTS, Claimed, ClaimedExecution, ClaimRequest, Held, Renewed
from outlast.model.session import session_key
from outlast.store.sqlite.connection import Transaction
from outlast.store.sqlite.statements import TABLES, statement

_TABLE = TABLES[Execution.KIND]
_AGAIN = statement("claim_again").format(columns=_TABLE.columns)
_STARTED = TABLES[Attempt.KIND].read(("started_at",))
_READY = statement("claim_ready").format(columns=_TABLE.columns)
_JOURNAL, _EVENT = TABLES[JournalEntry.KIND], TABLES[Event.KIND]
_ENTRY_VALUE, _EVENT_VALUE = _JOURNAL.fields.index("value"), _EVENT.fields.index("value")
_ENTRIES = _JOURNAL.scan(prefix=3, after=False)
_EVENTS = _EVENT.scan(prefix=2, after=False)

SHORT, SHORT_BYTES = 500, 256 * 1024
"""A journal with more than this is left to its reader: a claim holds up every other writer."""
ALONG_BYTES, ROW_BYTES = 1024 * 1024, 500
"""So much is read for all that one claim takes; and what a row takes beside its values, about."""


def claim(tx: Transaction, request: ClaimRequest) -> Claimed:
    """The same claim id finds what it took before; otherwise take anew, in the order of claims."""
    _renew_session(tx, request.worker, request.lease_ttl_ms)
    along = _Along(tx)
    again = [_execution(row) for row in tx.rows_beside(_AGAIN, (request.worker, request.claim_id))]
    if again:
        found = [ClaimedExecution(e, _input(tx, e), _began_at(tx, e), *along.recorded(e)) for e in again]
        return Claimed(tx.now, found)
    chosen, more = _choose(tx, request)
    return Claimed(tx.now, [_take(tx, request, execution, along) for execution in chosen], more)


def renew(tx: Transaction, worker: str, lease_ttl_ms: int) -> Renewed:
    _renew_session(tx, worker, lease_ttl_ms)
    return Renewed(now=tx.now, held=held(tx, worker))


def _renew_session(tx: Transaction, worker: str, lease_ttl_ms: int) -> None:
    tx.rows_beside(statement("session_renew"), (worker, tx.now + lease_ttl_ms, tx.now))
    tx.fences.written(session_key(0, worker))


def held(tx: Transaction, worker: str) -> list[Held]:
    return [Held(*row) for row in tx.rows_beside(statement("claim_held"), (worker,))]


def _choose(tx: Transaction, request: ClaimRequest) -> tuple[list[Execution], bool]:
    """The first `limit` of all routes that the worker serves and whose gates are open; and whether more is left."""
    permits: dict[str, int] = {}
    ordered = heapq.merge(
        *(
            _of_route(tx, request, lane, route)
            for lane in _open_lanes(tx, request)
            for route in _routes(tx, request, lane)
        ),
        key=_claim_order,
    )
    chosen: list[Execution] = []
    suspects = request.limit if request.suspects is None else request.suspects
    for execution in ordered:
        if len(chosen) == request.limit:
            return chosen, True
        if parse_route(execution.route).suspect:
            if suspects == 0:
                continue
            suspects -= 1
        if execution.quota is not None:
            free = permits.get(execution.quota)
            if free is None:
                free = _free_permits(tx, request.namespace, execution.quota)
            if free <= 0:
                continue
            permits[execution.quota] = free - 1
        chosen.append(execution)
    return chosen, False


def _claim_order(execution: Execution) -> tuple[int, bool, object, str]:
    return (-execution.priority, not execution.resumed, execution.ready_at, execution.id)


def _open_lanes(tx: Transaction, request: ClaimRequest) -> Iterator[str]:
    for lane in dict.fromkeys(request.lanes):
        paused = tx.rows_beside(statement("claim_gate_lane"), (request.namespace, lane))
        if not (paused and paused[0][0]):
            yield lane


def _routes(tx: Transaction, request: ClaimRequest, lane: str) -> Iterator[str]:
    behind = ""
    while True:
        rows = tx.rows_beside(statement("claim_routes"), (request.namespace, lane, behind, limits.ROUTES_MAX))
        for (route,) in rows:
            if _served(tx, request, parse_route(route)):
                yield route
        if len(rows) < limits.ROUTES_MAX:
            return
        behind = rows[-1][0]


def _served(tx: Transaction, request: ClaimRequest, route: Route) -> bool:
    if (route.workflow, route.version) not in request.serves or not route.requires <= request.capabilities:
        return False
    if route.suspect and request.suspects == 0:
        return False
    return route.quota is None or _free_permits(tx, request.namespace, route.quota) > 0


def _free_permits(tx: Transaction, namespace: str, quota: str) -> int:
    rows = tx.rows_beside(statement("claim_gate_quota"), (namespace, quota))
    return rows[0][0] if rows else 0


def _of_route(tx: Transaction, request: ClaimRequest, lane: str, route: str) -> list[Execution]:
    rows = tx.rows_beside(_READY, (request.namespace, lane, route, request.limit + 1))  # one more: is there more?
    return [_execution(row) for row in rows]


def _take(tx: Transaction, request: ClaimRequest, execution: Execution, along: _Along) -> ClaimedExecution:
    e, now = execution, tx.now
    deadline_at = None if e.timeout_ms is None else now + max(0, e.timeout_ms - e.ran_ms)
    taken_by = (request.worker, request.claim_id, now, deadline_at, request.leap)
    tx.rows_beside(statement("claim_take"), (*taken_by, e.namespace, e.id))
    attempt, began_at = (e.namespace, e.id, e.generation, e.attempt), None
    if e.attempt_open:
        resumed = (e.epoch + request.leap, request.worker, request.claim_id, *attempt)
        [(started_at,)] = tx.rows_beside(statement("claim_attempt_resumed"), resumed)
        if e.attempt == 1 and e.generation == e.journal_generation:
            began_at = started_at
    else:
        begun = (*attempt, e.epoch + request.leap, request.worker, now, request.claim_id)
        tx.rows_beside(statement("claim_attempt_new"), begun)
    if e.quota is not None:
        tx.rows_beside(statement("claim_permits"), (1, e.namespace, e.quota))
    taken = _execution_taken(e, request, now)
    tx.fences.keep_new(taken)
    return ClaimedExecution(taken, _input(tx, taken), began_at, *along.recorded(taken))


class _Along:
    """What those that are taken go on with: whoever sent one something waits for each look of its new holder."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._left = ALONG_BYTES

    def recorded(self, e: Execution) -> tuple[list[JournalEntry] | None, list[Event]]:
        """Its journal and its first events, unless that is long, or too much has come along already."""
        if e.never_ran:
            return None, []
        entries = self._few(_ENTRIES, (e.namespace, e.id, e.journal_generation, SHORT + 1), SHORT, _ENTRY_VALUE)
        if entries is None:
            return None, []
        events = self._few(_EVENTS, (e.namespace, e.id, EARLY_EVENTS), EARLY_EVENTS, _EVENT_VALUE) if e.inbox else []
        if events is None:
            return None, []
        journal = [cast("JournalEntry", _JOURNAL.record(row)) for row in entries]
        return journal, [cast("Event", _EVENT.record(row)) for row in events]

    def _few(self, sql: str, values: tuple[object, ...], most: int, weighed: int) -> list[tuple[object, ...]] | None:
        bytes_max = min(SHORT_BYTES, self._left)
        if bytes_max <= 0:
            return None
        found = self._tx.few_rows_beside(sql, values, most=most, weighed=weighed, bytes_max=bytes_max)
        if found is None:
            self._left -= bytes_max  # it was read in vain
            return None
        rows, weight = found
        self._left -= ROW_BYTES * len(rows) + weight
        return rows


def _execution_taken(e: Execution, request: ClaimRequest, now: int) -> Execution:
    fields = claim_fields(e, Claim(change_id=request.claim_id, worker=request.worker, leap=request.leap))
    execution = patched(e, fields, now)
    assert isinstance(execution, Execution)
    return execution


def _execution(row: tuple[object, ...]) -> Execution:
    record = _TABLE.record(row)
    assert isinstance(record, Execution)
    return record


def _began_at(tx: Transaction, e: Execution) -> int | None:
    """As it was told when it was taken."""
    if not e.resumed or e.attempt > 1 or e.generation != e.journal_generation:
        return None
    [(started_at,)] = tx.rows_beside(_STARTED, (e.namespace, e.id, e.generation, e.attempt))
    return started_at


def _input(tx: Transaction, execution: Execution) -> bytes:
    key = (execution.namespace, execution.id, execution.journal_generation)
    rows = tx.rows_beside(statement("claim_input"), key)
    if not rows:
        raise CorruptState(f"execution {execution.id!r} is ready, and has no input")
    return rows[0][0]
