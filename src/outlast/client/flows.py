"""What a caller can do with flows. As with executions, all of it goes through the engine and the machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from outlast import limits
from outlast.authoring.builtin import GATHER, gathered
from outlast.client import saying
from outlast.client.flow_handle import FlowHandle, Policy
from outlast.client.flow_info import FlowCancel
from outlast.client.flow_looks import FlowLooks
from outlast.client.waiters import DISTANCE, POLL_S, Waiters
from outlast.codec.values import Values
from outlast.errors import (
    FlowCancelled,
    FlowConflict,
    FlowFailed,
    FlowNotFound,
    FlowRefused,
    InvalidInput,
    UnknownWorkflow,
)
from outlast.machine.changes import Absent, Changes, Code, Guard, Refusal
from outlast.machine.decide_flow import (
    FlowView,
    NewFlow,
    NewMember,
    Piece,
    chunks,
    in_the_way,
    is_small,
    known,
    lanes_of,
    opened,
    reopening,
    staged,
    staged_members,
)
from outlast.machine.decide_member import MemberView
from outlast.machine.decide_stop import stopped
from outlast.model.execution import Execution
from outlast.model.flow import CancelPolicy, Flow, Summary, summary_key, whole_of
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.status import Status
from outlast.runtime.engine import Engine
from outlast.runtime.flows.accepting import accept
from outlast.runtime.flows.downstream_cache import Outputs
from outlast.runtime.flows.purging import purge_flow
from outlast.runtime.flows.stopping import GRACE_MS, cancel_members
from outlast.store.port import Sharded, Verdict

if TYPE_CHECKING:
    from outlast.authoring.host import Host
    from outlast.authoring.registry import Registry

_log = logging.getLogger(__name__)

NEAR_S = 1.0
"""Whoever closes waits so long for the cancels that are under way."""
REOPENED_S = 2.0
"""Whoever retries a flow waits so long until its members are open again. Of very many the last are opened later."""
PARALLEL = 8
"""So many chunks of a stage are under way at a time."""
LOOK_DISTANCE_S = 0.02
"""Between two looks at flows that are waited for, when somebody rings all the time."""


class FlowClient(FlowLooks):
    def __init__(
        self,
        engine: Engine,
        values: Values,
        waiters: Waiters,
        *,
        namespace: str,
        owner: Host,
        registry: Registry,
        started: Callable[[], None],
    ) -> None:
        super().__init__(engine, namespace)
        self._values = values
        self._waiters = waiters
        self._owner = owner
        self._registry = registry
        self._started = started
        self._sharded = engine.store if isinstance(engine.store, Sharded) else None
        self._waiting: dict[str, set[asyncio.Future[Outputs | None]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        engine.flows.on_end = self._ended

    def handle(self, flow_id: str) -> FlowHandle:
        return FlowHandle(self._owner, flow_id)

    async def close(self) -> None:
        """What is under way is carried to its end, if that is near; the reconcilers finish the rest."""
        if self._background:
            await asyncio.wait(self._background, timeout=NEAR_S)
        for task in (self._looking, *self._background):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    # ---- starting -------------------------------------------------------------------------------------------------

    async def start(self, new: NewFlow, members: list[NewMember]) -> FlowHandle:
        """Accepted as a whole once this returns: in one change, or staged in several and opened by the last."""
        partition = self._partition(new.id)
        if is_small(members):
            found = await accept(self._engine, partition, new, members)
            if not found.verdict.applied:
                await self._refused_start(new, partition, chunks(members), found.verdict.refused_by)
            elif not found.verdict.again:
                self._waiters.started(self.namespace, new.id)
            if all(member.upstreams or member.start.id in found.begun for member in members):
                return self.handle(new.id)  # nothing of it waits for a look
        else:
            await self._stage(new, partition, chunks(members))
        self._started()
        return self.handle(new.id)

    async def _stage(self, new: NewFlow, partition: int, parts: list[list[Piece]]) -> None:
        verdict = await self._engine.commit(staged(partition, new))
        if not verdict.applied:
            await self._refused_start(new, partition, parts, verdict.refused_by)
            return
        await self._fill(new, partition, new.change_id, parts)

    async def _fill(self, new: NewFlow, partition: int, stage: str, parts: list[list[Piece]]) -> None:
        """The members, a bounded part at a time, then the word that opens the flow. Repeating it is harmless."""
        for begin in range(0, len(parts), PARALLEL):
            numbered = enumerate(parts[begin : begin + PARALLEL], start=begin)
            verdicts = await asyncio.gather(
                *(self._engine.commit(staged_members(partition, new, stage, number, part)) for number, part in numbered)
            )
            for by in [verdict.refused_by for verdict in verdicts if isinstance(verdict.refused_by, Absent)]:
                # A child that outlived its parent: what is staged stays shut, and is purged.
                raise FlowConflict(new.id, f"has a member whose id is taken ({by.key})")
        lanes = lanes_of([piece.member for part in parts for piece in part])
        verdict = await self._engine.commit(opened(partition, new, stage, lanes))
        if not verdict.applied:
            await self._refused_start(new, partition, parts, verdict.refused_by)

    async def _refused_start(
        self, new: NewFlow, partition: int, parts: list[list[Piece]], refused_by: Guard | None
    ) -> None:
        """There is a flow of that id. If it was only staged (whoever did may have died), the stage is finished."""
        flow, summary = await self._engine.flows.heads(self.namespace, new.id)
        if flow is None:
            assert refused_by is not None, "nothing else refuses a start"
            refusal = in_the_way(new, refused_by.key)
            if refusal is not None:
                raise FlowConflict(new.id, refusal.message)
            await self._stage(new, partition, parts)
            return
        refusal = known(FlowView(partition, flow, summary), new)
        if flow.staged_at is not None and flow.revision:
            # It is being purged. Whoever does that is overtaken, and the stage begins anew.
            await purge_flow(self._engine, flow)
            await self._stage(new, partition, parts)
        elif refusal is None:
            await self._fill(new, partition, flow.change_id, parts)
        elif refusal.code is not Code.ALREADY:
            raise FlowConflict(new.id, refusal.message)

    # ---- waiting --------------------------------------------------------------------------------------------------

    async def result(self, flow_id: str) -> dict[str, Any]:
        while True:
            end = await self._end_of(flow_id)
            if isinstance(end, list):
                return self._decoded(end)
            flow, summary = end
            if summary.outcome is Status.CANCELLED:
                raise FlowCancelled(flow_id, flow.reason or "")
            outcome = await self._waiters.patiently(partial(self._outcome, flow, summary))
            # If it was retried or purged meanwhile, its members are not those that ended so.
            if await self._waiters.patiently(lambda: self._heads(flow_id)) != (flow, summary):
                continue
            if isinstance(outcome, FlowFailed):
                raise outcome
            return outcome

    async def has_ended(self, flow_id: str) -> bool:
        _, summary = await self._waiters.patiently(lambda: self._heads(flow_id))
        return summary.outcome is not None

    async def _outcome(self, flow: Flow, summary: Summary) -> dict[str, Any] | FlowFailed:
        views = await self._members(flow.id)
        if summary.outcome is not Status.SUCCEEDED:
            return FlowFailed(flow.id, await self._engine.flows.failures(views, self._values))
        return await self._outputs(views)

    async def _outputs(self, views: list[MemberView]) -> dict[str, Any]:
        """Of the members that succeeded."""
        found: Outputs = []
        succeeded = [view for view in views if view.execution.status is Status.SUCCEEDED]
        for begin in range(0, len(succeeded), limits.LOAD_MAX_KEYS):
            some = succeeded[begin : begin + limits.LOAD_MAX_KEYS]
            keys = [payload_key(e.namespace, e.id, e.generation, Role.OUTPUT) for e in (v.execution for v in some)]
            records = zip(some, await self._engine.store.load(keys), strict=True)
            found += [(view, record.value) for view, record in records if isinstance(record, Payload)]
        return self._decoded(found, views)

    def _decoded(self, outputs: Outputs, views: Sequence[MemberView] = ()) -> dict[str, Any]:
        """By the names of the members. `views` are all of them, if some did not succeed."""
        by_name = {view.member.name: view.execution for view in views or [view for view, _ in outputs]}
        found: dict[str, Any] = {}
        for view, data in outputs:
            name, what = view.member.name, f"result of {view.execution.id!r}"
            annotation = self._result(view.execution, by_name.get(f"{name}[0]"))
            found[name] = self._values.decode(data, annotation, what)
        return found

    def _result(self, execution: Execution, item: Execution | None = None) -> Any:
        """What its workflow declares to return, if this app knows it. `item` is the first that was mapped, if it gives
        the results of a map."""
        if execution.workflow == GATHER and item is not None:
            return gathered(self._result(item))
        try:
            return self._registry.get(execution.workflow, execution.version).arguments.result
        except UnknownWorkflow:
            return Any

    async def _end_of(self, flow_id: str) -> tuple[Flow, Summary] | Outputs:
        """How it ended; or what its members gave, if all of them succeeded here and that is known."""
        fresh = self._waiters.is_fresh(self.namespace, flow_id)
        while True:
            future: asyncio.Future[Outputs | None] = asyncio.get_running_loop().create_future()
            # Wait before looking: an end between the two wakes, too.
            waiting = self._waiting.setdefault(flow_id, set())
            waiting.add(future)
            try:
                if not fresh:
                    flow, summary = await self._waiters.patiently(lambda: self._heads(flow_id))
                    if summary.outcome is not None:
                        return flow, summary
                fresh = False
                if self._looking is None:
                    self._looking = asyncio.create_task(self._look_for_ends(), name="outlast flows")
                with self._waiters.beside((self.namespace, flow_id), future):
                    outputs = await future
                if outputs is not None:
                    return outputs
            finally:
                waiting.discard(future)
                if not waiting and self._waiting.get(flow_id) is waiting:
                    del self._waiting[flow_id]

    def _ended(self, namespace: str, flow_id: str, outputs: Outputs | None = None) -> None:
        """By a commit of this process: known at once."""
        self._waiters.touched(namespace, flow_id)
        if namespace == self.namespace:
            for future in self._waiting.get(flow_id, ()):
                if not future.done():
                    future.set_result(outputs)

    async def _look_for_ends(self) -> None:
        """Ends of other processes: one look for all that are waited for, when somebody rings, and as the net."""
        timing = self._engine.timing
        while True:
            rings, began_s = self._waiters.rings, timing.time_s()
            apart: dict[str, list[str]] = {}
            for name in self._waiting:
                apart.setdefault(self._shard(name), []).append(name)
            # Server by server: one that is away keeps nobody from hearing of the ends on the others.
            looks = await asyncio.gather(*map(self._look, apart.values()), return_exceptions=True)
            for error in looks:
                if isinstance(error, Exception):
                    what = "looking for the ends of flows failed, and is tried again"
                    self._engine.outages.report(_log, what, error)
            # Most rings are this process's own, whose ends are known: such looks must not become its main work.
            idle_s = 0 if True in looks else min((timing.time_s() - began_s) * DISTANCE, POLL_S)
            await self._waiters.rung(rings)
            await timing.beat(max(LOOK_DISTANCE_S, idle_s))

    def _shard(self, flow_id: str) -> str:
        return "" if self._sharded is None else self._sharded.shard(self._partition(flow_id))

    async def _look(self, names: list[str]) -> bool:
        """Whether one of them has ended."""
        found_any = False
        for begin in range(0, len(names), limits.LOAD_MAX_KEYS):
            some = names[begin : begin + limits.LOAD_MAX_KEYS]
            found = await self._engine.store.load([summary_key(self.namespace, name) for name in some])
            for name, record in zip(some, found, strict=True):
                if not isinstance(record, Summary) or record.outcome is not None:
                    found_any = True
                    self._ended(self.namespace, name)
        return found_any

    # ---- telling --------------------------------------------------------------------------------------------------

    async def cancel(self, flow_id: str, policy: Policy, reason: str, *, wait: bool) -> FlowCancel:
        if policy not in get_args(Policy):
            raise InvalidInput(f'policy must be "cancel_all", "cancel_pending" or "flow_only", not {policy!r}')
        saying.cancelled(reason)  # refuses a reason that cannot be kept
        change_id, chosen = self._engine.entropy.new_id(), CancelPolicy(policy)

        def decided(view: FlowView) -> Changes | Refusal:
            return stopped(view, policy=chosen, reason=reason, grace_ms=GRACE_MS, change_id=change_id)

        already = await self._told(flow_id, decided)
        if chosen is CancelPolicy.FLOW_ONLY or already:
            if wait:
                await self._end_of(flow_id)
            return await self._cancelled_so_far(flow_id, already=already)
        cancelling = asyncio.create_task(cancel_members(self._engine, self.namespace, flow_id), name="outlast cancel")
        self._background.add(cancelling)
        cancelling.add_done_callback(self._background.discard)
        if wait:
            await asyncio.shield(cancelling)
            await self._end_of(flow_id)
        return await self._cancelled_so_far(flow_id, already=False)

    async def _cancelled_so_far(self, flow_id: str, *, already: bool) -> FlowCancel:
        views = await self._members(flow_id)
        cancelled = sum(view.execution.status is Status.CANCELLED for view in views)
        flow, _ = await self._heads(flow_id)
        left = 0
        if flow.policy is not CancelPolicy.FLOW_ONLY:
            left = sum(not view.execution.status.terminal for view in views)
        return FlowCancel(cancelled=cancelled, scheduled=left, already=already)

    async def retry(self, flow_id: str) -> None:
        change_id = self._engine.entropy.new_id()
        await self._told(flow_id, lambda view: reopening(view, change_id=change_id))
        # Whoever retried it tells its members something next, or looks at them: they are to be open by then.
        opening = self._engine.outbox.carrying(self.namespace, whole_of(flow_id))
        if opening:
            await asyncio.wait(opening, timeout=REOPENED_S)

    async def _told(self, flow_id: str, decided: Callable[[FlowView], Changes | Refusal]) -> bool:
        """Until it is settled. True if it was so before."""
        self._waiters.touched(self.namespace, flow_id)

        async def look(_: Verdict | None) -> Changes | Refusal:
            return decided(await self._engine.flows.view(self.namespace, flow_id))

        answer = await self._engine.settle(f"flow {flow_id!r}", look)
        if not isinstance(answer, Refusal):
            return False
        if answer.code is Code.ALREADY:
            return True
        if answer.code is Code.UNKNOWN:
            raise FlowNotFound(self.namespace, flow_id)
        raise FlowRefused(flow_id, answer.code, answer.message)
