"""A worker's hold on one execution: everything that an attempt reads and writes goes through it, fenced.

A write that the store refuses because the lease is gone raises `LeaseLost`. One that it refuses because something
came from outside in between is decided anew. Every verdict says how far the inbox has grown.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from msgspec import structs

from outlast import limits
from outlast.codec.failures import Failure
from outlast.errors import (
    CorruptState,
    ExecutionConflict,
    InvalidInput,
    LeaseLost,
    LimitExceeded,
    StatementRefused,
    StoreUnavailable,
)
from outlast.machine import Refusal, View, decide, facts
from outlast.machine.changes import Absent, Changes, Code
from outlast.machine.replay import note_of
from outlast.model.attempt import Attempt, attempt_key
from outlast.model.deferred import Deferred, deferred_key
from outlast.model.event import Event
from outlast.model.execution import Execution, execution_key
from outlast.model.journal import (
    CANCEL,
    CANCELLED,
    FAILED,
    SUCCEEDED,
    JournalEntry,
    OperationKey,
    journal_key,
)
from outlast.model.names import INTERRUPT
from outlast.model.operation import READ_LATER
from outlast.model.partition import partition_of
from outlast.model.record import settled
from outlast.model.status import Status
from outlast.runtime.attempts.effects import NO_EFFECTS, Effects
from outlast.runtime.attempts.journal import in_order, journal_of
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.family import conflict_with
from outlast.runtime.group_commit import Caller
from outlast.runtime.parts import Parts
from outlast.store.port import EARLY_EVENTS, Body, ClaimedExecution, Transacted, Transacting, Verdict

_log = logging.getLogger(__name__)

AGAIN_S = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0)

UNRECORDABLE = (InvalidInput, ExecutionConflict)
"""An outcome that cannot be recorded for such a reason is a failure of its operation."""

CANCELLED_BY: OperationKey = ("", "outlast:cancel", 1)
"""The place of the cancel in the journal: the code hears of one."""

Call: TypeAlias = Callable[[Any], bytes | Awaitable[bytes]]
"""The user's function with its connection, and its result as bytes."""


class Listener(Protocol):
    def hear(self, inbox: int) -> None:
        """So far the inbox has grown."""
        ...


class _Nobody:
    def hear(self, inbox: int) -> None:
        """What comes from outside now is for whoever claims it next."""


_NOBODY = _Nobody()

_places = threading.Lock()
"""Held while a place in a journal is taken, for a moment: one is enough for all."""


class Lease:
    __slots__ = (
        "_began_unknown",
        "_entries",
        "_first_open",
        "_known",
        "_listener",
        "_open",
        "_partition",
        "_parts",
        "_turns",
        "began_at",
        "claimed_inbox",
        "early",
        "execution",
        "input",
        "transacts",
    )

    def __init__(self, parts: Parts, claimed: ClaimedExecution, *, listener: Listener) -> None:
        execution = self.execution = claimed.execution
        self.input = claimed.input
        self._parts = parts
        self._listener = listener
        self.claimed_inbox = execution.inbox
        """How far the inbox had grown by then. Only what comes later is news."""
        self._entries = 0
        self._open: dict[int, None] = {}
        """Places that were taken, and have no outcome yet."""
        self._first_open = 0
        """No place before this one is open: thousands may be, and each asks for the first."""
        self.transacts: dict[int, None] = {}
        """Those of them that transactions have taken: they have an outcome, which nobody has seen yet."""
        self._turns: dict[asyncio.Future[None], None] = {}
        self._began_unknown = claimed.began_at is None
        self.began_at = claimed.began_at or settled(execution.claimed_at) or settled(execution.created_at) or 0
        """When the code first began: the clock of every replay begins there. For code that has not begun and is only
        queried: when the execution was created."""
        self._partition = partition_of(execution.namespace, execution.id, parts.engine.store.partitions)
        self._known = claimed.journal
        """All that was recorded when it was claimed, until somebody asks."""
        self.early = claimed.events
        """Of the events that were there before the code went on, the first ones: most often it waits for one."""

    def let_go(self) -> None:
        """Nobody listens any more."""
        self._listener = _NOBODY

    # ---- the journal ----------------------------------------------------------------------------------------------

    async def journal(self) -> list[JournalEntry]:
        """What is recorded so far, in the order in which it was."""
        e = self.execution
        if e.never_ran:
            return []
        known, self._known = self._known, None
        if known is not None:
            entries = in_order(known)
            await self._look_when_it_began()
        else:
            looks = asyncio.gather(self.recorded(), self._first_events(), self._look_when_it_began())
            entries, self.early, _ = await looks
        if entries:
            self._entries = entries[-1].position + 1
            self.began_at = min(self.began_at, settled(entries[0].recorded_at) or 0)  # a copied journal is older
        return entries

    # All looks in one round trip: whoever was sent something waits for them.

    async def _look_when_it_began(self) -> None:
        if self._began_unknown:
            e = self.execution
            [first] = await self._parts.engine.store.load([attempt_key(e.namespace, e.id, e.journal_generation, 1)])
            # A fork has no attempt of that generation.
            began = first.started_at if isinstance(first, Attempt) else e.created_at
            self.began_at = settled(began) or self.began_at

    async def _first_events(self) -> list[Event]:
        e = self.execution
        if e.inbox == 0:
            return []
        found = await self._parts.engine.store.scan(Event.KIND, (e.namespace, e.id), limit=EARLY_EVENTS)
        return [event for event in found if isinstance(event, Event)]

    async def interrupt(self) -> bytes | None:
        """What it was interrupted with, if it was asked to stop."""
        e = self.execution
        [sent] = await self._parts.engine.store.load([deferred_key(e.namespace, e.id, e.journal_generation, INTERRUPT)])
        return sent.value if isinstance(sent, Deferred) else None

    async def recorded(self) -> list[JournalEntry]:
        """As `journal`, looked up whatever is known."""
        return await journal_of(self._parts.engine.store, self.execution)

    async def record(
        self,
        key: OperationKey,
        op: str,
        outcome: str,
        value: bytes | None = None,
        *,
        tries: int = 1,
        consumes: tuple[str, str] | None = None,
        effects: Effects = NO_EFFECTS,
    ) -> JournalEntry:
        """One entry more. Its place is taken at once, so entries stand in the order of the calls."""
        with _places:
            fact = _doing(self._fact(key, op, outcome, value, tries), consumes, effects)
            self._take()
        return await self.record_placed(fact)

    async def record_placed(self, fact: facts.StepRecorded) -> JournalEntry:
        """Write down what has its place."""
        try:
            _, committed_at = await self.tell_timed(fact)
            if len(self._open) > 1 and self._first() < fact.entries:  # not the only one that is open
                await self._turn(fact.entries)
        finally:
            self._leave(fact.entries)
        if fact.unwinds and not self.execution.unwinds:
            self.execution = structs.replace(self.execution, unwinds=True)
        return self._recorded(fact, committed_at)

    def submit(self, fact: facts.StepRecorded, caller: Caller) -> bool:
        """As `record_placed`, for an entry that is nothing else: on its way to the store. Its place is held until the
        answer is told, by `entered` or `leave`. False if there is more to it, or no room: nothing is on its way."""
        group = self._parts.engine.group
        try:
            answer = decide(View(self._partition, self.execution), fact, group.now)
            if type(answer) is not Changes or len(answer.writes) > 1:
                return False
            group.commit_calling(answer, caller)
            return True
        except BaseException:
            self.leave(fact)
            raise

    def entered(self, fact: facts.StepRecorded, verdict: Verdict) -> bool:
        """Whether what was submitted stands in the journal since that commit, and all before it. If not, its place
        stays, for `record_placed`."""
        if verdict.inbox is not None and verdict.inbox > self.claimed_inbox:
            self._listener.hear(verdict.inbox)
        first = len(self._open) == 1 or self._first() == fact.entries
        if not (verdict.applied and first) or verdict.again:
            return False
        self._leave(fact.entries)
        return True

    def leave(self, fact: facts.StepRecorded) -> None:
        """Nobody waits for what was submitted: what stands behind it has its turn."""
        self._leave(fact.entries)

    def placed(self, operation: Operation, outcome: Outcome) -> facts.StepRecorded:
        """An outcome with its place: `record_placed` is to follow."""
        word, tries = FAILED if outcome.error else SUCCEEDED, outcome.tries or 1
        with _places:
            fact = self._fact(operation.key, operation.kind.OP, word, outcome.data, tries)
            if outcome.does_more:
                fact = _doing(fact, outcome.consumes, outcome.effects, unwinds=outcome.unwinds)
            self._take()
        return fact

    @property
    def entries(self) -> int:
        """How many the journal holds: the place of the next one."""
        return self._entries

    async def correct(self, entry: JournalEntry, outcome: Outcome) -> JournalEntry:
        """The same call came to something else, and the code has not seen it yet."""
        fact = self._fact((entry.scope, entry.name, entry.occurrence), entry.op, FAILED, outcome.data, entry.tries)
        fact = structs.replace(fact, entries=entry.position, corrects=True)
        _, committed_at = await self.tell_timed(fact)
        return self._recorded(fact, committed_at)

    async def record_cancel(self, before: JournalEntry | None = None) -> JournalEntry:
        """That the code hears of a cancel; `before` is what it has not seen yet, and hears of later. It hears of it all
        the same if the journal has no room for it, now and at every replay."""
        if before is None:
            try:
                return await self.record(CANCELLED_BY, CANCEL, SUCCEEDED)
            except LimitExceeded as error:
                _log.warning("execution %s: its cancel is not recorded: %s", self.execution.id, error)
                heard = self._fact(CANCELLED_BY, CANCEL, SUCCEEDED, None, 1)
                return self._recorded(heard, self._parts.engine.group.now)
        fact = self._fact(CANCELLED_BY, CANCEL, SUCCEEDED, None, 1)
        fact = structs.replace(fact, entries=before.position, overtakes=before)
        self._entries += 1
        _, committed_at = await self.tell_timed(fact)
        return self._recorded(fact, committed_at)

    async def note_given_up(self, key: OperationKey, op: str, effects: Effects) -> None:
        """For whoever reads the journal, and for a replay whose code goes round in circles."""
        try:
            await self.record(note_of(key), op, CANCELLED, effects=effects)
        except InvalidInput as error:
            _log.warning("execution %s: that %s %r was given up is not noted: %s", self.execution.id, op, key[1], error)

    def _fact(
        self,
        key: OperationKey,
        op: str,
        outcome: str,
        value: bytes | None,
        tries: int,
        *,
        change_id: str | None = None,
    ) -> facts.StepRecorded:
        scope, name, occurrence = key
        return facts.StepRecorded(
            change_id=change_id or self._parts.engine.entropy.new_id(),
            epoch=self.execution.epoch,
            scope=scope,
            name=name,
            occurrence=occurrence,
            op=op,
            outcome=outcome,
            value=value,
            tries=tries,
            entries=self._entries,
        )

    # ---- places ---------------------------------------------------------------------------------------------------
    # Outcomes are delivered in the order of their places, live as in a replay. Commits keep that order by themselves,
    # but for transactions, which take their place when the user's function is done, in a thread of the store's.

    def _take(self) -> int:
        place = self._entries
        self._open[place] = None  # first: it is open from the moment that there is one more (`_first`)
        self._entries += 1
        return place

    async def _turn(self, place: int) -> None:
        """Until all that stands before it has its outcome."""
        while self._first() < place:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._turns[turn] = None
            await turn

    def _first(self) -> int:
        """The first place that is open; the next one of all, if none is."""
        while self._first_open < self._entries and self._first_open not in self._open:
            self._first_open += 1
        return self._first_open

    def _leave(self, place: int) -> None:
        self._open.pop(place, None)
        self.transacts.pop(place, None)
        if self._turns:
            turns, self._turns = self._turns, {}
            for turn in turns:
                if not turn.done():
                    turn.set_result(None)

    async def transact(
        self, store: Transacting, key: OperationKey, op: str, tries: int, call: Call, *, limit_ms: int
    ) -> tuple[JournalEntry, bytes] | BaseException:
        """Record a success together with what `call` does in the store's database, or give back what it raised."""
        change_id, view, now = self.new_id(), View(self._partition, self.execution), self._parts.engine.group.now
        check = decide(view, self._fact(key, op, SUCCEEDED, None, tries, change_id=change_id), now)
        if isinstance(check, Refusal):
            return self._full()
        made: list[facts.StepRecorded] = []
        given_up = threading.Event()

        def settled(data: bytes) -> Changes:
            """Perhaps in a thread of the store's, and again if the store begins its transaction anew."""
            with _places:
                if given_up.is_set():
                    raise asyncio.CancelledError  # whatever its code made of that: it is rolled back
                place = made[0].entries if made else None
                fact = self._fact(key, op, SUCCEEDED, data, tries, change_id=change_id)
                made[:] = [fact if place is None else structs.replace(fact, entries=place)]
                if place is None:
                    self.transacts[self._take()] = None
            answer = decide(view, made[0], now)
            if isinstance(answer, Refusal):
                raise self._full()
            return answer

        def body(connection: Any) -> Changes | Awaitable[Changes]:
            if given_up.is_set():
                raise asyncio.CancelledError
            data = call(connection)
            return settled(data) if isinstance(data, bytes) else _then(data, settled)

        def leave() -> None:
            for fact in made:
                self._leave(fact.entries)

        def let_go(done: asyncio.Future[Transacted]) -> None:
            """Nobody waits for it any more: what it failed with is nobody's."""
            leave()
            if not done.cancelled():
                done.exception()

        doing = asyncio.ensure_future(self._transact(store, check, body, limit_ms))
        try:
            transacted = await asyncio.shield(doing)
            if transacted.raised is not None:
                return transacted.raised
            return await self._settled(transacted, key, made)
        except asyncio.CancelledError as cancelled:
            if doing.cancelled():
                return cancelled  # from within
            doing.add_done_callback(let_go)
            with _places:
                given_up.set()
            if made:
                await asyncio.wait([doing])  # it is being committed: nothing may follow before that is decided
            else:
                doing.cancel()
            raise
        finally:
            if doing.done():
                leave()

    async def _transact(self, store: Transacting, check: Changes, body: Body, limit_ms: int) -> Transacted:
        """Asked again verbatim while the store does not answer: what was committed is found."""
        for pause_s in (*AGAIN_S, None):
            try:
                return await store.transact(check, body, limit_ms=limit_ms)
            except StoreUnavailable:
                if pause_s is None:
                    raise
                await self._parts.engine.timing.sleep(pause_s)
            except (TimeoutError, StatementRefused) as error:  # it took the whole transaction along
                return Transacted(0, raised=error)
        raise AssertionError("the last try returns or raises")

    async def _settled(
        self, transacted: Transacted, key: OperationKey, made: list[facts.StepRecorded]
    ) -> tuple[JournalEntry, bytes]:
        verdict = transacted.verdict
        assert verdict is not None
        if verdict.inbox is not None:
            self._listener.hear(verdict.inbox)
        if not verdict.applied:
            await self.look()
            raise CorruptState(f"execution {self.execution.id!r}: refused by {verdict.refused_by}")
        self._made_progress()
        if not verdict.again:
            entry, data = self._recorded(made[0], transacted.now), made[0].value or b"null"
        else:
            e = self.execution
            [found] = await self._parts.engine.store.load([journal_key(e.namespace, e.id, e.journal_generation, *key)])
            assert isinstance(found, JournalEntry)
            entry, data = found, found.value or b"null"
        await self._turn(entry.position)
        return entry, data

    def _full(self) -> LimitExceeded:
        return LimitExceeded("journal", actual=self._entries, limit=limits.JOURNAL_MAX_ENTRIES, unit="entries")

    def _recorded(self, fact: facts.StepRecorded, committed_at: int) -> JournalEntry:
        return JournalEntry(
            namespace=self.execution.namespace,
            execution=self.execution.id,
            generation=self.execution.journal_generation,
            scope=fact.scope,
            name=fact.name,
            occurrence=fact.occurrence,
            op=fact.op,
            outcome=fact.outcome,
            value=fact.value if fact.op in READ_LATER else None,  # what was delivered need not be kept
            tries=fact.tries,
            epoch=fact.epoch,
            position=fact.entries,
            recorded_at=committed_at,
            change_id=fact.change_id,
        )

    # ---- facts ----------------------------------------------------------------------------------------------------

    async def tell(self, fact: facts.AnyFact, *, failure: Failure | None = None) -> Verdict | None:
        """Commit what the machine makes of a fact; None if it made nothing of it. `failure` is what a `Fail` has as
        bytes."""
        return (await self.tell_timed(fact, failure=failure))[0]

    async def tell_timed(self, fact: facts.AnyFact, *, failure: Failure | None = None) -> tuple[Verdict | None, int]:
        """… and the store's time of that commit, or of the one that was repeated."""
        engine = self._parts.engine
        while True:
            view = View(self._partition, self.execution)
            answer = decide(view, fact, engine.group.now)
            if isinstance(answer, Refusal):
                return self._refused(fact, answer), engine.group.now
            verdict, committed_at = await engine.group.commit_timed(answer)
            if verdict.inbox is not None and verdict.inbox > self.claimed_inbox:
                self._listener.hear(verdict.inbox)
            if verdict.applied:
                if len(answer.writes) > 1 or not isinstance(fact, facts.StepRecorded):  # else it concerns nobody else
                    engine.post(answer, view.execution, failure)
                    self._parts.committed(view, answer)
                if isinstance(fact, facts.StepRecorded):
                    if fact.adopts is not None:
                        self.execution = structs.replace(self.execution, has_children=True)
                    self._made_progress()
                    if verdict.again:
                        committed_at = await self._recorded_at(fact, committed_at)
                return verdict, committed_at
            if isinstance(fact, facts.StepRecorded) and isinstance(verdict.refused_by, Absent):
                known = await self._without(fact, verdict.refused_by)
                if known is not None:
                    fact = known
                    continue
            await self.look()
            if isinstance(fact, facts.Suspend):
                return verdict, committed_at  # what came from outside may be what the code waits for
            refused_by = verdict.refused_by
            if isinstance(fact, facts.Answered) and refused_by is not None and refused_by.key.kind == Event.KIND:
                return verdict, committed_at  # nobody waits for the answer any more
            if verdict.refused_by is None or verdict.refused_by.key.kind != Execution.KIND:
                raise CorruptState(f"execution {self.execution.id!r}: refused by {verdict.refused_by}")

    def _made_progress(self) -> None:
        """Something was recorded: after a crash that resets its counter, once."""
        if self.execution.crashes_since_progress:
            self.execution = structs.replace(self.execution, crashes_since_progress=0)

    async def _without(self, fact: facts.StepRecorded, taken: Absent) -> facts.StepRecorded | None:
        """The same entry, when a child that it starts or adopts is known already: it is told, instead of started here.
        `ExecutionConflict` if that is another, which another branch of the code has started meanwhile."""
        if fact.adopts is not None and taken.key.kind == Event.KIND:
            return structs.replace(fact, adopts=None)
        started, engine = fact.starts, self._parts.engine
        if started is None or taken.key != execution_key(started.namespace, started.id):
            return None
        existing = await engine.look(started.namespace, started.id)
        conflict = None if existing is None else conflict_with(engine, existing, started)
        if conflict is not None:
            raise conflict
        tell = facts.Tell(started.change_id, started.id, facts.encode_fact(started))
        return structs.replace(fact, starts=None, tells=(*fact.tells, tell))

    async def tell_once(self, fact: facts.AnyFact, amended: Callable[[Changes], Changes]) -> tuple[Verdict, int] | None:
        """Commit what the machine makes of a fact, and more with it: the verdict, and the store's time of that commit.
        None if it is refused: nothing is written."""
        engine, view = self._parts.engine, View(self._partition, self.execution)
        answer = decide(view, fact, engine.group.now)
        if isinstance(answer, Refusal):
            return None
        answer = amended(answer)
        verdict, committed_at = await engine.group.commit_timed(answer)
        if verdict.inbox is not None and verdict.inbox > self.claimed_inbox:
            self._listener.hear(verdict.inbox)
        if not verdict.applied:
            return None
        engine.post(answer, view.execution)
        self._parts.committed(view, answer)
        return verdict, committed_at

    async def _recorded_at(self, fact: facts.StepRecorded, unknown: int) -> int:
        """The reply of its commit was lost: the time is in the record."""
        e = self.execution
        key = journal_key(e.namespace, e.id, e.journal_generation, fact.scope, fact.name, fact.occurrence)
        [entry] = await self._parts.engine.store.load([key])
        return settled(entry.recorded_at) or unknown if isinstance(entry, JournalEntry) else unknown

    def _refused(self, fact: facts.AnyFact, refusal: Refusal) -> None:
        if refusal.code is Code.LIMIT:
            raise self._full()
        if isinstance(fact, facts.StepRecorded):
            raise CorruptState(f"execution {self.execution.id!r} {refusal.message}")

    async def look(self) -> Execution:
        """The execution as it is now, still ours; else `LeaseLost`."""
        fresh = await self._parts.engine.look(self.execution.namespace, self.execution.id)
        if fresh is None or fresh.epoch != self.execution.epoch or fresh.status is not Status.ACTIVE:
            current = None if fresh is None else fresh.epoch
            raise LeaseLost(self.execution.id, held=self.execution.epoch, current=current)
        self.execution = fresh
        return fresh

    def new_id(self) -> str:
        return self._parts.engine.entropy.new_id()


def _doing(
    fact: facts.StepRecorded, consumes: tuple[str, str] | None, effects: Effects, *, unwinds: bool = False
) -> facts.StepRecorded:
    """… and what else is done in the same commit."""
    starts, tells, adopts = effects.starts, effects.tells, effects.adopts
    return structs.replace(fact, consumes=consumes, unwinds=unwinds, starts=starts, tells=tells, adopts=adopts)


async def _then(data: Awaitable[bytes], settled: Callable[[bytes], Changes]) -> Changes:
    return settled(await data)
