"""`python -m benchmarks.costs`: what one execution and one step cost each store, and what that means for more servers.

CPU time and counters, no wall clock: the figures hardly depend on what else the machine does. Each store runs the same
work twice, without steps and with ten; the difference is the steps'. On a cluster of one, two and three primaries the
model of docs/scaling.md is checked: an execution costs the servers the same however many there are, and each bears the
share of its partitions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg

from benchmarks.settings import CACHE
from outlast.app import App, store_for
from outlast.runtime.settings import WorkerSettings
from outlast.store.valkey.keys import Names, slot_of
from outlast.testing.postgres_server import PostgresServer
from outlast.testing.valkey_server import ValkeyCluster, ValkeyServer

EXECUTIONS = int(os.environ.get("OUTLAST_COST_EXECUTIONS", "2000"))
STEPS = 10
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

Counters = dict[str, float]


class Counted:
    """A store that counts what the engine asks of it."""

    def __init__(self, store: Any, counts: Counters) -> None:
        self._store, self._counts = store, counts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("commit", "claim", "renew", "load", "due", "now", "scan"):
            return found

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._counts[f"calls {name}"] = self._counts.get(f"calls {name}", 0) + 1
            if name == "commit":
                self._counts["changes"] = self._counts.get("changes", 0) + len(args[0])
            return found(*args, **kwargs)

        return counted


def make_app(url: str, counts: Counters) -> App:
    app = App(url, store=lambda: Counted(store_for(url), counts))  # type: ignore[arg-type, return-value]

    @app.step
    async def one(number: int) -> int:
        return number

    @app.workflow
    async def without(number: int) -> int:
        return number

    @app.workflow
    async def with_steps(number: int) -> int:
        for step in range(STEPS):
            await one(step)
        return number

    return app


async def work(url: str, workflow: str, server: Callable[[], Counters]) -> Counters:
    """What so many executions cost, each; by counters of the server, of the store's callers, and of this process."""
    counts: Counters = {}
    app = make_app(url, counts)
    await app._open(WorkerSettings(concurrency=200))
    flow = app.registry.newest(workflow)
    warm = await app.start_many(flow.options(id=f"warm-{workflow}-{n}").bind(n) for n in range(50))
    await asyncio.gather(*(handle.result() for handle in warm))
    counts.clear()
    before, began_s = await asyncio.to_thread(server), time.monotonic()
    cpu_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    for start in range(0, EXECUTIONS, 500):
        handles = await app.start_many(
            flow.options(id=f"{workflow}-{n}").bind(n) for n in range(start, min(start + 500, EXECUTIONS))
        )
        await asyncio.gather(*(handle.result() for handle in handles))
    own_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - cpu_s
    took_s = time.monotonic() - began_s
    after = await asyncio.to_thread(server)
    await app.__aexit__(None, None, None)
    costs = {name: (value - before[name]) / EXECUTIONS for name, value in after.items()}
    costs |= {name: value / EXECUTIONS for name, value in counts.items()}
    return costs | {"own CPU µs": own_s * 1e6 / EXECUTIONS, "per second": EXECUTIONS / took_s}


# ---- what servers say ---------------------------------------------------------------------------------------------


def valkey_counters(*servers: ValkeyServer) -> Counters:
    found: Counters = {}
    for number, server in enumerate(servers):
        told = {}
        for section in ("cpu", "stats", "memory", "persistence"):
            lines = server.ask("INFO", section).decode().splitlines()
            told |= dict(line.split(":", 1) for line in lines if ":" in line)
        cpu_us = (float(told["used_cpu_user"]) + float(told["used_cpu_sys"])) * 1e6
        calls = sum(
            int(line.partition("calls=")[2].partition(",")[0])
            for line in server.ask("INFO", "commandstats").decode().splitlines()
            if line.startswith("cmdstat_fcall:")
        )
        for name, value in {
            "functions": calls,
            "commands": int(told["total_commands_processed"]),
            "bytes in": int(told["total_net_input_bytes"]),
            "bytes out": int(told["total_net_output_bytes"]),
            "bytes kept": int(told["used_memory"]),
            "bytes logged": int(told["aof_current_size"]),
            "server CPU µs": cpu_us,
        }.items():
            found[name] = found.get(name, 0) + value
        found[f"CPU µs of server {number}"] = cpu_us
    return found


def sqlite_counters(path: Path) -> Counters:
    size = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
    return {"bytes kept": size}


def postgres_counters(url: str, pids: Callable[[], list[int]]) -> Counters:
    async def asked() -> Counters:
        connection = await asyncpg.connect(url)
        row = await connection.fetchrow(
            "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn AS wal, pg_database_size(current_database()) AS size, "
            "pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS written"
        )
        await connection.close()
        assert row is not None
        return {
            "transactions": float(row["written"]),  # those that write: statistics come seconds too late
            "bytes logged": float(row["wal"]),
            "bytes kept": float(row["size"]),
        }

    cpu = sum(_cpu_us(pid) for pid in pids())
    return asyncio.run(asked()) | {"server CPU µs": cpu}


def _cpu_us(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) * TICK_S * 1e6


def _family(pid: int) -> list[int]:
    """A process and all that it started: for servers that are many processes."""
    parents = {int(p.name): _parent(p) for p in Path("/proc").iterdir() if p.name.isdecimal()}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


# ---- the tables ---------------------------------------------------------------------------------------------------

ROWS = (
    *("per second", "own CPU µs", "server CPU µs", "calls commit", "changes", "calls claim", "calls renew"),
    *("transactions", "functions", "commands", "bytes in", "bytes out", "bytes logged", "bytes kept"),
)


async def both(url: str, server: Callable[[], Counters]) -> tuple[Counters, Counters]:
    """Of an execution without steps, and of a step."""
    bare = await work(url, "without", server)
    ten = await work(url, "with_steps", server)
    steps = {name: (ten.get(name, 0) - bare.get(name, 0)) / STEPS for name in ten}
    steps["per second"] = ten["per second"] * STEPS
    return bare, steps


def table(columns: dict[str, Counters]) -> None:
    print("| | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for row in ROWS:
        if any(row in column for column in columns.values()):
            cells = [_cell(column.get(row)) for column in columns.values()]
            print(f"| {row} | " + " | ".join(cells) + " |")
    print(flush=True)


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


@contextmanager
def room() -> Iterator[Path]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=CACHE) as folder:
        yield Path(folder)


async def stores() -> None:
    bare, steps = {}, {}
    with room() as folder:
        path = folder / "costs.db"
        bare["SQLite"], steps["SQLite"] = await both(f"sqlite:///{path}", lambda: sqlite_counters(path))
    server = PostgresServer.launch()
    try:
        assert server.folder is not None
        postmaster = int(next(server.folder.rglob("postmaster.pid")).read_text().splitlines()[0])
        bare["PostgreSQL"], steps["PostgreSQL"] = await both(
            server.url, lambda: postgres_counters(server.url, lambda: _family(postmaster))
        )
    finally:
        server.close()
    for name, sync in (("Valkey, everysec", "everysec"), ("Valkey, always", "always")):
        with room() as folder:
            options = ("--appendonly", "yes", "--appendfsync", sync)
            with ValkeyServer(options=options, room=str(folder)) as one:
                bare[name], steps[name] = await both(one.url, lambda: valkey_counters(one))
    print(f"\n## An execution without steps ({EXECUTIONS:,} of them)\n")
    table(bare)
    print("## A step\n")
    table(steps)


async def primaries() -> None:
    """One, two and three of them, without replicas: what an execution with ten steps costs, and who bears it."""
    print("## Primaries\n")
    print(
        "| primaries | server CPU µs per execution | own CPU µs | per second | CPU by server | partitions by server |"
    )
    print("|---|---|---|---|---|---|")
    for number in (1, 2, 3):
        with ValkeyCluster(primaries=number, replicas=0) as cluster:
            costs = await work(cluster.url, "with_steps", lambda: valkey_counters(*cluster.servers))
        shares = [costs[f"CPU µs of server {n}"] / costs["server CPU µs"] for n in range(number)]
        owned = [0] * number
        for partition in range(16):
            owned[min(slot_of(Names("outlast").clock(partition)) * number // 16_384, number - 1)] += 1
        print(
            f"| {number} | {costs['server CPU µs']:,.0f} | {costs['own CPU µs']:,.0f} | {costs['per second']:,.0f} | "
            f"{', '.join(f'{share:.0%}' for share in shares)} | {', '.join(f'{n}' for n in owned)} |",
            flush=True,
        )


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)  # a blocked loop is the machine's affair here
    asyncio.run(stores())
    asyncio.run(primaries())
