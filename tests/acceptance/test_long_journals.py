"""A retry that runs thousands of operations again: more than one change of the store can take out of the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from outlast import App, Retry
from outlast.app import store_for
from outlast.errors import StoreClosed
from outlast.machine.changes import Changes, Delete
from outlast.store.port import Committed, Store
from tests.acceptance.conftest import Place, sessions_run_out, status_is, until

MANY = 3_000


class Stopping:
    """A store that stops for good before the n-th commit that takes many entries out of a journal."""

    def __init__(self, store: Store, *, at: int) -> None:
        self._store = store
        self._left = at
        self.reached = asyncio.Event()
        self.over = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, batch: Sequence[Changes]) -> Committed:
        if any(sum(isinstance(write, Delete) for write in changes.writes) > 100 for changes in batch):
            self._left -= 1
            if self._left < 0:
                self.reached.set()
                await self.over.wait()
                raise StoreClosed("its process is dead")
        return await self._store.commit(batch)


class Ledger:
    """What ran, and whether it goes well by now."""

    def __init__(self) -> None:
        self.well = False
        self.before = 0
        self.ran = 0
        self.called = 0
        self.all_called = asyncio.Event()


def fan_on(app: App, ledger: Ledger, *, retry: Retry | None = None, all_fail: bool = False) -> Any:
    """One step, then many at once: until it goes well, one of them fails (or all), and the others are given up."""

    @app.step
    async def before() -> int:
        ledger.before += 1
        return ledger.before

    @app.step
    async def work(number: int) -> int:
        ledger.called += 1
        if ledger.called == MANY:
            ledger.all_called.set()
        if not ledger.well and all_fail:
            raise ValueError(number)
        if not ledger.well and number == 0:
            await ledger.all_called.wait()
            raise ValueError("not yet")
        if not ledger.well:
            await asyncio.Event().wait()
        ledger.ran += 1
        return number

    options: dict[str, Any] = {} if retry is None else {"retry": retry}

    @app.workflow(**options)
    async def fan() -> int:
        first = await before()
        if all_fail:
            ends = await asyncio.gather(*(work(number) for number in range(MANY)), return_exceptions=True)
            if failed := [end for end in ends if isinstance(end, Exception)]:
                raise ExceptionGroup("some failed", failed)
            return first
        async with asyncio.TaskGroup() as group:
            work_done = [group.create_task(work(number)) for number in range(MANY)]
        assert [done.result() for done in work_done] == list(range(MANY))
        return first

    return fan


# Where one fails, one entry leaves the journal, however many were given up for it: there are no parts to die between.
CASES = {
    "one failed": (None, False),
    "all failed": (None, True),
    "all failed, dies before the first part": (0, True),
    "all failed, dies before the second part": (1, True),
    "all failed, dies with the failure": (3, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("dies_at, all_fail", CASES.values(), ids=CASES)
async def test_a_failed_attempt_runs_thousands_of_operations_again(place: Place, dies_at: int | None, all_fail: bool):
    ledger = Ledger()
    policy = Retry(max_attempts=2, initial="1ms")
    first = Stopping(store_for(place.url), at=10**9 if dies_at is None else dies_at)
    app = App(store=lambda: cast("Store", first), lease_ttl="10m")
    fan = fan_on(app, ledger, retry=policy, all_fail=all_fail)
    async with app.worker() as worker:
        handle = await fan.options(id="fan").start()
        if dies_at is None:
            async with asyncio.timeout(60):
                await ledger.all_called.wait()
            ledger.well = True
            assert await handle.result(timeout=60) == 1
        else:
            async with asyncio.timeout(60):
                await first.reached.wait()
            ledger.well = True
            await worker.abandon()
            await sessions_run_out(place.url)
            first.over.set()
            other = place.app()
            fan = fan_on(other, ledger, retry=policy, all_fail=all_fail)
            async with other:
                assert await fan.execution("fan").result(timeout=60) == 1
    assert ledger.before == 1, "what was recorded does not run again"
    assert ledger.ran == MANY


@pytest.mark.slow
@pytest.mark.parametrize("end", ["failed", "all failed", "cancelled"])
async def test_what_has_ended_is_retried_with_thousands_of_operations(place: Place, end: str):
    ledger = Ledger()
    stopping = Stopping(store_for(place.url), at=1)
    app, client = place.app(), App(store=lambda: cast("Store", stopping))
    fan = fan_on(app, ledger, all_fail=end == "all failed")
    async with app:
        if end == "cancelled":
            ledger.called = -1  # nobody fails: all of them wait
        handle = await fan.options(id="fan").start()
        if end == "cancelled":
            await until(lambda: ledger.called == MANY - 1, "not all of them wait")
            await handle.cancel()
        await asyncio.wait_for(status_is(handle, end.removeprefix("all ")), 60)
        ledger.well = True
        if end == "failed":  # one entry leaves the journal: there are no parts to die between
            await handle.retry()
            assert await handle.result(timeout=60) == 1
            assert (ledger.before, ledger.ran) == (1, MANY)
            return
        async with client.client():
            dies = asyncio.create_task(client.execution("fan").retry())
            await asyncio.wait_for(stopping.reached.wait(), 60)
            assert (await handle.info()).generation == 1, "opened only when all of them can run again"
            dies.cancel()
            await asyncio.gather(dies, return_exceptions=True)
            await handle.retry()
            assert await handle.result(timeout=60) == 1
            stopping.over.set()
    assert ledger.before == 1
    assert ledger.ran == MANY
