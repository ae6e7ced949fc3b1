"""Workflows of every shape that the programming model promises to bring through a crash at any point."""

from __future__ import annotations

import asyncio
from typing import Any

from outlast.app import App
from outlast.authoring.retry import Retry


class Declined(Exception):
    pass


def sequence(app: App, ledger: list[str]) -> Any:
    @app.step
    async def double(number: int) -> int:
        ledger.append(f"double {number}")
        return number * 2

    @app.workflow
    async def three(number: int) -> int:
        for _ in range(3):
            number = await double(number)
        return number

    return three


def branches(app: App, ledger: list[str]) -> Any:
    """Five branches of four same-named steps, a TaskGroup inside one of them, all at their own speed."""

    @app.step
    async def work(branch: int, turn: int) -> int:
        await asyncio.sleep((branch * 7 + turn * 3) % 5 / 1_000)
        ledger.append(f"work {branch} {turn}")
        return branch * 10 + turn

    async def branch(number: int) -> list[int]:
        if number == 2:
            async with asyncio.TaskGroup() as group:
                inner = [group.create_task(work(number, turn)) for turn in range(4)]
            return [task.result() for task in inner]
        return [await work(number, turn) for turn in range(4)]

    @app.workflow
    async def fan() -> list[list[int]]:
        return await asyncio.gather(*(branch(number) for number in range(5)))

    return fan


def first_come(app: App, ledger: list[str]) -> Any:
    """What is done next depends on who was first: a replay must see the same order."""

    @app.step
    async def fetch(number: int) -> int:
        await asyncio.sleep([0.004, 0.001, 0.002][number])
        ledger.append(f"fetch {number}")
        return number

    @app.step
    async def save(number: int) -> str:
        ledger.append(f"save {number}")
        return f"saved {number}"

    async def fetched(number: int) -> int:
        return await fetch(number)

    @app.workflow
    async def in_order_of_arrival() -> list[str]:
        saved: list[str] = []
        for next_one in asyncio.as_completed([fetched(number) for number in range(3)]):
            saved.append(await save(await next_one))
        return sorted(saved)

    return in_order_of_arrival


def caught(app: App, ledger: list[str]) -> Any:
    """A failure that the code catches is an outcome like any other."""

    @app.step
    async def charge(card: str) -> str:
        ledger.append(f"charge {card}")
        if card == "bad":
            raise Declined(card)
        return "paid"

    @app.workflow
    async def second_card() -> str:
        try:
            return await charge("bad")
        except Declined as error:
            return f"{error} declined, then {await charge('good')}"

    return second_card


def escaping(app: App, ledger: list[str]) -> Any:
    @app.step
    async def fails() -> None:
        ledger.append("fails")
        raise Declined("always")

    @app.workflow
    async def doomed() -> None:
        await fails()

    return doomed


def retried(app: App, ledger: list[str]) -> Any:
    """The workflow's own retry runs the failed step again, and not the one before it."""
    tries: list[int] = []

    @app.step
    async def once() -> str:
        ledger.append("once")
        return "one"

    @app.step
    async def second_time() -> str:
        tries.append(1)
        ledger.append(f"try {len(tries)}")
        if len(tries) == 1:
            raise Declined("not yet")
        return "two"

    @app.workflow(retry=Retry(max_attempts=5, initial=0, jitter=0))
    async def stubborn() -> str:
        return await once() + await second_time()

    return stubborn


def unwinding(app: App, ledger: list[str]) -> Any:
    """A failure that escapes through `except` and `finally`, each with a step, beside another branch; then a retry."""
    tries: list[int] = []

    @app.step
    async def charge() -> str:
        tries.append(1)
        ledger.append("charge")
        if len(tries) == 1:
            raise Declined("not yet")
        return "paid"

    @app.step
    async def effect(name: str) -> str:
        ledger.append(name)
        return name

    async def pay() -> str:
        try:
            return await charge()
        except Declined:
            await effect("undo")
            raise
        finally:
            await effect("clean")

    @app.workflow(retry=Retry(max_attempts=5, initial=0, jitter=0))
    async def careful() -> list[str]:
        return [await effect("reserve"), *await asyncio.gather(pay(), effect("pack")), await effect("ship")]

    return careful


def group_failing(app: App, ledger: list[str]) -> Any:
    """A failing branch cancels its siblings: what was given up is an outcome too."""

    @app.step
    async def quick() -> None:
        await asyncio.sleep(0.002)
        raise Declined("quick")

    @app.step
    async def slow() -> str:
        await asyncio.sleep(5)
        ledger.append("slow")
        return "slow"

    @app.step
    async def cleanup() -> str:
        ledger.append("cleanup")
        return "clean"

    @app.workflow
    async def group() -> str:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(slow())
                tasks.create_task(quick())
        except* Declined:
            pass
        return await cleanup()

    return group


def plain(app: App, ledger: list[str]) -> Any:
    """A def workflow with def steps."""

    @app.step
    def parse(line: str) -> int:
        ledger.append(f"parse {line}")
        return int(line)

    @app.workflow
    def total(lines: list[str]) -> int:
        return sum(parse(line) for line in lines)

    return total


class Shop:
    """Steps may be methods."""

    def __init__(self, ledger: list[str]) -> None:
        self.ledger = ledger


def methods(app: App, ledger: list[str]) -> Any:
    class Till(Shop):
        @app.step
        async def ring(self, amount: int) -> int:
            self.ledger.append(f"ring {amount}")
            return amount

    till = Till(ledger)

    @app.workflow
    async def day() -> int:
        return await till.ring(1) + await till.ring(2)

    return day


WORKFLOWS = {
    "sequence": (sequence, (5,)),
    "branches": (branches, ()),
    "first_come": (first_come, ()),
    "caught": (caught, ()),
    "escaping": (escaping, ()),
    "retried": (retried, ()),
    "unwinding": (unwinding, ()),
    "group_failing": (group_failing, ()),
    "plain": (plain, (["1", "2", "3"],)),
    "methods": (methods, ()),
}
