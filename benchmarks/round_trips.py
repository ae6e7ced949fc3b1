"""Round trips to the server per step and per execution, of a lone execution: counted by a proxy that all bytes pass.

A round trip begins when a client speaks after its server did (or first); what is sent in one go, and what is sent
before an answer came, is one. What a system does in the background is counted while it is idle, and taken off.

A step is what an execution of many steps takes more than one of few: what executions do once each, such as to ring
when they end, is the same in both. How often they do it is not: who rings at most so often rings less for short ones.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import parse_qs, urlsplit

from benchmarks.fleet import Part, System, in_turns
from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings
from benchmarks.stage import Stage

EXECUTIONS, FEW, MANY = 20, 10, 30
IDLE_S = 1.0
CHUNK = 65_536


class Proxy:
    """Passes everything on, and counts. It listens on a port of the loopback."""

    def __init__(self, host: str, port: int) -> None:
        """`host` is a name, or the path of a socket if it begins with a slash."""
        self._host, self._port = host, port
        self._loop = asyncio.new_event_loop()
        self._writers: list[asyncio.StreamWriter] = []
        self._passing: set[asyncio.Task[None]] = set()
        self.trips = 0
        self.port = 0
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @contextmanager
    def listening(self) -> Iterator[Proxy]:
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._pass, "127.0.0.1", 0), self._loop).result()
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._let_go(server), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _let_go(self, server: asyncio.Server) -> None:
        server.close()
        for writer in self._writers:
            writer.close()
        if self._passing:
            await asyncio.wait(self._passing)
        for writer in self._writers:
            with suppress(ConnectionError):
                await writer.wait_closed()
        self._writers.clear()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passing = asyncio.current_task()
        assert passing is not None
        self._passing.add(passing)
        if self._host.startswith("/"):
            far_reader, far_writer = await asyncio.open_unix_connection(self._host)
        else:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self._writers += (writer, far_writer)
        answered = True

        async def outward() -> None:
            nonlocal answered
            with suppress(ConnectionError):
                while data := await reader.read(CHUNK):
                    self.trips += answered
                    answered = False
                    far_writer.write(data)
            far_writer.close()

        async def homeward() -> None:
            nonlocal answered
            with suppress(ConnectionError):
                while data := await far_reader.read(CHUNK):
                    answered = True
                    writer.write(data)
            writer.close()

        await asyncio.gather(outward(), homeward())


def measure_round_trips(settings: Settings, report: Report, stage: Stage) -> dict[str, list[tuple[float, float]]]:
    heading(f"round trips: {EXECUTIONS} executions, one after another, of {MANY} steps, of {FEW}, and of none")

    def turn(system: System) -> tuple[float, float]:
        with stage.place(system) as url:
            none, few, many = (_count(system, url, steps) for steps in (0, FEW, MANY))
            return (many - few) / (MANY - FEW), none

    turns = in_turns(
        [system for system in stage.systems if system.name != "restate"], min(settings.repeats, 3), turn, verb="carry"
    )
    versions = {system.name: system.version for system in stage.systems}
    for name, its in turns.items():
        scene = Scene(system=name, version=versions[name], store=settings.store, scenario="round-trips", steps=MANY)
        report.add(scene, "trips_per_step", [step for step, _ in its], "trips")
        report.add(scene, "trips_per_execution", [execution for _, execution in its], "trips")
    return turns


def _count(system: System, url: str, steps: int) -> float:
    """Round trips of an execution."""
    with _proxied(url) as (proxy, its_url), Part(system, "count", its_url, steps, EXECUTIONS) as part:
        part.until("ready")
        idle = proxy.trips
        time.sleep(IDLE_S)
        background_per_s = (proxy.trips - idle) / IDLE_S
        before, began = proxy.trips, time.perf_counter()
        part.tell()
        part.until("done")
        took_s = time.perf_counter() - began
        return (proxy.trips - before - background_per_s * took_s) / EXECUTIONS


@contextmanager
def _proxied(url: str) -> Iterator[tuple[Proxy, str]]:
    parts = urlsplit(url)
    if parts.scheme == "postgresql":
        [folder] = parse_qs(parts.query)["host"]
        with Proxy(f"{folder}/.s.PGSQL.5432", 0).listening() as proxy:
            yield proxy, f"postgresql://postgres@127.0.0.1:{proxy.port}{parts.path}?sslmode=disable"
    else:
        assert parts.hostname is not None
        with Proxy(parts.hostname, parts.port or 6379).listening() as proxy:
            yield proxy, f"redis://127.0.0.1:{proxy.port}{parts.path}"
