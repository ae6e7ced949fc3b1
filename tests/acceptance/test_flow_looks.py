"""What a flow says of itself while it goes on: who waits for whom, and who is held."""

from __future__ import annotations

from outlast import App, Status
from tests.acceptance.flow_workflows import member_is, workflows


async def test_the_status_says_who_waits_for_whom_and_who_is_held(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("f", id="f")
        waits = flow.add("waits", kit.waits)
        held = flow.add("held", kit.number, waits.output)
        flow.add("last", kit.add, waits.output, held.output)
        fh = await flow.start()
        await app.execution("f/held").hold()
        info = await fh.status()
        assert info.blocked == {"held": ("waits",), "last": ("waits", "held")}
        assert info.held == ("held",)
        await app.execution("f/waits").send("go", 1)
        await member_is(fh, "waits", Status.SUCCEEDED)
        info = await fh.status()
        assert (info.blocked, info.held) == ({"last": ("held",)}, ("held",))
        await app.execution("f/held").release()
        assert (await fh.result("20s"))["last"] == 2
        info = await fh.status()
        assert (info.blocked, info.held) == ({}, ())
