"""The conformance suite on a Valkey cluster: three primaries with a replica each."""

from __future__ import annotations

import pytest

from outlast.testing.conformance.harness import suite
from tests.conformance.valkey_harness import ValkeyHarness, the_cluster

# One cluster for all of them: it takes seconds to come up, and its servers share the processors with everybody.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("valkey cluster")]

globals().update(suite())


@pytest.fixture
def harness() -> ValkeyHarness:
    cluster = the_cluster()
    return ValkeyHarness(cluster.primaries, cluster.url)
