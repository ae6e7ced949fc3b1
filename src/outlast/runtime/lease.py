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
from outlast.machine.changes import Code
from outlast.model.attempt import Attempt, attempt_key
from outlast.model.execution import Execution
from outlast.model.journal import RETRY, JournalEntry, OperationKey, journal_key
from outlast.model.partition import partition_of
from outlast.model.record import settled
from outlast.model.status import Status
from outlast.runtime.parts import Parts
from outlast.store.port import Verdict

PAGE = 10_000


class Lease:
    def __init__(self, parts: Parts, execution: Execution, *, heard: Callable[[int], None]) -> None:
        self.execution = execution
        self._parts = parts
        self._heard = heard
        self._entries = 0
        self.began_at = settled(execution.claimed_at) or 0
        """When the code first began: the clock of every replay begins there."""
        self._partition = partition_of(execution.namespace, execution.id, parts.engine.store.partitions)

    # ---- the journal ----------------------------------------------------------------------------------------------

    async def journal(self) -> list[JournalEntry]:
        """What is recorded so far, in the order in which it was."""
        e = self.execution
        if e.epoch == 1 and e.generation == 1:
            return []  # nobody has run it before
        begun = attempt_key(e.namespace, e.id, e.journal_generation, 1)
        [first] = await self._parts.engine.store.load([begun])
        if isinstance(first, Attempt):
            self.began_at = settled(first.started_at) or self.began_at
        prefix = (e.namespace, e.id, e.journal_generation)
        entries: list[JournalEntry] = []
        while True:
            after = entries[-1].key if entries else None
            page = await self._parts.engine.store.scan(JournalEntry.KIND, prefix, after=after, limit=PAGE)
            entries += [entry for entry in page if isinstance(entry, JournalEntry)]
            if len(page) < PAGE:
                break
        entries.sort(key=lambda entry: entry.position)
        if entries:
            self._entries = entries[-1].position + 1
            self.began_at = min(self.began_at, settled(entries[0].recorded_at) or 0)  # a copied journal is older
        return entries

    async def record(
        self,
        key: OperationKey,
        op: str,
        outcome: str,
        value: bytes | None = None,
        *,
        tries: int = 1,
        consumes: tuple[str, str] | None = None,
        unwinds: bool = False,
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
            unwinds=unwinds,
        )
        self._entries += 1
        _, committed_at = await self._tell(fact)
        if unwinds and not self.execution.unwinds:
            self.execution = structs.replace(self.execution, unwinds=True)
        return self._recorded(fact, committed_at)

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
            value=fact.value if fact.op == RETRY else None,  # what was delivered need not be kept
            tries=fact.tries,
            epoch=fact.epoch,
            position=fact.entries,
            recorded_at=committed_at,
            change_id=fact.change_id,
        )

    # ---- facts ----------------------------------------------------------------------------------------------------

    async def tell(self, fact: facts.AnyFact) -> Verdict | None:
        """Commit what the machine makes of a fact; None if it made nothing of it."""
        return (await self._tell(fact))[0]

    async def _tell(self, fact: facts.AnyFact) -> tuple[Verdict | None, int]:
        """… and the store's time of that commit, or of the one that was repeated."""
        engine = self._parts.engine
        while True:
            view = View(self._partition, self.execution)
            answer = decide(view, fact, engine.group.now)
            if isinstance(answer, Refusal):
                return self._refused(fact, answer), engine.group.now
            verdict, committed_at = await engine.group.commit_timed(answer)
            if verdict.inbox is not None:
                self._heard(verdict.inbox)
            if verdict.applied:
                self._parts.committed(view, answer)
                if verdict.again and isinstance(fact, facts.StepRecorded):
                    committed_at = await self._recorded_at(fact, committed_at)
                return verdict, committed_at
            await self.look()
            if isinstance(fact, facts.Suspend):
                return verdict, committed_at  # what came from outside may be what the code waits for
            if verdict.refused_by is None or verdict.refused_by.key.kind != Execution.KIND:
                raise CorruptState(f"execution {self.execution.id!r}: refused by {verdict.refused_by}")

    async def _recorded_at(self, fact: facts.StepRecorded, unknown: int) -> int:
        """The reply of its commit was lost: the time is in the record."""
        e = self.execution
        key = journal_key(e.namespace, e.id, e.journal_generation, fact.scope, fact.name, fact.occurrence)
        [entry] = await self._parts.engine.store.load([key])
        return settled(entry.recorded_at) or unknown if isinstance(entry, JournalEntry) else unknown

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
