"""A flow and the execution whose code started it: the one is told of the other's end. Pure."""

from __future__ import annotations

from outlast.machine import facts
from outlast.machine.changes import Insert, Write
from outlast.model.flow import Flow, FlowState, whole_of
from outlast.model.outbox import Delivery
from outlast.model.record import Now
from outlast.model.status import Status


def told_to_parent(partition: int, flow: Flow, outcome: Status, change_id: str) -> list[Write]:
    """Nothing, if no workflow started it. A flow that was retried ends once more: its revision tells the ends apart."""
    if flow.parent is None:
        return []
    word = facts.ChildCompleted(
        change_id=f"{change_id}/parent",
        child=whole_of(flow.id),
        status=outcome,
        value=None,
        generation=flow.revision + 1,
        cause=flow.reason,
    )
    debt = Delivery(
        partition=partition,
        id=word.change_id,
        namespace=flow.namespace,
        target=flow.parent,
        source=whole_of(flow.id),
        fact=facts.encode_fact(word),
        due_at=Now(),
        created_at=Now(),
        change_id=change_id,
    )
    return [Insert(debt)]


def parent_ended(parent: str, how: str) -> str:
    """The reason of a cancel, because the parent ended."""
    return f"its parent {parent!r} ended{how}"


def was_closed(flow: Flow) -> bool:
    """Whether it was cancelled because its parent ended: if that is opened again, so is the flow."""
    if flow.state is not FlowState.STOPPED or flow.parent is None or flow.reason is None:
        return False
    return flow.reason.startswith(parent_ended(flow.parent, ""))
