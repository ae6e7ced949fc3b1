"""Whatever a store takes its time for: everything ends as it must, and nothing is owed. `slow_stores.py` has it all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import postgres
from tests.conformance.valkey_harness import valkey_url
from tests.faults.slow_flows import FLOWS
from tests.faults.slow_lives import LIVES
from tests.faults.slow_stores import Play, live_through

HURRIED_S = 0.03
"""What the fast tests have time for."""


async def test_everything_ends_as_it_must_on_a_slow_sqlite(tmp_path: Path):
    await live_through(f"sqlite:///{tmp_path}/slow.db", seed=1)


async def test_lives_end_as_they_must_on_a_slow_sqlite(tmp_path: Path):
    await live_through(f"sqlite:///{tmp_path}/slow.db", 2, LIVES, longest_s=HURRIED_S)


@pytest.mark.slow
async def test_flows_end_as_they_must_on_a_slow_sqlite(tmp_path: Path):
    await live_through(f"sqlite:///{tmp_path}/slow.db", 2, FLOWS, longest_s=HURRIED_S)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("url_of", [lambda _: asyncio.run(postgres.empty()), valkey_url], ids=["postgres", "valkey"])
def test_everything_ends_as_it_must_on_a_slow_server(url_of: Callable[[Path], str], seed: int, tmp_path: Path):
    asyncio.run(live_through(url_of(tmp_path), seed))


@pytest.mark.slow
@pytest.mark.parametrize("play, longest_s", [(FLOWS, 0.06), (LIVES, 0.12)], ids=["flows", "lives"])
@pytest.mark.parametrize("url_of", [lambda _: asyncio.run(postgres.empty()), valkey_url], ids=["postgres", "valkey"])
def test_flows_and_lives_end_as_they_must_on_a_slow_server(
    url_of: Callable[[Path], str], play: Play, longest_s: float, tmp_path: Path
):
    asyncio.run(live_through(url_of(tmp_path), 2, play, longest_s=longest_s))
