"""Checked by pyright, never run: what code asks about itself, undoes and commits."""

from __future__ import annotations

from typing import reveal_type

import outlast
from outlast import App

app = App()


@app.step
async def refund(order: int, why: str = "") -> None: ...


@app.transaction
def debit(order: int) -> str:
    outlast.connection().execute("UPDATE account SET cents = 0")
    return "x"


@app.transaction(timeout="1s")
async def credit(order: int) -> bytes:
    return b""


@app.workflow
async def checkout(order: int) -> None:
    reveal_type(outlast.now())  # reveals: datetime
    reveal_type(outlast.uuid4())  # reveals: UUID
    reveal_type(outlast.random().random())  # reveals: float
    reveal_type(outlast.current().tags)  # reveals: dict[str, str]
    reveal_type(outlast.emit({"n": 1}))  # reveals: None
    reveal_type(outlast.progress(0.5, "half"))  # reveals: None
    reveal_type(await outlast.compensate(refund, order, why="late"))  # reveals: None
    reveal_type(await outlast.compensate(debit, order))  # reveals: None
    await outlast.compensate(refund, "order")  # error: reportArgumentType
    await outlast.compensate(refund)  # error: reportCallIssue
    reveal_type(await debit.aio(order))  # reveals: str
    reveal_type(debit(order))  # reveals: str
    reveal_type(await credit(order))  # reveals: bytes
    debit("order")  # error: reportArgumentType


async def look() -> None:
    handle = await checkout.start(1)
    async for frame in handle.frames(after=3):
        reveal_type(frame.offset)  # reveals: int
    for frame in checkout.sync.execution("1").frames():
        reveal_type(frame.step)  # reveals: str | None
    reveal_type((await handle.info()).progress)  # reveals: ProgressInfo | None
