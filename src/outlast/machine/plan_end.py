"""Plans what the end of a member means to those that wait for it and for nothing else, and to its flow. Pure.

Such an end is answered, and what the answers mean is decided, in one commit. It is the commit of the end itself where
the worker that ran the member goes on with what follows. Otherwise it is the commit that settles the debt of the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from outlast.machine.amendments import together
from outlast.machine.changes import Changes, Insert, Matches
from outlast.machine.decide_member import Ended, MemberView, Room, advance, edge_of, is_open, tallied
from outlast.machine.flow_changes import flow_changes
from outlast.machine.transitions import FlowFact
from outlast.model.execution import execution_key
from outlast.model.flow import Flow, Summary, whole_of


class Downstream(Struct, frozen=True, gc=False):
    """A member that waits for one end alone. `input`, `unusable` and `change_id` are as `advance` has them; `worker`
    has room for it."""

    view: MemberView
    change_id: str
    input: bytes | None = None
    unusable: str | None = None
    worker: str | None = None


class Last(Struct, frozen=True, gc=False):
    """The end may be the last of its flow: the count as it was accepted, and how all other members ended. Their answers
    stand by now."""

    summary: Summary
    others: list[Ended]


class Plan(Struct, frozen=True, gc=False):
    """`changes` is to be committed; `begun` are the parts of it by which a worker begins a downstream, by its id."""

    changes: Changes
    begun: dict[str, Changes]


def plan_end(
    end: Ended, downstreams: Sequence[Downstream], *, first: Changes, gate: Flow | None = None, last: Last | None = None
) -> Plan:
    """The answers of an end, and what they mean, in one change with `first`: the end itself, or `still_ended`.

    `gate` is the flow as it was seen: refused if it has grown or was stopped since, because others may wait for this
    end by now. A worker begins a downstream only with it. Refused as well if somebody has counted one of the ends of
    `last`."""
    answered = (whole_of(end.flow), *[one.view.execution.id for one in downstreams])
    guards, edges = () if gate is None else (is_open(gate),), [Insert(edge_of(end, one)) for one in answered]
    parts = [flow_changes(FlowFact.EDGE_ANSWERED, first.id, first.partition, first.anchors, guards, edges)]
    begun: dict[str, Changes] = {}
    for one in downstreams:
        room = None if one.worker is None or gate is None else Room(one.worker, gate)
        edge = edge_of(end, one.view.execution.id)
        advanced = advance(one.view, [edge], change_id=one.change_id, input=one.input, unusable=one.unusable, room=room)
        assert advanced.changes is not None, "it waits for this end alone"
        parts.append(advanced.changes)
        if advanced.begins:
            begun[one.view.execution.id] = advanced.changes
    if last is not None and gate is not None:
        parts.append(_flow_ended(first, end, gate, last))
    return Plan(together(first, parts), begun)


def still_ended(partition: int, end: Ended) -> Changes:
    """What an end is answered upon: it was neither retried nor purged since."""
    upstream = execution_key(end.namespace, end.id)
    stands = [Matches(upstream, {"status": end.status, "generation": end.generation})]
    return flow_changes(FlowFact.EDGE_ANSWERED, f"{end.id}@{end.generation}>", partition, (upstream,), stands, ())


def _flow_ended(first: Changes, end: Ended, gate: Flow, last: Last) -> Changes:
    whole = whole_of(gate.id)
    edges = [edge_of(one, whole) for one in (*last.others, end)]
    changes = tallied(first.partition, gate, last.summary, edges, first.id)
    assert changes is not None, "there are ends, and the flow is open"
    assert changes.rings, "all of them succeeded: it ends"
    return changes
