"""The reconcilers: one row each. Every number is a default that `Config` can change.

`lease_expiry` and `attempt_timeout` can't race: the one requires that the session lapsed, the other that it lives, and
the store checks that under its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from outlast.config import RECONCILERS, Config, ReconcilerOptions
from outlast.machine import facts
from outlast.machine.upkeep import session_lapsed
from outlast.model.execution import Execution
from outlast.model.outbox import Delivery
from outlast.model.record import Record
from outlast.model.session import Session
from outlast.model.status import Reason, Status
from outlast.reconcilers import flows
from outlast.reconcilers.index_check import look_at_next, repair_indexes
from outlast.reconcilers.outbox import deliver
from outlast.reconcilers.row import Repair, RepairTogether, Row
from outlast.runtime.engine import Engine
from outlast.runtime.entropy import Entropy
from outlast.runtime.unreceived import warn_of_unreceived
from outlast.store.port import DueKind, Filter

FactOf = Callable[[Execution, Entropy], facts.AnyFact]


def tells(fact_of: FactOf, *, may_end: bool = False) -> Repair:
    """The usual repair: time made a fact true of an execution, so tell the machine."""

    async def repair(engine: Engine, record: Record) -> bool:
        assert isinstance(record, Execution)
        fact = fact_of(record, engine.entropy)
        told = await engine.tell(record.namespace, record.id, fact, seen=record)
        if may_end and told.applied:
            await warn_of_unreceived(engine, [record])
        return told.applied

    return repair


def tells_all(fact_of: FactOf, *, may_end: bool = False) -> RepairTogether:
    """The same for many at once, upon what was seen of them. What such a fact may end is asked for events that nobody
    received."""

    async def repair(engine: Engine, records: Sequence[Record]) -> list[bool]:
        executions = [record for record in records if isinstance(record, Execution)]
        assert len(executions) == len(records)
        told = await engine.tell_all([(execution, fact_of(execution, engine.entropy)) for execution in executions])
        if may_end:
            applied = [execution for execution, one in zip(executions, told, strict=True) if one]
            await warn_of_unreceived(engine, applied)
        return told

    return repair


def _lease_lost(execution: Execution, entropy: Entropy) -> facts.LeaseLost:
    return facts.LeaseLost(change_id=entropy.new_id(), epoch=execution.epoch)


def _time_out(execution: Execution, entropy: Entropy) -> facts.TimeOut:
    return facts.TimeOut(change_id=entropy.new_id(), epoch=execution.epoch, jitter=entropy.random())


def _deadline_passed(execution: Execution, entropy: Entropy) -> facts.DeadlinePassed:
    return facts.DeadlinePassed(change_id=entropy.new_id())


def _wake(execution: Execution, entropy: Entropy) -> facts.Wake:
    cause = Reason.TIMER if execution.status is Status.SUSPENDED else execution.waits
    return facts.Wake(change_id=entropy.new_id(), cause=cause)


async def _purge(engine: Engine, batch: int, filter: Filter) -> int:
    """The store checks again: only what has ended and is past its retention goes."""
    return await engine.store.purge(limit=batch, filter=filter)


async def _end_session(engine: Engine, record: Record) -> bool:
    """A session that lapsed and holds nothing; one that was renewed meanwhile refuses."""
    assert isinstance(record, Session)
    return (await engine.group.commit(session_lapsed(record, engine.entropy.new_id()))).applied


async def _deliver(engine: Engine, record: Record) -> bool:
    assert isinstance(record, Delivery)
    return await deliver(engine, record)


ROWS: tuple[Row, ...] = (
    Row(
        name="lease_expiry",
        what="an active execution whose worker's session lapsed: the attempt is interrupted, another may claim it",
        due=DueKind.LEASE,
        interval_ms=1_000,
        # Where one worker died others may have: the owner is then one whose own session has not lapsed yet.
        steal_after=1,
        batch=200,
        repair=tells(_lease_lost, may_end=True),
        repair_together=tells_all(_lease_lost, may_end=True),
    ),
    Row(
        name="attempt_timeout",
        what="an attempt that runs longer than its timeout on a worker that is alive",
        due=DueKind.TIMEOUT,
        interval_ms=1_000,
        batch=200,
        repair=tells(_time_out, may_end=True),
        repair_together=tells_all(_time_out, may_end=True),
    ),
    Row(
        name="execution_deadline",
        what="an open execution past its deadline, whatever it is doing",
        due=DueKind.DEADLINE,
        interval_ms=1_000,
        batch=200,
        repair=tells(_deadline_passed, may_end=True),
        repair_together=tells_all(_deadline_passed, may_end=True),
    ),
    Row(
        name="timer",
        what=(
            "a sleep, a delay or a backoff that is over; the timeout of a wait: for an event (`event_timeout` in the"
            " sources), for a deferred (`deferred_expiry`), for a child"
        ),
        due=DueKind.TIMER,
        interval_ms=500,
        batch=500,
        repair=tells(_wake),
        repair_together=tells_all(_wake),
    ),
    Row(
        name="outbox",
        what="a word owed to another execution that was not delivered in process",
        due=DueKind.OUTBOX,
        interval_ms=1_000,
        batch=200,
        repair=_deliver,
    ),
    Row(
        name="retention",
        what="an ended execution whose retention, counted from its end, is over: purged with all that belongs to it",
        due=DueKind.RETENTION,
        interval_ms=60_000,
        batch=500,
        sweep=_purge,
    ),
    Row(
        name="session_expiry",
        what=(
            "the session of a worker that is gone and holds nothing any more (with `lease_expiry`, the sources'"
            " `worker_expiry`)"
        ),
        due=DueKind.SESSION,
        interval_ms=30_000,
        batch=200,
        repair=_end_session,
    ),
    Row(
        name="dependency",
        what="an edge of a flow whose upstream has ended, and that nobody answered: the net of all nets",
        due=DueKind.DEPENDENCY,
        interval_ms=5_000,
        batch=50,
        repair=flows.resolve_dependencies,
    ),
    Row(
        name="sibling_cancel",
        what="upstreams that a satisfied join no longer needs, if whoever settled it did not cancel them",
        due=DueKind.SIBLING,
        interval_ms=1_000,
        batch=50,
        repair=flows.spare_siblings,
    ),
    Row(
        name="cancel_backlog",
        what="the cancels that a stopped flow owes its members, once the grace of whoever stopped it is over",
        due=DueKind.CANCEL,
        interval_ms=1_000,
        batch=50,
        repair_within=flows.finish_cancels,
        eager=True,
    ),
    Row(
        name="flow_summary",
        what="ends of members that their flow has not counted, and the end of a flow that nobody wrote",
        due=DueKind.SUMMARY,
        interval_ms=5_000,
        batch=50,
        repair=flows.summarize,
    ),
    Row(
        name="flow_retention",
        what="a flow that was staged and never opened, or has ended and is past its retention: purged",
        due=DueKind.FLOW,
        interval_ms=60_000,
        batch=50,
        repair=flows.purge,
    ),
    Row(
        name="index_check",
        what="a record that contradicts another (tags, completions): repaired, and said so",
        look=look_at_next,
        interval_ms=60_000,
        batch=200,
        # A walk goes on from page to page for as long as a process lives: one that starts has other things to do.
        unhurried=True,
        repair=repair_indexes,
    ),
)

assert tuple(row.name for row in ROWS) == RECONCILERS, "config.py names the reconcilers"


def rows_for(config: Config) -> tuple[Row, ...]:
    """The table as configured."""
    applies_to = Filter(namespace=config.reconcile_namespace, tag=config.reconcile_tag)
    default = ReconcilerOptions()
    rows: list[Row] = []
    for row in ROWS:
        options = config.reconcilers.get(row.name, default)
        rows.append(
            msgspec.structs.replace(
                row,
                interval_ms=options.interval_ms or row.interval_ms,
                batch=options.batch or row.batch,
                enabled=options.enabled,
                filter=applies_to,
            )
        )
    return tuple(rows)
