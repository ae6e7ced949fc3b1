"""Flows of very many members, and a cancel of very many whose canceller is killed.

`OUTLAST_TEST_FLOWS=full`: ten thousand, and five thousand; else a tenth of that.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outlast import App, FlowCancelled, FlowFailed, Status
from outlast.model.attempt import Attempt
from outlast.model.execution import Execution
from outlast.model.record import settled
from outlast.reconcilers.driver import JITTER
from outlast.reconcilers.table import ROWS
from outlast.runtime.flows.stopping import GRACE_MS
from tests.acceptance import flow_fleet
from tests.acceptance.conftest import Place
from tests.acceptance.flow_workflows import workflows
from tests.forks import forked

MANY = 10_000 if os.environ.get("OUTLAST_TEST_FLOWS") == "full" else 1_000
[CYCLE_MS] = [int(row.interval_ms * (1 + JITTER)) for row in ROWS if row.name == "cancel_backlog"]
WORKING_MS = 500
"""Between two members that are cancelled, one after the other, on a machine that does other things too: who takes
longer has waited for something."""
STALLS_MS = 2_000
"""So long may such a machine stand still."""
MEMORY_MB = 50 + MANY / 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024**2


@asynccontextmanager
async def little_memory() -> AsyncIterator[None]:
    """Looked at again and again: the process's own high-water mark may be of a test before this one."""
    gc.collect()
    before = most = resident_mb()

    async def look() -> None:
        nonlocal most
        while True:
            most = max(most, resident_mb())
            await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
    assert most - before < MEMORY_MB, "memory is bounded"


async def test_very_many_members_fan_out_and_in(app: App, capsys: pytest.CaptureFixture[str]):
    kit = workflows(app)
    async with app, little_memory():
        flow = app.flow("fan", id="fan")
        root = flow.add("root", kit.number, 1)
        members = [flow.add(f"m{n}", kit.number, n).after(root) for n in range(MANY)]
        flow.add("sum", kit.total, [member.output for member in members])
        fh = await flow.start()
        began = time.monotonic()
        outputs = await fh.result("800s")
        took = time.monotonic() - began
        assert outputs["sum"] == sum(range(MANY))
        assert (await fh.status()).counts == {Status.SUCCEEDED: MANY + 2}
    with capsys.disabled():
        print(f"\n{MANY / took:,.0f} members/s of a fan-out and fan-in")


@pytest.mark.parametrize("max_parallel", [None, 50])
async def test_very_many_items_of_an_output_are_mapped(
    app: App, capsys: pytest.CaptureFixture[str], max_parallel: int | None
):
    kit = workflows(app)

    @app.workflow
    async def listing(count: int) -> list[int]:
        return list(range(count))

    async with app, little_memory():
        flow = app.flow("map", id="map")
        items = flow.map(kit.number, flow.add("listing", listing, MANY).output, max_parallel=max_parallel)
        flow.add("sum", kit.total, items.output)
        fh = await flow.start()
        began = time.monotonic()
        outputs = await fh.result("800s")
        took = time.monotonic() - began
        assert outputs["number"] == list(range(MANY))
        assert outputs["sum"] == sum(range(MANY))
        assert (await fh.status()).counts == {Status.SUCCEEDED: MANY + 4}
    with capsys.disabled():
        print(f"\n{MANY / took:,.0f} items/s of a map, max_parallel={max_parallel}")


async def test_a_very_long_chain_of_skips_ends(app: App, capsys: pytest.CaptureFixture[str]):
    kit = workflows(app)
    async with app, little_memory():
        flow = app.flow("chain", id="chain")
        last = flow.add("m0", kit.fails)
        for n in range(1, MANY):
            last = flow.add(f"m{n}", kit.number, last.output)
        fh = await flow.start()
        began = time.monotonic()
        with pytest.raises(FlowFailed):
            await fh.result("800s")
        took = time.monotonic() - began
        assert (await fh.status()).counts == {Status.FAILED: 1, Status.SKIPPED: MANY - 1}
    with capsys.disabled():
        print(f"\n{MANY / took:,.0f} skips/s of a chain")


def test_a_flow_of_very_many_is_cancelled_though_its_canceller_is_killed(place: Place):
    """Four workers run it. From the acceptance on nobody starts a member; grace and a cycle are all that is waited."""
    workers = [forked("tests.acceptance.flow_fleet", "worker", place.url) for _ in range(4)]
    try:
        read, written = os.pipe()
        with os.fdopen(read) as said, os.fdopen(written, "w") as stdout:
            canceller = forked("tests.acceptance.flow_fleet", "cancel", place.url, str(MANY // 2), stdout=stdout)
            stdout.close()
            word, _, accepted_at = said.readline().strip().partition(" ")
        assert word == "accepted"
        time.sleep(random.random() * 0.5)
        canceller.send_signal(signal.SIGKILL)
        canceller.wait()

        async def finish() -> None:
            app = flow_fleet.make_app(place.url)
            async with app.client():
                fh = app.flow_handle("fleet")
                with pytest.raises(FlowCancelled, match="enough"):
                    await fh.result("300s")
                found = await app.opened()._engine.store.scan(Attempt.KIND, ("default",), limit=10_000)
                attempts = [attempt for attempt in found if isinstance(attempt, Attempt)]
                assert max(int(str(attempt.started_at)) for attempt in attempts) <= int(accepted_at)
                found = await app.opened()._engine.store.scan(Execution.KIND, ("default",), limit=10_000)
                ends = [settled(one.finished_at) or sys.maxsize for one in found if isinstance(one, Execution)]
                assert len(ends) == MANY // 2
                moments = [int(accepted_at), *sorted(end for end in ends if end > int(accepted_at))]
                gaps_ms = [after - before for before, after in itertools.pairwise(moments)]
                waited_ms = sum(gap for gap in gaps_ms if gap > WORKING_MS)
                assert waited_ms <= GRACE_MS + CYCLE_MS + STALLS_MS, "all have ended after grace and a cycle"
                counts = (await fh.status()).counts
                assert set(counts) <= {Status.SUCCEEDED, Status.CANCELLED}
                assert counts[Status.CANCELLED] > 0

        asyncio.run(finish())
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
