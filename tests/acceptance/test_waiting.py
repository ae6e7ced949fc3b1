"""Waiting for ends when something else happens at the same moment: a purge, a deaf doorbell, a store in trouble."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, cast

import pytest

from outlast import App, ExecutionNotFound, ExecutionSkipped, Retry
from outlast import opened as opened_module
from outlast.app import store_for
from outlast.client import waiters
from outlast.machine import facts
from outlast.model.execution import Execution
from outlast.model.record import Key, Record
from outlast.store.port import RESCAN, Store, Subscription
from tests.acceptance.conftest import Place, until


class Wrapped:
    """A store that does as the one inside of it, but for what a test changes."""

    def __init__(self, store: Store) -> None:
        self.inner = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class PurgingBetween(Wrapped):
    """Once armed, whatever has ended is purged just after its execution was read, before its result is."""

    armed = False
    purged = 0

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._one = asyncio.Lock()

    async def load(self, keys: Sequence[Key]) -> list[Record | None]:
        found = await self.inner.load(keys)
        if self.armed and any(isinstance(record, Execution) and record.status.terminal for record in found):
            async with self._one:  # who waits looks, and the net may look just then: both have read it
                self.purged += await self.inner.purge(finished_before=2**52)
            assert self.purged == 1
        return found


@pytest.mark.parametrize("end", ["succeeded", "failed"])
async def test_a_result_that_is_purged_while_it_is_read_is_not_found(place: Place, end: str):
    store = PurgingBetween(store_for(place.url))
    app, reader = place.app(), App(store=lambda: cast("Store", store))

    @app.workflow
    async def ends() -> str | None:
        if end == "failed":
            raise ValueError("no")
        return "result"

    async with app:
        handle = await ends.options(id="it").start()
        await until(lambda: _ended(handle), "it does not end")
    async with reader.client():  # another process: nothing is pushed to it
        store.armed = True
        with pytest.raises(ExecutionNotFound):
            await reader.execution("it").result(timeout=20)


async def test_a_failure_that_is_purged_while_its_retry_reads_it_is_not_found(place: Place):
    store = PurgingBetween(store_for(place.url))
    app = App(store=lambda: cast("Store", store))

    @app.workflow(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise ValueError("no")

    async with app:
        handle = await fails.options(id="it").start()
        await until(lambda: _ended(handle), "it does not end")
        store.armed = True
        with pytest.raises(ExecutionNotFound):
            await handle.retry()


async def _ended(handle: Any) -> bool:
    return (await handle.info()).finished_at is not None


async def test_what_was_skipped_says_so(app: App):
    @app.workflow
    async def never() -> None: ...

    async with app.client():
        assert app._opened is not None
        engine = app._opened._engine
        start = facts.Start(
            change_id="s",
            namespace="default",
            id="it",
            workflow="never",
            version="1",
            input=b"[]",
            input_digest="",
            after_dependencies=True,
        )
        await engine.begin(start)
        await engine.tell("default", "it", facts.Skip(change_id="skip", cause="upstream failed"))
        with pytest.raises(ExecutionSkipped, match="upstream failed"):
            await never.execution("it").result(timeout=20)


# ---- the feed -----------------------------------------------------------------------------------------------------


async def test_the_feed_wakes_by_the_doorbell(place: Place, monkeypatch: pytest.MonkeyPatch):
    """In whichever process something ends: without waiting for the next poll, which is far away here."""
    monkeypatch.setattr(waiters, "POLL_S", 3_600.0)
    subscriber, other = place.app(), place.app()

    @other.workflow
    async def ends(number: int) -> int:
        return number

    async with subscriber.client(), other, aclosing(subscriber.completions()) as feed:  # type: ignore[type-var]
        for number in range(3):
            coming = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(0.05)
            assert not coming.done()
            await ends.options(id=f"e{number}").start(number)
            assert (await asyncio.wait_for(coming, 10)).execution_id == f"e{number}"


async def test_the_feed_polls_where_no_doorbell_is_heard(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiters, "POLL_S", 0.05)
    subscriber, other = place.app(doorbell=False), place.app()

    @other.workflow
    async def ends() -> None: ...

    async with subscriber.client(), other, aclosing(subscriber.completions()) as feed:  # type: ignore[type-var]
        coming = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(0.01)
        await ends.options(id="it").start()
        assert (await asyncio.wait_for(coming, 10)).execution_id == "it"


async def test_the_feed_can_be_filtered_by_several_tags(app: App):
    @app.workflow
    async def ends() -> None: ...

    async with app:
        for site, tier in [("paris", "gold"), ("paris", "tin"), ("rome", "gold"), ("paris", "gold")]:
            handle = await ends.options(tags={"site": site, "tier": tier}).start()
            await handle.result(timeout=20)
            last = handle.id
        async with asyncio.timeout(20), aclosing(app.completions(tags={"site": "paris", "tier": "gold"})) as feed:  # type: ignore[type-var]
            found = [await anext(feed), await anext(feed)]
    assert [completion.tags for completion in found] == [{"site": "paris", "tier": "gold"}] * 2
    assert found[1].execution_id == last


# ---- the doorbell -------------------------------------------------------------------------------------------------


class Deaf:
    """A subscription that breaks after its first ring."""

    def __init__(self, inner: Subscription) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[frozenset[str]]:
        yield frozenset({RESCAN})
        raise OSError("the socket broke")

    async def close(self) -> None:
        await self._inner.close()


class BreakingDoorbell(Wrapped):
    listened = 0

    def listen(self) -> Any:
        self.listened += 1
        subscription = self.inner.listen()
        return Deaf(subscription) if self.listened == 1 else subscription


async def test_a_doorbell_that_breaks_is_hung_anew_and_said(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(opened_module, "RELISTEN_S", 0.01)
    monkeypatch.setattr(waiters, "POLL_S", 3_600.0)
    store = BreakingDoorbell(store_for(place.url))
    subscriber, other = App(store=lambda: cast("Store", store)), place.app()

    @other.workflow
    async def ends() -> str:
        return "done"

    with caplog.at_level(logging.WARNING, "outlast.app"):
        async with subscriber.client(), other:
            await until(lambda: store.listened == 2, "nobody listens again")
            await ends.options(id="it").start()
            assert await subscriber.execution("it").result(timeout=10) == "done"
    assert "the socket broke" in caplog.text


async def test_a_ring_that_cannot_be_looked_at_does_not_end_the_listening(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(waiters, "POLL_S", 3_600.0)
    subscriber, other = place.app(), place.app()

    @other.workflow
    async def ends() -> str:
        return "done"

    troubles = [RuntimeError("no idea"), OSError("no idea either")]
    rescan = waiters.Waiters.rescan

    async def failing(self: waiters.Waiters, *args: Any) -> None:
        if troubles and self is subscriber._opened.waiters:  # type: ignore[union-attr]
            raise troubles.pop()
        await rescan(self, *args)

    monkeypatch.setattr(waiters.Waiters, "rescan", failing)
    with caplog.at_level(logging.WARNING, "outlast.app"):
        async with subscriber.client(), other:
            for number in range(3):
                await ends.options(id=f"e{number}").start()
                await other.execution(f"e{number}").result(timeout=10)
                await asyncio.sleep(0.02)
            await until(lambda: not troubles, "nothing was heard")
            handle = await ends.options(id="last", delay="50ms").start()
            assert await subscriber.execution(handle.id).result(timeout=10) == "done"
    assert "no idea" in caplog.text
