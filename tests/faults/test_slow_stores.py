"""Whatever a store takes its time for: everything ends as it must, and nothing is owed. `slow_stores.py` has it all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import postgres
from tests.conformance.valkey_harness import valkey_url
from tests.faults.slow_stores import live_through


async def test_everything_ends_as_it_must_on_a_slow_sqlite(tmp_path: Path):
    await live_through(f"sqlite:///{tmp_path}/slow.db", seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("url_of", [lambda _: asyncio.run(postgres.empty()), valkey_url], ids=["postgres", "valkey"])
def test_everything_ends_as_it_must_on_a_slow_server(url_of: Callable[[Path], str], seed: int, tmp_path: Path):
    asyncio.run(live_through(url_of(tmp_path), seed))
