"""An order that outlasts the process that works on it.

    outlast worker examples.orders:app                                             # in one terminal, or in ten
    outlast start examples.orders:app checkout --input '{"order": {"id": "42", "item": "tea", "cents": 1250}}' --wait

Kill a worker whenever you like: another one goes on where it was. `make demo` does just that; see `demo.py`.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from outlast import App, Retry

app = App()  # where $OUTLAST_URL says, else sqlite:///outlast.db


@dataclass
class Order:
    id: str
    item: str
    cents: int


@dataclass
class Receipt:
    payment: str
    invoice: str
    tracking: str


# A workflow is an ordinary function. What it awaits is recorded, so that it survives the process that runs it.


@app.workflow
async def checkout(order: Order) -> Receipt:
    await reserve(order)
    payment = await charge(order)
    parcel, invoice = await asyncio.gather(pack(order), bill(order, payment))
    tracking = await ship(parcel)
    return Receipt(payment, invoice, tracking)


# A step is a call to the world outside. It runs once; what it returned is what every later run of the code is given.


@app.step
async def reserve(order: Order) -> None:
    await call(f"reserve {order.id}")


class GatewayDown(Exception):
    """The payment gateway did not answer."""


@app.step(retry=Retry(max_attempts=8, initial="100ms", backoff=1.5), timeout="5s")
async def charge(order: Order) -> str:
    await call(f"charge {order.id}")
    if random.random() < 0.35:
        raise GatewayDown
    return f"payment of {order.cents / 100:.2f} for {order.item}"


@app.step
async def pack(order: Order) -> str:
    await call(f"pack {order.id}")
    return order.id


@app.step
async def bill(order: Order, payment: str) -> str:
    await call(f"bill {order.id}")
    return f"invoice {order.id}: {payment}"


@app.step
async def ship(parcel: str) -> str:
    await call(f"ship {parcel}")
    return f"track-{parcel}"


async def call(what: str) -> None:
    """Stands for somebody else's service: it takes its time."""
    print(what, flush=True)
    await asyncio.sleep(random.uniform(0.2, 0.5))
