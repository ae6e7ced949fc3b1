"""Random operations on PostgreSQL and the oracle: answers and whole states agree, and every promise holds.

`OUTLAST_STATEFUL_EXAMPLES=2000` makes it a long run. A failure prints its operations, the seed of the run, and a blob
that repeats it (`seeded.py`).
"""

from __future__ import annotations

import pytest

from outlast.store.port import Store
from outlast.store.postgres import PostgresStore
from outlast.testing import ManualClock
from outlast.testing.differential import StoreMachine
from tests import postgres
from tests.conformance.seeded import agree


class PostgresMachine(StoreMachine):
    async def open_store(self, clock: ManualClock) -> Store:
        self.url = await postgres.empty()
        store = PostgresStore(self.url, clock=self.clock)
        await store.open()
        return store

    async def reopen_store(self, store: Store) -> Store:
        await store.close()
        again = PostgresStore(self.url, clock=self.clock)
        await again.open()
        return again

    async def close_store(self, store: Store) -> None:
        await store.close()


@pytest.mark.slow
@pytest.mark.timeout(0)  # shrinking a failure takes its time; a long run is long on purpose
def test_postgres_agrees_with_the_oracle():
    agree(PostgresMachine, examples=32)
