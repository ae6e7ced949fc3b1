"""Random operations on a store and the oracle: the Hypothesis state machine that every store must survive.

    class SqliteMachine(StoreMachine):
        async def open_store(self, clock): ...

    def test_sqlite_agrees_with_the_oracle():
        run_state_machine_as_test(SqliteMachine, settings=...)

Most operations go the way of the engine: a fact, `decide`, a commit. On purpose many are decided on what somebody saw
long ago, kept back to share a batch with others, or committed again verbatim as after a lost reply. After each one
the answers and the whole states are compared (`pair.py`), and the promises are checked (`properties.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from outlast.machine import facts
from outlast.machine.changes import Delete, Put, View
from outlast.model.event import Event
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import CancelPolicy, Flow
from outlast.model.journal import Awaited, JournalEntry
from outlast.model.kinds import KINDS
from outlast.model.lane import Lane, Quota, quota_key
from outlast.model.lease import ClaimRequest
from outlast.model.status import Reason, Status
from outlast.store.port import DueKind, Filter, Query
from outlast.testing.differential import flows, universe
from outlast.testing.differential.flows import FlowPlay
from outlast.testing.differential.play import Hand, Sent, chosen, one_change
from outlast.testing.differential.raw import raw_changes

F = TypeVar("F", bound=Callable[..., None])


class Operation(NamedTuple):
    often: int
    arguments: dict[str, st.SearchStrategy[Any]]


OPERATIONS: dict[str, Operation] = {}


def operation(*, often: int = 1, **arguments: st.SearchStrategy[Any]) -> Callable[[F], F]:
    """What may happen in a step, and how often beside the others.

    One rule for all of them instead of one each: Hypothesis leaves out so many rules of an example that work, which
    needs a start, a claim and a holder to get anywhere, would seldom get anywhere.
    """

    def register(method: F) -> F:
        OPERATIONS[method.__name__] = Operation(often, arguments)
        return method

    return register


def _often() -> list[str]:
    return [name for name, operation in OPERATIONS.items() for _ in range(operation.often)]


def _drawn(name: str) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.tuples(st.just(name), st.fixed_dictionaries(OPERATIONS[name].arguments))


class StoreMachine(FlowPlay):
    """All that may happen."""

    # ---- facts ----------------------------------------------------------------------------------------------------

    @operation(often=3, fact=universe.starts(), stale=universe.rarely, later=universe.rarely)
    def start(self, fact: facts.Start, stale: bool, later: bool) -> None:
        view = self.view((fact.namespace, fact.id), 1 if stale else None)
        self.tell(view, fact, later=later)

    @operation(
        often=5,
        told=st.lists(universe.messages | universe.requests, min_size=1, max_size=2)
        | st.permutations([universe.messages, universe.requests]).flatmap(lambda both: st.tuples(*both).map(list)),
        whom=universe.picks,
        back=universe.backs,
        later=universe.rarely,
    )
    def outside(self, told: list[facts.AnyFact], whom: int, back: int | None, later: bool) -> None:
        """Anybody, at any time; sometimes by what they saw `back` changes ago. If two, they looked at the same time."""
        view = self.someone(told[0], whom, back)
        for sent in [self.decided(view, _awaited(fact, view)) for fact in told]:
            self.send(sent, later=later)
            self.store_and_oracle_agree()

    @operation(often=3, fact=universe.clock_facts, whom=universe.picks, back=universe.backs, later=universe.rarely)
    def elapse(self, fact: facts.AnyFact, whom: int, back: int | None, later: bool) -> None:
        """A reconciler that may be wrong about the time, or behind it."""
        view = self.someone(fact, whom, back)
        e = view.execution
        if isinstance(fact, facts.TimeOut | facts.LeaseLost) and e is not None:
            fact = msgspec.structs.replace(fact, epoch=e.epoch)
        if isinstance(fact, facts.Wake) and e is not None and (e.wake_at is not None or e.flow is not None):
            fact = msgspec.structs.replace(fact, cause=Reason.TIMER)  # a member is woken by its join, with its input
        self.tell(view, fact, later=later)

    @operation(
        often=8,
        told=st.lists(
            universe.steps | universe.receipts | universe.suspensions | universe.endings, min_size=1, max_size=3
        ),
        pick=universe.picks,
        zombie=universe.rarely,
        blind=universe.rarely,
        later=universe.rarely,
    )
    def work(self, told: list[facts.AnyFact], pick: int, zombie: bool, blind: bool, later: bool) -> None:
        """What one who holds an execution (or thinks so) says about it."""
        hand = self.hand(pick, zombie=zombie)
        if hand is None:
            return
        for fact in told:
            if not blind:
                self.look(hand)
            self._by_holder(hand, fact, pick, later)
            self.store_and_oracle_agree()

    @operation(
        often=5,
        told=universe.messages | universe.requests,
        fact=universe.steps | universe.suspensions | universe.endings,
        pick=universe.picks,
        order=st.sampled_from(["outside", "heard", "holder", "together"]),
    )
    def race(self, told: facts.AnyFact, fact: facts.AnyFact, pick: int, order: str) -> None:
        """A holder and somebody outside look at the same time; one commits before the other, or both in a batch.

        "heard": the holder looks once more before it goes on.
        """
        hand = self.hand(pick, zombie=False)
        if hand is None or not self.look(hand):
            return
        current = hand.seen
        first = order in ("outside", "heard")
        self.tell(self.oracle.view(current.namespace, current.id), told, later=not first)
        self.store_and_oracle_agree()
        if order == "heard":
            self.look(hand)
        if isinstance(fact, facts.Suspend):
            fact = msgspec.structs.replace(fact, waits=(*universe.wait_for(told), *fact.waits))
        self._by_holder(hand, fact, pick, later=order == "together")
        self.store_and_oracle_agree()
        if not first:
            self.commit_together([])

    @operation(often=3, fact=universe.of_holder, pick=universe.picks, worker=universe.workers)
    def take_over(self, fact: facts.AnyFact, pick: int, worker: str) -> None:
        """An execution changes hands, and its former holder does not know."""
        hand = self.hand(pick, zombie=False)
        if hand is None:
            return
        self._hand_back(hand)
        self.store_and_oracle_agree()
        self.claim_all(worker)
        self.store_and_oracle_agree()
        self._by_holder(hand, fact, pick, later=False)

    def _by_holder(self, hand: Hand, fact: facts.AnyFact, pick: int, later: bool) -> None:
        match fact:
            case facts.Suspend():
                self._suspend(hand, fact, later)
            case facts.StepRecorded(op="receive"):
                self._receive(hand, fact, pick, later)
            case _:
                self.tell_by(hand, fact, later)

    def _receive(self, hand: Hand, fact: facts.StepRecorded, pick: int, later: bool) -> None:
        """A step that consumes an event; now and then one that was received before. If there is none, one is sent."""
        if not self._events(hand):
            sent = facts.EventSent(change_id=universe.LATER, name=universe.EVENTS[0], value=b"")
            self.tell(self.oracle.view(hand.seen.namespace, hand.seen.id), sent)
            self.store_and_oracle_agree()
        found = chosen(self._events(hand), pick)
        if found is not None:
            fact = msgspec.structs.replace(fact, consumes=(found.name, found.dedup))
            self.tell_by(hand, fact, later)

    def _events(self, hand: Hand) -> list[Event]:
        mine = [e for e in self.oracle.all(Event) if (e.namespace, e.execution) == hand.key.values]
        return [e for e in mine if e.name in universe.EVENTS]

    def _suspend(self, hand: Hand, fact: facts.Suspend, later: bool) -> None:
        """Code suspends on what it knows not to have come; a cancel that it knows of it unwinds for instead."""
        if hand.seen.cancel_requested and not hand.seen.unwinds:
            return
        waits = tuple(wait for wait in fact.waits if wait not in hand.arrived)
        wake_at = None if waits and not fact.wake_at else self.pair.time + (fact.wake_at or 0)
        reason = waits[0] if waits else "timer"
        awaits = None if fact.awaits is None or len(waits) > 1 else self._awaited(hand, reason)
        fact = msgspec.structs.replace(
            fact, inbox=hand.seen.inbox, waits=waits, reason=reason, wake_at=wake_at, awaits=awaits
        )
        self.tell_by(hand, fact, later)

    def _awaited(self, hand: Hand, reason: str) -> Awaited:
        """An operation of a name of its own for each holder: nobody has recorded it before."""
        word, _, name = reason.partition(":")
        op = {"timer": "sleep", "event": "receive"}.get(word, word)
        return Awaited(op, f"{hand.seen.epoch}.", name or "sleep", 1, len(self.oracle.all(JournalEntry)))

    # ---- batches and lost replies ---------------------------------------------------------------------------------

    @operation(often=3, repeats=st.lists(universe.picks, max_size=2))
    def commit_together(self, repeats: list[int]) -> None:
        """All that was kept back, in one batch; some of it twice."""
        batch, self.pending = self.pending, []
        self.commit([*batch, *(batch[pick % len(batch)] for pick in repeats if batch)])

    @operation(often=2, picks=st.lists(universe.recent, min_size=1, max_size=3))
    def commit_again(self, picks: list[int]) -> None:
        """The replies were lost, or so their senders think."""
        sent = [one for one in self.sent if not self._began_a_former_life(one)]
        self.commit([sent[-1 - pick % len(sent)] for pick in picks if sent])

    def _began_a_former_life(self, sent: Sent) -> bool:
        """Whether this started an execution that has ended and been purged since: no sender is that patient."""
        life = self.purges.get(sent.changes.anchors[0], 0)
        return isinstance(sent.fact, facts.Start) and sent.applied_in not in (None, life)

    @operation(often=2, data=st.data(), many=st.integers(1, 3), later=universe.rarely)
    def raw(self, data: st.DataObject, many: int, later: bool) -> None:
        """Changes that no machine would make: guards that fail, several anchors, odd combinations."""
        drawn = [
            data.draw(raw_changes(self.records, self.new_id(), self.pair.time, self.pair.home)) for _ in range(many)
        ]
        if later:
            self.pending += [Sent(changes) for changes in drawn]
        else:
            self.commit([Sent(changes) for changes in drawn])

    # ---- flows ----------------------------------------------------------------------------------------------------

    @operation(often=3, shape=flows.shapes, worker=universe.workers, later=universe.rarely)
    def start_flow(self, shape: flows.Shape, worker: str, later: bool) -> None:
        self.accept(shape, later=later)
        self.store_and_oracle_agree()
        self.claim_all(worker)

    @operation(
        often=8,
        worker=universe.workers,
        ending=universe.endings,
        ended=universe.picks,
        which=st.sampled_from([15, 15, 15, 1, 2, 14]),
        counts=st.lists(universe.picks, max_size=3),
        unusable=universe.rarely,
        later=universe.rarely,
    )
    def advance_flow(
        self,
        worker: str,
        ending: facts.AnyFact,
        ended: int,
        which: int,
        counts: list[int],
        unusable: bool,
        later: bool,
    ) -> None:
        """A member ends; an end is carried to some of those that wait for it; then members, and a flow, count."""
        self.claim_all(worker)
        hand = self.members_hand(ended)
        if hand is not None:
            self.look(hand)
            self._by_holder(hand, ending, ended, later=False)
        self.store_and_oracle_agree()
        self.answer(ended, which, later=later)
        self.store_and_oracle_agree()
        for pick in counts:
            self.count(pick, unusable=unusable, later=later)
            self.store_and_oracle_agree()
        self.sum_up(ended, later=later)

    @operation(
        often=3,
        worker=universe.workers,
        ends=st.lists(st.sampled_from([True, True, True, False]), min_size=4, max_size=4),
        again=st.booleans(),
    )
    def run_flows(self, worker: str, ends: list[bool], again: bool) -> None:
        """All members end, one way or the other, as far as nobody is in the way; then a flow may be retried."""
        for succeeds in ends:
            self.claim_all(worker)
            self.end_members(succeeds=succeeds)
            for pick in range(4):
                self.answer(pick, 15, later=False)
            for pick in range(3):
                self.count(pick, unusable=False, later=False)
            self.store_and_oracle_agree()
        for pick in range(len(flows.FLOWS)):
            self.sum_up(pick, later=False)
            self.sum_up(pick, later=False)
        if again:
            self.retry(0)

    @operation(often=2, pick=universe.picks, node=flows.nodes, joins=st.booleans(), later=universe.rarely)
    def grow_flow(self, pick: int, node: flows.Node, joins: bool, later: bool) -> None:
        hand = self.members_hand(pick)
        if hand is not None:
            self.look(hand)
            self.grow(hand, node, joins=joins, later=later)

    @operation(
        often=2,
        pick=universe.picks,
        policy=st.sampled_from(CancelPolicy),
        told=st.lists(st.tuples(universe.picks, universe.rarely), max_size=3),
        worker=universe.workers,
        later=universe.rarely,
    )
    def stop_flow(
        self, pick: int, policy: CancelPolicy, told: list[tuple[int, bool]], worker: str, later: bool
    ) -> None:
        """No member may be claimed from here on; some of them are told."""
        self.stop(pick, policy, later=later)
        self.store_and_oracle_agree()
        self.claim_all(worker)
        for whom, last in told:
            self.acknowledge(whom, last=last, later=later)
            self.store_and_oracle_agree()

    @operation(often=2, pick=universe.picks)
    def retry_flow(self, pick: int) -> None:
        self.retry(pick)

    # ---- workers --------------------------------------------------------------------------------------------------

    @operation(
        often=5,
        more=universe.supplies,
        namespace=universe.NAMES,
        worker=universe.workers,
        lanes=st.sampled_from([("default", "slow"), ("slow", "default"), ("default",), ("slow", "slow")]),
        serves=st.sampled_from([universe.WORKFLOWS, universe.WORKFLOWS[:1], universe.WORKFLOWS[1:]]),
        capabilities=st.sampled_from([("gpu", "net"), ("gpu",), ()]),
        limit=universe.limits,
        ttl_ms=universe.ttls_ms,
        suspects=st.sampled_from([None, None, 0, 1]),
    )
    def claim(self, more: universe.Supply, **asked: Any) -> None:
        """What some worker serves, of what there is and of a little more."""
        self._supply(more)
        self._claim(**asked)

    def _claim(
        self,
        *,
        worker: str,
        namespace: str = "default",
        lanes: tuple[str, ...] = ("default", "slow"),
        serves: Sequence[tuple[str, str]] = universe.WORKFLOWS,
        capabilities: tuple[str, ...] = ("gpu", "net"),
        limit: int = 100,
        ttl_ms: int = 10_000,
        suspects: int | None = None,
    ) -> None:
        request = ClaimRequest(
            namespace=namespace,
            lanes=lanes,
            serves=frozenset(serves),
            worker=worker,
            claim_id=self.new_id(),
            limit=limit,
            lease_ttl_ms=ttl_ms,
            capabilities=frozenset(capabilities),
            suspects=suspects,
            leap=1 + len(self.requests) % 3,
        )
        self.requests.append(request)
        self.take(request)

    def _supply(self, more: universe.Supply) -> None:
        """Ready work, new and resumed: something is started, something that ran for a while is handed back."""
        self.clock.advance(more.after_ms / 1_000)
        for fact in more.starts:
            self.tell(self.oracle.view(fact.namespace, fact.id), fact)
        for pick in more.handed_back:
            hand = self.hand(pick, zombie=False)
            if hand is not None:
                self._hand_back(hand)
        self.store_and_oracle_agree()

    def _hand_back(self, hand: Hand) -> None:
        self.look(hand)
        self.tell_by(hand, facts.HandBack(change_id=universe.LATER, epoch=hand.epoch), later=False)

    @operation(often=2, worker=universe.workers)
    def claim_all(self, worker: str) -> None:
        """Whatever is ready, so that work goes on."""
        for namespace in ("default", "other"):
            self._claim(worker=worker, namespace=namespace)

    @operation(pick=universe.picks)
    def claim_again(self, pick: int) -> None:
        self.take(self.requests[-1 - pick % len(self.requests)])

    @operation(worker=universe.workers, ttl_ms=universe.ttls_ms)
    def renew(self, worker: str, ttl_ms: int) -> None:
        self.run(self.pair.renew(worker, lease_ttl_ms=ttl_ms))

    @operation(worker=universe.workers, pick=universe.picks)
    def held(self, worker: str, pick: int) -> None:
        """In some partitions, perhaps in all."""
        partitions = range(self.pair.store.partitions)
        self.run(self.pair.held(worker, frozenset(partitions[: 1 + pick % len(partitions)])))

    @operation(
        pick=universe.picks,
        zombie=universe.rarely,
        frames=st.lists(universe.values, min_size=1, max_size=3),
        again=st.booleans(),
    )
    def append(self, pick: int, zombie: bool, frames: list[bytes], again: bool) -> None:
        hand = self.hand(pick, zombie=zombie)
        if hand is None:
            return
        if not (again and self.appends):
            self.appends.append((hand, self.new_id(), tuple(frames)))
            pick = 0
        hand, change_id, written = self.appends[-1 - pick % len(self.appends)]
        self.run(self.pair.append(hand.key, epoch=hand.epoch, change_id=change_id, frames=written))

    # ---- time -----------------------------------------------------------------------------------------------------

    @operation(
        often=3,
        pick=universe.picks,
        offset_ms=st.sampled_from([0, 0, -1, 1]),
        ms=st.sampled_from([0, 0, 0, 1, 1_000, 60_000, 3_600_000, -1, -1_000, -60_000]),
    )
    def turn_the_clock(self, pick: int, offset_ms: int, ms: int) -> None:
        """To the very millisecond at which something comes due, or one beside it; or by any amount, also back."""
        ms = ms or max(0, self._until_due(pick) + offset_ms)
        if ms > 0:
            self.clock.advance(ms / 1_000)
        elif self.turns_back:
            self.clock.turn_back(-ms / 1_000)
        self.run(self.pair.now())

    @operation(
        often=5,
        wait=st.none() | universe.picks,
        kinds=st.just(list(DueKind)) | st.lists(st.sampled_from(DueKind), min_size=1, max_size=1),
        limit=universe.limits,
        filter=universe.filters,
        act=st.sampled_from([True, True, False]),
    )
    def reconcile(self, wait: int | None, kinds: list[DueKind], limit: int, filter: Filter, act: bool) -> None:
        """What reconcilers do: look at what is due, and say so; often just when it has become due."""
        if wait is not None:
            self.clock.advance(self._until_due(wait) / 1_000)
        for kind in kinds:
            due = self.run(self.pair.due(kind, limit=limit, filter=filter))
            if act:
                self.commit([sent for item in due.items for sent in self.due_facts(kind, item.record)])
                self.store_and_oracle_agree()

    def _until_due(self, pick: int) -> int:
        """How many milliseconds until one of the times that any record has ahead of it; 0 if there is none."""
        now = self.clock.now_ms()
        times = [getattr(record, field) for record in self.records.values() for field in record.TIMES]
        ahead = sorted({time - now for time in times if time is not None and time > now})
        return ahead[pick % len(ahead)] if ahead else 0

    @operation(back_ms=st.sampled_from([0, 1_000, 60_000]))
    def reopen(self, back_ms: int) -> None:
        """A new process takes over; its clock may be behind."""
        if self.turns_back:
            self.clock.turn_back(back_ms / 1_000)
        self.run(self.pair.reopened(self.reopen_store))

    # ---- operators ------------------------------------------------------------------------------------------------

    @operation(often=3, gate=universe.gates, more=universe.supplies, worker=universe.workers)
    def set_gate(self, gate: universe.Gate, more: universe.Supply, worker: str) -> None:
        """An operator sets a gate, work comes to it, and a worker."""
        self._set_gate(gate)
        self._supply(more)
        self.claim_all(worker)

    def _set_gate(self, gate: universe.Gate) -> None:
        match gate:
            case Flow():
                home = self.oracle.home(gate.namespace, gate.id)
                self.commit([Sent(one_change(self.new_id(), home, gate.key, (), (Put(gate),)))])
            case Quota():
                self.grant(gate.namespace, gate.free)
            case Lane():
                self.put([msgspec.structs.replace(gate, partition=p) for p in self.partitions])
            case _:
                keys = [quota_key(p, gate, universe.QUOTA) for p in self.partitions]
                self.commit(
                    [Sent(one_change(self.new_id(), p, keys[p], (), (Delete(keys[p]),))) for p in self.partitions]
                )

    @operation(
        often=2,
        pick=st.none() | universe.picks,
        offset_ms=st.sampled_from([0, 0, 1]),
        limit=universe.limits,
        filter=universe.filters,
    )
    def purge(self, pick: int | None, offset_ms: int, limit: int, filter: Filter) -> None:
        """By retention, or what ended before some other one did, to the millisecond."""
        ends = sorted({e.finished_at for e in self.oracle.all(Execution) if isinstance(e.finished_at, int)}) or [0]
        finished_before = None if pick is None else ends[pick % len(ends)] + offset_ms
        for key in self.run(self.pair.purge(finished_before=finished_before, limit=limit, filter=filter)):
            self.purges[key] = self.purges.get(key, 0) + 1
            self.history.pop(key, None)

    # ---- readers --------------------------------------------------------------------------------------------------

    @operation(
        often=3,
        what=st.sampled_from(["scan", "completions", "completions", "frames"]) | universe.queries,
        pick=universe.picks,
        number=st.integers(0, 3),
        limit=universe.limits,
        filter=universe.filters,
    )
    def read(self, what: str | Query, pick: int, number: int, limit: int, filter: Filter) -> None:
        """A scan under a prefix of some record's key; the feed on from any cursor ever given; a stream; a query."""
        if isinstance(what, Query):
            self._find(what, pick, number)
        elif what == "scan":
            key = list(self.records)[pick % len(self.records)]
            length = min(number, len(KINDS[key.kind].KEY))
            self.run(self.pair.scan(key.kind, key.values[:length], limit=limit))
        elif what == "completions":
            position = self.positions[-1 - pick % len(self.positions)]
            _, then = self.run(self.pair.completions(position, limit=limit, filter=filter))
            self.positions.append(then)
        else:
            stream = chosen(list(self.oracle.streams), pick) or ("default", "a")
            self.run(self.pair.frames(execution_key(*stream), after=number, limit=limit))

    def _find(self, query: Query, pick: int, bounds: int) -> None:
        """With bounds on the time of creation that are times of creation."""
        times = sorted({e.created_at for e in self.oracle.all(Execution) if isinstance(e.created_at, int)}) or [0]
        since = times[pick % len(times)] if bounds & 1 else None
        before = times[(pick // 2) % len(times)] if bounds & 2 else None
        self.run(self.pair.find(msgspec.structs.replace(query, created_from=since, created_before=before)))

    # ---- the rules ------------------------------------------------------------------------------------------------

    @initialize(
        starts=st.lists(universe.starts(), min_size=2, max_size=6),
        free=st.integers(0, 2),
        worker=universe.workers,
        gates=st.lists(universe.gates, max_size=2),
        never=st.frozensets(st.sampled_from(sorted(set(OPERATIONS) - {"start", "claim", "work"})), max_size=4),
    )
    def begin(
        self, starts: list[facts.Start], free: int, worker: str, gates: list[universe.Gate], never: frozenset[str]
    ) -> None:
        """Some work, and a worker that took it: otherwise most examples would end before anything has happened.

        Some operations never happen in this example: what others cover up comes to light without them.
        """
        self.never = never
        self.grant("default", free)
        for gate in gates:
            self._set_gate(gate)
        for fact in starts:
            self.tell(self.view((fact.namespace, fact.id), None), fact)
        self.claim_all(worker)

    @rule(operation=st.sampled_from(_often()).flatmap(_drawn))
    def then(self, operation: tuple[str, dict[str, Any]]) -> None:
        name, arguments = operation
        if name not in self.never:
            getattr(self, name)(**arguments)


def _awaited(fact: facts.AnyFact, view: View) -> facts.AnyFact:
    """The message that the execution waits for, if it waits: one that wakes tells more than one that does not."""
    waits = () if view.execution is None else view.execution.waits_for
    if not waits or not isinstance(fact, facts.EventSent | facts.DeferredResolved | facts.ChildCompleted):
        return fact
    kind, _, name = waits[0].partition(":")
    match kind:
        case "event":
            return facts.EventSent(change_id=fact.change_id, name=name, value=fact.value or b"")
        case "deferred":
            return facts.DeferredResolved(change_id=fact.change_id, name=name, value=fact.value or b"")
        case "child":
            return facts.ChildCompleted(change_id=fact.change_id, child=name, status=Status.SUCCEEDED, value=fact.value)
        case _:
            return fact
