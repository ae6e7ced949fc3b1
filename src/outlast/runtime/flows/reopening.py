"""A flow is retried: opens again what did not succeed, a part at a time, then the flow itself.

An errand of the outbox: what a crash leaves is finished by whoever carries it next. Until the last part nothing of the
flow is claimed, so nobody runs ahead of upstreams that are not open yet.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import Struct

from outlast import limits
from outlast.errors import StoreUnavailable
from outlast.machine import decide_member, facts, retry_cut
from outlast.machine.changes import Changes, lane_channel
from outlast.machine.decide_flow import FlowView, reopened
from outlast.machine.decide_member import MemberView
from outlast.machine.retry_cut import EntryKey
from outlast.model.execution import Execution
from outlast.model.flow import EdgeAnswer, Flow, FlowState, OnFailure, OnSatisfied, Settled, decode_ids
from outlast.model.outbox import Delivery
from outlast.model.partition import partition_of
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.status import Status
from outlast.runtime.retrying import runs_again, was_undone

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine
    from outlast.store.port import Verdict

LANES_MAX = 100
TOGETHER_MAX = 500
"""So many answers are taken back in one change."""


async def reopen_members(engine: Engine, delivery: Delivery) -> bool:
    """True if what is owed is struck off by it."""
    namespace, flow_id = delivery.namespace, delivery.target.rstrip("/")
    partition = partition_of(namespace, delivery.target, engine.store.partitions)
    flow, summary = await engine.flows.heads(namespace, flow_id)
    if flow is None or summary is None or flow.state is not FlowState.REOPENING:
        return False  # somebody else did it
    lanes: dict[str, None] = {}
    ids: list[str] = []
    plan = await _planned(engine, partition, namespace, flow_id)
    async for page in engine.flows.roster(namespace, flow_id):
        views = await engine.flows.views(partition, namespace, page)
        again = [view for view in views if view.execution.id not in plan.spared]
        await asyncio.gather(*(_reopen(engine, flow, view, plan.turns.get(view.execution.id)) for view in again))
        lanes.update(dict.fromkeys(lane_channel(namespace, view.execution.lane) for view in views))
        ids += page
    view = FlowView(partition, flow, summary)
    change = reopened(view, delivery, lanes=tuple(lanes)[:LANES_MAX], change_id=engine.entropy.new_id())
    if not (await engine.commit(change)).applied:
        return False
    # What succeeded has answered before, and may be all that somebody waits for.
    for begin in range(0, len(ids), limits.LOAD_MAX_KEYS // 2):
        some = ids[begin : begin + limits.LOAD_MAX_KEYS // 2]
        waiting = [view for view in await engine.flows.views(partition, namespace, some) if decide_member.waits(view)]
        await asyncio.gather(*(_answered_again(engine, view) for view in waiting))
    await engine.flows.tally(namespace, flow_id)
    return True


async def _answered_again(engine: Engine, view: MemberView) -> None:
    """An upstream that succeeded while the flow was stopped has told nobody yet."""
    e, flows = view.execution, engine.flows
    ended = await flows.unanswered(e.namespace, e.id, decode_ids(view.member.after))
    answers = [decide_member.answered_edge(view.partition, one, e.id) for one in ended]
    await asyncio.gather(*(engine.group.commit(answer) for answer in answers))
    await flows.advance(e.namespace, e.id)


class Plan(Struct):
    """What one member alone does not show."""

    turns: dict[str, str] = {}
    """Of the members that only wait for their turn, behind whom each has it now: the next one above that runs again,
    too. So no more of them run at once than before."""
    spared: set[str] = set()
    """Those that were cancelled because nobody needed them any more, and nobody does."""


async def _planned(engine: Engine, partition: int, namespace: str, flow_id: str) -> Plan:
    before: dict[str, str] = {}
    cancelled: dict[str, MemberView] = {}
    needed_by: dict[str, set[str]] = {}
    again, unneeded = set[str](), set[str]()
    async for page in engine.flows.roster(namespace, flow_id):
        for view in await engine.flows.views(partition, namespace, page):
            status, member, one = view.execution.status, view.member, view.execution.id
            upstreams = decode_ids(member.after)
            if member.on_failure is OnFailure.TURN:
                [before[one]] = upstreams
            if status is Status.CANCELLED:
                cancelled[one] = view
            if status is not Status.SUCCEEDED:
                again.add(one)
                for upstream in () if one in before else upstreams:
                    needed_by.setdefault(upstream, set()).add(one)
            elif member.on_satisfied is OnSatisfied.CANCEL_REMAINING and member.settled is Settled.SATISFIED:
                unneeded.update(upstreams)
    plan = Plan(spared=_spared(cancelled, unneeded, needed_by))
    again -= plan.spared
    for one in again & before.keys():
        above = before[one]
        while above not in again and above in before:
            above = before[above]
        if above in again:
            plan.turns[one] = above
    return plan


def _spared(cancelled: dict[str, MemberView], unneeded: set[str], needed_by: dict[str, set[str]]) -> set[str]:
    """The cancelled of those that somebody said not to need, and that nobody needs who runs again; and so on upwards,
    from those that were cancelled while they waited. `needed_by` is what others wait for, and is used up."""
    spared, looks = set[str](), list(unneeded)
    while looks:
        one = looks.pop()
        view = cancelled.get(one)
        if view is None or one in spared or needed_by.get(one):
            continue
        spared.add(one)
        for upstream in decode_ids(view.member.after):
            needed_by.get(upstream, set()).discard(one)
            if upstream in unneeded or decide_member.ended_unsettled(view):
                looks.append(upstream)
    return spared


async def _reopen(engine: Engine, flow: Flow, view: MemberView, turn: str | None) -> None:
    """Looked at again if somebody was faster; repeating it finds nothing to do. If somebody else has opened the whole
    flow meanwhile, its members run, and may have failed anew: that is theirs."""
    namespace, execution_id = view.execution.namespace, view.execution.id

    async def decided(refused: Verdict | None) -> Changes | None:
        seen = view
        if refused is not None:
            if await engine.flows.is_another(flow):
                return None
            [seen] = await engine.flows.views(view.partition, namespace, [execution_id])
        answers = await _answers(engine, seen)
        for begin in range(0, len(answers) - TOGETHER_MAX, TOGETHER_MAX):
            # More than one change holds: those that will be given anew go ahead.
            some = [edge for edge in answers[begin : begin + TOGETHER_MAX] if edge.answer != Status.SUCCEEDED]
            await engine.commit(decide_member.forgotten(seen, some, flow=flow, change_id=engine.entropy.new_id()))
        supersedes, anew = await _run_again(engine, seen.execution)
        return decide_member.reopened(
            seen,
            answers[-TOGETHER_MAX:],
            flow=flow,
            change_id=engine.entropy.new_id(),
            supersedes=supersedes,
            anew=anew,
            turn=turn,
        )

    await engine.settle(f"member {execution_id!r}", decided)


async def _run_again(engine: Engine, execution: Execution) -> tuple[tuple[EntryKey, ...], bytes | None]:
    """What of its journal runs again; or, if what it did was undone, the input with which it begins anew."""
    e, store = execution, engine.store
    if e.status not in (Status.FAILED, Status.CANCELLED, Status.EXPIRED):
        return (), None
    if await was_undone(store, e):
        [given] = await store.load([payload_key(e.namespace, e.id, e.journal_generation, Role.INPUT)])
        assert isinstance(given, Payload), "what has run has an input"
        return (), given.value
    values = engine.flows.values
    if values is None:
        raise StoreUnavailable(f"what of {e.id!r} runs again is found by a process that has the app's codec")
    ahead, last = retry_cut.parts(await runs_again(store, values, e))
    for entries in ahead:
        fact = facts.Supersede(change_id=engine.entropy.new_id(), epoch=e.epoch, entries=entries)
        if (await engine.tell(e.namespace, e.id, fact)).refusal is not None:
            break  # it is not what it was: so says the answer to the change that opens it
    return last, None


async def _answers(engine: Engine, view: MemberView) -> list[EdgeAnswer]:
    owner, found = (view.execution.namespace, view.execution.id), list[EdgeAnswer]()
    while True:
        after = found[-1].key if found else None
        page = await engine.store.scan(EdgeAnswer.KIND, owner, after=after, limit=limits.SCAN_MAX_RECORDS)
        found += [record for record in page if isinstance(record, EdgeAnswer)]
        if len(page) < limits.SCAN_MAX_RECORDS:
            return found
