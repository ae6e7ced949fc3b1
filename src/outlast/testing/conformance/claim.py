"""Claim: who gets what, in which order, and what keeps work from being claimed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from outlast import limits
from outlast.errors import InvalidInput
from outlast.machine import facts
from outlast.machine.changes import Changes, Insert, Patch, Put, execution_after, inserted, patched
from outlast.machine.decide import decide
from outlast.model.attempt import Attempt
from outlast.model.event import Event
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import Flow, FlowState
from outlast.model.journal import JournalEntry
from outlast.model.lane import Lane
from outlast.model.lease import EARLY_EVENTS
from outlast.model.retry import RetryPolicy
from outlast.model.status import Status
from outlast.store.port import Query, Store, Verdict
from outlast.testing.conformance.actors import (
    LANE,
    NAMESPACE,
    ROOT,
    TTL_MS,
    WORKFLOW,
    cancels,
    claim,
    claim_one,
    claim_request,
    claimed_ids,
    commit,
    commit_one,
    completes,
    decided,
    ended,
    fails,
    free_permits,
    look,
    loses_lease,
    member,
    partition,
    pause,
    permits,
    put,
    records,
    running,
    sends,
    session,
    start,
    start_changes,
    start_fact,
    start_many,
    steps,
    suspended,
    suspends,
    tell,
    times_out,
    view_of,
)
from outlast.testing.conformance.harness import Conformance, World, refused


class ClaimOrderConformance(Conformance):
    """Priority, then resumed before new, then age."""

    async def test_higher_priority_comes_first(self, store: Store) -> None:
        for name, priority in [("low", -5), ("high", 7), ("none", 0)]:
            await start(store, **member(name), priority=priority)
        assert await claimed_ids(store) == ["family/high", "family/none", "family/low"]

    async def test_resumed_work_comes_before_new_work_of_its_priority(self, world: World, store: Store) -> None:
        await start(store, **member("resumed"))
        held = await claim_one(store)
        await start(store, **member("new"))
        await start(store, **member("urgent"), priority=1)
        world.clock.advance("1s")
        assert (await tell(store, held.id, facts.HandBack(change_id="b", epoch=held.epoch))).applied
        assert await claimed_ids(store) == ["family/urgent", "family/resumed", "family/new"]

    async def test_older_work_comes_before_younger(self, world: World, store: Store) -> None:
        for name in ("c", "a", "b"):
            await start(store, **member(name))
            world.clock.advance("1ms")
        assert await claimed_ids(store) == ["family/c", "family/a", "family/b"]

    async def test_age_counts_from_when_it_became_ready(self, world: World, store: Store) -> None:
        await start(store, **member("delayed"), delay_ms=1_000)
        world.clock.advance("500ms")
        await start(store, **member("prompt"))
        world.clock.advance("500ms")
        assert (await tell(store, "family/delayed", facts.Wake(change_id="wake", cause="delay"))).applied
        assert await claimed_ids(store) == ["family/prompt", "family/delayed"]

    async def test_a_changed_priority_changes_the_order(self, store: Store) -> None:
        await start(store, **member("a"), priority=1)
        await start(store, **member("b"))
        await tell(store, "family/b", facts.ChangePriority(change_id="p", priority=2))
        assert await claimed_ids(store) == ["family/b", "family/a"]

    async def test_the_order_holds_across_lanes_and_routes(self, world: World, store: Store) -> None:
        for name, lane, version, priority in [("1", "x", "1", 1), ("2", "y", "2", 3), ("3", "x", "2", 2)]:
            await start(store, **member(name), lane=lane, version=version, priority=priority)
        serves = frozenset({(WORKFLOW, "1"), (WORKFLOW, "2")})
        assert await claimed_ids(store, lanes=("x", "y"), serves=serves) == ["family/2", "family/3", "family/1"]

    async def test_a_limit_takes_the_first_and_leaves_the_rest_in_order(self, store: Store) -> None:
        for number in range(7):
            await start(store, **member(number), priority=-number)
        assert await claimed_ids(store, limit=3) == ["family/0", "family/1", "family/2"]
        assert await claimed_ids(store, limit=3) == ["family/3", "family/4", "family/5"]
        assert await claimed_ids(store, limit=3) == ["family/6"]
        assert await claimed_ids(store, limit=3) == []

    async def test_order_holds_across_the_whole_store_or_at_least_in_each_partition(
        self, world: World, store: Store
    ) -> None:
        names = [f"x{n * 7 % 50}" for n in range(50)]
        for name in names:
            await start(store, name)
            world.clock.advance("1ms")
        taken = await claimed_ids(store, limit=50)
        # Where order across partitions is not exact, each of them is a line of its own.
        homes = {name: 0 if store.capabilities.exact_order else partition(store, name) for name in names}
        for home in set(homes.values()):
            assert [x for x in taken if homes[x] == home] == [x for x in names if homes[x] == home]
        assert sorted(taken) == sorted(names)


class ClaimMatchConformance(Conformance):
    """A worker takes what it serves, from the lanes that it names, and nothing else."""

    @pytest.mark.parametrize(
        "options, request_options",
        [
            ({"lane": "other"}, {}),
            ({"workflow": "other"}, {}),
            ({"version": "2"}, {}),
            ({"namespace": "other"}, {}),
            ({"requires": ("gpu",)}, {}),
            ({"requires": ("gpu", "eu")}, {"capabilities": frozenset({"gpu", "us"})}),
            ({"workflow": "a", "version": "b"}, {"serves": frozenset({("a", "x"), ("y", "b")})}),
        ],
        ids=["lane", "workflow", "version", "namespace", "capability", "one capability of two", "version of another"],
    )
    async def test_work_that_does_not_match_is_left(
        self, store: Store, options: dict[str, Any], request_options: dict[str, Any]
    ) -> None:
        before = await start(store, "a", **options)
        assert await claimed_ids(store, **request_options) == []
        assert await look(store, "a", before.namespace) == before

    @pytest.mark.parametrize(
        "options, request_options",
        [
            ({"lane": "b"}, {"lanes": ("a", "b", "c")}),
            ({"lane": "b"}, {"lanes": ("b", "b")}),
            ({"requires": ("gpu", "eu")}, {"capabilities": frozenset({"eu", "gpu", "us"})}),
            ({}, {"capabilities": frozenset({"gpu"})}),
            ({"version": "2"}, {"serves": frozenset({(WORKFLOW, "1"), (WORKFLOW, "2")})}),
            ({"namespace": "other"}, {"namespace": "other"}),
            ({"workflow": "wörk", "lane": "läne"}, {"serves": frozenset({("wörk", "1")}), "lanes": ("läne",)}),
        ],
        ids=["lane", "lane named twice", "capabilities", "capability unused", "version", "namespace", "unicode"],
    )
    async def test_work_that_matches_is_taken(
        self, store: Store, options: dict[str, Any], request_options: dict[str, Any]
    ) -> None:
        await start(store, "a", **options)
        assert await claimed_ids(store, **request_options) == ["a"]

    async def test_the_same_id_in_two_namespaces_is_two_executions(self, store: Store) -> None:
        await start(store, "a", namespace="one", input=b"1")
        await start(store, "a", namespace="two", input=b"2")
        [taken] = (await claim(store, namespace="two")).executions
        assert (taken.execution.namespace, taken.input) == ("two", b"2")
        assert (await look(store, "a", "one")).status is Status.READY

    async def test_a_hundred_mismatching_routes_at_the_head_do_not_hide_a_match(self, store: Store) -> None:
        mismatching = [start_fact(f"v{n}", version=f"0.{n}", priority=9) for n in range(100)]
        capabilities = [start_fact(f"c{n}", requires=(f"c{n}",), priority=9) for n in range(100)]
        await start_many(store, [*mismatching, *capabilities, start_fact("match", version="9")])
        assert await claimed_ids(store, serves=frozenset({(WORKFLOW, "1"), (WORKFLOW, "9")}), limit=1) == ["match"]

    async def test_more_routes_than_one_look_reads_do_not_hide_a_match(self, store: Store) -> None:
        routes = [start_fact(f"v{n}", version=f"0.{n}") for n in range(limits.ROUTES_MAX + 1)]
        await start_many(store, [*routes, start_fact("match", version="9")])
        assert await claimed_ids(store, serves=frozenset({(WORKFLOW, "9")}), limit=1) == ["match"]

    async def test_a_hundred_mismatching_executions_at_the_head_do_not_hide_a_match(self, store: Store) -> None:
        mismatching = [start_fact(f"x{n}", version="2", priority=9) for n in range(100)]
        await start_many(store, [*mismatching, start_fact("match")])
        assert await claimed_ids(store, limit=1) == ["match"]

    async def test_only_ready_work_is_taken(self, store: Store) -> None:
        await start(store, "delayed", delay_ms=60_000)
        await start(store, "dependent", after_dependencies=True)
        await start(store, "held")
        await tell(store, "held", facts.Hold(change_id="hold"))
        await suspended(store, "suspended")
        await running(store, "active")
        await ended(store, "over")
        await start(store, "cancelled")
        await tell(store, "cancelled", cancels())
        assert await claimed_ids(store, "w2") == []

    async def test_a_claim_brings_the_input_of_the_journal_that_it_goes_on_with(self, store: Store) -> None:
        held = await running(store, input=b"first")
        await commit_one(store, decided(store, held, fails(held)))
        await tell(store, "a", facts.Retry(change_id="retry"))
        [again] = (await claim(store)).executions
        assert (again.execution.generation, again.input) == (2, b"first")
        await commit_one(store, decided(store, again.execution, completes(again.execution)))
        await tell(store, "a", start_fact("a", input=b"second", input_digest="2", if_exists="restart"))
        [anew] = (await claim(store)).executions
        assert (anew.execution.generation, anew.input) == (3, b"second")

    @pytest.mark.parametrize(
        "options",
        [
            {"limit": 0},
            {"limit": limits.CLAIM_MAX + 1},
            {"lease_ttl_ms": limits.LEASE_TTL_MIN_MS - 1},
            {"lease_ttl_ms": limits.LEASE_TTL_MAX_MS + 1},
            {"lanes": ()},
            {"lanes": tuple(f"l{n}" for n in range(limits.LANES_MAX + 1))},
            {"lanes": ("two words",)},
            {"claim_id": ""},
            {"worker": ""},
            {"leap": 0},
        ],
        ids=["limit 0", "limit", "short lease", "long lease", "no lane", "lanes", "lane", "claim id", "worker", "leap"],
    )
    async def test_a_claim_past_a_limit_is_refused_and_takes_nothing(
        self, store: Store, options: dict[str, Any]
    ) -> None:
        before = await start(store)
        await refused(store.claim(claim_request(**options)), InvalidInput)
        assert await look(store, "a") == before


class ClaimGateConformance(Conformance):
    """Gates: a paused lane, a flow that is not open, a quota without permits."""

    async def test_a_paused_lane_gives_nothing_until_it_is_resumed(self, store: Store) -> None:
        await start(store, "a")
        await start(store, "b", lane="other")
        await pause(store)
        assert await claimed_ids(store, lanes=(LANE, "other")) == ["b"]
        await pause(store, paused=False)
        assert await claimed_ids(store) == ["a"]

    async def test_a_lane_is_paused_in_its_namespace_only(self, store: Store) -> None:
        await start(store, "a", namespace="elsewhere")
        await pause(store)
        assert await claimed_ids(store, namespace="elsewhere") == ["a"]

    async def test_a_start_that_claims_writes_what_a_start_and_a_claim_would(self, store: Store) -> None:
        apart = start_fact("a", timeout_ms=5_000)
        await start_many(store, [apart])
        [taken] = (await claim(store, "w1", claim_id="both")).executions
        await store.renew("w1", lease_ttl_ms=TTL_MS)
        at_once = start_fact("b", timeout_ms=5_000, worker="w1", change_id="both")
        assert await commit_one(store, start_changes(store, at_once)) == Verdict(True, 0)
        assert msgspec.structs.replace(await look(store, "b"), id="a") == taken.execution
        [attempt], [other] = await records(store, Attempt, "a"), await records(store, Attempt, "b")
        assert msgspec.structs.replace(other, execution="a") == attempt
        assert await claimed_ids(store) == [], "it is taken"
        assert {one.id for one in (await store.renew("w1", lease_ttl_ms=TTL_MS)).held} == {"a", "b"}

    async def test_a_start_that_claims_finds_a_paused_lane_shut(self, store: Store) -> None:
        await store.renew("w1", lease_ttl_ms=TTL_MS)
        await pause(store)
        changes = start_changes(store, start_fact("a", worker="w1"))
        assert not (await commit_one(store, changes)).applied
        assert await store.load([execution_key(NAMESPACE, "a")]) == [None]

    async def test_a_start_that_claims_needs_a_live_session(self, store: Store, world: World) -> None:
        changes = start_changes(store, start_fact("a", worker="w1"))
        assert not (await commit_one(store, changes)).applied
        await store.renew("w1", lease_ttl_ms=TTL_MS)
        world.clock.advance("11s")
        assert not (await commit_one(store, changes)).applied
        assert await store.load([execution_key(NAMESPACE, "a")]) == [None]
        await store.renew("w1", lease_ttl_ms=TTL_MS)
        assert (await commit_one(store, changes)).applied

    async def test_a_gate_that_is_shut_in_a_batch_is_shut_for_what_comes_behind_it(self, store: Store) -> None:
        await store.renew("w1", lease_ttl_ms=TTL_MS)
        before = start_changes(store, start_fact(**member(1), worker="w1"))
        behind = start_changes(store, start_fact(**member(2), worker="w1"))
        home = partition(store, ROOT)
        lane = Lane(partition=home, namespace=NAMESPACE, lane=LANE, paused=True)
        shut = Changes(id="shut", partition=home, anchors=(lane.key,), writes=(Put(lane),))
        verdicts = await commit(store, before, shut, behind)
        assert [verdict.applied for verdict in verdicts] == [True, True, False]

    async def test_what_a_claim_says_is_all_was_all(self, store: Store) -> None:
        for number in range(3):
            await start(store, **member(number))
        assert (await claim(store, limit=2)).more
        rest = await claim(store, limit=2)
        assert len(rest.executions) == 1
        assert rest.more or await claimed_ids(store) == []

    @pytest.mark.parametrize("closed", [FlowState.STAGING, FlowState.STOPPED])
    async def test_members_of_a_flow_are_taken_only_while_it_is_open(self, store: Store, closed: FlowState) -> None:
        await start(store, "nightly/extract", flow="nightly", priority=9)
        await start(store, "alone")
        nightly = Flow(namespace=NAMESPACE, id="nightly", state=closed, created_at=0, change_id="f")
        await put(store, partition(store, "nightly"), nightly)
        assert await claimed_ids(store) == ["alone"]
        await put(store, partition(store, "nightly"), msgspec.structs.replace(nightly, state=FlowState.OPEN))
        assert await claimed_ids(store) == ["nightly/extract"]

    async def test_a_cancelled_member_of_a_closed_flow_is_taken_to_undo_what_it_did(self, store: Store) -> None:
        held = await running(store, "nightly/extract", flow="nightly")
        await tell(store, held.id, steps(held, unwinds=True))
        await tell(store, held.id, suspends(held, waits=("event:plan",)))
        stopped = Flow(namespace=NAMESPACE, id="nightly", state=FlowState.STOPPED, created_at=0, change_id="f")
        await put(store, partition(store, "nightly"), stopped)
        await tell(store, held.id, sends(name="plan"))
        assert await claimed_ids(store) == []
        await tell(store, held.id, cancels())
        assert await claimed_ids(store) == [held.id]

    async def test_a_hundred_members_of_a_closed_flow_do_not_hide_a_match(self, store: Store) -> None:
        flow = Flow(namespace=NAMESPACE, id=ROOT, state=FlowState.STOPPED, created_at=0, change_id="f")
        await put(store, partition(store, ROOT), flow)
        closed = [start_fact(f"{ROOT}/{n}", flow=ROOT, priority=9) for n in range(100)]
        await start_many(store, [*closed, start_fact(**member("free"))])
        assert await claimed_ids(store, limit=1) == ["family/free"]

    async def test_a_quota_gives_as_many_as_it_has_permits(self, store: Store) -> None:
        await permits(store, "stripe", 2)
        for number in range(4):
            await start(store, **member(number), quota="stripe", priority=-number)
        await start(store, **member("free"), priority=-9)
        assert await claimed_ids(store) == ["family/0", "family/1", "family/free"]
        assert await free_permits(store, "stripe", ROOT) == 0
        assert await claimed_ids(store) == []

    async def test_a_quota_that_nobody_made_gives_nothing(self, store: Store) -> None:
        await start(store, quota="unknown")
        assert await claimed_ids(store) == []

    async def test_one_quota_is_shared_by_several_routes(self, store: Store) -> None:
        await permits(store, "stripe", 1)
        await start(store, **member("x"), quota="stripe", version="1")
        await start(store, **member("y"), quota="stripe", version="2", priority=1)
        serves = frozenset({(WORKFLOW, "1"), (WORKFLOW, "2")})
        assert await claimed_ids(store, serves=serves) == ["family/y"]
        assert await free_permits(store, "stripe", ROOT) == 0

    @pytest.mark.parametrize("ending", ["complete", "fail", "suspend", "hand back", "lost", "timeout", "deadline"])
    async def test_a_permit_is_given_back_when_the_lease_ends(self, world: World, store: Store, ending: str) -> None:
        await permits(store, "stripe", 1)
        held = await running(store, quota="stripe", timeout_ms=1_000, deadline_ms=5_000)
        assert await free_permits(store, "stripe", "a") == 0
        endings: dict[str, tuple[str, facts.AnyFact]] = {
            "complete": ("0s", completes(held)),
            "fail": ("0s", fails(held)),
            "suspend": ("0s", suspends(held, waits=("event:plan",))),
            "hand back": ("0s", facts.HandBack(change_id="b", epoch=held.epoch)),
            "lost": ("11s", loses_lease(held)),
            "timeout": ("1s", times_out(held)),
            "deadline": ("5s", facts.DeadlinePassed(change_id="d")),
        }
        later, fact = endings[ending]
        world.clock.advance(later)
        ending_change = decided(store, held, fact, await store.now())
        for _ in range(2):
            assert (await commit_one(store, ending_change)).applied
            assert await free_permits(store, "stripe", "a") == 1


class ClaimRecordConformance(Conformance):
    """Claim writes exactly what `decide(view, Claim)` gives."""

    async def same_as_decided(self, store: Store, id: str = "a", **options: Any) -> Execution:
        """Claim natively and compare the whole records with what the machine would have written."""
        before = await look(store, id)
        attempts = {attempt.number: attempt for attempt in await self.attempts(store, before)}
        request = claim_request("worker-ß", **options)
        [taken] = (claimed := await store.claim(request)).executions
        fact = facts.Claim(change_id=request.claim_id, worker=request.worker, leap=request.leap)
        changes = decide(view_of(store, before), fact, claimed.now)
        assert isinstance(changes, Changes)
        assert taken.execution == execution_after(view_of(store, before), changes, claimed.now)
        assert await look(store, id) == taken.execution
        for write in changes.writes:
            match write:
                case Insert(Attempt() as attempt):
                    expected = inserted(attempt, claimed.now)
                    assert isinstance(expected, Attempt)
                    assert attempt.number not in attempts
                    attempts[attempt.number] = expected
                case Patch(key, fields) if key.kind == Attempt.KIND:
                    number = int(key.values[-1])
                    changed = patched(attempts[number], fields, claimed.now)
                    assert isinstance(changed, Attempt)
                    attempts[number] = changed
                case _:
                    pass
        assert await self.attempts(store, before) == sorted(attempts.values(), key=lambda a: a.number)
        return taken.execution

    async def attempts(self, store: Store, execution: Execution) -> list[Attempt]:
        found = await records(store, Attempt, execution.id)
        return [attempt for attempt in found if attempt.generation == execution.generation]

    async def test_of_a_new_execution(self, store: Store) -> None:
        await start(store, tags={"a": "b"}, priority=3, deadline_ms=90_000)
        taken = await self.same_as_decided(store)
        assert (taken.epoch, taken.worker, taken.attempt) == (1, "worker-ß", 1)

    async def test_of_a_resumed_one_the_attempt_goes_on(self, world: World, store: Store) -> None:
        await suspended(store)
        world.clock.advance("1h")
        await tell(store, "a", sends())
        taken = await self.same_as_decided(store)
        assert (taken.epoch, taken.attempt, taken.resumed) == (2, 1, True)

    async def test_of_a_retried_one_another_attempt_begins(self, world: World, store: Store) -> None:
        held = await running(store, retry=RetryPolicy(max_attempts=3, initial_ms=1_000))
        await commit_one(store, decided(store, held, fails(held)))
        world.clock.advance("1s")
        await tell(store, "a", facts.Wake(change_id="wake", cause="retry"))
        taken = await self.same_as_decided(store)
        assert (taken.attempt, taken.failures, taken.epoch) == (2, 1, 2)

    @pytest.mark.parametrize("sent", [1, EARLY_EVENTS, EARLY_EVENTS + 1])
    async def test_what_was_recorded_and_sent_is_told_wholly_or_not_at_all(self, store: Store, sent: int) -> None:
        held = await running(store)
        for number in (1, 2):
            await commit_one(store, decided(store, held, steps(held, occurrence=number, entries=number)))
        await commit_one(store, decided(store, held, suspends(held, waits=("event:plan",))))
        for _ in range(sent):
            await tell(store, "a", sends())
        [taken] = (await store.claim(claim_request())).executions
        if taken.journal is None:
            assert taken.events == []
            return
        assert sorted(taken.journal, key=lambda entry: entry.position) == await records(store, JournalEntry)
        assert taken.events == (await records(store, Event))[:EARLY_EVENTS]

    async def test_when_it_first_began_is_told_truly_or_not_at_all(self, world: World, store: Store) -> None:
        held = await running(store, retry=RetryPolicy(max_attempts=3, initial_ms=1_000))
        began_at = held.claimed_at
        await commit_one(store, decided(store, held, fails(held)))
        world.clock.advance("1s")
        await tell(store, "a", facts.Wake(change_id="wake", cause="retry"))
        [again] = (await store.claim(claim_request(claim_id="again"))).executions
        assert again.began_at in (None, began_at)
        [repeated] = (await store.claim(claim_request(claim_id="again"))).executions
        assert repeated.began_at in (None, began_at)

    async def test_with_a_leap_of_the_epoch(self, store: Store) -> None:
        await start(store, first_epoch=limits.FIRST_EPOCHS - 1)
        taken = await self.same_as_decided(store, leap=limits.LEAP_MAX)
        assert taken.epoch == limits.FIRST_EPOCHS - 1 + limits.LEAP_MAX
        await commit_one(store, decided(store, taken, facts.HandBack(change_id="back", epoch=taken.epoch)))
        assert (await self.same_as_decided(store, leap=5)).epoch == taken.epoch + 5

    async def test_of_one_whose_worker_died(self, world: World, store: Store) -> None:
        held = await running(store)
        world.clock.advance("11s")
        assert (await tell(store, "a", loses_lease(held))).applied
        taken = await self.same_as_decided(store)
        assert (taken.attempt, taken.crashes) == (2, 1)

    async def test_of_one_that_an_operator_retries_in_a_new_generation(self, store: Store) -> None:
        held = await running(store)
        await commit_one(store, decided(store, held, fails(held)))
        await tell(store, "a", facts.Retry(change_id="operator"))
        taken = await self.same_as_decided(store)
        assert (taken.generation, taken.attempt) == (2, 1)

    async def test_with_a_timeout(self, world: World, store: Store) -> None:
        await start(store, timeout_ms=60_000)
        taken = await self.same_as_decided(store)
        assert taken.attempt_deadline_at == world.clock.now_ms() + 60_000

    async def test_with_a_timeout_of_which_a_part_was_used_before_a_suspension(
        self, world: World, store: Store
    ) -> None:
        held = await running(store, timeout_ms=60_000)
        world.clock.advance("45s")
        await tell(store, "a", suspends(held, waits=("event:plan",)))
        world.clock.advance("7d")
        await tell(store, "a", sends())
        taken = await self.same_as_decided(store)
        assert taken.attempt_deadline_at == world.clock.now_ms() + 15_000

    async def test_with_a_timeout_that_was_used_up(self, world: World, store: Store) -> None:
        held = await running(store, timeout_ms=1_000)
        world.clock.advance("5s")
        await tell(store, "a", facts.HandBack(change_id="b", epoch=held.epoch))
        taken = await self.same_as_decided(store)
        assert taken.attempt_deadline_at == world.clock.now_ms()

    async def test_with_a_quota_the_permit_is_taken(self, store: Store) -> None:
        await permits(store, "stripe", 5)
        await start(store, quota="stripe")
        await self.same_as_decided(store)
        assert await free_permits(store, "stripe", "a") == 4

    async def test_after_a_hold_and_a_release(self, store: Store) -> None:
        await start(store)
        await tell(store, "a", facts.Hold(change_id="hold"))
        await tell(store, "a", facts.Release(change_id="release"))
        taken = await self.same_as_decided(store)
        assert taken.inbox == 2

    async def test_it_renews_the_session_of_the_worker(self, world: World, store: Store) -> None:
        await start(store)
        taken = await claim_one(store, "w1", lease_ttl_ms=7_000)
        found = await session(store, "w1")
        assert found is not None
        assert (found.started_at, found.expires_at) == (taken.claimed_at, world.clock.now_ms() + 7_000)


class ClaimAgainConformance(Conformance):
    """A claim whose reply was lost is found again by its id."""

    async def test_the_same_claim_id_answers_what_it_took(self, store: Store) -> None:
        for number in range(5):
            await start(store, **member(number))
        request = claim_request(limit=3)
        first = await store.claim(request)
        assert await store.claim(request) == first
        assert len(first.executions) == 3
        assert await store.count(Query(namespace=NAMESPACE, status=frozenset({Status.ACTIVE}))) == 3

    async def test_another_process_of_the_worker_finds_it_too(self, world: World, store: Store) -> None:
        await start(store)
        request = claim_request()
        first = await store.claim(request)
        assert (await (await world.store()).claim(request)).executions == first.executions

    async def test_a_claim_takes_no_second_permit_when_repeated(self, store: Store) -> None:
        await permits(store, "stripe", 5)
        await start(store, quota="stripe")
        request = claim_request()
        await store.claim(request)
        await store.claim(request)
        assert await free_permits(store, "stripe", "a") == 4

    async def test_a_claim_repeated_by_id_does_not_find_what_was_lost_meanwhile(
        self, world: World, store: Store
    ) -> None:
        await start(store)
        request = claim_request("w1")
        [taken] = (await store.claim(request)).executions
        world.clock.advance("11s")
        await tell(store, "a", loses_lease(taken.execution))
        other = await claim_one(store, "w2")
        assert (await store.claim(request)).executions == []
        assert await look(store, "a") == other


class ClaimRaceConformance(Conformance):
    """Claimers on separate stores never share an execution."""

    @pytest.mark.parametrize("claimers", [2, 10])
    async def test_every_execution_is_claimed_once(self, world: World, store: Store, claimers: int) -> None:
        names = {f"x{n}" for n in range(200)}
        await start_many(store, [start_fact(name) for name in sorted(names)])
        stores = await world.stores(claimers)

        async def take_all(number: int) -> list[str]:
            taken: list[str] = []
            while ids := await claimed_ids(stores[number], f"w{number}", limit=7):
                taken += ids
            return taken

        shares = await asyncio.gather(*[take_all(number) for number in range(claimers)])
        every = [name for share in shares for name in share]
        assert len(every) == len(names)
        assert set(every) == names
        for number, share in enumerate(shares):
            held = await store.renew(f"w{number}", lease_ttl_ms=TTL_MS)
            assert {lease.id for lease in held.held} == set(share)

    @pytest.mark.parametrize("claimers", [2, 10])
    async def test_a_last_permit_is_taken_once(self, world: World, store: Store, claimers: int) -> None:
        await permits(store, "stripe", 1)
        await start_many(store, [start_fact(**member(n), quota="stripe") for n in range(claimers)])
        stores = await world.stores(claimers)
        shares = await asyncio.gather(*[claimed_ids(stores[n], f"w{n}") for n in range(claimers)])
        assert sum(len(share) for share in shares) == 1
        assert await free_permits(store, "stripe", ROOT) == 0
