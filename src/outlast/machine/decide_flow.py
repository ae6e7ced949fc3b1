"""The life of a flow as a whole: staged and opened, stopped, grown, opened again. Pure.

A small flow is accepted in one change. A large one is staged in bounded chunks, each of which may be repeated; nothing
of it can be claimed or found before the change that opens it. What stays staged is purged after a while.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from typing import TypeVar, cast

import msgspec
from msgspec import Struct, structs

from outlast import limits
from outlast.machine import facts
from outlast.machine.changes import (
    Absent,
    Add,
    Changes,
    Code,
    Delete,
    Guard,
    Insert,
    Matches,
    Patch,
    Refusal,
    View,
    Write,
    lane_channel,
)
from outlast.machine.claiming import attempt_begun, claim_fields
from outlast.machine.flow_changes import flow_changes
from outlast.machine.guards_and_writes import Fields, claim_gates, held_by
from outlast.machine.start_records import events_of, execution_of, input_of, tags_of
from outlast.machine.transitions import FlowFact
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import (
    Edge,
    Flow,
    FlowState,
    Member,
    OnFailure,
    OnSatisfied,
    Settled,
    Summary,
    encode_ids,
    flow_key,
    summary_key,
    whole_of,
)
from outlast.model.outbox import Delivery
from outlast.model.payload import Payload, Role
from outlast.model.record import Key, Now, Plain
from outlast.model.status import Status

R = TypeVar("R", Execution, Payload)

ABANDONED_MS = 3_600_000
"""A stage that is not opened within this time is purged."""
CHECK_MS = 60_000
DEPEND_MS = 15_000
"""How long a flow is left alone before a reconciler counts anew, or looks for edges that nobody answered."""
LOOK_LONGEST_MS = 10 * 60_000
"""A flow in which nothing was found for a long time is looked at this often."""
PURGE_AGAIN_MS = 60_000
"""A purge that was begun and not finished goes on after this time."""


class NewMember(Struct, frozen=True, kw_only=True, gc=False):
    """A member as it is accepted. `upstreams` are ids; `template` is its input if that waits for theirs."""

    start: facts.Start
    name: str
    position: int = 0
    upstreams: tuple[str, ...] = ()
    needed: int = 0
    on_satisfied: OnSatisfied = OnSatisfied.LET_RUN
    on_failure: OnFailure = OnFailure.SKIP
    template: bytes | None = None


class NewFlow(Struct, frozen=True, kw_only=True):
    """A flow as it is accepted. `change_id` names the acceptance: a repeated one is the same."""

    namespace: str
    id: str
    name: str
    digest: str
    members: int
    retention_ms: int | None = None
    parent: str | None = None
    change_id: str


class Acceptance(Struct, frozen=True):
    """A flow as it is owed by who starts it in a workflow."""

    new: NewFlow
    members: list[NewMember]


def encode_acceptance(new: NewFlow, members: list[NewMember]) -> bytes:
    return _encoder.encode(Acceptance(new, members))


def decode_acceptance(data: bytes) -> tuple[NewFlow, list[NewMember]]:
    found = _decoder.decode(data)
    return found.new, found.members


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Acceptance)


class FlowView(Struct, frozen=True):
    partition: int
    flow: Flow | None
    summary: Summary | None = None


def known(view: FlowView, new: NewFlow) -> Refusal | None:
    """What can be said of a flow that is there already; None if it is being staged, by somebody with the same
    members."""
    flow = view.flow
    assert flow is not None
    if flow.digest != new.digest:
        return Refusal(Code.CONFLICT, "exists with other members")
    if flow.staged_at is not None:
        return None
    return Refusal(Code.ALREADY, "was started before")


def in_the_way(new: NewFlow, taken: Key) -> Refusal | None:
    """Why a flow was refused, if there is none of that id: the record that was there first says so. None if that was a
    flow, which is gone by now."""
    if taken in (flow_key(new.namespace, new.id), summary_key(new.namespace, new.id)):
        return None
    if taken == execution_key(new.namespace, new.id):
        return Refusal(Code.CONFLICT, "has the id of an execution")
    return Refusal(Code.CONFLICT, f"has a member whose id is taken ({taken})")


# ---- acceptance ---------------------------------------------------------------------------------------------------


def accepted(
    partition: int,
    new: NewFlow,
    members: Sequence[NewMember],
    *,
    worker: str | None = None,
    begins: Container[str] = (),
) -> Changes:
    """All of it in one change. `begins` are ids of members that wait for nothing: claimed in the same commit by a
    worker that has room for them, with what a claim would ask as guards."""
    guards: list[Guard] = [_not_an_execution(new)]
    writes, left = _heads(new, FlowState.OPEN), list[NewMember]()
    edges = _edges_from(members, new.change_id)
    for member in members:
        claim = None
        if worker is not None and member.start.id in begins:
            claim = facts.Claim(change_id=new.change_id, worker=worker)
            gates = claim_gates(View(partition, None), execution_of(member.start), worker)
            guards += [gate for gate in gates if gate not in guards]
        else:
            left.append(member)
        # What is one execution's stands together: its records, and its edges to others.
        writes += _alone(new.id, member, new.change_id, claim)
        writes += edges.get(member.start.id, ())
    writes += [_edge(member, whole_of(new.id), new.change_id) for member in members]
    anchors = (flow_key(new.namespace, new.id),)
    return flow_changes(FlowFact.ACCEPTED, new.change_id, partition, anchors, guards, writes, *lanes_of(left))


def staged(partition: int, new: NewFlow) -> Changes:
    """The beginning of a stage."""
    anchors, heads = (flow_key(new.namespace, new.id),), _heads(new, FlowState.STAGING)
    return flow_changes(FlowFact.STAGED, new.change_id, partition, anchors, [_not_an_execution(new)], heads)


def staged_members(partition: int, new: NewFlow, stage: str, number: int, pieces: Sequence[Piece]) -> Changes:
    """A chunk of a stage; `stage` is the change id with which it began, perhaps by a process that died since."""
    key, change_id = flow_key(new.namespace, new.id), f"{stage}/{number}"
    guards = [Matches(key, {"state": FlowState.STAGING, "change_id": stage})]
    writes = [write for piece in pieces for write in _piece(new.id, piece, change_id)]
    return flow_changes(FlowFact.MEMBERS_STAGED, change_id, partition, (key,), guards, writes)


def opened(partition: int, new: NewFlow, stage: str, lanes: tuple[str, ...]) -> Changes:
    """The last word: from now on it is there."""
    key = flow_key(new.namespace, new.id)
    fields: Fields = {"state": FlowState.OPEN, "staged_at": None, "purge_at": None}
    summary: Fields = {"check_at": Now(CHECK_MS), "depend_at": Now(DEPEND_MS)}
    guards = [Matches(key, {"state": FlowState.STAGING, "change_id": stage})]
    writes = [Patch(key, fields), Patch(summary_key(new.namespace, new.id), summary)]
    return flow_changes(FlowFact.OPENED, f"{stage}/open", partition, (key,), guards, writes, *lanes)


class Piece(Struct, frozen=True):
    """Of a member with more edges than one change holds, the others follow by themselves."""

    member: NewMember
    upstreams: tuple[str, ...]
    first: bool = True

    @property
    def weight(self) -> int:
        """How many writes it takes."""
        return len(self.upstreams) + (_weight(self.member) if self.first else 0)


def chunks(members: Sequence[NewMember]) -> list[list[Piece]]:
    """As much at a time as one change holds."""
    found: list[list[Piece]] = [[]]
    room = _ROOM
    for member in members:
        for piece in _pieces(member):
            if found[-1] and piece.weight > room:
                found.append([])
                room = _ROOM
            found[-1].append(piece)
            room -= piece.weight
    return found


def is_small(members: Sequence[NewMember]) -> bool:
    """Whether all of them fit into one change: then there is one chunk."""
    return sum([_weight(member) + len(member.upstreams) for member in members]) <= _ROOM


def _weight(member: NewMember) -> int:
    """How many writes it takes beside its edges."""
    return 5 + len(member.start.tags) + len(member.start.sends)


def _pieces(member: NewMember) -> Iterator[Piece]:
    yield Piece(member, member.upstreams[:_EDGES])
    for begin in range(_EDGES, len(member.upstreams), _EDGES):
        yield Piece(member, member.upstreams[begin : begin + _EDGES], first=False)


_ROOM = limits.CHANGES_MAX_WRITES - 10
_EDGES = _ROOM // 2


def lanes_of(members: Sequence[NewMember]) -> tuple[str, ...]:
    """Who may want to look: workers of the lanes of those that wait for nothing."""
    ready = (m.start for m in members if not m.upstreams and not m.start.delay_ms)
    return tuple(dict.fromkeys(lane_channel(start.namespace, start.lane) for start in ready))


def _not_an_execution(new: NewFlow) -> Guard:
    """Members and children would be named alike."""
    return Absent(execution_key(new.namespace, new.id))


def _heads(new: NewFlow, state: FlowState) -> list[Write]:
    staging = state is FlowState.STAGING
    flow = Flow(
        namespace=new.namespace,
        id=new.id,
        name=new.name,
        state=state,
        digest=new.digest,
        retention_ms=new.retention_ms,
        parent=new.parent,
        created_at=Now(),
        staged_at=Now() if staging else None,
        purge_at=Now(ABANDONED_MS) if staging else None,
        change_id=new.change_id,
    )
    summary = Summary(
        namespace=new.namespace,
        id=new.id,
        members=new.members,
        check_at=None if staging else Now(CHECK_MS),
        depend_at=None if staging else Now(DEPEND_MS),
        change_id=new.change_id,
    )
    return [Insert(flow), Insert(summary)]


def _piece(flow_id: str, piece: Piece, change_id: str) -> list[Write]:
    member = piece.member
    edges = [_edge(member, above, change_id) for above in piece.upstreams]
    if not piece.first:
        return edges
    return [*_alone(flow_id, member, change_id), _edge(member, whole_of(flow_id), change_id), *edges]


def _edges_from(members: Sequence[NewMember], change_id: str) -> dict[str, list[Write]]:
    """Those of all members, by the upstreams that they come from."""
    found: dict[str, list[Write]] = {}
    for member in members:
        for above in member.upstreams:
            found.setdefault(above, []).append(_edge(member, above, change_id))
    return found


def _edge(member: NewMember, above: str, change_id: str) -> Write:
    """From an upstream, or from the flow itself: its roster."""
    start = member.start
    return Insert(
        Edge(
            namespace=start.namespace,
            execution=above,
            downstream=start.id,
            alone=len(member.upstreams) == 1,
            change_id=change_id,
        )
    )


def _alone(flow_id: str, member: NewMember, change_id: str, claim: facts.Claim | None = None) -> list[Write]:
    """The records of a new member but for its edges, and of the attempt that begins by the `claim`."""
    start = member.start
    namespace, execution_id = start.namespace, start.id
    record = Member(
        namespace=namespace,
        execution=execution_id,
        flow=flow_id,
        name=member.name,
        position=member.position,
        upstreams=len(member.upstreams),
        needed=member.needed,
        after=encode_ids(member.upstreams),
        on_satisfied=member.on_satisfied,
        on_failure=member.on_failure,
        binds=member.template is not None,
        settled=Settled.OPEN if member.upstreams else Settled.SATISFIED,
        change_id=change_id,
    )
    new = _named(execution_of(start), change_id)
    held: list[Write] = []
    if claim is not None:
        held.append(attempt_begun(new, claim))
        new = structs.replace(new, **claim_fields(new, claim))
    return [
        Insert(new),
        *held,
        Insert(_input(member, change_id)),
        *(tags_of(start) if start.tags else ()),
        *(events_of(start) if start.sends else ()),
        Insert(record),
    ]


def _input(member: NewMember, change_id: str) -> Payload:
    given = input_of(member.start, generation=1)
    if member.template is None:
        return _named(given, change_id)
    return structs.replace(given, role=Role.TEMPLATE, value=member.template, change_id=change_id)


def _named(record: R, change_id: str) -> R:
    """The record as one of this change: repeated, it meets itself."""
    return record if record.change_id == change_id else structs.replace(record, change_id=change_id)


# ---- growth -------------------------------------------------------------------------------------------------------


def grown(
    view: FlowView, by: Execution, members: Sequence[NewMember], change_id: str, *, joined_by: str | None = None
) -> Changes | Refusal:
    """A running member (`by`) adds others behind itself, fenced by its lease. `joined_by` is one that is there already,
    and waits for all of them."""
    flow, summary = view.flow, view.summary
    assert flow is not None
    assert summary is not None
    if flow.state is not FlowState.OPEN or summary.outcome is not None:
        return Refusal(Code.TERMINAL, "has ended, or is being cancelled: it does not grow any more")
    if summary.members + len(members) > limits.FLOW_MEMBERS_MAX:
        return Refusal(Code.LIMIT, f"would have more than {limits.FLOW_MEMBERS_MAX:,} members")
    guards: list[Guard] = [held_by(by), Matches(flow.key, {"state": FlowState.OPEN, "revision": flow.revision})]
    # Behind all that is there, and all that it began with.
    first = limits.FLOW_MEMBERS_MAX + summary.members
    numbered = [structs.replace(member, position=first + number) for number, member in enumerate(members)]
    writes: list[Write] = [
        Patch(flow.key, {"revision": flow.revision + 1}),
        Add(summary.key, "members", len(members)),
        *(write for member in numbered for write in _piece(flow.id, Piece(member, member.upstreams), change_id)),
    ]
    if joined_by is not None:
        writes += [
            Insert(Edge(namespace=flow.namespace, execution=member.start.id, downstream=joined_by, change_id=change_id))
            for member in members
        ]
    anchors = (by.key, flow.key, summary.key)
    return flow_changes(FlowFact.GROWN, change_id, view.partition, anchors, guards, writes)


def growth_id(execution: Execution, place: str) -> str:
    """The change by which a running member adds others, by its place in the code."""
    return f"{execution.id}@{execution.journal_generation}/{place}"


def grown_before(new: NewMember, by: Execution, found: tuple[Execution, Member, Edge]) -> bool:
    """Whether a member that is there already is the one that is to be added, and was added by the same: it may have
    begun anew since. `found` are its records, and its entry in the flow's roster."""
    execution, member, entry = found
    start = new.start
    return (
        re.match(rf"{re.escape(by.id)}@\d+/", entry.change_id) is not None
        and (execution.workflow, execution.version) == (start.workflow, start.version)
        and execution.input_digest == start.input_digest
        and (member.after, member.needed) == (encode_ids(new.upstreams), new.needed)
        and (member.on_satisfied, member.on_failure) == (new.on_satisfied, new.on_failure)
    )


# ---- once more ----------------------------------------------------------------------------------------------------


def reopening(view: FlowView, *, change_id: str) -> Changes | Refusal:
    """A retry of a flow that has ended without success: shut until all of its members are opened again."""
    flow, summary = view.flow, view.summary
    if flow is None or summary is None or flow.staged_at is not None:
        return Refusal(Code.UNKNOWN, "there is no such flow")
    if summary.outcome is None:
        return Refusal(Code.NOT_ALLOWED, "has not ended")
    if summary.outcome is Status.SUCCEEDED:
        return Refusal(Code.TERMINAL, "has succeeded: there is nothing to retry")
    errand = facts.ReopenMembers(change_id=f"{change_id}/reopen")
    debt = Delivery(
        partition=view.partition,
        id=errand.change_id,
        namespace=flow.namespace,
        target=whole_of(flow.id),
        source=whole_of(flow.id),
        fact=facts.encode_fact(errand),
        due_at=Now(),
        created_at=Now(),
        change_id=change_id,
    )
    fields: Fields = {
        "state": FlowState.REOPENING,
        "policy": None,
        "reason": None,
        "revision": flow.revision + 1,
        "cancel_at": None,
        "purge_at": None,
    }
    nothing_owed: Fields = {"outcome": None, "finished_at": None}
    guards = [
        Matches(flow.key, {"state": flow.state, "revision": flow.revision}),
        Matches(summary.key, {"outcome": summary.outcome}),
    ]
    writes = [Patch(flow.key, fields), Patch(summary.key, nothing_owed), Insert(debt)]
    return flow_changes(FlowFact.RETRIED, change_id, view.partition, (flow.key, summary.key), guards, writes)


def reopened(view: FlowView, debt: Delivery, *, lanes: tuple[str, ...], change_id: str) -> Changes:
    """All members are open again: so is the flow, and what was owed is struck off. Ends are counted anew."""
    flow, summary = view.flow, view.summary
    assert flow is not None
    assert summary is not None
    fields: Fields = {"state": FlowState.OPEN, "revision": flow.revision + 1}
    counts: Fields = {
        "drained": "",
        "succeeded": 0,
        "failed": 0,
        "cancelled": 0,
        "expired": 0,
        "skipped": 0,
        "check_at": Now(CHECK_MS),
        "depend_at": Now(DEPEND_MS),
        "change_id": change_id,
    }
    anchors = (flow.key, summary.key, debt.key)
    guards = [
        Matches(debt.key, {"change_id": debt.change_id}),
        Matches(flow.key, {"state": FlowState.REOPENING, "revision": flow.revision}),
    ]
    writes = [Patch(flow.key, fields), Patch(summary.key, counts), Delete(debt.key)]
    return flow_changes(FlowFact.REOPENED, change_id, view.partition, anchors, guards, writes, *lanes)


# ---- the end of its records ---------------------------------------------------------------------------------------


def purged(partition: int, flow: Flow, summary: Summary | None, change_id: str) -> tuple[Changes, Guard] | None:
    """The first part of a purge: nobody may open the flow from now on, or retry it, and if this process dies, somebody
    looks again. With it the guard of the other parts, which holds as long as nobody else purges the flow. None if the
    flow has not ended."""
    fields: Fields = {"purge_at": Now(PURGE_AGAIN_MS), "revision": flow.revision + 1}
    guards = [Matches(flow.key, {"state": flow.state, "revision": flow.revision, "change_id": flow.change_id})]
    writes: list[Write] = [Patch(flow.key, fields)]
    if flow.staged_at is not None:
        fields["change_id"] = change_id
    elif summary is not None:
        if summary.outcome is None:
            return None
        guards.append(Matches(summary.key, {"outcome": summary.outcome}))
        writes.append(Delete(summary.key))
    seen = {"state": flow.state, "revision": flow.revision + 1, "change_id": fields.get("change_id", flow.change_id)}
    by_us = Matches(flow.key, cast("dict[str, Plain]", seen))
    return flow_changes(FlowFact.PURGED, change_id, partition, (flow.key,), guards, writes), by_us


def looked_through(
    partition: int, summary: Summary, field: str, change_id: str, *, interval_ms: int, more: bool, found: bool
) -> Changes:
    """A reconciler has looked through a part of the flow: `field` says when it looks again, at once if there is `more`,
    and less and less often where nothing is found. Refused if the flow has ended meanwhile."""
    checks = 0 if found else summary.checks + 1
    wait_ms = 0 if more else min(interval_ms * 2 ** min(checks, 10), LOOK_LONGEST_MS)
    guards = [Matches(summary.key, {"outcome": None, field: getattr(summary, field)})]
    writes = [Patch(summary.key, {field: Now(wait_ms), "checks": summary.checks if more else checks})]
    return flow_changes(FlowFact.RECOUNTED, change_id, partition, (summary.key,), guards, writes)
