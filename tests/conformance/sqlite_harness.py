"""SQLite under the conformance suite: one file per database."""

from __future__ import annotations

from pathlib import Path

from outlast.store.port import Clock, Points
from outlast.store.sqlite import SqliteStore
from outlast.testing.conformance.harness import OwnTable


class SqliteHarness:
    own_table = OwnTable(
        create="CREATE TABLE IF NOT EXISTS ledger (what TEXT NOT NULL)",
        add="INSERT INTO ledger (what) VALUES ('done')",
        read="SELECT what FROM ledger",
        endless="WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        reach_in="DELETE FROM outlast_execution",
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def new(self, *, clock: Clock, points: Points | None = None) -> SqliteStore:
        return SqliteStore(str(self._folder / f"{self._number}.db"), clock=clock, points=points)

    async def fresh(self) -> None:
        self._number += 1

    async def cleanup(self) -> None:
        for path in sorted(self._folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
