"""What a flow owes to the execution whose code started it: the word that it has ended. Pure."""

from __future__ import annotations

from outlast.machine import facts
from outlast.machine.changes import Insert, Write
from outlast.model.flow import Flow, whole_of
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
