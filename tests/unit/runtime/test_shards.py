"""Group commit on several servers: one that is away holds up only its own changes, and partitions keep their order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from outlast.errors import StoreUnavailable
from outlast.machine.changes import Changes
from outlast.runtime.group_commit import GroupCommit
from outlast.store.port import Capabilities, Committed, Sharded, Verdict


class Servers:
    """As much of a sharded store as a group commit sees: each server answers when it is let."""

    capabilities = Capabilities(native_doorbell=True, exact_order=False, apart=True)

    def __init__(self) -> None:
        self.homes = {0: "a", 1: "a", 2: "b"}
        self.away: set[str] = set()
        self.gates: dict[str, asyncio.Event] = {}
        self.batches: list[list[str]] = []
        self.done: list[str] = []

    def shard(self, partition: int) -> str:
        return self.homes[partition]

    async def commit(self, batch: Sequence[Changes]) -> Committed:
        self.batches.append([changes.id for changes in batch])
        servers = {self.homes[changes.partition] for changes in batch}
        for server in servers:
            if server in self.gates:
                await self.gates[server].wait()
            if server in self.away:
                raise StoreUnavailable(server)
        self.done += [changes.id for changes in batch]
        return Committed(1, [Verdict(True) for _ in batch])


def change(name: str, partition: int) -> Changes:
    return Changes(id=name, partition=partition, anchors=())


@pytest.fixture
def servers() -> Servers:
    return Servers()


def grouped(servers: Any, **options: Any) -> GroupCommit:
    return GroupCommit(servers, **options)


async def test_what_lives_on_one_server_shares_a_commit_and_waits_for_no_other(servers: Servers):
    assert isinstance(servers, Sharded)
    group = grouped(servers)
    servers.gates["a"] = asyncio.Event()
    slow = [group.commit(change(name, partition)) for name, partition in (("a1", 0), ("a2", 1))]
    quick = [group.commit(change(f"b{n}", 2)) for n in range(3)]
    await asyncio.wait_for(asyncio.gather(*quick), 20)
    assert not any(verdict.done() for verdict in slow)
    servers.gates["a"].set()
    await asyncio.gather(*slow)
    assert sorted(servers.batches) == [["a1", "a2"], ["b0", "b1", "b2"]]
    await group.close()


async def test_a_server_that_is_away_fails_its_own_changes_alone(servers: Servers):
    async def at_once(_: float, /) -> None:
        await asyncio.sleep(0)

    group = grouped(servers, patience_s=0.1, pause=at_once)
    servers.away.add("a")
    outcomes = await asyncio.gather(
        *(group.commit(change(name, p)) for name, p in (("a1", 0), ("b1", 2))), return_exceptions=True
    )
    assert isinstance(outcomes[0], StoreUnavailable)
    assert isinstance(outcomes[1], Verdict)
    await group.close()


async def test_a_partition_that_moves_keeps_its_order(servers: Servers):
    group = grouped(servers)
    servers.gates["a"] = asyncio.Event()
    first = group.commit(change("first", 0))
    await asyncio.sleep(0)
    servers.homes[0] = "b"
    second = group.commit(change("second", 0))
    other = group.commit(change("other", 2))
    await asyncio.wait_for(other, 20)
    assert not second.done(), "it waits for the one before it"
    servers.gates["a"].set()
    await asyncio.gather(first, second)
    assert servers.done == ["other", "first", "second"]
    third = group.commit(change("third", 0))
    servers.gates["a"] = asyncio.Event()
    assert (await asyncio.wait_for(third, 20)).applied, "nothing of it was under way: it goes with its new server"
    await group.close()


async def test_a_close_waits_for_all_servers(servers: Servers):
    group = grouped(servers)
    servers.gates["a"] = asyncio.Event()
    waiting = [group.commit(change(name, p)) for name, p in (("a1", 0), ("b1", 2))]
    closing = asyncio.ensure_future(group.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    servers.gates["a"].set()
    await closing
    assert all(verdict.done() for verdict in waiting)
