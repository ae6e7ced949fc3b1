"""`fork(from_step=…)` and `retry(from_step=…)`: what is kept is as it was, and what goes runs again."""

from __future__ import annotations

import asyncio

import pytest

from outlast import App, ExecutionRefused, FlowFailed, Status
from tests.acceptance.flow_workflows import member_is, workflows


async def test_what_has_no_input_yet_cannot_be_forked(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("sums", id="sums")
        up, bad = flow.add("up", kit.waits), flow.add("bad", kit.fails)
        flow.add("down", kit.number, up.output)
        flow.add("skipped", kit.number, bad.output)
        fh = await flow.start()
        for name, status in (("down", "blocked"), ("skipped", "skipped")):
            await member_is(fh, name, Status(status))
            async with asyncio.timeout(20):
                with pytest.raises(ExecutionRefused, match=f"is {status} and has no input"):
                    await app.execution(f"sums/{name}").fork(from_step="anything")
        await app.execution("sums/up").send("go", 1)
        with pytest.raises(FlowFailed):
            await fh.result("20s")
