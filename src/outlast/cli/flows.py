"""`outlast flows show | cancel | retry ID`: a flow drawn with the state of every member, stopped, or opened again."""

from __future__ import annotations

from asyncio import sleep
from typing import Annotated, Literal

from cyclopts import Parameter
from msgspec import structs
from rich.table import Table
from rich.text import Text

from outlast.cli.context import Context, ContextArgument, Failed
from outlast.client.flow_handle import FlowHandle, Policy
from outlast.client.flow_info import FlowCancel, FlowInfo
from outlast.client.views.flow_view import FlowView, MemberDocument, flow_view
from outlast.client.views.words import plural
from outlast.errors import FlowNotFound, InvalidInput
from outlast.model.execution import execution_key
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
    engine, errors_of = Engine(store), None if context.out.json else SHOWN_MAX
    while True:
        flow = await flow_view(engine, context.namespace, id, errors_of=errors_of)
        last = not follow or flow.status is not None
        if not context.out.json:
            context.out.show(_headline(flow), drawing(flow))
        elif last:  # programs get one document
            context.out.document({"store": context.shown_store, "namespace": context.namespace, **structs.asdict(flow)})
        if last:
            return
        await sleep(FOLLOW_S)


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


def _word(status: FlowInfo | FlowView) -> Text:
    word = str(status.status or ("cancelling" if status.cancelling else "running"))
    return Text(word, str(status.status or ""))


def _headline(flow: FlowView) -> Text:
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(flow.counts.items()))
    members = plural(len(flow.members), "member")
    text = Text.assemble((flow.id, "head"), "  ", _word(flow), f"  {members}: {counts}")
    if flow.reason:
        text.append(f"\ncancelled because: {flow.reason}")
    if flow.critical_path:
        way = [*flow.critical_path[:WAY_MAX]]
        way += [f"{left:,} more"] if (left := len(flow.critical_path) - WAY_MAX) > 0 else []
        text.append(f"\nlongest way: {' → '.join(way)}", "quiet")
    return text


def drawing(flow: FlowView) -> Table:
    """One line per member, indented by how far from the beginning it is."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for member in sorted(flow.members, key=lambda member: member.level)[:SHOWN_MAX]:
        name = Text(f"{'  ' * min(member.level, 20)}{MARKS[member.status]} {member.name}", member.status)
        table.add_row(name, Text(member.status, member.status), Text(_why(member), "quiet"))
    if len(flow.members) > SHOWN_MAX:
        table.add_row(Text(f"… and {len(flow.members) - SHOWN_MAX:,} more", "quiet"))
    return table


def _why(member: MemberDocument) -> str:
    """Whom it comes after, what it waits for or how it ended: what its status says is not said again."""
    after = ", ".join(member.after[:AFTER_MAX]) + (", …" if len(member.after) > AFTER_MAX else "")
    need = f" ({member.needed} of {len(member.after)})" if member.needed < len(member.after) else ""
    cause = "" if member.cause in (None, member.status) else member.cause
    parts = [f"after {after}{need}" if after else "", member.reason or cause, member.error]
    return "  ".join(part for part in parts if part)
