"""The example of serialized objects: a hundred accounts under random crashes, and not a cent too few or too many."""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest

from examples import accounts
from outlast import App
from outlast.app import WorkerSettings, store_for
from outlast.config import Config
from outlast.testing import CrashPoints
from tests.acceptance.conftest import Place, sessions_run_out
from tests.forks import Forked, forked
from tests.waiting import comes_true

ACCOUNTS, TRANSFERS = 100, 100
LIVES = 12


@pytest.fixture
def bank(place: Place, monkeypatch: pytest.MonkeyPatch) -> App:
    """The example's own app, on a store of this test's own."""
    monkeypatch.setattr(accounts.app, "own_store", lambda: store_for(place.url))
    return accounts.app


async def test_money_moves_and_none_is_made_or_lost(bank: App):
    async with bank:
        await accounts.move_money(ACCOUNTS, TRANSFERS)
        assert await accounts.count_money(ACCOUNTS, TRANSFERS) == ACCOUNTS * 10_000


async def test_the_example_can_be_repeated_on_the_same_store(bank: App, capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        await accounts.main(accounts=5, transfers=10)
    assert capsys.readouterr().out == "500.00 in 5 accounts, after 10 transfers\n" * 2


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3))])
async def test_processes_that_die_at_random_commits_neither_lose_nor_repeat_anything(
    place: Place, bank: App, monkeypatch: pytest.MonkeyPatch, seed: int
):
    """A process dies before or after a commit at random, again and again; the last one finishes the work."""
    chance = random.Random(seed)
    monkeypatch.setattr(bank, "config", Config.load({}, url=place.url, lease_ttl="10m"))
    async with bank.client():
        await accounts.move_money(ACCOUNTS, TRANSFERS, seed=seed)
    crashes = 0
    for life in range(LIVES):
        points = CrashPoints()
        monkeypatch.setattr(bank, "own_store", lambda points=points: store_for(place.url, points=points))
        await open_to_die(bank)
        points.crash_at(chance.choice(["commit:begin", "commit:reply", "claim:reply"]), nth=chance.randrange(1, 30))
        crashes += await comes_true(lambda points=points: points.crashed, seconds=5, pause_s=0.001)
        await die(bank)
        # One that was there at five deaths is given up for good: none is there at more than one of four.
        if life % 4 == 3:
            await sessions_run_out(place.url)
    assert crashes > LIVES // 2
    monkeypatch.setattr(bank, "own_store", lambda: store_for(place.url))
    async with bank:
        assert await accounts.count_money(ACCOUNTS, TRANSFERS) == ACCOUNTS * 10_000


async def open_to_die(app: App) -> None:
    """With few at once, so that others are left for the next life."""
    await app._open(WorkerSettings(concurrency=8))


async def die(app: App) -> None:
    opened, app._opened = app._opened, None
    assert opened is not None
    await opened.abandon()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_workers_that_are_killed_neither_lose_nor_repeat_anything(place: Place, bank: App):
    env = {**os.environ, "OUTLAST_URL": place.url, "OUTLAST_LEASE_TTL": "2s"}

    def spawn() -> Forked:
        return forked("tests.outlast_command", "worker", "examples.accounts:app", "--concurrency", "20", env=env)

    chance = random.Random(7)
    workers = [spawn(), spawn()]
    try:
        async with bank.client():
            await accounts.move_money(ACCOUNTS, TRANSFERS * 5)
            began_s = time.monotonic()
            while time.monotonic() - began_s < 12:
                await asyncio.sleep(chance.uniform(0.3, 1.5))
                victim = chance.randrange(len(workers))
                workers[victim].kill()
                workers[victim].wait()
                workers[victim] = spawn()
            assert await accounts.count_money(ACCOUNTS, TRANSFERS * 5) == ACCOUNTS * 10_000
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
