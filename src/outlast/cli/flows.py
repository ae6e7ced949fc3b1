"""`outlast flows show ID`: a flow drawn in the terminal, with the state of every member."""

from __future__ import annotations

from asyncio import sleep
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from outlast.cli.context import ContextArgument
from outlast.client.flow_info import FlowGraph, FlowInfo, MemberInfo
from outlast.model.status import Status

MARKS = {
    Status.BLOCKED: "·",
    Status.READY: "○",
    Status.ACTIVE: "▶",
    Status.SUSPENDED: "◔",
    Status.SUCCEEDED: "✓",
    Status.FAILED: "✗",
    Status.CANCELLED: "⊘",
    Status.EXPIRED: "✗",
    Status.SKIPPED: "-",
}
SHOWN_MAX = 200
AFTER_MAX = 5
FOLLOW_S = 1.0


async def flows(
    what: Annotated[Literal["show"], Parameter(help="show: draw a flow.")],
    id: Annotated[str, Parameter(help="The flow.")],
    /,
    *,
    follow: Annotated[bool, Parameter(help="Draw it again every second, until it has ended.")] = False,
    context: ContextArgument,
) -> None:
    """Draw a flow: its members from top to bottom, each with its state, and what it waits for.

    Examples:
      outlast flows show nightly-2026-11-15
      outlast flows show nightly-2026-11-15 --follow
    """
    async with context.acting() as app:
        handle = app.flow_handle(id)
        while True:
            status, graph = await handle.status(), await handle.graph()
            last = not follow or status.status is not None
            if not context.out.json:
                context.out.show(_headline(status), drawing(graph))
            elif last:  # programs get one document
                context.out.document(_document(context.shown_store, status, graph))
            if last:
                return
            await sleep(FOLLOW_S)


def _headline(status: FlowInfo) -> Text:
    word = status.status or ("cancelling" if status.cancelling else "running")
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(status.counts.items()))
    text = Text.assemble((f"{status.id}", "head"), f"  {word}  {status.members:,} members: {counts}")
    if status.reason:
        text.append(f"\ncancelled because: {status.reason}")
    if status.critical_path:
        text.append(f"\nlongest way: {' → '.join(status.critical_path)}", "quiet")
    return text


def drawing(graph: FlowGraph) -> Table:
    """One line per member, indented by how far from the beginning it is."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    levels = levels_of(graph)
    members = sorted(graph.members, key=lambda member: levels[member.name])
    for member in members[:SHOWN_MAX]:
        name = Text(f"{'  ' * min(levels[member.name], 20)}{MARKS[member.status]} {member.name}", member.status)
        table.add_row(name, Text(member.status, member.status), Text(_why(member), "quiet"))
    if len(members) > SHOWN_MAX:
        table.add_row(Text(f"… and {len(members) - SHOWN_MAX:,} more", "quiet"))
    return table


def levels_of(graph: FlowGraph) -> dict[str, int]:
    """How many members stand above each, on its longest way: without recursion, however deep."""
    above = {member.name: member.after for member in graph.members}
    levels: dict[str, int] = {}
    waiting = list(above)
    while waiting:
        name = waiting[-1]
        missing = [one for one in above[name] if one in above and one not in levels]
        if missing and name not in levels:
            waiting += missing
            continue
        waiting.pop()
        levels[name] = 1 + max((levels[one] for one in above[name] if one in levels), default=-1)
    return levels


def _why(member: MemberInfo) -> str:
    after = ", ".join(member.after[:AFTER_MAX]) + (", …" if len(member.after) > AFTER_MAX else "")
    need = f" ({member.needed} of {len(member.after)})" if member.needed < len(member.after) else ""
    parts = [f"after {after}{need}" if after else "", member.reason or member.cause or ""]
    return "  ".join(part for part in parts if part)


def _document(store: str | None, status: FlowInfo, graph: FlowGraph) -> dict[str, object]:
    return {
        "store": store,
        "id": status.id,
        "name": status.name,
        "status": status.status,
        "counts": status.counts,
        "reason": status.reason,
        "critical_path": status.critical_path,
        "members": [
            {
                "name": member.name,
                "id": member.id,
                "workflow": member.workflow,
                "status": member.status,
                "reason": member.reason,
                "cause": member.cause,
                "after": member.after,
                "needed": member.needed,
            }
            for member in graph.members
        ],
    }
