"""Doorbells between processes: heard at once without polling, coalesced, never in the way of a commit."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from outlast.errors import StoreError
from outlast.store.port import RESCAN, Store
from outlast.store.sqlite.doorbell import Doorbell, folder_of
from tests.integration.sqlite.tools import NS, Other, opened, others, running, start

LANE = "lane:default:default"


@pytest.fixture
def path() -> Iterator[Path]:
    """Short enough for sockets beside the file."""
    with tempfile.TemporaryDirectory(prefix="bell-", dir="/tmp") as folder:
        yield Path(folder).resolve() / "x.db"


async def heard_by(listener: object) -> frozenset[str]:
    return await asyncio.wait_for(anext(listener), 20)  # type: ignore[arg-type]


@pytest.fixture
def bell(path: Path) -> Iterator[Doorbell]:
    bell = Doorbell(str(path))
    yield bell
    bell.close()


# ---- between processes --------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_commit_is_heard_in_another_process_within_a_second(path: Path):
    async with opened(path) as store, running(store) as engine:
        with others(("listen", path)) as [other]:
            assert await asyncio.to_thread(other.line) == RESCAN
            took: list[float] = []
            for n in range(5):
                began = time.perf_counter()
                await engine.tell(NS, f"order-{n}", start(f"order-{n}"))
                assert await asyncio.to_thread(other.line) == LANE
                took.append(time.perf_counter() - began)
            assert min(took) < 1.0  # nobody polls there: the others may have met a machine that stalls


@pytest.mark.slow
async def test_socket_of_a_dead_process_is_removed_by_the_next_ring(path: Path):
    async with opened(path) as store:
        folder = folder_of(str(path))
        with others(("listen", path), ("listen", path)) as [victim, other]:
            assert [await asyncio.to_thread(p.line) for p in (victim, other)] == [RESCAN, RESCAN]
            victim.signal(signal.SIGKILL)
            victim.end()
            assert len(_names(folder)) == 2
            store.ring(frozenset({"a"}))
            [left] = _names(folder)
            assert left.startswith(f"{other.pid}-")
            assert await asyncio.to_thread(other.line) == "a"


@pytest.mark.slow
async def test_frozen_process_does_not_silence_the_others(path: Path):
    async with opened(path) as store:
        with others(("listen", path), ("listen", path)) as [frozen, other]:
            assert [await asyncio.to_thread(p.line) for p in (frozen, other)] == [RESCAN, RESCAN]
            frozen.signal(signal.SIGSTOP)
            for n in range(2_000):
                store.ring(frozenset({f"channel-{n % 10}" + "x" * 3_000}))
                if n % 5 == 4:
                    await asyncio.to_thread(other.line)
            await asyncio.to_thread(_drained, other, store)
            frozen.signal(signal.SIGCONT)
            assert RESCAN in (await asyncio.to_thread(frozen.line)).split()


def _drained(other: Other, store: Store) -> None:
    """Ring until it is heard: one that found the buffer full is dropped, and then a line for that buffer is to come."""
    store.ring(frozenset({"the-end"}))
    while "the-end" not in other.line().split():
        store.ring(frozenset({"the-end"}))


def _exists(folder: Path) -> bool:
    return folder.exists()


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# ---- in one process -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["itself", "another"])
def ringer(bell: Doorbell, path: Path, request: pytest.FixtureRequest) -> Iterator[Doorbell]:
    """Who rings: the one that is listened to, without sockets; or another one of the same file, by them."""
    if request.param == "itself":
        yield bell
        return
    another = Doorbell(str(path))
    yield another
    another.close()


async def test_first_item_is_rescan_and_rings_are_coalesced(bell: Doorbell, ringer: Doorbell):
    listener = bell.listen()
    heard = aiter(listener)
    assert await heard_by(heard) == {RESCAN}
    for _ in range(3):
        ringer.ring({"a", "b"})
    ringer.ring({"c"})
    assert await heard_by(heard) == {"a", "b", "c"}
    await listener.close()


async def test_flood_ends_in_a_rescan(bell: Doorbell, ringer: Doorbell):
    """More rings than any buffer holds: some are dropped, and the listener knows."""
    listener = bell.listen()
    heard = aiter(listener)
    await heard_by(heard)
    for n in range(10_000):
        ringer.ring({f"channel-{n}"})
    assert RESCAN in await heard_by(heard)
    ringer.ring({"again"})
    assert await heard_by(heard) == {"again"}
    await listener.close()


async def test_listener_that_nobody_reads_stays_small(bell: Doorbell, ringer: Doorbell):
    listener = bell.listen()
    for n in range(3_000):
        ringer.ring({f"channel-{n}"})
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert RESCAN in listener._heard
    assert len(listener._heard) <= 1_000
    await listener.close()


async def test_many_channels_in_one_ring_are_a_rescan(bell: Doorbell, ringer: Doorbell):
    listener = bell.listen()
    heard = aiter(listener)
    await heard_by(heard)
    ringer.ring({f"lane:default:lane-{n}" for n in range(10_000)})
    assert await heard_by(heard) == {RESCAN}
    ringer.ring({f"l{n}" for n in range(100)})
    assert await heard_by(heard) == {f"l{n}" for n in range(100)}
    await listener.close()


async def test_listener_that_comes_when_the_folder_was_left_alone_for_long_is_rung(bell: Doorbell, path: Path):
    """The names in the folder are read again only when it has changed: that shows, however it changes."""
    first = Doorbell(str(path)).listen()
    folder = folder_of(str(path))
    os.utime(folder, (1_000_000_000, 1_000_000_000))
    bell.ring({"a"})
    bell.ring({"a"})
    second = Doorbell(str(path)).listen()
    os.utime(folder, (1_000_000_001, 1_000_000_001))
    bell.ring({"b"})
    hearing = aiter(second)
    assert [await heard_by(hearing), await heard_by(hearing)] == [{RESCAN}, {"b"}]
    await second.close()
    await first.close()
    third = Doorbell(str(path)).listen()  # the last one had taken the folder with it
    bell.ring({"c"})
    hearing = aiter(third)
    assert [await heard_by(hearing), await heard_by(hearing)] == [{RESCAN}, {"c"}]
    await third.close()


async def test_listener_that_reads_late_costs_the_others_nothing(bell: Doorbell, ringer: Doorbell):
    """Thirty full buffers: more than one sender may have under way, if it had one for all."""
    bell._folder.mkdir()
    deaf = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(30)]
    for n, each in enumerate(deaf):
        each.bind(f"{bell._folder}/{n}-00000000")
    listener = bell.listen()
    heard = aiter(listener)
    await heard_by(heard)
    for n in range(100):
        ringer.ring({f"{n}-" + "x" * 2_000})
        assert any(name.startswith(f"{n}-") for name in await heard_by(heard))
    await listener.close()
    for each in deaf:
        each.close()


async def test_own_listeners_are_told_without_a_socket(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also by a commit; and who listens to another store of this process is sent it."""
    sent = list[tuple[str, bytes]]()
    monkeypatch.setattr(Doorbell, "_send", lambda self, name, heard: sent.append((name, heard)))
    async with opened(path) as other:
        async with opened(path) as store, running(store) as engine:
            own = aiter(store.listen())
            await heard_by(own)
            store.ring(frozenset({"a"}))
            assert await heard_by(own) == {"a"}
            await engine.tell(NS, "order-1", start("order-1"))
            assert await heard_by(own) == {LANE}
            theirs = other.listen()
            await engine.tell(NS, "order-2", start("order-2"))
            assert await heard_by(own) == {LANE}
        # Only now is it sure that the writer, which sends behind its answers, has nothing left to send.
        assert sent == [(Path(theirs._address).name, LANE.encode())]


async def test_own_listener_of_another_loop_is_told(path: Path):
    async with opened(path) as store, running(store) as engine:
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def listen() -> frozenset[str]:
            listener = store.listen()
            heard = aiter(listener)
            await heard_by(heard)
            loop.call_soon_threadsafe(ready.set)
            try:
                return await heard_by(heard)
            finally:
                await listener.close()

        listening = asyncio.create_task(asyncio.to_thread(asyncio.run, listen()))
        await ready.wait()
        await engine.tell(NS, "order", start("order"))
        assert await listening == {LANE}


async def test_store_closes_though_a_loop_was_closed_under_its_listener(path: Path):
    """Nobody cancelled who listened there: what waits in a loop that is gone cannot be woken."""
    async with opened(path) as store:

        async def listen() -> None:
            async for _ in store.listen():
                pass

        def left_behind() -> asyncio.Task[None]:
            loop = asyncio.new_event_loop()
            listening = loop.create_task(listen())
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()
            return listening

        listening = await asyncio.to_thread(left_behind)
        store.ring(frozenset({"a"}))
        parts = store._parts
    assert parts is not None
    assert parts.writer is not None
    assert not parts.writer._thread.is_alive()
    cast("Any", listening)._log_destroy_pending = False


async def test_ring_while_it_is_looked_is_heard_next(bell: Doorbell, ringer: Doorbell):
    listener = bell.listen()
    async for heard in listener:
        if "b" in heard:
            break
        ringer.ring({"b" if "a" in heard else "a"})
    await listener.close()


async def test_child_of_a_fork_rings_its_parent(bell: Doorbell):
    """It has the object, but neither the loops nor the threads of those who listen."""
    listener = bell.listen()
    heard = aiter(listener)
    await heard_by(heard)
    child = os.fork()
    if child == 0:
        try:
            bell.ring({"from the child"})
        finally:
            os._exit(0)
    assert await heard_by(heard) == {"from the child"}
    await asyncio.to_thread(os.waitpid, child, 0)
    await listener.close()


@pytest.mark.parametrize("length", [60, 120, 240])
async def test_long_paths_have_doorbells_too(tmp_path: Path, length: int):
    folder = tmp_path
    while len(str(folder)) < length + len(str(tmp_path)):
        folder = folder / ("d" * 40)
    folder.mkdir(parents=True)
    async with opened(folder / "outlast.db") as store, opened(folder / "outlast.db") as other, running(store) as engine:
        heard = aiter(other.listen())
        assert await heard_by(heard) == {RESCAN}
        await engine.tell(NS, "order", start("order"))
        assert await heard_by(heard) == {LANE}
    where = folder_of(str(folder / "outlast.db"))
    assert len(str(where)) < 80
    assert not _exists(where)  # the last listener took it along


async def test_closing_the_store_ends_its_listeners(path: Path):
    async with opened(path) as store:
        listener = store.listen()
        heard = aiter(listener)
        await heard_by(heard)
        waiting = asyncio.ensure_future(anext(heard, None))
        await asyncio.sleep(0)
    assert await asyncio.wait_for(waiting, 20) is None
    assert not _exists(folder_of(str(path)))
    await listener.close()


def test_listeners_that_come_and_go_at_once_all_find_a_place(path: Path):
    """The last one takes the folder away, the next one makes it again: four threads, each with a loop of its own."""

    async def come_and_go() -> int:
        bell = Doorbell(str(path))
        for _ in range(100):
            listener = bell.listen()
            await listener.close()
        bell.close()
        return 100

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(asyncio.run, come_and_go()) for _ in range(4)]
    assert [each.result() for each in done] == [100] * 4


# ---- what is not ours ---------------------------------------------------------------------------------------------


async def test_files_in_the_folder_that_are_no_doorbells_are_left_alone(bell: Doorbell, path: Path):
    folder = folder_of(str(path))
    listener = bell.listen()
    (folder / "notes.txt").write_text("mine")
    (folder / "12-0123abcd").write_text("looks like one")
    bell.ring({"a"})
    assert {"notes.txt", "12-0123abcd"} < set(_names(folder))
    await listener.close()


async def test_ring_never_fails(bell: Doorbell, path: Path):
    bell.ring({"nobody listens"})
    folder_of(str(path)).write_text("a file where the folder should be")
    bell.ring({"a"})
    with pytest.raises(StoreError, match=r"no doorbell can be hung in .*poll instead"):
        bell.listen()
    bell.close()
    bell.ring({"after the end"})


async def test_folder_in_the_temporary_directory_must_be_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where anybody may make it, it may be a trap: a link to a folder with files of ours."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    precious = tmp_path / "precious"
    precious.mkdir()
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    stale.bind(str(precious / "1-00000000"))
    stale.close()
    bell = Doorbell(str(tmp_path / ("d" * 100) / "outlast.db"))
    bell._folder.symlink_to(precious)
    bell.ring({"a"})
    assert _names(precious) == ["1-00000000"]
    with pytest.raises(StoreError, match="belongs to somebody else"):
        bell.listen()
    bell.close()
