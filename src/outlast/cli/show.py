"""`outlast show ID`: everything about one execution, and above all why it is waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from cyclopts import Parameter
from msgspec import structs
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from outlast.cli.context import ContextArgument, Id, execution_of
from outlast.client.info import Info, ProgressInfo
from outlast.client.views.documents import AttemptDocument, FailureDocument
from outlast.client.views.execution_view import Bounds, ExecutionView, execution_view
from outlast.client.views.timeline import Row, label
from outlast.client.views.words import duration, error_line, line_of, local, moment, plural, to_ms
from outlast.model.status import Status
from outlast.runtime.unreceived import counted

SHOWN_MAX = 60
VALUE_MAX_CHARS = 2_000


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
        found = await execution_view(store, await execution_of(store, context.namespace, id))
    if context.out.json:
        told = {"store": context.shown_store, "namespace": context.namespace, "waiting": found.explanation.text}
        context.out.document(told | structs.asdict(found))
        return
    context.out.show(page(found, all=all, narrow=context.out.narrow))


# ---- for people ---------------------------------------------------------------------------------------------------


def page(found: ExecutionView, *, all: bool, narrow: bool) -> RenderableType:
    e, now = found.execution, to_ms(found.now)
    parts: list[RenderableType] = [
        Text.assemble(
            ("● ", str(e.status)),
            (e.id, "head"),
            f"  {e.workflow} version {e.version}  ",
            (e.status, str(e.status)),
            (f"  {e.reason}" if e.reason else "", "quiet"),
        ),
        Padding(Text(found.explanation.text), (0, 0, 1, 2)),
        Padding(_facts(found, now), (0, 0, 1, 2)),
    ]
    if found.attempts:
        parts += [Text("Attempts", style="head"), Padding(_attempts(found.attempts, now, narrow=narrow), (0, 0, 1, 2))]
    lines = _lines(found.timeline)
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


class _Line(NamedTuple):
    """A row of the timeline with its local time, and the time since the row before."""

    time: str
    after: str
    row: Row


def _lines(rows: Sequence[Row]) -> list[_Line]:
    one_day = local(to_ms(rows[0].at)).date() == local(to_ms(rows[-1].at)).date()
    lines: list[_Line] = []
    before = to_ms(rows[0].at)
    for row in rows:
        ms = to_ms(row.at)
        at = local(ms)
        time = f"{at:%H:%M:%S}.{ms % 1_000:03}" if one_day else f"{at:%Y-%m-%d %H:%M:%S}"
        lines.append(_Line(time, f"+{duration(max(0, ms - before))}" if lines else "", row))
        before = ms
    return lines


def _table(lines: list[_Line]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right", style="quiet")
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    table.add_column()
    for time, after, row in lines:
        # The cell is cut, not its column: that would take its whole width from the columns before it.
        detail = Text(row.detail, no_wrap=True, overflow="ellipsis")
        table.add_row(time, after, row.what, Text(row.outcome, style=row.tone), detail)
    return table


def _stacked(lines: list[_Line]) -> Group:
    """When, how and what under each other."""
    parts: list[RenderableType] = []
    for time, after, row in lines:
        parts.append(Text.assemble(time, (f"  {after}", "quiet"), "  " if row.outcome else "", (row.outcome, row.tone)))
        parts.append(Padding(Text(row.what), (0, 0, 0, 2)))
        if row.detail:
            parts.append(Padding(Text(row.detail, no_wrap=True, overflow="ellipsis"), (0, 0, 0, 2)))
    return Group(*parts)


def _facts(found: ExecutionView, now: int) -> Table:
    e, bounds = found.execution, found.bounds
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="quiet", no_wrap=True)
    grid.add_column(overflow="fold")
    created = to_ms(e.created_at)
    rows = [
        ("input", "" if found.input is None else _short(line_of(found.input))),
        ("progress", _progress(found.progress)),
        ("lane", e.lane + (f", priority {e.priority}" if e.priority else "")),
        ("requires", ", ".join(e.requires)),
        ("tags", ", ".join(f"{key}={value}" for key, value in sorted(e.tags.items()))),
        ("created", f"{local(created):%Y-%m-%d %H:%M:%S %Z}, {duration(max(0, now - created))} ago"),
        ("counted", _counted(e, bounds)),
        ("crashes", _crashes(e, bounds)),
        ("unreceived", _unreceived(found)),
        ("timeout", "" if bounds.timeout_ms is None else f"{duration(bounds.timeout_ms)} for each attempt"),
        ("purged", "" if bounds.purge_at is None else f"at {moment(to_ms(bounds.purge_at), now=now)}"),
    ]
    for name, value in rows:
        if value:
            grid.add_row(name, value)
    return grid


def _progress(value: Any) -> str:
    if value is None:
        return ""
    try:
        said = msgspec.convert(value, ProgressInfo)
    except msgspec.ValidationError:  # encrypted, perhaps
        return line_of(value)
    return f"{said.fraction:.0%}{f', {said.text}' if said.text else ''}"


def _counted(e: Info, bounds: Bounds) -> str:
    """What stands against it, and how much it may have of each."""
    parts: list[str] = []
    if e.failures:
        parts.append(f"{e.failures} of {bounds.max_attempts} failures")
    if e.generation > 1:
        parts.append(f"generation {e.generation}")
    return ", ".join(parts)


def _crashes(e: Info, bounds: Bounds) -> str:
    """How near it is to either bound."""
    if not e.crashes:
        return ""
    return (
        f"{bounds.crashes_since_progress} since its last progress ({bounds.crash_cap} end it), "
        f"{e.crashes} in all ({bounds.life_crash_cap} end it)"
    )


def _unreceived(found: ExecutionView) -> str:
    """What was sent to an execution that ended before it received it."""
    number = sum(found.unreceived.values())
    return f"{plural(number, 'event')} that nobody received: {counted(found.unreceived)}" if number else ""


def _attempts(attempts: Sequence[AttemptDocument], now: int, *, narrow: bool) -> RenderableType:
    several = len({attempt.generation for attempt in attempts}) > 1
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right", style="quiet")
    table.add_column(overflow="fold")
    stacked: list[RenderableType] = []
    for attempt in attempts:
        started, ended = to_ms(attempt.started_at), None if attempt.ended_at is None else to_ms(attempt.ended_at)
        outcome = attempt.outcome or "under way"
        number, when = label(attempt, several=several), moment(started, now=now)
        how = Text(outcome, style=outcome if attempt.outcome else "active")
        took = duration(max(0, (now if ended is None else ended) - started))
        where, failed = f"on {attempt.worker}", failed_line(attempt.failure)
        if narrow:
            stacked.append(Text.assemble(f"{number}  {when}  ", how, (f"  {took}", "quiet")))
            stacked.append(Padding(Text(where), (0, 0, 0, 2)))
            stacked += [Padding(Text(failed, "failed"), (0, 0, 0, 2))] if failed else []
        else:
            table.add_row(number, when, how, took, Text.assemble(where, (f"  {failed}", "failed")))
    return Group(*stacked) if narrow else table


def _outcome(found: ExecutionView, *, all: bool) -> list[RenderableType]:
    if found.failure is not None:
        lines = (found.failure.traceback or "").rstrip().splitlines()
        trace = "\n".join(lines if all else lines[-12:])
        head = Text.assemble("\n", ("Failure", "head"), "  ", (failed_line(found.failure), "failed"))
        return [head, Padding(Text(trace, style="quiet"), (0, 0, 0, 2))]
    if found.execution.status is Status.SUCCEEDED:
        text = line_of(found.result)
        return [Text.assemble("\n", ("Result", "head"), "  ", text if all else _short(text))]
    return []


def failed_line(failure: FailureDocument | None) -> str:
    """`ValueError: no such card`."""
    if failure is None:
        return ""
    return line_of(failure.value) if failure.type is None else error_line(failure.type, failure.message)


def _short(text: str) -> str:
    return text if len(text) <= VALUE_MAX_CHARS else f"{text[:VALUE_MAX_CHARS]}… ({len(text):,} characters; --json)"
