"""What there is to see of flows: read only, so a store that may not be written will do."""

from __future__ import annotations

from collections.abc import Iterable

from outlast.authoring.graph import in_order
from outlast.client.flow_info import FlowGraph, FlowInfo, MemberInfo
from outlast.client.info import moment, moment_or_none
from outlast.errors import FlowNotFound
from outlast.machine.decide_member import MemberView
from outlast.model.execution import Execution
from outlast.model.flow import Flow, FlowState, Summary, decode_ids
from outlast.model.partition import partition_of
from outlast.model.record import settled
from outlast.model.status import Status
from outlast.runtime.engine import Engine


class FlowLooks:
    def __init__(self, engine: Engine, namespace: str) -> None:
        self.namespace = namespace
        self._engine = engine

    async def status(self, flow_id: str) -> FlowInfo:
        flow, summary = await self._heads(flow_id)
        views = await self._members(flow_id)
        counts: dict[Status, int] = {}
        status_of: dict[str, Status] = {}
        for view in views:
            counts[view.execution.status] = counts.get(view.execution.status, 0) + 1
            status_of[view.execution.id] = view.execution.status
        blocked: dict[str, tuple[str, ...]] = {}
        for view in [view for view in views if view.execution.status is Status.BLOCKED]:
            above = ((one, status_of.get(one)) for one in decode_ids(view.member.after))
            waits = tuple(_name(upstream) for upstream, status in above if status is None or not status.terminal)
            if waits or not view.execution.held:
                blocked[view.member.name] = waits
        return FlowInfo(
            id=flow.id,
            name=flow.name,
            status=summary.outcome,
            cancelling=flow.state is FlowState.STOPPED and summary.outcome is None,
            reason=flow.reason or "",
            members=summary.members,
            counts=counts,
            critical_path=critical_path(views, await self._engine.store.now()),
            blocked=blocked,
            held=tuple(view.member.name for view in views if view.execution.held),
            created_at=moment(settled(flow.created_at) or 0),
            finished_at=moment_or_none(settled(summary.finished_at)),
        )

    async def graph(self, flow_id: str) -> FlowGraph:
        flow, _ = await self._heads(flow_id)
        members = tuple(
            MemberInfo(
                name=view.member.name,
                id=view.execution.id,
                workflow=view.execution.workflow,
                status=view.execution.status,
                reason=view.execution.reason,
                cause=view.execution.cause,
                after=tuple(_name(upstream) for upstream in decode_ids(view.member.after)),
                needed=view.member.needed,
                created_at=moment(settled(view.execution.created_at) or 0),
                finished_at=moment_or_none(settled(view.execution.finished_at)),
            )
            for view in await self._members(flow_id)
        )
        return FlowGraph(id=flow.id, name=flow.name, members=members)

    async def _members(self, flow_id: str) -> list[MemberView]:
        """All of them, in the order in which they were added."""
        partition, found = self._partition(flow_id), list[MemberView]()
        async for page in self._engine.flows.roster(self.namespace, flow_id):
            found += await self._engine.flows.views(partition, self.namespace, page)
        return sorted(found, key=lambda view: view.member.position)

    async def _heads(self, flow_id: str) -> tuple[Flow, Summary]:
        flow, summary = await self._engine.flows.heads(self.namespace, flow_id)
        if flow is None or summary is None or flow.staged_at is not None:
            raise FlowNotFound(self.namespace, flow_id)
        return flow, summary

    def _partition(self, flow_id: str) -> int:
        return partition_of(self.namespace, flow_id, self._engine.store.partitions)


def critical_path(views: list[MemberView], now: int) -> tuple[str, ...]:
    """The way through the flow that everything waited for: from what ended last, or runs, up to whoever kept it."""
    ends = {view.execution.id: end for view in views if (end := _end_of(view.execution, now)) is not None}
    above = {view.execution.id: decode_ids(view.member.after) for view in views}
    # Of those that ended in the same millisecond the last is the one that stands behind the others.
    order = {one: place for place, one in enumerate(in_order(above))}

    def last(some: Iterable[str]) -> str | None:
        return max((one for one in some if one in ends), key=lambda one: (ends[one], order.get(one, 0)), default=None)

    path: list[str] = []
    at = last(ends)
    while at is not None:
        path.append(_name(at))
        at = last(above[at])
    return tuple(reversed(path))


def _end_of(execution: Execution, now: int) -> int | None:
    """Until when it kept others waiting; None of one that waits itself."""
    return None if execution.status is Status.BLOCKED else settled(execution.finished_at) or now


def _name(member_id: str) -> str:
    return member_id.partition("/")[2]
