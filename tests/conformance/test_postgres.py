"""The conformance suite on PostgreSQL."""

from __future__ import annotations

import pytest

from outlast.testing.conformance.crashes import CrashConformance
from outlast.testing.conformance.harness import suite
from outlast.testing.conformance.life import LifeConformance
from outlast.testing.conformance.lost_replies import LostReplyConformance
from outlast.testing.conformance.transactions import TransactionConformance
from tests.conformance.postgres_harness import PostgresHarness, QuickHarness
from tests.postgres import server

globals().update(suite())


@pytest.fixture
def harness() -> PostgresHarness:
    return QuickHarness(server())


# These look at the making of a database, or leave a table of their own there: each has a database of its own.


class TestCrash(CrashConformance):
    @pytest.fixture
    def harness(self, request: pytest.FixtureRequest) -> PostgresHarness:
        return PostgresHarness(server()) if "migrating" in request.node.name else QuickHarness(server())


class TestLife(LifeConformance):
    @pytest.fixture
    def harness(self) -> PostgresHarness:
        return PostgresHarness(server())


class TestLostReply(LostReplyConformance):
    @pytest.fixture
    def harness(self) -> PostgresHarness:
        return PostgresHarness(server())


class TestTransaction(TransactionConformance):
    @pytest.fixture
    def harness(self) -> PostgresHarness:
        return PostgresHarness(server())
