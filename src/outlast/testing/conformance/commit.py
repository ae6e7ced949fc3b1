"""Commit: every write, all or nothing, each change with its own verdict; again means again."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from outlast import limits
from outlast.errors import CorruptState, LimitExceeded, OutlastError
from outlast.machine import facts
from outlast.machine.changes import Absent, Add, Delete, Insert, Matches, Patch, Put, Write
from outlast.model.completion import Completion
from outlast.model.event import Event
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import Summary, summary_key
from outlast.model.journal import JournalEntry
from outlast.model.lane import Lane
from outlast.model.payload import Role, payload_key
from outlast.model.record import Key, Now
from outlast.model.status import Status
from outlast.runtime.group_commit import GroupCommit
from outlast.store import checks
from outlast.store.port import Committed, Query, Store, Verdict
from outlast.testing.conformance.actors import (
    NAMESPACE,
    cancels,
    changing,
    claim,
    commit,
    commit_one,
    decided,
    fails,
    look,
    partition,
    put,
    records,
    running,
    same_but,
    sends,
    start,
    start_changes,
    start_fact,
    start_many,
    state,
    steps,
    suspends,
    tell,
)
from outlast.testing.conformance.harness import Conformance, World, refused

KEY = execution_key(NAMESPACE, "a")


def entry(name: str, change_id: str, execution: str = "a") -> JournalEntry:
    return JournalEntry(
        namespace=NAMESPACE,
        execution=execution,
        generation=1,
        scope="",
        name=name,
        occurrence=1,
        op="step",
        outcome="succeeded",
        value=b"1",
        epoch=0,
        recorded_at=Now(),
        change_id=change_id,
    )


class WriteConformance(Conformance):
    """Each kind of write."""

    async def test_a_change_without_the_shape_that_it_declares_writes_nothing(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checks, "SHAPES_CHECKED", True)
        held = await running(store)
        step = decided(store, held, steps(held, "one"))
        more = structs.replace(step, writes=(*step.writes, Patch(KEY, {"held": True})))
        with pytest.raises(CorruptState, match="declares the shape step"):
            await commit(store, step, more)
        assert await records(store, JournalEntry) == []
        assert (await commit_one(store, structs.replace(more, shape=None))).applied

    async def test_an_insert_writes_a_record_that_was_not_there(self, store: Store) -> None:
        await start(store)
        assert (await commit_one(store, changing(store, "a", Insert(entry("x", "c")), change_id="c"))).applied
        assert [e.name for e in await records(store, JournalEntry)] == ["x"]

    async def test_an_insert_refuses_if_its_key_is_taken_by_another_change(self, store: Store) -> None:
        await start(store)
        await commit_one(store, changing(store, "a", Insert(entry("x", "first")), change_id="first"))
        [stands] = await records(store, JournalEntry)
        verdict = await commit_one(store, changing(store, "a", Insert(entry("x", "second")), change_id="second"))
        assert verdict == Verdict(False, inbox=0, refused_by=Absent(stands.key), current=stands)
        assert await records(store, JournalEntry) == [stands]

    async def test_a_patch_writes_only_its_fields(self, store: Store) -> None:
        before = await start(store)
        await commit_one(store, changing(store, "a", Patch(KEY, {"priority": -5, "held": False, "signature": "é"})))
        assert await look(store, "a") == same_but(before, priority=-5, signature="é")

    async def test_a_patch_can_empty_a_field(self, store: Store) -> None:
        before = await start(store, deadline_ms=1_000)
        await commit_one(store, changing(store, "a", Patch(KEY, {"deadline_at": None})))
        assert await look(store, "a") == same_but(before, deadline_at=None)

    async def test_a_patch_of_a_missing_record_writes_nothing(self, store: Store) -> None:
        await start(store)
        nobody = execution_key(NAMESPACE, "nobody")
        assert (await commit_one(store, changing(store, "a", Patch(nobody, {"priority": 1})))).applied
        assert await store.load([nobody]) == [None]

    async def test_an_addition_adds_up_and_down(self, store: Store) -> None:
        before = await start(store)
        await commit_one(store, changing(store, "a", Add(KEY, "inbox", 5), Add(KEY, "inbox", -2)))
        assert await look(store, "a") == same_but(before, inbox=3)

    async def test_an_addition_to_a_missing_record_writes_nothing(self, store: Store) -> None:
        await start(store)
        missing = summary_key(NAMESPACE, "a")
        assert (await commit_one(store, changing(store, "a", Add(missing, "checks", 1)))).applied
        assert await store.load([missing]) == [None]

    async def test_two_additions_of_one_batch_both_count(self, store: Store) -> None:
        await start(store)
        await commit(store, *[changing(store, "a", Add(KEY, "inbox", 1)) for _ in range(50)])
        assert (await look(store, "a")).inbox == 50

    async def test_an_addition_does_not_count_in_what_a_later_change_of_its_batch_puts(self, store: Store) -> None:
        await start(store)
        old, new = [Summary(namespace=NAMESPACE, id=name, checks=9, change_id="c") for name in ("a", "a/new")]
        await put(store, partition(store, "a"), same_but(old, checks=1))
        batch = [
            Add(old.key, "checks", 1),
            Add(new.key, "checks", 1),
            Put(old),
            Insert(new),
            Add(new.key, "checks", 2),
        ]
        assert all(verdict.applied for verdict in await commit(store, *(changing(store, "a", one) for one in batch)))
        assert await store.load([old.key, new.key]) == [old, same_but(new, checks=11)]

    async def test_a_put_writes_whether_or_not_a_record_was_there(self, store: Store) -> None:
        home = partition(store, "a")
        for paused in (True, False, True):
            lane = Lane(partition=home, namespace=NAMESPACE, lane="x", paused=paused)
            await put(store, home, lane)
            assert await store.load([lane.key]) == [lane]

    async def test_a_delete_removes_one_record_and_no_other(self, store: Store) -> None:
        await start(store)
        inserts = [Insert(entry(name, "c")) for name in ("x", "y")]
        await commit_one(store, changing(store, "a", *inserts))
        await commit_one(store, changing(store, "a", Delete(entry("x", "").key)))
        assert [e.name for e in await records(store, JournalEntry)] == ["y"]

    async def test_a_delete_of_a_missing_record_is_no_error(self, store: Store) -> None:
        await start(store)
        assert (await commit_one(store, changing(store, "a", Delete(entry("x", "").key)))).applied

    async def test_a_change_without_writes_is_a_question(self, store: Store) -> None:
        await start(store)
        assert (await commit_one(store, changing(store, "a", guards=[Matches(KEY, {"epoch": 0})]))).applied
        assert not (await commit_one(store, changing(store, "a", guards=[Matches(KEY, {"epoch": 1})]))).applied

    async def test_an_empty_batch_answers_the_time(self, world: World, store: Store) -> None:
        assert await store.commit([]) == Committed(world.clock.now_ms(), [])


class CommitConformance(Conformance):
    """A change as a whole, and among its neighbours."""

    async def test_a_conflict_of_the_last_insert_undoes_every_write_before_it(self, store: Store) -> None:
        await start(store, "a")
        await put(store, partition(store, "a"), Summary(namespace=NAMESPACE, id="a", checks=3, change_id="s"))
        taken = entry("taken", "other")
        await commit_one(store, changing(store, "a", Insert(taken), change_id="other"))
        before = await state(store, "a")
        everything = changing(
            store,
            "a",
            Patch(KEY, {"priority": 9}),
            Add(KEY, "inbox", 1),
            Add(summary_key(NAMESPACE, "a"), "checks", -1),
            Put(Lane(partition=partition(store, "a"), namespace=NAMESPACE, lane="x", paused=True)),
            Delete(payload_key(NAMESPACE, "a", 1, Role.INPUT)),
            Insert(entry("new", "mine")),
            Insert(entry("taken", "mine")),
            change_id="mine",
        )
        verdict = await commit_one(store, everything)
        assert verdict.refused_by == Absent(taken.key)
        assert await state(store, "a") == before

    async def test_a_refused_change_never_fails_its_neighbours(self, store: Store) -> None:
        for name in "abc":
            await start(store, name)
        refusing = Matches(execution_key(NAMESPACE, "b"), {"epoch": 9})
        batch = [
            changing(store, "a", Insert(entry("x", "1", "a"))),
            changing(store, "b", Insert(entry("x", "2", "b")), guards=[refusing]),
            changing(store, "c", Insert(entry("x", "3", "c"))),
        ]
        assert [v.applied for v in await commit(store, *batch)] == [True, False, True]
        assert [len(await records(store, JournalEntry, name)) for name in "abc"] == [1, 0, 1]

    async def test_changes_that_share_an_anchor_apply_in_the_order_given(self, store: Store) -> None:
        await start(store)
        batch = [
            changing(store, "a", Patch(KEY, {"priority": n + 1}), guards=[Matches(KEY, {"priority": n})])
            for n in range(20)
        ]
        assert all(v.applied for v in await commit(store, *batch))
        assert (await look(store, "a")).priority == 20

    async def test_of_two_changes_that_exclude_each_other_the_first_wins(self, store: Store) -> None:
        await start(store)
        unseen = Matches(KEY, {"priority": 0})
        batch = [changing(store, "a", Patch(KEY, {"priority": n}), guards=[unseen]) for n in (5, 6)]
        first, second = await commit(store, *batch)
        assert (first.applied, second.applied) == (True, False)
        assert second.current == await look(store, "a")
        assert (await look(store, "a")).priority == 5

    async def test_a_start_and_what_follows_may_share_a_batch(self, store: Store) -> None:
        fact = start_fact("a")
        starting = start_changes(store, fact)
        following = changing(store, "a", Insert(entry("x", "c")), guards=[Matches(KEY, {"status": Status.READY})])
        assert all(v.applied for v in await commit(store, starting, following))

    async def test_changes_of_many_executions_fit_one_batch(self, store: Store) -> None:
        names = [f"x{n}" for n in range(300)]
        await start_many(store, [start_fact(name) for name in names])
        batch = [changing(store, name, Insert(entry("s", "c", name))) for name in names]
        assert all(v.applied for v in await commit(store, *batch))
        assert await store.count(Query(namespace=NAMESPACE)) == 300


class VerdictConformance(Conformance):
    """What a verdict says."""

    async def test_a_verdict_carries_the_inbox_so_that_a_step_sees_a_cancel(self, store: Store) -> None:
        held = await running(store)
        assert (await commit_one(store, decided(store, held, steps(held, "one")))).inbox == 0
        await tell(store, "a", cancels())
        assert (await commit_one(store, decided(store, held, steps(held, "two")))).inbox == 1

    async def test_an_outside_write_answers_the_inbox_that_it_made(self, store: Store) -> None:
        await running(store)
        assert (await tell(store, "a", sends())).inbox == 1
        assert (await tell(store, "a", sends())).inbox == 2

    async def test_a_refusal_carries_the_inbox_too(self, store: Store) -> None:
        held = await running(store)
        suspending = decided(store, held, suspends(held, waits=("event:plan",)))
        await tell(store, "a", sends())
        verdict = await commit_one(store, suspending)
        assert (verdict.applied, verdict.inbox) == (False, 1)

    async def test_the_inbox_of_an_execution_that_does_not_exist_is_none(self, store: Store) -> None:
        verdict = await commit_one(store, changing(store, "a", guards=[Matches(KEY, {"epoch": 0})]))
        assert verdict == Verdict(False, None, refused_by=Matches(KEY, {"epoch": 0}), current=None)

    async def test_what_stands_is_shown_as_it_stands_within_the_batch(self, store: Store) -> None:
        await start(store)
        batch = [
            changing(store, "a", Patch(KEY, {"priority": 3})),
            changing(store, "a", guards=[Matches(KEY, {"priority": 0})]),
            changing(store, "a", Patch(KEY, {"priority": 4})),
        ]
        _, refused_one, _ = await commit(store, *batch)
        assert isinstance(refused_one.current, Execution)
        assert refused_one.current.priority == 3

    async def test_an_insert_that_meets_its_own_record_was_applied_before(self, store: Store) -> None:
        held = await running(store)
        stepping = decided(store, held, steps(held))
        assert await commit_one(store, stepping) == Verdict(True, inbox=0)
        assert await commit_one(store, stepping) == Verdict(True, inbox=0, again=True)

    async def test_a_patch_that_meets_its_own_change_id_was_applied_before(self, store: Store) -> None:
        held = await running(store)
        suspending = decided(store, held, suspends(held, wake_at=2_000_000_000_000))
        assert await commit_one(store, suspending) == Verdict(True, inbox=0)
        assert await commit_one(store, suspending) == Verdict(True, inbox=0, again=True)

    async def test_an_end_repeated_verbatim_was_applied_before_even_if_retried_meanwhile(self, store: Store) -> None:
        held = await running(store)
        failing = decided(store, held, fails(held))
        assert not (await commit_one(store, failing)).again
        await tell(store, "a", facts.Retry(change_id="operator"))
        assert (await commit_one(store, failing)).again
        assert len(await records(store, Completion)) == 1
        assert (await look(store, "a")).status is Status.READY

    async def test_additions_count_once_when_a_change_is_repeated_verbatim(self, store: Store) -> None:
        await running(store)
        sending = decided(store, await look(store, "a"), sends())
        for _ in range(3):
            assert (await commit_one(store, sending)).inbox == 1
        assert (await look(store, "a")).inbox == 1
        assert len(await records(store, Event)) == 1

    async def test_a_change_repeated_within_one_batch_counts_once(self, store: Store) -> None:
        await running(store)
        sending = decided(store, await look(store, "a"), sends())
        verdicts = await commit(store, sending, sending, sending)
        assert [v.again for v in verdicts] == [False, True, True]
        assert (await look(store, "a")).inbox == 1

    async def test_another_change_with_the_same_writes_is_not_oneself(self, store: Store) -> None:
        held = await running(store)
        await commit_one(store, decided(store, held, steps(held, change_id="one")))
        verdict = await commit_one(store, decided(store, held, steps(held, change_id="two")))
        assert (verdict.applied, verdict.again) == (False, False)

    async def test_of_many_steps_each_is_told_apart(self, store: Store) -> None:
        held = await running(store)
        old = decided(store, held, steps(held, occurrence=1, change_id="old"))
        await commit_one(store, old)
        first, rival = (steps(held, occurrence=2, change_id=change_id) for change_id in ("first", "rival"))
        new = decided(store, held, steps(held, occurrence=3, change_id="new"))
        batch = [new, decided(store, held, first), old, decided(store, held, rival), new]
        verdicts = await commit(store, *batch)
        told = [(v.applied, v.again) for v in verdicts]
        assert told == [(True, False), (True, False), (True, True), (False, False), (True, True)]
        entries = await records(store, JournalEntry)
        assert sorted(entry.change_id for entry in entries) == ["first", "new", "old"]


class CommitLimitConformance(Conformance):
    """What is too much or malformed is refused with a typed error, and nothing is written."""

    async def test_a_batch_over_the_limit_is_refused_whole(self, store: Store) -> None:
        await start(store)
        batch = [changing(store, "a", Add(KEY, "inbox", 1)) for _ in range(limits.BATCH_MAX_CHANGES + 1)]
        await refused(store.commit(batch), LimitExceeded)
        assert (await look(store, "a")).inbox == 0
        assert len(await commit(store, *batch[:-1])) == limits.BATCH_MAX_CHANGES
        assert (await look(store, "a")).inbox == limits.BATCH_MAX_CHANGES

    async def test_a_change_over_the_limit_is_refused_whole(self, store: Store) -> None:
        await start(store)
        adds = [Add(KEY, "inbox", 1) for _ in range(limits.CHANGES_MAX_WRITES)]
        many = changing(store, "a", *adds, guards=[Matches(KEY, {"epoch": 0})])
        await refused(store.commit([changing(store, "a", adds[0]), many]), LimitExceeded)
        assert (await look(store, "a")).inbox == 0
        assert (await commit_one(store, changing(store, "a", *adds))).inbox == limits.CHANGES_MAX_WRITES

    @pytest.mark.parametrize(
        "malformed",
        [
            Patch(KEY, {"priority": "high"}),
            Patch(KEY, {"priority": b"\x01"}),
            Patch(KEY, {"status": None}),
            Patch(KEY, {"colour": "red"}),
            Add(KEY, "colour", 1),
            Patch(Key("unicorn", ("a",)), {"horn": 1}),
            Delete(Key("execution", (NAMESPACE,))),
            Patch(KEY, {"priority": 2**70}),
            Insert(same_but(entry("x", "c"), value="text, not bytes")),
            Insert(same_but(entry("x", "c"), name=None)),
            Insert(same_but(entry("x", "c"), value=["a", "list"])),
        ],
        ids=[
            "text for a number",
            "bytes for a number",
            "no status",
            "patch of an unknown field",
            "addition to an unknown field",
            "unknown kind",
            "half a key",
            "too large a number",
            "text for bytes",
            "no name",
            "a list",
        ],
    )
    async def test_a_malformed_change_is_a_typed_error_and_writes_nothing(self, store: Store, malformed: Write) -> None:
        await start(store)
        before = await state(store, "a")
        bad = changing(store, "a", Add(KEY, "inbox", 1), malformed)
        await refused(store.commit([changing(store, "a", Insert(entry("good", "c"))), bad]), OutlastError)
        assert await state(store, "a") == before

    async def test_a_malformed_change_fails_alone_among_calls_made_at_once(self, store: Store) -> None:
        names = [f"x{n}" for n in range(20)]
        await start_many(store, [start_fact(name) for name in names])
        bad = changing(store, "x7", Patch(execution_key(NAMESPACE, "x7"), {"priority": "high"}))
        good = [changing(store, name, Insert(entry("s", "c", name))) for name in names]
        calls = [store.commit([changes]) for changes in (*good[:10], bad, *good[10:])]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        failed = [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)]
        assert failed == [10]
        assert isinstance(answers[10], OutlastError)
        for name in names:
            assert len(await records(store, JournalEntry, name)) == 1

    async def test_a_malformed_change_fails_alone_in_a_group_commit(self, store: Store) -> None:
        await start_many(store, [start_fact(name) for name in "abc"])
        group = GroupCommit(store)
        calls = [
            group.commit(changing(store, "a", Insert(entry("s", "c", "a")))),
            group.commit(changing(store, "b", Patch(execution_key(NAMESPACE, "b"), {"priority": "high"}))),
            group.commit(changing(store, "c", Insert(entry("s", "c", "c")))),
        ]
        first, bad, last = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(bad, OutlastError)
        assert isinstance(first, Verdict)
        assert isinstance(last, Verdict)
        assert first.applied
        assert last.applied
        await group.close()

    async def test_a_large_payload_comes_back_whole(self, store: Store) -> None:
        big = b"\x00\xff" * (limits.PAYLOAD_MAX_BYTES // 2)
        await start(store, input=big)
        claimed = await claim(store)
        assert claimed.executions[0].input == big
