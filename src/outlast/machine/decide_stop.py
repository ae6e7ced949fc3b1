"""The cancel of a flow: it is stopped at once, and its members acknowledge that one after the other.

From the stop on nothing of the flow is claimed. What is still owed to its members is a backlog (`cancel_at`), which the
last acknowledgement takes away.
"""

from __future__ import annotations

from outlast.machine.changes import HOME, Changes, Code, Guard, Matches, Patch, Refusal, Write
from outlast.machine.decide_flow import FlowView
from outlast.machine.flow_changes import flow_changes
from outlast.machine.flow_parents import told_to_parent
from outlast.machine.guards_and_writes import Fields
from outlast.machine.transitions import FlowFact
from outlast.model.execution import Execution
from outlast.model.flow import CancelPolicy, Flow, FlowState, Member, Summary
from outlast.model.record import Now, Plain, settled
from outlast.model.status import Status


def stopped(view: FlowView, *, policy: CancelPolicy, reason: str, grace_ms: int, change_id: str) -> Changes | Refusal:
    """From here on no member is claimed. A reconciler looks after what is owed to them when the grace is over."""
    flow, summary = view.flow, view.summary
    if flow is None or summary is None or flow.staged_at is not None:
        return Refusal(Code.UNKNOWN, "there is no such flow")
    if flow.state is FlowState.REOPENING:
        return Refusal(Code.NOT_ALLOWED, "is being retried: cancel it when that is done")
    if summary.outcome is Status.CANCELLED or flow.state is FlowState.STOPPED:
        return _stopped_before(flow, summary, policy)
    if summary.outcome is not None:
        return Refusal(Code.TERMINAL, f"has ended: it is {summary.outcome}")
    only = policy is CancelPolicy.FLOW_ONLY
    fields: Fields = {
        "state": FlowState.STOPPED,
        "policy": policy,
        "reason": reason,
        "revision": flow.revision + 1,
        "cancel_at": None if only else Now(grace_ms),
    }
    writes: list[Write] = []
    if only:
        ended: Fields = {"outcome": Status.CANCELLED, "finished_at": Now(), "check_at": None, "depend_at": None}
        writes.append(Patch(summary.key, ended))
        writes += told_to_parent(view.partition, flow, Status.CANCELLED, change_id)
        if flow.retention_ms is not None:
            fields["purge_at"] = Now(flow.retention_ms)
    guards = [
        Matches(flow.key, {"state": flow.state, "revision": flow.revision}),
        Matches(summary.key, {"outcome": None}),
    ]
    anchors, all_of_it = (flow.key, summary.key), [Patch(flow.key, fields), *writes]
    return flow_changes(FlowFact.STOPPED, change_id, view.partition, anchors, guards, all_of_it, HOME)


def _stopped_before(flow: Flow, summary: Summary, policy: CancelPolicy) -> Refusal:
    """The same again is the same. Another policy would have to do something else with members that are still open."""
    all_ended = summary.outcome is not None and flow.policy is not CancelPolicy.FLOW_ONLY
    if flow.policy is policy or all_ended:
        return Refusal(Code.ALREADY, "was cancelled before")
    return Refusal(Code.CONFLICT, f"was cancelled before, with policy {flow.policy}, and not with {policy}")


def acknowledged(partition: int, member: Member, flow: Flow, change_id: str, *, last: bool) -> Changes:
    """The flow's cancel reached a member. With the `last` of them nothing is owed any more. Not if the flow was retried
    meanwhile: then its members are not to be cancelled."""
    guards: list[Guard] = [
        Matches(member.key, {"acknowledged": False, "flow": member.flow}),
        Matches(flow.key, {"state": FlowState.STOPPED, "revision": flow.revision}),
    ]
    writes: list[Write] = [Patch(member.key, {"acknowledged": True})]
    anchors = [member.key]
    if last:
        anchors.append(flow.key)
        writes.append(Patch(flow.key, {"cancel_at": None}))
    return flow_changes(FlowFact.ACKNOWLEDGED, change_id, partition, tuple(anchors), guards, writes)


def all_acknowledged(partition: int, flow: Flow, change_id: str) -> Changes:
    """The cancel reached every member, and whoever acknowledged the last of them died before it could say so."""
    guards = [Matches(flow.key, {"state": FlowState.STOPPED, "revision": flow.revision})]
    writes = [Patch(flow.key, {"cancel_at": None})]
    return flow_changes(FlowFact.ACKNOWLEDGED, change_id, partition, (flow.key,), guards, writes)


LATER_MIN_MS, LATER_MAX_MS, LATER_PART = 1_000, 30_000, 4
"""What has run for so long may run on: it is looked at again after a quarter of that time, within these bounds."""


def may_run_on(flow: Flow, execution: Execution) -> bool:
    """Whether the flow's cancel waits until its code has stopped by itself."""
    return flow.policy is CancelPolicy.CANCEL_PENDING and execution.status is Status.ACTIVE


def put_off(partition: int, flow: Flow, change_id: str, *, ran_ms: int) -> Changes:
    """Only what may run on is owed its cancel. It stays owed, and is due again when one of them may have stopped. Not
    if somebody has put it off meanwhile, or the flow has ended: then it owes nothing."""
    later_ms = min(max(ran_ms // LATER_PART, LATER_MIN_MS), LATER_MAX_MS)
    seen: dict[str, Plain] = {
        "state": FlowState.STOPPED,
        "revision": flow.revision,
        "cancel_at": settled(flow.cancel_at),
    }
    guards, writes = [Matches(flow.key, seen)], [Patch(flow.key, {"cancel_at": Now(later_ms)})]
    return flow_changes(FlowFact.ACKNOWLEDGED, change_id, partition, (flow.key,), guards, writes)
