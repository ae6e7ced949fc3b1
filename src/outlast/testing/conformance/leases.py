"""Leases and sessions: renew, takeover, and what a zombie may not do."""

from __future__ import annotations

import msgspec
import pytest

from outlast import limits
from outlast.errors import InvalidInput
from outlast.machine import facts
from outlast.machine.changes import Changes, Delete, GoneOrPast, Matches
from outlast.model.attempt import Attempt, Outcome
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.lease import Held
from outlast.model.partition import partition_of
from outlast.model.record import settled
from outlast.model.session import session_key
from outlast.store.port import Appended, Store
from outlast.testing.conformance.actors import (
    NAMESPACE,
    TTL_MS,
    cancels,
    claim_one,
    claimed_ids,
    commit,
    commit_one,
    completes,
    decided,
    ended,
    fails,
    look,
    loses_lease,
    new_id,
    partition,
    records,
    running,
    sends,
    session,
    start,
    state,
    steps,
    suspended,
    suspends,
    tell,
    times_out,
)
from outlast.testing.conformance.harness import Conformance, World, refused


class RenewConformance(Conformance):
    async def test_renewing_extends_the_session_from_now(self, world: World, store: Store) -> None:
        await running(store)
        world.clock.advance("4s")
        renewed = await store.renew("w1", lease_ttl_ms=TTL_MS)
        assert renewed.now == world.clock.now_ms()
        found = await session(store, "w1")
        assert found is not None
        assert found.expires_at == world.clock.now_ms() + TTL_MS

    async def test_renewing_lists_what_the_worker_holds_and_its_inbox(self, store: Store) -> None:
        names = ["a", "b", "c"]
        for name in names:
            await running(store, name)
        await running(store, "other", worker="w2")
        await tell(store, "b", sends())
        await tell(store, "b", cancels())
        held = (await store.renew("w1", lease_ttl_ms=TTL_MS)).held
        assert sorted(held, key=lambda lease: lease.id) == [
            Held(NAMESPACE, "a", 1, 0),
            Held(NAMESPACE, "b", 1, 2),
            Held(NAMESPACE, "c", 1, 0),
        ]

    async def test_what_ended_or_was_suspended_is_no_longer_held(self, store: Store) -> None:
        await ended(store, "over")
        await suspended(store, "waiting")
        await running(store, "held")
        assert [lease.id for lease in (await store.renew("w1", lease_ttl_ms=TTL_MS)).held] == ["held"]

    async def test_a_worker_that_holds_nothing_may_renew(self, store: Store) -> None:
        assert (await store.renew("idle", lease_ttl_ms=TTL_MS)).held == []

    async def test_renewing_touches_sessions_only(self, store: Store) -> None:
        await running(store)
        before = await state(store, "a")
        await store.renew("w1", lease_ttl_ms=2 * TTL_MS)
        after = await state(store, "a")
        assert after.pop("session") != before.pop("session")
        assert after == before

    async def test_a_shorter_renewal_does_not_shorten_the_session(self, store: Store) -> None:
        await running(store)
        before = await session(store, "w1")
        await store.renew("w1", lease_ttl_ms=TTL_MS // 2)
        assert await session(store, "w1") == before

    async def test_an_expired_session_that_nobody_took_over_may_renew(self, world: World, store: Store) -> None:
        held = await running(store)
        world.clock.advance("1h")
        assert [lease.epoch for lease in (await store.renew("w1", lease_ttl_ms=TTL_MS)).held] == [held.epoch]
        assert (await commit_one(store, decided(store, held, steps(held)))).applied
        early = await commit_one(store, decided(store, held, loses_lease(held)))
        assert isinstance(early.refused_by, GoneOrPast)

    async def test_a_lease_that_was_taken_over_is_not_renewed(self, world: World, store: Store) -> None:
        held = await running(store)
        world.clock.advance("1h")
        await tell(store, "a", loses_lease(held))
        await claim_one(store, "w2")
        assert (await store.renew("w1", lease_ttl_ms=TTL_MS)).held == []

    async def test_what_is_held_can_be_asked_without_renewing(self, world: World, store: Store) -> None:
        for name in ("a", "b", "c"):
            await running(store, name)
        await running(store, "other", worker="w2")
        await ended(store, "over")
        await tell(store, "b", sends())
        before = [await state(store, name) for name in ("a", "b", "c", "over")]
        everywhere = frozenset(range(store.partitions))
        world.clock.advance("1s")
        leases = await store.held("w1", everywhere)
        assert leases.unreached == frozenset()
        assert sorted(leases.held, key=lambda lease: lease.id) == [
            Held(NAMESPACE, "a", 1, 0),
            Held(NAMESPACE, "b", 1, 1),
            Held(NAMESPACE, "c", 1, 0),
        ]
        assert (await store.held("nobody", everywhere)).held == []
        assert [await state(store, name) for name in ("a", "b", "c", "over")] == before

    async def test_what_is_held_is_told_of_the_partitions_that_are_asked(self, store: Store) -> None:
        homes: dict[int, set[str]] = {}
        for number in range(12):
            await running(store, f"e{number}")
            homes.setdefault(partition_of(NAMESPACE, f"e{number}", store.partitions), set()).add(f"e{number}")
        for home, names in homes.items():
            assert {lease.id for lease in (await store.held("w1", frozenset({home}))).held} == names

    @pytest.mark.parametrize("ttl_ms", [limits.LEASE_TTL_MIN_MS - 1, limits.LEASE_TTL_MAX_MS + 1])
    async def test_a_lease_past_its_limits_is_refused(self, store: Store, ttl_ms: int) -> None:
        await refused(store.renew("w1", lease_ttl_ms=ttl_ms), InvalidInput)
        assert await session(store, "w1") is None


class TakeoverConformance(Conformance):
    """Only from a session that lapsed, and only from the holder that was seen."""

    @pytest.mark.parametrize("offset_ms, taken", [(-1, False), (0, True), (1, True)])
    async def test_a_lease_is_lost_from_the_millisecond_of_its_session_on(
        self, world: World, store: Store, offset_ms: int, taken: bool
    ) -> None:
        held = await running(store)
        world.clock.advance((TTL_MS + offset_ms) / 1_000)
        assert (await tell(store, "a", loses_lease(held))).applied is taken

    async def test_a_takeover_is_refused_if_the_worker_renewed_just_before(self, world: World, store: Store) -> None:
        held = await running(store)
        world.clock.advance("11s")
        taking = decided(store, held, loses_lease(held))
        await store.renew("w1", lease_ttl_ms=TTL_MS)
        assert not (await commit_one(store, taking)).applied
        assert (await look(store, "a")) == held

    async def test_a_takeover_is_refused_if_another_holder_came_meanwhile(self, world: World, store: Store) -> None:
        held = await running(store)
        world.clock.advance("11s")
        stale = decided(store, held, loses_lease(held))
        await tell(store, "a", loses_lease(held))
        taken = await claim_one(store, "w2")
        assert not (await commit_one(store, stale)).applied
        assert await look(store, "a") == taken

    async def test_a_lease_whose_session_is_gone_may_be_taken(self, store: Store) -> None:
        held = await running(store)
        home = partition(store, "a")
        gone = Changes(
            id=new_id(), partition=home, anchors=(session_key(home, "w1"),), writes=(Delete(session_key(home, "w1")),)
        )
        await commit_one(store, gone)
        assert (await tell(store, "a", loses_lease(held))).applied

    async def test_after_a_takeover_the_next_worker_begins_another_attempt(self, world: World, store: Store) -> None:
        held = await running(store)
        await commit_one(store, decided(store, held, steps(held)))
        world.clock.advance("11s")
        await tell(store, "a", loses_lease(held))
        taken = await claim_one(store, "w2")
        assert (taken.epoch, taken.attempt, taken.crashes, taken.failures) == (2, 2, 1, 0)
        first, second = await records(store, Attempt)
        assert (first.outcome, first.ended_at) == (Outcome.INTERRUPTED, world.clock.now_ms())
        assert (second.outcome, second.worker) == (None, "w2")
        assert [e.name for e in await records(store, JournalEntry)] == ["charge"]


class SuspectConformance(Conformance):
    @pytest.mark.parametrize("together", [1, 2])
    async def test_a_claim_takes_suspects_from_wherever_they_are_but_no_more_than_it_may(
        self, world: World, store: Store, together: int
    ) -> None:
        suspects = [f"suspect{number}" for number in range(4)]
        for name in suspects:
            await start(store, name, crash_cap=3)
            for _ in range(2):  # past half of the cap
                held = await claim_one(store)
                world.clock.advance("11s")
                await tell(store, name, loses_lease(held))
            await tell(store, name, facts.Hold(change_id=new_id("hold")))
        for name in suspects:
            await tell(store, name, facts.Release(change_id=new_id("release")))
        others = [f"other{number}" for number in range(5)]
        for name in others:
            await start(store, name)
        taken = [set(await claimed_ids(store, f"w{n}", limit=20, suspects=together)) for n in range(4 // together + 1)]
        assert taken[0] >= set(others)
        assert [len(some & set(suspects)) for some in taken] == [together] * (4 // together) + [0]


class ZombieConformance(Conformance):
    """A worker that lost its lease and does not know: every write of it is refused, and changes nothing."""

    async def lost(self, world: World, store: Store, how: str) -> Execution:
        held = await running(store)
        match how:
            case "taken over":
                world.clock.advance("11s")
                await tell(store, "a", loses_lease(held))
                await claim_one(store, "w2")
            case "taken over by the same worker":
                world.clock.advance("11s")
                await tell(store, "a", loses_lease(held))
                await claim_one(store, "w1")
            case "ready again":
                world.clock.advance("11s")
                await tell(store, "a", loses_lease(held))
            case "purged, started anew and claimed":
                await commit_one(store, decided(store, held, completes(held)))
                assert await store.purge(finished_before=world.clock.now_ms() + 1) == 1
                await running(store, "a", first_epoch=1_000)
            case "ended":
                await commit_one(store, decided(store, held, completes(held)))
            case _:
                await commit_one(store, decided(store, held, suspends(held, waits=("event:plan",))))
        return held

    @pytest.mark.parametrize(
        "how",
        [
            "taken over",
            "taken over by the same worker",
            "ready again",
            "ended",
            "suspended",
            "purged, started anew and claimed",
        ],
    )
    async def test_no_write_of_a_zombie_changes_anything(self, world: World, store: Store, how: str) -> None:
        held = await self.lost(world, store, how)
        before = await state(store, "a")
        writes: list[facts.AnyFact] = [
            steps(held, "late"),
            steps(held, "late undo", unwinds=True),
            facts.Progressed(change_id="late progress", epoch=held.epoch, value=b"{}"),
            suspends(held, waits=("event:other",)),
            completes(held, b"late"),
            fails(held),
            facts.HandBack(change_id="late", epoch=held.epoch),
        ]
        for fact in writes:
            verdict = await commit_one(store, decided(store, held, fact))
            assert (verdict.applied, verdict.again) == (False, False), fact
            assert isinstance(verdict.refused_by, Matches)
            assert verdict.current == await look(store, "a")
        appended = await store.append(NAMESPACE, "a", epoch=held.epoch, change_id="late", frames=[b"late"])
        assert appended == Appended(False, 0)
        assert await state(store, "a") == before


class TimeoutConformance(Conformance):
    """An attempt that timed out and a lease that was lost are different facts, and never both."""

    @pytest.mark.parametrize("offset_ms, due", [(-1, False), (0, True), (1, True)])
    async def test_an_attempt_times_out_at_its_millisecond(
        self, world: World, store: Store, offset_ms: int, due: bool
    ) -> None:
        held = await running(store, timeout_ms=5_000)
        world.clock.advance((5_000 + offset_ms) / 1_000)
        assert (await tell(store, "a", times_out(held))).applied is due

    async def test_a_timeout_needs_a_live_session_and_a_loss_a_lapsed_one(self, world: World, store: Store) -> None:
        held = await running(store, timeout_ms=5_000)
        for _ in range(40):
            world.clock.advance("500ms")
            timeout = decided(store, held, times_out(held))
            loss = decided(store, held, loses_lease(held))
            questions = [msgspec.structs.replace(changes, writes=()) for changes in (timeout, loss)]
            applied = [verdict.applied for verdict in await commit(store, *questions)]
            elapsed_ms = world.clock.now_ms() - (settled(held.claimed_at) or 0)
            assert applied == [5_000 <= elapsed_ms < TTL_MS, elapsed_ms >= TTL_MS]

    async def test_told_both_at_once_only_one_is_applied(self, world: World, store: Store) -> None:
        for number, elapsed in enumerate(("6s", "11s")):
            name = f"x{number}"
            held = await running(store, name, timeout_ms=5_000, worker=f"w{number}")
            world.clock.advance(elapsed)
            both = [decided(store, held, times_out(held)), decided(store, held, loses_lease(held))]
            assert [verdict.applied for verdict in await commit(store, *both)] == [elapsed == "6s", elapsed == "11s"]
            [attempt] = await records(store, Attempt, name)
            assert attempt.outcome is (Outcome.TIMED_OUT if elapsed == "6s" else Outcome.INTERRUPTED)
