"""A batch of what flows say answers as its changes would one after the other: starts, ends that hand on, what is in
their way, and what is said again."""

from __future__ import annotations

from random import Random

import pytest
from msgspec import structs

from outlast.machine import Changes, View, decide
from outlast.machine.changes import Matches, Patch
from outlast.machine.decide_flow import NewFlow, NewMember, accepted
from outlast.machine.decide_member import Ended, MemberView, waits
from outlast.machine.plan_end import Downstream, Last, plan_end
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import Flow, Member, Summary, flow_key, member_key, summary_key
from outlast.model.record import Key, Plain, Record
from outlast.model.status import Status
from outlast.store.port import Store, Verdict
from outlast.testing.conformance.actors import (
    NAMESPACE,
    TTL_MS,
    cancels,
    commit,
    commit_one,
    completes,
    new_id,
    partition,
    start_fact,
    state,
    steps,
)
from outlast.testing.conformance.batches import plain, unnumbered
from outlast.testing.conformance.harness import Conformance, World

FLOWS = tuple("abcdefghijklmnop")
MEMBERS = ("one", "two", "three")
WORKER = "w1"
ACTIONS = 250
SAID = (*["end"] * 20, "step", "start", "start", "member", "namesake", "cancel", "stop", "stop", *["count"] * 3)


class FlowBatchConformance(Conformance):
    @pytest.mark.parametrize("seed", range(8))
    async def test_a_batch_of_flows_is_as_its_changes_one_after_the_other(self, world: World, seed: int) -> None:
        chance = Random(seed)
        store = await world.store()
        await store.renew(WORKER, lease_ttl_ms=TTL_MS)
        told = _Told(store, chance, repeats=0.1 if seed % 2 == 0 else 0.0)
        singly = [await told.one() for _ in range(ACTIONS)]
        changes = [change for change, _ in singly]
        assert sum(verdict.applied and not verdict.again for _, verdict in singly) > ACTIONS // 6
        assert sum(not verdict.applied for _, verdict in singly) > ACTIONS // 10
        expected = await _state(store)

        await world.begin()
        store = await world.store()
        await store.renew(WORKER, lease_ttl_ms=TTL_MS)
        together: list[Verdict] = []
        while len(together) < ACTIONS:
            together += await commit(store, *changes[len(together) : len(together) + chance.choice((3, 10, 40, 100))])
        for number, ((change, one), among) in enumerate(zip(singly, together, strict=True)):
            assert plain(one) == plain(among), (number, change)
        assert await _state(store) == expected

    async def test_a_guard_on_a_record_of_a_flow_holds_only_if_every_field_is_so(self, world: World) -> None:
        store = await world.store()
        await store.renew(WORKER, lease_ttl_ms=TTL_MS)
        home, second = partition(store, "a"), f"a/{MEMBERS[1]}"
        start = flow_start(home, "a", WORKER)
        assert (await commit_one(store, start)).applied
        gate, member = flow_key(NAMESPACE, "a"), member_key(NAMESPACE, second)
        asked: list[tuple[Key, dict[str, Plain], bool]] = [
            (gate, {}, True),
            (gate, {"state": "open", "revision": 0}, True),
            (gate, {"state": "open", "revision": 0, "cancel_at": None, "name": "line"}, True),
            (gate, {"state": "open", "revision": 1}, False),
            (gate, {"state": "stopped", "revision": 0}, False),
            (gate, {"state": "open", "revision": 0, "name": "other"}, False),
            (gate, {"revision": None}, False),
            (gate, {"revision": "0"}, False),
            (flow_key(NAMESPACE, "none"), {"revision": 0}, False),
            (member, {"answered": 0, "drained": "", "settled": "open", "change_id": start.id}, True),
            (member, {"answered": 0, "drained": "", "settled": "open", "change_id": start.id, "needed": 1}, True),
            (member, {"answered": 0, "drained": "", "settled": "open", "change_id": start.id, "needed": 2}, False),
            (member, {"answered": 1, "drained": ""}, False),
            (member, {"answered": 0, "drained": "a/one"}, False),
            (member, {"settled": None}, False),
        ]
        for number, (key, fields, holds) in enumerate(asked):
            guarded = Changes(
                id=new_id(),
                partition=home,
                anchors=(execution_key(NAMESPACE, second),),
                guards=(Matches(key, fields),),
                writes=(Patch(summary_key(NAMESPACE, "a"), {"checks": number}),),
            )
            assert (await commit_one(store, guarded)).applied is holds, fields


async def _state(store: Store) -> tuple[dict[str, list[object]], list[Record | None]]:
    ids = [f"{flow}/{name}" for flow in FLOWS for name in (*MEMBERS, "")]
    heads = [key(NAMESPACE, flow) for flow in FLOWS for key in (flow_key, summary_key)]
    return unnumbered(await state(store, *FLOWS, *ids)), await store.load(heads)


class _Told:
    """What several who know more or less of some flows want written, each committed when it is said."""

    def __init__(self, store: Store, chance: Random, *, repeats: float) -> None:
        self._store = store
        self._chance = chance
        self._repeats = repeats
        self._seen: dict[Key, Record] = {}
        """As somebody saw them, perhaps a while ago."""
        self._said: list[Changes] = []

    async def one(self) -> tuple[Changes, Verdict]:
        flow = self._chance.choice(FLOWS)
        while (change := self._next(flow)) is None:
            flow = self._chance.choice(FLOWS)
        verdict = await commit_one(self._store, change)
        if self._chance.random() < 0.6:
            await self._look(flow)
        self._said.append(change)
        return change, verdict

    async def _look(self, flow: str) -> None:
        ids = [f"{flow}/{name}" for name in MEMBERS]
        keys = [flow_key(NAMESPACE, flow), summary_key(NAMESPACE, flow)]
        keys += [key(NAMESPACE, member) for member in ids for key in (execution_key, member_key)]
        for key, record in zip(keys, await self._store.load(keys), strict=True):
            if record is not None:
                self._seen[key] = record

    def _next(self, flow: str) -> Changes | None:
        chance, home = self._chance, partition(self._store, flow)
        if self._said and chance.random() < self._repeats:
            return chance.choice(self._said[-20:])
        what, name = chance.choice(SAID), chance.choice(MEMBERS)
        if what in ("member", "namesake"):
            of_another = {"parent": flow} if what == "member" else {}
            taken = start_fact(f"{flow}/{name}" if what == "member" else flow, **of_another)
            answer = decide(View(home, None), taken, 0)
            return answer if isinstance(answer, Changes) else None
        gate = self._seen.get(flow_key(NAMESPACE, flow))
        if not isinstance(gate, Flow) or what == "start":
            return flow_start(home, flow, chance.choice((WORKER, WORKER, WORKER, "nobody")))
        if what == "stop":
            grown = Patch(gate.key, {"revision": gate.revision + 1})
            return Changes(id=new_id(), partition=home, anchors=(gate.key,), writes=(grown,))
        execution = self._seen.get(execution_key(NAMESPACE, f"{flow}/{name}"))
        assert isinstance(execution, Execution)
        if what == "count":
            drained = Patch(member_key(NAMESPACE, execution.id), {"drained": new_id()})
            return Changes(id=new_id(), partition=home, anchors=(execution.key,), writes=(drained,))
        if what == "end" and execution.status is Status.ACTIVE:
            return self._end(home, gate, execution)
        fact = steps(execution, name, occurrence=chance.randrange(3)) if what == "step" else cancels()
        answer = decide(View(home, execution), fact, 0) if what != "end" else None
        return answer if isinstance(answer, Changes) else None

    def _end(self, home: int, gate: Flow, execution: Execution) -> Changes | None:
        """With what follows on it: the next member begins, or the flow ends."""
        end = decide(View(home, execution), structs.replace(completes(execution), hands_on=True), 0)
        if not isinstance(end, Changes):
            return None
        ended = Ended(NAMESPACE, execution.id, Status.SUCCEEDED, execution.generation)
        at = MEMBERS.index(execution.id.partition("/")[2]) + 1
        if at == len(MEMBERS):
            summary = self._seen[summary_key(NAMESPACE, gate.id)]
            others = [Ended(NAMESPACE, f"{gate.id}/{name}", Status.SUCCEEDED, 1) for name in MEMBERS[:-1]]
            assert isinstance(summary, Summary)
            open_still = summary.outcome is None and not summary.ended
            last = Last(summary, others) if open_still else None
            return plan_end(ended, [], first=end, gate=gate, last=last).changes
        follower = f"{gate.id}/{MEMBERS[at]}"
        waiting, member = (self._seen[key(NAMESPACE, follower)] for key in (execution_key, member_key))
        assert isinstance(waiting, Execution)
        assert isinstance(member, Member)
        view, worker = MemberView(home, waiting, member), WORKER if self._chance.random() < 0.8 else None
        if not waits(view):
            return None
        following = Downstream(view, new_id("wake"), worker=worker)
        return plan_end(ended, [following], first=end, gate=gate).changes


def flow_start(home: int, flow: str, worker: str) -> Changes:
    new = NewFlow(namespace=NAMESPACE, id=flow, name="line", digest="d", members=len(MEMBERS), change_id=new_id("flow"))
    ids = [f"{flow}/{name}" for name in MEMBERS]
    members = [
        NewMember(
            start=start_fact(execution_id, flow=flow, after_dependencies=position > 0, change_id=new.change_id),
            name=name,
            position=position,
            upstreams=tuple(ids[position - 1 : position]) if position else (),
            needed=1 if position else 0,
        )
        for position, (name, execution_id) in enumerate(zip(MEMBERS, ids, strict=True))
    ]
    return accepted(home, new, members, worker=worker, begins=ids[:1])
