"""What an upstream's end means to a member, and a member's end to its flow. Pure, like everything in this package.

An end is answered in two moves, each of which may be repeated without harm. First every edge from what ended gets its
answer, a record that is only ever inserted: thousands may end at once and touch no common row. Then each member that
was answered counts what has come since it last did, in one guarded change, and is woken, skipped, or goes on waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct, structs

from outlast.machine import facts
from outlast.machine.amendments import together
from outlast.machine.changes import (
    ENDS,
    Changes,
    Code,
    Delete,
    Guard,
    Insert,
    Matches,
    Patch,
    Put,
    Refusal,
    View,
    Write,
    outline_after,
)
from outlast.machine.decide import decide
from outlast.machine.flow_changes import flow_changes
from outlast.machine.flow_parents import told_to_parent
from outlast.machine.guards_and_writes import Fields, key_of
from outlast.machine.joins import Answer, counted, runs, settled_by, spares_siblings
from outlast.machine.retry_cut import EntryKey
from outlast.machine.transitions import FlowFact
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import (
    CancelPolicy,
    Edge,
    EdgeAnswer,
    Flow,
    FlowState,
    Member,
    OnFailure,
    Settled,
    Summary,
    decode_ids,
    edge_answer_key,
    edge_key,
    encode_ids,
    flow_key,
    whole_of,
)
from outlast.model.payload import Payload, Role
from outlast.model.record import Now
from outlast.model.status import Reason, Status

SIBLINGS_GRACE_MS = 2_000
"""So long the process that settled a join has to cancel what is no longer needed, before a reconciler does."""
RECHECK_MS = 5_000
"""A flow whose ends were counted, and that did not end by it, is looked at so long after the last of them: of ends that
are written at once, one may be seen later than one that follows it, and then nobody counts it."""
_COUNTS = {
    Status.SUCCEEDED: "succeeded",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
    Status.EXPIRED: "expired",
    Status.SKIPPED: "skipped",
}


class MemberView(Struct, frozen=True, gc=False):
    partition: int
    execution: Execution
    member: Member


class Ended(Struct, frozen=True, gc=False):
    """The end of a member: which of its ends, and how."""

    namespace: str
    id: str
    status: Status
    generation: int

    @property
    def flow(self) -> str:
        return self.id.partition("/")[0]


class Room(Struct, frozen=True, gc=False):
    """The worker that has room for a member, and the flow as it was seen."""

    worker: str
    gate: Flow


class Advanced(Struct, frozen=True, gc=False):
    """What the answers meant to a member: `input` if that was made of them, `skipped` if it ended by them, `begins` if
    it is claimed by them, `spares` if upstreams are left that it wants cancelled.

    `changes` is to be committed; None if there is nothing to write."""

    answer: Answer
    input: bytes | None = None
    skipped: bool = False
    begins: bool = False
    spares: bool = False
    changes: Changes | None = None

    @property
    def injected(self) -> bool:
        return self.input is not None


def answered_edge(partition: int, end: Ended, downstream: str) -> Changes:
    """The answer of what ended to one that waits for it (or to the flow), however often it is given."""
    edge = edge_of(end, downstream)
    upstream = execution_key(end.namespace, end.id)
    # The end that is answered still stands: a late delivery must not answer for a flow that was retried.
    stands = [Matches(upstream, {"status": end.status, "generation": end.generation})]
    change_id = f"{edge.change_id}>{downstream}"
    return flow_changes(FlowFact.EDGE_ANSWERED, change_id, partition, (upstream,), stands, [Insert(edge)])


def edge_of(end: Ended, downstream: str) -> EdgeAnswer:
    """The answer itself."""
    return EdgeAnswer(
        namespace=end.namespace,
        execution=downstream,
        upstream=end.id,
        answer=end.status,
        generation=end.generation,
        answered_at=Now(),
        change_id=f"{end.id}@{end.generation}",
    )


def waits(view: MemberView) -> bool:
    """Whether its join is still to be settled."""
    blocked = view.execution.status is Status.BLOCKED and Reason.DEPENDENCIES in view.execution.waits_for
    return blocked and view.member.settled is Settled.OPEN


def needs_upstreams(view: MemberView) -> bool:
    """Whether it is still to be seen what its upstreams give. One that waits for its turn takes nothing from them."""
    is_open = view.member.settled is Settled.OPEN and not view.execution.status.terminal
    return is_open and view.member.on_failure is not OnFailure.TURN


def ended_unsettled(view: MemberView) -> bool:
    """Whether it ended while it waited for its upstreams, which it needs no more."""
    is_open = view.member.settled is Settled.OPEN and view.execution.status.terminal
    return is_open and view.member.on_failure is not OnFailure.TURN


def makes_up_for_upstreams(view: MemberView) -> bool:
    """Whether its upstreams need not have succeeded: its join did without them, or it was skipped for them, so that
    others must make up for it."""
    return view.execution.status is Status.SKIPPED or view.member.settled is not Settled.IMPOSSIBLE


def is_cancelled_with(flow: Flow, execution: Execution) -> bool:
    """Whether the flow's cancel is for this one, too, and has not reached it."""
    for_all = flow.state is FlowState.STOPPED and flow.policy is CancelPolicy.CANCEL_ALL
    return for_all and flow.reason is not None and not execution.cancel_requested


def wants_input(view: MemberView, edges: list[EdgeAnswer]) -> bool:
    """Whether these answers let it run, with an input that must be made of what its upstreams gave."""
    member = view.member
    return member.binds and waits(view) and runs(member, settled_by(member, counted(member, edges)), edges)


def advance(
    view: MemberView,
    edges: list[EdgeAnswer],
    *,
    change_id: str,
    input: bytes | None = None,
    unusable: str | None = None,
    room: Room | None = None,
) -> Advanced:
    """Count what has come, and wake or skip the member if that settles its join.

    `input` is what it runs with, if `wants_input`; `unusable` says why there can be none: then it is skipped. What may
    run is claimed in the same commit where there is `room`, unless it is held or asks for more than guards can say."""
    if not waits(view):
        return Advanced(Answer.ALREADY_RESOLVED)
    if not edges:
        return Advanced(Answer.PENDING)
    member = view.member
    count = counted(member, edges)
    settled = settled_by(member, count)
    fields: Fields = {**structs.asdict(count), "change_id": change_id}
    if settled is Settled.OPEN:
        return Advanced(Answer.PENDING, changes=_counted(view, change_id, fields))
    fields["settled"] = settled
    answer = Answer.SATISFIED if settled is Settled.SATISFIED else Answer.IMPOSSIBLE
    spares = spares_siblings(member, settled, count)
    if spares:
        fields["siblings_at"] = Now(SIBLINGS_GRACE_MS)
    if not runs(member, settled, edges) or unusable is not None:
        skipped = _told(view, facts.Skip(change_id=change_id, cause=unusable or _blamed(edges)))
        whole = together(skipped, [_counted(view, change_id, fields)])
        return Advanced(answer, skipped=True, spares=spares, changes=whole)
    assert member.binds == (input is not None), "an input is made for those that bind, and for no others"
    worker, gate = (None, ()) if room is None else (room.worker, (is_open(room.gate),))
    woken = _told(view, facts.Wake(change_id=change_id, cause=Reason.DEPENDENCIES, worker=worker))
    made = () if input is None else (Insert(_input(view, input, change_id)),)
    after = outline_after(View(view.partition, view.execution), woken)
    begins = after is not None and after.status is Status.ACTIVE
    whole = together(woken, [_counted(view, change_id, fields, *made, gates=gate if begins else ())])
    return Advanced(answer, input=input, begins=begins, spares=spares, changes=whole)


def _blamed(edges: list[EdgeAnswer]) -> str:
    """The upstream that made it impossible, for people."""
    worst = next(edge for edge in reversed(edges) if edge.answer != Status.SUCCEEDED)
    return f"{worst.upstream.rpartition('/')[2]} {worst.answer}"


def _told(view: MemberView, fact: facts.Wake | facts.Skip) -> Changes:
    """What the machine says of the execution."""
    answer = decide(View(view.partition, view.execution), fact, 0)
    assert not isinstance(answer, Refusal), "it waits for its dependencies"
    return answer


def _counted(view: MemberView, change_id: str, fields: Fields, *made: Insert, gates: tuple[Guard, ...] = ()) -> Changes:
    """What is said of the member itself: its count, and its join if that is settled."""
    guards, writes = [_as_counted(view.member), *gates], [Patch(view.member.key, fields), *made]
    anchors = (key_of(view.execution),)
    return flow_changes(FlowFact.ANSWERS_COUNTED, change_id, view.partition, anchors, guards, writes)


def _as_counted(member: Member) -> Guard:
    """Nobody has counted since."""
    return Matches(
        member.key,
        {
            "answered": member.answered,
            "drained": member.drained,
            "settled": member.settled,
            "change_id": member.change_id,
        },
    )


def _input(view: MemberView, value: bytes, change_id: str) -> Payload:
    return Payload(
        namespace=view.execution.namespace,
        execution=view.execution.id,
        generation=view.execution.journal_generation,
        role=Role.INPUT,
        value=value,
        change_id=change_id,
    )


def widened(view: MemberView, upstreams: tuple[str, ...], template: bytes, change_id: str) -> Changes | Refusal:
    """It waits for these too, and its input is made by another template. Only while it waits for whoever adds them, so
    that none of them can have ended, and is not cancelled: then nobody needs them."""
    if not waits(view):
        return Refusal(Code.TERMINAL, f"does not wait any more: it is {view.execution.status}")
    member = view.member
    fields: Fields = {
        "upstreams": member.upstreams + len(upstreams),
        "needed": member.needed + len(upstreams),
        "after": encode_ids((*decode_ids(member.after), *upstreams)),
        "change_id": change_id,
    }
    made_of = Payload(
        namespace=member.namespace,
        execution=member.execution,
        generation=1,
        role=Role.TEMPLATE,
        value=template,
        change_id=change_id,
    )
    still = Matches(view.execution.key, {"status": view.execution.status, "generation": view.execution.generation})
    guards, writes = [_as_counted(member), still], [Patch(member.key, fields), Put(made_of)]
    return flow_changes(FlowFact.GROWN, change_id, view.partition, (view.execution.key,), guards, writes)


def is_open(gate: Flow) -> Guard:
    """As it was seen: not stopped, and not grown."""
    return _open(gate.namespace, gate.id, gate.revision)


@lru_cache(maxsize=1_000)
def _open(namespace: str, flow_id: str, revision: int) -> Guard:
    """Remembered: each end in a flow asks for it, and each member that begins by it."""
    return Matches(flow_key(namespace, flow_id), {"state": FlowState.OPEN, "revision": revision})


def siblings_settled(partition: int, member: Member, change_id: str) -> Changes:
    """All that it no longer needed is cancelled, or needed by others."""
    guards, writes = [Matches(member.key, {"change_id": member.change_id})], [Patch(member.key, {"siblings_at": None})]
    return flow_changes(FlowFact.SIBLINGS_SETTLED, change_id, partition, (member.key,), guards, writes)


# ---- the whole flow -----------------------------------------------------------------------------------------------


def tallied(partition: int, flow: Flow, summary: Summary, edges: list[EdgeAnswer], change_id: str) -> Changes | None:
    """The flow's count of its members' ends, and its end if all of them succeeded; None if there is nothing new."""
    if not edges or flow.state is FlowState.REOPENING:
        return None
    fields: Fields = {"drained": edges[-1].upstream, "change_id": change_id}
    more = Counter([edge.answer for edge in edges])
    for status, name in _COUNTS.items():
        if more[status]:
            fields[name] = getattr(summary, name) + more[status]
    if summary.outcome is None:
        fields["check_at"] = Now(RECHECK_MS)
    after = structs.replace(summary, **fields)
    if after.succeeded == summary.members and flow.state is FlowState.OPEN and summary.outcome is None:
        return _ended(FlowFact.ENDS_COUNTED, partition, flow, summary, Status.SUCCEEDED, change_id, fields)
    guards, writes = [_as_tallied(summary)], [Patch(summary.key, fields)]
    return flow_changes(FlowFact.ENDS_COUNTED, change_id, partition, (summary.key,), guards, writes)


def recounted(partition: int, summary: Summary, change_id: str, *, members: int) -> Changes:
    """Its count begins anew: it has so many members, and all of its edges are drained once more."""
    zero: Fields = dict.fromkeys(_COUNTS.values(), 0)
    fields: Fields = {"members": members, "drained": "", "change_id": change_id, **zero}
    guards, writes = [_as_tallied(summary)], [Patch(summary.key, fields)]
    return flow_changes(FlowFact.RECOUNTED, change_id, partition, (summary.key,), guards, writes)


def dropped(
    partition: int, flow: Flow, summary: Summary, names: Sequence[str], change_id: str, *, members: int
) -> Changes:
    """Entries of a stopped flow that name nothing go, with what is left of their ends: it has so many members without
    them, and is not to wait for more."""
    again, whole = recounted(partition, summary, change_id, members=members), whole_of(flow.id)
    entries = [edge_key(flow.namespace, whole, name) for name in names]
    answers = [edge_answer_key(flow.namespace, whole, name) for name in names]
    guards = [Matches(flow.key, {"state": FlowState.STOPPED, "revision": flow.revision})]
    writes = [Delete(key) for key in (*entries, *answers)]
    gone = flow_changes(FlowFact.RECOUNTED, change_id, partition, again.anchors, guards, writes)
    return together(again, [gone])


def finished(partition: int, flow: Flow, summary: Summary, *, made_up_for: bool, change_id: str) -> Changes | None:
    """The end of a flow all of whose members have ended; None if that is not so. `made_up_for` says that every member
    that did not succeed has a downstream whose join was satisfied all the same."""
    shut = flow.state not in (FlowState.OPEN, FlowState.STOPPED)
    if shut or summary.outcome is not None or summary.ended < summary.members:
        return None
    outcome = Status.SUCCEEDED if made_up_for else Status.FAILED
    if flow.state is FlowState.STOPPED:
        outcome = Status.CANCELLED
    return _ended(FlowFact.FINISHED, partition, flow, summary, outcome, change_id, {})


def _ended(
    fact: FlowFact, partition: int, flow: Flow, summary: Summary, outcome: Status, change_id: str, counts: Fields
) -> Changes:
    fields: Fields = {
        **counts,
        "outcome": outcome,
        "finished_at": Now(),
        "check_at": None,
        "depend_at": None,
        "change_id": change_id,
    }
    # Whatever was owed to a member is settled by its end.
    gate: Fields = {} if flow.cancel_at is None else {"cancel_at": None}
    if flow.retention_ms is not None:
        gate["purge_at"] = Now(flow.retention_ms)
    writes: list[Write] = [Patch(summary.key, fields)]
    if gate:
        writes.append(Patch(flow.key, gate))
    writes += told_to_parent(partition, flow, outcome, change_id)
    guards = [_as_tallied(summary), Matches(flow.key, {"state": flow.state, "revision": flow.revision})]
    return flow_changes(fact, change_id, partition, (summary.key, flow.key), guards, writes, ENDS)


def _as_tallied(summary: Summary) -> Guard:
    return Matches(
        summary.key,
        {
            "drained": summary.drained,
            "members": summary.members,
            "outcome": summary.outcome,
            "change_id": summary.change_id,
        },
    )


# ---- once more ----------------------------------------------------------------------------------------------------


def forgotten(view: MemberView, edges: Sequence[EdgeAnswer], *, flow: Flow, change_id: str) -> Changes:
    """Answers that will be given anew leave ahead of a member that is about to be opened again."""
    e, writes = view.execution, [Delete(edge.key) for edge in edges]
    guards = [Matches(e.key, {"generation": e.generation}), _as_counted(view.member), _is_reopening(flow)]
    return flow_changes(FlowFact.ANSWERS_FORGOTTEN, change_id, view.partition, (e.key,), guards, writes)


def _is_reopening(flow: Flow) -> Guard:
    """Still, and by the same retry: when all are open, they run, and what fails then is not to be tried again."""
    return Matches(flow.key, {"state": FlowState.REOPENING, "revision": flow.revision})


def reopened(
    view: MemberView,
    edges: Sequence[EdgeAnswer],
    *,
    flow: Flow,
    change_id: str,
    supersedes: tuple[EntryKey, ...] = (),
    anew: bytes | None = None,
    turn: str | None = None,
) -> Changes | None:
    """A member of a flow that is retried: opened again unless it succeeded, waiting for the upstreams that did not;
    None if there is nothing to do. `edges` are the answers that it has; `supersedes` and `anew` say what of its journal
    runs again, or with which input it begins anew, as `facts.Retry` has it. One that only waits for its `turn` waits
    for this one now."""
    execution, member = view.execution, view.member
    if execution.status is Status.SUCCEEDED or not execution.status.terminal:
        return None
    # What was allowed to run keeps its input, and runs at once.
    waited = execution.status is Status.SKIPPED or (member.settled is Settled.OPEN and member.upstreams > 0)
    again = waited or turn is not None
    retry = facts.Retry(
        change_id=change_id,
        supersedes=supersedes,
        seen_epoch=execution.epoch,
        with_flow=True,
        waits_again=again,
        anew=anew,
    )
    answer = decide(View(view.partition, execution), retry, 0)
    assert not isinstance(answer, Refusal), "it has ended, and may be retried"
    fields: Fields = {"siblings_at": None, "acknowledged": False, "change_id": change_id}
    gone: list[EdgeAnswer] = []
    if again:
        # Counted anew from the beginning: what succeeded has answered, the others will.
        fields |= {"answered": 0, "succeeded": 0, "drained": "", "settled": Settled.OPEN}
        gone = [edge for edge in edges if turn is not None or edge.answer != Status.SUCCEEDED]
    moved = [] if turn is None else _moved_behind(member, turn, change_id)
    if turn is not None:
        fields["after"] = encode_ids((turn,))
    own = edge_answer_key(execution.namespace, whole_of(member.flow), execution.id)
    guards = [_as_counted(member), _is_reopening(flow)]
    writes = [Patch(member.key, fields), *(Delete(edge.key) for edge in gone), Delete(own), *moved]
    fact, anchors = FlowFact.MEMBER_REOPENED, (execution.key,)
    return together(answer, [flow_changes(fact, change_id, view.partition, anchors, guards, writes)])


def _moved_behind(member: Member, upstream: str, change_id: str) -> list[Write]:
    """Its one edge comes from another."""
    namespace, [before] = member.namespace, decode_ids(member.after)
    if before == upstream:
        return []
    edge = Edge(namespace=namespace, execution=upstream, downstream=member.execution, alone=True, change_id=change_id)
    return [Delete(edge_key(namespace, before, member.execution)), Insert(edge)]
