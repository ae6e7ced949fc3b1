"""Several processes on one file: nobody starves, a frozen holder blocks only while it is frozen, a dead one never."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from outlast.model.execution import execution_key
from outlast.store.port import Query
from tests.integration.sqlite.tools import NS, dump, intact, opened, others, running, start

pytestmark = pytest.mark.slow


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    path = tmp_path / "outlast.db"
    async with opened(path):
        pass
    return path


@pytest.mark.parametrize("seconds", [5])
def test_four_busy_processes_share_the_file(path: Path, seconds: int):
    """Loose on purpose: the precise claim is the benchmark's. No error surfaces, or `succeed` would tell."""
    with others(*[("write_until_told", path)] * 4) as processes:
        for process in processes:
            assert process.line() == "here"
        for process in processes:
            process.tell("go")
        time.sleep(seconds)
        for process in processes:
            process.tell("stop")
        said = [process.succeed().split() for process in processes]
    counts = [int(count) for count, _ in said]
    fair = sum(counts) / 4
    assert min(counts) > fair / 4, counts
    assert max(float(longest) for _, longest in said) < 5.0
    assert len(dump(path)["outlast_execution"]) == sum(counts)
    assert intact(path)


@pytest.mark.parametrize("then", ["continue", "kill"])
async def test_frozen_holder_blocks_until_it_goes_on_or_dies(path: Path, then: str):
    async with opened(path, migrated=False) as store, running(store) as engine:
        with others(("hold_the_lock", path)) as [holder]:
            assert await asyncio.to_thread(holder.line) == "holding"
            holder.signal(signal.SIGSTOP)
            waiting = asyncio.create_task(engine.tell(NS, "mine", start("mine")))
            done, _ = await asyncio.wait([waiting], timeout=0.5)
            assert not done
            assert await store.count(Query(namespace=NS)) == 0  # readers never wait
            if then == "continue":
                holder.tell("go")
                holder.signal(signal.SIGCONT)
                assert await asyncio.to_thread(holder.line) == "committed"
            else:
                holder.signal(signal.SIGKILL)
            told = await asyncio.wait_for(waiting, 30)
            assert told.applied
            [other] = await store.load([execution_key(NS, "of-the-holder")])
            assert (other is not None) == (then == "continue")
    assert intact(path)


async def test_killed_process_in_the_queue_lets_the_next_one_pass(path: Path):
    """Three in the queue behind a holder; one of those that wait is killed."""
    async with opened(path, migrated=False) as store, running(store) as engine:
        with others(("hold_the_lock", path), *[("write_until_told", path)] * 3) as [holder, *waiting]:
            assert await asyncio.to_thread(holder.line) == "holding"
            for process in waiting:
                assert await asyncio.to_thread(process.line) == "here"
                process.tell("go")
            mine = asyncio.create_task(engine.tell(NS, "mine", start("mine")))
            await asyncio.wait([mine], timeout=0.3)
            waiting[0].signal(signal.SIGKILL)
            holder.tell("go")
            assert (await asyncio.wait_for(mine, 30)).applied
            for process in waiting[1:]:
                process.tell("stop")
                count, _ = (await asyncio.to_thread(process.line)).split()
                assert int(count) > 0


async def test_forked_child_is_told_to_open_its_own_and_keeps_no_lock(path: Path):
    with others(("fork_a_child", path)) as [parent]:
        lines = [await asyncio.to_thread(parent.line) for _ in range(3)]
        child = next(int(line.split()[1]) for line in lines if line.startswith("child "))
        try:
            assert any(line.startswith("StoreClosed: ") and "opened before a fork" in line for line in lines), lines
            assert "True" in lines
            parent.signal(signal.SIGKILL)
            os.kill(child, 0)  # it lives, and is in nobody's way
            async with opened(path, migrated=False) as store, running(store) as engine:
                told = await asyncio.wait_for(engine.tell(NS, "mine", start("mine")), 30)
                assert told.applied
                assert await store.count(Query(namespace=NS)) == 3
        finally:
            os.kill(child, signal.SIGKILL)


async def test_opening_and_closing_at_once_never_answers_busy(path: Path):
    """The last to close removes the WAL, the next to open makes one: with others coming and going all the time."""

    async def come_and_go(name: str) -> None:
        for n in range(15):
            async with opened(path, migrated=False) as store, running(store, patience_s=0.0) as engine:
                assert (await engine.tell(NS, f"{name}-{n}", start(f"{name}-{n}"))).applied

    with others(*[("open_and_close", path, 15)] * 3) as processes:
        await come_and_go("here")
        for process in processes:
            await asyncio.to_thread(process.succeed)
    assert len(dump(path)["outlast_execution"]) == 60
    assert intact(path)
