"""The conformance suite on one Valkey server."""

from __future__ import annotations

import pytest

from outlast.testing.conformance.harness import suite
from tests.conformance.valkey_harness import ValkeyHarness, the_server

globals().update(suite())


@pytest.fixture
def harness() -> ValkeyHarness:
    server = the_server()
    return ValkeyHarness([server], server.url)
