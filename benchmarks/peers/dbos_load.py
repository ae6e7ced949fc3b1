"""DBOS Transact on SQLite, as a process of its own: its arguments are a file, steps, concurrency and seconds.

Runs in `.cache/peers/dbos`; imports nothing of Outlast; prints its figures as JSON. The load is Outlast's: an
`async def` workflow that awaits `async def` steps, called directly, so many at a time, as its documentation shows it.
The file is durable in the same sense (`synchronous=FULL`, SQLite's default, which DBOS leaves alone) and is made a WAL
file first. DBOS itself does not ask for that, and is two to three times as fast with it. (Measured too, and no better:
`def` workflows in threads, and `start_workflow_async` with `get_result`, which polls.)
"""

# pyright: basic, reportMissingImports=false
# dbos is installed in the environment that runs this file, not in the one that checks it.

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys

from dbos import DBOS, DBOSConfig

from benchmarks.closed_loop import carry

VALUE = {"payment": "p-184467", "state": "captured", "amount": 1250}


@DBOS.step()
async def charge(number: int) -> dict:
    return VALUE


@DBOS.workflow()
async def checkout(steps: int) -> int:
    for number in range(steps):
        await charge(number)
    return steps


def main(path: str, steps: int, concurrency: int, seconds: float) -> None:
    file = sqlite3.connect(path)
    [journal_mode] = file.execute("PRAGMA journal_mode = WAL").fetchone()
    [synchronous] = file.execute("PRAGMA synchronous").fetchone()
    assert (journal_mode, synchronous) == ("wal", 2), "not as durable as it should be"
    file.close()
    config = DBOSConfig(name="bench", system_database_url=f"sqlite:///{path}", log_level="ERROR")
    DBOS(config=config)
    DBOS.launch()
    figures = asyncio.run(
        carry(lambda: checkout(steps), steps=steps, concurrency=concurrency, seconds=seconds, warm_up_s=0.01)
    )
    print(json.dumps(figures), flush=True)
    os._exit(0)  # its threads would take seconds to end


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
