"""A worker's hold on one execution: everything that an attempt reads and writes goes through it, fenced.

A write that the store refuses because the lease is gone raises `LeaseLost`. One that it refuses because something
came from outside in between is decided anew. Every verdict says how far the inbox has grown.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from outlast import limits
from outlast.errors import CorruptState, LeaseLost, LimitExceeded
from outlast.machine import Refusal, View, decide, facts
from outlast.machine.changes import Absent, Code
from outlast.model.event import Event
from outlast.model.execution import Execution, execution_key
from outlast.model.journal import RETRY, JournalEntry, OperationKey
from outlast.model.partition import partition_of
from outlast.model.record import settled
from outlast.model.status import Status
from outlast.runtime.effects import NO_EFFECTS, Effects
from outlast.runtime.journal import journal_of
from outlast.runtime.parts import Parts
from outlast.store.port import Verdict


def _ignored(inbox: int) -> None:
    """What comes from outside is whoever claims it next to hear."""


class Lease:
    def __init__(self, parts: Parts, execution: Execution, *, heard: Callable[[int], None]) -> None:
        self.execution = execution
        self._parts = parts
        self._heard = heard
        self._entries = 0
        self.began_at = settled(execution.claimed_at) or 0
        """When the code began, as far as is known: a replay's clock begins there."""
        self._partition = partition_of(execution.namespace, execution.id, parts.engine.store.partitions)

    def let_go(self) -> None:
        """Nobody listens any more."""
        self._heard = _ignored

    # ---- the journal ----------------------------------------------------------------------------------------------

    async def journal(self) -> list[JournalEntry]:
        """What is recorded so far, in the order in which it was."""
        e = self.execution
        if not e.resumed and e.generation == 1:
            return []  # nobody has run it before
        entries = await self.recorded()
        if entries:
            self._entries = entries[-1].position + 1
            self.began_at = settled(entries[0].recorded_at) or 0
        return entries

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
        scope, name, occurrence = key
        position = self._entries
        fact = facts.StepRecorded(
            change_id=self.new_id(),
            epoch=self.execution.epoch,
            scope=scope,
            name=name,
            occurrence=occurrence,
            op=op,
            outcome=outcome,
            value=value,
            tries=tries,
            entries=position,
            consumes=consumes,
            starts=effects.starts,
            tells=effects.tells,
            adopts=effects.adopts,
        )
        self._entries += 1
        await self.tell(fact)
        return JournalEntry(
            namespace=self.execution.namespace,
            execution=self.execution.id,
            generation=self.execution.journal_generation,
            scope=scope,
            name=name,
            occurrence=occurrence,
            op=op,
            outcome=outcome,
            value=value if op == RETRY else None,  # what was delivered need not be kept
            tries=tries,
            epoch=fact.epoch,
            position=position,
            recorded_at=self._parts.engine.group.now,
            change_id=fact.change_id,
        )

    # ---- facts ----------------------------------------------------------------------------------------------------

    async def tell(self, fact: facts.AnyFact) -> Verdict | None:
        """Commit what the machine makes of a fact; None if it made nothing of it."""
        engine = self._parts.engine
        while True:
            view = View(self._partition, self.execution)
            answer = decide(view, fact, engine.group.now)
            if isinstance(answer, Refusal):
                return self._refused(fact, answer)
            verdict = await engine.commit(answer)
            if verdict.inbox is not None:
                self._heard(verdict.inbox)
            if verdict.applied:
                self._parts.committed(view, answer)
                if isinstance(fact, facts.StepRecorded) and fact.adopts is not None:
                    self.execution = structs.replace(self.execution, has_children=True)
                return verdict
            if isinstance(fact, facts.StepRecorded) and isinstance(verdict.refused_by, Absent):
                known = _without(fact, verdict.refused_by)
                if known is not None:
                    fact = known
                    continue
            await self.look()
            if isinstance(fact, facts.Suspend):
                return verdict  # what came from outside may be what the code waits for
            if verdict.refused_by is None or verdict.refused_by.key.kind != Execution.KIND:
                raise CorruptState(f"execution {self.execution.id!r}: refused by {verdict.refused_by}")

    def _refused(self, fact: facts.AnyFact, refusal: Refusal) -> None:
        if refusal.code is Code.LIMIT:
            raise LimitExceeded("journal", actual=self._entries, limit=limits.JOURNAL_MAX_ENTRIES, unit="entries")
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


def _without(fact: facts.StepRecorded, taken: Absent) -> facts.StepRecorded | None:
    """The same entry, when a child that it starts or adopts is known already: it is told, instead of started here."""
    if fact.adopts is not None and taken.key.kind == Event.KIND:
        return structs.replace(fact, adopts=None)
    started = fact.starts
    if started is not None and taken.key == execution_key(started.namespace, started.id):
        tell = facts.Tell(started.change_id, started.id, facts.encode_fact(started))
        return structs.replace(fact, starts=None, tells=(*fact.tells, tell))
    return None
