"""Every legal move, as a table: what each fact may turn each status into.

This is the theory of the engine in one place. `decide` refuses what is not here, and checks its own answers against it;
`docs/state-machine.md` is generated from it. `None` stands for "there is no such execution".

An execution waits in one of two ways: `blocked` (something must happen before code may run: a delay, a backoff,
dependencies, an operator's hold) or `suspended` (its own code waits for a timer, an event, a deferred, a child).
Both become `ready`, and only a claim makes a ready one `active`. A worker with room may claim in the commit of a start,
or of the wake that ends the dependencies of a flow's member.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from outlast.machine import facts
from outlast.model.flow import Flow, FlowState, Member, Settled, Summary
from outlast.model.status import TERMINAL, Status

BLOCKED, READY, ACTIVE, SUSPENDED = Status.BLOCKED, Status.READY, Status.ACTIVE, Status.SUSPENDED
SUCCEEDED, FAILED, CANCELLED = Status.SUCCEEDED, Status.FAILED, Status.CANCELLED
EXPIRED, SKIPPED = Status.EXPIRED, Status.SKIPPED

Moves = dict[Status | None, frozenset[Status]]


def _moves(**by_status: set[Status]) -> Moves:
    return {Status(name): frozenset(to) for name, to in by_status.items()}


def _stays(*statuses: Status) -> Moves:
    return {status: frozenset({status}) for status in statuses}


# A message wakes the suspended (into `blocked` if an operator holds it) and is kept by everyone else.
_MESSAGE: Moves = {
    **_stays(BLOCKED, READY, ACTIVE),
    SUSPENDED: frozenset({SUSPENDED, READY, BLOCKED}),
}

TRANSITIONS: dict[type[facts.Fact], Moves] = {
    facts.Start: {
        None: frozenset({READY, BLOCKED, ACTIVE}),  # active: a worker with room started it itself
        **{status: frozenset({READY, BLOCKED}) for status in TERMINAL},  # if_exists="restart"
        **_MESSAGE,  # with an event, to what was started before
    },
    facts.Fork: {None: frozenset({READY})},
    facts.Claim: _moves(ready={ACTIVE}),
    facts.StepRecorded: _stays(ACTIVE),
    facts.Answered: _stays(ACTIVE),
    facts.Progressed: _stays(ACTIVE),
    facts.Suspend: _moves(active={SUSPENDED}),
    # active: a member of a flow, claimed by the worker whose commit satisfied its dependencies
    facts.Wake: _moves(blocked={READY, BLOCKED, ACTIVE}, suspended={READY, BLOCKED}),
    facts.Complete: _moves(active={SUCCEEDED}),
    facts.Fail: _moves(active={READY, BLOCKED, FAILED, CANCELLED, EXPIRED}),
    facts.Continue: _moves(active={READY, BLOCKED, CANCELLED, EXPIRED}),
    facts.Cancelled: _moves(active={CANCELLED, EXPIRED}),
    facts.HandBack: _moves(active={READY, BLOCKED, CANCELLED}),
    facts.TimeOut: _moves(active={READY, BLOCKED, EXPIRED, CANCELLED}),
    facts.LeaseLost: _moves(active={READY, BLOCKED, EXPIRED, CANCELLED}),
    facts.CancelRequested: _moves(
        blocked={CANCELLED, READY},
        ready={CANCELLED, READY},
        active={ACTIVE},
        suspended={CANCELLED, READY},
    ),
    facts.Hold: {**_stays(BLOCKED, ACTIVE, SUSPENDED), READY: frozenset({BLOCKED})},
    facts.Release: {**_stays(ACTIVE, SUSPENDED), BLOCKED: frozenset({BLOCKED, READY})},
    # blocked: a member of a flow that waits for its dependencies once more
    facts.Retry: _moves(
        failed={READY, BLOCKED}, cancelled={READY, BLOCKED}, expired={READY, BLOCKED}, skipped={BLOCKED}
    ),
    facts.Supersede: _stays(ACTIVE, FAILED, CANCELLED),
    # What has something to undo runs once more, and expires then.
    facts.DeadlinePassed: _moves(
        blocked={EXPIRED, READY, BLOCKED},
        ready={EXPIRED, READY},
        active={EXPIRED, ACTIVE},
        suspended={EXPIRED, READY, BLOCKED, SUSPENDED},
    ),
    facts.EventSent: _MESSAGE,
    facts.DeferredResolved: _MESSAGE,
    facts.ChildCompleted: _MESSAGE,
    facts.Skip: _moves(blocked={SKIPPED}),
}


_NOWHERE: frozenset[Status] = frozenset()


def allowed(fact: type[facts.Fact], status: Status | None) -> frozenset[Status]:
    """The statuses that the fact may lead to; empty if it is refused there."""
    return TRANSITIONS[fact].get(status, _NOWHERE)


# ---- flows --------------------------------------------------------------------------------------------------------

STATE_OF = {Flow.KIND: "state", Summary.KIND: "outcome", Member.KIND: "settled"}
"""What facts about flows move: the state of the gate, the end of the whole (None as long as it is open), and the join
of a member."""


class FlowFact(StrEnum):
    """What happens to a flow or to a member's place in it. Each is a decider of that name, which answers changes."""

    ACCEPTED = "accepted"
    STAGED = "staged"
    MEMBERS_STAGED = "members staged"
    OPENED = "opened"
    GROWN = "grown"
    STOPPED = "stopped"
    ACKNOWLEDGED = "acknowledged"
    EDGE_ANSWERED = "edge answered"
    ANSWERS_COUNTED = "answers counted"
    SIBLINGS_SETTLED = "siblings settled"
    ENDS_COUNTED = "ends counted"
    RECOUNTED = "recounted"
    FINISHED = "finished"
    RETRIED = "retried"
    ANSWERS_FORGOTTEN = "answers forgotten"
    MEMBER_REOPENED = "member reopened"
    REOPENED = "reopened"
    PURGED = "purged"


FlowMoves = Mapping[str, Mapping[str | None, frozenset[str | None]]]
"""By the kind of the record: its state before, and what that may become. None stands for "there is no such record", and
for the end of a flow that has not ended."""

_MADE: FlowMoves = {Member.KIND: {None: frozenset({Settled.OPEN, Settled.SATISFIED})}}

FLOW_TRANSITIONS: dict[FlowFact, FlowMoves] = {
    **{fact: {} for fact in FlowFact},  # most of them move nothing
    FlowFact.ACCEPTED: {Flow.KIND: {None: frozenset({FlowState.OPEN})}, **_MADE},
    FlowFact.STAGED: {Flow.KIND: {None: frozenset({FlowState.STAGING})}},
    FlowFact.MEMBERS_STAGED: _MADE,
    FlowFact.OPENED: {Flow.KIND: {FlowState.STAGING: frozenset({FlowState.OPEN})}},
    FlowFact.GROWN: _MADE,
    FlowFact.STOPPED: {
        Flow.KIND: {FlowState.OPEN: frozenset({FlowState.STOPPED})},
        Summary.KIND: {None: frozenset({CANCELLED})},  # its members stay as they are
    },
    FlowFact.ANSWERS_COUNTED: {
        Member.KIND: {Settled.OPEN: frozenset({Settled.SATISFIED, Settled.IMPOSSIBLE})},
    },
    FlowFact.ENDS_COUNTED: {Summary.KIND: {None: frozenset({SUCCEEDED})}},
    FlowFact.FINISHED: {Summary.KIND: {None: frozenset({SUCCEEDED, FAILED, CANCELLED})}},
    FlowFact.RETRIED: {
        Flow.KIND: dict.fromkeys((FlowState.OPEN, FlowState.STOPPED), frozenset({FlowState.REOPENING})),
        Summary.KIND: dict.fromkeys((FAILED, CANCELLED), frozenset({None})),
    },
    FlowFact.MEMBER_REOPENED: {
        Member.KIND: dict.fromkeys((Settled.SATISFIED, Settled.IMPOSSIBLE), frozenset({Settled.OPEN})),
    },
    FlowFact.REOPENED: {Flow.KIND: {FlowState.REOPENING: frozenset({FlowState.OPEN})}},
}
