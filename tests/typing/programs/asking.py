"""Checked by pyright, never run: queries and updates, as an editor sees them."""

from __future__ import annotations

from typing import Any, reveal_type

import outlast
from outlast import App, Handle, SyncHandle

app = App()


@app.workflow
async def cart() -> None:
    @outlast.query("items")
    def items() -> list[str]:
        return []

    reveal_type(items())  # reveals: list[str]

    @outlast.update("add")
    def add(item: str) -> int:
        return len(item)

    reveal_type(add("pear"))  # reveals: int
    add(7)  # error: reportArgumentType

    @add.validator
    def known(item: str) -> None: ...

    @add.validator  # error: reportArgumentType
    def wrong(item: int) -> None: ...

    reveal_type(known("pear"))  # reveals: Any


async def asks(handle: Handle[Any], blocking: SyncHandle[Any]) -> None:
    reveal_type(await handle.query("items", type=list[str]))  # reveals: list[str]
    reveal_type(await handle.query("items"))  # reveals: Any
    reveal_type(await handle.update("add", "pear", type=int, key="k", timeout="5s"))  # reveals: int
    reveal_type(blocking.query("items", type=list[str]))  # reveals: list[str]
    reveal_type(blocking.update("add", "pear", type=int))  # reveals: int
    await handle.update(1)  # error: reportArgumentType
    await handle.query("items", timeout="5s")  # error: reportCallIssue
