"""A batch answers as its changes would one after the other, however a store writes them."""

from __future__ import annotations

from random import Random

import pytest

from outlast.machine import Changes, View, decide, facts
from outlast.machine.changes import Delete, Put
from outlast.model.execution import Execution
from outlast.model.lane import Lane, lane_key
from outlast.model.record import Record
from outlast.store.port import Store, Verdict
from outlast.testing.conformance.actors import (
    LANE,
    NAMESPACE,
    TTL_MS,
    State,
    cancels,
    commit,
    commit_one,
    completes,
    fails,
    new_id,
    partition,
    same_but,
    sends,
    start_fact,
    state,
    steps,
    suspends,
)
from outlast.testing.conformance.harness import Conformance, World

IDS = tuple("abcdefghijklmnop")
WORKER = "w1"
ACTIONS = 150
SAID = (*["step"] * 20, *["end"] * 3, "send", "fail", "cancel", "suspend", "retry")


class BatchConformance(Conformance):
    @pytest.mark.parametrize("seed", range(9))
    async def test_a_batch_is_as_its_changes_one_after_the_other(self, world: World, seed: int) -> None:
        chance = Random(seed)
        store = await world.store()
        await store.renew(WORKER, lease_ttl_ms=TTL_MS)
        told = _Told(store, chance, repeats=0.15 if seed % 3 == 0 else 0.0)
        singly = [await told.one() for _ in range(ACTIONS)]
        changes = [change for change, _ in singly]
        assert sum(verdict.applied and not verdict.again for _, verdict in singly) > ACTIONS // 4
        assert sum(verdict.again for _, verdict in singly) > 2 or seed % 3
        assert sum(not verdict.applied for _, verdict in singly) > ACTIONS // 10
        expected = unnumbered(await state(store, *IDS))

        await world.begin()
        store = await world.store()
        await store.renew(WORKER, lease_ttl_ms=TTL_MS)
        together: list[Verdict] = []
        while len(together) < ACTIONS:
            together += await commit(store, *changes[len(together) : len(together) + chance.choice((1, 3, 10, 40))])
        for number, ((change, one), among) in enumerate(zip(singly, together, strict=True)):
            assert plain(one) == plain(among), (number, change)
        assert unnumbered(await state(store, *IDS)) == expected


class _Told:
    """What several who know more or less of four executions want written, each committed when it is said."""

    def __init__(self, store: Store, chance: Random, *, repeats: float) -> None:
        self._store = store
        self._chance = chance
        self._repeats = repeats
        """How often somebody says again what was said; also, whether steps meet each other."""
        self._seen: dict[str, Execution] = {}
        """As somebody saw them, perhaps a while ago."""
        self._said: list[Changes] = []

    async def one(self) -> tuple[Changes, Verdict]:
        change: Changes | None = None
        while change is None:
            change = self._next(self._chance.choice(IDS))
        verdict = await commit_one(self._store, change)
        if self._chance.random() < 0.7:
            self._seen |= {e.id: e for e in await self._store.load(list(change.anchors)) if isinstance(e, Execution)}
        self._said.append(change)
        return change, verdict

    def _next(self, name: str) -> Changes | None:
        chance, seen = self._chance, self._seen.get(name)
        home = partition(self._store, name)
        if self._said and chance.random() < self._repeats:
            return chance.choice(self._said[-20:])
        if chance.random() < 0.02:
            gate = lane_key(home, NAMESPACE, LANE)
            paused = Put(Lane(partition=home, namespace=NAMESPACE, lane=LANE, paused=True))
            write = chance.choice((paused, Delete(gate), Delete(gate)))
            return Changes(id=new_id(), partition=home, anchors=(gate,), writes=(write,))
        if seen is None or chance.random() < 0.05:
            fact = start_fact(name, worker=chance.choice((*[WORKER] * 6, None, "nobody")))
            answer = decide(View(home, None), fact, 0)
        else:
            answer = decide(View(home, seen), self._fact(seen), 0)
        return answer if isinstance(answer, Changes) else None

    def _fact(self, seen: Execution) -> facts.AnyFact:
        chance = self._chance
        match chance.choice(SAID):
            case "step":
                return steps(
                    seen,
                    chance.choice(("charge", "ship", "bill")),
                    occurrence=chance.randrange(3 if self._repeats else 1_000),
                )
            case "end":
                return completes(seen)
            case "fail":
                return fails(seen)
            case "send":
                return sends(dedup=chance.choice((None, "once")))
            case "cancel":
                return cancels()
            case "suspend":
                return suspends(seen, waits=("event:plan",))
            case _:
                return facts.Retry(change_id=new_id("retry"))


def plain(verdict: Verdict) -> tuple[object, ...]:
    """What is refused or said again may be answered with what is true once the batch is committed."""
    if verdict.applied and not verdict.again:
        return (verdict.inbox,)
    return verdict.applied, verdict.again, verdict.refused_by


def unnumbered(found: State) -> dict[str, list[object]]:
    """… but for the numbers that a store gives: they stand in the same order, and may leave some out."""
    return {name: [_unnumbered(record) for record in records] for name, records in found.items()}


def _unnumbered(record: object) -> object:
    return same_but(record, seq=0) if isinstance(record, Record) and record.SEQUENCED else record
