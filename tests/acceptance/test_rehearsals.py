"""`h.replay`, as `outlast replay`: does the code still do what is recorded? It says so only where it does not."""

from __future__ import annotations

import outlast
from outlast import App
from outlast.testing import harness


async def test_what_has_no_input_yet_has_nothing_to_replay():
    app = App("sqlite:///nowhere.db")

    @app.workflow
    async def up() -> int:
        return await outlast.receive("number", int)

    @app.workflow
    async def down(number: int) -> int:
        return number

    async with harness(app) as h:
        flow = app.flow("nightly", id="n")
        flow.add("down", down, flow.add("up", up).output)
        await flow.start()
        assert await h.replay("n/up") is None
        assert await h.replay("n/down") is None
