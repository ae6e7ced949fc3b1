"""Valkey under the conformance suite: one server per test process, emptied for each database.

After each test every key is accounted for: indexes are made anew from the records, and must be those that are there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from outlast.store.port import Clock, Points
from outlast.store.valkey import ValkeyStore
from outlast.testing.valkey_server import ValkeyCluster, ValkeyServer
from tests.conformance.valkey_audit import leaks


@cache
def the_server(what_for: str = "conformance") -> ValkeyServer:
    """One for each kind of test; it ends with this process."""
    return ValkeyServer().start()


@cache
def the_cluster() -> ValkeyCluster:
    return ValkeyCluster().start()


class ValkeyHarness:
    def __init__(self, servers: list[ValkeyServer], url: str) -> None:
        self._servers = servers
        self._url = url

    def new(self, *, clock: Clock, points: Points | None = None) -> ValkeyStore:
        return ValkeyStore(self._url, clock=clock, points=points)

    async def fresh(self) -> None:
        await self._check()
        for server in self._servers:
            server.ask("FLUSHALL", "SYNC")

    async def cleanup(self) -> None:
        await self.fresh()

    async def _check(self) -> None:
        found = [leak for server in self._servers for leak in leaks(server)]
        assert not found, "\n".join(found)


def valkey_url(folder: Path) -> str:
    """A store of its own on this process's server, named after a test's folder. Whatever others left is gone."""
    server = the_server("acceptance")
    server.ask("FLUSHALL", "SYNC")
    return f"{server.url}?prefix={folder.name}"


def cluster_url(folder: Path) -> str:
    """The same on this process's cluster."""
    for server in the_cluster().primaries:
        server.ask("FLUSHALL", "SYNC")
    return f"{the_cluster().url}?prefix={folder.name}"


def check_leaks(url: str) -> None:
    """After a test on a store of `valkey_url` or `cluster_url`."""
    prefix = url.partition("?prefix=")[2]
    servers = the_cluster().primaries if "+cluster" in url else [the_server("acceptance")]
    found = [leak for server in servers for leak in leaks(server, prefix)]
    assert not found, "\n".join(found)
