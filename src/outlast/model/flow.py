"""A DAG of executions. All of a flow lives in one partition, so what an end means for others is one commit away.

- `Flow` is the gate: the claim consults it, so that nothing of a flow that is staged or stopped is ever claimed.
- `Summary` counts its members' ends. It is apart from the gate, because it is written all the time.
- `Member` says, beside an execution, what it waits for: how many of its upstreams must succeed, and how many have.
- `Edge` is an edge as it was drawn: from an upstream to a member. Those of the flow itself are its roster.
- `EdgeAnswer` is an upstream's answer: inserted once however often it is delivered, drained in batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

import msgspec

from outlast.model.record import Key, Record, Time
from outlast.model.status import Status


class FlowState(StrEnum):
    STAGING = "staging"
    OPEN = "open"
    STOPPED = "stopped"
    REOPENING = "reopening"
    """It is retried, and not all of its members are open again."""


class CancelPolicy(StrEnum):
    """What a cancel of the flow does with its members. In any case none of them is claimed any more."""

    CANCEL_ALL = "cancel_all"
    CANCEL_PENDING = "cancel_pending"
    """What runs may go on as long as it runs; whatever does not is cancelled."""
    FLOW_ONLY = "flow_only"
    """The members stay as they are; what runs may go on."""


class OnSatisfied(StrEnum):
    LET_RUN = "let_run"
    CANCEL_REMAINING = "cancel_remaining"


class OnFailure(StrEnum):
    SKIP = "skip"
    RUN = "run"
    TURN = "turn"
    """It only waits for its turn: it runs however its upstream ended, unless that was skipped."""


class Settled(StrEnum):
    """What became of a member's join. Once settled it stays so, until the flow is retried."""

    OPEN = "open"
    SATISFIED = "satisfied"
    IMPOSSIBLE = "impossible"


class Flow(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "flow"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "id")
    TIMES: ClassVar[tuple[str, ...]] = ("created_at", "staged_at", "cancel_at", "purge_at")
    WORDS: ClassVar[Mapping[str, type[StrEnum]]] = {"state": FlowState, "policy": CancelPolicy}

    namespace: str
    id: str
    name: str = ""
    state: FlowState
    policy: CancelPolicy | None = None
    reason: str | None = None
    parent: str | None = None
    """The execution whose code started it, if one did: it is told of the end."""
    revision: int = 0
    digest: str = ""
    retention_ms: int | None = None
    created_at: Time
    staged_at: Time | None = None
    """Since when it is being staged; None once it is open."""
    cancel_at: Time | None = None
    """From when on a reconciler looks after the cancels that it owes; None if it owes none."""
    purge_at: Time | None = None
    """When an abandoned stage, or an ended flow past its retention, goes."""
    change_id: str


class Summary(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "summary"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "id")
    TIMES: ClassVar[tuple[str, ...]] = ("finished_at", "check_at", "depend_at")
    WORDS: ClassVar[Mapping[str, type[StrEnum]]] = {"outcome": Status}

    namespace: str
    id: str
    members: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    skipped: int = 0
    drained: str = ""
    """The last of its edges that was counted, by its upstream."""
    outcome: Status | None = None
    finished_at: Time | None = None
    check_at: Time | None = None
    """When a reconciler counts anew; None once it has ended."""
    depend_at: Time | None = None
    """When a reconciler looks for edges that nobody answered; None once it has ended."""
    checks: int = 0
    change_id: str

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.cancelled + self.expired + self.skipped


class Member(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "member"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "execution")
    TIMES: ClassVar[tuple[str, ...]] = ("siblings_at",)
    FLAGS: ClassVar[tuple[str, ...]] = ("binds", "acknowledged")
    WORDS: ClassVar[Mapping[str, type[StrEnum]]] = {
        "on_satisfied": OnSatisfied,
        "on_failure": OnFailure,
        "settled": Settled,
    }

    namespace: str
    execution: str
    flow: str
    name: str
    position: int = 0
    upstreams: int = 0
    needed: int = 0
    """So many upstreams must succeed."""
    after: bytes = b"\x90"
    """The ids of its upstreams, as `encode_ids` gives them."""
    on_satisfied: OnSatisfied = OnSatisfied.LET_RUN
    on_failure: OnFailure = OnFailure.SKIP
    binds: bool = False
    """Whether its input takes something from its upstreams: then it is made when its join is settled."""
    answered: int = 0
    succeeded: int = 0
    drained: str = ""
    """The last of its edges that was counted, by its upstream."""
    settled: Settled = Settled.OPEN
    siblings_at: Time | None = None
    """From when on a reconciler looks after upstreams that are no longer needed; None if none is to be cancelled."""
    acknowledged: bool = False
    """Whether the flow's cancel reached it."""
    change_id: str


class Edge(Record, frozen=True, kw_only=True):
    """`execution` is the upstream, `downstream` waits for it."""

    KIND: ClassVar[str] = "dependency"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "execution", "downstream")
    FLAGS: ClassVar[tuple[str, ...]] = ("alone",)

    namespace: str
    execution: str
    downstream: str
    alone: bool = False
    """Whether it is the only upstream: then its answer settles the join."""
    change_id: str


class EdgeAnswer(Record, frozen=True, kw_only=True):
    """One upstream's answer to a member, inserted once however often it is delivered, drained in batches."""

    KIND: ClassVar[str] = "edge"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "execution", "upstream")
    TIMES: ClassVar[tuple[str, ...]] = ("answered_at",)
    SEQUENCED: ClassVar[bool] = True

    namespace: str
    execution: str
    upstream: str
    answer: str
    generation: int = 1
    """Which of the upstream's ends it is."""
    answered_at: Time
    seq: int = 0
    change_id: str


def flow_key(namespace: str, flow_id: str) -> Key:
    return Key(Flow.KIND, (namespace, flow_id))


def summary_key(namespace: str, flow_id: str) -> Key:
    return Key(Summary.KIND, (namespace, flow_id))


def member_key(namespace: str, execution: str) -> Key:
    return Key(Member.KIND, (namespace, execution))


def edge_answer_key(namespace: str, execution: str, upstream: str) -> Key:
    return Key(EdgeAnswer.KIND, (namespace, execution, upstream))


def edge_key(namespace: str, upstream: str, downstream: str) -> Key:
    return Key(Edge.KIND, (namespace, upstream, downstream))


def member_id(flow_id: str, name: str) -> str:
    return f"{flow_id}/{name}"


def whole_of(flow_id: str) -> str:
    """Stands for the flow itself where an execution is named: everything is its downstream, and it waits for all."""
    return f"{flow_id}/"


def encode_ids(ids: tuple[str, ...]) -> bytes:
    return msgspec.msgpack.encode(ids)


def decode_ids(data: bytes) -> tuple[str, ...]:
    return msgspec.msgpack.decode(data, type=tuple[str, ...])
