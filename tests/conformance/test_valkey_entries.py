"""What steps are is told to Valkey in short (`Batch._entry`), and comes to what it would at length."""

from __future__ import annotations

import pytest

from outlast.store.valkey.commit import Batch
from outlast.testing.conformance.batches import BatchConformance
from tests.conformance.valkey_harness import ValkeyHarness, the_server


@pytest.fixture
def harness() -> ValkeyHarness:
    server = the_server()
    return ValkeyHarness([server], server.url)


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> dict[bool, int]:
    """What comes first to a batch is told at length: so is all that is committed one by one. How often which was."""
    in_short = Batch._entry
    counts = {True: 0, False: 0}

    def entry(self: Batch, *args: object) -> bool:
        short = self._count > 1 and in_short(self, *args)  # type: ignore[arg-type]
        counts[short] += 1
        return short

    monkeypatch.setattr(Batch, "_entry", entry)
    return counts


class TestShortAndAtLength(BatchConformance):
    @pytest.fixture(autouse=True)
    def both(self, told: dict[bool, int]):
        yield
        assert min(told.values()) > 10


del BatchConformance
