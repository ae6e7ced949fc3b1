"""Behind a pool of transactions (Debian's pgbouncer): no prepared statements, no LISTEN, no settings of a session."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

import outlast
from outlast.app import App
from outlast.errors import InvalidConfig
from outlast.store.postgres import PostgresStore
from outlast.testing.conformance import actors
from tests import postgres

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

NOBODY = 65_534
SETTINGS = """
[databases]
* = host={server} user=postgres

[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
unix_socket_mode = 0777
listen_port = 6432
auth_type = any
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
logfile = {folder}/log
pidfile = {folder}/pid
"""


@pytest.fixture
def bouncer() -> Iterator[Path]:
    """The folder with pgbouncer's socket."""
    program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    assert program, "pgbouncer is not installed: apt-get install pgbouncer"
    server = postgres.server().folder
    with tempfile.TemporaryDirectory(prefix="outlast-pb-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "ini").write_text(SETTINGS.format(server=server, folder=folder))
        other = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
        if other:
            os.chown(folder, NOBODY, NOBODY)
            os.chown(folder / "ini", NOBODY, NOBODY)
        process = subprocess.Popen([program, "-q", folder / "ini"], cwd="/", **other)
        deadline = time.monotonic() + 20
        while not (folder / ".s.PGSQL.6432").exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield folder
        process.terminate()
        process.wait(20)


def through(folder: Path) -> str:
    return f"postgresql://postgres@/{postgres.RECYCLED}?host={quote(str(folder), safe='')}&port=6432&pgbouncer=on"


async def test_workflows_run_through_a_pool_of_transactions(bouncer: Path):
    await postgres.empty()
    app = App(through(bouncer), lease_ttl="2s")

    @app.step
    async def add(number: int) -> int:
        return number + 1

    @app.workflow
    async def five(number: int) -> int:
        for _ in range(5):
            number = await add(number)
        return number

    async with app:
        async with asyncio.timeout(60):
            handles = await app.start_many(five.options(id=f"e{n}").bind(n) for n in range(40))
            assert [await handle.result() for handle in handles] == [n + 5 for n in range(40)]


async def test_who_forgets_to_say_so_is_told_what_to_write(bouncer: Path):
    await postgres.empty()
    with pytest.raises(InvalidConfig, match=r"\?pgbouncer=on"):
        await PostgresStore(through(bouncer).replace("&pgbouncer=on", "")).open()


async def test_refusals_and_repetitions_answer_the_same_through_it(bouncer: Path):
    await postgres.empty()
    store = PostgresStore(through(bouncer))
    await store.open()
    assert not store.capabilities.native_doorbell
    held = await actors.running(store)
    stepping = actors.decided(store, held, actors.steps(held))
    assert [(await actors.commit_one(store, stepping)).again for _ in range(3)] == [False, True, True]
    zombie = actors.decided(store, held, actors.completes(held))
    assert (await actors.commit_one(store, zombie)).applied
    assert not (await actors.commit_one(store, actors.decided(store, held, actors.steps(held, "late")))).applied
    await store.close()


async def test_transactions_and_starts_inside_of_them_work_through_it(bouncer: Path):
    url = await postgres.empty()
    admin = await asyncpg.connect(url)
    await admin.execute("DROP TABLE IF EXISTS public.tally; CREATE TABLE public.tally (n int)")
    app = App(through(bouncer), lease_ttl="2s")

    @app.workflow
    async def child(number: int) -> int:
        return number

    @app.transaction
    async def count(number: int) -> None:
        await outlast.connection().execute("INSERT INTO public.tally VALUES ($1)", number)
        await child.options(id=f"child-{number}").start_in(outlast.connection(), number)

    @app.workflow
    async def counting(number: int) -> int:
        await count(number)
        return number

    async with app:
        async with asyncio.timeout(60):
            handles = await app.start_many(counting.options(id=f"c{n}").bind(n) for n in range(20))
            assert [await handle.result() for handle in handles] == list(range(20))
            assert [await app.execution(f"child-{n}").result() for n in range(20)] == list(range(20))
    assert await admin.fetchval("SELECT count(DISTINCT n) FROM public.tally") == 20
    assert await admin.fetchval("SELECT count(*) FROM public.tally") == 20
    await admin.execute("DROP TABLE public.tally")
    await admin.close()
