"""The reconcilers under waits and workers: with the primary path broken on purpose, each finishes the work alone.

The timeout of a wait is a wake time, whatever it waits for, so `timer` is the net of all of them; a worker that is gone
is `lease_expiry` for what it held, and `session_expiry` for itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import outlast
from outlast import App, Status
from outlast.config import RECONCILERS
from outlast.model.session import Session
from tests.acceptance.conftest import Place, status_is
from tests.acceptance.test_flow_cancels import cycle, engine_of


@pytest.fixture(autouse=True)
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row has a turn unless the test gives it one."""
    for name in RECONCILERS:
        monkeypatch.setenv(f"OUTLAST_RECONCILER_{name.upper()}_ENABLED", "no")


def waits_on(app: App) -> dict[str, Any]:
    @app.workflow
    async def event() -> str:
        try:
            return await outlast.receive("word", str, timeout="1h")
        except TimeoutError:
            return "no word"

    @app.workflow
    async def deferred() -> str:
        try:
            return await outlast.deferred("answer", str, timeout="1h")
        except TimeoutError:
            return "no answer"

    @app.workflow
    async def both() -> str:
        try:
            return await outlast.race(outlast.receive("a", str, timeout="2h"), outlast.receive("b", str, timeout="1h"))
        except TimeoutError:
            return "neither"

    return {"event": event, "deferred": deferred, "both": both}


@pytest.mark.parametrize("kind, came", [("event", "no word"), ("deferred", "no answer"), ("both", "neither")])
async def test_timer_alone_ends_a_wait_whose_time_is_over(clocked: Place, kind: str, came: str):
    suspends = clocked.app()
    workflow = waits_on(suspends)[kind]
    async with suspends:
        await status_is(await workflow.options(id="it").start(), Status.SUSPENDED)
    app = clocked.app()
    workflow = waits_on(app)[kind]
    async with app:
        handle = workflow.execution("it")
        assert clocked._clock is not None
        clocked._clock.advance("61m")
        for row in set(RECONCILERS) - {"timer"}:
            await cycle(app, row)
        assert (await handle.info()).status is Status.SUSPENDED
        assert (await cycle(app, "timer")).processed == 1
        assert await handle.result(timeout=20) == came
        assert (await cycle(app, "timer")).processed == 0


async def test_lease_expiry_and_session_expiry_alone_clear_up_after_a_worker_that_is_gone(clocked: Place):
    killed, begun = clocked.app(lease_ttl="1h"), asyncio.Event()

    @killed.workflow(name="slow")
    async def never() -> int:
        begun.set()
        return await asyncio.Event().wait()

    async with killed:
        opened = killed._opened
        assert opened is not None
        assert opened.worker is not None
        gone = opened.worker.name
        await never.options(id="it").start()
        await begun.wait()
        killed._opened = None
        await opened.abandon()
    heir = clocked.app()

    @heir.workflow
    async def slow() -> int:
        return 7

    async with heir:
        assert clocked._clock is not None
        clocked._clock.advance("61m")
        assert gone in await workers(heir)
        assert (await cycle(heir, "lease_expiry")).processed == 1
        assert await heir.execution("it").result(timeout=20) == 7
        assert (await cycle(heir, "session_expiry")).processed >= 1
        assert gone not in await workers(heir)


async def workers(app: App) -> set[str]:
    store = engine_of(app).store
    found = [one for partition in range(store.partitions) for one in await store.scan(Session.KIND, (partition,))]
    return {one.worker for one in found if isinstance(one, Session)}
