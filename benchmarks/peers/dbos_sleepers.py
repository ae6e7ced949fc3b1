"""DBOS's sleepers, as a process of its own: its arguments are a file, how many sleep, and how many are due in turn.

Runs in `.cache/peers/dbos`; imports nothing of Outlast. A sleeping workflow of DBOS is a coroutine that stays in memory
until its time has come, so all of them are started in the background, and sleep until one moment of the clock.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import time

from dbos import DBOS, DBOSConfig

from benchmarks.holding import holding, percentile

WARM_UP = 200
APART_S = 0.01
STARTS_PER_S = 20
"""So fast are they started in time, on a slow machine: the moment when all wake is chosen by that."""


@DBOS.workflow()
async def sleeper(until_s: float) -> float:
    await DBOS.sleep_async(max(0.0, until_s - time.time()))
    return time.time() - until_s


@DBOS.workflow()
async def awake() -> int:
    return 1


async def started(count: int, until_s: float) -> list:
    return [await DBOS.start_workflow_async(sleeper, until_s) for _ in range(count)]


async def measured(count: int, spread: int) -> dict:
    DBOS.launch()
    # Those of the warm-up sleep on: what a sleeper costs is the difference that the others make.
    due_s = time.time() + 30 + (count + WARM_UP) / STARTS_PER_S
    warm = await started(WARM_UP, due_s)
    before = holding()
    handles = await started(count - WARM_UP, due_s)
    await asyncio.sleep(2)
    after = holding()
    figures = {
        "bytes_each": (after.resident_bytes - before.resident_bytes) / (count - WARM_UP),
        "threads": after.threads,
        "threads_more": after.threads - before.threads,
        "files_more": after.files - before.files,
    }
    assert time.time() < due_s, "they were not all asleep in time"
    ended = await asyncio.gather(*(handle.get_result() for handle in (*warm, *handles)), return_exceptions=True)
    # Thousands that wake at once may be more than its pool of connections lets through in time.
    figures["wake_per_s"] = sum(isinstance(one, float) for one in ended) / (time.time() - due_s)
    figures["failed"] = sum(not isinstance(one, float) for one in ended)
    began_s = time.perf_counter()
    some = min(count, 1_000)
    running = [await DBOS.start_workflow_async(awake) for _ in range(some)]
    await asyncio.gather(*(handle.get_result() for handle in running))
    figures["drain_per_s"] = some / (time.perf_counter() - began_s)
    first_s = time.time() + 5 + spread / STARTS_PER_S
    turns = [await DBOS.start_workflow_async(sleeper, first_s + n * APART_S) for n in range(spread)]
    late_ms = [1_000 * late for late in await asyncio.gather(*(handle.get_result() for handle in turns))]
    return figures | {"late_p50_ms": percentile(late_ms, 50), "late_p99_ms": percentile(late_ms, 99)}


def main(path: str, count: int, spread: int) -> None:
    file = sqlite3.connect(path)
    file.execute("PRAGMA journal_mode = WAL").fetchone()
    file.close()
    DBOS(config=DBOSConfig(name="bench", system_database_url=f"sqlite:///{path}", log_level="ERROR"))
    print(json.dumps(asyncio.run(measured(count, spread))), flush=True)
    os._exit(0)  # its threads would take seconds to end


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
