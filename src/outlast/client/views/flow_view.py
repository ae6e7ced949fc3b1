"""A flow with all of its members, as it is drawn: how each is, why, and how far from the beginning it stands."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from outlast import limits
from outlast.client.flow_info import FlowGraph
from outlast.client.flow_looks import FlowLooks
from outlast.client.views.words import failure_line
from outlast.model.execution import Execution, execution_key
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.status import Status
from outlast.runtime.engine import Engine

ERROR_MAX_CHARS = 200


class MemberDocument(Struct, frozen=True, kw_only=True):
    """One member. `after` are the names of its upstreams, of which `needed` must succeed. `level` counts the members
    above it on its longest way."""

    name: str
    id: str
    workflow: str
    status: Status
    reason: str | None
    cause: str | None
    error: str | None
    after: tuple[str, ...]
    needed: int
    level: int


class FlowView(Struct, frozen=True, kw_only=True):
    """A flow. `status` is None while it runs; `members` are in the order in which they were added."""

    id: str
    name: str
    status: Status | None
    cancelling: bool
    reason: str
    counts: dict[Status, int]
    critical_path: tuple[str, ...]
    members: tuple[MemberDocument, ...]


async def flow_view(engine: Engine, namespace: str, flow_id: str, *, errors_of: int | None = None) -> FlowView:
    """With the errors of all members, or of the first `errors_of` from the top."""
    looks = FlowLooks(engine, namespace)
    status, graph = await looks.status(flow_id), await looks.graph(flow_id)
    levels = levels_of(graph)
    from_top = sorted(graph.members, key=lambda member: levels[member.name])[:errors_of]
    failed = [one.id for one in from_top if one.status.terminal and one.status is not Status.SUCCEEDED]
    errors = await _errors(engine, namespace, failed)
    return FlowView(
        id=status.id,
        name=status.name,
        status=status.status,
        cancelling=status.cancelling,
        reason=status.reason,
        counts=status.counts,
        critical_path=status.critical_path,
        members=tuple(
            MemberDocument(
                name=member.name,
                id=member.id,
                workflow=member.workflow,
                status=member.status,
                reason=member.reason,
                cause=member.cause,
                error=errors.get(member.id),
                after=member.after,
                needed=member.needed,
                level=levels[member.name],
            )
            for member in graph.members
        ),
    )


def levels_of(graph: FlowGraph) -> dict[str, int]:
    """How many members stand above each, on its longest way: without recursion, however deep."""
    above = {member.name: member.after for member in graph.members}
    levels: dict[str, int] = {}
    waiting = list(above)
    while waiting:
        name = waiting[-1]
        missing = [one for one in above[name] if one in above and one not in levels]
        if missing and name not in levels:
            waiting += missing
            continue
        waiting.pop()
        levels[name] = 1 + max((levels[one] for one in above[name] if one in levels), default=-1)
    return levels


async def _errors(engine: Engine, namespace: str, ids: list[str]) -> dict[str, str]:
    """What those members raised that did not succeed, by id."""
    found: dict[str, str] = {}
    for begin in range(0, len(ids), limits.LOAD_MAX_KEYS):
        some = ids[begin : begin + limits.LOAD_MAX_KEYS]
        executions = await engine.store.load([execution_key(namespace, one) for one in some])
        found |= await _errors_of(engine, [e for e in executions if isinstance(e, Execution)])
    return found


async def _errors_of(engine: Engine, executions: Iterable[Execution]) -> dict[str, str]:
    keys = {e.id: payload_key(e.namespace, e.id, e.generation, Role.FAILURE) for e in executions}
    failures = await engine.store.load(list(keys.values()))
    return {
        execution_id: _shortened(failure_line(failure.value))
        for execution_id, failure in zip(keys, failures, strict=True)
        if isinstance(failure, Payload)
    }


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= ERROR_MAX_CHARS else f"{line[:ERROR_MAX_CHARS]}…"
