"""Text that PostgreSQL cannot keep (NUL), and text that it can: a typed error, or the very same text again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.app import App
from outlast.errors import InvalidInput
from outlast.machine.changes import Insert
from outlast.store.port import Query
from outlast.store.postgres import PostgresStore
from outlast.testing.conformance import actors
from tests import postgres

NUL = "a\x00b"


async def test_names_with_a_nul_are_refused_and_nothing_is_written():
    app = App(await postgres.empty())

    @app.workflow
    async def echo(text: str) -> str:
        return text

    async with app:
        bad: Any
        for bad in ({"id": NUL}, {"lane": NUL}, {"tags": {NUL: "x"}}, {"tags": {"x": NUL}}, {"requires": {NUL}}):
            with pytest.raises(InvalidInput):
                await echo.options(**bad).start("x")
        handle = await echo.options(id="a", delay="1h").start("x")
        for telling in (
            lambda: handle.send(NUL, 1),
            lambda: handle.send("x", 1, key=NUL),
            lambda: handle.resolve(NUL, 1),
        ):
            with pytest.raises(InvalidInput):
                await telling()
        assert await app.count() == 1


async def test_values_and_errors_with_a_nul_come_back_as_they_were():
    app = App(await postgres.empty())

    @app.step
    async def fails() -> None:
        raise ValueError(NUL)

    @app.workflow
    async def echo(text: str) -> str:
        return text

    @app.workflow
    async def failing() -> None:
        await fails()

    async with app:
        assert await echo(NUL) == NUL
        with pytest.raises(ValueError, match=f"^{NUL}$"):
            await failing()
        handle = await echo.options(delay="1h").start(NUL)
        await handle.send("event", NUL)
        with pytest.raises(InvalidInput, match="control characters"):
            await handle.cancel(reason=NUL)
        await handle.cancel()


@pytest.mark.parametrize("field", ["workflow", "signature", "id"])
async def test_a_record_with_a_nul_in_a_text_is_a_typed_error(field: str):
    store = PostgresStore(await postgres.empty())
    await store.open()
    changes = actors.start_changes(store, actors.start_fact())
    first, *rest = changes.writes
    assert isinstance(first, Insert)
    bad = Insert(actors.same_but(first.record, **{field: NUL}))
    with pytest.raises(InvalidInput):
        await actors.commit_one(store, msgspec.structs.replace(changes, writes=(bad, *rest), shape=None))
    assert await store.count(Query(namespace=actors.NAMESPACE)) == 0
    await store.close()
