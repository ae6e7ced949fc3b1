"""The testing kit and forks, as a user's editor sees them."""

from datetime import UTC, datetime
from typing import reveal_type

import outlast
from outlast import App
from outlast.testing import harness, replay_every_await

app = App()


@app.step
async def charge(cents: int) -> str:
    return f"paid {cents}"


@app.workflow
async def checkout(cents: int) -> str:
    if outlast.patched("fraud-check"):
        reveal_type(outlast.patched("fraud-check"))  # reveals: bool
    return await charge(cents)


async def program() -> None:
    async with harness(app, start=datetime(2030, 1, 1, tzinfo=UTC), lanes=["default"]) as h:
        handle = await checkout.start(5)
        reveal_type(await h.clock.advance("90d"))  # reveals: datetime
        reveal_type(h.clock.now)  # reveals: datetime
        reveal_type(await handle.fork(from_step="charge"))  # reveals: Handle[str]
        await handle.retry(from_step="charge")
        reveal_type(h.stub(charge, "free").calls)  # reveals: list[tuple[tuple[Any, ...], dict[str, Any]]]
        h.crash_at(charge, nth=2, when="after")
        h.crash_at("charge", when="between")  # error: reportArgumentType
        journal = await h.journal(handle)
        reveal_type(journal.steps)  # reveals: list[str]
        reveal_type(await h.info("order-42"))  # reveals: Info
    reveal_type((await replay_every_await(checkout, 5)).crashes)  # reveals: int
    reveal_type(checkout.sync.start(5).fork(from_step="charge"))  # reveals: SyncHandle[str]
