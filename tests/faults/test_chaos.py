"""Workers killed and frozen, the server restarted: everything succeeds, once. A small one; `chaos.py` has the whole."""

from __future__ import annotations

import os

import pytest

from outlast.testing.postgres_server import PostgresServer
from tests.faults.chaos import FULL, Chaos, Plan

SMALL = Plan(executions=600, lease_s=5.0, kills=3, restarts=2, restart_every_s=5.0, limit_s=100)


@pytest.mark.slow
@pytest.mark.timeout(FULL.limit_s + 60 if os.environ.get("OUTLAST_TEST_CHAOS") == "full" else 150)
async def test_everything_succeeds_once_whatever_happens_to_workers_and_server():
    plan = FULL if os.environ.get("OUTLAST_TEST_CHAOS") == "full" else SMALL
    with PostgresServer.launch(settings={"fsync": "on"}) as server:
        report = await Chaos(server, plan).run()
    print(report)
    assert report.kills >= plan.kills
    assert report.restarts == plan.restarts
    # How long it then waits for a worker with room is a matter of how many there are.
    assert max(report.noticed_s) <= 2 * plan.lease_s
