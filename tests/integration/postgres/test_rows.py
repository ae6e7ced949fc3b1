"""Rows of one commit are sent in groups that share fields (`rows.py`): what is written is what each record says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from msgspec import structs

from outlast.errors import InvalidInput
from outlast.machine import View, decide
from outlast.machine.changes import Changes, Insert, Patch, inserted, patched
from outlast.machine.decide_flow import NewFlow, NewMember, accepted
from outlast.machine.decide_member import Ended, answered_edge
from outlast.model.flow import OnFailure, member_key
from outlast.model.record import Key, Now, Record
from outlast.model.retry import RetryPolicy
from outlast.model.status import Status
from outlast.store.postgres import PostgresStore
from outlast.testing.conformance import actors
from outlast.testing.conformance.actors import NAMESPACE
from tests import postgres

ALL_BYTES = bytes(range(256))
OPTIONS: list[dict[str, Any]] = [
    {},
    {"priority": 7},
    {"tags": {"customer": "ann"}},
    {"lane": "other", "workflow": "ship"},
    {"delay_ms": 5_000, "deadline_ms": 90_000},
    {"timeout_ms": 1_000, "retry": RetryPolicy(max_attempts=3)},
    {"input": ALL_BYTES, "input_digest": "é\u2028'\"\\"},
    {"input": b""},
    {"worker": "w1"},
]


@pytest_asyncio.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(f"{await postgres.empty()}&doorbell=off")
    await store.open()
    await store.renew("w1", lease_ttl_ms=10_000)
    yield store
    await store.close()


def starts(store: PostgresStore) -> list[Changes]:
    return [
        actors.start_changes(store, actors.start_fact(f"{nth}-{number}", **options))
        for nth in range(3)
        for number, options in enumerate(OPTIONS)
    ]


async def written(store: PostgresStore, batch: list[Changes], before: dict[Key, Record]) -> dict[Key, Record]:
    """What stands there once the batch is committed; it must be what its writes say."""
    committed = await store.commit(batch)
    assert all(verdict.applied for verdict in committed.verdicts)
    expected = dict(before)
    for changes in batch:
        for write in changes.writes:
            if isinstance(write, Insert):
                expected[write.record.key] = inserted(write.record, committed.now)
            elif isinstance(write, Patch):
                expected[write.key] = patched(expected[write.key], write.fields, committed.now)
    keys = list(expected)
    found = {key: record for key, record in zip(keys, await store.load(keys), strict=True) if record is not None}
    assert {key: _unnumbered(record) for key, record in found.items()} == expected
    return expected


def _unnumbered(record: Record) -> Record:
    """The store numbers its completions."""
    return structs.replace(record, seq=0) if record.SEQUENCED else record


async def test_records_that_share_much_or_little_are_written_as_they_are(store: PostgresStore):
    batch = starts(store)
    records = await written(store, batch, {})
    held = [write.record for changes in batch[8::9] for write in changes.writes if isinstance(write, Insert)]
    running = [await actors.look(store, record.id) for record in held if record.KIND == "execution"]  # type: ignore[attr-defined]
    assert len(running) == 3
    facts = (
        actors.completes(running[0], ALL_BYTES),
        actors.fails(running[1], failure=ALL_BYTES),
        actors.completes(running[2], b""),
    )
    ends = [actors.decided(store, one, fact) for one, fact in zip(running, facts, strict=True)]
    await written(store, ends, records)


def member(flow_id: str, number: int, upstreams: tuple[str, ...], **fields: Any) -> NewMember:
    fact = actors.start_fact(f"{flow_id}/{number}", flow=flow_id, after_dependencies=bool(upstreams))
    return NewMember(
        start=fact, name=str(number), position=number, upstreams=upstreams, needed=len(upstreams), **fields
    )


async def test_members_their_edges_and_answers_are_written_as_they_are(store: PostgresStore):
    batch: list[Changes] = []
    for flow_id in ("f", "g", "é"):
        first, second = member(flow_id, 0, ()), member(flow_id, 1, (f"{flow_id}/0",), template=ALL_BYTES)
        third = member(flow_id, 2, (f"{flow_id}/0", f"{flow_id}/1"), on_failure=OnFailure.RUN)
        change_id = actors.new_id("flow")
        new = NewFlow(namespace=NAMESPACE, id=flow_id, name="n", digest="d", members=3, change_id=change_id)
        batch.append(accepted(actors.partition(store, flow_id), new, [first, second, third]))
    records = await written(store, batch, {})
    answers: list[Changes] = []
    for flow_id in ("f", "g", "é"):
        ended, downstream = Ended(NAMESPACE, f"{flow_id}/0", Status.READY, 1), f"{flow_id}/1"
        answer = answered_edge(actors.partition(store, flow_id), ended, downstream)
        counted: dict[str, Any] = {"answered": 1, "drained": ended.id, "siblings_at": Now(5), "change_id": answer.id}
        both = (*answer.writes, Patch(member_key(NAMESPACE, downstream), counted))
        answers.append(structs.replace(answer, writes=both))
    await written(store, answers, records)


async def test_patches_that_name_the_same_fields_in_another_order_keep_their_values(store: PostgresStore):
    batch = [actors.start_changes(store, actors.start_fact(name)) for name in ("a", "b", "c")]
    records = await written(store, batch, {})
    orders = {
        "a": {"priority": 1, "ran_ms": 2},
        "b": {"ran_ms": 1, "priority": 2},
        "c": {"priority": 1, "ran_ms": 2},
    }
    keys = {name: (await actors.look(store, name)).key for name in orders}
    await written(store, [actors.changing(store, n, Patch(keys[n], {**orders[n]})) for n in orders], records)


async def test_of_two_patches_of_one_record_in_a_change_the_later_counts(store: PostgresStore):
    await actors.start(store, "a")
    seen = await actors.look(store, "a")
    twice = (Patch(seen.key, {"priority": 1, "ran_ms": 5}), Patch(seen.key, {"priority": 2}))
    assert (await actors.commit_one(store, actors.changing(store, "a", *twice))).applied
    after = await actors.look(store, "a")
    assert (after.priority, after.ran_ms) == (2, 5)


@pytest.mark.parametrize(
    "wrong", [{"lane": ["x"]}, {"priority": "1"}, {"epoch": None}, {"tags": 1}, {"workflow": b"x"}]
)
async def test_what_a_field_cannot_be_is_refused_shared_or_not(store: PostgresStore, wrong: dict[str, Any]):
    answer = decide(View(0, None), actors.start_fact("a"), 0)
    assert isinstance(answer, Changes)
    [first, *rest] = answer.writes
    assert isinstance(first, Insert)
    spoiled = structs.replace(answer, writes=(Insert(structs.replace(first.record, **wrong)), *rest))
    with pytest.raises(InvalidInput):
        await store.commit([spoiled])


async def in_place(store: PostgresStore, connection: Any) -> dict[str, tuple[int, int]]:
    """By table: how often a row was updated, and how often without a new entry in any index."""

    async def told(session: Any) -> None:
        await session.rows("SELECT pg_stat_force_next_flush()")

    await store._opened()[0].call("test", told, writes=False)
    await connection.execute("SELECT pg_stat_force_next_flush()")
    rows = await connection.fetch("SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables")
    return {row["relname"]: (row["n_tup_upd"], row["n_tup_hot_upd"]) for row in rows}


async def test_what_is_updated_once_or_often_has_room_on_its_page():
    url = await postgres.empty()
    store = PostgresStore(f"{url}&doorbell=off&pool_size=1")
    await store.open()
    connection: Any = await asyncpg.connect(url)
    before = await in_place(store, connection)
    await actors.start_many(store, [actors.start_fact(f"e{number}") for number in range(400)])
    held = [one.execution for one in (await actors.claim(store, limit=400)).executions]
    for _ in range(3):
        await store.renew("w1", lease_ttl_ms=10_000)
    assert all(
        v.applied for v in await actors.commit(store, *(actors.decided(store, e, actors.completes(e)) for e in held))
    )
    after = await in_place(store, connection)
    await connection.close()
    await store.close()
    for table, least in (("attempt", 400), ("session", 3 * 64)):
        updated, hot = (new - old for old, new in zip(before[table], after[table], strict=True))
        assert updated >= least
        assert hot > 0.8 * updated, f"{table}: {hot} of {updated}"
