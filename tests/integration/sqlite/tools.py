"""What the tests of the SQLite store share: facts to tell, a dump of everything in a file, other processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import apsw

from outlast.machine import facts
from outlast.model.lease import ClaimedExecution, ClaimRequest
from outlast.runtime.engine import Engine
from outlast.store.port import Store
from outlast.store.sqlite import SqliteStore
from tests.forks import forked

ROOT = Path(__file__).parents[3]
NS = "default"
WORKER = "worker-1"

Dump = dict[str, list[tuple[Any, ...]]]


def dump(path: Path | str) -> Dump:
    """Every row of every table."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(10_000)
    try:
        tables = [str(row[0]) for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {table: sorted(connection.execute(f'SELECT * FROM "{table}"'), key=repr) for table in sorted(tables)}
    finally:
        connection.close()


def intact(path: Path | str) -> bool:
    connection = apsw.Connection(str(path))
    try:
        return connection.pragma("integrity_check") == "ok"
    finally:
        connection.close()


def files_of(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder, with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def start(execution_id: str, *, change_id: str | None = None, **options: Any) -> facts.Start:
    options = {"workflow": "checkout", "version": "1", "input": b"[]", "input_digest": "d", **options}
    return facts.Start(change_id=change_id or f"start {execution_id}", namespace=NS, id=execution_id, **options)


def step(number: int, *, epoch: int = 1, change_id: str | None = None) -> facts.StepRecorded:
    return facts.StepRecorded(
        change_id=change_id or f"step {number}",
        epoch=epoch,
        scope="",
        name="charge",
        occurrence=number,
        op="step",
        outcome="succeeded",
        value=b"1",
    )


def claim_request(claim_id: str = "claim-1", *, limit: int = 10, worker: str = WORKER, **options: Any) -> ClaimRequest:
    given = {"namespace": NS, "lanes": ("default",), "serves": frozenset({("checkout", "1")}), "lease_ttl_ms": 10_000}
    return ClaimRequest(**{**given, "worker": worker, "claim_id": claim_id, "limit": limit, **options})


async def claim(store: Store, claim_id: str = "claim-1", **options: Any) -> list[ClaimedExecution]:
    return (await store.claim(claim_request(claim_id, **options))).executions


@asynccontextmanager
async def opened(path: Path | str, *, migrated: bool = True, **options: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path), **options)
    try:
        if migrated:
            await store.migrate()
        await store.open()
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def running(store: Store, **options: Any) -> AsyncIterator[Engine]:
    engine = Engine(store, **options)
    try:
        yield engine
    finally:
        await engine.close()


# ---- other processes ----------------------------------------------------------------------------------------------


class Other:
    """A real process that does one of the things in `processes.py`, and says so line by line."""

    def __init__(self, what: str, *arguments: object) -> None:
        hears, tells = os.pipe()
        listens, says = os.pipe()
        self._tells, self._listens = os.fdopen(tells, "w"), os.fdopen(listens)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (`close` closes it)
        with os.fdopen(hears) as stdin, os.fdopen(says, "w") as stdout:
            streams: dict[str, Any] = {"stdin": stdin, "stdout": stdout, "stderr": self._errors}
            self.process = forked("tests.integration.sqlite.processes", what, *map(str, arguments), **streams)

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line that it says."""
        line = self._listens.readline().rstrip("\n")
        if not line:
            raise AssertionError(f"it ended without a word: {self.end()}")
        return line

    def tell(self, text: str) -> None:
        self._tells.write(f"{text}\n")
        self._tells.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, timeout_s: float = 60) -> tuple[int, str, str]:
        """Its exit status, and what else it said on both streams."""
        self._tells.close()
        out, returncode = self._listens.read(), self.process.wait(timeout_s)
        self._errors.seek(0)
        return returncode, out, self._errors.read()

    def succeed(self) -> str:
        status, out, err = self.end()
        assert status == 0, err or out
        return out

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        for stream in (self._tells, self._listens, self._errors):
            stream.close()


@contextmanager
def others(*starts: tuple[object, ...]) -> Iterator[list[Other]]:
    """Several processes; none of them outlives the test."""
    made: list[Other] = []
    try:
        made.extend(Other(str(what), *arguments) for what, *arguments in starts)
        yield made
    finally:
        for other in made:
            other.close()
