"""Carries the ends of members to those that wait for them, and to their flow.

What ended owes an answer to each of its edges; that debt is a record of the outbox, written in the commit of the end.
Here it is paid: first every edge gets its answer, then each member that was answered counts what has come. The first
move touches no row that another end touches, and the counting of one member is done once at a time in this process, so
ten thousand that end at once do not fight for a row. Repeating any of it, anywhere, is harmless.

A skip is an end like any other: it owes answers too. So a chain of skips is as deep as it likes, and nothing recurses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from outlast.codec.failures import decode_failure
from outlast.codec.values import Values
from outlast.errors import CodecError, CodecHookFailed, LimitExceeded
from outlast.machine import facts
from outlast.machine.amendments import acknowledging
from outlast.machine.changes import Changes, Matches
from outlast.machine.decide_flow import FlowView
from outlast.machine.decide_member import (
    Advanced,
    Ended,
    MemberView,
    advance,
    answered_edge,
    edge_of,
    ended_unsettled,
    finished,
    makes_up_for_upstreams,
    needs_upstreams,
    siblings_settled,
    tallied,
    waits,
    wants_input,
)
from outlast.machine.joins import Answer
from outlast.machine.plan_end import Downstream, plan_end, still_ended
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import (
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
    flow_key,
    member_key,
    summary_key,
    whole_of,
)
from outlast.model.outbox import Delivery
from outlast.model.partition import partition_of
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import Key, Record
from outlast.model.record import settled as time_of
from outlast.model.status import Status
from outlast.runtime.flows.composing import MadeOf, composed, load_all
from outlast.runtime.flows.downstream_cache import Behind, DownstreamCache, Outputs, Waiting, are_few, are_simple

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine
    from outlast.store.port import Verdict

PAGE = 500
"""So many edges are answered at a time."""
EDGES = 1_000
"""So many answers are counted at a time."""
SIBLINGS_TOGETHER = 16
SPARE_LOOKS_MAX = 100
"""Looks at a flow that changes all the time, before the cancel of a sibling is left for later."""
CAUSE_MAX_CHARS = 500
FAILURES_TOLD = 10
FAILURE_MAX_CHARS = 200
CLOSE_S = 1.0


class Found(Struct, frozen=True, gc=False):
    """What is behind an end: the flow, the members that wait for it (None if they are many, or wait for others as
    well), and what the end left."""

    flow: Flow
    waiting: list[Waiting] | None
    left: bytes | None


class Flows:
    """Of one engine. `values` is the app's codec, if this process has it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.values: Values | None = None
        self.downstreams = DownstreamCache(self.behind)
        self.on_end: Callable[[str, str, Outputs | None], None] | None = None
        """Told the namespace and id of every flow that ended by a commit of this process, and what its members gave if
        that is known."""
        self._counting: dict[Key, asyncio.Task[Advanced | None]] = {}
        self._counting_next: dict[Key, asyncio.Task[Advanced | None]] = {}

    async def close(self) -> None:
        """Nothing can be committed any more. Counts go on without whoever asked for them: none is left behind."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + CLOSE_S
        while counts := [*self._counting.values(), *self._counting_next.values()]:
            left_s = max(0.0, ends_s - loop.time())
            _, late = await asyncio.wait(counts, timeout=left_s)
            for count in late:
                count.cancel()
            await asyncio.gather(*counts, return_exceptions=True)
            if not left_s:
                return

    # ---- an end ---------------------------------------------------------------------------------------------------

    async def member_ended(self, delivery: Delivery, fact: facts.MemberEnded) -> bool:
        """Pay what an end owes. True if the debt is struck off by it."""
        end = Ended(delivery.namespace, delivery.target, fact.status, fact.generation)
        partition = self._partition(end.namespace, end.flow)
        page = first = await self._downstreams(end, None)
        found = await self._look_behind(end, first)
        if found is None:
            return False  # purged
        open_ = found.flow.state is FlowState.OPEN
        if open_ and found.waiting is not None and await self._answer_at_once(partition, end, found, delivery):
            if not first:
                await self.tally(end.namespace, end.flow)
            return True
        # Before anything is woken by it: whoever ends last must find all other ends counted.
        await self._engine.group.commit(answered_edge(partition, end, whole_of(end.flow)))
        going_on = False
        while page and open_:
            going_on = await self._answer(partition, end, page) or going_on
            page = await self._downstreams(end, page[-1].key) if len(page) == PAGE else []
        if not going_on:
            await self.tally(end.namespace, end.flow)
        return False

    async def behind(self, execution: Execution) -> Behind | None:
        """What waits for the end of a member: its flow and the members behind it, if these are few and wait for nothing
        else. None if nothing does, or it is not that simple."""
        end = Ended(execution.namespace, execution.id, Status.SUCCEEDED, execution.generation)
        page = await self._downstreams(end, None)
        found = await self._look_behind(end, page) if page and are_few(page) else None
        if found is None or found.waiting is None or found.flow.state is not FlowState.OPEN:
            return None
        return Behind(found.flow, found.waiting)

    async def _look_behind(self, end: Ended, page: list[Edge]) -> Found | None:
        """All that an end with few downstreams needs to know, in one look; None if its flow was purged."""
        namespace, partition = end.namespace, self._partition(end.namespace, end.flow)
        role = Role.OUTPUT if end.status is Status.SUCCEEDED else Role.FAILURE
        few = page if are_few(page) else []
        keys = [flow_key(namespace, end.flow), payload_key(namespace, end.id, end.generation, role)]
        for one in few:
            keys += (execution_key(namespace, one.downstream), member_key(namespace, one.downstream))
            keys += (payload_key(namespace, one.downstream, 1, role) for role in (Role.TEMPLATE, Role.INPUT))
        flow, left, *found = await self._engine.store.load(keys)
        waiting: list[Waiting] = []
        for e, member, template, given in zip(found[::4], found[1::4], found[2::4], found[3::4], strict=True):
            if isinstance(e, Execution) and isinstance(member, Member):
                made_of = template if member.binds else given
                payload = made_of if isinstance(made_of, Payload) else None
                waiting.append(Waiting(MemberView(partition, e, member), payload))
        simple = few == page and are_simple([one.view for one in waiting], page)
        left_by_it = left.value if isinstance(left, Payload) else None
        return Found(flow, waiting if simple else None, left_by_it) if isinstance(flow, Flow) else None

    async def _downstreams(self, end: Ended, after: Key | None) -> list[Edge]:
        found = await self._engine.store.scan(Edge.KIND, (end.namespace, end.id), after=after, limit=PAGE)
        return [record for record in found if isinstance(record, Edge)]

    async def _answer(self, partition: int, end: Ended, page: list[Edge]) -> bool:
        """True if one of them goes on, so that the flow has not ended yet."""
        group = self._engine.group
        await asyncio.gather(*(group.commit(answered_edge(partition, end, one.downstream)) for one in page))
        # Of many, one look each would take longer than all the rest.
        ids = [one.downstream for one in page] if len(page) > 1 else []
        seen = {view.execution.id: view for view in await self.views(partition, end.namespace, ids)} if ids else {}
        advancing = (self.advance(end.namespace, one.downstream, seen.get(one.downstream)) for one in page)
        answers = await asyncio.gather(*advancing)
        return any(answer.answer is not Answer.ALREADY_RESOLVED for answer in answers)

    async def _answer_at_once(self, partition: int, end: Ended, found: Found, delivery: Delivery) -> bool:
        """The usual case of few downstreams that wait for nothing else: their answers, what these mean, and the debt
        that is struck off, in one commit. False if somebody else was faster."""
        downstreams = [await self.prepared(end, one, found.left) for one in found.waiting or ()]
        plan = plan_end(end, downstreams, first=still_ended(partition, end))
        return (await self._engine.commit(acknowledging(plan.changes, delivery))).applied

    async def prepared(self, end: Ended, waiting: Waiting, left: bytes | None) -> Downstream:
        """A member that waits for this end alone, with its input if that is made of what the end left."""
        view, change_id = waiting.view, self._engine.entropy.new_id()
        edges, given = [edge_of(end, view.execution.id)], waiting.given
        if not wants_input(view, edges):
            return Downstream(view, change_id)
        data, unusable = await self._input(view, edges, None if given is None else MadeOf(given.value, left))
        return Downstream(view, change_id, data, unusable)

    # ---- a member that was answered -------------------------------------------------------------------------------

    async def advance(self, namespace: str, execution_id: str, seen: MemberView | None = None) -> Advanced:
        """Count what has come, until nothing more has. One count of a member at a time: whoever comes while one is
        under way shares the next, which sees all that is there by now. `seen` is the member as it was behind what has
        come: a count that begins at once need not look again."""
        key = member_key(namespace, execution_id)
        first = None if key in self._counting else seen
        found = await self._once_more(key, lambda: self._advance(namespace, execution_id, first))
        return found or Advanced(Answer.ALREADY_RESOLVED)

    async def _once_more(self, key: Key, count: Callable[[], Coroutine[Any, Any, Advanced | None]]) -> Advanced | None:
        running = self._counting.get(key)
        if running is None:
            task = self._counting[key] = asyncio.create_task(count(), name="outlast flow")
            task.add_done_callback(lambda _: self._counting.pop(key, None))
            task.add_done_callback(_seen_by_somebody)
            return await asyncio.shield(task)
        following = self._counting_next.get(key)
        if following is None:
            following = self._counting_next[key] = asyncio.create_task(self._behind(key, running, count))
            following.add_done_callback(_seen_by_somebody)
        return await asyncio.shield(following)

    async def _behind(
        self,
        key: Key,
        running: asyncio.Task[Advanced | None],
        count: Callable[[], Coroutine[Any, Any, Advanced | None]],
    ) -> Advanced | None:
        await asyncio.wait((running,))
        self._counting_next.pop(key, None)
        return await self._once_more(key, count)

    async def _advance(self, namespace: str, execution_id: str, seen: MemberView | None) -> Advanced | None:
        partition, advanced = self._partition(namespace, execution_id), None

        async def decided(_: Verdict | None) -> Changes | None:
            nonlocal seen, advanced
            views = [seen] if seen is not None else await self.views(partition, namespace, [execution_id])
            seen = advanced = None
            for view in views:
                edges = await self._edges(namespace, execution_id, view.member.drained) if waits(view) else []
                made, why = await self._input(view, edges) if wants_input(view, edges) else (None, None)
                change_id = self._engine.entropy.new_id()
                advanced = advance(view, edges, change_id=change_id, input=made, unusable=why)
            return None if advanced is None else advanced.changes

        while await self._engine.settle(f"member {execution_id!r}", decided) is not None:
            assert advanced is not None
            if advanced.answer is not Answer.PENDING:  # else there may be more to count
                if advanced.spares:
                    await self.spare_siblings(namespace, execution_id)
                break
        return advanced

    async def _input(
        self, view: MemberView, edges: list[EdgeAnswer], made_of: MadeOf | None = None
    ) -> tuple[bytes | None, str | None]:
        """The input that is made of its upstreams' outputs, or why there can be none. `made_of` is what that takes, if
        it waits for one end alone."""
        try:
            return await composed(self._engine.store, self.values, view, edges, made_of), None
        except CodecHookFailed:
            raise  # its key service may be away: later
        except (CodecError, LimitExceeded) as error:
            return None, f"input: {error}"[:CAUSE_MAX_CHARS]

    async def _edges(self, namespace: str, execution_id: str, drained: str) -> list[EdgeAnswer]:
        after = edge_answer_key(namespace, execution_id, drained) if drained else None
        found = await self._engine.store.scan(EdgeAnswer.KIND, (namespace, execution_id), after=after, limit=EDGES)
        return [record for record in found if isinstance(record, EdgeAnswer)]

    async def unanswered(self, namespace: str, execution_id: str, upstreams: tuple[str, ...]) -> list[Ended]:
        """The upstreams that have ended, and whose edge has no answer."""
        missing: list[Ended] = []
        for begin in range(0, len(upstreams), PAGE):
            some = upstreams[begin : begin + PAGE]
            answers = await self._engine.store.load([edge_answer_key(namespace, execution_id, one) for one in some])
            silent = [one for one, answer in zip(some, answers, strict=True) if answer is None]
            found = await self._load([execution_key(namespace, one) for one in silent])
            missing += [
                Ended(namespace, one.id, one.status, one.generation)
                for one in found
                if isinstance(one, Execution) and one.status.terminal
            ]
        return missing

    async def views(self, partition: int, namespace: str, ids: list[str]) -> list[MemberView]:
        keys = [key for one in ids for key in (execution_key(namespace, one), member_key(namespace, one))]
        found = await self._load(keys)
        return [
            MemberView(partition, execution, member)
            for execution, member in zip(found[::2], found[1::2], strict=True)
            if isinstance(execution, Execution) and isinstance(member, Member)
        ]

    # ---- siblings -------------------------------------------------------------------------------------------------

    async def spare_siblings(self, namespace: str, execution_id: str) -> bool:
        """Cancel the upstreams of a member that it no longer needs, if nobody else does, and what only those waited for
        that are not to run by that. True if there was a need. After a crash it is the same again: what is cancelled by
        now still shows the way up.

        Not if the flow is retried meanwhile: then others may need them once more. What is left is looked at later."""
        partition = self._partition(namespace, execution_id)
        [member] = await self._engine.store.load([member_key(namespace, execution_id)])
        if not isinstance(member, Member) or member.siblings_at is None:
            return False
        above, passed = decode_ids(member.after), set[str]()
        while above:
            given_up = await self._spare_all(partition, member, above)
            if given_up is None:
                return False
            new = [view for view in given_up if view.execution.id not in passed]
            passed.update(view.execution.id for view in new)
            above = tuple(dict.fromkeys(one for view in new for one in decode_ids(view.member.after)))
        await self._engine.commit(siblings_settled(partition, member, self._engine.entropy.new_id()))
        return True

    async def _spare_all(self, partition: int, member: Member, upstreams: tuple[str, ...]) -> list[MemberView] | None:
        """Those of them that wait for their own upstreams no more; None if that cannot be told now."""
        namespace, left = member.namespace, list(upstreams)
        given_up, done = list[MemberView](), list[bool]()
        while left:
            # The last first: none that waits for its turn is to get it by the cancel of the one before.
            views = await self.views(partition, namespace, left[: -SIBLINGS_TOGETHER - 1 : -1])
            some = _not_in_turn(views)
            left[-SIBLINGS_TOGETHER:] = [view.execution.id for view in reversed(views[len(some) :])]
            done += await asyncio.gather(*(self._spare(namespace, view.execution.id, member) for view in some))
            unsettled = [view.execution.id for view in some if view.member.settled is Settled.OPEN]
            given_up += [view for view in await self.views(partition, namespace, unsettled) if ended_unsettled(view)]
        return given_up if all(done) else None

    async def _spare(self, namespace: str, upstream: str, member: Member) -> bool:
        """False if that cannot be told now."""
        keys = [flow_key(namespace, member.flow), execution_key(namespace, upstream)]
        owed = Matches(member.key, {"change_id": member.change_id, "siblings_at": time_of(member.siblings_at)})
        for _ in range(SPARE_LOOKS_MAX):
            flow, execution = await self._engine.store.load(keys)
            if not isinstance(flow, Flow) or not isinstance(execution, Execution) or execution.status.terminal:
                return True
            if flow.state is FlowState.REOPENING:
                return False
            if await self._needed(namespace, upstream):
                return True
            reason = f"{member.name!r} no longer needs it"
            fact = facts.CancelRequested(change_id=self._engine.entropy.new_id(), reason=reason)
            as_it_was = Matches(flow.key, {"state": flow.state, "revision": flow.revision})
            told = await self._engine.tell(namespace, upstream, fact, seen=execution, only_if=(owed, as_it_was))
            if told.verdict is None or told.verdict.refused_by != as_it_was:
                return True
        return False

    async def _needed(self, namespace: str, upstream: str) -> bool:
        """Whether another member still waits for it."""
        partition, after = self._partition(namespace, upstream), None
        while True:
            page = await self._engine.store.scan(Edge.KIND, (namespace, upstream), after=after, limit=PAGE)
            ids = [one.downstream for one in page if isinstance(one, Edge)]
            if any(map(needs_upstreams, await self.views(partition, namespace, ids))):
                return True
            if len(page) < PAGE:
                return False
            after = page[-1].key

    # ---- the flow itself ------------------------------------------------------------------------------------------

    async def tally(self, namespace: str, flow_id: str) -> None:
        """Count the ends of a flow's members, and end it with the last."""

        async def count() -> None:
            await self._tally(namespace, flow_id)

        await self._once_more(summary_key(namespace, flow_id), count)

    async def _tally(self, namespace: str, flow_id: str) -> None:
        async def decided(_: Verdict | None) -> Changes | None:
            view = await self.view(namespace, flow_id)
            flow, summary = view.flow, view.summary
            if flow is None or summary is None:
                return None
            edges = await self._edges(namespace, whole_of(flow_id), summary.drained)
            change_id = self._engine.entropy.new_id()
            changes = tallied(view.partition, flow, summary, edges, change_id)
            if changes is None and summary.ended >= summary.members and summary.outcome is None:
                made_up_for = await self._made_up_for(namespace, flow_id)
                changes = finished(view.partition, flow, summary, made_up_for=made_up_for, change_id=change_id)
            return changes

        while (counted := await self._engine.settle(f"flow {flow_id!r}", decided)) is not None:
            if counted.changes.rings:
                self.ended(namespace, flow_id)
                break

    def ended(self, namespace: str, flow_id: str, outputs: Outputs | None = None) -> None:
        """It has, by a commit of this process."""
        self.downstreams.forget(namespace, flow_id)
        if self.on_end is not None:
            self.on_end(namespace, flow_id, outputs)

    async def _made_up_for(self, namespace: str, flow_id: str) -> bool:
        """Whether behind each member that did not succeed there is one whose join was satisfied all the same, perhaps
        behind others that never ran: as each of those must be made up for too, it is enough to look one step behind."""
        partition = self._partition(namespace, flow_id)
        unsuccessful, covered = set[str](), set[str]()
        async for page in self.roster(namespace, flow_id):
            for view in await self.views(partition, namespace, page):
                if view.execution.status is not Status.SUCCEEDED:
                    unsuccessful.add(view.execution.id)
                if makes_up_for_upstreams(view):
                    covered.update(decode_ids(view.member.after))
        for one in unsuccessful - covered:
            # Of a map that broke off, who joins the items does not know them yet: their edges do.
            edges = await self._engine.store.scan(Edge.KIND, (namespace, one), limit=PAGE)
            behind = [edge.downstream for edge in edges if isinstance(edge, Edge)]
            if not any(map(makes_up_for_upstreams, await self.views(partition, namespace, behind))):
                return False
        return True

    async def roster(self, namespace: str, flow_id: str) -> AsyncIterator[list[str]]:
        """The ids of a flow's members, a page at a time."""
        after: Key | None = None
        while True:
            page = await self._engine.store.scan(Edge.KIND, (namespace, whole_of(flow_id)), after=after, limit=PAGE)
            if page:
                yield [one.downstream for one in page if isinstance(one, Edge)]
            if len(page) < PAGE:
                return
            after = page[-1].key

    async def is_another(self, seen: Flow) -> bool:
        """Whether it was stopped, retried or purged since."""
        now, _ = await self.heads(seen.namespace, seen.id)
        return now is None or (now.state, now.revision) != (seen.state, seen.revision)

    async def view(self, namespace: str, flow_id: str) -> FlowView:
        return FlowView(self._partition(namespace, flow_id), *await self.heads(namespace, flow_id))

    async def heads(self, namespace: str, flow_id: str) -> tuple[Flow | None, Summary | None]:
        flow, summary = await self._engine.store.load([flow_key(namespace, flow_id), summary_key(namespace, flow_id)])
        assert flow is None or isinstance(flow, Flow)
        assert summary is None or isinstance(summary, Summary)
        return flow, summary

    async def failures(self, views: list[MemberView], values: Values) -> dict[str, str]:
        """How those ended that did not succeed; what was raised by the first of them."""
        failed = [view.execution for view in views if view.execution.status is Status.FAILED][:FAILURES_TOLD]
        raised: dict[str, str] = {}
        keys = [payload_key(e.namespace, e.id, e.generation, Role.FAILURE) for e in failed]
        for e, record in zip(failed, await self._load(keys), strict=True):
            if isinstance(record, Payload):
                failure = decode_failure(values.unseal(record.value, f"failure of {e.id!r}"))
                raised[e.id] = f"{failure.type.rpartition(':')[2]}: {failure.message}"[:FAILURE_MAX_CHARS]
        return {
            view.member.name: f"{view.execution.status}: {raised.get(view.execution.id, view.execution.cause)}"
            for view in views
            if view.execution.status is not Status.SUCCEEDED
        }

    # ---- odds and ends --------------------------------------------------------------------------------------------

    async def _load(self, keys: list[Key]) -> list[Record | None]:
        return await load_all(self._engine.store, keys)

    def _partition(self, namespace: str, execution_id: str) -> int:
        return partition_of(namespace, execution_id, self._engine.store.partitions)


def _not_in_turn(views: list[MemberView]) -> list[MemberView]:
    """The first of them, up to one that another of them has its turn behind."""
    before: set[str] = set()
    for number, view in enumerate(views):
        if view.execution.id in before:
            return views[:number]
        if view.member.on_failure is OnFailure.TURN:
            before.update(decode_ids(view.member.after))
    return views


def _seen_by_somebody(count: asyncio.Task[Any]) -> None:
    """Whoever waits for it hears how it failed; if all have gone, what they were to pay is owed, and no more."""
    if not count.cancelled():
        count.exception()
