"""What the code takes for the time is the same live and replayed, whatever its commits shared a batch with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

import outlast
from outlast.errors import ReplyLost
from outlast.machine.changes import Changes, Patch, started_by
from outlast.model.flow import Member
from outlast.store.port import Committed
from tests.acceptance.conftest import Place, status_is, until

MANY = 60


async def test_many_at_once_see_the_same_times_again(place: Place):
    app = place.app(resident="0s")
    runs: dict[int, list[list[datetime]]] = {n: [] for n in range(MANY)}

    @app.step
    async def one(number: int) -> int:
        return number

    @app.workflow
    async def looks(number: int) -> None:
        seen = [outlast.now()]
        for n in range(2):
            await one(n)
            seen.append(outlast.now())
        runs[number].append(seen)
        await outlast.receive("go", int)

    async def known_already() -> None:
        """A neighbour that is refused."""
        while not all(runs.values()):
            await looks.options(id="0").start(0)

    async with app:
        handles = await asyncio.gather(*(looks.options(id=str(n)).start(n) for n in range(MANY)))
        await known_already()
        for handle in handles:
            await status_is(handle, "suspended")
            await handle.send("go", 1)
        for handle in handles:
            await handle.result(timeout=20)
    assert [len(seen) for seen in runs.values()] == [2] * MANY
    assert [n for n, (live, replayed) in runs.items() if live != replayed] == []


def losing_a_reply(monkeypatch: pytest.MonkeyPatch, store: Any, of: Any) -> list[str]:
    """The first commit that concerns it is done, and its answer is lost; the repeated one comes later."""
    really, lost = store.commit, list[str]()

    async def commit(self: Any, batch: Sequence[Changes]) -> Committed:
        committed = await really(self, batch)
        if not lost and any(of(changes) for changes in batch):
            lost.append("lost")
            await asyncio.sleep(0.05)
            raise ReplyLost("cut")
        return committed

    monkeypatch.setattr(store, "commit", commit)
    return lost


async def test_a_start_whose_reply_was_lost_began_when_it_began(place: Place, monkeypatch: pytest.MonkeyPatch):
    app = place.app(resident="0s")
    seen: list[datetime] = []

    @app.workflow
    async def looks() -> None:
        seen.append(outlast.now())
        await outlast.receive("go", int)

    async with app:
        assert app._opened is not None
        store = type(app._opened._engine.store)
        worker = app._opened.worker
        assert worker is not None
        await until(lambda: worker._lanes_empty and not worker._claiming, "it has not looked yet")
        lost = losing_a_reply(monkeypatch, store, lambda changes: any(e.id == "it" for e in started_by(changes)))
        handle = await looks.options(id="it").start()
        await status_is(handle, "suspended")
        await handle.send("go", 1)
        await handle.result(timeout=20)
    assert lost == ["lost"]
    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_a_member_that_is_handed_on_began_when_it_began(place: Place, monkeypatch: pytest.MonkeyPatch):
    app = place.app(resident="0s")
    seen: list[datetime] = []

    @app.workflow
    async def first() -> int:
        return 1

    @app.workflow
    async def looks(number: int) -> int:
        seen.append(outlast.now())
        await outlast.receive("go", int)
        return number

    def hands_on(changes: Changes) -> bool:
        return any(isinstance(write, Patch) and write.key.kind == Member.KIND for write in changes.writes)

    async with app:
        assert app._opened is not None
        lost = losing_a_reply(monkeypatch, type(app._opened._engine.store), hands_on)
        flow = app.flow("f", id="f")
        flow.add("looks", looks, flow.add("first", first).output)
        fh = await flow.start()
        member = app.execution("f/looks")
        await until(lambda: len(seen) == 1, "it does not begin")
        await status_is(member, "suspended")
        await member.send("go", 1)
        assert await fh.result(timeout=20) == {"first": 1, "looks": 1}
    assert lost == ["lost"]
    assert len(seen) == 2
    assert seen[0] == seen[1]
