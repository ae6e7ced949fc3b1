"""A store that refuses for a while: work waits for it, and the log says so once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

import pytest

from outlast import App
from outlast.app import store_for
from outlast.errors import StoreCorrupt, StoreError, StoreFull, StoreReadOnly
from outlast.machine.changes import Changes
from outlast.model.lease import Claimed, ClaimRequest, Renewed
from outlast.store.port import Committed, Store
from tests.acceptance.conftest import Gate, Place


class Full:
    def __init__(self, url: str) -> None:
        self._store = store_for(url)
        self.problem: StoreError | None = None
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _check(self) -> None:
        if self.problem is not None:
            self.refused += 1
            raise self.problem

    async def commit(self, batch: Sequence[Changes]) -> Committed:
        self._check()
        return await self._store.commit(batch)

    async def claim(self, request: ClaimRequest) -> Claimed:
        self._check()
        return await self._store.claim(request)

    async def renew(self, worker: str, *, lease_ttl_ms: int) -> Renewed:
        self._check()
        return await self._store.renew(worker, lease_ttl_ms=lease_ttl_ms)


@pytest.mark.parametrize("problem", [StoreFull("no room"), StoreReadOnly("a standby"), StoreCorrupt("another one")])
async def test_what_it_refuses_is_said_once_and_so_is_that_it_is_over(
    place: Place,
    gate: Gate,
    problem: StoreError,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("outlast.runtime.refusals.QUIET_S", 0.0)
    store = Full(place.url)
    app = App(place.url, store=lambda: cast("Store", store), lease_ttl="1s")
    ran: list[int] = []

    @app.step
    async def work(number: int) -> int:
        ran.append(number)
        await gate()
        return number

    @app.workflow
    async def works(number: int) -> int:
        return await work(number)

    async with app:
        handles = [await works.start(number) for number in range(3)]
        await gate.reached()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            store.problem = problem
            gate.open()
            await asyncio.sleep(1.5)  # leases run out, claims and renewals fail
            store.problem = None
            assert [await handle.result("20s") for handle in handles] == [0, 1, 2]
        assert store.refused > 5
    said = [record for record in caplog.records if record.name == "outlast.runtime.refusals"]
    assert [record.getMessage()[:25] for record in said] == ["the store refuses work, a", "the store takes work agai"]
    assert not [record for record in caplog.records if record.exc_info]
    # What ran out meanwhile is found by lease_expiry, or handed back by the renewal, whichever looks first.
    others = [record for record in caplog.records if "handed back" not in record.getMessage()]
    assert len(others) == 2, caplog.text
