"""What docs/sqlite.md says of backups: how one is made of a file in use, and how it is restored."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import outlast
from outlast import App, Handle
from tests.integration.sqlite.tools import NS, dump, intact, opened, running, start
from tests.waiting import until


def vacuum_into(path: Path, copy: Path) -> None:
    _in_another_process("source.execute('VACUUM INTO ?', (copy,))", path, copy)


def backup(path: Path, copy: Path) -> None:
    _in_another_process("source.backup(sqlite3.connect(copy))", path, copy)


def vacuum_in_this_process(path: Path, copy: Path) -> None:
    apsw.Connection(str(path)).execute("VACUUM INTO ?", (str(copy),))


def _in_another_process(code: str, path: Path, copy: Path) -> None:
    program = f"import sqlite3, sys; path, copy = sys.argv[1:]; source = sqlite3.connect(path); {code}"
    subprocess.run([sys.executable, "-c", program, str(path), str(copy)], check=True)


def restore(copy: Path, path: Path) -> None:
    for file in [path.with_name(f"{path.name}{end}") for end in ("", "-wal", "-shm")]:
        if file.exists():
            file.rename(file.with_name(f"old-{file.name}"))
    copy.rename(path)


class Shop:
    """An execution that pays, waits for a word, and ships."""

    def __init__(self, path: Path) -> None:
        self.done: list[str] = []
        self.app = App(f"sqlite:///{path}", lease_ttl="1s")

        @self.app.step
        async def do(what: str) -> str:
            self.done.append(what)
            return what

        @self.app.workflow
        async def order() -> list[str]:
            paid = await do("pay")
            await outlast.receive("go", str)
            return [paid, await do("ship")]

        self.order = order

    async def waits(self, handle: Handle[list[str]]) -> None:
        async def waiting() -> bool:
            return len(await handle.journal()) > 0

        await until(waiting, "the order does not wait")


@pytest.mark.parametrize("copied", [vacuum_into, backup, vacuum_in_this_process], ids=lambda how: how.__name__)
async def test_a_copy_of_a_file_in_use_goes_on_from_there(tmp_path: Path, copied: Callable[[Path, Path], None]):
    path, copy = tmp_path / "shop.db", tmp_path / "copy.db"
    shop = Shop(path)
    async with shop.app:
        handle = await shop.order.options(id="order-1").start()
        await shop.waits(handle)
        copied(path, copy)
        await handle.send("go", "now")
        assert await handle.result("20s") == ["pay", "ship"]
        await shop.order.options(id="order-2").start()
    assert intact(copy)

    restore(copy, path)
    restored = Shop(path)
    async with restored.app:
        assert [found.id for found in await restored.app.find()] == ["order-1"]
        handle = restored.app.execution("order-1")
        await handle.send("go", "again")
        assert await handle.result("20s") == ["pay", "ship"]
    assert restored.done == ["ship"]


async def test_the_file_alone_is_no_backup_while_it_is_in_use(tmp_path: Path):
    async with opened(tmp_path / "o.db") as store, running(store) as engine:
        await engine.tell(NS, "order", start("order"))
        shutil.copy(tmp_path / "o.db", tmp_path / "copy.db")
    assert not dump(tmp_path / "copy.db").get("outlast_execution")
    assert len(dump(tmp_path / "o.db")["outlast_execution"]) == 1


async def test_a_wal_that_is_left_behind_breaks_the_restored_file(tmp_path: Path):
    path, copy, left = tmp_path / "o.db", tmp_path / "copy.db", tmp_path / "left-wal"
    for name in ("before", "after"):
        async with opened(path) as store, running(store) as engine:
            if name == "after":
                vacuum_into(path, copy)
            for number in range(100):
                await engine.tell(NS, f"{name}-{number}", start(f"{name}-{number}"))
            shutil.copy(f"{path}-wal", left)  # as a process that is killed leaves it
    path.unlink()
    copy.rename(path)
    left.rename(f"{path}-wal")
    with pytest.raises(apsw.CorruptError):
        dump(path)
