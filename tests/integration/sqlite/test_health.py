"""What the store says of itself when somebody asks how it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.store.port import Check, Grade
from outlast.store.sqlite import SqliteStore
from outlast.testing import ManualClock
from tests.integration.sqlite.tools import opened, running, start


async def time_of(store: SqliteStore) -> Check:
    [check] = [check for check in (await store.health()).checks if check.name == "time"]
    return check


@pytest.mark.parametrize("anew", [True, False], ids=["seen by a new process", "seen by one that was there"])
async def test_a_clock_that_was_turned_back_is_told_until_it_has_caught_up(tmp_path: Path, anew: bool):
    """Nothing that takes time happens meanwhile, and nobody else can tell why."""
    clock = ManualClock()
    async with opened(tmp_path / "o.db", clock=clock) as store, running(store) as engine:
        await engine.begin(start("a"))
        assert (await time_of(store)).grade is Grade.OK
        clock.turn_back("1h")
        async with opened(tmp_path / "o.db", clock=clock) as other:
            asked = other if anew else store
            stands = await time_of(asked)
            assert stands.grade is Grade.WRONG
            assert "1:00:00" in stands.found
            assert stands.advice is not None
            clock.advance("59m58s")
            assert (await time_of(asked)).grade is Grade.WARNING
            clock.advance("2s")
            assert (await time_of(asked)).grade is Grade.OK
