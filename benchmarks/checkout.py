"""The workflow that the end-to-end scenarios run through Outlast's public surface, and the same by hand on `bare`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import uuid_utils

from benchmarks.bare import Bare
from benchmarks.load import STEP
from outlast.app import App
from outlast.authoring.workflow import AsyncWorkflow

VALUE: dict[str, object] = {"payment": "p-184467", "state": "captured", "amount": 1250}


def checkout_app(path: Path) -> tuple[App, AsyncWorkflow[[int], int]]:
    """An app on a file, and its workflow of so many steps one after another."""
    app = App(f"sqlite:///{path}?synchronous=FULL")

    @app.step(name=STEP)
    async def charge(number: int) -> dict[str, object]:
        return VALUE

    @app.workflow(name="checkout")
    async def checkout(steps: int) -> int:
        for number in range(steps):
            await charge(number)
        return steps

    return app, checkout


async def charge_bare(number: int) -> dict[str, object]:
    return VALUE


async def checkout_bare(bare: Bare, steps: int) -> int:
    """The same rows and commits, without an engine: each step's value still goes to JSON and back."""
    execution = await bare.begin(uuid_utils.uuid7().hex)
    for number in range(steps):
        msgspec.json.decode(msgspec.json.encode(await charge_bare(number)))
        await execution.step(STEP, number)
    await execution.complete()
    return steps
