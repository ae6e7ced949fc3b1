"""The small world that the differential test plays in: few names, so that they meet often; boundary values on purpose.

Facts are drawn without what only the moment knows (`change_id`, `epoch`, `inbox`); the rules fill that in.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, TypeVar

import msgspec
from hypothesis import strategies as st

from outlast.machine import facts
from outlast.model.deferred import Resolution
from outlast.model.flow import Flow, FlowState
from outlast.model.journal import Awaited
from outlast.model.lane import Lane
from outlast.model.record import Now
from outlast.model.retry import NO_RETRY, RetryPolicy
from outlast.model.status import Reason, Status
from outlast.store.port import EVERYTHING, Filter, Query

T = TypeVar("T")
LATER = ""
"""Stands for a change id that is given when the fact is told."""

# Children live with their parent, members with their flow; one id is not ASCII, two are in another namespace.
EXECUTIONS = [
    *(("default", execution_id) for execution_id in ["a", "b", "c", "d", "e", "g", "ü"]),
    *(("default", execution_id) for execution_id in ["a/kid", "a/kid2", "f/member", "f/member2", "f/member3"]),
    *(("other", execution_id) for execution_id in ["a", "b"]),
]
WORKFLOWS = [("pay", "1"), ("pay", "2"), ("ship", "1")]
LANES = ["default", "slow"]
WORKERS = ["w1", "w2", "w3"]
CAPABILITIES = ["gpu", "net"]
FLOW = "f"
EVENTS = ["e1", "e2"]
DEFERREDS = ["d1", "d2"]
STEPS = ["s1", "s2"]
TAGS = [("team", "x"), ("team", "y"), ("tier", "1")]
LEASES_MS = [1_000, 10_000]
CHILDREN = ["a/kid", "a/kid2"]
WAITS = [
    *(Reason.event(name) for name in EVENTS),
    *(Reason.deferred(name) for name in DEFERREDS),
    *(Reason.child(child) for child in CHILDREN),
]

NAMES = st.sampled_from(["default", "default", "default", "other"])

executions = st.sampled_from(EXECUTIONS)
workers = st.sampled_from(WORKERS)
limits = st.sampled_from([1, 2, 3, 100])
ttls_ms = st.sampled_from(LEASES_MS)
rarely = st.sampled_from([False] * 7 + [True])
picks = st.integers(0, 30)
"""Which of several candidates; the rules count from the newest."""
recent = st.integers(0, 3) | st.integers(1, 4) | picks
"""Most often one of the last."""
backs = st.sampled_from([None] * 6 + [1, 2, 3])
"""How many changes ago somebody looked; None: just now."""
values = st.sampled_from([b"", b"1", b"\x00\xff"])

retries = st.sampled_from(
    [
        NO_RETRY,
        RetryPolicy(max_attempts=3, initial_ms=0),
        RetryPolicy(max_attempts=2, initial_ms=0),
        RetryPolicy(max_attempts=3, initial_ms=2_000, jitter=0.5),
    ]
)
escaped = st.lists(st.tuples(st.just(""), st.sampled_from(STEPS), st.integers(0, 1)), max_size=2).map(tuple)

Gate: TypeAlias = Lane | Flow

gates: st.SearchStrategy[Gate] = st.builds(
    Lane, partition=st.just(0), namespace=NAMES, lane=st.sampled_from(LANES), paused=st.booleans()
) | st.builds(
    Flow,
    namespace=st.just("default"),
    id=st.just(FLOW),
    state=st.sampled_from(FlowState),
    created_at=st.just(Now()),
    change_id=st.just("operator"),
)
"""What an operator sets."""

queries = st.builds(
    Query,
    namespace=NAMES,
    status=st.just(frozenset[Status]()) | st.frozensets(st.sampled_from(Status), max_size=3),
    workflow=st.sampled_from([None] * 4 + ["pay", "ship"]),
    lane=st.sampled_from([None] * 4 + LANES),
    tags=st.sampled_from([*[TAGS[:0]] * 4, TAGS[:1], TAGS[1:]]).map(dict[str, str]),
    id_prefix=st.sampled_from([None] * 6 + ["", "a", "a/", "ü", "\ud7ff", "\U0010ffff"]),
    limit=limits,
)

filters = st.sampled_from(
    [
        *[EVERYTHING] * 6,
        Filter(namespace="default"),
        Filter(namespace="other"),
        *(Filter(tag=tag) for tag in TAGS),
        Filter(namespace="default", tag=TAGS[0]),
    ]
)


def _seldom(usual: T, *others: T) -> st.SearchStrategy[T]:
    """Mostly the usual value, so that most executions come to run at all."""
    return st.sampled_from([*[usual] * 6, *others])


@st.composite
def starts(draw: st.DrawFn) -> facts.Start:
    namespace, execution_id = draw(executions)
    workflow, version = draw(st.sampled_from(WORKFLOWS))
    after_dependencies = draw(_seldom(False, True))
    return facts.Start(
        change_id=LATER,
        namespace=namespace,
        id=execution_id,
        workflow=workflow,
        version=version,
        input=(value := draw(values)),
        input_digest=value.hex(),
        lane=draw(st.sampled_from(LANES)),
        requires=draw(_seldom((), ("gpu",), ("gpu", "net"))),
        priority=draw(st.sampled_from([0, 0, 5, -5])),
        delay_ms=0 if after_dependencies else draw(_seldom(0, 5_000)),
        deadline_ms=draw(_seldom(None, 0, 60_000)),
        timeout_ms=draw(st.sampled_from([None, None, 0, 3_000])),
        retry=draw(retries),
        crash_cap=draw(st.sampled_from([5, 2, 1])),
        retention_ms=draw(st.sampled_from([None, 0, 30_000])),
        tags=dict(draw(st.lists(st.sampled_from(TAGS), max_size=2))),
        parent="a" if execution_id.startswith("a/") else None,
        flow=FLOW if execution_id.startswith("f/") else None,
        after_dependencies=after_dependencies,
        if_exists=draw(st.sampled_from(["restart", "same", "error"])),
    )


events = st.builds(
    facts.EventSent,
    change_id=st.just(LATER),
    name=st.sampled_from(EVENTS),
    value=values,
    dedup=st.sampled_from([None, None, "k1", "k2"]),
)
resolutions = st.builds(
    facts.DeferredResolved,
    change_id=st.just(LATER),
    name=st.sampled_from(DEFERREDS),
    value=values,
    resolution=st.sampled_from(Resolution),
)
children = st.builds(
    facts.ChildCompleted,
    change_id=st.just(LATER),
    child=st.sampled_from(CHILDREN),
    status=st.sampled_from([Status.SUCCEEDED, Status.FAILED]),
    value=st.none() | values,
)
messages = events | resolutions | children


def wait_for(fact: facts.AnyFact) -> tuple[str, ...]:
    """What an execution waits for that such a message would wake."""
    match fact:
        case facts.EventSent(name=name):
            return (Reason.event(name),)
        case facts.DeferredResolved(name=name):
            return (Reason.deferred(name),)
        case facts.ChildCompleted(child=child):
            return (Reason.child(child),)
        case _:
            return ()


cancels = st.builds(facts.CancelRequested, change_id=st.just(LATER), reason=st.sampled_from(["", "too late"]))
requests = st.sampled_from(
    [
        cancels,
        cancels,
        st.builds(facts.Hold, change_id=st.just(LATER)),
        st.builds(facts.Release, change_id=st.just(LATER)),
        st.builds(facts.Retry, change_id=st.just(LATER), supersedes=escaped),
    ]
).flatmap(lambda drawn: drawn)

wakes = st.builds(
    facts.Wake,
    change_id=st.just(LATER),
    cause=st.sampled_from([Reason.TIMER, Reason.DELAY, Reason.RETRY, Reason.DEPENDENCIES, *WAITS]),
)
losses = st.builds(facts.LeaseLost, change_id=st.just(LATER), epoch=st.just(0))
clock_facts = st.sampled_from(
    [
        wakes,
        wakes,
        losses,
        losses,
        st.builds(facts.TimeOut, change_id=st.just(LATER), epoch=st.just(0), jitter=st.sampled_from([0.0, 0.5])),
        st.builds(facts.DeadlinePassed, change_id=st.just(LATER)),
        st.builds(facts.Skip, change_id=st.just(LATER)),
    ]
).flatmap(lambda drawn: drawn)

steps = st.builds(
    facts.StepRecorded,
    change_id=st.just(LATER),
    epoch=st.just(0),
    scope=st.just(""),
    name=st.sampled_from(STEPS),
    occurrence=st.integers(0, 2),
    op=st.just("step"),
    outcome=st.sampled_from(["ok", "failed"]),
    value=st.none() | values,
    unwinds=rarely,
)
receipts = steps.map(lambda fact: msgspec.structs.replace(fact, op="receive"))
"""Steps that consume an event; the rules say which."""
suspensions = st.builds(
    facts.Suspend,
    change_id=st.just(LATER),
    epoch=st.just(0),
    inbox=st.just(0),
    reason=st.sampled_from(["timer", *WAITS]),
    waits=st.lists(st.sampled_from(WAITS), max_size=2, unique=True).map(tuple),
    wake_at=st.sampled_from([0, 0, 1, 5_000]),  # from now; 0 is none, if there is something else to wait for
    awaits=st.sampled_from([None, Awaited("", "", "", 0, 0)]),  # what, the rules say
)
endings = (
    st.builds(facts.Complete, change_id=st.just(LATER), epoch=st.just(0), output=values)
    | st.builds(
        facts.Fail,
        change_id=st.just(LATER),
        epoch=st.just(0),
        failure=values,
        retryable=st.sampled_from([True, True, False]),
        supersedes=escaped,
        jitter=st.sampled_from([0.0, 0.5]),
    )
    | st.builds(facts.Cancelled, change_id=st.just(LATER), epoch=st.just(0))
    | st.builds(facts.HandBack, change_id=st.just(LATER), epoch=st.just(0))
)
of_holder = st.sampled_from([steps, steps, receipts, receipts, suspensions, suspensions, endings]).flatmap(
    lambda drawn: drawn
)


class Supply(NamedTuple):
    """Work that becomes ready: after a while, by starts, and from the hands of some who hold it."""

    after_ms: int
    starts: list[facts.Start]
    handed_back: list[int]


supplies = st.builds(
    Supply,
    after_ms=st.sampled_from([0, 0, 1, 500]),
    starts=st.lists(starts(), max_size=2),
    handed_back=st.lists(picks, max_size=3),
)
