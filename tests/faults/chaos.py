"""Four workers on one PostgreSQL, and everything that can happen to them: killed, frozen, the server restarted.

    python -m tests.faults.chaos worker URL LEASE  # a worker, run as its own process
    python -m tests.faults.chaos full              # the whole of it: 2,000 executions of ten transactional steps

Every step writes a row to a ledger in the same commit as its journal, and nothing keeps the ledger from having it
twice: what is counted there is what happened.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
from msgspec import Struct

import outlast
from outlast.app import App
from outlast.errors import StoreError
from outlast.testing.postgres_server import PostgresServer

STEPS = 10
WORKERS = 4
CONCURRENCY = 3
KILL_EVERY_S = 2.0
FROZEN_LEASES = 1.3
MORE = 50


def make_app(url: str, lease_s: float) -> App:
    app = App(url, lease_ttl=f"{lease_s}s")

    @app.transaction
    async def enter(execution: str, step: int) -> int:
        await outlast.connection().execute("INSERT INTO public.ledger VALUES ($1, $2)", execution, step)
        return step

    @app.workflow
    async def ten(execution: str) -> int:
        return sum([await enter(execution, step) for step in range(STEPS)])

    return app


class Plan(Struct, frozen=True, kw_only=True):
    executions: int
    """At least: more follow until everything that is planned has happened to them."""
    lease_s: float
    kills: int
    restarts: int
    restart_every_s: float
    limit_s: float


FULL = Plan(executions=2_000, lease_s=10.0, kills=20, restarts=5, restart_every_s=12.0, limit_s=900)


class Report(Struct):
    lease_s: float
    seconds: float = 0.0
    kills: int = 0
    freezes: int = 0
    restarts: int = 0
    taken_over_s: list[float] = []
    """From the moment at which a worker died or froze to the next attempt at what it held, for each of those."""
    noticed_s: list[float] = []
    """Of these the part until the lease was found to be lost; the rest waited for a worker with room."""
    while_away_s: list[float] = []
    """The same, where the server was away in between."""

    def __str__(self) -> str:
        return (
            f"{self.seconds:.0f} s, {self.kills} kills, {self.freezes} freezes, {self.restarts} server restarts; "
            f"lease {self.lease_s:g} s; takeovers: {shown(self.taken_over_s)}; noticed: {shown(self.noticed_s)}; "
            f"while the server was away: {shown(self.while_away_s)}"
        )


def shown(times_s: list[float]) -> str:
    if not times_s:
        return "none"
    p95 = sorted(times_s)[int(len(times_s) * 0.95)]
    return f"{len(times_s)}, p50 {statistics.median(times_s):.2f} s, p95 {p95:.2f} s, max {max(times_s):.2f} s"


class Chaos:
    def __init__(self, server: PostgresServer, plan: Plan) -> None:
        self._server, self._plan = server, plan
        self._workers: list[subprocess.Popen[bytes]] = []
        self._all: list[subprocess.Popen[bytes]] = []
        self._lost_at: dict[int, float] = {}
        """When a process died, or was frozen, by its pid."""
        self._away: list[tuple[float, float]] = []
        self._frozen: set[int] = set()
        self._handles: list[Any] = []
        self._results: list[int] = []
        self.report = Report(plan.lease_s)

    async def run(self) -> Report:
        """All executions, to the end; raises if they do not get there."""
        url, plan = self._server.url, self._plan
        app = make_app(url, plan.lease_s)
        began = time.monotonic()
        async with app.client():
            connection = await asyncpg.connect(url)
            await connection.execute("CREATE TABLE public.ledger (execution text, step int)")
            await connection.close()
            await self._start(app, plan.executions)
            self._workers = [self._spawn() for _ in range(WORKERS)]
            troubles = [asyncio.create_task(do) for do in (self._kill(), self._freeze(), self._restart())]
            try:
                async with asyncio.timeout(plan.limit_s):
                    await self._work(app)
            finally:
                for trouble in troubles:
                    trouble.cancel()
                await asyncio.gather(*troubles, return_exceptions=True)
                self._end()
        self.report.seconds = time.monotonic() - began
        assert set(self._results) == {sum(range(STEPS))}
        await self._judge()
        return self.report

    async def _start(self, app: App, number: int) -> None:
        ten, first = app.registry.newest("ten"), len(self._results)
        names = [f"e{n}" for n in range(first, first + number)]
        self._handles = await app.start_many(ten.options(id=name).bind(name) for name in names)

    async def _work(self, app: App) -> None:
        """How fast they are done is no reason for less to happen to them."""
        self._results += await _patiently(self._handles)
        while not await self._has_happened():
            with suppress(StoreError):  # away; the same ones are started again
                await self._start(app, MORE)
                self._results += await _patiently(self._handles)

    async def _has_happened(self) -> bool:
        """All that is planned, and one takeover at least that took no longer because the server was away."""
        if self.report.kills < self._plan.kills or self.report.restarts < self._plan.restarts:
            return False
        connection = await asyncpg.connect(self._server.url)
        try:
            await self._take_times(connection)
        finally:
            await connection.close()
        return bool(self.report.noticed_s)

    # ---- what happens ---------------------------------------------------------------------------------------------

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.faults.chaos", "worker", self._server.url, str(self._plan.lease_s)]
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        self._all.append(process)
        return process

    async def _kill(self) -> None:
        while True:
            await asyncio.sleep(KILL_EVERY_S)
            number = random.choice([n for n, one in enumerate(self._workers) if one.pid not in self._frozen])
            victim = self._workers[number]
            self._lost_at[victim.pid] = time.time()
            victim.kill()
            await asyncio.to_thread(victim.wait)
            self._workers[number] = self._spawn()
            self.report.kills += 1

    async def _freeze(self) -> None:
        while True:
            await asyncio.sleep(KILL_EVERY_S * 1.3)
            victim = random.choice(self._workers)
            if victim.poll() is None:
                self._frozen.add(victim.pid)
                self._lost_at[victim.pid] = time.time()
                victim.send_signal(signal.SIGSTOP)
                await asyncio.sleep(self._plan.lease_s * FROZEN_LEASES)
                victim.send_signal(signal.SIGCONT)
                self._frozen.discard(victim.pid)
                self.report.freezes += 1

    async def _restart(self) -> None:
        for number in range(self._plan.restarts):
            await asyncio.sleep(self._plan.restart_every_s)
            began = time.time()
            await asyncio.to_thread(self._server.restart, ("fast", "immediate")[number % 2])
            self._away.append((began, time.time()))
            self.report.restarts += 1

    def _end(self) -> None:
        for process in self._all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    # ---- what came of it ------------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        connection = await asyncpg.connect(self._server.url)
        try:
            number = len(self._results)
            rows = await connection.fetch("SELECT execution, step, count(*) FROM public.ledger GROUP BY 1, 2")
            twice = [tuple(row) for row in rows if row["count"] != 1]
            assert not twice, f"entered more than once: {twice[:5]}"
            assert len(rows) == number * STEPS, "every step is in the ledger"
            ended = await connection.fetchval("SELECT count(*) FROM outlast.execution WHERE status = 'succeeded'")
            assert ended == number
            completions = await connection.fetch("SELECT execution, count(*) FROM outlast.completion GROUP BY 1")
            assert len(completions) == number
            assert {row["count"] for row in completions} == {1}
            journal = await connection.fetchval("SELECT count(*) FROM outlast.journal")
            assert journal == number * STEPS
            await self._take_times(connection)
        finally:
            await connection.close()

    async def _take_times(self, connection: Any) -> None:
        """An attempt that was cut off, and the next one of the same execution."""
        rows = await connection.fetch(
            "SELECT a.worker, a.ended_at / 1000.0 AS noticed, b.started_at / 1000.0 AS taken "
            "FROM outlast.attempt a JOIN outlast.attempt b USING (partition, namespace, execution, generation) "
            "WHERE a.outcome = 'interrupted' AND b.number = a.number + 1"
        )
        report = self.report
        report.taken_over_s, report.noticed_s, report.while_away_s = [], [], []
        for worker, noticed, taken in rows:
            lost = self._lost_at.get(int(worker.rsplit("-", 2)[1]))
            if lost is not None and taken > lost:
                away = any(began < taken and lost < over + self._plan.lease_s for began, over in self._away)
                (report.while_away_s if away else report.taken_over_s).append(float(taken) - lost)
                if not away:
                    report.noticed_s.append(float(noticed) - lost)


async def _patiently(handles: list[Any]) -> list[Any]:
    """Who waits for a result may be told that the server is away, and asks again."""

    async def one(handle: Any) -> Any:
        while True:
            try:
                return await handle.result()
            except StoreError:
                await asyncio.sleep(0.5)

    return await asyncio.gather(*(one(handle) for handle in handles))


def main(role: str, *rest: str) -> None:
    if role == "worker":
        make_app(rest[0], float(rest[1])).run_worker(concurrency=CONCURRENCY)
    else:
        with PostgresServer.launch(settings={"fsync": "on", "full_page_writes": "on"}) as server:
            print(asyncio.run(Chaos(server, FULL).run()))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main(*sys.argv[1:])
