"""The holder port in this process: facts are decided here, and committed by the engine; questions are read from the
store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from msgspec import structs

from outlast.codec.failures import Failure
from outlast.codec.values import Values
from outlast.errors import CorruptState, LeaseLost, StatementRefused, StoreUnavailable
from outlast.machine import Refusal, View, decide, facts
from outlast.machine.changes import Absent, Changes
from outlast.machine.decide_holder import tries_again
from outlast.machine.decide_start import conflict_with
from outlast.model.attempt import Attempt, attempt_key
from outlast.model.event import Event
from outlast.model.execution import Execution, execution_key
from outlast.model.journal import JournalEntry, journal_key
from outlast.model.lease import EARLY_EVENTS, Claimed, ClaimedExecution, ClaimRequest, Leases, Renewed
from outlast.model.partition import partition_of
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import settled
from outlast.model.status import Status
from outlast.runtime import family, inbox_reader, journal_reader
from outlast.runtime.engine import Engine
from outlast.runtime.flows import growth, handing_on
from outlast.runtime.holder import (
    FRAMES_PAGE,
    AsClaimed,
    BegunAnew,
    Body,
    ChildrenToAwait,
    EndOfChild,
    EndOfFlow,
    History,
    HolderQuestion,
    Look,
    LookAt,
    NewMembers,
    OldestEvent,
    ReadDeferred,
    ReadFrames,
    ReadJournal,
    ReadUpdates,
    Recorder,
    Reply,
    Terms,
    TransactionReply,
    journal_is_full,
)
from outlast.runtime.parts import Parts
from outlast.runtime.unreceived import warn_of_unreceived
from outlast.store.port import Transacted, Transacting, Verdict

T = TypeVar("T")

AGAIN_S = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0)
"""Pauses before the same is asked again of a store that does not answer."""
CLAIM_AGAIN_S = (0.01, 0.1, 1.0)

Asked = Callable[[Execution, Any], Awaitable[Any]]


class LocalHolder:
    """One per engine. `committed` hears of each change that others may wait for."""

    def __init__(self, engine: Engine, *, committed: Callable[[View, Changes], None] | None = None) -> None:
        store = engine.store
        self.engine = engine
        self.terms = Terms(url=store.url, partitions=store.partitions, transactions=store.capabilities.transactions)
        self._committed = committed
        self._answers: dict[type[HolderQuestion[Any]], Asked] = {
            ReadJournal: self._history,
            Look: self._look,
            LookAt: lambda seen, asked: engine.look(seen.namespace, asked.id),
            OldestEvent: lambda seen, asked: inbox_reader.oldest_event(store, seen, asked),
            ReadUpdates: lambda seen, asked: inbox_reader.updates(store, seen, asked),
            ReadDeferred: lambda seen, asked: inbox_reader.deferred(store, seen, asked),
            EndOfChild: lambda seen, asked: inbox_reader.child_end(engine, seen, asked),
            EndOfFlow: lambda seen, asked: inbox_reader.flow_end(engine, seen, asked),
            ChildrenToAwait: lambda seen, asked: family.waited_for(engine, seen),
            ReadFrames: lambda seen, asked: store.frames(seen.namespace, seen.id, after=asked.after, limit=FRAMES_PAGE),
            AsClaimed: self._as_claimed,
            BegunAnew: lambda seen, asked: journal_reader.begun_anew(store, seen),
        }

    @property
    def now(self) -> int:
        return self.engine.group.now

    async def time(self) -> int:
        now = await self.engine.store.now()
        self.engine.group.now = max(self.engine.group.now, now)
        return now

    # ---- leases ---------------------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Claimed:
        for delay_s in CLAIM_AGAIN_S:
            try:
                return await self.engine.store.claim(request)
            except StoreUnavailable:
                request = structs.replace(request, first=False)
                await self.engine.timing.sleep(delay_s)
        return await self.engine.store.claim(request)

    async def renew(self, worker: str, lease_ttl_ms: int) -> Renewed:
        return await self.engine.store.renew(worker, lease_ttl_ms=lease_ttl_ms)

    async def held(self, worker: str, partitions: frozenset[int]) -> Leases:
        return await self.engine.store.held(worker, partitions)

    # ---- questions ------------------------------------------------------------------------------------------------

    async def ask(self, seen: Execution, question: HolderQuestion[T]) -> T:
        return cast(T, await self._answers[type(question)](seen, question))

    async def _look(self, seen: Execution, asked: Look) -> Execution:
        fresh = await self.engine.look(seen.namespace, seen.id)
        if fresh is None or fresh.epoch != seen.epoch or fresh.status is not Status.ACTIVE:
            raise LeaseLost(seen.id, held=seen.epoch, current=None if fresh is None else fresh.epoch)
        return fresh

    async def _history(self, e: Execution, asked: ReadJournal) -> History:
        """All looks in one round trip: whoever was sent something waits for them."""
        entries, events, began_at = await asyncio.gather(
            journal_reader.journal_of(self.engine.store, e), self._first_events(e), self._began_at(e)
        )
        return History(entries, events, began_at)

    async def _first_events(self, e: Execution) -> list[Event]:
        if e.inbox == 0:
            return []
        found = await self.engine.store.scan(Event.KIND, (e.namespace, e.id), limit=EARLY_EVENTS)
        return [event for event in found if isinstance(event, Event)]

    async def _began_at(self, e: Execution) -> int:
        [first] = await self.engine.store.load([attempt_key(e.namespace, e.id, e.journal_generation, 1)])
        # A fork has no attempt of that generation.
        return settled(first.started_at if isinstance(first, Attempt) else e.created_at) or 0

    async def _as_claimed(self, e: Execution, asked: AsClaimed) -> ClaimedExecution | None:
        key = payload_key(e.namespace, e.id, e.journal_generation, Role.INPUT)
        [stored] = await self.engine.store.load([key])
        journal = await journal_reader.journal_of(self.engine.store, e)
        if not isinstance(stored, Payload) and not journal:
            return None
        data = stored.value if isinstance(stored, Payload) else b""
        return ClaimedExecution(e, data, await self._began_at(e), journal)

    # ---- facts ----------------------------------------------------------------------------------------------------

    async def tell(
        self,
        seen: Execution,
        fact: facts.HolderFact | facts.TimeOut | facts.Supersede,
        *,
        failure: Failure | None = None,
    ) -> Reply:
        engine = self.engine
        if isinstance(fact, facts.TimeOut):
            told = await engine.tell(seen.namespace, seen.id, fact, seen=seen)
            return Reply(told.applied, self.now, refusal=told.refusal)
        told_fact, fresh = cast(facts.AnyFact, fact), None
        while True:
            view = engine.view(seen.namespace, seen.id, fresh or seen)
            answer = decide(view, told_fact, self.now)
            if isinstance(answer, Refusal):
                return Reply(False, self.now, refusal=answer, execution=fresh)
            verdict, at = await engine.group.commit_timed(answer)
            if verdict.applied:
                if isinstance(told_fact, facts.StepRecorded) and verdict.again:
                    at = await self._recorded_at(seen, told_fact, at)
                # An entry of the journal and nothing else concerns nobody else.
                if len(answer.writes) > 1 or not isinstance(told_fact, facts.StepRecorded):
                    self._applied(view, answer, failure)
                if isinstance(told_fact, facts.Fail) and not tries_again(seen, retryable=told_fact.retryable):
                    await warn_of_unreceived(engine, [seen])
                return Reply(True, at, verdict.inbox, execution=fresh)
            refused_by = verdict.refused_by
            if isinstance(told_fact, facts.StepRecorded) and isinstance(refused_by, Absent):
                known = await self._without(told_fact, refused_by)
                if known is not None:
                    told_fact = known
                    continue
            fresh = await self._look(seen, Look())
            if isinstance(told_fact, facts.Suspend):
                return Reply(False, at, verdict.inbox, execution=fresh)  # what came may be what the code waits for
            if isinstance(told_fact, facts.Answered) and refused_by is not None and refused_by.key.kind == Event.KIND:
                return Reply(False, at, verdict.inbox, execution=fresh)  # nobody waits for the answer any more
            if refused_by is None or refused_by.key.kind != Execution.KIND:
                raise CorruptState(f"execution {seen.id!r}: refused by {refused_by}")

    def _applied(self, view: View, answer: Changes, failure: Failure | None = None) -> None:
        self.engine.post(answer, view.execution, failure)
        if self._committed is not None:
            self._committed(view, answer)

    async def _without(self, fact: facts.StepRecorded, taken: Absent) -> facts.StepRecorded | None:
        """The same entry, when a child that it starts or adopts is known already: it is told, instead of started here.
        `ExecutionConflict` if that is another, which another branch of the code has started meanwhile."""
        if fact.adopts is not None and taken.key.kind == Event.KIND:
            return structs.replace(fact, adopts=None)
        started = fact.starts
        if started is None or taken.key != execution_key(started.namespace, started.id):
            return None
        existing = await self.engine.look(started.namespace, started.id)
        conflict = None if existing is None else conflict_with(existing, started)
        if conflict is not None:
            raise conflict
        tell = facts.Tell(started.change_id, started.id, facts.encode_fact(started))
        return structs.replace(fact, starts=None, tells=(*fact.tells, tell))

    async def _entry(self, e: Execution, fact: facts.StepRecorded) -> JournalEntry | None:
        key = journal_key(e.namespace, e.id, e.journal_generation, fact.scope, fact.name, fact.occurrence)
        [entry] = await self.engine.store.load([key])
        return entry if isinstance(entry, JournalEntry) else None

    async def _recorded_at(self, e: Execution, fact: facts.StepRecorded, unknown: int) -> int:
        """The reply of its commit was lost: the time is in the record."""
        entry = await self._entry(e, fact)
        return unknown if entry is None else settled(entry.recorded_at) or unknown

    def submit(self, seen: Execution, fact: facts.StepRecorded, recorder: Recorder) -> bool:
        engine = self.engine
        partition = partition_of(seen.namespace, seen.id, self.terms.partitions)
        answer = decide(View(partition, seen), fact, engine.group.now)
        if type(answer) is not Changes or len(answer.writes) > 1:
            return False
        engine.group.commit_calling(answer, recorder)
        return True

    async def hand_on(self, seen: Execution, fact: facts.Complete) -> bool:
        return await handing_on.hand_on(self, seen, fact)

    async def tell_once(
        self, seen: Execution, fact: facts.AnyFact, amended: Callable[[Changes], Changes]
    ) -> tuple[Verdict, int] | None:
        """Commit what the machine makes of a fact, and more with it: the verdict, and the store's time of that commit.
        None if it is refused: nothing is written."""
        view = self.engine.view(seen.namespace, seen.id, seen)
        answer = decide(view, fact, self.now)
        if isinstance(answer, Refusal):
            return None
        answer = amended(answer)
        verdict, at = await self.engine.group.commit_timed(answer)
        if not verdict.applied:
            return None
        self._applied(view, answer)
        return verdict, at

    async def grow(self, seen: Execution, members: NewMembers) -> bool:
        return await growth.grow(self.engine, seen, members)

    async def append(self, seen: Execution, change_id: str, frames: list[bytes]) -> int:
        store = self.engine.store
        for pause_s in (*AGAIN_S, None):
            try:
                appended = await store.append(
                    seen.namespace, seen.id, epoch=seen.epoch, change_id=change_id, frames=frames
                )
            except StoreUnavailable:  # asked again verbatim: it is appended once
                if pause_s is None:
                    raise
                await self.engine.timing.sleep(pause_s)
                continue
            if not appended.applied:
                raise LeaseLost(seen.id, held=seen.epoch, current=None)
            return appended.seq
        raise AssertionError("the last try returns or raises")

    # ---- transactions ---------------------------------------------------------------------------------------------

    async def transact(
        self,
        seen: Execution,
        check: facts.StepRecorded,
        body: Body,
        *,
        limit_ms: int,
    ) -> TransactionReply:
        view, now = self.engine.view(seen.namespace, seen.id, seen), self.now
        checked = decide(view, check, now)
        if isinstance(checked, Refusal):
            return TransactionReply(raised=journal_is_full(check.entries))

        def decided(fact: facts.StepRecorded) -> Changes:
            answer = decide(view, fact, now)
            if isinstance(answer, Refusal):
                raise journal_is_full(fact.entries)
            return answer

        async def later(fact: Awaitable[facts.StepRecorded]) -> Changes:
            return decided(await fact)

        def changes(connection: Any) -> Changes | Awaitable[Changes]:
            fact = body(connection)
            return decided(fact) if isinstance(fact, facts.StepRecorded) else later(fact)

        done = await self._transact(checked, changes, limit_ms)
        if done.raised is not None:
            return TransactionReply(at=done.now, raised=done.raised)
        verdict = done.verdict
        assert verdict is not None
        if not verdict.applied:
            await self._look(seen, Look())
            raise CorruptState(f"execution {seen.id!r}: refused by {verdict.refused_by}")
        entry = await self._entry(seen, check) if verdict.again else None
        return TransactionReply(at=done.now, inbox=verdict.inbox, entry=entry)

    async def _transact(
        self, check: Changes, body: Callable[[Any], Changes | Awaitable[Changes]], limit_ms: int
    ) -> Transacted:
        """Asked again verbatim while the store does not answer: what was committed is found."""
        store = self.engine.store
        assert isinstance(store, Transacting)
        for pause_s in (*AGAIN_S, None):
            try:
                return await store.transact(check, body, limit_ms=limit_ms)
            except StoreUnavailable:
                if pause_s is None:
                    raise
                await self.engine.timing.sleep(pause_s)
            except (TimeoutError, StatementRefused) as error:  # it took the whole transaction along
                return Transacted(0, raised=error)
        raise AssertionError("the last try returns or raises")


def local_parts(holder: LocalHolder, values: Values, **options: Any) -> Parts:
    """What attempts share that run on this process's engine."""
    engine = holder.engine
    return Parts(
        holder,
        values,
        timing=engine.timing,
        entropy=engine.entropy,
        outages=engine.outages,
        telemetry=engine.telemetry,
        **options,
    )
