"""The testing kit on our own workflows: crashing at every write of its worker in turn, each comes to the same."""

import pytest

from outlast import App
from outlast.testing import replay_every_await
from tests.acceptance.workflows import WORKFLOWS


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WORKFLOWS)
async def test_a_crash_at_any_await_changes_nothing(name: str):
    """Before each of its commits, and after each: that a commit itself is all or nothing is conformance's to show."""
    build, args = WORKFLOWS[name]
    ledger: list[str] = []
    found = await replay_every_await(lambda: build(App(), ledger), *args)
    assert found.crashes >= 5, "fewer than a claim, steps and an end need"
    assert ledger
