"""A record of every kind with every field filled, and one with all that may be empty empty: for exact round trips."""

from __future__ import annotations

from typing import Any

from outlast.model.attempt import Attempt, Outcome
from outlast.model.completion import Completion
from outlast.model.deferred import Deferred, Resolution
from outlast.model.event import Event
from outlast.model.execution import Execution, route_of
from outlast.model.flow import (
    CancelPolicy,
    Edge,
    EdgeAnswer,
    Flow,
    FlowState,
    Member,
    OnFailure,
    OnSatisfied,
    Settled,
    Summary,
    encode_ids,
)
from outlast.model.journal import JournalEntry
from outlast.model.lane import Lane
from outlast.model.outbox import Delivery
from outlast.model.payload import Payload, Role
from outlast.model.record import Record
from outlast.model.retry import RetryPolicy
from outlast.model.session import Session
from outlast.model.status import Status
from outlast.model.tag import Tag
from outlast.testing.conformance.actors import NAMESPACE

BYTES = bytes(range(256))
TEXT = "naïve café, 日本語, 🦉, עברית, quote ' \" ; -- \\ %s {x} $1 ? :y"
LARGE = 2**62
ID = "order-ü"
CHANGE = "change-é"


def active_execution() -> Execution:
    return Execution(
        namespace=NAMESPACE,
        id=ID,
        workflow="wörkflow",
        version="v1",
        signature="sha:ü",
        lane="läne",
        route=route_of("wörkflow", "v1", ("gpu",)),
        parent="pärent",
        flow="flöw",
        tags='{"größe":"XL"}',
        input_digest="dïgest",
        status=Status.ACTIVE,
        cause="attempt_timeout",
        generation=4,
        journal_generation=3,
        epoch=17,
        inbox=LARGE,
        priority=-1_000,
        resumed=True,
        worker="wörker",
        claim_id="cläim",
        claimed_at=1_700_000_000_001,
        deadline_at=LARGE,
        attempt_deadline_at=1_700_000_000_003,
        attempt=6,
        attempt_open=True,
        failures=2,
        crashes=3,
        crashes_since_progress=1,
        crashes_since_suspension=2,
        ran_ms=12_345,
        timeout_ms=60_000,
        deadline_ms=86_400_000,
        retry=RetryPolicy(max_attempts=9, backoff=1.5).encode(),
        crash_cap=11,
        life_crash_cap=12,
        retention_ms=3_600_000,
        cancel_requested=True,
        held=True,
        unwinds=True,
        created_at=1_699_999_999_999,
        change_id=CHANGE,
    )


def ended_execution() -> Execution:
    return Execution(
        namespace=NAMESPACE,
        id=ID,
        workflow="w",
        version="1",
        lane="default",
        route=route_of("w", "1", ()),
        input_digest="",
        status=Status.EXPIRED,
        cause="deadline",
        finished_at=1_700_000_000_009,
        purge_at=1_700_000_000_010,
        created_at=0,
    )


def suspended_execution() -> Execution:
    return Execution(
        namespace=NAMESPACE,
        id=ID,
        workflow="w",
        version="1",
        lane="default",
        route=route_of("w", "1", ()),
        input_digest="",
        status=Status.SUSPENDED,
        reason="event:plän",
        waits="event:plän\ndeferred:ja",
        wake_at=1_800_000_000_000,
        epoch=1,
        attempt_open=True,
        created_at=1,
    )


def ready_execution() -> Execution:
    return Execution(
        namespace=NAMESPACE,
        id=ID,
        workflow="w",
        version="1",
        lane="default",
        route=route_of("w", "1", ()),
        input_digest="",
        status=Status.READY,
        ready_at=1_700_000_000_000,
        created_at=1,
    )


def samples(partition: int) -> list[Record]:
    """Two or more records of every kind but executions, at most one per key."""
    return [*_trail(), *_belongings(), *_of_partition(partition)]


def _trail() -> list[Record]:
    own: dict[str, Any] = {"namespace": NAMESPACE, "execution": ID}
    return [
        *[Payload(**own, generation=n, role=role, value=BYTES * n, change_id=CHANGE) for n, role in enumerate(Role)],
        Attempt(
            **own,
            generation=1,
            number=1,
            epoch=3,
            worker=TEXT,
            started_at=5,
            ended_at=LARGE,
            outcome=Outcome.TIMED_OUT,
            failure=BYTES,
            change_id=CHANGE,
        ),
        Attempt(**own, generation=1, number=2, epoch=4, worker="w", started_at=7, change_id=CHANGE),
        JournalEntry(
            **own,
            generation=1,
            scope=TEXT,
            name=TEXT,
            occurrence=2,
            op="step",
            outcome="succeeded",
            value=BYTES,
            tries=3,
            epoch=4,
            recorded_at=9,
            change_id=CHANGE,
        ),
        JournalEntry(
            **own,
            generation=1,
            scope="",
            name="x",
            occurrence=1,
            op="sleep",
            outcome="failed",
            value=None,
            epoch=1,
            recorded_at=0,
            change_id="",
        ),
    ]


def _belongings() -> list[Record]:
    own: dict[str, Any] = {"namespace": NAMESPACE, "execution": ID}
    return [
        Event(**own, name=TEXT, dedup=TEXT, value=BYTES, consumed=True, sent_at=3, change_id=CHANGE),
        Event(**own, name="x", dedup="", value=None, sent_at=3, change_id=CHANGE),
        Deferred(
            **own,
            generation=1,
            name=TEXT,
            resolution=Resolution.REJECTED,
            value=BYTES,
            resolved_at=2,
            change_id=CHANGE,
        ),
        Deferred(
            **own,
            generation=1,
            name="y",
            resolution=Resolution.RESOLVED,
            value=None,
            resolved_at=2,
            change_id=CHANGE,
        ),
        *[
            Completion(
                **own,
                generation=n,
                status=status,
                cause=None if n % 2 else TEXT,
                workflow="w",
                tags='{"a":"ä"}',
                finished_at=8,
                change_id=CHANGE,
            )
            for n, status in enumerate(s for s in Status if s.terminal)
        ],
        EdgeAnswer(**own, upstream=TEXT, answer=TEXT, generation=3, answered_at=5, change_id=CHANGE),
        Edge(**own, downstream=TEXT, alone=True, change_id=CHANGE),
        Member(
            **own,
            flow=TEXT,
            name="nåme",
            position=4,
            upstreams=3,
            needed=2,
            after=encode_ids((TEXT, "u", "v")),
            on_satisfied=OnSatisfied.CANCEL_REMAINING,
            on_failure=OnFailure.RUN,
            binds=True,
            answered=2,
            succeeded=1,
            drained=TEXT,
            settled=Settled.IMPOSSIBLE,
            siblings_at=LARGE,
            acknowledged=True,
            change_id=CHANGE,
        ),
        Tag(**own, tag="größe", value=TEXT),
    ]


def _of_partition(partition: int) -> list[Record]:
    return [
        Session(partition=partition, worker=TEXT, expires_at=LARGE, started_at=4),
        Delivery(
            partition=partition,
            id=TEXT,
            namespace=NAMESPACE,
            target=ID,
            fact=BYTES,
            due_at=4,
            tries=2,
            error=TEXT,
            created_at=3,
            change_id=CHANGE,
        ),
        Delivery(
            partition=partition,
            id="plain",
            namespace=NAMESPACE,
            target=ID,
            fact=b"",
            due_at=4,
            created_at=3,
            change_id=CHANGE,
        ),
        Lane(partition=partition, namespace=NAMESPACE, lane="ön", paused=True),
        Lane(partition=partition, namespace=NAMESPACE, lane="öff", paused=False),
        *[
            Flow(
                namespace=NAMESPACE,
                id=ID if state is FlowState.OPEN else f"{ID}/{state}",
                name=TEXT,
                state=state,
                policy=CancelPolicy.CANCEL_PENDING if state is FlowState.STOPPED else None,
                reason=TEXT if state is FlowState.STOPPED else None,
                parent=TEXT if state is FlowState.OPEN else None,
                revision=7,
                digest="d",
                retention_ms=None if state is FlowState.OPEN else LARGE,
                created_at=6,
                staged_at=6 if state is FlowState.STAGING else None,
                cancel_at=9 if state is FlowState.STOPPED else None,
                purge_at=LARGE if state is FlowState.STAGING else None,
                change_id=CHANGE,
            )
            for state in FlowState
        ],
        Summary(
            namespace=NAMESPACE,
            id=ID,
            members=9,
            succeeded=1,
            failed=2,
            cancelled=1,
            expired=2,
            skipped=3,
            drained=TEXT,
            outcome=Status.FAILED,
            finished_at=12,
            checks=3,
            change_id=CHANGE,
        ),
        Summary(namespace=NAMESPACE, id=f"{ID}/open", check_at=5, depend_at=LARGE, change_id=CHANGE),
    ]
