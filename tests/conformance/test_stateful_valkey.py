"""Random operations on Valkey and the oracle: answers and whole states agree, and every promise holds.

`OUTLAST_STATEFUL_EXAMPLES=2000` makes it a long run. A failure prints its operations, the seed of the run, and a blob
that repeats it (`seeded.py`).
"""

from __future__ import annotations

import pytest

from outlast.store.port import Store
from outlast.store.valkey import ValkeyStore
from outlast.testing import ManualClock
from outlast.testing.differential import StoreMachine
from tests.conformance.seeded import agree
from tests.conformance.valkey_audit import leaks
from tests.conformance.valkey_harness import the_cluster, the_server


class ValkeyMachine(StoreMachine):
    partitions_made = 1

    async def open_store(self, clock: ManualClock) -> Store:
        self.server = the_server()
        self.server.ask("FLUSHALL", "SYNC")
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
        assert not leaks(self.server)

    def new_store(self) -> ValkeyStore:
        return ValkeyStore(f"{self.server.url}?partitions={self.partitions_made}", clock=self.clock)


class PartitionedMachine(ValkeyMachine):
    partitions_made = 4


class ClusterMachine(StoreMachine):
    """Sixteen partitions on three servers."""

    async def open_store(self, clock: ManualClock) -> Store:
        self.cluster = the_cluster()
        for server in self.cluster.primaries:
            server.ask("FLUSHALL", "SYNC")
        store = ValkeyStore(self.cluster.url, clock=self.clock)
        await store.migrate()
        await store.open()
        return store

    async def reopen_store(self, store: Store) -> Store:
        await store.close()
        again = ValkeyStore(self.cluster.url, clock=self.clock)
        await again.open()
        return again

    async def close_store(self, store: Store) -> None:
        await store.close()
        assert not [leak for server in self.cluster.primaries for leak in leaks(server)]


@pytest.mark.slow
@pytest.mark.timeout(0)  # shrinking a failure takes its time; a long run is long on purpose
def test_valkey_agrees_with_the_oracle():
    agree(ValkeyMachine, examples=20)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_valkey_in_several_partitions_agrees_with_the_oracle():
    agree(PartitionedMachine, examples=20)


@pytest.mark.slow
@pytest.mark.xdist_group("valkey cluster")
@pytest.mark.timeout(0)
def test_a_cluster_agrees_with_the_oracle():
    agree(ClusterMachine, examples=8)
