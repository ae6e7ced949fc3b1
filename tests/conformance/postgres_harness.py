"""PostgreSQL under the conformance suite: one server, one database at a time, copied from one that has the schema."""

from __future__ import annotations

import asyncpg

from outlast.store.port import Clock, Points
from outlast.store.postgres import PostgresStore
from outlast.testing.conformance.harness import OwnTable
from outlast.testing.postgres_server import PostgresServer
from tests.postgres import RECYCLED, empty


class PostgresHarness:
    """`options` go into the URL of every store."""

    own_table = OwnTable(
        create="CREATE TABLE IF NOT EXISTS ledger (what text NOT NULL)",
        add="INSERT INTO ledger (what) VALUES ('done')",
        read="SELECT what FROM ledger",
        endless="SELECT pg_sleep(600)",
        reach_in="DELETE FROM outlast.execution",
    )

    def __init__(self, server: PostgresServer, options: str = "") -> None:
        self._server = server
        self._options = options
        self._names: list[str] = []

    def new(self, *, clock: Clock, points: Points | None = None) -> PostgresStore:
        return PostgresStore(self.url, clock=clock, points=points)

    @property
    def url(self) -> str:
        url = self._server.url_of(self._names[-1])
        return f"{url}{'&' if '?' in url else '?'}{self._options}" if self._options else url

    async def fresh(self) -> None:
        name = self._server.new_name()
        await self._do(f'CREATE DATABASE "{name}" STRATEGY file_copy')
        self._names.append(name)

    async def cleanup(self) -> None:
        names, self._names = self._names, []
        for name in names:
            await self._do(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    async def _do(self, sql: str) -> None:
        connection = await asyncpg.connect(self._server.url)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()


class _Prepared(PostgresStore):
    """Its first migration finds the work done: the database was migrated before, and emptied."""

    def __init__(self, harness: QuickHarness, url: str, *, clock: Clock, points: Points | None) -> None:
        super().__init__(url, clock=clock, points=points)
        self._harness = harness

    async def migrate(self) -> int:
        await self._harness.prepare()
        return await super().migrate()


class QuickHarness(PostgresHarness):
    """For the parts of the suite that do not judge migrations: one database for all of them, emptied for each."""

    def new(self, *, clock: Clock, points: Points | None = None) -> PostgresStore:
        return _Prepared(self, self.url, clock=clock, points=points)

    async def fresh(self) -> None:
        self._names = [RECYCLED]
        self._made = False

    async def cleanup(self) -> None:
        self._names = []

    async def prepare(self) -> None:
        if not self._made:
            self._made = True
            await empty()
