"""The worker of the wake-up scenario, as a process of its own: its argument is a file."""

from __future__ import annotations

import logging
import sys
import time

import outlast
from outlast import App
from outlast.authoring.workflow import AsyncWorkflow

STEPS = 10


def build(app: App) -> AsyncWorkflow[[str | None], int]:
    @app.step
    async def note(number: int) -> int:
        return number

    @app.workflow
    async def waits(timeout: str | None) -> int:
        """When its code had the event: the clock is read once, because it ends there."""
        for number in range(STEPS):
            await note(number)
        await outlast.receive("go", timeout=timeout)
        return time.time_ns()

    return waits


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    app = App(f"sqlite:///{sys.argv[1]}?synchronous=FULL", resident="60s")
    build(app)
    app.run_worker()
