"""A bank: one execution per account, which receives its entries one at a time. No locks, no table, no lost update.

    outlast worker examples.accounts:app      # in one terminal, or in ten; kill them as you like
    python -m examples.accounts               # moves money between a hundred accounts, and counts it in the end

An account is a serialized object: its state is a local variable, its id is its key, its events are its calls. A
transfer tells two accounts, each exactly once, whatever crashes in between.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from dataclasses import dataclass

import outlast
from outlast import App

app = App()  # where $OUTLAST_URL says, else sqlite:///outlast.db

ENTRIES = 20
"""So many entries an account takes before it goes on as new: its journal stays short, however long it lives."""


@dataclass
class Entry:
    """`receipt` is whom to tell that it was taken: an execution, and which of its deferreds."""

    cents: int
    receipt: tuple[str, str] | None = None
    closes: bool = False


@app.workflow
async def account(cents: int = 0) -> int:
    for _ in range(ENTRIES):
        entry = await outlast.receive("entry", Entry)
        cents += entry.cents
        if entry.receipt is not None:
            execution_id, name = entry.receipt
            await app.execution(execution_id).resolve(name, cents)
        if entry.closes:
            return cents
    return outlast.continue_as_new(cents)


@app.workflow
async def transfer(name: str, source: str, target: str, cents: int) -> None:
    """Both are told, or will be: that is decided in the commits of these two lines. It is done when both have it."""
    await account.options(id=source, detached=True, send={"entry": Entry(-cents, (name, "taken"))}).start()
    await account.options(id=target, detached=True, send={"entry": Entry(cents, (name, "given"))}).start()
    await outlast.deferred("taken", int)
    await outlast.deferred("given", int)


async def move_money(accounts: int, transfers: int, *, bank: str = "", seed: int = 0) -> None:
    """Open accounts with 100.00 each, and start transfers between them at random."""
    chance = random.Random(seed)
    names = [f"{bank}account-{number}" for number in range(accounts)]
    for name in names:
        await account.options(id=name, send={"entry": Entry(10_000)}).start()
    labels = [f"{bank}transfer-{number}" for number in range(transfers)]
    moves = [(label, chance.sample(names, 2), chance.randrange(5_000)) for label in labels]
    await app.start_many(
        transfer.options(id=name).bind(name, source, target, cents) for name, (source, target), cents in moves
    )


async def count_money(accounts: int, transfers: int, *, bank: str = "") -> int:
    """Wait for the transfers, close the accounts, and count what is in them."""
    for number in range(transfers):
        await transfer.execution(f"{bank}transfer-{number}").result()
    total = 0
    for number in range(accounts):
        handle = account.execution(f"{bank}account-{number}")
        await handle.send("entry", Entry(0, closes=True))
        total += await handle.result()
    return total


async def main(accounts: int = 100, transfers: int = 300) -> None:
    bank = f"bank-{secrets.token_hex(3)}-"  # another one each time: in the end its accounts are closed
    async with app:
        await move_money(accounts, transfers, bank=bank)
        cents = await count_money(accounts, transfers, bank=bank)
        print(f"{cents / 100:,.2f} in {accounts} accounts, after {transfers} transfers")


if __name__ == "__main__":
    asyncio.run(main())
