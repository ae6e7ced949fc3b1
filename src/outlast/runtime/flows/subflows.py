"""Flows that workflow code starts: they belong to the execution that started them, as a child does.

The start is owed by the commit of the journal entry that says so, and carried through the outbox: a flow lives in a
partition of its own. Its end is told to its parent in the same way. To its parent a flow is a child by the name that
stands for it as a whole (`FLOW_ID/`), which no execution can have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from outlast.errors import StoreUnavailable
from outlast.machine import facts
from outlast.machine.amendments import Debt
from outlast.machine.changes import Changes, Code, Refusal
from outlast.machine.decide_flow import (
    FlowView,
    NewFlow,
    NewMember,
    accepted,
    decode_acceptance,
    in_the_way,
    known,
    reopening,
)
from outlast.machine.decide_stop import stopped
from outlast.machine.flow_parents import parent_ended, was_closed
from outlast.model.event import answer_id
from outlast.model.flow import CancelPolicy, Flow, whole_of
from outlast.model.outbox import Delivery
from outlast.model.partition import partition_of
from outlast.model.status import Status
from outlast.runtime.flows.stopping import GRACE_MS, cancel_members
from outlast.store.port import Store, Verdict

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine

PAUSES_MAX, LOOK_AGAIN_S = 100, 0.02
"""A flow that is being retried or cancelled is looked at again so often, after such pauses."""


def is_flow(child: str) -> bool:
    """Whether what a parent calls its child is a flow."""
    return child.endswith("/")


async def is_owed(store: Store, debt: Debt) -> bool:
    """Whether nobody has settled it yet."""
    [record] = await store.load([debt.key])
    return record is not None


async def start_flow(engine: Engine, delivery: Delivery, fact: facts.StartFlow) -> Refusal | None:
    """Accept it, once however often this is carried; the refusal, if there can be no such flow."""
    if not await is_owed(engine.store, delivery):
        return None  # somebody else carried it, perhaps so long ago that it has ended and was purged
    new, members = decode_acceptance(fact.acceptance)
    partition = partition_of(delivery.namespace, new.id, engine.store.partitions)
    refusal = await _accepted(engine, partition, new, members)
    if refusal is not None and refusal.code is not Code.ALREADY:
        await _answer(engine, delivery, fact, whole_of(new.id), refusal)
        return refusal
    if refusal is not None:
        await _open_again(engine, delivery, new.id)

    async def owed() -> bool:
        over = await is_over(engine, delivery.namespace, delivery.source)
        return over and await is_owed(engine.store, delivery)

    # A parent that ended before has not found it; one that ends from here on will.
    flow, _ = await engine.flows.heads(delivery.namespace, new.id)
    if fact.closes and await is_over(engine, delivery.namespace, delivery.source):
        await stop_flow(engine, flow, delivery.source, parent_ended(delivery.source, " before it began"), owed)
    return None


async def _accepted(engine: Engine, partition: int, new: NewFlow, members: list[NewMember]) -> Refusal | None:
    """Until it is there, or cannot be: what was in the way may be purged meanwhile."""

    async def decided(refused: Verdict | None) -> Changes | Refusal:
        if refused is None:
            return accepted(partition, new, members)
        view = await engine.flows.view(new.namespace, new.id)
        if view.flow is not None:
            refusal = known(view, new) or Refusal(Code.CONFLICT, "is being staged")
            if refusal.code is Code.ALREADY and view.flow.parent != new.parent:
                return Refusal(Code.CONFLICT, "was started by somebody else, who hears of its end")
            return refusal
        assert refused.refused_by is not None, "nothing else refuses a start"
        return in_the_way(new, refused.refused_by.key) or accepted(partition, new, members)

    found = await engine.settle(f"flow {new.id!r}", decided)
    if isinstance(found, Refusal):
        return found
    if not found.verdict.again:
        engine.flows.downstreams.remember(found.changes, found.at)
    return None


async def _open_again(engine: Engine, delivery: Delivery, flow_id: str) -> None:
    """If it was cancelled because its parent ended, and that was retried and starts it once more: what has succeeded
    of it stays. Its members may still be about to be cancelled."""
    namespace, parent = delivery.namespace, delivery.source

    async def decided(refused: Verdict | None) -> Changes | Refusal | None:
        if refused is not None and not await is_owed(engine.store, delivery):
            return None  # somebody else did it
        view = await engine.flows.view(namespace, flow_id)
        flow = view.flow
        if flow is None or flow.parent != parent or not was_closed(flow) or await is_over(engine, namespace, parent):
            return None
        return reopening(view, change_id=engine.entropy.new_id())

    for _ in range(PAUSES_MAX):
        if not isinstance(await engine.settle(f"flow {flow_id!r}", decided), Refusal):
            return
        await engine.timing.sleep(LOOK_AGAIN_S)
        if not await is_owed(engine.store, delivery):
            return
    raise StoreUnavailable(f"flow {flow_id!r} is being cancelled: it is opened again when that is done")


async def is_over(engine: Engine, namespace: str, parent: str) -> bool:
    """Whether a parent has ended, or is gone."""
    execution = await engine.look(namespace, parent)
    return execution is None or execution.status.terminal


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


async def stop_flow(
    engine: Engine, seen: Flow | None, parent: str, reason: str, owed: Callable[[], Awaitable[bool]]
) -> None:
    """The parent's end cancels what it started, and nothing else of that name. What it owes is a durable backlog.

    `owed` is asked again whenever the flow is not what it was: somebody else may have cancelled it meanwhile, and then
    it may have been retried since, which is not to be undone."""
    flow = seen

    async def decided(refused: Verdict | None) -> Changes | Refusal | None:
        nonlocal flow
        if refused is not None and flow is not None:
            flow, _ = await engine.flows.heads(flow.namespace, flow.id)
            if not await owed():
                return None
        if flow is None or flow.parent != parent:
            return None
        _, summary = await engine.flows.heads(flow.namespace, flow.id)
        return stopped(
            FlowView(partition_of(flow.namespace, flow.id, engine.store.partitions), flow, summary),
            policy=CancelPolicy.CANCEL_ALL,
            reason=reason,
            grace_ms=GRACE_MS,
            change_id=engine.entropy.new_id(),
        )

    for _ in range(PAUSES_MAX):
        answer = await engine.settle(f"a flow of {parent!r}", decided)
        if answer is None or flow is None:
            return
        if not isinstance(answer, Refusal):
            await cancel_members(engine, flow.namespace, flow.id)
            return
        if answer.code is not Code.NOT_ALLOWED:
            return  # it has ended, or was cancelled before
        await engine.timing.sleep(LOOK_AGAIN_S)  # it is being retried
        flow, _ = await engine.flows.heads(flow.namespace, flow.id)
        if not await owed():
            return
    raise StoreUnavailable(f"the flow of {parent!r} does not hold still: its cancel is owed until later")
