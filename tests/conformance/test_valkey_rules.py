"""The rules that every write obeys, and the settlements of the commit contract, on Valkey."""

from __future__ import annotations

import pytest

from tests.conformance.test_rules import TestRules
from tests.conformance.test_settlements import TestSettlements
from tests.conformance.valkey_harness import ValkeyHarness, the_server


@pytest.fixture
def harness() -> ValkeyHarness:
    server = the_server()
    return ValkeyHarness([server], server.url)


class TestRulesOnValkey(TestRules): ...


class TestSettlementsOnValkey(TestSettlements): ...


del TestRules, TestSettlements  # they run on SQLite, in their own files
