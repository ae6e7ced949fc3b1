"""A file that is moved, deleted or replaced under a process: nothing is answered any more, and it says why."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import outlast
from outlast import App
from outlast.errors import StoreMoved
from outlast.store.port import Query
from outlast.store.sqlite import SqliteStore, moved
from tests.integration.sqlite.tools import NS, claim, dump, opened, running, start


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(moved, "FRESH_S", 0)
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "outlast.db"


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for file in path.parent.iterdir():
        if file.is_file():
            file.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def move_the_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("copy.db"))
    path.with_name("copy.db").rename(path)


GONE = "was moved or deleted while it was open here"
WAYS: list[tuple[Callable[[Path], None], str]] = [
    (delete, GONE),
    (delete_all, GONE),
    (move, GONE),
    (move_the_folder, GONE),
    (replace, "another file was put at"),
]


@pytest.mark.parametrize("take_away, why", WAYS, ids=lambda one: getattr(one, "__name__", ""))
async def test_nothing_is_answered_when_the_file_is_not_there_any_more(
    path: Path, take_away: Callable[[Path], None], why: str
):
    async with opened(path) as store, running(store) as engine:
        assert (await engine.tell(NS, "before", start("before"))).applied
        take_away(path)
        for call in (
            engine.tell(NS, "order", start("order")),
            claim(store),
            store.renew("worker-1", lease_ttl_ms=1_000),
            store.find(Query(namespace=NS)),
            store.health(),
        ):
            with pytest.raises(StoreMoved, match=why):
                await call


async def test_an_app_answers_no_start_and_whoever_waits_goes_on_when_the_file_is_back(path: Path):
    app = App(f"sqlite:///{path}", lease_ttl="500ms")

    @app.workflow
    async def order() -> str:
        return await outlast.receive("go", str)

    async with app:
        handle = await order.start()
        waiting = asyncio.create_task(handle.result("20s"))
        move(path)
        for refused in (order.start(), handle.send("go", "now")):
            with pytest.raises(StoreMoved, match=GONE):
                await refused
        path.with_name("moved.db").rename(path)
        await handle.send("go", "then")
        assert await waiting == "then"


async def test_a_reader_is_told_too(path: Path):
    async with opened(path), opened(f"sqlite:///{path}?mode=ro", migrated=False) as reader:
        assert await reader.count(Query(namespace=NS)) == 0
        move(path)
        with pytest.raises(StoreMoved, match=GONE):
            await reader.count(Query(namespace=NS))


@pytest.mark.parametrize("take_away, why", WAYS, ids=lambda one: getattr(one, "__name__", ""))
@pytest.mark.parametrize("fresh_s", [0, 60], ids=["asked before", "not asked before"])
async def test_a_commit_that_went_to_a_file_that_is_gone_is_not_answered(
    path: Path, monkeypatch: pytest.MonkeyPatch, take_away: Callable[[Path], None], why: str, fresh_s: int
):
    monkeypatch.setattr(moved, "FRESH_S", fresh_s)
    armed = False

    def points(point: str) -> None:
        nonlocal armed
        if armed and point == "commit:commit":
            armed = False
            take_away(path)

    async with opened(path, points=points) as store, running(store) as engine:
        armed = True
        with pytest.raises(StoreMoved, match=why):
            await engine.tell(NS, "order", start("order"))


async def test_a_file_that_is_put_back_is_used_again(path: Path):
    async with opened(path) as store, running(store) as engine:
        await engine.tell(NS, "one", start("one"))
        move(path)
        with pytest.raises(StoreMoved):
            await engine.tell(NS, "two", start("two"))
        path.with_name("moved.db").rename(path)
        await engine.tell(NS, "three", start("three"))
    assert len(dump(path)["outlast_execution"]) == 2


async def test_what_was_answered_before_is_there_when_the_file_is_put_back_to_its_wal(path: Path):
    async with opened(path) as store, running(store) as engine:
        await engine.tell(NS, "one", start("one"))
        move(path)
    path.with_name("moved.db").rename(path)
    assert len(dump(path)["outlast_execution"]) == 1


async def test_a_link_that_names_another_file_later_does_not_matter(path: Path):
    link = path.with_name("link.db")
    link.symlink_to(path)
    await SqliteStore(str(path)).migrate()
    async with opened(link, migrated=False) as store, running(store) as engine:
        link.unlink()
        link.symlink_to(path.with_name("other.db"))
        assert (await engine.tell(NS, "order", start("order"))).applied


async def test_asking_is_not_repeated_for_what_has_written_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(moved, "FRESH_S", 60)
    async with opened(path) as store:
        await store.now()
        move(path)
        await store.now()
