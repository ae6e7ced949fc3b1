"""What a store cannot record for good is a failure of the operation, and is not tried for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

import outlast
from outlast import App, InvalidInput, Retry
from outlast.app import store_for
from outlast.machine.changes import Changes, Insert
from outlast.model.journal import SUCCEEDED, JournalEntry
from outlast.store.port import Committed, Store
from tests.acceptance.conftest import Place


class Picky:
    """A store with names that it cannot hold: `odd`; of `large` only a failure."""

    def __init__(self, url: str) -> None:
        self._store = store_for(url)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, batch: Sequence[Changes]) -> Committed:
        entries = [
            write.record
            for changes in batch
            for write in changes.writes
            if isinstance(write, Insert) and isinstance(write.record, JournalEntry)
        ]
        if any("odd" in entry.name or (entry.name == "large" and entry.outcome == SUCCEEDED) for entry in entries):
            raise InvalidInput("a value that a record cannot have")
        return await self._store.commit(batch)


@pytest.fixture
def app(place: Place) -> App:
    return App(place.url, store=lambda: cast("Store", Picky(place.url)), lease_ttl="2s")


@pytest.mark.parametrize("name", ["odd", "large"])
async def test_a_step_that_cannot_be_recorded_fails_with_what_the_store_says(app: App, name: str):
    ran: list[str] = []

    @app.step(name=name)
    async def work() -> None:
        ran.append(name)

    @app.step
    async def after() -> str:
        return "caught"

    @app.workflow
    async def catches() -> str:
        try:
            await work()
        except InvalidInput as error:
            return f"{error}: {await after()}"
        return "recorded"

    @app.workflow
    async def fails() -> None:
        await work()

    async with app:
        assert await (await catches.start()).result("20s") == "a value that a record cannot have: caught"
        with pytest.raises(InvalidInput, match="cannot have"):
            await (await fails.start()).result("20s")
    assert ran == [name, name]


async def test_a_backoff_and_a_wait_that_cannot_be_recorded_fail_too(app: App):
    @app.step(name="odd", retry=Retry(max_attempts=3, initial="1h"))
    async def flaky() -> None:
        raise KeyError("again")

    @app.workflow
    async def backs_off() -> None:
        await flaky()

    @app.workflow
    async def waits() -> None:
        await outlast.receive("odd", int, timeout="1h")

    async with app:
        for workflow in (backs_off, waits):
            with pytest.raises(InvalidInput, match="cannot have"):
                await (await workflow.start()).result("20s")
