"""The PostgreSQL that tests use: `OUTLAST_TEST_POSTGRES_URL`, or one server of each test process's own; that is the
newest at hand, or `OUTLAST_TEST_POSTGRES_VERSION`."""

from __future__ import annotations

import atexit
import os
from functools import cache

import asyncpg

from outlast.model.kinds import KINDS
from outlast.store.postgres import PostgresStore
from outlast.testing.postgres_server import PostgresServer
from tests.waiting import until

RECYCLED = f"outlast_recycled_{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
SEQUENCES = ("event_seq_seq", "completion_seq_seq", "edge_seq_seq")
OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@cache
def server() -> PostgresServer:
    url = os.environ.get("OUTLAST_TEST_POSTGRES_URL")
    if url:
        return PostgresServer.at(url)
    version = os.environ.get("OUTLAST_TEST_POSTGRES_VERSION")
    launched = PostgresServer.launch(version=int(version) if version else None)
    atexit.register(launched.close)
    return launched


async def empty() -> str:
    """The URL of a database that all tests of this process share, one after the other: as after its first migration."""
    url = server().url_of(RECYCLED)
    try:
        connection = await asyncpg.connect(url)
    except asyncpg.InvalidCatalogNameError:
        connection = await asyncpg.connect(server().url)
        await connection.execute(f"CREATE DATABASE {RECYCLED}")
        await connection.close()
        await PostgresStore(url).migrate()
        return url
    try:
        # What a dead store left behind is still being cut off.
        await connection.execute(f"SELECT pg_terminate_backend(pid, 5000) {OTHERS}")
        await connection.execute(";".join(f"DELETE FROM outlast.{table}" for table in (*KINDS, "frame")))
        await connection.execute(";".join(f"SELECT setval('outlast.{name}', 1, false)" for name in SEQUENCES))
        await connection.execute("SELECT setval('outlast.clock', 0)")
    finally:
        await connection.close()
    return url


async def alone(url: str) -> None:
    """Until nobody else is connected to that database. What a process asked for just before it died, its server may
    come to only later, and write it then."""
    connection = await asyncpg.connect(url)

    async def nobody_else() -> bool:
        return await connection.fetchval(f"SELECT count(*) = 0 {OTHERS}")

    try:
        await until(nobody_else, "others are still connected", pause_s=0.001)
    finally:
        await connection.close()
