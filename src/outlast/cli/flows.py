"""`outlast flows show | cancel | retry ID`: a flow drawn with the state of every member, stopped, or opened again."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from outlast import limits
from outlast.cli.context import Context, ContextArgument, Failed
from outlast.cli.words import failure_line, plural
from outlast.client.flow_handle import FlowHandle, Policy
from outlast.client.flow_info import FlowCancel, FlowGraph, FlowInfo, MemberInfo
from outlast.client.flow_looks import FlowLooks
from outlast.errors import FlowNotFound, InvalidInput
from outlast.model.execution import Execution, execution_key
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.status import Status
from outlast.runtime.engine import Engine
from outlast.store.port import Store

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
WAY_MAX = 20
ERROR_MAX_CHARS = 200
FOLLOW_S = 1.0


async def flows(
    what: Annotated[
        Literal["show", "cancel", "retry"],
        Parameter(help="show: draw it; cancel: stop it; retry: open again what did not succeed."),
    ],
    id: Annotated[str, Parameter(help="The flow.")],
    /,
    *,
    follow: Annotated[bool, Parameter(help="show: draw it again every second, until it has ended.")] = False,
    policy: Annotated[
        Policy | None,
        Parameter(
            help="cancel: cancel_all members; cancel_pending: those that run may finish; flow_only: all members "
            "stay as they are, until the flow is retried. [default: cancel_all]"
        ),
    ] = None,
    reason: Annotated[str | None, Parameter(help="cancel: why; `outlast flows show` tells it.")] = None,
    wait: Annotated[bool, Parameter(help="cancel: answer when all members have ended.")] = False,
    context: ContextArgument,
) -> None:
    """Draw a flow with the state of every member, cancel it, or retry what did not succeed.

    From the moment that a cancel is accepted no member begins any more; the workers cancel the members in the
    background. Cancelling twice is the same. To cancel a flow that has ended otherwise is refused (exit 1), and so is
    to retry one that runs or has succeeded.

    Examples:
      outlast flows show nightly-2026-11-15 --follow
      outlast flows cancel nightly-2026-11-15 --reason "wrong day" --wait
      outlast flows cancel nightly-2026-11-15 --policy cancel_pending
      outlast flows retry nightly-2026-11-15
    """
    if follow and what != "show":
        raise InvalidInput("--follow goes with `outlast flows show`")
    if what != "cancel" and (policy is not None or reason is not None or wait):
        raise InvalidInput("--policy, --reason and --wait go with `outlast flows cancel`")
    try:
        if what == "show":
            async with context.looking() as store:
                await _show(context, store, id, follow=follow)
            return
        async with context.acting() as app:
            if what == "cancel":
                await _cancel(context, app.flow_handle(id), policy or "cancel_all", reason or "", wait=wait)
            else:
                await _retry(context, app.flow_handle(id))
    except FlowNotFound as missing:
        async with context.looking() as store:
            [execution] = await store.load([execution_key(context.namespace, id)])
        if execution is None:
            raise
        told = f"{id} is an execution, not a flow: `outlast {what} {id}`"
        raise Failed(told, kind=FlowNotFound.__name__) from missing


async def _show(context: Context, store: Store, id: str, *, follow: bool) -> None:
    looks = FlowLooks(Engine(store), context.namespace)
    while True:
        status, graph = await looks.status(id), await looks.graph(id)
        last = not follow or status.status is not None
        if not context.out.json:
            context.out.show(_headline(status), drawing(graph, await _errors(context, store, drawn(graph))))
        elif last:  # programs get one document
            errors = await _errors(context, store, graph.members)
            context.out.document({**_brief(context, status), **_document(status, graph, errors)})
        if last:
            return
        await sleep(FOLLOW_S)


async def _errors(context: Context, store: Store, members: Sequence[MemberInfo]) -> dict[str, str]:
    """What those raised that did not succeed, by name."""
    ended = [one for one in members if one.status.terminal and one.status is not Status.SUCCEEDED]
    found: dict[str, str] = {}
    for begin in range(0, len(ended), limits.LOAD_MAX_KEYS):
        found |= await _errors_of(store, context.namespace, ended[begin : begin + limits.LOAD_MAX_KEYS])
    return found


async def _errors_of(store: Store, namespace: str, members: Sequence[MemberInfo]) -> dict[str, str]:
    executions = await store.load([execution_key(namespace, member.id) for member in members])
    keys = {
        member.name: payload_key(namespace, e.id, e.generation, Role.FAILURE)
        for member, e in zip(members, executions, strict=True)
        if isinstance(e, Execution)
    }
    failures = await store.load(list(keys.values()))
    return {
        name: _shortened(failure_line(failure.value))
        for name, failure in zip(keys, failures, strict=True)
        if isinstance(failure, Payload)
    }


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= ERROR_MAX_CHARS else f"{line[:ERROR_MAX_CHARS]}…"


async def _cancel(context: Context, handle: FlowHandle, policy: Policy, reason: str, *, wait: bool) -> None:
    done = await handle.cancel(policy, reason, wait=wait)
    status = await handle.status()
    if context.out.json:
        context.out.document(
            {
                **_brief(context, status),
                "already": done.already,
                "cancelled": done.cancelled,
                "scheduled": done.scheduled,
                "reason": status.reason,
            }
        )
        return
    context.out.show(Text.assemble((status.id, "head"), "  ", _word(status), f"  {_came_of(done, status, policy)}"))


def _came_of(done: FlowCancel, status: FlowInfo, policy: Policy) -> str:
    """What is cancelled, and what will be."""
    open_now = sum(count for one, count in status.counts.items() if not one.terminal)
    parts = [f"{plural(done.cancelled, 'member')} cancelled"]
    if policy == "flow_only" and not open_now:
        parts = ["all of its members have ended"]
    elif policy == "flow_only":
        parts = [
            f"{plural(open_now, 'open member')} left as {'it is' if open_now == 1 else 'they are'}: what runs may "
            f"go on as long as it runs, nothing else does until `outlast flows retry {status.id}`"
        ]
    elif done.scheduled and policy == "cancel_pending":
        parts.append(f"{done.scheduled:,} still open: what runs may finish, the workers cancel the others")
    elif done.scheduled:
        parts.append(f"{done.scheduled:,} scheduled: the workers cancel them")
    if done.already:
        parts.append("it was cancelled before" + (f", because: {status.reason}" if status.reason else ""))
    return "; ".join(parts)


async def _retry(context: Context, handle: FlowHandle) -> None:
    before = await handle.status()
    await handle.retry()
    after = await handle.status()
    kept = before.counts.get(Status.SUCCEEDED, 0)
    opened = sum(before.counts.values()) - kept
    if context.out.json:
        context.out.document(
            {**_brief(context, after), "status_before": before.status, "reopened": opened, "kept": kept}
        )
        return
    context.out.show(
        Text.assemble(
            (after.id, "head"),
            "  ",
            _word(before),
            (" → ", "quiet"),
            _word(after),
            f"  {plural(opened, 'member')} opened again, {kept:,} kept as succeeded",
        )
    )


def _brief(context: Context, status: FlowInfo) -> dict[str, object]:
    return {
        "store": context.shown_store,
        "namespace": context.namespace,
        "id": status.id,
        "status": status.status,
        "cancelling": status.cancelling,
        "counts": status.counts,
    }


def _word(status: FlowInfo) -> Text:
    word = str(status.status or ("cancelling" if status.cancelling else "running"))
    return Text(word, str(status.status or ""))


def _headline(status: FlowInfo) -> Text:
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(status.counts.items()))
    text = Text.assemble(
        (f"{status.id}", "head"), "  ", _word(status), f"  {plural(status.members, 'member')}: {counts}"
    )
    if status.reason:
        text.append(f"\ncancelled because: {status.reason}")
    if status.critical_path:
        way = [*status.critical_path[:WAY_MAX]]
        way += [f"{left:,} more"] if (left := len(status.critical_path) - WAY_MAX) > 0 else []
        text.append(f"\nlongest way: {' → '.join(way)}", "quiet")
    return text


def drawn(graph: FlowGraph) -> list[MemberInfo]:
    """From top to bottom, as many as are drawn."""
    levels = levels_of(graph)
    return sorted(graph.members, key=lambda member: levels[member.name])[:SHOWN_MAX]


def drawing(graph: FlowGraph, errors: Mapping[str, str]) -> Table:
    """One line per member, indented by how far from the beginning it is."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    levels = levels_of(graph)
    for member in drawn(graph):
        name = Text(f"{'  ' * min(levels[member.name], 20)}{MARKS[member.status]} {member.name}", member.status)
        why = Text(_why(member, errors.get(member.name)), "quiet")
        table.add_row(name, Text(member.status, member.status), why)
    if len(graph.members) > SHOWN_MAX:
        table.add_row(Text(f"… and {len(graph.members) - SHOWN_MAX:,} more", "quiet"))
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


def _why(member: MemberInfo, error: str | None) -> str:
    """Whom it comes after, what it waits for or how it ended: what its status says is not said again."""
    after = ", ".join(member.after[:AFTER_MAX]) + (", …" if len(member.after) > AFTER_MAX else "")
    need = f" ({member.needed} of {len(member.after)})" if member.needed < len(member.after) else ""
    cause = "" if member.cause in (None, member.status) else member.cause
    parts = [f"after {after}{need}" if after else "", member.reason or cause, error]
    return "  ".join(part for part in parts if part)


def _document(status: FlowInfo, graph: FlowGraph, errors: Mapping[str, str]) -> dict[str, object]:
    return {
        "name": status.name,
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
                "error": errors.get(member.name),
                "after": member.after,
                "needed": member.needed,
            }
            for member in graph.members
        ],
    }
