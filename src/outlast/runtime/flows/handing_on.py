"""An end in a flow that hands on: what waits for nothing else is answered, and begins here, in the commit of the end.

Otherwise an end owes its answers (`carrying.py`), which is two commits more until the next member runs: one that
answers, and the claim. Here all three are one, if few wait for this end and for nothing else, and whoever ran the
member has room. So does the last end of a flow all of which ended here: it ends the flow, which would be two commits
more. If anything changed since it was looked at, nothing of it is written: what was known ahead
(`downstream_cache.py`) is read anew, and after that the end goes its ordinary way.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec import structs

from outlast.errors import OutlastError
from outlast.machine import facts
from outlast.machine.changes import Changes, View, execution_after
from outlast.machine.decide_member import Ended
from outlast.machine.plan_end import Downstream, Plan, plan_end
from outlast.model.execution import Execution
from outlast.model.payload import Payload
from outlast.model.status import Status
from outlast.runtime.flows.downstream_cache import Behind

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine
    from outlast.runtime.flows.carrying import Flows
    from outlast.runtime.local_holder import LocalHolder
    from outlast.store.port import Verdict

_log = logging.getLogger(__name__)


async def hand_on(holder: LocalHolder, e: Execution, fact: facts.Complete) -> bool:
    """Commit the end together with what it means to those behind it. False if that can't be: nothing is written."""
    flows = holder.engine.flows
    if not holder.engine.carries:
        return False
    known = await flows.downstreams.take(e)
    if known is not None:
        if known.behind is None:
            return False
        if await _hand_on(holder, e, fact, known.behind):
            return True
    try:
        behind = await flows.behind(e)
    except OutlastError:
        return False  # the end itself waits for the store, as ever
    if behind is not None and known is not None and known.behind is not None:
        flows.downstreams.outdated(known.behind.flow, by=behind.flow)
    return behind is not None and await _hand_on(holder, e, fact, behind)


async def _hand_on(holder: LocalHolder, e: Execution, fact: facts.Complete, behind: Behind) -> bool:
    engine, plan = holder.engine, None
    end = Ended(e.namespace, e.id, Status.SUCCEEDED, e.generation)
    nexts: list[Downstream] = []
    inputs: dict[str, bytes] = {}
    begun: dict[str, Execution] = {}

    def planned(answer: Changes) -> Changes:
        nonlocal plan
        plan = plan_end(end, nexts, first=answer, gate=behind.flow, last=behind.last)
        return plan.changes

    try:
        for waiting in behind.waiting:
            try:
                one = await engine.flows.prepared(end, waiting, fact.output)
            except OutlastError:
                return False  # its input cannot be made now: that is owed, and does not keep the end waiting
            if one.unusable is not None:
                return False
            nexts.append(_with_room(engine, one, waiting.given, inputs, in_place_of=None if nexts else e))
        for one in nexts:
            if one.worker is not None:
                engine.flows.downstreams.look(one.view.execution)
        told = await holder.tell_once(e, structs.replace(fact, hands_on=True), planned)
        if told is not None and plan is not None:
            begun = await _begun(engine, nexts, plan, *told)
    finally:
        for name, data in inputs.items():
            try:
                _begin(engine, begun.get(name), data)
            except Exception:  # the end stands, and the others begin: a renewal finds what is held and does not run
                _log.exception("execution %s could not begin with the end of %s", name, e.id)
    if told is not None:
        _went_on(engine.flows, e, end, fact.output, ends=behind.last is not None)
    return told is not None


def _with_room(
    engine: Engine, one: Downstream, given: Payload | None, inputs: dict[str, bytes], *, in_place_of: Execution | None
) -> Downstream:
    """With the worker that has room for it, if it may run: `inputs` has what it runs with then, which is made of its
    upstream's output just now, or given from the beginning."""
    view, data, rooms = one.view, one.input, engine.rooms
    if not view.member.binds and given is not None and given.generation == view.execution.journal_generation:
        data = given.value
    worker = None if rooms is None or data is None else rooms.promise_next(view.execution, in_place_of=in_place_of)
    if worker is None or data is None:
        return one
    inputs[view.execution.id] = data
    return structs.replace(one, worker=worker)


def _went_on(flows: Flows, execution: Execution, end: Ended, output: bytes, *, ends: bool) -> None:
    """What is known of the flow, if this process started it."""
    course = flows.downstreams.course(execution)
    if course is not None:
        course.handed_on(end, output)
    if ends:
        flows.ended(execution.namespace, end.flow, None if course is None else course.outputs())


async def _begun(
    engine: Engine, nexts: list[Downstream], plan: Plan, verdict: Verdict, committed_at: int
) -> dict[str, Execution]:
    """What is held here by that commit. If its reply was lost, when it began is in the records."""
    here = {one.view.execution.id: one.view for one in nexts if one.view.execution.id in plan.begun}
    if not verdict.again:
        views = [View(view.partition, view.execution) for view in here.values()]
        found = [execution_after(view, plan.begun[name], committed_at) for name, view in zip(here, views, strict=True)]
        return {execution.id: execution for execution in found if execution is not None}
    try:
        records = await engine.store.load([view.execution.key for view in here.values()])
    except OutlastError:
        return {}  # a renewal finds that they are held and do not run
    return {e.id: e for e in records if isinstance(e, Execution) and e.claim_id == plan.begun[e.id].id}


def _begin(engine: Engine, execution: Execution | None, data: bytes) -> None:
    rooms = engine.rooms
    assert rooms is not None
    if execution is None:
        rooms.release()
    else:
        rooms.keep(execution, data)
