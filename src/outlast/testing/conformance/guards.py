"""Guards: each kind holds or refuses, at its exact boundary, and a refusal says what stands."""

from __future__ import annotations

import pytest

from outlast.machine.changes import Absent, GoneOrPast, Guard, Insert, Matches, Patch, TimeAhead, TimeReached
from outlast.model.attempt import attempt_key
from outlast.model.event import Event
from outlast.model.execution import execution_key
from outlast.model.journal import JournalEntry
from outlast.model.payload import Role, payload_key
from outlast.model.record import Now, Plain
from outlast.model.session import session_key
from outlast.model.status import Status
from outlast.store.port import Store, Verdict
from outlast.testing.conformance.actors import (
    LANE,
    NAMESPACE,
    TTL_MS,
    WORKFLOW,
    changing,
    commit,
    commit_one,
    load_one,
    look,
    partition,
    records,
    running,
    sends,
    start,
    tell,
)
from outlast.testing.conformance.harness import Conformance, World

MARK = JournalEntry(
    namespace=NAMESPACE,
    execution="a",
    generation=1,
    scope="",
    name="mark",
    occurrence=1,
    op="step",
    outcome="succeeded",
    value=None,
    epoch=0,
    recorded_at=Now(),
    change_id="mark",
)
KEY = execution_key(NAMESPACE, "a")
NOBODY = execution_key(NAMESPACE, "nobody")
DEADLINE_MS = 5_000


async def judged(store: Store, *guards: Guard) -> Verdict:
    """The verdict on a change with these guards, having made sure that it wrote exactly if it was applied."""
    changes = changing(store, "a", Insert(MARK), guards=guards, change_id="mark")
    verdict = await commit_one(store, changes)
    assert (await load_one(store, MARK.key, JournalEntry) is not None) is verdict.applied
    return verdict


class GuardConformance(Conformance):
    # ---- matches --------------------------------------------------------------------------------------------------

    async def test_matches_holds_if_every_field_is_equal(self, store: Store) -> None:
        await start(store)
        equal = Matches(KEY, {"status": Status.READY, "epoch": 0, "held": False, "worker": None, "lane": LANE})
        assert (await judged(store, equal)).applied

    @pytest.mark.parametrize(
        "field, value",
        [
            ("status", Status.ACTIVE),
            ("epoch", 1),
            ("held", True),
            ("worker", "w1"),
            ("worker", ""),
            ("lane", None),
            ("lane", "Default"),
            ("tags", "{}\n"),
            ("inbox", -1),
        ],
    )
    async def test_matches_refuses_if_one_field_differs(self, store: Store, field: str, value: Plain) -> None:
        execution = await start(store)
        differs = Matches(KEY, {"generation": 1, field: value, "workflow": WORKFLOW})
        verdict = await judged(store, differs)
        assert verdict == Verdict(False, inbox=0, refused_by=differs, current=execution)

    async def test_matches_refuses_if_there_is_no_record(self, store: Store) -> None:
        await start(store)
        missing = Matches(NOBODY, {"epoch": 0})
        assert await judged(store, missing) == Verdict(False, inbox=0, refused_by=missing, current=None)

    async def test_matches_without_fields_asks_only_that_the_record_exists(self, store: Store) -> None:
        await start(store)
        assert not (await judged(store, Matches(NOBODY, {}))).applied
        assert not (await judged(store, Matches(session_key(partition(store, "a"), "w1"), {}))).applied
        await store.renew("w1", lease_ttl_ms=TTL_MS)
        here = [Matches(KEY, {}), Matches(payload_key(NAMESPACE, "a", 1, Role.INPUT), {})]
        assert (await judged(store, *here)).applied

    async def test_matches_compares_bytes_and_flags_of_any_kind(self, store: Store) -> None:
        await start(store)
        await tell(store, "a", sends(dedup="k", value=b"\x00\xff"))
        [sent] = await records(store, Event)
        assert not (await judged(store, Matches(sent.key, {"value": b"\x00"}))).applied
        assert not (await judged(store, Matches(sent.key, {"consumed": True}))).applied
        assert (await judged(store, Matches(sent.key, {"value": b"\x00\xff", "consumed": False}))).applied

    # ---- absent ---------------------------------------------------------------------------------------------------

    async def test_absent_holds_if_there_is_no_record(self, store: Store) -> None:
        await start(store)
        assert (await judged(store, Absent(NOBODY))).applied

    async def test_absent_refuses_if_there_is_one_and_shows_it(self, store: Store) -> None:
        execution = await start(store)
        assert await judged(store, Absent(KEY)) == Verdict(False, inbox=0, refused_by=Absent(KEY), current=execution)

    # ---- reached, ahead, lapsed -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("offset_ms, holds", [(-1, False), (0, True), (1, True)])
    async def test_reached_holds_from_its_millisecond_on(
        self, world: World, store: Store, offset_ms: int, holds: bool
    ) -> None:
        await start(store, deadline_ms=DEADLINE_MS)
        world.clock.advance((DEADLINE_MS + offset_ms) / 1_000)
        assert (await judged(store, TimeReached(KEY, "deadline_at"))).applied is holds

    @pytest.mark.parametrize("offset_ms, holds", [(-1, True), (0, False), (1, False)])
    async def test_ahead_holds_until_its_millisecond(
        self, world: World, store: Store, offset_ms: int, holds: bool
    ) -> None:
        await start(store, deadline_ms=DEADLINE_MS)
        world.clock.advance((DEADLINE_MS + offset_ms) / 1_000)
        assert (await judged(store, TimeAhead(KEY, "deadline_at"))).applied is holds

    @pytest.mark.parametrize("offset_ms, holds", [(-1, False), (0, True), (1, True)])
    async def test_lapsed_holds_from_its_millisecond_on(
        self, world: World, store: Store, offset_ms: int, holds: bool
    ) -> None:
        await start(store, deadline_ms=DEADLINE_MS)
        world.clock.advance((DEADLINE_MS + offset_ms) / 1_000)
        assert (await judged(store, GoneOrPast(KEY, "deadline_at"))).applied is holds

    @pytest.mark.parametrize("guard, holds", [(TimeReached, False), (TimeAhead, False), (GoneOrPast, True)])
    async def test_a_time_that_is_not_set_is_neither_reached_nor_ahead_but_lapsed(
        self, store: Store, guard: type[TimeReached | TimeAhead | GoneOrPast], holds: bool
    ) -> None:
        await start(store)
        assert (await judged(store, guard(KEY, "deadline_at"))).applied is holds

    @pytest.mark.parametrize("guard, holds", [(TimeReached, False), (TimeAhead, False), (GoneOrPast, True)])
    async def test_a_record_that_is_gone_is_neither_reached_nor_ahead_but_lapsed(
        self, store: Store, guard: type[TimeReached | TimeAhead | GoneOrPast], holds: bool
    ) -> None:
        await start(store)
        gone = session_key(partition(store, "a"), "nobody")
        verdict = await judged(store, guard(gone, "expires_at"))
        assert verdict.applied is holds
        assert verdict.current is None

    async def test_a_refusal_by_time_shows_the_record(self, store: Store) -> None:
        execution = await start(store, deadline_ms=DEADLINE_MS)
        early = TimeReached(KEY, "deadline_at")
        assert await judged(store, early) == Verdict(False, inbox=0, refused_by=early, current=execution)

    # ---- together -------------------------------------------------------------------------------------------------

    async def test_all_guards_must_hold_wherever_the_failing_one_stands(self, store: Store) -> None:
        await start(store)
        holding: list[Guard] = [Matches(KEY, {"epoch": 0}), Absent(NOBODY), GoneOrPast(NOBODY, "deadline_at")]
        failing = Matches(KEY, {"epoch": 9})
        for place in range(4):
            verdict = await judged(store, *holding[:place], failing, *holding[place:])
            assert verdict.refused_by == failing
        assert (await judged(store, *holding)).applied

    async def test_guards_may_read_other_records_than_those_written(self, store: Store) -> None:
        held = await running(store)
        live = TimeAhead(session_key(partition(store, "a"), "w1"), "expires_at")
        attempt = Matches(attempt_key(NAMESPACE, "a", 1, held.attempt), {"epoch": held.epoch, "outcome": None})
        assert (await judged(store, live, attempt)).applied

    async def test_a_guard_sees_what_an_earlier_change_of_its_batch_wrote(self, store: Store) -> None:
        await start(store)
        first = changing(store, "a", Patch(KEY, {"priority": 7}))
        second = changing(store, "a", Insert(MARK), guards=[Matches(KEY, {"priority": 7})])
        assert [v.applied for v in await commit(store, first, second)] == [True, True]

    async def test_a_guard_does_not_see_what_its_own_change_writes(self, store: Store) -> None:
        await start(store)
        itself = changing(store, "a", Patch(KEY, {"priority": 7}), guards=[Matches(KEY, {"priority": 7})])
        assert not (await commit_one(store, itself)).applied
        assert (await look(store, "a")).priority == 0
