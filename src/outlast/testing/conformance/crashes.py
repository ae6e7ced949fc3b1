"""A crash at every point that a write passes: what is found is all before or all after, and repeating heals it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from outlast.errors import StoreClosed
from outlast.model.execution import execution_key
from outlast.model.payload import Payload
from outlast.model.tag import Tag
from outlast.store.port import Query
from outlast.testing.conformance.actors import NAMESPACE, State, records, start, start_changes, start_fact, state
from outlast.testing.conformance.harness import Conformance, World, refused
from outlast.testing.conformance.scenarios import SCENARIOS, WATCHED, answer_of
from outlast.testing.points import Crash, CrashPoints


class Uncrashed(NamedTuple):
    """How a scenario goes when nothing happens."""

    passed: list[str]
    before: State
    after: State
    answer: object


async def uncrashed(world: World, name: str) -> Uncrashed:
    store = await world.store()
    act = await SCENARIOS[name](world, store)
    before = await state(store, *WATCHED)
    acting, points = await world.with_points()
    answer = answer_of(await act(acting))
    passed = list(points.passed)
    return Uncrashed(passed, before, await state(store, *WATCHED), answer)


class CrashConformance(Conformance):
    @pytest.mark.parametrize("name", SCENARIOS)
    async def test_all_or_nothing_at_every_point_and_a_repetition_heals(self, world: World, name: str) -> None:
        expected = await uncrashed(world, name)
        assert expected.before != expected.after
        assert len(expected.passed) >= 4, "begin, a statement, its end, commit, reply"
        found_after: list[bool] = []
        for nth in range(1, len(expected.passed) + 1):
            await world.begin()
            act = await SCENARIOS[name](world, await world.store())
            crashing, points = await world.with_points()
            points.crash_at("*", nth=nth)
            await refused(act(crashing), Crash)
            survivor = await world.store()
            found = await state(survivor, *WATCHED)
            point = f"crash at {expected.passed[nth - 1]}, number {nth}"
            assert found in (expected.before, expected.after), point
            found_after.append(found == expected.after)
            assert answer_of(await act(survivor)) == expected.answer, point
            assert await state(survivor, *WATCHED) == expected.after, point
        assert found_after == sorted(found_after), "once durable, always durable"
        assert not found_after[0]
        assert found_after[-1]

    async def test_a_crash_says_so_to_everyone_who_waits(self, world: World) -> None:
        store, points = await world.with_points()
        await start(store)
        points.crash_at("commit:begin")
        calls = [store.commit([start_changes(store, start_fact(f"x{n}"))]) for n in range(5)]
        answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
        assert all(isinstance(answer, Crash | StoreClosed) for answer in answers)
        await refused(store.commit([]), StoreClosed)
        assert await (await world.store()).count(Query(namespace=NAMESPACE)) == 1

    async def test_a_batch_of_many_executions_loses_or_keeps_each_change_whole(self, world: World) -> None:
        store, points = await world.with_points()
        batch = [start_changes(store, start_fact(f"x{n}", tags={"t": str(n)})) for n in range(6)]
        await store.commit(batch)
        passed = len(points.passed)
        for nth in range(1, passed + 1, 5):
            await world.begin()
            store, points = await world.with_points()
            batch = [start_changes(store, start_fact(f"x{n}", tags={"t": str(n)})) for n in range(6)]
            points.crash_at("*", nth=nth)
            await refused(store.commit(batch), Crash)
            survivor = await world.store()
            for number in range(6):
                name = f"x{number}"
                there = await survivor.load([execution_key(NAMESPACE, name)]) != [None]
                assert bool(await records(survivor, Payload, name)) is there
                assert bool(await records(survivor, Tag, name)) is there
            assert all(verdict.applied for verdict in (await survivor.commit(batch)).verdicts)
            assert await survivor.count(Query(namespace=NAMESPACE)) == 6

    async def test_a_crash_while_migrating_is_healed_by_migrating(self, world: World) -> None:
        points = CrashPoints()
        await world.harness.new(clock=world.clock, points=points).migrate()
        for nth in range(1, len(points.passed) + 1):
            await world.begin()
            crashing = CrashPoints()
            store = world.harness.new(clock=world.clock, points=crashing)
            crashing.crash_at("*", nth=nth)
            await refused(store.migrate(), Crash)
            await store.close()
            await start(await world.store())
