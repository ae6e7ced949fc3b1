"""Races of two and of ten processes on one execution: one outcome, one completion, no lost wake-up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from outlast.machine import facts
from outlast.machine.changes import Changes, Code
from outlast.model.attempt import Attempt
from outlast.model.completion import Completion
from outlast.model.deferred import Deferred
from outlast.model.event import Event
from outlast.model.payload import Payload, Role
from outlast.model.record import Key, Record
from outlast.model.status import Status
from outlast.runtime.engine import Engine, Told
from outlast.store.port import Committed, DueKind, Store, Verdict
from outlast.testing.conformance.actors import (
    NAMESPACE,
    ROOT,
    cancels,
    claim,
    completes,
    decided,
    ends_child,
    fails,
    look,
    loses_lease,
    new_id,
    records,
    resolves,
    running,
    sends,
    start,
    start_fact,
    start_many,
    steps,
    suspends,
    tell,
    tell_or_refuse,
)
from outlast.testing.conformance.harness import Conformance, World

ROUNDS = 20


async def engines(world: World, number: int) -> list[Engine]:
    return [Engine(store) for store in await world.stores(number)]


async def closed(engines: list[Engine]) -> None:
    for engine in engines:
        await engine.close()


class Speaker:
    """An engine that counts what it asks the store while it tells facts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tries = self.looks = 0
        self._commit, self._load = engine.store.commit, engine.store.load
        engine.store.commit, engine.store.load = self._committed, self._loaded

    async def tells(self, id: str, fact: facts.AnyFact) -> Told:
        return await self.engine.tell(NAMESPACE, id, fact)

    async def _committed(self, batch: Sequence[Changes]) -> Committed:
        self.tries += len(batch)
        return await self._commit(batch)

    async def _loaded(self, keys: Sequence[Key]) -> list[Record | None]:
        self.looks += 1
        return await self._load(keys)


async def judge_end(store: Store, id: str) -> None:
    """One completion exactly if it has ended, saying the same; at most one attempt is open."""
    execution = await look(store, id)
    found = [c for c in await records(store, Completion, id) if c.generation == execution.generation]
    assert len(found) == int(execution.status.terminal), (execution, found)
    assert all(completion.status is execution.status for completion in found)
    attempts = await records(store, Attempt, id)
    assert sum(attempt.outcome is None for attempt in attempts) == int(execution.attempt_open)
    assert len(attempts) <= execution.attempt
    payloads = [p.role for p in await records(store, Payload, id) if p.role is not Role.INPUT]
    assert payloads.count(Role.OUTPUT) == int(execution.status is Status.SUCCEEDED)


class RaceConformance(Conformance):
    @pytest.mark.parametrize("number", [2, 10])
    async def test_step_complete_cancel_and_takeover_at_once_have_one_outcome(
        self, world: World, store: Store, number: int
    ) -> None:
        racers = await engines(world, number)
        dice = random.Random(number)
        for turn in range(ROUNDS):
            name = f"x{turn}"
            held = await running(store, name, worker=f"w{turn}", timeout_ms=60_000, deadline_ms=11_000)
            if turn % 2:
                world.clock.advance("11s")
            said: list[facts.AnyFact] = [
                completes(held),
                loses_lease(held),
                cancels(),
                fails(held),
                steps(held),
                suspends(held, waits=("event:plan",)),
                sends(),
                facts.HandBack(change_id=new_id(), epoch=held.epoch),
                facts.DeadlinePassed(change_id=new_id()),
                completes(held, b"other"),
            ]
            dice.shuffle(said)
            pairs = zip(racers * (len(said) // number + 1), said, strict=False)
            await asyncio.gather(*[racer.tell(NAMESPACE, name, fact) for racer, fact in pairs])
            await judge_end(store, name)
            await tell_or_refuse(store, name, cancels())
        await closed(racers)

    @pytest.mark.parametrize("number", [2, 10])
    async def test_a_holder_that_completes_many_times_at_once_completes_once(
        self, world: World, store: Store, number: int
    ) -> None:
        racers = await engines(world, number)
        for turn in range(ROUNDS):
            name = f"x{turn}"
            held = await running(store, name, parent=ROOT)
            ends = [completes(held, str(n).encode()) for n in range(number)]
            told = await asyncio.gather(
                *[racer.tell(NAMESPACE, name, fact) for racer, fact in zip(racers, ends, strict=True)]
            )
            assert sum(answer.applied for answer in told) == 1
            winner = next(n for n, answer in enumerate(told) if answer.applied)
            [output] = [p for p in await records(store, Payload, name) if p.role is Role.OUTPUT]
            assert output.value == str(winner).encode()
            await judge_end(store, name)
        assert (await store.due(DueKind.OUTBOX, limit=100)).depth == ROUNDS
        await closed(racers)

    @pytest.mark.parametrize("number", [2, 10])
    async def test_a_lost_lease_seen_by_many_counts_one_crash(self, world: World, store: Store, number: int) -> None:
        racers = await engines(world, number)
        for turn in range(ROUNDS):
            name = f"x{turn}"
            held = await running(store, name, worker=f"w{turn}")
            world.clock.advance("11s")
            told = await asyncio.gather(*[racer.tell(NAMESPACE, name, loses_lease(held)) for racer in racers])
            assert sum(answer.applied for answer in told) == 1
            assert (await look(store, name)).crashes == 1
            await tell(store, name, cancels())
        await closed(racers)

    @pytest.mark.parametrize("number", [2, 10])
    async def test_the_same_id_started_by_many_is_one_execution(self, world: World, store: Store, number: int) -> None:
        racers = await engines(world, number)
        for turn in range(ROUNDS):
            starts = [start_fact(f"x{turn}", input=str(n).encode()) for n in range(number)]
            told = await asyncio.gather(
                *[racer.tell(NAMESPACE, fact.id, fact) for racer, fact in zip(racers, starts, strict=True)]
            )
            assert sum(answer.applied for answer in told) == 1
            assert all(a.applied or (a.refusal and a.refusal.code is Code.ALREADY) for a in told)
            winner = next(n for n, answer in enumerate(told) if answer.applied)
            [payload] = await records(store, Payload, f"x{turn}")
            assert payload.value == str(winner).encode()
        await closed(racers)

    async def test_a_deferred_resolved_by_ten_at_once_is_resolved_by_one(self, world: World, store: Store) -> None:
        racers = await engines(world, 10)
        for turn in range(ROUNDS):
            name = f"x{turn}"
            await start(store, name)
            told = await asyncio.gather(
                *[racer.tell(NAMESPACE, name, resolves(value=str(n).encode())) for n, racer in enumerate(racers)]
            )
            [stands] = await records(store, Deferred, name)
            assert [n for n, answer in enumerate(told) if answer.applied] == [int(stands.value or b"-1")]
            assert all(answer.applied or answer.instead == stands for answer in told)
            assert (await look(store, name)).inbox == 1
        await closed(racers)

    async def test_an_event_with_a_key_sent_by_ten_at_once_is_one_event(self, world: World, store: Store) -> None:
        racers = await engines(world, 10)
        await start(store)
        told = await asyncio.gather(*[racer.tell(NAMESPACE, "a", sends(dedup="k")) for racer in racers])
        assert sum(answer.applied for answer in told) == 1
        assert len(await records(store, Event)) == (await look(store, "a")).inbox == 1
        await closed(racers)

    async def test_events_sent_by_ten_at_once_all_arrive(self, world: World, store: Store) -> None:
        racers = await engines(world, 10)
        await running(store)

        async def send_all(number: int) -> None:
            for message in range(10):
                told = await racers[number].tell(NAMESPACE, "a", sends(value=f"{number}:{message}".encode()))
                assert told.applied

        await asyncio.gather(*[send_all(number) for number in range(10)])
        values = [(event.value or b"").decode() for event in await records(store, Event)]
        assert len(values) == len(set(values)) == 100
        for number in range(10):
            mine = [value for value in values if value.startswith(f"{number}:")]
            assert mine == [f"{number}:{message}" for message in range(10)]
        assert (await look(store, "a")).inbox == 100
        await closed(racers)

    @pytest.mark.parametrize("kind", ["events", "deferreds", "cancels", "ends of children"])
    async def test_a_burst_to_one_execution_takes_two_tries_each_at_most(
        self, world: World, store: Store, kind: str
    ) -> None:
        """Four processes tell it fifty facts each at once, while a holder claims it and suspends it again."""
        said: dict[str, Callable[[int], facts.AnyFact]] = {
            "events": lambda n: sends(value=str(n).encode()),
            "deferreds": lambda n: resolves(f"approval-{n}"),
            "cancels": lambda _: cancels(),
            "ends of children": lambda n: ends_child(f"{ROOT}/child-{n}"),
        }
        waits = ("event:plan", "deferred:approval-7", f"child:{ROOT}/child-7")
        speakers = [Speaker(engine) for engine in await engines(world, 4)]
        held = await running(store, ROOT)
        await tell(store, ROOT, suspends(held, waits=waits))
        telling = [
            asyncio.create_task(speaker.tells(ROOT, said[kind](50 * number + n)))
            for number, speaker in enumerate(speakers)
            for n in range(50)
        ]
        while not all(task.done() for task in telling):
            for taken in (await claim(store)).executions:
                held = await look(store, taken.execution.id)
                if not held.cancel_requested:
                    await tell_or_refuse(store, ROOT, suspends(held, waits=waits))
            await asyncio.sleep(0)
        told = [task.result() for task in telling]
        assert all(answer.applied or answer.refusal.code is Code.ALREADY for answer in told if answer.refusal)
        assert (await look(store, ROOT)).inbox == sum(answer.applied for answer in told)
        assert sum(speaker.tries for speaker in speakers) <= 2 * 200

        assert sum(speaker.looks for speaker in speakers) <= 200 / 4, "they share their looks"
        await closed([speaker.engine for speaker in speakers])

    async def test_no_wake_up_is_lost_when_a_send_meets_a_suspension(self, world: World, store: Store) -> None:
        rounds, at_once = 500, 20
        sender, holder = await engines(world, 2)
        dice = random.Random(1)

        async def one(turn: int) -> bool:
            """Whether the suspension came first."""
            name = f"x{turn}"
            held = holders[name]
            suspending = decided(store, held, suspends(held, waits=("event:plan",)))

            async def send() -> None:
                for _ in range(dice.randrange(6)):
                    await asyncio.sleep(0)
                assert (await sender.tell(NAMESPACE, name, sends(), seen=held)).applied

            async def suspend() -> Verdict:
                for _ in range(dice.randrange(6)):
                    await asyncio.sleep(0)
                return await holder.group.commit(suspending)

            verdict, _ = await asyncio.gather(suspend(), send())
            execution = await look(store, name)
            assert len(await records(store, Event, name)) == 1
            if verdict.applied:
                assert execution.status is Status.READY, "it sleeps although its event came"
            else:
                assert execution.status is Status.ACTIVE
                assert verdict.inbox == 1, "the holder is told that something came"
            return verdict.applied

        await start_many(store, [start_fact(f"x{n}") for n in range(rounds)])
        claimed = await claim(store, limit=rounds)
        holders = {taken.execution.id: taken.execution for taken in claimed.executions}
        assert len(holders) == rounds
        for begin in range(0, rounds, at_once):
            await asyncio.gather(*[one(turn) for turn in range(begin, begin + at_once)])
        await closed([sender, holder])
