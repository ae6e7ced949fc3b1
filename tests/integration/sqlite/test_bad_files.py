"""Files and URLs that cannot be used: each a typed error that says what to do, and nothing half-written."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from outlast.errors import (
    InvalidConfig,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from outlast.machine.facts import Complete
from outlast.model.execution import execution_key
from outlast.store.port import Query
from outlast.store.sqlite import SqliteStore
from outlast.store.sqlite.store import parse_url
from tests.integration.sqlite.tools import (
    NS,
    ROOT,
    claim,
    dump,
    files_of,
    intact,
    opened,
    others,
    running,
    start,
    step,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outlast.db"


async def fill(path: Path, number: int = 20, size: int = 2_000) -> None:
    async with opened(path) as store, running(store) as engine:
        for n in range(number):
            await engine.tell(NS, f"order-{n}", start(f"order-{n}", input=b"x" * size))


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def read(path: Path) -> bytes:
    return path.read_bytes()


def damage(path: Path, *, page: int) -> None:
    data = bytearray(read(path))
    assert len(data) > page * 4096
    data[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    write(path, bytes(data))


# ---- not what it should be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_", [b"this is a text, not a database\n" * 200, os.urandom(8192), b"short"])
async def test_not_an_sqlite_file(path: Path, tmp_path: Path, bytes_: bytes):
    write(path, bytes_)
    before = files_of(tmp_path)
    for call in (SqliteStore(str(path)).open, SqliteStore(str(path)).migrate):
        with pytest.raises(StoreCorrupt, match=r"outlast\.db is damaged or not an SQLite file .*restore it"):
            await call()
    assert files_of(tmp_path) == before


async def test_damaged_pages_are_corrupt_when_used_and_others_still_work(path: Path):
    await fill(path, number=200)
    damage(path, page=root_page(path, "outlast_payload"))
    async with opened(path, migrated=False) as store, running(store) as engine:
        assert len((await store.find(Query(namespace=NS, limit=5))).executions) == 5
        with pytest.raises(StoreCorrupt, match="damaged"):
            await claim(store, limit=1_000)
        with pytest.raises(StoreCorrupt, match="damaged"):
            await engine.tell(NS, "new", start("new"))
        assert await store.load([execution_key(NS, "new")]) == [None]


async def test_truncated_file_is_corrupt(path: Path):
    await fill(path, number=200)
    write(path, read(path)[: 4096 * 8])
    with pytest.raises(StoreCorrupt, match="damaged"):
        async with opened(path, migrated=False) as store:
            await claim(store, limit=1_000)


def root_page(path: Path, table: str) -> int:
    connection = apsw.Connection(str(path))
    [(page,)] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
    connection.close()
    assert isinstance(page, int)
    return page


# ---- places -------------------------------------------------------------------------------------------------------


async def test_missing_folder(tmp_path: Path):
    for call in (SqliteStore(str(tmp_path / "no" / "x.db")).open, SqliteStore(str(tmp_path / "no" / "x.db")).migrate):
        with pytest.raises(StoreError, match=r"x\.db cannot be opened: there is no folder .*/no"):
            await call()
    assert files_of(tmp_path) == {}


async def test_path_that_is_a_folder(tmp_path: Path):
    (tmp_path / "x.db").mkdir()
    for call in (SqliteStore(str(tmp_path / "x.db")).open, SqliteStore(str(tmp_path / "x.db")).migrate):
        with pytest.raises(StoreError, match=r"x\.db is a folder: name a file in it"):
            await call()
    assert files_of(tmp_path) == {"x.db": None}


async def test_relative_path_stays_the_same_file_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("outlast.db")
    await store.migrate()
    monkeypatch.chdir(tmp_path / "elsewhere")
    await store.open()
    async with running(store) as engine:
        assert (await engine.tell(NS, "order", start("order"))).applied
    await store.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(dump(tmp_path / "outlast.db")["outlast_execution"]) == 1


async def test_symbolic_link_is_the_file_that_it_names(tmp_path: Path):
    async with opened(tmp_path / "real.db") as store, running(store) as engine:
        (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
        async with opened(tmp_path / "link.db") as linked:
            heard = aiter(linked.listen())
            await anext(heard)
            assert (await engine.tell(NS, "order", start("order"))).applied
            assert "lane:default:default" in await anext(heard)
            assert len((await linked.find(Query(namespace=NS))).executions) == 1
    assert not [name for name in files_of(tmp_path) if name.startswith("link.db-")]


# ---- read-only ----------------------------------------------------------------------------------------------------


async def test_read_only_url_reads_and_refuses_every_write(path: Path):
    await fill(path, number=3)
    async with opened(path, migrated=False) as keeper:
        await keeper.now()
        before = dump(path)
        async with opened(f"sqlite:///{path}?mode=ro", migrated=False) as store, running(store) as engine:
            assert len((await store.find(Query(namespace=NS))).executions) == 3
            assert await store.now() > 0
            refused = [
                engine.tell(NS, "new", start("new")),
                claim(store),
                store.renew("worker-1", lease_ttl_ms=1_000),
                store.append(NS, "order-0", epoch=1, change_id="c", frames=[b"x"]),
                store.purge(finished_before=2**60),
                store.migrate(),
            ]
            for call in refused:
                with pytest.raises(StoreReadOnly, match=r"opened with \?mode=ro: it can be read, not written"):
                    await call
        assert dump(path) == before


async def test_read_only_url_sees_what_others_write(path: Path):
    await fill(path, number=1)
    async with opened(path, migrated=False) as writer, running(writer) as engine:
        async with opened(f"sqlite:///{path}?mode=ro", migrated=False) as store:
            assert await store.count(Query(namespace=NS)) == 1
            await engine.tell(NS, "new", start("new"))
            assert await store.count(Query(namespace=NS)) == 2


async def test_read_only_url_makes_no_file(path: Path, tmp_path: Path):
    with pytest.raises(StoreError, match="there is no file"):
        await SqliteStore(f"sqlite:///{path}?mode=ro").open()
    assert files_of(tmp_path) == {}


@pytest.fixture
def public_path() -> Iterator[Path]:
    """Where any user may look, unlike pytest's own folders."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve() / "outlast.db"


async def as_nobody(path: Path) -> list[str]:
    """What opening says to a user without rights: to write, then only to read."""
    with others(("unprivileged", path, 65534)) as [other]:
        return (await asyncio.to_thread(other.succeed)).splitlines()


@pytest.mark.slow
@pytest.mark.system
async def test_user_who_may_not_write_is_told_so(public_path: Path):
    await fill(public_path, number=1)
    before = dump(public_path)
    async with opened(public_path, migrated=False) as keeper:  # it is in use, so its WAL is there
        await keeper.now()
        writing, reading = await as_nobody(public_path)
    assert writing.startswith("StoreReadOnly: ")
    assert "outlast.db may not be written: check its permissions, or open it with ?mode=ro" in writing
    assert reading == "opened True"
    # At rest there is no WAL, and this user may make none: SQLite can't read it at all.
    writing, reading = await as_nobody(public_path)
    assert writing.startswith("StoreReadOnly: ")
    assert reading.startswith("StoreReadOnly: ")
    assert "outlast.db cannot even be read" in reading
    assert "the right to write the folder" in reading
    assert dump(public_path) == before


@pytest.mark.slow
@pytest.mark.system
async def test_user_who_may_not_even_look_is_told_so(public_path: Path):
    await fill(public_path, number=1)
    _make_private(public_path.parent)
    for said in await as_nobody(public_path):
        assert said.startswith("StoreError: ")
        assert "Permission denied" in said
        assert "check the permissions of its folder" in said


def _make_private(folder: Path) -> None:
    folder.chmod(0o700)


# ---- no room ------------------------------------------------------------------------------------------------------


async def test_full_store_writes_nothing_by_halves_and_goes_on_when_there_is_room(path: Path):
    """The room is a bound on pages, set through `on_connect`."""
    connections: list[apsw.Connection] = []
    async with opened(path, on_connect=connections.append) as store, running(store) as engine:
        await engine.tell(NS, "order", start("order"))
        await claim(store)
        await engine.tell(NS, "order", step(1))
        used = max(c.pragma("page_count") for c in connections[-2:])
        for connection in connections[-2:]:
            connection.pragma("max_page_count", used)
        before = dump(path)
        large = start("large", input=b"x" * 500_000)
        with pytest.raises(StoreFull, match=r"no room left to write .*outlast\.db .*free some, then go on"):
            await engine.tell(NS, "large", large)
        with pytest.raises(StoreFull):
            await engine.tell(NS, "order", Complete(change_id="done", epoch=1, output=b"x" * 500_000))
        assert dump(path) == before
        assert await store.count(Query(namespace=NS)) == 1
        for connection in connections[-2:]:
            connection.pragma("max_page_count", 1_000_000)
        assert (await engine.tell(NS, "large", large)).applied
        assert (await engine.tell(NS, "order", Complete(change_id="done", epoch=1, output=b"x" * 500_000))).applied
    assert intact(path)


async def test_full_store_cannot_be_migrated_and_stays_empty(path: Path):
    def small(connection: apsw.Connection) -> None:
        connection.pragma("max_page_count", 10)

    store = SqliteStore(str(path), on_connect=small)
    with pytest.raises(StoreFull):
        await store.migrate()
    assert dump(path) == {}
    assert await SqliteStore(str(path)).migrate() == 1


@pytest.mark.system
def test_full_disk(tmp_path: Path):
    """A real one of a megabyte, in a namespace of its own."""
    script = (
        f'mount -t tmpfs -o size=1m none "{tmp_path}" || exit 77; '
        f'exec "{sys.executable}" -m tests.integration.sqlite.processes fill_the_disk "{tmp_path}"'
    )
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, *rest = done.stdout.splitlines()
    assert said.startswith("StoreFull: no room left to write"), said
    assert rest == ["True", "True", "ok"]


# ---- URLs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url, why",
    [
        ("", "needs a plain file"),
        (":memory:", "needs a plain file"),
        ("sqlite:///:memory:", "needs a plain file"),
        ("sqlite:///", "needs a plain file"),
        ("sqlite://", "needs a plain file"),
        ("file:orders.db?mode=memory", "needs a plain file"),
        ("sqlite://host/orders.db", "not an SQLite URL"),
        ("postgresql:///orders", "not an SQLite URL"),
        ("sqlite://[::1", "not a URL"),
        ("sqlite:///orders.db?synchronous=OFF", "synchronous must be FULL or NORMAL, not 'OFF'"),
        ("sqlite:///orders.db?synchronous=", "synchronous must be FULL or NORMAL"),
        ("sqlite:///orders.db?mode=rwc", "mode must be rw or ro, not 'rwc'"),
        ("sqlite:///orders.db?timeout=5", "unknown option in .*timeout"),
        ("sqlite:///orders.db?mode=ro&mode=rw", "gives an option twice"),
        ("sqlite:///orders.db#1", "write %23 for a #"),
        ("sqlite:///ord%00ers.db", "characters that cannot be in a path"),
        ("ord\0ers.db", "characters that cannot be in a path"),
        ("sqlite:///ord\ners.db", "not an SQLite URL"),
    ],
)
def test_bad_url_is_refused(url: str, why: str):
    with pytest.raises(InvalidConfig, match=why):
        SqliteStore(url)


@pytest.mark.parametrize(
    "url, parsed",
    [
        ("orders.db", ("orders.db", "FULL", False)),
        ("/var/lib/orders.db", ("/var/lib/orders.db", "FULL", False)),
        ("sqlite:///orders.db", ("orders.db", "FULL", False)),
        ("sqlite:////var/lib/orders.db", ("/var/lib/orders.db", "FULL", False)),
        ("sqlite:///a%20b%23.db?synchronous=normal&mode=ro", ("a b#.db", "NORMAL", True)),
    ],
)
def test_good_url_is_understood(url: str, parsed: tuple[str, str, bool]):
    assert parse_url(url) == parsed


@pytest.mark.parametrize("synchronous, number", [("FULL", 2), ("NORMAL", 1)])
async def test_accepted_option_is_enforced(path: Path, synchronous: str, number: int):
    connections: list[apsw.Connection] = []
    async with opened(f"sqlite:///{path}?synchronous={synchronous}", on_connect=connections.append):
        assert {c.pragma("synchronous") for c in connections[-2:]} == {number}
        assert {c.pragma("journal_mode") for c in connections[-2:]} == {"wal"}


# ---- strangers ----------------------------------------------------------------------------------------------------


async def test_stranger_who_holds_the_file_makes_it_unavailable_not_broken(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outlast.store.sqlite.store.BUSY_TIMEOUT_MS", 50)
    async with opened(path) as store, running(store, patience_s=0.0) as engine:
        stranger = apsw.Connection(str(path))
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"does not answer now .*try again"):
            await engine.tell(NS, "order", start("order"))
        stranger.execute("ROLLBACK")
        stranger.close()
        assert (await engine.tell(NS, "order", start("order"))).applied


async def test_closed_store_says_so(path: Path):
    async with opened(path) as store:
        pass
    with pytest.raises(StoreClosed, match="is not open"):
        await store.now()
    with pytest.raises(StoreClosed, match="is not open"):
        await store.commit([])
    await store.close()
