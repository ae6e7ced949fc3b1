"""Stores of every kind to copy from and to, each empty, and an app with something of everything."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg

import outlast
from outlast.app import App, store_for
from outlast.machine.changes import Insert
from outlast.model.completion import Completion
from outlast.model.kinds import KINDS
from outlast.model.record import Key, Record
from outlast.model.status import Status
from outlast.store.port import Store
from outlast.testing.conformance.actors import NAMESPACE, changing, commit_one
from tests import postgres
from tests.conformance.valkey_audit import leaks
from tests.conformance.valkey_harness import the_cluster, the_server

LEASE_TTL = "10m"
"""However slow the machine is, nothing of a living process is taken over, and done again."""


async def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder}/{uuid4().hex}.db"


async def postgres_url(folder: Path) -> str:
    """A database of its own: two are open at once."""
    name = f"copy_{uuid4().hex[:12]}"
    connection = await asyncpg.connect(postgres.server().url)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return postgres.server().url_of(name)


async def valkey_url(folder: Path) -> str:
    return f"{the_server('copying').url}?prefix={uuid4().hex}"


async def few_partitions_url(folder: Path) -> str:
    return f"{the_server('copying').url}?prefix={uuid4().hex}&partitions=3"


async def cluster_url(folder: Path) -> str:
    return f"{the_cluster().url}?prefix={uuid4().hex}"


URLS: dict[str, Callable[[Path], Any]] = {
    "sqlite": sqlite_url,
    "postgres": postgres_url,
    "valkey": valkey_url,
    "valkey in three parts": few_partitions_url,
    "cluster": cluster_url,
}


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = store_for(url)
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def everything(store: Store) -> dict[Key, Record]:
    """All records, but for those of workers."""
    found: dict[Key, Record] = {}
    for kind in KINDS:
        after: Key | None = None
        while kind != "session" and (page := await store.scan(kind, (), after=after)):
            found |= {record.key: record for record in page}
            after = page[-1].key
    return found


ENDS = [("b", 1), ("a", 1), ("c", 1), ("b", 2), ("d", 1), ("a", 2), ("e", 1)]


async def end(store: Store) -> None:
    """Ends of executions, some of which were tried again: in no order of their keys."""
    for number, (execution, generation) in enumerate(ENDS):
        completion = Completion(
            namespace=NAMESPACE,
            execution=execution,
            generation=generation,
            status=Status.SUCCEEDED,
            cause=None,
            workflow="w",
            tags="{}",
            finished_at=1_000_000 + number,
            change_id=f"end-{number}",
        )
        await commit_one(store, changing(store, execution, Insert(completion)))


async def ends(store: Store) -> list[tuple[str, int]]:
    """As the feed has them."""
    return [(one.execution, one.generation) for one in (await store.completions()).completions]


def leaks_of(url: str) -> list[str]:
    """Keys that belong to nothing, and indexes that do not fit their records."""
    if not url.startswith("valkey"):
        return []
    prefix = url.partition("prefix=")[2].partition("&")[0]
    servers = the_cluster().primaries if "+cluster" in url else [the_server("copying")]
    return [leak for server in servers for leak in leaks(server, prefix, alone=False)]


class Shop:
    """An app on a store, whose steps leave a mark in a ledger that outlives it."""

    def __init__(self, url: str, ledger: Counter[str]) -> None:
        self.app = app = App(url, lease_ttl=LEASE_TTL)
        self.stuck = asyncio.Event()

        @app.step
        async def mark(word: str) -> str:
            ledger[word] += 1
            return word

        @app.step
        async def endless(word: str) -> str:
            if not ledger["let go"]:
                self.stuck.set()
                await asyncio.Event().wait()
            return await mark.fn(word)

        @app.workflow
        async def parcel(name: str) -> str:
            await mark(f"{name}: packed")
            await outlast.receive("go", str)
            return await mark(f"{name}: sent")

        @app.workflow
        async def order(name: str) -> list[str]:
            words = [await mark(f"{name}: taken")]
            outlast.emit({"said": f"{name} was taken"})
            child = await parcel.options(id="parcel").start(name)
            words.append(await outlast.deferred("approval", str))
            words += [await outlast.receive("note", str) for _ in range(3)]
            words.append(await child.result())
            return words

        @app.workflow
        async def short(name: str) -> str:
            outlast.emit(name)
            return await mark(f"{name}: done")

        @app.workflow
        async def fails(name: str) -> None:
            raise ValueError(name)

        @app.workflow
        async def hangs(name: str) -> str:
            await mark(f"{name}: begun")
            return await endless(f"{name}: ended")

        @app.workflow
        async def sleeps(name: str) -> str:
            await mark(f"{name}: to bed")
            await outlast.sleep("1500ms")
            return await mark(f"{name}: up")

        self.parcel, self.order, self.short, self.fails, self.hangs, self.sleeps = (
            *(parcel, order, short),
            *(fails, hangs, sleeps),
        )
