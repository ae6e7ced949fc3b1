"""What the operations of the differential test are made of: who said what, committed and judged.

A change goes to the store and the oracle; what the store applied is held against what its sender may do (`Hand`), and
against having been applied before (`Sent`). The operations themselves are in `rules.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine, invariant

from outlast.machine import facts
from outlast.machine.changes import Changes, Delete, GoneOrPast, Put, Refusal, View
from outlast.machine.decide import decide
from outlast.machine.transitions import allowed
from outlast.model.event import Event
from outlast.model.execution import Execution, execution_key
from outlast.model.lane import Lane
from outlast.model.lease import ClaimRequest
from outlast.model.outbox import Delivery
from outlast.model.record import Key, Record
from outlast.model.session import Session
from outlast.store.port import EVERYTHING, DueKind, Store
from outlast.testing.clock import ManualClock
from outlast.testing.differential import universe
from outlast.testing.differential.pair import Pair, Position
from outlast.testing.differential.properties import (
    Broken,
    arrived,
    check_cause,
    check_due,
    check_leases,
    check_promises,
    check_step,
)
from outlast.testing.oracle import Oracle

T = TypeVar("T")
HISTORY_MAX = 20
EPOCHS = 1_000
"""So many epochs are each start's own: more than an example has claims."""


class Hand:
    """A worker that once claimed an execution, and what it knows of it since it last looked. It may be a zombie."""

    def __init__(self, claimed: Execution, records: dict[Key, Record]) -> None:
        self.key = claimed.key
        self.epoch = claimed.epoch
        self.claim_id = claimed.claim_id
        self.look(claimed, records)

    def look(self, execution: Execution, records: dict[Key, Record]) -> None:
        self.seen = execution
        self.arrived = arrived(records, execution)


class Sent:
    """A change that was or will be committed, who is behind it, and in which life of its execution it was applied."""

    def __init__(self, changes: Changes, hand: Hand | None = None, fact: facts.AnyFact | None = None) -> None:
        self.changes = changes
        self.hand = hand
        self.fact = fact
        self.applied_in: int | None = None


class Play(RuleBasedStateMachine):
    """The machine without its rules: the store beside the oracle, and the memory of all that was said and done."""

    turns_back = True
    """Whether the test clock may be turned back: stores with a clock per partition have no single answer then."""

    async def open_store(self, clock: ManualClock) -> Store:
        """A new, empty, open store on this clock."""
        raise NotImplementedError

    async def close_store(self, store: Store) -> None:
        """The end of an example."""
        await store.close()

    async def reopen_store(self, store: Store) -> Store:
        """The same data in a new process, as far as can be: what was only in memory is gone."""
        return store

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.pair = Pair(self.run(self.open_store(self.clock)), self.clock)
        self.numbers = self.starts = 0
        self.sent: list[Sent] = []
        self.pending: list[Sent] = []
        self.hands: list[Hand] = []
        self.claims: list[tuple[Key, int, str]] = []
        self.requests: list[ClaimRequest] = []
        self.appends: list[tuple[Hand, str, tuple[bytes, ...]]] = []
        self.positions: list[Position] = [Position()]
        self.follower = Position()
        """A subscriber that keeps up: nothing may pass it by."""
        self.received: set[tuple[Key, str]] = set()
        self.purges: dict[Key, int] = {}
        self.history: dict[Key, list[Execution]] = {}
        self.before: dict[Key, Record] = {}
        self.never: frozenset[str] = frozenset()

    def teardown(self) -> None:
        try:
            self.run(self.close_store(self.pair.store))
        finally:
            self.loop.close()

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(operation)

    # ---- after each operation -------------------------------------------------------------------------------------

    @invariant()
    def store_and_oracle_agree(self) -> None:
        self.run(self.pair.compare())
        _, self.follower = self.run(self.pair.completions(self.follower, limit=1_000, filter=EVERYTHING))
        records = self.records
        check_promises(records)
        check_step(self.before, records)
        check_leases(records, self.claims)
        for e in self.oracle.all(Execution):
            if self.before.get(e.key) != e:
                self.history[e.key] = [*self.history.get(e.key, []), e][-HISTORY_MAX:]
        self.before = dict(records)

    # ---- how it is done -------------------------------------------------------------------------------------------

    @property
    def oracle(self) -> Oracle:
        return self.pair.oracle

    @property
    def records(self) -> dict[Key, Record]:
        return self.pair.oracle.records

    @property
    def partitions(self) -> range:
        return range(self.pair.store.partitions)

    def new_id(self) -> str:
        self.numbers += 1
        return f"c{self.numbers}"

    def next_epochs(self) -> int:
        """Where the epochs of what is started now begin."""
        self.starts += 1
        return self.starts * EPOCHS

    def view(self, name: tuple[str, str], back: int | None) -> View:
        """The execution as it is, or as it was `back` changes ago: before its start if that is too far."""
        view = self.oracle.view(*name)
        if back is None:
            return view
        past = self.history.get(execution_key(*name), [])
        return View(view.partition, past[-1 - back] if back < len(past) else None)

    def hand(self, pick: int, *, zombie: bool) -> Hand | None:
        """One that holds its lease if there is any; a zombie thinks that it does."""
        live = [hand for hand in self.hands if self.holds(hand)]
        return chosen(self.hands if zombie or not live else live, pick)

    def look(self, hand: Hand) -> bool:
        """The holder looks at what it holds; a zombie goes on with what it saw last."""
        current = self.oracle.get(hand.key, Execution)
        if current is None or not self.holds(hand):
            return False
        hand.look(current, self.records)
        return True

    def holds(self, hand: Hand) -> bool:
        current = self.oracle.get(hand.key, Execution)
        return current is not None and current.claim_id == hand.claim_id

    def someone(self, fact: facts.AnyFact, whom: int, back: int | None) -> View:
        """An execution to which the fact applies, most often; one that waits rather than one that does not."""
        every = sorted(self.oracle.all(Execution), key=lambda e: not e.status.terminal)
        fitting = [e for e in every if allowed(type(fact), e.status)]
        waiting = [e for e in fitting if e.wake_at is not None or (e.waits and not isinstance(fact, facts.Wake))]
        found = chosen(every if whom % 8 == 0 or not fitting else [*fitting, *waiting * 3], whom)
        name = universe.EXECUTIONS[0] if found is None else (found.namespace, found.id)
        return self.view(name, back)

    def tell_by(self, hand: Hand, fact: facts.AnyFact, later: bool) -> None:
        view = View(self.oracle.home(hand.seen.namespace, hand.seen.id), hand.seen)
        self.tell(view, _at_epoch(fact, hand.epoch), later=later, hand=hand)

    def tell(self, view: View, fact: facts.AnyFact, *, later: bool = False, hand: Hand | None = None) -> None:
        self.send(self.decided(view, fact, hand), later=later)

    def send(self, sent: Sent | None, *, later: bool) -> None:
        """Commit it, or keep it back to share a batch; nothing, if the machine refused."""
        if sent is not None and later:
            self.pending.append(sent)
        elif sent is not None:
            self.commit([sent])

    def decided(self, view: View, fact: facts.AnyFact, hand: Hand | None = None) -> Sent | None:
        if fact.change_id == universe.LATER:
            fact = msgspec.structs.replace(fact, change_id=self.new_id())
            if isinstance(fact, facts.Start):
                fact = msgspec.structs.replace(fact, first_epoch=self.next_epochs())
        answer = decide(view, fact, self.pair.time)
        if isinstance(answer, Refusal):
            note(f"the machine refused {type(fact).__name__}: {answer.code}, {answer.message}")
            return None
        return Sent(answer, hand, fact)

    def commit(self, batch: Sequence[Sent]) -> None:
        if not batch:
            return
        before = dict(self.records)
        verdicts = self.run(self.pair.commit([sent.changes for sent in batch]))
        for sent, verdict in zip(batch, verdicts, strict=True):
            note(f"{sent.changes.id}: {'again' if verdict.again else verdict.refused_by or 'applied'}")
            if verdict.applied and not verdict.again:
                self._applied(sent, before)
                if len(batch) == 1 and sent.fact is not None:
                    check_cause(sent.fact, before.get(sent.changes.anchors[0]), self.records)
        self.sent += [sent for sent in batch if sent not in self.sent]

    def _applied(self, sent: Sent, before: dict[Key, Record]) -> None:
        """What the store applied, it was right to apply: by the holder of the moment, and for the first time."""
        anchor = sent.changes.anchors[0]
        if sent.fact is None:
            return
        if sent.hand is not None:
            self._held_by(sent.hand, sent.fact, before)
        check_due(sent.fact, sent.changes, before, self.pair.time)
        life = self.purges.get(anchor, 0)
        if sent.applied_in == life:
            raise Broken(f"a repeated change was applied twice: {sent.changes}")
        sent.applied_in = life
        if isinstance(sent.fact, facts.StepRecorded) and sent.fact.consumes is not None:
            self._received(sent.fact, anchor, before)

    def _held_by(self, hand: Hand, fact: facts.AnyFact, before: dict[Key, Record]) -> None:
        holder = before.get(hand.key)
        if not isinstance(holder, Execution) or holder.claim_id != hand.claim_id:
            raise Broken(f"a zombie's write was applied: {fact} by claim {hand.claim_id} on {holder}")
        if isinstance(fact, facts.StepRecorded) and fact.unwinds:
            # Its own writes a holder knows without looking.
            hand.seen = msgspec.structs.replace(hand.seen, unwinds=True)

    def _received(self, fact: facts.StepRecorded, anchor: Key, before: dict[Key, Record]) -> None:
        assert fact.consumes is not None
        event = before.get(Key(Event.KIND, (*anchor.values, *fact.consumes)))
        if not isinstance(event, Event):
            return  # it came in the same batch
        if (event.key, event.change_id) in self.received:
            raise Broken(f"{event.key} was received twice")
        self.received.add((event.key, event.change_id))

    def take(self, request: ClaimRequest) -> None:
        claimed = self.run(self.pair.claim(request))
        for item in claimed.executions:
            e = item.execution
            if (e.key, e.epoch, request.worker) not in self.claims or not any(
                hand.claim_id == request.claim_id and hand.key == e.key and hand.epoch == e.epoch for hand in self.hands
            ):
                self.claims.append((e.key, e.epoch, request.worker))
                self.hands.append(Hand(e, self.records))

    def due_facts(self, kind: DueKind, record: Record) -> list[Sent]:
        if isinstance(record, Delivery):
            return self._delivery(record)
        if isinstance(record, Session):
            guard = GoneOrPast(record.key, "expires_at")
            writes = (Delete(record.key),)
            return [Sent(one_change(self.new_id(), record.partition, record.key, (guard,), writes))]
        if not isinstance(record, Execution):
            return self.flow_due(record)
        fact = _due_fact(kind, record)
        sent = None if fact is None else self.decided(self.oracle.view(record.namespace, record.id), fact)
        return [] if sent is None else [sent]

    def flow_due(self, record: Record) -> list[Sent]:
        """What is done with a record of a flow that is due."""
        raise NotImplementedError

    def _delivery(self, delivery: Delivery) -> list[Sent]:
        """The fact to its target; the record is struck off with it, as `Engine.deliver` does afterwards. What an errand
        does is many changes of the runtime's: here it is only struck off."""
        struck = Sent(one_change(self.new_id(), delivery.partition, delivery.key, (), (Delete(delivery.key),)))
        fact = facts.decode_debt(delivery.fact)
        if isinstance(fact, facts.Errand):
            return [struck]
        told = self.decided(self.oracle.view(delivery.namespace, delivery.target), fact)
        return [struck] if told is None else [told, struck]

    def put(self, records: Sequence[Lane]) -> None:
        batch = [one_change(self.new_id(), record.partition, record.key, (), (Put(record),)) for record in records]
        self.commit([Sent(changes) for changes in batch])


def one_change(
    change_id: str, partition: int, anchor: Key, guards: tuple[Any, ...], writes: tuple[Any, ...]
) -> Changes:
    return Changes(id=change_id, partition=partition, anchors=(anchor,), guards=guards, writes=writes)


def _at_epoch(fact: facts.AnyFact, epoch: int) -> facts.AnyFact:
    assert hasattr(fact, "epoch")
    return msgspec.structs.replace(fact, epoch=epoch)


def _due_fact(kind: DueKind, e: Execution) -> facts.AnyFact | None:
    match kind:
        case DueKind.LEASE:
            return facts.LeaseLost(change_id=universe.LATER, epoch=e.epoch)
        case DueKind.TIMEOUT:
            return facts.TimeOut(change_id=universe.LATER, epoch=e.epoch)
        case DueKind.DEADLINE:
            return facts.DeadlinePassed(change_id=universe.LATER)
        case DueKind.TIMER:
            return facts.Wake(change_id=universe.LATER, cause="timer")
        case _:
            return None


def chosen(candidates: list[T], pick: int) -> T | None:
    """Counting from the newest."""
    return candidates[-1 - pick % len(candidates)] if candidates else None
