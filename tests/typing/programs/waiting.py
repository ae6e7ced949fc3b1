"""Checked by pyright, never run: what waiting gives, as an editor sees it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, reveal_type

import outlast
from outlast import App, Handle, SyncHandle


@dataclass
class Plan:
    name: str


app = App()


@app.step
async def search(where: str) -> int:
    return len(where)


@app.workflow
async def waits() -> None:
    reveal_type(await outlast.sleep("1h"))  # reveals: None
    reveal_type(await outlast.sleep_until(dt.datetime.now(dt.UTC), name="x"))  # reveals: None
    reveal_type(await outlast.receive("plan", Plan, timeout="3d"))  # reveals: Plan
    reveal_type(await outlast.receive("plan"))  # reveals: Any
    approval = outlast.deferred("approval", bool, timeout="7d")
    reveal_type(approval)  # reveals: Deferred[bool]
    reveal_type(await approval)  # reveals: bool
    reveal_type(await approval.token())  # reveals: str
    reveal_type(await outlast.interrupted())  # reveals: None
    reveal_type(await outlast.race(outlast.receive("plan", Plan), outlast.sleep("3d")))  # reveals: Plan | None
    reveal_type(await outlast.race(search("a"), approval))  # reveals: int | bool
    await outlast.sleep(object())  # error: reportArgumentType
    await outlast.receive("plan", Plan, 3)  # error: reportCallIssue


@app.workflow
def blocks() -> None:
    outlast.sync.sleep("1h")
    reveal_type(outlast.sync.receive("plan", Plan))  # reveals: Plan
    reveal_type(outlast.sync.deferred("approval", bool).result())  # reveals: bool
    reveal_type(outlast.sync.deferred("approval", bool).token())  # reveals: str


async def tells(handle: Handle[Any], blocking: SyncHandle[Any]) -> None:
    reveal_type(await handle.send("plan", Plan("a"), key="k"))  # reveals: None
    await handle.resolve("approval", True)
    await handle.reject("approval", ValueError("no"))
    await handle.interrupt()
    blocking.send("plan", Plan("a"))
    blocking.resolve("approval", True)
    await app.resolve_token("token", True)
    await handle.send(1)  # error: reportArgumentType
