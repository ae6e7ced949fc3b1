"""`outlast doctor`: is everything well, and if not, what to do."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from outlast.app import store_for
from outlast.cli.context import ContextArgument
from outlast.client.views.situation import sessions_of
from outlast.client.views.words import duration, plural
from outlast.errors import StoreUnavailable
from outlast.model.status import Status
from outlast.store.port import Check, DueKind, Examinable, Grade, Health, Query, Reachable, Sharded, Store

SKEW_WARNING_MS = 1_000
SKEW_WRONG_MS = 5_000
READY_LONG_MS = 60_000
LAG_MAX_MS = {
    DueKind.LEASE: 30_000,
    DueKind.TIMEOUT: 30_000,
    DueKind.DEADLINE: 30_000,
    DueKind.TIMER: 30_000,
    DueKind.OUTBOX: 30_000,
    DueKind.RETENTION: 600_000,
    DueKind.SESSION: 600_000,
    DueKind.FLOW: 600_000,
    DueKind.CANCEL: 60_000,
    DueKind.SUMMARY: 600_000,
    DueKind.DEPENDENCY: 600_000,
    DueKind.SIBLING: 60_000,
}
HARMLESS = {DueKind.RETENTION, DueKind.SESSION, DueKind.FLOW, DueKind.SUMMARY, DueKind.DEPENDENCY}
WHAT = {
    DueKind.LEASE: "executions whose worker is gone",
    DueKind.TIMEOUT: "attempts past their timeout",
    DueKind.DEADLINE: "executions past their deadline",
    DueKind.TIMER: "sleeps, delays and backoffs that are over",
    DueKind.OUTBOX: "words owed to other executions",
    DueKind.RETENTION: "ended executions to purge",
    DueKind.SESSION: "sessions of workers that are gone",
    DueKind.FLOW: "flows to purge",
    DueKind.CANCEL: "cancelled flows whose members are to be cancelled",
    DueKind.SUMMARY: "flows to be counted anew",
    DueKind.DEPENDENCY: "flows to be searched for unanswered edges",
    DueKind.SIBLING: "upstreams to cancel that nobody needs any more",
}
START_ONE = "start a worker: outlast worker MODULE:APP"
MARKS = {Grade.OK: "✓", Grade.WARNING: "!", Grade.WRONG: "✗"}


async def doctor(
    *,
    deep: Annotated[bool, Parameter(help="Also what takes long: every page and index of the store.")] = False,
    context: ContextArgument,
) -> int:
    """Check the store, the clocks, the workers and the backlogs; say what is wrong and what to do.

    Exits 1 if something is wrong. Warnings alone exit 0.

    Examples:
      outlast doctor
      outlast doctor --deep --url sqlite:////var/lib/shop/outlast.db
      outlast --json doctor | jq '.checks[] | select(.grade != "ok")'
    """
    try:
        async with context.looking() as store:
            checks = await examine(store, context.namespace, deep=deep)
    except StoreUnavailable as error:
        checks = await _without_it(store_for(context.config().url), error)
    wrong = [check for check in checks if check.grade is Grade.WRONG]
    warnings = [check for check in checks if check.grade is Grade.WARNING]
    if context.out.json:
        context.out.document(
            {
                "store": context.shown_store,
                "namespace": context.namespace,
                "well": not wrong,
                "checks": [msgspec.structs.asdict(check) for check in checks],
            }
        )
        return 1 if wrong else 0
    context.out.show(_table(checks))
    if wrong:
        verdict = Text(f"{plural(len(wrong), 'thing')} wrong: {', '.join(check.name for check in wrong)}", "wrong")
    elif warnings:
        verdict = Text(f"well, with {plural(len(warnings), 'warning')}", "warning")
    else:
        verdict = Text("all is well", "ok")
    context.out.show(Text(), verdict)
    return 1 if wrong else 0


async def _without_it(store: Store, error: StoreUnavailable) -> list[Check]:
    """A store that cannot be used may still have servers that answer."""
    if not isinstance(store, Reachable):
        raise error
    try:
        reached = await store.reach()
    except StoreUnavailable:
        raise error from None
    advice = "no server that answers can tell what is in the store without those that do not"
    return [Check(name="store", found=str(error), grade=Grade.WRONG, advice=advice), *reached]


async def examine(store: Store, namespace: str, *, deep: bool) -> list[Check]:
    asked_at = time.time()
    now = await store.now()
    answered_at = time.time()
    health = await store.health(deep=deep) if isinstance(store, Examinable) else Health([], [])
    sessions = await sessions_of(store)
    alive = sum(expires_at > now for expires_at in sessions.values())
    checks = [Check(name="store", found=f"answers in {duration(round((answered_at - asked_at) * 1_000))}")]
    checks += health.checks
    checks.append(clock_check(now - round((asked_at + answered_at) * 500)))
    checks.append(await _executions(store, namespace))
    waiting = sum(lane.depth for lane in health.ready)
    checks.append(workers_check(alive, len(sessions) - alive, waiting))
    checks += [
        ready_check(f"{lane.namespace}/{lane.lane}", lane.depth, now - lane.oldest_at, alive) for lane in health.ready
    ]
    for kind in DueKind:
        due = await store.due(kind, limit=1)
        checks.append(due_check(kind, due.depth, now - due.items[0].due_at if due.items else 0, alive))
    return checks


def clock_check(skew_ms: int) -> Check:
    """How far the store's clock is ahead of this machine's."""
    off = abs(skew_ms)
    where = "ahead of" if skew_ms > 0 else "behind"
    if off < SKEW_WARNING_MS:
        return Check(name="clock", found="the store's and this machine's agree")
    return Check(
        name="clock",
        found=f"the store's is {duration(off)} {where} this machine's",
        grade=Grade.WRONG if off >= SKEW_WRONG_MS else Grade.WARNING,
        advice="timers, leases and ages go by the store's clock: synchronise the machines (NTP)",
    )


def workers_check(alive: int, lapsed: int, waiting: int) -> Check:
    gone = f", {lapsed} lapsed" if lapsed else ""
    if alive or not waiting:
        return Check(name="workers", found=f"{alive or 'none'} alive{gone}")
    found = f"none alive{gone}, and {plural(waiting, 'execution')} {'is' if waiting == 1 else 'are'} ready"
    return Check(name="workers", found=found, grade=Grade.WRONG, advice=START_ONE)


def ready_check(lane: str, depth: int, oldest_ms: int, alive: int) -> Check:
    found = f"{plural(depth, 'execution')} ready, the oldest for {duration(max(0, oldest_ms))}"
    if oldest_ms < READY_LONG_MS:
        return Check(name=f"lane {lane}", found=found)
    advice = (
        "the workers are busy, or none serves this lane, version or capability: outlast show ID says what it needs"
        if alive
        else START_ONE
    )
    grade = Grade.WARNING if alive else Grade.WRONG
    return Check(name=f"lane {lane}", found=found, grade=grade, advice=advice)


def due_check(kind: DueKind, depth: int, lag_ms: int, alive: int) -> Check:
    name = f"due: {kind}"
    if not depth:
        return Check(name=name, found=f"no {WHAT[kind]}")
    found = f"{depth:,} {WHAT[kind]}, the oldest for {duration(max(0, lag_ms))}"
    if lag_ms <= LAG_MAX_MS[kind]:
        return Check(name=name, found=found)
    advice = "nobody repairs it: start a worker without --no-reconcilers" if alive else START_ONE
    return Check(name=name, found=found, grade=Grade.WARNING if kind in HARMLESS else Grade.WRONG, advice=advice)


async def _executions(store: Store, namespace: str) -> Check:
    open_statuses = [status for status in Status if not status.terminal]
    try:
        counts = {
            status: await store.count(Query(namespace=namespace, status=frozenset({status})))
            for status in open_statuses
        }
    except StoreUnavailable as error:
        if not isinstance(store, Sharded):
            raise
        return Check(name="executions", found=f"cannot be counted: {error}", grade=Grade.WARNING)
    parts = [f"{count:,} {status}" for status, count in counts.items() if count]
    return Check(name="executions", found=f"{', '.join(parts) or 'none open'} in namespace {namespace}")


def _table(checks: list[Check]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="head")
    table.add_column(overflow="fold")
    for check in checks:
        found = Text(check.found, style="" if check.grade is Grade.OK else str(check.grade))
        if check.advice is not None:
            found.append(f"\n→ {check.advice}", style="default")
        table.add_row(Text(MARKS[check.grade], style=str(check.grade)), check.name, found)
    return table
