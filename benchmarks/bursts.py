"""Bursts: many facts told at once to one execution, from one process and from four.

The clock runs from the first call to the last acknowledgement. A try is a change that was sent to the store for a fact:
one that the store refused is decided and sent again. The execution waits for the first of what it is told, so that the
burst meets a suspension, a claim and a running holder.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import outlast
from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings, workplace
from benchmarks.sleepers import ROOT
from benchmarks.stage import postgres_stage, valkey_stage
from outlast import App
from outlast.authoring.workflow import AsyncWorkflow
from outlast.client.handle import Handle
from outlast.machine.changes import Changes, Insert
from outlast.model.deferred import Deferred
from outlast.model.event import Event
from outlast.runtime.group_commit import GroupCommit

KINDS = ("events", "deferreds", "cancels")
SIZES, SIZES_QUICK = {200: 0.1, 5_000: 1.5}, {200: 0.1}
PROCESSES = (1, 4)
TURNS_MAX = 3
TRIES_MAX = 2.0
SETTLE_S = 0.3


class Tries:
    """Counts what this process sends to its store for facts that come from outside."""

    def __init__(self) -> None:
        self.number = 0
        self._submit = GroupCommit.commit
        tries, submit = self, self._submit

        def commit(group: GroupCommit, changes: Changes) -> asyncio.Future[Any]:
            tries.number += any(type(w) is Insert and isinstance(w.record, Event | Deferred) for w in changes.writes)
            return submit(group, changes)

        GroupCommit.commit = commit  # type: ignore[method-assign]


def build(app: App) -> AsyncWorkflow[[], None]:
    @app.workflow
    async def hears() -> None:
        """It takes the first event or deferred, and then waits for the end of the turn."""
        await outlast.race(outlast.receive("word", int), outlast.deferred("name-0", int))
        await outlast.receive("end")

    return hears


def telling(handle: Handle[None], kind: str, number: int) -> Awaitable[None]:
    if kind == "events":
        return handle.send("word", number)
    return handle.resolve(f"name-{number}", number) if kind == "deferreds" else handle.cancel(reason="enough")


def measure(settings: Settings, report: Report) -> None:
    sizes = SIZES_QUICK if settings.quick else SIZES
    heading(f"bursts: {', '.join(f'{size:,}' for size in sizes)} at once to one execution, from 1 and from 4 processes")
    with ExitStack() as stack:
        if settings.store == "sqlite":
            url = f"sqlite:///{stack.enter_context(workplace()) / 'outlast.db'}"
        elif settings.store == "postgres":
            url = stack.enter_context(stack.enter_context(postgres_stage(settings)).own())
        else:
            url = stack.enter_context(stack.enter_context(valkey_stage(settings, appendfsync="everysec")).own())
        for kind in KINDS:
            for size, bar_s in sizes.items():
                for processes in PROCESSES:
                    turns = min(settings.repeats, TURNS_MAX)
                    took_s, tries = asyncio.run(_turns(url, kind, size, processes, turns))
                    scene = Scene(
                        system="outlast",
                        version=settings.version,
                        store=settings.store,
                        scenario=f"burst-{kind}-{size}",
                        workers=processes,
                    )
                    report.add(scene, "took_ms", [each * 1_000 for each in took_s], "ms")
                    report.add(scene, "tries", tries, "each")
                    usual_s, worst = median(took_s), max(tries)
                    report.bar(
                        f"{size:,} {kind} from {processes}: {usual_s * 1_000:.0f} ms (at most {bar_s * 1_000:.0f}), "
                        f"{worst:.2f} tries each (at most {TRIES_MAX:g})",
                        met=usual_s <= bar_s and worst <= TRIES_MAX,
                    )


async def _turns(url: str, kind: str, size: int, processes: int, turns: int) -> tuple[list[float], list[float]]:
    app = App(url)
    hears, took_s, tries = build(app), list[float](), list[float]()
    async with app:
        for turn in range(turns):
            handle = await hears.options(id=f"{kind}-{size}-{processes}-{turn}").start()
            while (await handle.info()).status != "suspended":  # noqa: ASYNC110 (nobody announces it)
                await asyncio.sleep(0.01)
            await asyncio.sleep(SETTLE_S)
            took, tried = await _told(url, handle.id, kind, size, processes)
            took_s.append(took)
            tries.append(tried / size)
            await handle.cancel()
    return took_s, tries


async def _told(url: str, target: str, kind: str, size: int, processes: int) -> tuple[float, int]:
    """From the first call to the last acknowledgement, and the tries of all processes."""
    each = size // processes
    tellers = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.bursts", url, target, kind, str(n * each), str((n + 1) * each)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for n in range(processes)
    ]
    try:
        for teller in tellers:
            await _line(teller)
        for teller in tellers:
            assert teller.stdin is not None
            teller.stdin.write(b"go\n")
        told = [json.loads(await _line(teller)) for teller in tellers]
    finally:
        for teller in tellers:
            await teller.wait()
    return max(done for _, done, _ in told) - min(began for began, _, _ in told), sum(tries for _, _, tries in told)


async def _line(teller: asyncio.subprocess.Process) -> bytes:
    assert teller.stdout is not None
    return await teller.stdout.readline()


async def _tell(url: str, target: str, kind: str, numbers: Sequence[int], wait: Callable[[], Any]) -> None:
    app, tries = App(url), Tries()
    hears = build(app)
    async with app.client():
        handle = hears.execution(target)
        await handle.info()
        print("ready", flush=True)
        await asyncio.to_thread(wait)
        began_s = time.monotonic()
        await asyncio.gather(*(telling(handle, kind, number) for number in numbers))
        print(json.dumps([began_s, time.monotonic(), tries.number]), flush=True)


if __name__ == "__main__":
    _url, _target, _kind, _first, _end = sys.argv[1:]
    asyncio.run(_tell(_url, _target, _kind, range(int(_first), int(_end)), sys.stdin.readline))
