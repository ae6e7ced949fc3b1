"""The thread behind a store: shared transactions, failures, crashes, loops that go away, openings that are given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.errors import ReplyLost, StoreClosed, StoreError
from outlast.model.lane import Lane
from outlast.store.port import Query
from outlast.store.sqlite import SqliteStore
from outlast.store.sqlite.connection import Connection, Transaction
from outlast.testing import Crash, CrashPoints
from tests.integration.sqlite.tools import NS, claim, claim_request, dump, opened, running, start


class Gate:
    """Points that stop the writer at its first transaction, so that what is asked meanwhile shares the next one."""

    def __init__(self) -> None:
        self.points = CrashPoints()
        self.reached, self.open = threading.Event(), threading.Event()
        self.at = ""

    def __call__(self, name: str) -> None:
        if name == self.at:
            self.at = ""
            self.reached.set()
            assert self.open.wait(10)
        self.points(name)


async def shared(store: SqliteStore, gate: Gate, *operations: Callable[[Transaction], object]) -> list[object]:
    """The outcomes of operations that ran in one transaction."""
    writer = store._opened().writer
    assert writer is not None
    gate.at = "first:begin"
    first = writer.call("first", lambda tx: None)
    assert await asyncio.to_thread(gate.reached.wait, 10)
    calls = [writer.call("commit", operation) for operation in operations]
    gate.points.passed.clear()
    gate.open.set()
    await first
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outlast.db"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    def ours() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("outlast-sqlite")]

    assert ours() == []
    yield
    for thread in ours():
        thread.join(10)  # a close that was cancelled goes on without its caller
    assert ours() == []


def pause(lane: str, runs: list[str] | None = None) -> Callable[[Transaction], str]:
    def operation(tx: Transaction) -> str:
        if runs is not None:
            runs.append(lane)
        tx.rows("INSERT INTO outlast_lane VALUES (0, ?, ?, 1)", (NS, lane))
        return lane

    return operation


def fail(tx: Transaction) -> None:
    tx.rows("INSERT INTO outlast_lane VALUES (0, 'x', 'half', 1)")
    raise ValueError("a bug")


# ---- shared transactions ------------------------------------------------------------------------------------------


async def test_operations_that_gather_share_a_transaction(path: Path):
    gate = Gate()
    async with opened(path, points=gate) as store:
        outcomes = await shared(store, gate, *[pause(f"l{n}") for n in range(20)])
        assert outcomes == [f"l{n}" for n in range(20)]
        assert gate.points.passed.count("commit:begin") == 1
        assert gate.points.passed.count("commit:commit") == 1


async def test_failing_operation_leaves_nothing_and_fails_alone(path: Path):
    gate, runs = Gate(), list[str]()
    async with opened(path, points=gate) as store:
        outcomes = await shared(store, gate, pause("a", runs), fail, pause("b", runs), pause("a", runs))
        assert outcomes[0] == "a"
        assert isinstance(outcomes[1], ValueError)
        assert outcomes[2] == "b"
        assert isinstance(outcomes[3], StoreError)  # its row was there
        assert runs == ["a", "a", "b", "a"]  # what ran before the failure ran again
        lanes = await store.scan("lane", (0,))
        assert [lane.lane for lane in lanes if isinstance(lane, Lane)] == ["a", "b"]
        assert (await store.now()) > 0


async def test_crash_while_each_is_done_alone_answers_everybody(path: Path):
    gate = Gate()
    async with opened(path, points=gate) as store:
        gate.points.crash_at("commit:commit", nth=2)
        outcomes = await asyncio.wait_for(shared(store, gate, pause("a"), fail, pause("b"), pause("c")), 10)
        assert outcomes[0] == "a"
        assert isinstance(outcomes[1], ValueError)
        assert isinstance(outcomes[2], Crash)
        assert isinstance(outcomes[3], Crash)
        with pytest.raises(StoreClosed, match="has stopped"):
            await store.commit([])
        assert await store.count(Query(namespace=NS)) == 0  # the reader is another thread
    assert [row[2] for row in dump(path)["outlast_lane"]] == ["a"]


async def test_lost_reply_is_lost_only_for_the_operation_that_lost_it(path: Path):
    gate = Gate()
    async with opened(path, points=gate) as store, running(store, patience_s=0.0) as engine:
        gate.at = "commit:begin"
        first = asyncio.create_task(engine.tell(NS, "a", start("a")))
        assert await asyncio.to_thread(gate.reached.wait, 10)
        claiming = asyncio.create_task(store.claim(claim_request()))
        renewing = asyncio.create_task(store.renew("worker-2", lease_ttl_ms=1_000))
        await asyncio.sleep(0.01)
        gate.points.lose_reply("claim")
        gate.open.set()
        assert (await first).applied
        with pytest.raises(ReplyLost):
            await claiming
        assert (await renewing).held == []
        assert [c.execution.id for c in await claim(store)] == ["a"]  # the same claim id finds it


# ---- loops --------------------------------------------------------------------------------------------------------


def test_loop_that_closes_early_takes_nobody_with_it(path: Path):
    """Its answer comes when nobody is left to hear it; the store goes on for the others."""
    gate = Gate()
    store = SqliteStore(str(path), points=gate)

    async def begin() -> None:
        await store.migrate()
        await store.open()

    async def ask_and_leave() -> None:
        writer = store._opened().writer
        assert writer is not None
        gate.at = "first:begin"
        writer.call("first", lambda tx: None)
        assert await asyncio.to_thread(gate.reached.wait, 10)

    async def go_on() -> int:
        async with running(store) as engine:
            await engine.tell(NS, "order", start("order"))
        return await store.count(Query(namespace=NS))

    asyncio.run(begin())
    asyncio.run(ask_and_leave())
    gate.open.set()
    assert asyncio.run(go_on()) == 1
    asyncio.run(store.close())


def test_several_loops_use_one_store_at_once(path: Path):
    store = SqliteStore(str(path))
    asyncio.run(store.migrate())
    asyncio.run(store.open())
    errors: list[BaseException] = []

    async def work(name: str) -> None:
        async with running(store) as engine:
            for n in range(20):
                assert (await engine.tell(NS, f"{name}-{n}", start(f"{name}-{n}"))).applied

    def run(name: str) -> None:
        try:
            asyncio.run(work(name))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert asyncio.run(store.count(Query(namespace=NS))) == 80
    asyncio.run(store.close())


# ---- opening and closing ------------------------------------------------------------------------------------------


async def test_opening_at_once_opens_once(path: Path):
    store = SqliteStore(str(path))
    await store.migrate()
    await asyncio.gather(*[store.open() for _ in range(5)])
    ours = [t for t in threading.enumerate() if t.name.startswith("outlast-sqlite")]
    assert len(ours) == 2
    await asyncio.gather(store.close(), store.close())


async def test_migrating_beside_opening_does_not_close_what_was_opened(path: Path):
    await SqliteStore(str(path)).migrate()
    store = SqliteStore(str(path))
    await asyncio.gather(store.migrate(), store.open(), store.migrate())
    assert await store.count(Query(namespace=NS)) == 0
    await store.close()


@pytest.mark.parametrize("ticks", range(6))
async def test_opening_that_is_cancelled_leaves_nothing_open(path: Path, ticks: int):
    await SqliteStore(str(path)).migrate()
    store = SqliteStore(str(path))
    opening = asyncio.create_task(store.open())
    for _ in range(ticks):
        await asyncio.sleep(0.0005)
    opening.cancel()
    await asyncio.wait([opening])
    await store.close()
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_closing_that_is_cancelled_still_lets_go(path: Path):
    store = SqliteStore(str(path))
    await store.migrate()
    await store.open()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_closing_lets_what_was_accepted_finish(path: Path):
    gate = Gate()
    store = SqliteStore(str(path), points=gate)
    await store.migrate()
    await store.open()
    gate.at = "commit:begin"
    writer = store._opened().writer
    assert writer is not None
    calls = [writer.call("commit", pause(f"l{n}")) for n in range(100)]
    assert await asyncio.to_thread(gate.reached.wait, 10)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    gate.open.set()
    await closing
    assert await asyncio.gather(*calls) == [f"l{n}" for n in range(100)]
    with pytest.raises(StoreClosed, match="is closed"):
        writer.call("commit", pause("late"))


async def test_store_can_be_opened_again(path: Path):
    store = SqliteStore(str(path))
    await store.migrate()
    for n in range(3):
        await store.open()
        async with running(store) as engine:
            await engine.tell(NS, f"order-{n}", start(f"order-{n}"))
        await store.close()
    assert len(dump(path)["outlast_execution"]) == 3


def test_connection_that_cannot_be_opened_raises_and_ends_its_thread(path: Path):
    def refuse():
        raise OSError("no")

    class Still:
        def now_ms(self) -> int:
            return 1

    connection = Connection(str(path), begin="BEGIN", connect=refuse, turn=None, clock=Still(), points=None, bell=None)
    with pytest.raises(OSError, match="no"):
        connection.open()
    connection.close()
