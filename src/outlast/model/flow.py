"""A DAG of executions: what the claim consults (`Flow`), and the insert-only advances of a member's edges (`Edge`).

The rules of flows come in their own time; these records are here because claim has its gates from day one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from outlast.model.record import Key, Record, Time


class FlowState(StrEnum):
    STAGING = "staging"
    OPEN = "open"
    STOPPED = "stopped"


class Flow(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "flow"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "id")
    TIMES: ClassVar[tuple[str, ...]] = ("created_at",)
    WORDS: ClassVar[Mapping[str, type[StrEnum]]] = {"state": FlowState}

    namespace: str
    id: str
    state: FlowState
    reason: str | None = None
    revision: int = 0
    created_at: Time
    change_id: str


class Edge(Record, frozen=True, kw_only=True):
    """One upstream's answer to a member, inserted once however often it is delivered, drained in batches."""

    KIND: ClassVar[str] = "edge"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "execution", "upstream")
    TIMES: ClassVar[tuple[str, ...]] = ("answered_at",)
    SEQUENCED: ClassVar[bool] = True

    namespace: str
    execution: str
    upstream: str
    answer: str
    answered_at: Time
    seq: int = 0
    change_id: str


def flow_key(namespace: str, flow_id: str) -> Key:
    return Key(Flow.KIND, (namespace, flow_id))


def edge_key(namespace: str, execution: str, upstream: str) -> Key:
    return Key(Edge.KIND, (namespace, execution, upstream))
