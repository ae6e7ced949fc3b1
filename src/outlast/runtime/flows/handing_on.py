"""An end in a flow that hands on: what waits for nothing else is answered, and begins here, in the commit of the end.

Otherwise an end owes its answers (`carrying.py`), which is two commits more until the next member runs: one that
answers, and the claim. Here all three are one, if few wait for this end and for nothing else, and whoever ran the
member has room. So does the last end of a flow all of which ended here: it ends the flow, which would be two commits
more. If anything changed since it was looked at, nothing of it is written: what was known ahead (`ahead.py`) is read
anew, and after that the end goes its ordinary way.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from outlast.errors import OutlastError
from outlast.machine import facts
from outlast.machine.changes import Changes, View, execution_after
from outlast.machine.decide_member import Advanced, Ended, MemberView, Room, advance, closed, edge_of, handed_on
from outlast.model.execution import Execution
from outlast.model.flow import Flow
from outlast.model.payload import Payload
from outlast.model.status import Status
from outlast.runtime.flows.ahead import Behind, Waiting
from outlast.runtime.flows.composing import MadeOf

if TYPE_CHECKING:
    from outlast.runtime.flows.carrying import Flows
    from outlast.runtime.local_holder import LocalHolder
    from outlast.store.port import Verdict

_log = logging.getLogger(__name__)


class Next(Struct, frozen=True, gc=False):
    """One that was waiting: what becomes of it, and with what input it begins here, if it does."""

    view: MemberView
    changes: Changes
    input: bytes | None = None


async def hand_on(holder: LocalHolder, e: Execution, fact: facts.Complete) -> bool:
    """Commit the end together with what it means to those behind it. False if that can't be: nothing is written."""
    flows = holder.engine.flows
    if not holder.engine.carries:
        return False
    known = await flows.ahead.take(e)
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
        flows.ahead.outdated(known.behind.flow, by=behind.flow)
    return behind is not None and await _hand_on(holder, e, fact, behind)


async def _hand_on(holder: LocalHolder, e: Execution, fact: facts.Complete, behind: Behind) -> bool:
    gate, flows = behind.flow, holder.engine.flows
    end = Ended(e.namespace, e.id, Status.SUCCEEDED, e.generation)
    nexts: list[Next] = []
    begun: dict[str, Execution] = {}
    try:
        for waiting in behind.waiting:
            try:
                found = await _next(holder, gate, waiting, end, fact.output, in_place_of=None if nexts else e)
            except OutlastError:
                found = None  # its input cannot be made now: that is owed, and does not keep the end waiting
            if found is None:
                return False
            nexts.append(found)
        for one in nexts:
            if one.input is not None:
                flows.ahead.look(one.view.execution)
        told = await holder.tell_once(e, fact, partial(_amended, behind, end, nexts))
        if told is not None:
            begun = await _begun(holder, nexts, *told)
    finally:
        for one in nexts:
            try:
                _begin(holder, one, begun.get(one.view.execution.id))
            except Exception:  # the end stands, and the others begin: a renewal finds what is held and does not run
                _log.exception("execution %s could not begin with the end of %s", one.view.execution.id, e.id)
    if told is not None:
        _went_on(flows, e, end, fact.output, ends=behind.last is not None)
    return told is not None


def _amended(behind: Behind, end: Ended, nexts: list[Next], answer: Changes) -> Changes:
    last, closing = behind.last, None
    if last is not None:
        closing = closed(answer.partition, behind.flow, last.summary, [*last.others, end], answer.id)
    return handed_on(answer, end, behind.flow, [(one.view.execution.id, one.changes) for one in nexts], closing)


def _went_on(flows: Flows, execution: Execution, end: Ended, output: bytes, *, ends: bool) -> None:
    """What is known of the flow, if this process started it."""
    course = flows.ahead.course(execution)
    if course is not None:
        course.handed_on(end, output)
    if ends:
        flows.ended(execution.namespace, end.flow, None if course is None else course.outputs())


async def _next(
    holder: LocalHolder, gate: Flow, waiting: Waiting, end: Ended, output: bytes, *, in_place_of: Execution | None
) -> Next | None:
    engine, view, given = holder.engine, waiting.view, waiting.given
    execution = view.execution
    made_of = MadeOf(given.value, output) if given is not None and view.member.binds else None
    edges, change_id = [edge_of(end, execution.id)], engine.entropy.new_id()
    advanced = await engine.flows.decided(view, edges, change_id, made_of)
    if advanced.changes is None or advanced.skipped:
        return None
    data, rooms = _input(view, advanced, given), holder.engine.rooms
    worker = None if rooms is None or data is None else rooms.promise_next(execution, in_place_of=in_place_of)
    if rooms is None or worker is None:
        return Next(view, advanced.changes)
    begun = advance(view, edges, change_id=change_id, input=advanced.input, room=Room(worker, gate))
    assert begun.changes is not None, "it was decided so before"
    if not begun.begins:
        rooms.release()
    return Next(view, begun.changes, data if begun.begins else None)


async def _begun(holder: LocalHolder, nexts: list[Next], verdict: Verdict, committed_at: int) -> dict[str, Execution]:
    """What is held here by that commit. If its reply was lost, when it began is in the records."""
    here = [one for one in nexts if one.input is not None]
    if not verdict.again:
        views = [View(one.view.partition, one.view.execution) for one in here]
        found = [execution_after(view, one.changes, committed_at) for view, one in zip(views, here, strict=True)]
        return {execution.id: execution for execution in found if execution is not None}
    try:
        records = await holder.engine.store.load([one.view.execution.key for one in here])
    except OutlastError:
        return {}  # a renewal finds that they are held and do not run
    pairs = zip(here, records, strict=True)
    return {e.id: e for one, e in pairs if isinstance(e, Execution) and e.claim_id == one.changes.id}


def _begin(holder: LocalHolder, one: Next, execution: Execution | None) -> None:
    if one.input is None:
        return
    rooms = holder.engine.rooms
    assert rooms is not None
    if execution is None:
        rooms.release()
    else:
        rooms.keep(execution, one.input)


def _input(view: MemberView, advanced: Advanced, given: Payload | None) -> bytes | None:
    """What it runs with: made of its upstreams' outputs just now, or given from the beginning."""
    if view.member.binds:
        return advanced.input
    return None if given is None or given.generation != view.execution.journal_generation else given.value
