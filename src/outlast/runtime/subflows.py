"""Flows that workflow code starts: they belong to the execution that started them, as a child does.

The start is owed by the commit of the journal entry that says so, and carried through the outbox: a flow lives in a
partition of its own. Its end is told to its parent in the same way. To its parent a flow is a child by the name that
stands for it as a whole (`FLOW_ID/`), which no execution can have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.errors import StoreUnavailable
from outlast.machine import facts
from outlast.machine.changes import Code, Refusal
from outlast.machine.decide_flow import FlowView, accepted, decode_acceptance, known, stopped
from outlast.model.event import answer_id
from outlast.model.flow import CancelPolicy, whole_of
from outlast.model.outbox import Delivery
from outlast.model.partition import partition_of
from outlast.model.status import Status
from outlast.runtime.stopping import GRACE_MS, cancel_members

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine

LOOKS_MAX = 100
LOOK_AGAIN_S = 0.02


def is_flow(child: str) -> bool:
    """Whether what a parent calls its child is a flow."""
    return child.endswith("/")


async def start_flow(engine: Engine, delivery: Delivery, fact: facts.StartFlow) -> Refusal | None:
    """Accept it, once however often this is carried; the refusal, if there can be no such flow."""
    new, members = decode_acceptance(fact.acceptance)
    partition = partition_of(delivery.namespace, new.id, engine.store.partitions)
    verdict = await engine.commit(accepted(partition, new, members))
    if not verdict.applied:
        flow, summary = await engine.flows.heads(delivery.namespace, new.id)
        refusal = Refusal(Code.CONFLICT, "has the id of an execution")
        if flow is not None:
            refusal = known(FlowView(partition, flow, summary), new) or Refusal(Code.CONFLICT, "is being staged")
            if refusal.code is Code.ALREADY and flow.parent != new.parent:
                refusal = Refusal(Code.CONFLICT, "was started by somebody else, who hears of its end")
        if refusal.code is not Code.ALREADY:
            await _answer(engine, delivery, fact, whole_of(new.id), refusal)
            return refusal
    # A parent that ended before has not found it; one that ends from here on will.
    parent = await engine.look(delivery.namespace, delivery.source)
    if fact.closes and (parent is None or parent.status.terminal):
        await stop_flow(engine, delivery.namespace, new.id, delivery.source, "its parent ended before it began")
    return None


async def _answer(engine: Engine, delivery: Delivery, fact: facts.StartFlow, child: str, refusal: Refusal) -> None:
    """Its parent must not wait for a word that will not come."""
    answer = facts.ChildCompleted(
        change_id=answer_id(fact.change_id),
        child=child,
        status=Status.FAILED,
        value=None,
        generation=0,
        cause=refusal.message,
    )
    await engine.tell(delivery.namespace, delivery.source, answer)


async def stop_flow(engine: Engine, namespace: str, flow_id: str, parent: str, reason: str) -> None:
    """The parent's end cancels what it started, and nothing else of that name. What it owes is a durable backlog."""
    partition = partition_of(namespace, flow_id, engine.store.partitions)
    for _ in range(LOOKS_MAX):
        flow, summary = await engine.flows.heads(namespace, flow_id)
        if flow is None or flow.parent != parent:
            return
        answer = stopped(
            FlowView(partition, flow, summary),
            policy=CancelPolicy.CANCEL_ALL,
            reason=reason,
            grace_ms=GRACE_MS,
            change_id=engine.entropy.new_id(),
        )
        if isinstance(answer, Refusal) and answer.code is not Code.NOT_ALLOWED:
            return  # it has ended, or was cancelled before
        if not isinstance(answer, Refusal) and (await engine.commit(answer)).applied:
            await cancel_members(engine, namespace, flow_id)
            return
        await engine.timing.sleep(LOOK_AGAIN_S)  # it is being retried
    raise StoreUnavailable(f"flow {flow_id!r} does not hold still: its cancel is owed until later")
