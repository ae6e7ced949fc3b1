"""An end in a flow that hands on: what waits for nothing else is answered, and begins here, in the commit of the end.

Otherwise an end owes its answers (`flows.py`), which is two commits more until the next member runs: one that answers,
and the claim. Here all three are one, if few wait for this end and for nothing else, and whoever ran the member has
room. If anything changed since it was looked at, nothing of it is written: what was known ahead (`ahead.py`) is read
anew, and after that the end goes its ordinary way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from outlast.errors import OutlastError
from outlast.machine import facts
from outlast.machine.changes import Changes, Insert, View, execution_after
from outlast.machine.decide_member import Ended, MemberView, claimed, edge_of, handed_on
from outlast.machine.parts import payload
from outlast.model.execution import Execution
from outlast.model.flow import Flow
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.status import Status
from outlast.runtime.ahead import Behind, Seen

if TYPE_CHECKING:
    from outlast.runtime.lease import Lease
    from outlast.runtime.parts import Parts
    from outlast.store.port import Verdict


class Next(Struct, frozen=True):
    """One that was waiting: what becomes of it, and with what input it begins here, if it does."""

    view: MemberView
    changes: Changes
    input: bytes | None = None


async def hand_on(parts: Parts, lease: Lease, fact: facts.Complete) -> bool:
    """Commit the end together with what it means to those behind it. False if that can't be: nothing is written."""
    e, flows = lease.execution, parts.engine.flows
    if not parts.engine.carries:
        return False
    known = await flows.ahead.take(e)
    if known is not None:
        if known.behind is None:
            return False
        if await _hand_on(parts, lease, fact, known.behind):
            return True
    try:
        behind = await flows.behind(e)
    except OutlastError:
        return False  # the end itself waits for the store, as ever
    return behind is not None and await _hand_on(parts, lease, fact, behind)


async def _hand_on(parts: Parts, lease: Lease, fact: facts.Complete, behind: Behind) -> bool:
    e, gate, seen = lease.execution, behind.flow, behind.seen
    end = Ended(e.namespace, e.id, Status.SUCCEEDED, e.generation)
    output = payload(e, fact, Role.OUTPUT, fact.output).record
    seen[output.key] = output
    nexts: list[Next] = []
    begun: dict[str, Execution] = {}
    try:
        for view in behind.views:
            try:
                found = await _next(parts, gate, view, end, seen, in_place=not nexts)
            except OutlastError:
                found = None  # its input cannot be made now: that is owed, and does not keep the end waiting
            if found is None:
                return False
            nexts.append(found)
        for one in nexts:
            if one.input is not None:
                parts.engine.flows.ahead.look(one.view.execution)
        advanced = [(one.view.execution.id, one.changes) for one in nexts]
        told = await lease.tell_once(fact, lambda answer: handed_on(answer, end, gate, advanced))
        if told is not None:
            begun = await _begun(parts, nexts, *told)
    finally:
        for one in nexts:
            _begin(parts, one, begun.get(one.view.execution.id))
    return told is not None


async def _next(parts: Parts, gate: Flow, view: MemberView, end: Ended, seen: Seen, *, in_place: bool) -> Next | None:
    engine, execution = parts.engine, view.execution
    advanced = await engine.flows.decided(view, [edge_of(end, execution.id)], engine.entropy.new_id(), seen)
    if advanced.changes is None or advanced.skipped:
        return None
    data, rooms = _input(view, advanced.changes, seen), parts.rooms
    worker = None if rooms is None or data is None else rooms.promise_next(execution, in_place=in_place)
    if rooms is None or worker is None:
        return Next(view, advanced.changes)
    held = claimed(view, advanced.changes, worker, gate)
    if held is None:
        rooms.release()
        return Next(view, advanced.changes)
    return Next(view, held, data)


async def _begun(parts: Parts, nexts: list[Next], verdict: Verdict, committed_at: int) -> dict[str, Execution]:
    """What is held here by that commit. If its reply was lost, when it began is in the records."""
    here = [one for one in nexts if one.input is not None]
    if not verdict.again:
        views = [View(one.view.partition, one.view.execution) for one in here]
        found = [execution_after(view, one.changes, committed_at) for view, one in zip(views, here, strict=True)]
        return {execution.id: execution for execution in found if execution is not None}
    try:
        records = await parts.engine.store.load([one.view.execution.key for one in here])
    except OutlastError:
        return {}  # a renewal finds that they are held and do not run
    pairs = zip(here, records, strict=True)
    return {e.id: e for one, e in pairs if isinstance(e, Execution) and e.claim_id == one.changes.id}


def _begin(parts: Parts, one: Next, execution: Execution | None) -> None:
    if one.input is None:
        return
    rooms = parts.rooms
    assert rooms is not None
    if execution is None:
        rooms.release()
    else:
        rooms.keep(execution, one.input)


def _input(view: MemberView, changes: Changes, seen: Seen) -> bytes | None:
    """What it runs with: made of its upstreams' outputs just now, or given from the beginning."""
    e = view.execution
    key = payload_key(e.namespace, e.id, e.journal_generation, Role.INPUT)
    made = [write.record for write in changes.writes if type(write) is Insert and write.record.key == key]
    record = made[0] if made else seen.get(key)
    return record.value if isinstance(record, Payload) else None
