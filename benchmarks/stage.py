"""The servers that a run needs, as durable as they come, and the systems that are measured on them.

PostgreSQL: `fsync`, `full_page_writes` and `synchronous_commit` on, data on a disk, a new database for every turn.
Valkey: an append-only file, `everysec` or `always`, on a disk, and a new server for every turn: one that was emptied
still rewrites the log of the turn before, and whoever comes next pays for it. Nothing here is tuned for one system: all
of them meet such servers, on the same kind of socket or port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import asyncpg

from benchmarks.fleet import System, ask, peer
from benchmarks.peers.environment import PeerMissing
from benchmarks.peers.restate_server import restate_server
from benchmarks.settings import Settings
from outlast.testing.postgres_server import PostgresServer
from outlast.testing.valkey_server import ValkeyServer, free_ports

ROOM = "/var/tmp"
"""A disk that a server's own user may write to; /tmp may be memory."""
DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "autovacuum": "on"}
ALL = ("carry", "enqueue", "work", "starts", "wakes")
POSTGRES_PEERS = {
    "dbos": ALL,
    "absurd": ALL,
    "procrastinate": ("enqueue", "work", "starts"),
    "pgqueuer": ("enqueue", "work", "starts"),
}
VALKEY_PEERS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("celery", "dramatiq", "arq", "taskiq"), ("enqueue", "work", "starts")
)
PACKAGES = {"absurd": "absurd-sdk", "restate": "restate-sdk"}


class Stage:
    """Systems, and for each turn of one a place that nobody used before."""

    def __init__(self, systems: list[System], place: Callable[[System], AbstractContextManager[str]]) -> None:
        self.systems = systems
        self._place = place

    @contextmanager
    def place(self, system: System) -> Iterator[str]:
        with self._place(system) as url:
            ask(system, "prepare", url)
            yield url

    @contextmanager
    def own(self) -> Iterator[str]:
        """A place for Outlast."""
        [ours] = [system for system in self.systems if system.name == "outlast"]
        with self.place(ours) as url:
            yield url


@contextmanager
def postgres_stage(settings: Settings) -> Iterator[Stage]:
    systems = [
        System(
            name="bare",
            version="-",
            module="benchmarks.bare_postgres",
            verbs=frozenset(("carry", "jittered", "enqueue", "work")),
        ),
        System(name="outlast", version=settings.version, module="benchmarks.ours", verbs=frozenset((*ALL, "jittered"))),
    ]
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer.launch(settings=DURABLE, room=ROOM))
        places: dict[str, str] = {}
        systems += _peers(settings, POSTGRES_PEERS)
        restate = _peers(settings, {"restate": ("carry", "work", "starts", "wakes")})
        if restate:
            try:
                places["restate"] = stack.enter_context(restate_server(ROOM))
                systems += restate
            except PeerMissing as missing:
                print(f"  without restate: {missing}", flush=True)

        @contextmanager
        def place(system: System) -> Iterator[str]:
            if system.name in places:
                yield places[system.name]
                return
            name = server.new_name()
            asyncio.run(_execute(server.url, f"CREATE DATABASE {name}"))
            try:
                yield server.url_of(name)
            finally:
                asyncio.run(_execute(server.url, f"DROP DATABASE {name} WITH (FORCE)"))

        yield Stage(systems, place)


@contextmanager
def valkey_stage(settings: Settings, *, appendfsync: str) -> Iterator[Stage]:
    systems = [
        System(
            name="bare",
            version="-",
            module="benchmarks.bare_valkey",
            verbs=frozenset(("carry", "jittered", "enqueue", "work")),
        ),
        System(name="outlast", version=settings.version, module="benchmarks.ours", verbs=frozenset((*ALL, "jittered"))),
    ]
    systems += _peers(settings, VALKEY_PEERS)
    options = ("--appendonly", "yes", "--appendfsync", appendfsync, "--maxmemory-policy", "noeviction")
    [port] = free_ports(1)

    @contextmanager
    def place(system: System) -> Iterator[str]:
        with ValkeyServer(port=port, options=options, room=ROOM) as server:
            yield f"redis://127.0.0.1:{server.port}/0"

    yield Stage(systems, place)


def _peers(settings: Settings, named: Mapping[str, Iterable[str]]) -> list[System]:
    wanted = {name: verbs for name, verbs in named.items() if settings.wants(name)}
    found = [peer(name, verbs, package=PACKAGES.get(name)) for name, verbs in wanted.items()]
    return [system for system in found if system is not None]


async def _execute(url: str, sql: str) -> None:
    connection: Any = await asyncpg.connect(url)
    await connection.execute(sql)
    await connection.close()
