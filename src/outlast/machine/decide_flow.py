"""The life of a flow as a whole: staged and opened, stopped, grown, opened again. Pure.

A small flow is accepted in one change. A large one is staged in bounded chunks, each of which may be repeated; nothing
of it can be claimed or found before the change that opens it. What stays staged is purged after a while.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct, structs

from outlast import limits
from outlast.machine import facts
from outlast.machine.beginnings import events_of, execution_of, input_of, tags_of
from outlast.machine.changes import (
    HOME,
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
from outlast.machine.decide_holder import attempt_begun, claim_fields
from outlast.machine.flow_parents import told_to_parent
from outlast.machine.parts import Fields, claim_gates
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import (
    CancelPolicy,
    Dependency,
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
from outlast.model.record import Key, Now, Plain, settled
from outlast.model.status import Status

R = TypeVar("R", Execution, Payload)

ABANDONED_MS = 3_600_000
"""A stage that is not opened within this time is purged."""
CHECK_MS = 60_000
DEPEND_MS = 15_000
"""How long a flow is left alone before a reconciler counts anew, or looks for edges that nobody answered."""


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
    return Changes(
        id=new.change_id,
        partition=partition,
        anchors=(flow_key(new.namespace, new.id),),
        guards=tuple(guards),
        writes=tuple(writes),
        rings=lanes_of(left),
    )


def staged(partition: int, new: NewFlow) -> Changes:
    """The beginning of a stage."""
    return Changes(
        id=new.change_id,
        partition=partition,
        anchors=(flow_key(new.namespace, new.id),),
        guards=(_not_an_execution(new),),
        writes=tuple(_heads(new, FlowState.STAGING)),
    )


def staged_members(partition: int, new: NewFlow, stage: str, number: int, pieces: Sequence[Piece]) -> Changes:
    """A chunk of a stage; `stage` is the change id with which it began, perhaps by a process that died since."""
    key = flow_key(new.namespace, new.id)
    return Changes(
        id=f"{stage}/{number}",
        partition=partition,
        anchors=(key,),
        guards=(Matches(key, {"state": FlowState.STAGING, "change_id": stage}),),
        writes=tuple(write for piece in pieces for write in _piece(new.id, piece, f"{stage}/{number}")),
    )


def opened(partition: int, new: NewFlow, stage: str, lanes: tuple[str, ...]) -> Changes:
    """The last word: from now on it is there."""
    key = flow_key(new.namespace, new.id)
    fields: Fields = {"state": FlowState.OPEN, "staged_at": None, "purge_at": None}
    summary: Fields = {"check_at": Now(CHECK_MS), "depend_at": Now(DEPEND_MS)}
    return Changes(
        id=f"{stage}/open",
        partition=partition,
        anchors=(key,),
        guards=(Matches(key, {"state": FlowState.STAGING, "change_id": stage}),),
        writes=(Patch(key, fields), Patch(summary_key(new.namespace, new.id), summary)),
        rings=lanes,
    )


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
        Dependency(
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
    view: FlowView, members: Sequence[NewMember], change_id: str, *, joined_by: str | None = None
) -> tuple[list[Guard], list[Write]] | Refusal:
    """What a running member adds behind itself. `joined_by` is one that is there already, and waits for all of them."""
    flow, summary = view.flow, view.summary
    assert flow is not None
    assert summary is not None
    if flow.state is not FlowState.OPEN or summary.outcome is not None:
        return Refusal(Code.TERMINAL, "has ended, or is being cancelled: it does not grow any more")
    if summary.members + len(members) > limits.FLOW_MEMBERS_MAX:
        return Refusal(Code.LIMIT, f"would have more than {limits.FLOW_MEMBERS_MAX:,} members")
    guards: list[Guard] = [Matches(flow.key, {"state": FlowState.OPEN, "revision": flow.revision})]
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
            Insert(
                Dependency(
                    namespace=flow.namespace, execution=member.start.id, downstream=joined_by, change_id=change_id
                )
            )
            for member in members
        ]
    return guards, writes


def growth_id(execution: Execution, place: str) -> str:
    """The change by which a running member adds others, by its place in the code."""
    return f"{execution.id}@{execution.journal_generation}/{place}"


def grown_before(new: NewMember, by: Execution, found: tuple[Execution, Member, Dependency]) -> bool:
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


# ---- stopping -----------------------------------------------------------------------------------------------------


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
    return Changes(
        id=change_id,
        partition=view.partition,
        anchors=(flow.key, summary.key),
        guards=(
            Matches(flow.key, {"state": flow.state, "revision": flow.revision}),
            Matches(summary.key, {"outcome": None}),
        ),
        writes=(Patch(flow.key, fields), *writes),
        rings=(HOME,),
    )


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
    return Changes(
        id=change_id, partition=partition, anchors=tuple(anchors), guards=tuple(guards), writes=tuple(writes)
    )


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
    return Changes(
        id=change_id,
        partition=partition,
        anchors=(flow.key,),
        guards=(Matches(flow.key, seen),),
        writes=(Patch(flow.key, {"cancel_at": Now(later_ms)}),),
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
    return Changes(
        id=change_id,
        partition=view.partition,
        anchors=(flow.key, summary.key),
        guards=(
            Matches(flow.key, {"state": flow.state, "revision": flow.revision}),
            Matches(summary.key, {"outcome": summary.outcome}),
        ),
        writes=(Patch(flow.key, fields), Patch(summary.key, nothing_owed), Insert(debt)),
    )


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
    return Changes(
        id=change_id,
        partition=view.partition,
        anchors=(flow.key, summary.key, debt.key),
        guards=(
            Matches(debt.key, {"change_id": debt.change_id}),
            Matches(flow.key, {"state": FlowState.REOPENING, "revision": flow.revision}),
        ),
        writes=(Patch(flow.key, fields), Patch(summary.key, counts), Delete(debt.key)),
        rings=lanes,
    )
