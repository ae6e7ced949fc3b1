"""Workflows that flows are made of, and words to look at a flow with."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import outlast
from outlast import App, FlowHandle, Status, UpstreamFailure
from tests.acceptance.conftest import until

FAILS: set[str] = set()
UNDONE: list[str] = []


@dataclass
class Order:
    item: str
    price: int


def workflows(app: App) -> Any:
    @app.workflow
    async def number(x: int) -> int:
        return x

    @app.workflow
    async def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    async def total(xs: list[int]) -> int:
        return sum(xs)

    @app.workflow
    async def text(x: str) -> str:
        return x

    @app.workflow
    async def itself(x: Any) -> Any:
        return x

    @app.workflow
    async def order(item: str, price: int) -> Order:
        return Order(item, price)

    @app.workflow
    async def prices(order: Order, by_name: dict[str, int]) -> dict[str, int]:
        return {**by_name, order.item: order.price}

    @app.workflow
    async def fails(name: str = "x") -> int:
        if name in FAILS or name == "x":
            raise ValueError(f"no {name}")
        return 1

    @app.workflow
    async def waits(x: int = 0) -> int:
        return await outlast.receive("go", int)

    @app.workflow
    async def told(failure: UpstreamFailure | None, value: int | None) -> str:
        return "fine" if failure is None else f"{failure.name} {failure.status}: {failure.message} ({value})"

    @app.step
    async def undo(what: str) -> None:
        UNDONE.append(what)

    @app.workflow
    async def undoes(what: str) -> int:
        await outlast.compensate(undo, what)
        return await outlast.receive("go", int)

    return SimpleNamespace(**{name: value for name, value in locals().items() if name not in ("app", "undo")})


async def statuses(fh: FlowHandle) -> dict[str, str]:
    return {member.name: str(member.status) for member in (await fh.graph()).members}


async def member_is(fh: FlowHandle, name: str, *wanted: Status) -> None:
    async def reached() -> bool:
        return (await statuses(fh))[name] in wanted

    await until(reached, f"{name} of {fh} is not {wanted}")
