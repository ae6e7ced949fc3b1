"""A process of its own that writes to an SQLite file: `python writer_process.py PATH NAME SECONDS [CRASH_POINT NTH]`.

Prints a line when it is ready, begins when it reads one, and prints how many commits it made and its longest wait.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from outlast.store.sqlite import SqliteStore
from outlast.testing.conformance.actors import start_changes, start_fact
from outlast.testing.points import CrashPoints


async def main(path: str, name: str, seconds: float, crash: list[str]) -> None:
    points = CrashPoints() if crash else None
    store = SqliteStore(path, points=points)
    await store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    if points is not None:
        points.kill_at(crash[0], nth=int(crash[1]))
    made, longest_s, end = 0, 0.0, time.monotonic() + seconds
    while (begun := time.monotonic()) < end:
        fact = start_fact(f"{name}-{made}", change_id=f"{name}-{made}", tags={"writer": name})
        committed = await store.commit([start_changes(store, fact)])
        assert committed.verdicts[0].applied
        assert not committed.verdicts[0].again
        made += 1
        longest_s = max(longest_s, time.monotonic() - begun)
        # The clock of the process is its own: what was answered is durable before the next line is printed.
        if crash:
            print(made, flush=True)
    print(json.dumps({"made": made, "longest_s": longest_s}), flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]))
