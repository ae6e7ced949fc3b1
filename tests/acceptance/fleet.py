"""Real processes on one store: starters, workers and reconcilers, and a ledger of effects outside of it.

`main` is called in processes of their own (`tests.forks`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections import Counter
from pathlib import Path

import outlast
from outlast.app import App
from outlast.runtime.attempts.current import attempt_var
from tests.forks import Forked, forked

STEPS = 10
STEP_S = 0.05
"""A step takes so long at most, unless a test asks for other ones."""
LEASE_TTL = "1s"
LONGER_S = 5
"""Than the longest lease that a test asks for."""


def make_app(url: str, ledger: str) -> App:
    app = App(url, lease_ttl=os.environ.get("FLEET_LEASE_TTL", LEASE_TTL))

    @app.step
    async def effect(number: int) -> int:
        await asyncio.sleep(random.random() * float(os.environ.get("FLEET_STEP_S", STEP_S)))
        attempt = attempt_var.get()
        assert attempt is not None
        line = f"{attempt.execution.id} {number} {attempt.execution.epoch} {os.getpid()}\n"
        write(ledger, line)
        return number

    @app.step
    async def long_effect() -> str:
        line = f"long {attempt_var.get().execution.epoch}\n"  # type: ignore[union-attr]
        write(ledger, line)
        await asyncio.sleep(LONGER_S)
        return "done"

    @app.step
    async def deadly() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @app.workflow
    async def ten(number: int) -> int:
        total = 0
        try:
            for step in range(STEPS):
                total += await effect(step)
        except BaseException:
            write(_stopped_in(ledger, os.getpid()), "stopped\n")
            raise
        return total + number

    @app.workflow
    async def longer_than_the_lease() -> str:
        return await long_effect()

    @app.workflow
    async def poison() -> None:
        await deadly()

    @app.step
    async def dies_first(number: int) -> int:
        """It kills its process the first time, and succeeds the second time."""
        if is_first(f"{ledger}-died-{number}"):
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    @app.workflow
    async def dies_at_each_step() -> int:
        return sum([await dies_first(number) for number in range(12)])

    @app.workflow(max_crashes_in_life=7)
    async def poison_with_progress() -> None:
        """It records a step in each attempt, and kills its process with the next one."""
        for number in itertools.count():
            await dies_first(number)

    @app.step
    async def long_step() -> str:
        await asyncio.sleep(1)
        return "done"

    @app.workflow
    async def one_long_step() -> str:
        return await long_step()

    @app.workflow
    async def adds(count: int) -> int:
        """Adds up the numbers that it is sent."""
        total = 0
        for _ in range(count):
            total += await effect(await outlast.receive("number", int))
        return total

    return app


def write(ledger: str, line: str) -> None:
    """One short append: whole lines, also from several processes."""
    with Path(ledger).open("a") as file:
        file.write(line)


def is_first(name: str) -> bool:
    """Whether nobody has asked for this name before."""
    file = Path(name)
    if file.exists():
        return False
    file.touch()
    return True


def _stopped_in(ledger: str, pid: int) -> str:
    return f"{ledger}-stopped-in-{pid}"


def was_stopped_in(ledger: Path, pid: int) -> bool:
    """Whether a process has heard that its code shall stop."""
    return Path(_stopped_in(str(ledger), pid)).exists()


def spawn(role: str, url: str, ledger: Path, **env: str) -> Forked:
    return forked("tests.acceptance.fleet", role, url, str(ledger), env={**os.environ, **env})


def effects(ledger: Path) -> Counter[tuple[str, int, int]]:
    """How often each (execution, step, epoch) took effect."""
    found: Counter[tuple[str, int, int]] = Counter()
    for line in ledger.read_text().splitlines() if ledger.exists() else []:
        execution, step, epoch, _ = line.split()
        found[execution, int(step), int(epoch)] += 1
    return found


def main(role: str, url: str, ledger: str) -> None:
    app = make_app(url, ledger)
    if role == "worker":
        app.run_worker(concurrency=20, drain="5s")
    elif role == "worker-without-reconcilers":
        app.run_worker(concurrency=20, drain="5s", reconcilers=False)
    elif role == "reconcilers":
        app.run_worker(lanes=["nobody-starts-here"])
    else:
        raise SystemExit(f"unknown role {role}")
