"""A saga of five steps that fails at the fourth, crashed at every await: each undo exactly once, by its books."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

import outlast
from outlast import App
from outlast.testing import CrashPoints, ManualClock
from tests.acceptance.crashing import CrashHeard, Process, exists, fresh, recorded, until_crash

DONE = ["open", "do 1", "do 2", "do 3", "undo 4", "undo 3", "undo 2", "undo 1"]


def build_saga(app: App, ledger: list[str]) -> Any:
    """All of it in the store's own file: what the ledger says is what was committed."""

    @app.transaction
    def opening() -> None:
        sql = outlast.connection()
        sql.execute("CREATE TABLE IF NOT EXISTS ledger (n INTEGER PRIMARY KEY, what TEXT NOT NULL)")
        sql.execute("INSERT INTO ledger (what) VALUES ('open')")

    @app.transaction
    def do(n: int) -> int:
        ledger.append(f"do {n}")
        if n == 4:
            raise RuntimeError("the fourth fails")
        outlast.connection().execute("INSERT INTO ledger (what) VALUES (?)", (f"do {n}",))
        return n

    @app.transaction
    def undo(n: int) -> None:
        outlast.connection().execute("INSERT INTO ledger (what) VALUES (?)", (f"undo {n}",))

    @app.workflow(name="saga")
    async def saga() -> None:
        await opening.aio()
        for n in range(1, 6):
            await outlast.compensate(undo, n)
            await do.aio(n)

    return saga


def build_parallel_saga(app: App, ledger: list[str]) -> Any:
    @app.transaction
    def opening() -> None:
        sql = outlast.connection()
        sql.execute("CREATE TABLE IF NOT EXISTS ledger (n INTEGER PRIMARY KEY, what TEXT NOT NULL)")
        sql.execute("INSERT INTO ledger (what) VALUES ('open')")

    @app.transaction
    def do(n: int) -> int:
        outlast.connection().execute("INSERT INTO ledger (what) VALUES (?)", (f"do {n}",))
        return n

    @app.transaction
    def undo(n: int) -> None:
        outlast.connection().execute("INSERT INTO ledger (what) VALUES (?)", (f"undo {n}",))

    async def branch(n: int) -> None:
        await outlast.compensate(undo, n)
        await do.aio(n)

    @app.workflow(name="parallel")
    async def parallel() -> None:
        await opening.aio()
        await asyncio.gather(branch(1), branch(2), branch(3))
        raise RuntimeError("the fourth fails")

    return parallel


def build_postgres_saga(app: App, ledger: list[str]) -> Any:
    """The same on PostgreSQL, where transactions are coroutines."""

    @app.transaction
    async def opening() -> None:
        sql = outlast.connection()
        await sql.execute("CREATE TABLE IF NOT EXISTS public.ledger (n serial PRIMARY KEY, what text NOT NULL)")
        await sql.execute("INSERT INTO public.ledger (what) VALUES ('open')")

    @app.transaction
    async def do(n: int) -> int:
        ledger.append(f"do {n}")
        if n == 4:
            raise RuntimeError("the fourth fails")
        await outlast.connection().execute("INSERT INTO public.ledger (what) VALUES ($1)", f"do {n}")
        return n

    @app.transaction
    async def undo(n: int) -> None:
        await outlast.connection().execute("INSERT INTO public.ledger (what) VALUES ($1)", f"undo {n}")

    @app.workflow(name="saga")
    async def saga() -> None:
        await opening()
        for n in range(1, 6):
            await outlast.compensate(undo, n)
            await do(n)

    return saga


SAGAS = {"sqlite": build_saga, "postgres": build_postgres_saga}


async def without_books(store: str, folder: Path, name: object) -> str:
    """An empty store; a database that is used again must not have the ledger of the last time."""
    url = await fresh(store, folder, name)
    if store == "postgres":
        connection = await asyncpg.connect(url)
        await connection.execute("DROP TABLE IF EXISTS public.ledger")
        await connection.close()
    return url


async def books(url: str) -> list[str]:
    return _books_in_a_file(url) if url.startswith("sqlite") else await _books_on_a_server(url)


async def _books_on_a_server(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        if await connection.fetchval("SELECT to_regclass('public.ledger')") is None:
            return []
        return [row["what"] for row in await connection.fetch("SELECT what FROM public.ledger ORDER BY n")]
    finally:
        await connection.close()


def _books_in_a_file(url: str) -> list[str]:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    try:
        if not list(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger'")):
            return []
        return [what for (what,) in connection.execute("SELECT what FROM ledger ORDER BY n")]
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "store, point",
    [
        *(("sqlite", point) for point in ("*:begin", "*:reply", "transact:statement done", "transact:commit")),
        ("postgres", "*:reply"),
        ("postgres", "transact:commit"),
    ],
)
async def test_a_crash_at_any_await_undoes_each_once(store: str, point: str, tmp_path: Path) -> None:
    expected = ("RuntimeError", "the fourth fails")
    build, crashes = SAGAS[store], 0
    for nth in range(1, 500):
        url = await without_books(store, tmp_path, nth)
        clock, points = ManualClock(), CrashHeard()
        points.crash_at(point, nth=nth)
        came = await until_crash(Process(url, build, clock, points), (), points)
        if came is not None:
            assert came == expected
            assert await books(url) == DONE
            break
        crashes += 1
        if not await exists(url, clock):
            assert await books(url) == []
            continue
        assert await Process(url, build, clock).take_over(clock) == expected
        assert await books(url) == DONE
    await without_books(store, tmp_path, "left")
    assert crashes >= 7, "fewer than its transactions"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["*:begin", "*:reply"])
async def test_two_crashes_in_a_row_undo_each_once(point: str, tmp_path: Path) -> None:
    expected = ("RuntimeError", "the fourth fails")
    for nth in range(8, 30, 3):
        for again in (2, 4, 6):
            url = await fresh("sqlite", tmp_path, f"{nth}-{again}")
            clock, points = ManualClock(), CrashHeard()
            points.crash_at(point, nth=nth)
            if await until_crash(Process(url, build_saga, clock, points), (), points) is not None:
                continue
            more = CrashPoints()
            second = Process(url, build_saga, clock, more)
            more.crash_at(point, nth=again)
            taking = asyncio.create_task(second.take_over(clock))
            while not more.crashed and not taking.done():  # noqa: ASYNC110 (set by the store's own thread)
                await asyncio.sleep(0.001)
            if more.crashed:
                await second.die()
                taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            assert await Process(url, build_saga, clock).take_over(clock) == expected
            assert await books(url) == DONE


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["*:begin", "*:reply"])
async def test_parallel_branches_are_undone_each_once(point: str, tmp_path: Path) -> None:
    expected = ("RuntimeError", "the fourth fails")
    for nth in range(1, 500):
        url = await fresh("sqlite", tmp_path, nth)
        clock, points = ManualClock(), CrashHeard()
        points.crash_at(point, nth=nth)
        came = await until_crash(Process(url, build_parallel_saga, clock, points), (), points)
        if came is None and not await exists(url, clock):
            continue
        if came is None:
            came = await Process(url, build_parallel_saga, clock).take_over(clock)
        assert came == expected
        written = await books(url)
        assert written[0] == "open"
        assert sorted(written[1:4]) == ["do 1", "do 2", "do 3"]
        assert written[4:] == ["undo 3", "undo 2", "undo 1"]
        if not points.crashed:
            break


def build_plain_saga(app: App, ledger: list[str]) -> Any:
    """The same with steps, for stores that have no transactions."""

    @app.step
    async def do(n: int) -> int:
        ledger.append(f"do {n}")
        if n == 4:
            raise RuntimeError("the fourth fails")
        return n

    @app.step
    async def undo(n: int) -> None:
        ledger.append(f"undo {n}")

    @app.workflow(name="saga")
    async def saga() -> None:
        for n in range(1, 6):
            await outlast.compensate(undo, n)
            await do(n)

    return saga


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_crash_at_any_await_repeats_no_undo_that_is_recorded(tmp_path: Path) -> None:
    expected = ("RuntimeError", "the fourth fails")
    undone = {f"undo.undo#{n}" for n in range(1, 5)}
    crashes = 0
    for nth in range(1, 500):
        url = await fresh("valkey", tmp_path, nth)
        clock, points = ManualClock(), CrashHeard()
        points.crash_at("*:reply", nth=nth)
        came = await until_crash(Process(url, build_plain_saga, clock, points), (), points)
        if came is None and not await exists(url, clock):
            crashes += 1
            continue
        if came is None:
            crashes += 1
            kept = await recorded(url, clock, failures=True)
            second = Process(url, build_plain_saga, clock)
            assert await second.take_over(clock) == expected
            assert not kept & second.performed(), "recorded before the crash, and run again"
            numbers = [int(line.partition(" ")[2]) for line in second.ledger if line.startswith("undo")]
            assert numbers == sorted(numbers, reverse=True)
        else:
            assert came == expected
        entries = await recorded(url, clock, failures=False)
        assert {entry for entry in entries if entry.startswith("undo.")} == undone
        if not points.crashed:
            break
    assert crashes >= 10, "fewer than a start, a claim, steps, undos and an end need"
