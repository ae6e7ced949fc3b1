"""What is waited for until the disk has it, and what is not: seen by SQLite's own calls to its file system."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from outlast.model.lease import Claimed
from outlast.store.sqlite.connection import Transaction
from tests.integration.sqlite.tools import NS, claim_request, opened, running, start, step


class Disk(apsw.VFS):
    """SQLite's own way to its files, with every wait for the disk counted."""

    def __init__(self) -> None:
        self.waits = list[str]()
        super().__init__("counting", "unix", makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 (SQLite's names)
        return File(self.waits, name, flags)

    @contextmanager
    def waited(self) -> Iterator[list[str]]:
        """The files that were waited for meanwhile."""
        self.waits.clear()
        seen: list[str] = []
        yield seen
        seen += self.waits


class File(apsw.VFSFile):
    def __init__(self, waits: list[str], name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._waits = waits
        self._name = name if isinstance(name, str | None) else name.filename()
        super().__init__("unix", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._waits.append(Path(self._name or "").suffix)
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.unregister()


WAL = ".db-wal"


async def test_a_commit_is_waited_for(tmp_path: Path, disk: Disk):
    async with opened(tmp_path / "o.db") as store, running(store) as engine:
        await engine.begin(start("a"))  # the first one makes the file, which is waited for in any case
        with disk.waited() as seen:
            await engine.begin(start("b"))
    assert WAL in seen


async def test_who_holds_what_is_not_waited_for(tmp_path: Path, disk: Disk):
    """It goes with a power cut as its holder does. What that writes next is durable together with it."""
    async with opened(tmp_path / "o.db") as store, running(store) as engine:
        await engine.begin(start("a"))
        with disk.waited() as seen:
            claimed = await store.claim(claim_request())
            await store.renew("worker-1", lease_ttl_ms=10_000)
        assert len(claimed.executions) == 1
        assert seen == []
        with disk.waited() as seen:
            await engine.tell(NS, "a", step(1))
    assert WAL in seen


async def test_whoever_waits_for_no_disk_still_does_not(tmp_path: Path, disk: Disk):
    async with opened(f"sqlite:///{tmp_path}/o.db?synchronous=NORMAL") as store, running(store) as engine:
        await engine.begin(start("a"))
        await store.claim(claim_request())
        with disk.waited() as seen:
            await engine.tell(NS, "a", step(1))
    assert seen == []


@pytest.mark.parametrize("fails", [False, True], ids=["all go well", "one fails, and each is done alone"])
async def test_what_shares_its_transaction_with_a_claim_is_waited_for(tmp_path: Path, disk: Disk, fails: bool):
    def breaks(tx: Transaction) -> None:
        if fails:
            raise RuntimeError("this one alone")

    async with opened(tmp_path / "o.db") as store, running(store) as engine:
        await engine.begin(start("a"))
        writer = store._opened().writer
        assert writer is not None
        await store.renew("worker-1", lease_ttl_ms=10_000)
        with disk.waited() as seen:
            claiming = asyncio.ensure_future(store.claim(claim_request()))
            broken = writer.call("renew", breaks)
            started = asyncio.ensure_future(engine.begin(start("b")))
            claimed, *_ = await asyncio.gather(claiming, broken, started, return_exceptions=True)
        assert isinstance(claimed, Claimed)
        assert WAL in seen
        with disk.waited() as seen:
            await store.renew("worker-1", lease_ttl_ms=10_000)
        assert seen == []
        with disk.waited() as seen:
            await engine.tell(NS, "a", step(1))
        assert WAL in seen
