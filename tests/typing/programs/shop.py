"""Checked by pyright, never run. `# reveals: T` is what `reveal_type` on that line must say; `# error: rule` what
pyright must complain of there. Any other complaint fails the test."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, reveal_type

import outlast
from outlast import App, CodecHook, Handle, Retry, SyncHandle


@dataclass
class Order:
    id: str


@dataclass
class Payment:
    amount: int


@dataclass
class Receipt:
    text: str


app = App()
order = Order("a")

# ---- steps --------------------------------------------------------------------------------------------------------


@app.step
async def charge(order: Order) -> Payment:
    return Payment(len(order.id))


@app.step(retry=Retry(max_attempts=5, initial="200ms", fatal=(ValueError,)), timeout="10s")
async def pack(order: Order, *, gift: bool = False) -> str:
    return order.id


@app.step
def parse(path: str) -> int:
    return len(path)


@app.step(name="weigh", timeout=3)
def weigh(order: Order, times: int = 1) -> float:
    return 1.0 * times


@app.step(retries=5)  # error: reportCallIssue
async def wrong_option() -> None: ...


@app.step(timeout=object())  # error: reportArgumentType
async def wrong_timeout() -> None: ...


class Getter:
    async def __call__(self, url: str) -> bytes:
        return b""


class Warehouse:
    @app.step
    async def reserve(self, order: Order, count: int) -> list[str]:
        return [order.id] * count

    @app.step(timeout="5s")
    def ship(self, order: Order) -> Payment:
        return Payment(1)

    @staticmethod
    @app.step
    async def distance(to: str) -> int:
        return 3

    @staticmethod
    @app.step
    async def opened(warehouse: type[Warehouse], day: str) -> int:
        return 3

    @classmethod
    @app.step
    async def closed(cls, day: str) -> int:
        return 3

    get = app.step(Getter())


warehouse = Warehouse()


def get_rate(currency: str) -> float:
    return 1.0


async def fetch(url: str) -> bytes:
    return b""


async def steps() -> None:
    reveal_type(await charge(order))  # reveals: Payment
    reveal_type(await charge.aio(order))  # reveals: Payment
    reveal_type(charge.sync(order))  # reveals: Payment
    reveal_type(await charge.options(timeout="5s")(order))  # reveals: Payment
    reveal_type(await pack(order, gift=True))  # reveals: str
    reveal_type(parse("x"))  # reveals: int
    reveal_type(await parse.aio("x"))  # reveals: int
    reveal_type(weigh(order, times=3))  # reveals: float
    reveal_type(await warehouse.reserve(order, 3))  # reveals: list[str]
    reveal_type(warehouse.reserve.sync(order, count=3))  # reveals: list[str]
    reveal_type(warehouse.ship(order))  # reveals: Payment
    reveal_type(await warehouse.ship.aio(order))  # reveals: Payment
    reveal_type(await Warehouse.reserve(warehouse, order, 3))  # reveals: list[str]
    reveal_type(await Warehouse.distance("x"))  # reveals: int
    reveal_type(await warehouse.distance("x"))  # reveals: int
    reveal_type(await Warehouse.opened(Warehouse, "Monday"))  # reveals: int
    await Warehouse.closed("Monday")  # error: reportCallIssue
    reveal_type(await warehouse.get("x"))  # reveals: bytes
    reveal_type(await app.step(fetch, name="fetch")("x"))  # reveals: bytes
    reveal_type(app.step(get_rate, name="fx")("EUR"))  # reveals: float
    reveal_type(await app.step(get_rate, name="fx", timeout="3s").aio("EUR"))  # reveals: float
    reveal_type(await app.step(Getter(), name="get")("x"))  # reveals: bytes
    reveal_type(await app.step(functools.partial(fetch, "x"))())  # reveals: bytes
    reveal_type(await asyncio.gather(charge(order), parse.aio("x")))  # reveals: tuple[Payment, int]
    async with asyncio.TaskGroup() as group:
        reveal_type(group.create_task(charge(order)))  # reveals: Task[Payment]
    await charge("no")  # error: reportArgumentType
    await charge()  # error: reportCallIssue
    await charge(order, order)  # error: reportCallIssue
    await pack(order, True)  # error: reportCallIssue
    await pack(order, gift="x")  # error: reportArgumentType
    parse(3)  # error: reportArgumentType
    await parse.aio(3)  # error: reportArgumentType
    await parse("x")  # error: reportGeneralTypeIssues
    await warehouse.reserve(order)  # error: reportCallIssue
    await warehouse.reserve("x", 3)  # error: reportArgumentType
    await charge.options(timeout="5s")("no")  # error: reportArgumentType
    charge.options(lane="x")  # error: reportCallIssue
    await app.step(fetch, name="fetch")(3)  # error: reportArgumentType
    app.step(fetch, named="x")  # error: reportCallIssue


# ---- workflows ----------------------------------------------------------------------------------------------------


@app.workflow
async def checkout(order: Order, note: str = "") -> Receipt:
    payment = await charge(order)
    reveal_type(payment)  # reveals: Payment
    return Receipt(str(payment.amount))


@app.workflow(name="import", version="2", lane="slow", retry=Retry(max_attempts=3), timeout="10m", deadline="30d")
def import_file(path: str) -> int:
    return parse(path)


@app.workflow(requires={"gpu"})
async def render(frames: Iterable[int]) -> None: ...


@app.workflow(lanes="x")  # error: reportCallIssue
async def wrong_workflow_option() -> None: ...


async def workflows() -> None:
    handle = await checkout.start(order)
    reveal_type(handle)  # reveals: Handle[Receipt]
    reveal_type(await handle.result(timeout="3s"))  # reveals: Receipt
    reveal_type(await checkout(order))  # reveals: Receipt
    reveal_type(await checkout.aio(order, note="x"))  # reveals: Receipt
    reveal_type(await import_file.aio("x"))  # reveals: int
    reveal_type(import_file("x"))  # reveals: int
    reveal_type(await import_file.start("x"))  # reveals: Handle[int]
    reveal_type(await render.start([1]))  # reveals: Handle[None]
    reveal_type(checkout.execution("a"))  # reveals: Handle[Receipt]
    reveal_type(app.execution("a"))  # reveals: Handle[Any]
    reveal_type(checkout.sync.start(order))  # reveals: SyncHandle[Receipt]
    reveal_type(checkout.sync.start(order).result())  # reveals: Receipt
    reveal_type(checkout.sync.start_in(object(), order).result())  # reveals: Receipt
    reveal_type(checkout.sync(order))  # reveals: Receipt
    reveal_type(import_file.sync.start("x").result("3s"))  # reveals: int
    reveal_type(checkout.sync.execution("a").result())  # reveals: Receipt
    fully = checkout.options(
        id="order-42",
        if_exists="same",
        delay="1h",
        priority=3,
        deadline="1d",
        tags={"a": "b"},
        lane="x",
        requires={"gpu"},
    )
    reveal_type(await fully.start(order))  # reveals: Handle[Receipt]
    reveal_type(await checkout.options(id="a")(order))  # reveals: Receipt
    reveal_type(checkout.options(id="a").sync.start(order).result())  # reveals: Receipt
    reveal_type(await import_file.options(id="a").start("x"))  # reveals: Handle[int]
    handles = await app.start_many(checkout.options(id=str(n)).bind(order) for n in range(3))
    reveal_type(handles)  # reveals: list[Handle[Receipt]]
    reveal_type(await app.start_many([import_file.bind("x")]))  # reveals: list[Handle[int]]
    mixed: list[Handle[Any]] = [*await app.start_many([checkout.bind(order)]), await import_file.start("x")]
    blocking: SyncHandle[Receipt] = checkout.sync.start(order)
    print(mixed, blocking)

    await checkout.start("no")  # error: reportArgumentType
    await checkout.start()  # error: reportCallIssue
    await checkout.start(order, 3)  # error: reportArgumentType
    await checkout.start(order, nope=1)  # error: reportCallIssue
    await checkout(3)  # error: reportArgumentType
    checkout.bind(3)  # error: reportArgumentType
    checkout.sync.start(3)  # error: reportArgumentType
    checkout.sync.start_in(object(), 3)  # error: reportArgumentType
    import_file(3)  # error: reportArgumentType
    await import_file.aio(3)  # error: reportArgumentType
    await import_file("x")  # error: reportGeneralTypeIssues
    checkout.options(idd="a")  # error: reportCallIssue
    checkout.options(if_exists="maybe")  # error: reportArgumentType
    checkout.options(priority="high")  # error: reportArgumentType
    await checkout.options(id="a").start(3)  # error: reportArgumentType
    await app.start_many([checkout])  # error: reportArgumentType
    wrong: Handle[int] = await checkout.start(order)  # error: reportAssignmentType
    print(wrong)


# ---- children -----------------------------------------------------------------------------------------------------


@app.workflow
async def family(order: Order) -> int:
    reveal_type(await checkout(order))  # reveals: Receipt
    child = await checkout.options(id="ship", parent_close="wait").start(order)
    reveal_type(child)  # reveals: Handle[Receipt]
    reveal_type(await child.result(timeout="3d"))  # reveals: Receipt
    reveal_type(await checkout.options(detached=True, send={"item": order}).start(order))  # reveals: Handle[Receipt]
    await child.send("item", order, key="a")
    await checkout.execution("other").cancel("enough")
    wrong: Handle[int] = await checkout.options(id="a").start(order)  # error: reportAssignmentType
    print(wrong)
    await checkout(3)  # error: reportArgumentType
    checkout.options(parent_close="kill")  # error: reportArgumentType
    checkout.options(detached="yes")  # error: reportArgumentType
    checkout.options(send="item")  # error: reportArgumentType
    return outlast.continue_as_new(order)


@app.workflow
def plain_family(path: str) -> int:
    reveal_type(import_file(path))  # reveals: int
    reveal_type(checkout.sync(order))  # reveals: Receipt
    reveal_type(checkout.sync.start(order).result("3s"))  # reveals: Receipt
    return import_file.sync.start(path).result()


# ---- what lies beneath --------------------------------------------------------------------------------------------

reveal_type(charge.name)  # reveals: str
reveal_type(checkout.name)  # reveals: str


class Encrypted:
    def encode(self, data: bytes, /) -> bytes:
        return data

    def decode(self, data: bytes, /) -> bytes:
        return data


hook: CodecHook = Encrypted()
App(codec=Encrypted())
App(codec=object())  # error: reportArgumentType
