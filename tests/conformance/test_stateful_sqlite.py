"""Random operations on SQLite and the oracle: answers and whole states agree, and every promise holds.

`OUTLAST_STATEFUL_EXAMPLES=2000` makes it a long run. A failure prints its operations, the seed of the run, and a blob
that repeats it (`seeded.py`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from outlast.store.port import Store
from outlast.store.sqlite import SqliteStore
from outlast.testing import ManualClock
from outlast.testing.differential import StoreMachine
from tests.conformance.seeded import agree

# In memory where the system has such a place: an fsync per operation would only slow the search down.
ROOM = "/dev/shm" if Path("/dev/shm").is_dir() else None


class SqliteMachine(StoreMachine):
    async def open_store(self, clock: ManualClock) -> Store:
        self.room = tempfile.TemporaryDirectory(prefix="outlast-", dir=ROOM)
        store = self.new_store()
        await store.migrate()
        await store.open()
        return store

    async def reopen_store(self, store: Store) -> Store:
        await store.close()
        again = self.new_store()
        await again.open()
        return again

    async def close_store(self, store: Store) -> None:
        await store.close()
        self.room.cleanup()

    def new_store(self) -> SqliteStore:
        return SqliteStore(f"sqlite:///{self.room.name}/store.db?synchronous=NORMAL", clock=self.clock)


@pytest.mark.slow
@pytest.mark.timeout(0)  # shrinking a failure takes its time; a long run is long on purpose
def test_sqlite_agrees_with_the_oracle():
    agree(SqliteMachine, examples=100)
