"""An execution of many records has a list of them, one of few has none; a scan does not tell the difference."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from outlast import limits
from outlast.machine.changes import Delete, Insert
from outlast.model.event import Event
from outlast.model.journal import JournalEntry
from outlast.model.payload import Payload, Role
from outlast.model.record import Key, Record
from outlast.model.tag import Tag
from outlast.store.valkey import ValkeyStore
from outlast.store.valkey.commit import VALUES_MAX
from outlast.store.valkey.keys import LISTED
from outlast.testing.conformance.actors import NAMESPACE, changing, commit, decided, running, sends, steps, tell
from outlast.testing.valkey_server import ValkeyServer
from tests.conformance.valkey_audit import leaks

MANY = LISTED + 20


@pytest.fixture
async def store(server: ValkeyServer) -> AsyncIterator[ValkeyStore]:
    store = ValkeyStore(f"{server.url}?partitions=2")
    await store.migrate()
    await store.open()
    yield store
    await store.close()
    assert not leaks(server)


async def pages(store: ValkeyStore, kind: str, prefix: tuple[str, ...], limit: int) -> list[Record]:
    found: list[Record] = []
    after: Key | None = None
    while page := await store.scan(kind, prefix, after=after, limit=limit):
        found += page
        after = page[-1].key
    return found


@pytest.mark.parametrize("at_once", [1, 7, MANY])
async def test_a_journal_that_grows_long_is_read_in_order(store: ValkeyStore, at_once: int):
    held = await running(store)
    changes = [decided(store, held, steps(held, f"s{n % 7}", occurrence=n)) for n in range(MANY)]
    for first in range(0, MANY, at_once):
        await commit(store, *changes[first : first + at_once])
    wanted = sorted((f"s{n % 7}", n) for n in range(MANY))
    for prefix in ((NAMESPACE, "a"), (NAMESPACE,), ()):
        found = await pages(store, JournalEntry.KIND, prefix, 9)
        assert [(e.name, e.occurrence) for e in found if isinstance(e, JournalEntry)] == wanted


async def test_many_events_are_read_in_the_order_in_which_they_were_sent(store: ValkeyStore):
    await running(store)
    for n in range(MANY):
        await tell(store, "a", sends(f"n{n % 3}", dedup=f"{(n * 7) % MANY:03}"))
    found = [e for e in await pages(store, Event.KIND, (NAMESPACE, "a"), 9) if isinstance(e, Event)]
    assert [e.dedup for e in found] == [f"{(n * 7) % MANY:03}" for n in range(MANY)]
    assert [e for e in found if e.name == "n1"] == await pages(store, Event.KIND, (NAMESPACE, "a", "n1"), 9)


async def test_a_batch_of_more_values_than_a_script_unpacks_at_once_is_written_whole(store: ValkeyStore):
    held = await running(store)
    await commit(store, *[decided(store, held, steps(held, occurrence=n)) for n in range(VALUES_MAX // 10)])
    assert len(await pages(store, JournalEntry.KIND, (NAMESPACE, "a"), 1_000)) == VALUES_MAX // 10


async def test_a_journal_that_becomes_short_again_has_no_list(store: ValkeyStore):
    held = await running(store)
    await commit(store, *[decided(store, held, steps(held, occurrence=n)) for n in range(MANY)])
    entries = await store.scan(JournalEntry.KIND, (NAMESPACE, "a"))
    await commit(store, *[changing(store, "a", Delete(entry.key)) for entry in entries[5:60]])
    assert await pages(store, JournalEntry.KIND, (NAMESPACE, "a"), 9) == entries[:5] + entries[60:]


@pytest.mark.parametrize("prefix", [(), (NAMESPACE, "a")])
async def test_a_scan_reads_no_values_of_other_kinds(server: ValkeyServer, store: ValkeyStore, prefix: tuple[str, ...]):
    await tell(store, (await running(store)).id, sends())
    large = b"x" * limits.PAYLOAD_MAX_BYTES
    payload = Payload(namespace=NAMESPACE, execution="a", generation=2, role=Role.INPUT, value=large, change_id="")
    await commit(store, changing(store, "a", Insert(payload)))
    server.ask("CONFIG", "RESETSTAT")
    assert len(await store.scan(Event.KIND, prefix)) == 1
    assert await store.scan(Tag.KIND, prefix) == []
    assert whole_hashes_read(server) == 0
    assert len(await store.scan(Payload.KIND, prefix)) == 2


def whole_hashes_read(server: ValkeyServer) -> int:
    stats = server.ask("INFO", "commandstats").decode()
    return sum(map(int, re.findall(r"cmdstat_(?:hgetall|hvals):calls=(\d+)", stats)))
