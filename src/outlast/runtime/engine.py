"""The engine carries facts: it looks at the execution, lets the machine decide, and commits what it answered.

If the store refuses because something changed in between, it looks again. So every fact ends in an answer: applied,
refused by the machine, or refused by the record that was there first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec import Struct, structs

from outlast.codec.failures import Failure
from outlast.errors import OutlastError, StoreUnavailable
from outlast.machine.amendments import Debt, acknowledging, with_guards
from outlast.machine.changes import (
    Absent,
    Changes,
    Code,
    GoneOrPast,
    Guard,
    Refusal,
    TimeAhead,
    TimeReached,
    View,
    execution_after,
    outline_after,
)
from outlast.machine.decide import decide
from outlast.machine.facts import AnyFact, CancelRequested, ChildCompleted, DeferredResolved, EventSent, Start
from outlast.machine.upkeep import debt_postponed
from outlast.model.execution import Execution, execution_key
from outlast.model.outbox import Delivery
from outlast.model.partition import partition_of
from outlast.model.record import Key, Record
from outlast.observe.telemetry import Telemetry
from outlast.runtime.commit_events import tell_of_commit
from outlast.runtime.entropy import Entropy, SystemEntropy
from outlast.runtime.family import with_children
from outlast.runtime.flows.carrying import Flows
from outlast.runtime.group_commit import GroupCommit
from outlast.runtime.outages import Outages
from outlast.runtime.outbox import Outbox
from outlast.runtime.patience import Pause
from outlast.runtime.rooms import Rooms
from outlast.runtime.shared_views import SharedViews
from outlast.runtime.timing import LoopTiming, Timing
from outlast.store.port import Patient, Store, Verdict

T = TypeVar("T")

LOOKS_TOGETHER = 5
"""So often a cancel is tried together with the children's; if they do not hold still, they follow."""
LOOKS_MAX = 1_000
"""Looking again so often in vain is no contention any more; it is reported instead of going on for ever."""


ANY_TIME = (EventSent, DeferredResolved, ChildCompleted)
"""Said at any time: what it comes to may depend on the time, and is decided anew by the store's."""


class Told(Struct, frozen=True, gc=False):
    """What became of a fact.

    `refusal` is the machine's; `instead` is the record that was there first (an event or a deferred with that key).
    Neither: it is applied. `claimed` is what a start by a worker holds from then on.
    """

    before: Execution | None
    refusal: Refusal | None = None
    instead: Record | None = None
    verdict: Verdict | None = None
    claimed: Execution | None = None

    @property
    def applied(self) -> bool:
        return self.refusal is None and self.instead is None


class Committed(Struct, frozen=True, gc=False):
    """Changes that `settle` has committed, and the store's time of that."""

    changes: Changes
    verdict: Verdict
    at: int


class Engine:
    """One per process and store."""

    def __init__(
        self,
        store: Store,
        *,
        entropy: Entropy | None = None,
        timing: Timing | None = None,
        batch_max: int = 500,
        patience_s: float = 30.0,
        pause: Pause | None = None,
        carries: bool = False,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.store = store
        self.telemetry = telemetry or Telemetry()
        self.entropy = entropy or SystemEntropy()
        self.timing: Timing = timing or LoopTiming()
        self.places: dict[str, Key | None] = {}
        """Where walks over all records stand, by name."""
        self.outages = Outages(self.telemetry, self.timing.time_s)
        if isinstance(store, Patient):
            store.on_away = self.outages.explain
        self.group = GroupCommit(
            store,
            batch_max=batch_max,
            patience_s=patience_s,
            pause=pause or self.timing.sleep,
            time_s=self.timing.time_s,
            outages=self.outages,
        )

        self._views = SharedViews(self.look)
        self.flows = Flows(self)
        self.outbox = Outbox(self)
        self.rooms: Rooms | None = None
        """Of this process's worker, if what is started here, or follows on an end here, may begin here at once."""
        self.carries = carries
        """Whether what a commit owes to others is carried at once, and not left to the reconciler."""

    async def close(self) -> None:
        self.flows.downstreams.close()
        await self.outbox.close()
        await self.group.close()
        await self.flows.close()

    async def commit(self, changes: Changes, *, execution: Execution | None = None) -> Verdict:
        """Commit, and carry at once what the commit owes to others. `execution`: whom it is about, as it was."""
        verdict = await self.group.commit(changes)
        if verdict.applied:
            self.post(changes, execution)
        return verdict

    async def commit_timed(self, changes: Changes) -> tuple[Verdict, int]:
        """… and the store's time of that commit."""
        verdict, committed_at = await self.group.commit_timed(changes)
        if verdict.applied:
            self.post(changes)
        return verdict, committed_at

    def post(self, changes: Changes, execution: Execution | None = None, failure: Failure | None = None) -> None:
        """What was committed is carried to others, if they are owed something, and told to observers. `execution` is
        whom it is about, as it was before; `failure` is what its code raised."""
        if len(changes.writes) > 1:
            if self.carries:
                self.outbox.post(changes)
            # A change with a shape is a start, a step or a success: most are, and most observers hear of none.
            if self.telemetry.reads_commits and (changes.shape is None or self.telemetry.hears_of_success):
                tell_of_commit(self.telemetry, changes, execution, failure)

    def view(self, namespace: str, execution_id: str, execution: Execution | None) -> View:
        return View(partition_of(namespace, execution_id, self.store.partitions), execution)

    async def look(self, namespace: str, execution_id: str) -> Execution | None:
        """The execution as it is now."""
        [record] = await self.store.load([execution_key(namespace, execution_id)])
        assert record is None or isinstance(record, Execution)
        return record

    async def tell(
        self,
        namespace: str,
        execution_id: str,
        fact: AnyFact,
        *,
        seen: Execution | None = None,
        acks: Debt | None = None,
        only_if: Sequence[Guard] = (),
    ) -> Told:
        """Tell the machine a fact about an execution, until it is settled.

        `seen` saves the first look. `acks` is the debt that the fact was: struck off with it, where both live in one
        partition. `only_if` is what made somebody say it, of the same partition: the fact is refused if that holds no
        more, however late it is said."""
        shared = self._views.enter(namespace, execution_id)
        since = shared.asked
        if seen is not None and not shared.is_known:
            shared.know(seen)
        try:
            await self._now()  # before the view is asked: nothing may come between that and the commit
            execution, is_current = await shared.now(since)
            for looks in range(LOOKS_MAX):
                view, now = self.view(namespace, execution_id, execution), self.group.now
                answer = decide(view, fact, now)
                if isinstance(answer, Refusal):
                    if is_current:
                        return Told(execution, refusal=answer)
                    execution, is_current = await shared.settled()
                    continue
                if isinstance(fact, CancelRequested) and execution is not None and looks < LOOKS_TOGETHER:
                    answer = await self.cascade(view, execution, fact, answer, now)
                if acks is not None:
                    answer = acknowledging(answer, acks)
                if only_if:
                    answer = with_guards(answer, only_if)
                verdict = await shared.verdict(execution, answer, self.group.commit(answer), now)
                if verdict.applied:
                    self.post(answer, execution)
                    return Told(execution, verdict=verdict)
                if acks is not None and verdict.refused_by is not None and verdict.refused_by.key == acks.key:
                    return Told(execution, verdict=verdict)  # somebody else carried it
                if verdict.refused_by in only_if:
                    return Told(execution, refusal=Refusal(Code.CONFLICT, "is not what it was"), verdict=verdict)
                if _taken(verdict):
                    return Told(execution, instead=verdict.current, verdict=verdict)
                clock = verdict.refused_by
                if isinstance(clock, TimeReached | TimeAhead | GoneOrPast) and not isinstance(fact, ANY_TIME):
                    return Told(execution, refusal=_not_due(clock), verdict=verdict)
                execution, is_current = await shared.now(since)
        finally:
            self._views.leave(namespace, execution_id, shared)
        raise StoreUnavailable(f"execution {execution_id!r} changed {LOOKS_MAX:,} times while it was being changed")

    async def tell_all(self, said: Sequence[tuple[Execution, AnyFact]]) -> list[bool]:
        """Tell many facts at once, each upon what was seen of its execution, and say which were applied. About the
        others nothing is known yet: they are to be told one by one (`tell`)."""
        now = await self._now()
        answers: list[Changes | None] = []
        for execution, fact in said:
            try:
                answer = decide(self.view(execution.namespace, execution.id, execution), fact, now)
            except OutlastError:
                answer = None  # what is wrong with it is said when it is told by itself
            answers.append(answer if isinstance(answer, Changes) else None)
        asked = [self.group.commit(answer) for answer in answers if answer is not None]
        verdicts = iter(await asyncio.gather(*asked, return_exceptions=True))
        done: list[bool] = []
        for (execution, _), answer in zip(said, answers, strict=True):
            verdict = None if answer is None else next(verdicts)
            applied = isinstance(verdict, Verdict) and verdict.applied
            if applied and answer is not None:
                self.post(answer, execution)
            done.append(applied)
        return done

    async def settle(self, what: str, decided: Callable[[Verdict | None], Awaitable[Changes | T]]) -> Committed | T:
        """Look, decide, commit, and look again as long as somebody else was faster. `decided` looks and decides; it is
        given the verdict that refused its last answer. An answer that is no changes settles the matter as well."""
        refused = None
        for _ in range(LOOKS_MAX):
            answer = await decided(refused)
            if not isinstance(answer, Changes):
                return answer
            verdict, at = await self.commit_timed(answer)
            if verdict.applied:
                return Committed(answer, verdict, at)
            refused = verdict
        raise StoreUnavailable(f"{what} changed {LOOKS_MAX:,} times while it was being changed")

    async def cascade(
        self, view: View, execution: Execution, fact: CancelRequested, answer: Changes, now: int
    ) -> Changes:
        """A cancel that ends a parent at once takes its children along."""
        after = outline_after(view, answer)
        if not execution.has_children or after is None or not after.status.terminal:
            return answer
        return await with_children(self, execution, fact, answer, now)

    async def begin(self, fact: Start) -> Told:
        """Start an execution: without a look first, because most ids are new.

        If the fact names a worker, `Told.claimed` is the execution that it holds now. It is None where the id was known
        already, or a gate was shut: then a start is made without the claim. `IdHeld`, and that soon, where somebody
        else's transaction holds the id: who claims does not wait for it (`begin_held`).
        """
        answer, asked = self.propose(fact)
        verdict, committed_at = await asked
        return self.begun(fact, answer, verdict, committed_at) or await self.begun_before(fact, verdict)

    async def begin_all(self, starts: Sequence[Start]) -> list[Told]:
        """Start many, none of them by a worker."""
        answers: list[Changes] = []
        asked: list[asyncio.Future[tuple[Verdict, int]]] = []
        for number, fact in enumerate(starts):
            if number and number % self.group.batch_max == 0:
                await asyncio.sleep(0)  # the first are on their way to the store while the next are decided
            answer, verdict = self.propose(fact)
            answers.append(answer)
            asked.append(verdict)
        told: list[Told | Coroutine[Any, Any, Told]] = []
        for fact, answer, (verdict, at) in zip(starts, answers, await _all(asked), strict=True):
            told.append(self.begun(fact, answer, verdict, at) or self.begun_before(fact, verdict))
        known = iter(await asyncio.gather(*(one for one in told if not isinstance(one, Told))))
        return [one if isinstance(one, Told) else next(known) for one in told]

    # The pieces of `begin`, for who starts much: each coroutine less is time for the others.

    def propose(self, fact: Start) -> tuple[Changes, asyncio.Future[tuple[Verdict, int]]]:
        """What a start of a new id comes to, on its way to the store: its verdict, and the time of that."""
        answer = decide(self.view(fact.namespace, fact.id, None), fact, self.group.now)
        assert isinstance(answer, Changes)
        return answer, self.group.commit_timed(answer)

    def begun(self, fact: Start, answer: Changes, verdict: Verdict, committed_at: int) -> Told | None:
        """What became of it; None if something of that id is known already (`begun_before`), or a gate was shut. There
        is nothing to post: a start owes nobody anything."""
        if not verdict.applied:
            return None
        if fact.worker is None:
            return Told(None, verdict=verdict)
        if verdict.again:
            return None
        return Told(None, verdict=verdict, claimed=execution_after(View(answer.partition, None), answer, committed_at))

    async def begun_before(self, fact: Start, verdict: Verdict) -> Told:
        """What became of a start that was refused, or whose commit was repeated."""
        if verdict.applied:
            return Told(None, verdict=verdict, claimed=await self._still_held(fact))
        apart = fact if fact.worker is None else structs.replace(fact, worker=None)
        return await self.tell(fact.namespace, fact.id, apart)

    async def _still_held(self, fact: Start) -> Execution | None:
        """The reply of its commit was lost: when it began is in the record, if the worker holds it still."""
        found = await self.look(fact.namespace, fact.id)
        return found if found is not None and found.claim_id == fact.change_id else None

    async def begin_held(self, fact: Start) -> Told:
        """Start an execution whose id was found to be held: without the claim, once that transaction has ended."""
        apart = structs.replace(fact, worker=None)
        answer = decide(self.view(fact.namespace, fact.id, None), apart, self.group.now)
        assert isinstance(answer, Changes)
        verdict = await self.group.commit_aside(answer)
        if not verdict.applied:
            return await self.tell(fact.namespace, fact.id, apart)
        self.post(answer)
        return Told(None, verdict=verdict)

    async def deliver(self, delivery: Delivery) -> Told | None:
        """Carry an outbox record to its target, and strike it off. Repeating it is harmless."""
        return await self.outbox.deliver(delivery)

    async def strike(self, delivery: Delivery) -> None:
        """Nothing is owed any more."""
        await self.outbox.strike(delivery)

    async def postpone(self, delivery: Delivery, *, error: str, delay_ms: int) -> None:
        """A delivery that failed is tried again later, and says why."""
        await self.group.commit(debt_postponed(delivery, self.entropy.new_id(), error=error, delay_ms=delay_ms))

    async def _now(self) -> int:
        if self.group.now == 0:
            self.group.now = await self.store.now()
        return self.group.now


async def _all(asked: Sequence[asyncio.Future[T]]) -> list[T]:
    """The answers, in their order. They come together: whoever waits for the first need not be woken by each."""
    try:
        return [await one for one in asked]
    except BaseException:
        for one in asked:
            if not one.cancel() and not one.cancelled():
                one.exception()  # it was the same for many of them, and is said once
        raise


def _taken(verdict: Verdict) -> bool:
    """Whether a record of the same key was there first: an event sent before, a deferred resolved before."""
    refused_by = verdict.refused_by
    return isinstance(refused_by, Absent) and refused_by.key.kind != Execution.KIND and verdict.current is not None


def _not_due(guard: TimeReached | TimeAhead | GoneOrPast) -> Refusal:
    """By the store's clock it is not so: whoever said so was early, or somebody renewed meanwhile."""
    return Refusal(Code.NOT_DUE, f"{guard.key.kind}.{guard.field} says otherwise")
