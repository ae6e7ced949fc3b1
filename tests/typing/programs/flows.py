"""Checked by pyright, never run: as `shop.py` says."""

from __future__ import annotations

from typing import Any, reveal_type

import outlast
from outlast import App

app = App()


@app.workflow
async def number(x: int) -> int:
    return x


@app.workflow
def text(x: str, times: int = 1) -> str:
    return x * times


@app.workflow
async def table(rows: dict[str, int]) -> dict[str, int]:
    return rows


async def flows() -> None:
    flow = app.flow("nightly", id="nightly-1")
    one = flow.add("one", number, 1)
    reveal_type(one)  # reveals: FlowMember[int]
    reveal_type(one.output)  # reveals: int
    flow.add("two", number, one.output)
    flow.add("wrong", text, one.output)  # error: reportArgumentType
    flow.add("missing", number)  # error: reportCallIssue
    rows = flow.add("rows", table, {"a": one.output})
    reveal_type(rows.output["a"])  # reveals: int
    flow.add("part", number, rows.output["a"]).after(one, "two", join=outlast.quorum(1), on_failure="run")
    flow.add("bad", number, 1).after(one, on_satisfied="explode")  # error: reportArgumentType
    pages = flow.map(number, [1, 2, 3], max_parallel=2)
    reveal_type(pages.output)  # reveals: list[int]
    reveal_type(flow.map(number, pages.output, name="again").output)  # reveals: list[int]
    reveal_type(one.failure)  # reveals: UpstreamFailure | None
    fh = await flow.start()
    reveal_type(fh)  # reveals: FlowHandle
    outputs: dict[str, Any] = await fh.result("1h")
    print(outputs)
    await fh.cancel("cancel_pending", reason="enough", wait=True)
    await fh.cancel("everything")  # error: reportArgumentType
    reveal_type((await fh.status()).counts)  # reveals: dict[Status, int]
    flow.sync.start().result()
