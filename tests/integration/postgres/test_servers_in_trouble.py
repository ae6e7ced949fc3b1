"""A server that takes no writes for a while (no room, read-only): a clear error, and work that goes on afterwards."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import outlast
from outlast.app import App
from outlast.errors import StoreFull, StoreReadOnly
from outlast.testing.postgres_server import NOBODY, PostgresServer
from tests import postgres
from tests.acceptance.conftest import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CUT_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
FULL = """
CREATE FUNCTION public.full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file: No space left on device'; END $$;
CREATE TRIGGER full_execution BEFORE INSERT OR UPDATE ON outlast.execution EXECUTE FUNCTION public.full();
CREATE TRIGGER full_journal BEFORE INSERT ON outlast.journal EXECUTE FUNCTION public.full();
"""
ROOM = "DROP FUNCTION public.full CASCADE"


@pytest.fixture
async def admin() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(await postgres.empty())
    yield connection
    await connection.close()


@asynccontextmanager
async def no_room(admin: Any) -> AsyncIterator[type[Exception]]:
    await admin.execute(FULL)
    try:
        yield StoreFull
    finally:
        await admin.execute(ROOM)


@asynccontextmanager
async def read_only(admin: Any) -> AsyncIterator[type[Exception]]:
    await admin.execute(f"ALTER DATABASE {postgres.RECYCLED} SET default_transaction_read_only = on")
    await admin.execute(CUT_OTHERS)
    try:
        yield StoreReadOnly
    finally:
        await admin.execute("SET default_transaction_read_only = off")
        await admin.execute(f"ALTER DATABASE {postgres.RECYCLED} RESET default_transaction_read_only")
        await admin.execute(CUT_OTHERS)


@pytest.mark.parametrize("trouble", [no_room, read_only])
async def test_callers_are_told_and_workers_wait_and_go_on(admin: Any, trouble: Any):
    app = App(postgres.server().url_of(postgres.RECYCLED), lease_ttl="1s")
    await admin.execute("CREATE TABLE public.tally (n int)")
    gate, waiting, calls = asyncio.Event(), 0, 0

    @app.step
    async def hold(number: int) -> int:
        nonlocal waiting, calls
        calls += 1
        waiting += 1
        await gate.wait()
        return number

    @app.transaction
    async def count(number: int) -> None:
        await outlast.connection().execute("INSERT INTO public.tally VALUES ($1)", number)

    @app.workflow
    async def work(number: int) -> int:
        number = await hold(number)
        await count(number)
        return number

    try:
        async with app:
            handles = [await work.options(id=f"w{n}").start(n) for n in range(3)]
            await until(lambda: waiting == 3, "they have not begun")
            async with trouble(admin) as error:
                with pytest.raises(error):
                    await work.options(id="refused").start(9)
                gate.set()  # they end their steps, and cannot record them
                await asyncio.sleep(3)
                assert await app.count(status=["failed", "expired", "cancelled"]) == 0
            assert [await handle.result(timeout=40) for handle in handles] == [0, 1, 2]
            assert await work.options(id="afterwards").start(5) is not None
            assert await app.execution("afterwards").result(timeout=20) == 5
        assert sorted(row[0] for row in await admin.fetch("SELECT n FROM public.tally")) == [0, 1, 2, 5]
    finally:
        await admin.execute("DROP TABLE public.tally")


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 8 MB that the server's user may write."""
    folder = Path(tempfile.mkdtemp(prefix="outlast-disk-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder], check=True)
    try:
        os.chown(folder, NOBODY, NOBODY)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()


@pytest.mark.system
async def test_a_full_disk(small_disk: Path):
    """A real one, under the payloads."""
    with PostgresServer.launch() as server:
        admin = await asyncpg.connect(server.url)
        app = App(server.url, lease_ttl="1s")

        @app.workflow
        async def echo(text: str) -> int:
            return len(text)

        async with app:
            assert await echo("x") == 1
            await admin.execute(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
            await admin.execute("ALTER TABLE outlast.payload SET TABLESPACE small")
            filling = small_disk / "filling"
            filling.write_bytes(b"x" * 6_000_000)
            text = os.urandom(500_000).hex()
            with pytest.raises(StoreFull, match="no room left"):
                await app.start_many(echo.options(id=f"e{number}").bind(text) for number in range(5))
            filling.unlink()
            for number in range(5):
                handle = await echo.options(id=f"e{number}").start(text)
                assert await handle.result(timeout=40) == 1_000_000
        await admin.close()
