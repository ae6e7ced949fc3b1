"""Work that a claim passed over, because its row was locked: the worker looks again soon, not at its next poll."""

from __future__ import annotations

import asyncio

import asyncpg

from outlast import App
from tests import postgres


async def test_a_row_that_was_locked_for_long_is_claimed_once_it_is_free():
    url = await postgres.empty()
    app = App(url)

    @app.workflow
    async def echo(text: str) -> str:
        return text

    async with app.client():
        handle = await echo.options(id="locked").start("x")
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT 1 FROM outlast.execution WHERE id = 'locked' FOR UPDATE")
    async with app.worker(poll="10m"):
        await asyncio.sleep(0.3)  # for many times as long as a claim itself waits
        await transaction.rollback()
        await connection.close()
        assert await echo.execution(handle.id).result(timeout=20) == "x"


async def test_a_row_that_was_locked_while_the_claim_took_another_is_claimed_once_it_is_free():
    url = await postgres.empty()
    app = App(url)
    ran = asyncio.Event()

    @app.workflow
    async def echo(text: str) -> str:
        if text == "free":
            ran.set()
        return text

    async with app.client():
        locked = await echo.options(id="locked").start("x")
        await echo.options(id="free").start("free")
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT 1 FROM outlast.execution WHERE id = 'locked' FOR UPDATE")
    async with app.worker(poll="10m"):
        await ran.wait()
        await asyncio.sleep(0.3)  # whatever rings when a worker starts has rung
        await transaction.rollback()
        await connection.close()
        assert await echo.execution(locked.id).result(timeout=20) == "x"
