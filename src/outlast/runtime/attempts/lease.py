"""A worker's hold on one execution: everything that an attempt reads and writes goes through it, fenced.

A write that the store refuses because the lease is gone raises `LeaseLost`. One that it refuses because something
came from outside in between is decided anew. Every verdict says how far the inbox has grown.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import structs

from outlast.codec.failures import Failure
from outlast.errors import CorruptState, ExecutionConflict, InvalidInput, LimitExceeded
from outlast.machine import facts
from outlast.machine.changes import Code
from outlast.machine.replay import note_of
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.journal import CANCEL, CANCELLED, FAILED, SUCCEEDED, JournalEntry, OperationKey
from outlast.model.lease import ClaimedExecution
from outlast.model.names import INTERRUPT
from outlast.model.operation import READ_LATER
from outlast.model.record import settled
from outlast.runtime.attempts.effects import NO_EFFECTS, Effects
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.holder import (
    HolderQuestion,
    LeaseHolder,
    Look,
    ReadDeferred,
    ReadJournal,
    Recorder,
    Reply,
    Submitted,
    TransactionReply,
    journal_is_full,
)
from outlast.runtime.parts import Parts

T = TypeVar("T")

_log = logging.getLogger(__name__)

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
        "_holder",
        "_known",
        "_listener",
        "_new_id",
        "_open",
        "_turns",
        "began_at",
        "claimed_inbox",
        "early",
        "execution",
        "input",
        "transacts",
    )

    def __init__(
        self, parts: Parts, claimed: ClaimedExecution, *, listener: Listener, holder: LeaseHolder | None = None
    ) -> None:
        execution = self.execution = claimed.execution
        self.input = claimed.input
        self._holder = holder or parts.holder
        self._new_id = parts.entropy.new_id
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
        self._known = claimed.journal
        """All that was recorded when it was claimed, until somebody asks."""
        self.early: list[Event] = claimed.events
        """Of the events that were there before the code went on, the first ones: most often it waits for one."""

    def let_go(self) -> None:
        """Nobody listens any more."""
        self._listener = _NOBODY

    # ---- the journal ----------------------------------------------------------------------------------------------

    async def journal(self) -> list[JournalEntry]:
        """What is recorded so far, in the order in which it was."""
        if self.execution.never_ran:
            return []
        entries, self._known = self._known, None
        if entries is None or self._began_unknown:
            history = await self.ask(ReadJournal())
            entries, self.early, self.began_at = history.entries, history.events, history.began_at or self.began_at
        else:
            entries = sorted(entries, key=lambda entry: entry.position)
        if entries:
            self._entries = entries[-1].position + 1
            self.began_at = min(self.began_at, settled(entries[0].recorded_at) or 0)  # a copied journal is older
        return entries

    async def recorded(self) -> list[JournalEntry]:
        """As `journal`, asked for whatever is known."""
        return (await self.ask(ReadJournal())).entries

    async def interrupt(self) -> bytes | None:
        """What it was interrupted with, if it was asked to stop."""
        sent = await self.ask(ReadDeferred(INTERRUPT))
        return None if sent is None else sent.value

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
            committed_at = (await self.tell(fact)).at
            if len(self._open) > 1 and self._first() < fact.entries:  # not the only one that is open
                await self._turn(fact.entries)
        finally:
            self._leave(fact.entries)
        return self._recorded(fact, committed_at)

    def submit(self, fact: facts.StepRecorded, recorder: Recorder) -> bool:
        """As `record_placed`, for an entry that is nothing else: on its way to the store. Its place is held until the
        answer is told, by `entered` or `leave`. False if there is more to it, or no room: nothing is on its way."""
        try:
            return self._holder.submit(self.execution, fact, recorder)
        except BaseException:
            self.leave(fact)
            raise

    def entered(self, fact: facts.StepRecorded, answer: Submitted) -> bool:
        """Whether what was submitted stands in the journal since that commit, and all before it. If not, its place
        stays, for `record_placed`."""
        if answer.inbox is not None and answer.inbox > self.claimed_inbox:
            self._listener.hear(answer.inbox)
        first = len(self._open) == 1 or self._first() == fact.entries
        if not (answer.applied and first) or answer.again:
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
        return self._recorded(fact, (await self.tell(fact)).at)

    async def record_cancel(self, before: JournalEntry | None = None) -> JournalEntry:
        """That the code hears of a cancel; `before` is what it has not seen yet, and hears of later. It hears of it all
        the same if the journal has no room for it, now and at every replay."""
        if before is None:
            try:
                return await self.record(CANCELLED_BY, CANCEL, SUCCEEDED)
            except LimitExceeded as error:
                _log.warning("execution %s: its cancel is not recorded: %s", self.execution.id, error)
                heard = self._fact(CANCELLED_BY, CANCEL, SUCCEEDED, None, 1)
                return self._recorded(heard, self._holder.now)
        fact = self._fact(CANCELLED_BY, CANCEL, SUCCEEDED, None, 1)
        fact = structs.replace(fact, entries=before.position, overtakes=before)
        self._entries += 1
        return self._recorded(fact, (await self.tell(fact)).at)

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
            change_id=change_id or self._new_id(),
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
        self, key: OperationKey, op: str, tries: int, call: Call, *, limit_ms: int
    ) -> tuple[JournalEntry, bytes] | BaseException:
        """Record a success together with what `call` does in the store's database, or give back what it raised."""
        change_id = self.new_id()
        check = self._fact(key, op, SUCCEEDED, None, tries, change_id=change_id)
        made: list[facts.StepRecorded] = []
        given_up = threading.Event()

        def settled(data: bytes) -> facts.StepRecorded:
            """Perhaps in a thread of the store's, and again if the store begins its transaction anew."""
            with _places:
                if given_up.is_set():
                    raise asyncio.CancelledError  # whatever its code made of that: it is rolled back
                place = made[0].entries if made else None
                fact = self._fact(key, op, SUCCEEDED, data, tries, change_id=change_id)
                made[:] = [fact if place is None else structs.replace(fact, entries=place)]
                if place is None:
                    self.transacts[self._take()] = None
            return made[0]

        def body(connection: Any) -> facts.StepRecorded | Awaitable[facts.StepRecorded]:
            if given_up.is_set():
                raise asyncio.CancelledError
            data = call(connection)
            return settled(data) if isinstance(data, bytes) else _then(data, settled)

        def leave() -> None:
            for fact in made:
                self._leave(fact.entries)

        def let_go(done: asyncio.Future[TransactionReply]) -> None:
            """Nobody waits for it any more: what it failed with is nobody's."""
            leave()
            if not done.cancelled():
                done.exception()

        doing = asyncio.ensure_future(self._holder.transact(self.execution, check, body, limit_ms=limit_ms))
        try:
            reply = await asyncio.shield(doing)
            if reply.raised is not None:
                return reply.raised
            if reply.inbox is not None:
                self._listener.hear(reply.inbox)
            self._made_progress()
            entry = reply.entry or self._recorded(made[0], reply.at)
            data = (reply.entry or made[0]).value or b"null"
            await self._turn(entry.position)
            return entry, data
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

    # ---- facts and questions --------------------------------------------------------------------------------------

    async def tell(
        self, fact: facts.HolderFact | facts.TimeOut | facts.Supersede, *, failure: Failure | None = None
    ) -> Reply:
        """What became of a fact. A refusal by the machine is an error where the attempt could not have known better:
        a full journal, and an entry of it."""
        reply = await self._holder.tell(self.execution, fact, failure=failure)
        if reply.execution is not None:
            self._learn(reply.execution)
        self._hear(reply.inbox)
        if reply.refusal is not None and reply.refusal.code is Code.LIMIT:
            raise journal_is_full(self._entries)
        if isinstance(fact, facts.StepRecorded):
            if reply.refusal is not None:
                raise CorruptState(f"execution {self.execution.id!r} {reply.refusal.message}")
            if fact.adopts is not None or fact.unwinds:
                children = self.execution.has_children or fact.adopts is not None
                unwinds = self.execution.unwinds or fact.unwinds
                self.execution = structs.replace(self.execution, has_children=children, unwinds=unwinds)
            if reply.applied:
                self._made_progress()
        return reply

    def _made_progress(self) -> None:
        """Something was recorded: after a crash that resets its counter, once."""
        if self.execution.crashes_since_progress:
            self.execution = structs.replace(self.execution, crashes_since_progress=0)

    async def ask(self, question: HolderQuestion[T]) -> T:
        return await self._holder.ask(self.execution, question)

    async def look(self) -> Execution:
        """The execution as it is now, still ours; else `LeaseLost`."""
        fresh = await self.ask(Look())
        self._learn(fresh)
        return fresh

    def _learn(self, fresh: Execution) -> None:
        """What others have written since. It may have been read before what this attempt has written meanwhile."""
        known = self.execution
        if fresh.inbox >= known.inbox:
            children, unwinds = known.has_children or fresh.has_children, known.unwinds or fresh.unwinds
            self.execution = structs.replace(fresh, has_children=children, unwinds=unwinds)

    def _hear(self, inbox: int | None) -> None:
        if inbox is not None and inbox > self.claimed_inbox:
            self._listener.hear(inbox)

    def new_id(self) -> str:
        return self._new_id()


def _doing(
    fact: facts.StepRecorded, consumes: tuple[str, str] | None, effects: Effects, *, unwinds: bool = False
) -> facts.StepRecorded:
    """… and what else is done in the same commit."""
    starts, tells, adopts = effects.starts, effects.tells, effects.adopts
    return structs.replace(fact, consumes=consumes, unwinds=unwinds, starts=starts, tells=tells, adopts=adopts)


async def _then(data: Awaitable[bytes], settled: Callable[[bytes], facts.StepRecorded]) -> facts.StepRecorded:
    return settled(await data)
