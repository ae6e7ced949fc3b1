"""`outlast show ID`: everything about one execution, and above all why it is waiting."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from cyclopts import Parameter
from msgspec import structs
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from outlast.cli.context import ContextArgument, Id, execution_of
from outlast.cli.documents import (
    attempt_document,
    event_document,
    execution_document,
    failure_document,
    journal_document,
)
from outlast.cli.timeline import Line, label, timeline
from outlast.cli.waiting import Situation, situation_of, why
from outlast.cli.words import duration, failure, failure_line, local, moment, plain, plural, shown
from outlast.client.info import Info, ProgressInfo, info_of
from outlast.model.attempt import Attempt
from outlast.model.event import CHILD, Event
from outlast.model.execution import Execution, parse_route
from outlast.model.journal import JournalEntry
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import Record, settled
from outlast.runtime.unreceived import counted
from outlast.store.port import Store

SHOWN_MAX = 60
VALUE_MAX_CHARS = 2_000
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Everything:
    execution: Execution
    situation: Situation
    input: bytes | None
    output: bytes | None
    failure: bytes | None
    progress: bytes | None
    attempts: list[Attempt]
    journal: list[JournalEntry]
    events: list[Event]

    @property
    def info(self) -> Info:
        return structs.replace(info_of(self.execution), reason=self.situation.offers.reason(self.execution))

    @property
    def unreceived(self) -> list[Event]:
        """The events that nobody will receive any more."""
        return [event for event in self.events if event.is_unreceived] if self.execution.status.terminal else []


async def show(
    id: Id,
    /,
    *,
    all: Annotated[bool, Parameter(help="The whole timeline, however long, and the whole traceback.")] = False,
    context: ContextArgument,
) -> None:
    """Show one execution: its status and why it waits, its attempts, its timeline, its result or failure.

    The timeline's second column is the time since the line before. Times are this machine's local ones.

    Examples:
      outlast show order-42
      outlast show order-42 --all
      outlast --json show order-42 | jq .waiting
    """
    async with context.looking() as store:
        found = await gather(store, context.namespace, id)
    if context.out.json:
        context.out.document(
            {
                "store": context.shown_store,
                "namespace": context.namespace,
                "execution": execution_document(found.info),
                "offered": found.situation.offers.of_workflow(found.execution),
                "waiting": why(found.execution, found.situation),
                "workers_alive": found.situation.alive,
                "attempts": [attempt_document(attempt) for attempt in found.attempts],
                "journal": [journal_document(entry) for entry in found.journal],
                "events": [event_document(event) for event in found.events],
                "unreceived": len(found.unreceived),
                "input": plain(found.input),
                "progress": plain(found.progress),
                "result": plain(found.output),
                "failure": failure_document(found.failure),
            }
        )
        return
    context.out.show(page(found, all=all, narrow=context.out.narrow))


async def gather(store: Store, namespace: str, execution_id: str) -> Everything:
    e = await execution_of(store, namespace, execution_id)
    keys = [
        payload_key(namespace, e.id, e.journal_generation, Role.INPUT),
        payload_key(namespace, e.id, e.generation, Role.OUTPUT),
        payload_key(namespace, e.id, e.generation, Role.FAILURE),
        payload_key(namespace, e.id, e.generation, Role.PROGRESS),
    ]
    given, output, failed, progress = [
        record.value if isinstance(record, Payload) else None for record in await store.load(keys)
    ]
    journal = await _all(store, JournalEntry, (namespace, e.id, e.journal_generation))
    return Everything(
        execution=e,
        situation=await situation_of(store, e),
        input=given,
        output=output,
        failure=failed,
        progress=progress,
        attempts=await _all(store, Attempt, (namespace, e.id)),
        journal=sorted(journal, key=lambda entry: entry.position),
        events=[event for event in await _all(store, Event, (namespace, e.id)) if event.name != CHILD],
    )


async def _all(store: Store, kind: type[R], prefix: tuple[str | int, ...]) -> list[R]:
    found: list[R] = []
    while True:
        page = await store.scan(kind.KIND, prefix, after=found[-1].key if found else None, limit=1_000)
        found += [record for record in page if isinstance(record, kind)]
        if len(page) < 1_000:
            return found


# ---- for people ---------------------------------------------------------------------------------------------------


def page(found: Everything, *, all: bool, narrow: bool) -> RenderableType:
    e, now, reason = found.execution, found.situation.now, found.situation.offers.reason(found.execution)
    parts: list[RenderableType] = [
        Text.assemble(
            ("● ", str(e.status)),
            (e.id, "head"),
            f"  {e.workflow} version {e.version}  ",
            (e.status, str(e.status)),
            (f"  {reason}" if reason else "", "quiet"),
        ),
        Padding(Text(why(e, found.situation)), (0, 0, 1, 2)),
        Padding(_facts(found, now), (0, 0, 1, 2)),
    ]
    if found.attempts:
        parts += [Text("Attempts", style="head"), Padding(_attempts(found.attempts, now, narrow=narrow), (0, 0, 1, 2))]
    lines = timeline(e, found.attempts, found.journal, found.events, now)
    hidden = 0 if all else max(0, len(lines) - SHOWN_MAX)
    if hidden:
        parts.append(
            Text.assemble(("Timeline", "head"), (f"  the first {hidden:,} lines are left out: --all", "quiet"))
        )
    else:
        parts.append(Text("Timeline", style="head"))
    parts.append(Padding(_stacked(lines[hidden:]) if narrow else _table(lines[hidden:]), (0, 0, 0, 2)))
    parts += _outcome(found, all=all)
    return Group(*parts)


def _table(lines: list[Line]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right", style="quiet")
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    table.add_column()
    for line in lines:
        # The cell is cut, not its column: that would take its whole width from the columns before it.
        detail = Text(line.detail, no_wrap=True, overflow="ellipsis")
        table.add_row(line.time, line.after, line.what, Text(line.outcome, style=line.style), detail)
    return table


def _stacked(lines: list[Line]) -> Group:
    """When, how and what under each other."""
    parts: list[RenderableType] = []
    for line in lines:
        parts.append(
            Text.assemble(
                line.time, (f"  {line.after}", "quiet"), "  " if line.outcome else "", (line.outcome, line.style)
            )
        )
        parts.append(Padding(Text(line.what), (0, 0, 0, 2)))
        if line.detail:
            parts.append(Padding(Text(line.detail, no_wrap=True, overflow="ellipsis"), (0, 0, 0, 2)))
    return Group(*parts)


def _facts(found: Everything, now: int) -> Table:
    e = found.execution
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="quiet", no_wrap=True)
    grid.add_column(overflow="fold")
    created = settled(e.created_at) or 0
    requires = ", ".join(sorted(parse_route(e.route).requires))
    rows = [
        ("input", _short(shown(found.input))),
        ("progress", _progress(found.progress)),
        ("lane", e.lane + (f", priority {e.priority}" if e.priority else "")),
        ("requires", requires),
        ("tags", ", ".join(f"{key}={value}" for key, value in sorted(e.tag_map.items()))),
        ("created", f"{local(created):%Y-%m-%d %H:%M:%S %Z}, {duration(max(0, now - created))} ago"),
        ("counted", _counted(e)),
        ("crashes", _crashes(e)),
        ("unreceived", _unreceived(found)),
        ("timeout", "" if e.timeout_ms is None else f"{duration(e.timeout_ms)} for each attempt"),
        ("purged", "" if e.purge_at is None else f"at {moment(settled(e.purge_at) or 0, now=now)}"),
    ]
    for name, value in rows:
        if value:
            grid.add_row(name, value)
    return grid


def _progress(data: bytes | None) -> str:
    if data is None:
        return ""
    try:
        said = msgspec.json.decode(data, type=ProgressInfo)
    except msgspec.MsgspecError:  # encrypted, perhaps
        return shown(data)
    return f"{said.fraction:.0%}{f', {said.text}' if said.text else ''}"


def _counted(e: Execution) -> str:
    """What stands against it, and how much it may have of each."""
    parts: list[str] = []
    if e.failures:
        parts.append(f"{e.failures} of {e.retry_policy.max_attempts} failures")
    if e.generation > 1:
        parts.append(f"generation {e.generation}")
    return ", ".join(parts)


def _crashes(e: Execution) -> str:
    """How near it is to either bound."""
    if not e.crashes:
        return ""
    return (
        f"{e.crashes_since_progress} since its last progress ({e.crash_cap} end it), "
        f"{e.crashes} in all ({e.life_crash_cap} end it)"
    )


def _unreceived(found: Everything) -> str:
    """What was sent to an execution that ended before it received it."""
    names = Counter(event.name for event in found.unreceived)
    return f"{plural(names.total(), 'event')} that nobody received: {counted(names)}" if names else ""


def _attempts(attempts: list[Attempt], now: int, *, narrow: bool) -> RenderableType:
    several = len({attempt.generation for attempt in attempts}) > 1
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right", style="quiet")
    table.add_column(overflow="fold")
    stacked: list[RenderableType] = []
    for attempt in attempts:
        started, ended = settled(attempt.started_at) or 0, settled(attempt.ended_at)
        outcome = attempt.outcome or "under way"
        number, when = label(attempt, several=several), moment(started, now=now)
        how = Text(outcome, style=outcome if attempt.outcome else "active")
        took = duration(max(0, (now if ended is None else ended) - started))
        where, failed = f"on {attempt.worker}", failure_line(attempt.failure)
        if narrow:
            stacked.append(Text.assemble(f"{number}  {when}  ", how, (f"  {took}", "quiet")))
            stacked.append(Padding(Text(where), (0, 0, 0, 2)))
            stacked += [Padding(Text(failed, "failed"), (0, 0, 0, 2))] if failed else []
        else:
            table.add_row(number, when, how, took, Text.assemble(where, (f"  {failed}", "failed")))
    return Group(*stacked) if narrow else table


def _outcome(found: Everything, *, all: bool) -> list[RenderableType]:
    if found.failure is not None:
        what = failure(found.failure)
        lines = (what.traceback.rstrip() if what else "").splitlines()
        trace = "\n".join(lines if all else lines[-12:])
        head = Text.assemble("\n", ("Failure", "head"), "  ", (failure_line(found.failure), "failed"))
        return [head, Padding(Text(trace, style="quiet"), (0, 0, 0, 2))]
    if found.output is not None:
        text = shown(found.output)
        return [Text.assemble("\n", ("Result", "head"), "  ", text if all else _short(text))]
    return []


def _short(text: str) -> str:
    return text if len(text) <= VALUE_MAX_CHARS else f"{text[:VALUE_MAX_CHARS]}… ({len(text):,} characters; --json)"
