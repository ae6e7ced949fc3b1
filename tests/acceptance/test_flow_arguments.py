"""What members of a flow take from each other: parts of outputs, failures, and plain values beside them."""

from __future__ import annotations

import asyncio

import pytest

from outlast import App, CodecError, FlowFailed, UpstreamFailure
from tests.acceptance.conftest import Place
from tests.acceptance.flow_workflows import workflows

# ---- failures -----------------------------------------------------------------------------------------------------


async def test_a_failure_says_for_what_cause_its_member_ended(app: App):
    kit = workflows(app)

    @app.workflow(timeout="100ms")
    async def slow() -> int:
        await asyncio.get_running_loop().create_future()
        return 1

    @app.workflow
    async def causes(failures: list[UpstreamFailure | None]) -> list[str]:
        return [f"{failure.status}, {failure.cause}, {failure.message}" for failure in failures if failure is not None]

    async with app:
        flow = app.flow("f", id="f")
        late, bad = flow.add("late", slow), flow.add("bad", kit.fails)
        below = flow.add("below", kit.number, bad.output)
        flow.add("told", causes, [one.failure for one in (late, bad, below)]).after(on_failure="run")
        with pytest.raises(FlowFailed):
            await (await flow.start()).result("20s")
        assert await app.execution("f/told").result() == [
            "expired, attempt_timeout, ",
            "failed, failed, no x",
            "skipped, bad failed, ",
        ]


# ---- where they may stand -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pickles", [False, True])
async def test_outside_its_flow_an_output_is_no_argument(place: Place, pickles: bool):
    app = place.app(allow_pickle=pickles)
    kit = workflows(app)
    one = app.flow("f", id="f").add("one", kit.itself, 1)
    async with app:
        for given in (one.output, one.output.part, {"x": [one.failure]}):
            with pytest.raises(CodecError, match=r"of member 'one'>, which can only be an argument of a member"):
                await kit.itself.start(given)
