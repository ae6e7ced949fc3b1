"""DBOS: from `send` by a client in one process to the code that receives it in another. Arguments: a file, rounds.

This process is the sender; it starts the receiver, which runs this file with a third argument. A receiving workflow
of DBOS stays in memory, so there is nothing evicted to measure.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from dbos import DBOS, DBOSClient, DBOSConfig, SetWorkflowID

from benchmarks.holding import percentile

STEPS = 10


@DBOS.step()
def note(number: int) -> int:
    return number


@DBOS.workflow()
def waits() -> int:
    for number in range(STEPS):
        note(number)
    DBOS.recv("go", timeout_seconds=60)
    return time.time_ns()


def receive(path: str, rounds: int) -> None:
    DBOS(config=DBOSConfig(name="bench", system_database_url=f"sqlite:///{path}", log_level="ERROR"))
    DBOS.launch()
    for number in range(rounds):
        with SetWorkflowID(f"w{number}"):
            handle = DBOS.start_workflow(waits)
        print("waiting", flush=True)
        print(handle.get_result(), flush=True)
    os._exit(0)


def main(path: str, rounds: int) -> None:
    file = sqlite3.connect(path)
    file.execute("PRAGMA journal_mode = WAL").fetchone()
    file.close()
    receiver = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers.dbos_wakeups", path, str(rounds), "receive"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert receiver.stdout is not None
    client, late_ms = None, []
    for number in range(rounds):
        assert receiver.stdout.readline().strip() == "waiting"
        client = client or DBOSClient(system_database_url=f"sqlite:///{path}")
        time.sleep(1)  # by then it receives
        sent_ns = time.time_ns()
        client.send(f"w{number}", "now", "go")
        late_ms.append((int(receiver.stdout.readline()) - sent_ns) / 1_000_000)
    print(json.dumps({"p50_ms": percentile(late_ms, 50), "p99_ms": percentile(late_ms, 99)}), flush=True)
    receiver.kill()
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        receive(sys.argv[1], int(sys.argv[2]))
    else:
        main(sys.argv[1], int(sys.argv[2]))
