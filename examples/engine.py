"""The engine at work: two worker processes on one SQLite file, one of them killed in the middle.

Run it with `make demo`. The programming model (`@app.workflow`, `@app.step`) comes on top of what is shown here; this
example speaks to the engine itself: start an execution, claim it, record its steps, complete it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from outlast.machine import facts
from outlast.model.attempt import Attempt
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.record import Record
from outlast.reconcilers import ROWS, Reconcilers
from outlast.runtime.engine import Engine
from outlast.store.port import ClaimRequest
from outlast.store.sqlite import SqliteStore

NAMESPACE = "demo"
ORDERS = 6
STEPS = ("reserve", "charge", "pack", "ship")
LEASE_TTL_MS = 1_000


# ---- a worker process ---------------------------------------------------------------------------------------------


async def work(path: str, worker: str) -> None:
    """Claim, run what is not in the journal yet, complete; repair what others left; stop when all is done."""
    store = SqliteStore(path)
    await store.open()
    engine = Engine(store)
    reconcilers = Reconcilers(engine, ROWS)
    reconcilers.start()
    renewing = asyncio.create_task(renew(store, worker))
    running: set[asyncio.Task[None]] = set()
    while True:
        request = ClaimRequest(
            namespace=NAMESPACE,
            lanes=("orders",),
            serves=frozenset({("checkout", "1")}),
            worker=worker,
            claim_id=engine.entropy.new_id(),
            limit=2,
            lease_ttl_ms=LEASE_TTL_MS,
        )
        for claimed in (await store.claim(request)).executions:
            running.add(asyncio.create_task(run(engine, claimed.execution)))
        await asyncio.sleep(0.05)
        running = {task for task in running if not task.done()}
        if not running and await all_done(store):
            break
    renewing.cancel()
    await reconcilers.stop()
    await engine.close()
    await store.close()


async def renew(store: SqliteStore, worker: str) -> None:
    while True:
        await store.renew(worker, lease_ttl_ms=LEASE_TTL_MS)
        await asyncio.sleep(LEASE_TTL_MS / 3_000)


async def run(engine: Engine, held: Execution) -> None:
    """What the worker of the programming model will do for an ordinary function."""
    journal = await engine.store.scan(JournalEntry.KIND, (held.namespace, held.id))
    recorded = {entry.name for entry in journal if isinstance(entry, JournalEntry)}
    for name in STEPS:
        if name in recorded:
            continue  # replayed, not run again
        await asyncio.sleep(0.25)  # the step's own work
        step = facts.StepRecorded(
            change_id=engine.entropy.new_id(),
            epoch=held.epoch,
            scope="",
            name=name,
            occurrence=1,
            op="step",
            outcome="succeeded",
            value=b'"ok"',
        )
        if not (await engine.tell(held.namespace, held.id, step, seen=held)).applied:
            return  # the lease is lost: another worker has it
    complete = facts.Complete(change_id=engine.entropy.new_id(), epoch=held.epoch, output=b'"delivered"')
    await engine.tell(held.namespace, held.id, complete, seen=held)


async def all_done(store: SqliteStore) -> bool:
    executions = await store.scan(Execution.KIND, (NAMESPACE,))
    return all(execution.status.terminal for execution in executions if isinstance(execution, Execution))


# ---- the demo -----------------------------------------------------------------------------------------------------


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="outlast-demo-") as folder:
        path = str(Path(folder) / "demo.db")
        store = SqliteStore(path)
        await store.migrate()
        await store.open()
        engine = Engine(store)
        print(f"store    {store.url}")
        for number in range(1, ORDERS + 1):
            await start(engine, f"order-{number}")
        print(f"started  {ORDERS} executions of {len(STEPS)} steps")

        first, second = spawn(path, "alice"), spawn(path, "bob")
        try:
            await asyncio.sleep(1.2)
            first.send_signal(signal.SIGKILL)
            killed_at = time.monotonic()
            print(f"killed   worker alice (pid {first.pid}) with SIGKILL, in the middle of its steps")
            code = await asyncio.to_thread(second.wait, 40)
            print(f"finished worker bob (pid {second.pid}), {time.monotonic() - killed_at:.1f} s later, exit {code}\n")
        finally:
            for process in (first, second):
                if process.poll() is None:
                    process.kill()
        succeeded = await timeline(store)
        await engine.close()
        await store.close()
    print("\nEvery recorded step ran once; what the killed worker left was taken over when its lease ran out.")
    print("Try next: `make test`, `make bench QUICK=1`, and read docs/architecture.md.")
    return 0 if succeeded == ORDERS and code == 0 else 1


async def start(engine: Engine, execution_id: str) -> None:
    fact = facts.Start(
        change_id=engine.entropy.new_id(),
        namespace=NAMESPACE,
        id=execution_id,
        workflow="checkout",
        version="1",
        lane="orders",
        input=b"{}",
        input_digest="demo",
    )
    assert (await engine.tell(NAMESPACE, execution_id, fact)).applied


def spawn(path: str, worker: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, path, worker], env=os.environ.copy())


async def timeline(store: SqliteStore) -> int:
    """What ran, where, how often."""
    succeeded = 0
    for number in range(1, ORDERS + 1):
        owner = (NAMESPACE, f"order-{number}")
        [execution] = await store.scan(Execution.KIND, owner)
        assert isinstance(execution, Execution)
        succeeded += execution.status == "succeeded"
        print(f"{execution.id}  {execution.status}")
        for record in await store.scan(Attempt.KIND, owner):
            print(f"    {describe(record)}")
        by_epoch: dict[int, list[str]] = {}
        entries = [entry for entry in await store.scan(JournalEntry.KIND, owner) if isinstance(entry, JournalEntry)]
        for entry in sorted(entries, key=lambda entry: STEPS.index(entry.name)):
            by_epoch.setdefault(entry.epoch, []).append(entry.name)
        for epoch, names in sorted(by_epoch.items()):
            print(f"    steps recorded at epoch {epoch}: {', '.join(names)}")
    return succeeded


def describe(record: Record) -> str:
    assert isinstance(record, Attempt)
    return f"attempt {record.number} by {record.worker}: {record.outcome}"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(work(sys.argv[1], sys.argv[2]))
    else:
        sys.exit(asyncio.run(main()))
