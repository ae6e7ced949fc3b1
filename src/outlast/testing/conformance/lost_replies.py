"""A reply that is lost after the commit: repeating the call verbatim answers the same and changes nothing more."""

from __future__ import annotations

import pytest

from outlast.errors import ReplyLost
from outlast.model.event import Event
from outlast.runtime.group_commit import GroupCommit
from outlast.store.port import Store
from outlast.testing.conformance.actors import commit_one, decided, records, running, sends, start, state, steps
from outlast.testing.conformance.harness import Conformance, World, refused
from outlast.testing.conformance.scenarios import SCENARIOS, WATCHED, Act, answer_of
from outlast.testing.points import CrashPoints


class LostReplyConformance(Conformance):
    @pytest.mark.parametrize("name", SCENARIOS)
    async def test_repeating_the_call_is_as_if_the_reply_had_come(self, world: World, name: str) -> None:
        store = await world.store()
        act = await SCENARIOS[name](world, store)
        answer = answer_of(await act(store))
        expected = await state(store, *WATCHED)

        await world.begin()
        store, points = await world.with_points()
        act = await SCENARIOS[name](world, store)
        points.passed.clear()
        await act_losing_its_reply(act, store, points)
        assert await state(store, *WATCHED) == expected
        assert answer_of(await act(store)) == answer
        assert await state(store, *WATCHED) == expected

    @pytest.mark.parametrize("name", SCENARIOS)
    async def test_another_process_may_repeat_it(self, world: World, name: str) -> None:
        store, points = await world.with_points()
        act = await SCENARIOS[name](world, store)
        await act_losing_its_reply(act, store, points)
        other = await world.store()
        expected = await state(other, *WATCHED)
        for _ in range(3):
            await act(other)
            assert await state(other, *WATCHED) == expected

    async def test_a_migration_whose_reply_was_lost_is_repeated(self, world: World) -> None:
        points = CrashPoints()
        points.lose_reply("migrate")
        store = world.harness.new(clock=world.clock, points=points)
        await refused(store.migrate(), ReplyLost)
        assert await store.migrate() >= 1
        await store.open()
        await start(store)
        await store.close()

    async def test_a_group_commit_repeats_by_itself(self, world: World) -> None:
        store, points = await world.with_points()
        held = await running(store)
        points.lose_reply("commit")
        points.lose_reply("commit", nth=2)
        group = GroupCommit(store)
        sending = decided(store, held, sends())
        verdict = await group.commit(sending)
        assert (verdict.applied, verdict.again, verdict.inbox) == (True, True, 1)
        await group.close()

    async def test_a_lost_reply_of_a_whole_batch_is_repeated_whole(self, world: World) -> None:
        store, points = await world.with_points()
        held = await running(store)
        batch = [decided(store, held, steps(held, f"s{n}")) for n in range(5)]
        points.lose_reply("commit")
        await refused(store.commit(batch), ReplyLost)
        mixed = [*batch, decided(store, held, steps(held, "new"))]
        verdicts = (await store.commit(mixed)).verdicts
        assert [(v.applied, v.again) for v in verdicts] == [(True, True)] * 5 + [(True, False)]

    @pytest.mark.parametrize("dedup", [None, "k"])
    async def test_an_event_is_not_sent_twice_although_it_was_received_meanwhile(
        self, world: World, dedup: str | None
    ) -> None:
        store, points = await world.with_points()
        held = await running(store)
        sending = decided(store, held, sends(dedup=dedup))
        points.lose_reply("commit")
        await refused(store.commit([sending]), ReplyLost)
        [event] = await records(store, Event)
        received = steps(held, "plan", op="receive", consumes=(event.name, event.dedup))
        assert (await commit_one(store, decided(store, held, received))).applied
        verdict = await commit_one(store, sending)
        assert (verdict.applied, verdict.again) == (True, True)
        assert [event for event in await records(store, Event) if not event.consumed] == []


async def act_losing_its_reply(act: Act, store: Store, points: CrashPoints) -> None:
    """Whatever operation the act is: its reply is lost."""
    for operation in ("commit", "claim", "renew", "append", "purge"):
        points.lose_reply(operation)
    await refused(act(store), ReplyLost)
    points.forget()
