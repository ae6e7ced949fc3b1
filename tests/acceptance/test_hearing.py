"""What comes from outside while an attempt looks outside is not missed: nobody says it again."""

from __future__ import annotations

import pytest

import outlast
from outlast import App
from outlast.runtime.waits import Waits
from outlast.runtime.worker import Worker
from tests.acceptance.conftest import Place, until


def waits(worker: Worker) -> bool:
    attempt = worker.resident("default", "it")
    return attempt is not None and attempt.at_rest and not attempt.busy


async def test_what_is_said_during_a_look_is_looked_at(place: Place, monkeypatch: pytest.MonkeyPatch):
    """The first event is for nobody. The second one is sent, and told of, when the look for the first found nothing."""
    app = place.app(lease_ttl="10m", doorbell=False, resident="1m")
    sender = App(place.url)

    @app.workflow
    async def hears() -> str:
        return await outlast.receive("second", str, timeout="50s")

    really, told = Waits.look, list[int]()

    async def look(self: Waits) -> None:
        await really(self)
        if not told:
            told.append(2)
            await sender.execution("it").send("second", "b")
            self._attempt.hear(2)

    monkeypatch.setattr(Waits, "look", look)
    async with app, sender.client():
        handle = await hears.options(id="it").start()
        worker = app._opened and app._opened.worker
        assert worker is not None
        await until(lambda: waits(worker), "it does not wait")
        attempt = worker.resident("default", "it")
        assert attempt is not None
        await sender.execution("it").send("first", "a")
        attempt.hear(1)
        assert await handle.result(timeout=20) == "b"
    assert told == [2]
