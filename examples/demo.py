"""`make demo`: orders on one SQLite file, two worker processes, one of them killed in the middle.

The program that it runs is `orders.py`; this file only starts processes, kills one, and tells what happened.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples.orders import Order, Receipt, app, checkout
from outlast import Handle
from outlast.config import Config

FOLDER = Path(".cache/demo")
URL = f"sqlite:///{FOLDER}/orders.db"
STEPS = ("reserve", "charge", "pack", "bill", "ship")
ITEMS = ("tea", "coffee", "honey", "cocoa", "spices", "sugar")
VICTIM, SURVIVOR = "ann", "ben"
COLOURS = {VICTIM: "magenta", SURVIVOR: "cyan"}
PATIENCE_S = 45.0

console = Console(highlight=False)
began_s = time.monotonic()


def say(who: str, what: str, style: str = "") -> None:
    """One line of the log, with the time since the beginning."""
    line = Text(f"{time.monotonic() - began_s:6.2f} s  ", style="dim")
    line.append(f"{who:<6}", style=COLOURS.get(who, "bold")).append(what, style=style)
    console.print(line)


# ---- processes ----------------------------------------------------------------------------------------------------


@dataclass
class Worker:
    """`outlast worker examples.orders:app`, in a process of its own. Its steps print what they do."""

    name: str
    process: asyncio.subprocess.Process
    calls: list[tuple[str, str]] = field(default_factory=list)
    """(step, order), as they began."""
    in_the_middle: asyncio.Event = field(default_factory=asyncio.Event)
    """An order of its own is half done: some steps are recorded, some are running."""

    @staticmethod
    async def spawn(name: str) -> Worker:
        command = (sys.executable, "-m", "outlast", "worker", "examples.orders:app", "--concurrency", "3")
        with (FOLDER / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, "--url", URL, stdout=asyncio.subprocess.PIPE, stderr=log, env=os.environ | SETTINGS
            )
        say(name, f"worker process {process.pid}", "dim")
        return Worker(name, process)

    async def listen(self, other: Worker) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            step, order = line.decode().split()
            if (step, order) in self.calls:
                say(self.name, f"{order}  {step:<9}again: the gateway was down", "yellow")
            elif (step, order) in other.calls:
                say(self.name, f"{order}  {step:<9}again: cut short in {other.name}", "bold")
            else:
                say(self.name, f"{order}  {step}")
            self.calls.append((step, order))
            if step == "bill":
                self.in_the_middle.set()


SETTINGS = {"OUTLAST_LEASE_TTL": "1500ms", "PYTHONUNBUFFERED": "1"}
"""A short lease, so that the demo need not wait for long until what a dead worker held is free."""


async def run_orders() -> tuple[list[Handle[Receipt]], list[Worker]]:
    workers = [await Worker.spawn(name) for name in (VICTIM, SURVIVOR)]
    victim, survivor = workers
    listening = [asyncio.create_task(one.listen(other)) for one, other in ((victim, survivor), (survivor, victim))]
    try:
        async with asyncio.timeout(PATIENCE_S):
            orders = [Order(f"order-{n}", item, n * 450) for n, item in enumerate(ITEMS, 1)]
            handles = await app.start_many(checkout.options(id=order.id).bind(order) for order in orders)
            say("you", f"started {len(handles)} orders of {len(STEPS)} steps")
            await victim.in_the_middle.wait()
            victim.process.kill()
            say("you", f"kill -9 {victim.process.pid}: {victim.name} is dead, in the middle of its work", "bold red")
            say("", f"{survivor.name} goes on, and takes over when {victim.name}'s lease runs out …", "dim")
            await asyncio.gather(*(handle.result() for handle in handles))
            say("you", "have all receipts")
            survivor.process.terminate()
            say(survivor.name, f"drained and stopped, exit code {await survivor.process.wait()}", "dim")
    finally:
        for worker in workers:
            if worker.process.returncode is None:
                worker.process.kill()
            await worker.process.wait()
        await asyncio.gather(*listening)
    return handles, workers


# ---- the story ----------------------------------------------------------------------------------------------------


async def tell(handles: list[Handle[Receipt]], workers: list[Worker]) -> bool:
    """Who ran what, how often, and what was replayed. False if a recorded step ran again."""
    names = {str(worker.process.pid): worker.name for worker in workers}
    runs = {worker.name: Counter(worker.calls) for worker in workers}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", *STEPS, "attempts"):
        table.add_column(title)
    recorded = replayed = interrupted = redone = 0
    for handle in handles:
        attempts = await handle.attempts()
        holder = {attempt.epoch: names[attempt.worker.split("-")[-2]] for attempt in attempts}
        entries = {entry.name: entry for entry in await handle.journal() if entry.op == "step"}
        cells: list[Text] = []
        for step in STEPS:
            entry, call = entries[step], (step, handle.id)
            recorder = holder[entry.epoch]
            cell = Text()
            before = [name for epoch, name in holder.items() if epoch < entry.epoch and runs[name][call]]
            for name in before:
                cell.append(name, style=f"{COLOURS[name]} strike").append(" → ", style="dim")
            cell.append(recorder, style=COLOURS[recorder])
            cell.append(f" ×{entry.tries}" if entry.tries > 1 else "", style="yellow")
            after = [name for epoch, name in holder.items() if epoch > entry.epoch]
            cell.append(" ✓" if after else "", style="green")
            cells.append(cell)
            recorded += 1
            replayed += bool(after)
            interrupted += bool(before)
            redone += sum(runs[name][call] for name in after if name != recorder)
        table.add_row(Text(handle.id, style="bold"), *cells, str(len(attempts)))
    console.print()
    console.print(table)
    console.print()
    cut_short = Text.assemble((VICTIM, f"{COLOURS[VICTIM]} strike"), (" → ", "dim"), (SURVIVOR, COLOURS[SURVIVOR]))
    legend = Table.grid(padding=(0, 2))
    legend.add_row(Text("✓", style="green"), f"recorded by {VICTIM}: {SURVIVOR} replayed it, and did not run it again")
    legend.add_row(cut_short, "not recorded yet when the kill came: it ran again")
    legend.add_row(Text("×2", style="yellow"), "the payment gateway was down: tried twice")
    console.print(legend)
    verdict = "none ran again" if not redone else f"{redone} RAN AGAIN, which is a bug"
    console.print(
        f"\n[bold]{recorded} steps recorded, {replayed} replayed after the kill: {verdict}.[/]"
        f" {interrupted} were cut short.",
        style="green" if not redone else "red",
    )
    return redone == 0


def what_next(order: str) -> None:
    console.print("\n[bold]Try next[/], in this folder")
    for command, why in (
        (f"export OUTLAST_URL={URL}", "or --url with each command"),
        (".venv/bin/outlast ls", "all orders"),
        (f".venv/bin/outlast show {order}", "what happened to one, and when"),
        (".venv/bin/outlast worker examples.orders:app", "a worker: start several, kill some"),
        (".venv/bin/outlast --help", "and start, cancel, retry, hold, doctor, …"),
    ):
        console.print(Text.assemble(f"  {command:<54}", (why, "dim")), soft_wrap=True)
    console.print("  The whole program is a page: [bold]examples/orders.py[/]")


async def main() -> int:
    console.print("[bold]Outlast[/]: orders on one SQLite file, two worker processes, one kill -9")
    console.print(f"store {URL}\n", style="dim")
    async with app.client():
        handles, workers = await run_orders()
        well = await tell(handles, workers)
    what_next(next(order for step, order in workers[0].calls if step == "bill"))
    return 0 if well else 1


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    app.config = Config.load(os.environ, url=URL)
    sys.exit(asyncio.run(main()))
