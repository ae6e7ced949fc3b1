"""A server that dies with a claim which was not on its disk yet: whoever claims the same has another epoch, and the
holder that the server forgot is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outlast.store.postgres import PostgresStore
from outlast.testing.conformance.actors import claim, commit, decided, look, start, steps
from outlast.testing.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

# Nothing is written behind the back of a commit for as long as this test takes.
LATE = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "checkpoint_timeout": "1h", "fsync": "on"}


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer.launch(settings=LATE) as server:
        yield server


async def opened(server: PostgresServer) -> PostgresStore:
    store = PostgresStore(f"{server.url}&doorbell=off")
    await store.migrate()
    await store.open()
    return store


async def test_a_claim_that_the_server_forgot_is_no_fence(server: PostgresServer):
    first = await opened(server)
    await start(first)
    before = await look(first, "a")
    [taken] = (await claim(first, "w1", leap=5)).executions
    server.restart("immediate")
    second = await opened(server)
    assert await look(second, "a") == before, "the claim was on the disk: this test shows nothing"
    [again] = (await claim(second, "w2", leap=9)).executions
    zombie, holder = taken.execution, again.execution
    [late] = await commit(first, decided(first, zombie, steps(zombie)))
    assert not late.applied
    [step] = await commit(second, decided(second, holder, steps(holder)))
    assert step.applied
    await first.close()
    await second.close()


async def test_what_a_holder_wrote_is_never_there_without_its_claim(server: PostgresServer):
    store = await opened(server)
    await start(store)
    [taken] = (await claim(store, "w1", leap=5)).executions
    [step] = await commit(store, decided(store, taken.execution, steps(taken.execution)))
    assert step.applied
    server.restart("immediate")
    again = await opened(server)
    assert await look(again, "a") == taken.execution
    await store.close()
    await again.close()
