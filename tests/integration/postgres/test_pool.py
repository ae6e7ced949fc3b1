"""Which connection does what: each process of the server plans for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from outlast.store.postgres import connection as module
from outlast.store.postgres.connection import Pool, Session
from outlast.store.postgres.url import parse_url
from tests import postgres


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    pool = Pool(parse_url(await postgres.empty()), points=None, on_crash=lambda _: None)
    yield pool
    await pool.close()


async def served_by(pool: Pool, name: str, *, until: asyncio.Event | None = None) -> int:
    async def operation(session: Session) -> int:
        if until is not None:
            await until.wait()
        return session.connection.get_server_pid()

    return await pool.call(name, operation)


async def side_by_side(pool: Pool, *names: str) -> list[int]:
    """All at once: each has a connection of its own."""
    together = asyncio.Event()
    asked = [asyncio.create_task(served_by(pool, name, until=together)) for name in names]
    while len(pool._busy) < len(names):  # noqa: ASYNC110
        await asyncio.sleep(0)
    together.set()
    return await asyncio.gather(*asked)


async def test_while_several_are_in_use_each_kind_goes_back_to_where_it_was_done_before(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "WARM_S", 60)
    claim, commit, due = await side_by_side(pool, "claim", "commit", "due")
    assert len({claim, commit, due}) == 3
    for _ in range(3):
        assert await served_by(pool, "commit") == commit
        assert await served_by(pool, "due") == due
        assert await served_by(pool, "claim") == claim
    assert await side_by_side(pool, "due", "commit", "claim") == [due, commit, claim]


async def test_a_new_kind_goes_to_who_does_least(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "WARM_S", 60)
    one, other = await side_by_side(pool, "claim", "commit")
    assert {await served_by(pool, "due"), await served_by(pool, "held")} == {one, other}


async def test_when_little_is_asked_one_connection_does_it_all(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "WARM_S", -1)
    await side_by_side(pool, "claim", "commit", "due")
    last = await served_by(pool, "renew")
    assert {await served_by(pool, name) for name in ("claim", "commit", "due", "renew")} == {last}
