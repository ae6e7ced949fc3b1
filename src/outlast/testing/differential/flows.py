"""Whole flows in the differential test: small DAGs that are accepted or staged, whose edges are answered and counted by
anybody at any time, that grow, are stopped, and opened again. What the runtime makes of many changes is played here
change by change, so that others come in between.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from outlast.machine import facts
from outlast.machine.amendments import together
from outlast.machine.changes import Changes, Refusal
from outlast.machine.decide import decide
from outlast.machine.decide_flow import (
    FlowView,
    NewFlow,
    NewMember,
    accepted,
    chunks,
    grown,
    lanes_of,
    opened,
    reopening,
    staged,
    staged_members,
)
from outlast.machine.decide_flow import reopened as flow_reopened
from outlast.machine.decide_member import (
    Ended,
    MemberView,
    advance,
    answered_edge,
    finished,
    reopened,
    siblings_settled,
    tallied,
    waits,
    wants_input,
    widened,
)
from outlast.machine.decide_stop import acknowledged, stopped
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import (
    CancelPolicy,
    Edge,
    EdgeAnswer,
    Flow,
    Member,
    OnFailure,
    OnSatisfied,
    Summary,
    flow_key,
    member_id,
    summary_key,
    whole_of,
)
from outlast.model.outbox import Delivery
from outlast.model.record import Record
from outlast.model.status import Status
from outlast.testing.differential import universe
from outlast.testing.differential.play import Hand, Play, Sent, chosen

NAMESPACE = "default"
FLOWS = ["h", "i"]
"""Apart from the flow of `universe`, whose gate an operator sets as he likes."""


class Node(NamedTuple):
    upstreams: int
    """Which of the members before it, a bit each."""
    needed: int
    on_failure: OnFailure
    on_satisfied: OnSatisfied
    binds: bool
    lane: str


class Shape(NamedTuple):
    flow: str
    nodes: list[Node]
    retention_ms: int | None
    staged: bool


shapes = st.builds(
    Shape,
    flow=st.sampled_from(FLOWS),
    nodes=st.lists(
        st.builds(
            Node,
            upstreams=st.sampled_from([0, 1, 1, 2, 3, 3, 5, 7]),
            needed=st.integers(1, 3),
            on_failure=st.sampled_from(OnFailure),
            on_satisfied=st.sampled_from(OnSatisfied),
            binds=st.booleans(),
            lane=st.sampled_from(universe.LANES),
        ),
        min_size=2,
        max_size=4,
    ),
    retention_ms=st.sampled_from([None, 0, 30_000]),
    staged=universe.rarely,
)


class FlowPlay(Play):
    """What may happen to flows; the operations of `rules.py` say how often."""

    # ---- beginnings -----------------------------------------------------------------------------------------------

    def accept(self, shape: Shape, *, later: bool) -> None:
        change_id = self.new_id()
        members = [self._member(shape, number, change_id) for number in range(len(shape.nodes))]
        new = NewFlow(
            namespace=NAMESPACE,
            id=shape.flow,
            name="nightly",
            digest=repr(shape),
            members=len(members),
            retention_ms=shape.retention_ms,
            change_id=change_id,
        )
        home = self.oracle.home(NAMESPACE, shape.flow)
        if not shape.staged:
            return self.send(Sent(accepted(home, new, members)), later=later)
        parts = [staged_members(home, new, change_id, n, part) for n, part in enumerate(chunks(members))]
        for changes in (staged(home, new), *parts, *parts):
            self._commit(changes)
        return self.send(Sent(opened(home, new, change_id, lanes_of(members))), later=later)

    def _member(self, shape: Shape, number: int, change_id: str) -> NewMember:
        node = shape.nodes[number]
        above = [n for n in range(number) if node.upstreams >> n & 1]
        return self._new_member(
            shape.flow,
            f"m{number}",
            tuple(member_id(shape.flow, f"m{n}") for n in above),
            node,
            change_id,
        )

    def _new_member(self, flow: str, name: str, upstreams: tuple[str, ...], node: Node, change_id: str) -> NewMember:
        workflow, version = universe.WORKFLOWS[0]
        start = facts.Start(
            change_id=change_id,
            namespace=NAMESPACE,
            id=member_id(flow, name),
            flow=flow,
            workflow=workflow,
            version=version,
            input=b"",
            input_digest="",
            lane=node.lane,
            after_dependencies=bool(upstreams),
            first_epoch=self.next_epochs(),
        )
        return NewMember(
            start=start,
            name=name,
            upstreams=upstreams,
            needed=min(node.needed, len(upstreams)),
            on_satisfied=node.on_satisfied,
            on_failure=node.on_failure,
            template=b"template" if node.binds and upstreams else None,
        )

    def grow(self, hand: Hand, node: Node, *, joins: bool, later: bool) -> None:
        """Who holds a member adds one behind it; one that waits for it may be made to wait for that too."""
        e = hand.seen
        heads = None if e.flow is None else self._heads(e.flow)
        if heads is None or heads.flow is None or heads.summary is None:
            return
        change_id = self.new_id()
        new = self._new_member(heads.flow.id, f"grown-{change_id}", (e.id,), node, change_id)
        below = [d.downstream for d in self.oracle.all(Edge) if d.execution == e.id] if joins else []
        joined = self._view_of(below[0]) if below else None
        changes = grown(heads, e, [new], change_id, joined_by=None if joined is None else joined.execution.id)
        if isinstance(changes, Refusal):
            return
        if joined is not None:
            wider = widened(joined, (new.start.id,), b"wider", change_id)
            if isinstance(wider, Refusal):
                return
            changes = together(changes, [wider])
        self.send(Sent(changes), later=later)

    def members_hand(self, pick: int) -> Hand | None:
        """Of a worker that holds a member, or once did."""
        hands = [hand for hand in self.hands if hand.seen.flow in FLOWS]
        return chosen(sorted(hands, key=self.holds), pick % 4)

    def end_members(self, *, succeeds: bool) -> None:
        """Whoever holds a member comes to its end."""
        for hand in [hand for hand in self.hands if hand.seen.flow in FLOWS and self.holds(hand)]:
            self.look(hand)
            ending: facts.AnyFact = facts.Complete(change_id=universe.LATER, epoch=hand.epoch, output=b"1")
            if not succeeds:
                ending = facts.Fail(change_id=universe.LATER, epoch=hand.epoch, failure=b"{}", retryable=False)
            self.tell_by(hand, ending, later=False)

    # ---- ends and edges -------------------------------------------------------------------------------------------

    def answer(self, pick: int, which: int, *, later: bool) -> None:
        """Some of the edges of a member that has ended are answered, perhaps once more."""
        told = {
            (edge.upstream, edge.generation)
            for edge in self.oracle.all(EdgeAnswer)
            if edge.execution in map(whole_of, FLOWS)
        }
        ended = [e for e in self._executions() if e.status.terminal]
        e = chosen(sorted(ended, key=lambda e: (e.id, e.generation) not in told), pick % 4)
        if e is None or e.flow is None:
            return
        end = Ended(e.namespace, e.id, e.status, e.generation)
        below = [d.downstream for d in self.oracle.all(Edge) if (d.namespace, d.execution) == (NAMESPACE, e.id)]
        for number, downstream in enumerate([whole_of(e.flow), *sorted(below)]):
            if which >> number & 1:
                self.send(Sent(answered_edge(self.oracle.home(NAMESPACE, e.flow), end, downstream)), later=later)

    def count(self, pick: int, *, unusable: bool, later: bool) -> None:
        """A member counts what has come to it."""
        view = chosen(self._views(), pick % 3)
        if view is None:
            return
        edges = self._edges(view.execution.id, view.member.drained)
        data = b"input" if wants_input(view, edges) and not unusable else None
        why = "input: no" if wants_input(view, edges) and unusable else None
        advanced = advance(view, edges, change_id=self.new_id(), input=data, unusable=why)
        self._send(advanced.changes, later=later)

    def sum_up(self, pick: int, *, later: bool) -> None:
        """A flow counts the ends of its members, and ends with the last."""
        heads = self._some_heads(pick)
        if heads is None or heads.flow is None or heads.summary is None:
            return
        edges = self._edges(whole_of(heads.flow.id), heads.summary.drained)
        changes = tallied(heads.partition, heads.flow, heads.summary, edges, self.new_id())
        if changes is None:
            changes = finished(
                heads.partition, heads.flow, heads.summary, made_up_for=pick % 3 == 2, change_id=self.new_id()
            )
        self._send(changes, later=later)

    # ---- stopping, and once more ----------------------------------------------------------------------------------

    def stop(self, pick: int, policy: CancelPolicy, *, later: bool) -> None:
        heads = self._some_heads(pick)
        if heads is not None:
            changes = stopped(heads, policy=policy, reason="enough", grace_ms=5_000, change_id=self.new_id())
            self._send(changes, later=later)

    def acknowledge(self, pick: int, *, last: bool, later: bool) -> None:
        """The cancel of a stopped flow reaches a member, in one commit with the acknowledgement."""
        view = chosen(self._views(), pick)
        heads = None if view is None else self._heads(view.member.flow)
        if view is None or heads is None or heads.flow is None or view.member.acknowledged:
            return
        ack = acknowledged(heads.partition, view.member, heads.flow, self.new_id(), last=last)
        cancel = facts.CancelRequested(change_id=self.new_id(), reason="enough")
        answer = decide(self.oracle.view(NAMESPACE, view.execution.id), cancel, self.pair.time)
        if not isinstance(answer, Refusal):
            ack = together(answer, [ack])
        self.send(Sent(ack), later=later)

    def retry(self, pick: int) -> None:
        """A flow that did not succeed is opened again, member by member; others may have struck off what is owed."""
        unlucky = [
            s.id for s in self.oracle.all(Summary) if s.id in FLOWS and s.outcome not in (None, Status.SUCCEEDED)
        ]
        heads = self._heads(unlucky[0]) if unlucky else self._some_heads(pick)
        if heads is None or heads.flow is None:
            return
        self._send(reopening(heads, change_id=self.new_id()), later=False)
        heads = self._heads(heads.flow.id)
        debts = [d for d in self.oracle.all(Delivery) if heads.flow is not None and d.target == whole_of(heads.flow.id)]
        if heads.flow is None or not debts:
            return
        for view in self._views():
            if view.member.flow == heads.flow.id:
                edges = self._edges(view.execution.id, "")
                self._send(reopened(view, edges, flow=heads.flow, change_id=self.new_id()), later=False)
        heads = self._heads(heads.flow.id)
        self._commit(flow_reopened(heads, debts[0], lanes=(), change_id=self.new_id()))

    def flow_due(self, record: Record) -> list[Sent]:
        """What a reconciler does with a flow's record that is due, as far as it is one change."""
        if isinstance(record, Member):
            home = self.oracle.home(record.namespace, record.execution)
            return [Sent(siblings_settled(home, record, self.new_id()))]
        return []

    # ---- looking --------------------------------------------------------------------------------------------------

    def _send(self, changes: Changes | Refusal | None, *, later: bool) -> None:
        if isinstance(changes, Changes):
            self.send(Sent(changes), later=later)

    def _commit(self, changes: Changes) -> None:
        self.commit([Sent(changes)])
        self.store_and_oracle_agree()

    def _executions(self) -> list[Execution]:
        return [e for e in self.oracle.all(Execution) if e.namespace == NAMESPACE and e.flow in FLOWS]

    def _views(self) -> list[MemberView]:
        """Those that wait come last, and of them those that were answered: so they are chosen more often."""
        views = [view for e in self._executions() if (view := self._view_of(e.id)) is not None]
        return sorted(views, key=lambda view: (waits(view), bool(self._edges(view.execution.id, view.member.drained))))

    def _view_of(self, execution_id: str) -> MemberView | None:
        members = {m.execution: m for m in self.oracle.all(Member) if m.namespace == NAMESPACE}
        execution, member = (
            self.oracle.get(execution_key(NAMESPACE, execution_id), Execution),
            members.get(execution_id),
        )
        if execution is None or member is None:
            return None
        return MemberView(self.oracle.home(NAMESPACE, execution_id), execution, member)

    def _edges(self, execution_id: str, drained: str) -> list[EdgeAnswer]:
        found = [e for e in self.oracle.scan(EdgeAnswer.KIND, (NAMESPACE, execution_id)) if isinstance(e, EdgeAnswer)]
        names = [edge.upstream for edge in found]
        return found[names.index(drained) + 1 if drained in names else 0 :]

    def _some_heads(self, pick: int) -> FlowView | None:
        flow = chosen([f.id for f in self.oracle.all(Flow) if f.id in FLOWS], pick)
        return None if flow is None else self._heads(flow)

    def _heads(self, flow_id: str) -> FlowView:
        return FlowView(
            self.oracle.home(NAMESPACE, flow_id),
            self.oracle.get(flow_key(NAMESPACE, flow_id), Flow),
            self.oracle.get(summary_key(NAMESPACE, flow_id), Summary),
        )


nodes = st.builds(
    Node,
    upstreams=st.just(0),
    needed=st.just(1),
    on_failure=st.sampled_from(OnFailure),
    on_satisfied=st.sampled_from(OnSatisfied),
    binds=st.booleans(),
    lane=st.sampled_from(universe.LANES),
)
