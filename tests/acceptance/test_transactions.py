"""`@app.transaction`: the user's SQL and the journal's record in one commit, exactly once."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec import structs

import outlast
from outlast import (
    App,
    ExecutionCancelled,
    InvalidInput,
    LimitExceeded,
    Retry,
    TransactionUnsupported,
    WrongPlace,
)
from outlast.errors import StoreClosed
from outlast.store.sqlite import SqliteStore
from outlast.testing import CrashPoints
from tests.acceptance.conftest import STORES, Place, claims_no_more, status_is, until


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Only the SQLite store has transactional steps so far."""
    return Place(STORES["sqlite"](tmp_path))


def file_of(place: Place) -> str:
    return place.url.removeprefix("sqlite:///")


@pytest.fixture
def bank(place: Place) -> apsw.Connection:
    """A table of the user's own, in the store's file."""
    connection = apsw.Connection(file_of(place))
    connection.execute("CREATE TABLE account (name TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0))")
    connection.execute("INSERT INTO account VALUES ('ann', 100), ('bob', 0)")
    return connection


def balances(bank: apsw.Connection) -> dict[str, int]:
    rows: list[Any] = list(bank.execute("SELECT name, cents FROM account ORDER BY name"))
    return dict(rows)


def define_move(app: App, **options: Any) -> Any:
    @app.transaction(**options)
    def move(giver: str, taker: str, cents: int) -> int:
        sql = outlast.connection()
        sql.execute("UPDATE account SET cents = cents + ? WHERE name = ?", (cents, taker))
        sql.execute("UPDATE account SET cents = cents - ? WHERE name = ?", (cents, giver))
        return sql.execute("SELECT cents FROM account WHERE name = ?", (giver,)).fetchone()[0]

    return move


async def test_the_sql_is_committed_with_the_journal_and_its_result_is_the_steps(app: App, bank: Any) -> None:
    move = define_move(app)

    @app.workflow
    async def pay() -> list[int]:
        return [await move.aio("ann", "bob", 30), await move.aio("ann", "bob", 20)]

    async with app:
        handle = await pay.start()
        assert await handle.result(timeout=20) == [70, 50]
        assert [(e.op, e.name, e.outcome) for e in await handle.journal()] == [("transaction", "move", "succeeded")] * 2
    assert balances(bank) == {"ann": 50, "bob": 50}


async def test_a_def_workflow_calls_it_as_it_is_written(app: App, bank: Any) -> None:
    move = define_move(app)

    @app.workflow
    def pay() -> int:
        return move("ann", "bob", 30)

    async with app:
        assert await pay.aio() == 70
    assert balances(bank) == {"ann": 70, "bob": 30}


async def test_what_it_raises_rolls_back_its_own_statements_and_nothing_else(app: App, bank: Any) -> None:
    move = define_move(app)

    @app.step
    async def other() -> str:
        return "fine"

    @app.workflow
    async def pay() -> list[str]:
        done = await asyncio.gather(
            move.aio("ann", "bob", 10), move.aio("ann", "bob", 999), other(), return_exceptions=True
        )
        return [type(one).__name__ if isinstance(one, Exception) else str(one) for one in done]

    async with app:
        handle = await pay.start()
        assert await handle.result(timeout=20) == ["90", "ConstraintError", "fine"]
        assert sorted(e.outcome for e in await handle.journal()) == ["failed", "succeeded", "succeeded"]
    assert balances(bank) == {"ann": 90, "bob": 10}


async def test_it_is_retried_as_it_says_from_a_clean_state(app: App, bank: Any) -> None:
    tries: list[int] = []

    @app.transaction(retry=Retry(max_attempts=3, initial="1ms"))
    def flaky() -> int:
        outlast.connection().execute("UPDATE account SET cents = cents + 1 WHERE name = 'bob'")
        tries.append(1)
        if len(tries) < 3:
            raise OSError("again")
        return len(tries)

    @app.workflow
    async def pay() -> int:
        return await flaky.aio()

    async with app:
        handle = await pay.start()
        assert await handle.result(timeout=20) == 3
        [entry] = await handle.journal()
        assert entry.tries == 3
    assert balances(bank)["bob"] == 1


@pytest.mark.parametrize("exits", [SystemExit, GeneratorExit])
async def test_one_that_exits_is_rolled_back_and_has_failed(app: App, bank: Any, exits: type[BaseException]) -> None:
    @app.transaction
    def exiting() -> None:
        outlast.connection().execute("UPDATE account SET cents = cents + 1 WHERE name = 'bob'")
        raise exits

    @app.workflow
    async def pay() -> None:
        await exiting.aio()

    async with app:
        handle = await pay.start()
        with pytest.raises(RuntimeError, match=f"ended with {exits.__name__}"):
            await handle.result(timeout=20)
    assert balances(bank)["bob"] == 0


async def test_replay_does_not_call_it_again(clocked: Place, bank: Any) -> None:
    calls: list[str] = []
    gate: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]

    def build(app: App, n: int) -> Any:
        @app.transaction
        def deposit() -> int:
            calls.append("deposit")
            sql = outlast.connection()
            sql.execute("UPDATE account SET cents = cents + 7 WHERE name = 'bob'")
            return sql.execute("SELECT cents FROM account WHERE name = 'bob'").fetchone()[0]

        @app.step
        async def stop() -> None:
            calls.append("stop")
            await gate[n].wait()

        @app.workflow(name="pay")
        async def pay() -> int:
            got = await deposit.aio()
            await stop()
            return got

        return pay

    first, second = clocked.app(), clocked.app()
    theirs = build(second, 1)
    gate[1].set()
    async with first:
        await build(first, 0).options(id="it").start()
        await until(lambda: "stop" in calls, "it does not get on")
        opened, first._opened = first._opened, None
        assert opened is not None
        await opened.abandon()
    async with second:
        await clocked.pass_time(second, "2d")
        assert await theirs.execution("it").result(timeout=20) == 7
    assert calls == ["deposit", "stop", "stop"]
    assert balances(bank)["bob"] == 7


async def test_a_lost_reply_does_not_do_it_twice(place: Place, bank: Any) -> None:
    points = CrashPoints()
    app = App(place.url, store=lambda: SqliteStore(file_of(place), points=points))
    move = define_move(app)

    @app.workflow
    async def pay() -> int:
        return await move.aio("ann", "bob", 30)

    async with app:
        points.lose_reply("transact")
        assert await (await pay.start()).result(timeout=20) == 70
    assert "transact:reply" in points.passed
    assert balances(bank) == {"ann": 70, "bob": 30}


async def test_one_that_was_cancelled_and_fails_is_nobodys(place: Place, bank: Any, caplog: pytest.LogCaptureFixture):
    under_way, closes = asyncio.Event(), asyncio.Event()

    class Closing(SqliteStore):
        async def transact(self, check: Any, body: Any, *, limit_ms: int) -> Any:
            under_way.set()
            await closes.wait()
            raise StoreClosed("the store is closed")

    app = App(place.url, store=lambda: Closing(file_of(place)))
    move = define_move(app)

    @app.workflow
    async def pay() -> int:
        return await move.aio("ann", "bob", 30)

    async with app:
        handle = await pay.start()
        await under_way.wait()
        await handle.cancel()
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)
        closes.set()
        await asyncio.sleep(0.01)
        gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_zombie_does_not_even_begin(clocked: Place, bank: Any) -> None:
    """The fence is read before the user's function is called."""
    first, second = clocked.app(), clocked.app()
    held: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]
    began, calls = asyncio.Event(), []

    def build(app: App, n: int) -> Any:
        @app.step
        async def hold() -> None:
            began.set()
            await held[n].wait()

        @app.transaction
        def deposit() -> None:
            calls.append(n)
            outlast.connection().execute("UPDATE account SET cents = cents + 1 WHERE name = 'bob'")

        @app.workflow(name="pay")
        async def pay() -> None:
            await hold()
            await deposit.aio()

        return pay

    theirs = build(second, 1)
    held[1].set()
    async with first:
        await build(first, 0).options(id="it").start()
        await began.wait()
        claims_no_more(first)
        async with second:
            await clocked.pass_time(second, "2d")
            await theirs.execution("it").result(timeout=20)
            held[0].set()
            await asyncio.sleep(0.05)
    assert calls == [1]
    assert balances(bank)["bob"] == 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM outlast_execution",
        "UPDATE outlast_execution SET epoch = 99",
        "DELETE FROM Outlast_Journal",
        "SELECT status, epoch, inbox FROM outlast_execution WHERE namespace = ? AND id = ?",
        "DROP TABLE outlast_frame",
        "ALTER TABLE outlast_frame RENAME TO mine",
        "CREATE TRIGGER t AFTER INSERT ON outlast_journal BEGIN SELECT 1; END",
        "CREATE TEMP TABLE outlast_execution (x)",
        "CREATE INDEX i ON outlast_journal (name)",
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT mine",
        "RELEASE outlast",
        "ROLLBACK TO outlast",
        "PRAGMA synchronous = OFF",
        "ATTACH 'other.db' AS other",
        "INSERT OR ROLLBACK INTO account VALUES ('ann', 1)",
        "UPDATE account SET cents = 1 WHERE name = 'ann'; COMMIT",
    ],
)
async def test_it_may_not_touch_what_is_outlasts(app: App, bank: Any, sql: str) -> None:
    @app.transaction
    def bad() -> None:
        connection = outlast.connection()
        connection.execute("UPDATE account SET cents = 1 WHERE name = 'bob'")
        try:
            connection.execute(sql, ("default", "it") if "?" in sql else ())
        except apsw.ConstraintError:
            connection.execute("UPDATE account SET cents = 77 WHERE name = 'bob'")

    @app.transaction
    def good() -> None:
        outlast.connection().execute("UPDATE account SET cents = cents + 5 WHERE name = 'ann'")

    @app.workflow
    async def pay() -> str:
        done = await asyncio.gather(good.aio(), bad.aio(), good.aio(), return_exceptions=True)
        assert done[0] is None
        assert done[2] is None
        return type(done[1]).__name__

    async with app:
        handle = await pay.options(id="it").start()
        assert await handle.result(timeout=20) == "StatementRefused"
        assert (await handle.info()).status == "succeeded"
    assert balances(bank) == {"ann": 110, "bob": 0}


async def test_sql_that_takes_too_long_is_stopped_and_nobody_else_is_harmed(app: App, bank: Any) -> None:
    @app.transaction(timeout="100ms")
    def endless(write: bool) -> None:
        sql = outlast.connection()
        sql.execute("UPDATE account SET cents = 1 WHERE name = 'bob'")
        numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
        sql.execute("CREATE TABLE IF NOT EXISTS many (x)")
        sql.execute(f"INSERT INTO many {numbers} SELECT x FROM n" if write else f"{numbers} SELECT count(*) FROM n")

    @app.transaction(timeout="50ms")
    def sleepy() -> None:
        outlast.connection().execute("UPDATE account SET cents = 1 WHERE name = 'bob'")
        time.sleep(0.1)

    @app.step
    async def other() -> int:
        return 1

    @app.workflow
    async def pay() -> list[str]:
        calls = (endless.aio(True), endless.aio(False), sleepy.aio(), other())
        done = await asyncio.gather(*calls, return_exceptions=True)
        return [type(one).__name__ for one in done]

    async with app:
        assert await (await pay.start()).result(timeout=30) == ["TimeoutError", "TimeoutError", "TimeoutError", "int"]
    assert balances(bank)["bob"] == 0


async def test_an_async_def_is_refused_on_sqlite_with_what_to_write(app: App) -> None:
    @app.transaction
    async def move() -> None: ...

    @app.workflow
    async def pay() -> None:
        await move()

    async with app:
        handle = await pay.start()
        with pytest.raises(TransactionUnsupported, match="runs transactions written as def"):
            await handle.result(timeout=20)
        [refused] = await handle.journal()
        assert (refused.name, refused.op, refused.outcome) == ("move", "transaction", "failed")


class Without(SqliteStore):
    @property
    def capabilities(self) -> Any:
        return structs.replace(super().capabilities, transactions=None)


async def test_a_store_without_transactions_refuses_and_nothing_is_called(place: Place) -> None:
    app = App(place.url, store=lambda: Without(file_of(place)))
    called: list[int] = []

    @app.transaction
    def move() -> None:
        called.append(1)

    @app.workflow
    async def pay() -> None:
        await outlast.compensate(move)

    @app.workflow
    async def pay_more() -> None:
        await move.aio()

    async with app:
        for workflow in (pay, pay_more):
            handle = await workflow.start()
            with pytest.raises(TransactionUnsupported, match="no tables of yours"):
                await handle.result(timeout=20)
            assert {entry.outcome for entry in await handle.journal()} == {"failed"}
    assert called == []


async def test_what_was_committed_before_is_replayed_on_a_store_without_transactions(place: Place) -> None:
    """As after `outlast copy` to Valkey."""
    called: list[str] = []

    def made(*, can: bool) -> tuple[App, Any]:
        app = App(place.url, store=lambda: (SqliteStore if can else Without)(file_of(place)))

        @app.transaction
        def move(what: str) -> str:
            called.append(what)
            return what

        @app.workflow
        async def pay() -> str:
            await outlast.compensate(move, "back")
            moved = await move.aio("there")
            await outlast.receive("go")
            raise ValueError(moved)

        return app, pay

    app, pay = made(can=True)
    async with app:
        handle = await pay.options(id="x").start()
        await status_is(handle, "suspended")
    app, pay = made(can=False)
    async with app:
        handle = pay.execution("x")
        await handle.send("go")
        with pytest.raises(ValueError, match="there"):
            await handle.result(timeout=20)
        undo = (await handle.journal())[-1]
        assert (undo.name, undo.outcome) == ("move", "failed")
        assert "TransactionUnsupported" in str(undo)
    assert called == ["there"]


async def test_it_is_refused_outside_of_workflows_and_in_steps(app: App) -> None:
    move = define_move(app)

    @app.step
    async def step() -> None:
        await move.aio("a", "b", 1)

    @app.workflow
    async def pay() -> None:
        await step()

    with pytest.raises(WrongPlace, match="outside of a workflow"):
        move("a", "b", 1)
    with pytest.raises(WrongPlace, match=r"@app\.transaction"):
        outlast.connection()
    async with app:
        with pytest.raises(WrongPlace, match="inside step 'step'"):
            await (await pay.start()).result(timeout=20)
    with pytest.raises(InvalidInput, match="is a transaction already"):
        app.transaction(move)


async def test_a_connection_is_of_no_use_afterwards_or_elsewhere(app: App, bank: Any) -> None:
    kept: list[Any] = []

    @app.transaction
    def keep() -> str:
        import threading

        connection = outlast.connection()
        kept.append(connection)
        answers: list[str] = []

        def elsewhere() -> None:
            try:
                connection.execute("SELECT 1")
            except WrongPlace as error:
                answers.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return answers[0]

    @app.transaction
    def blocking() -> None:
        app.blocking(lambda: asyncio.sleep(0))

    @app.workflow
    async def pay() -> str:
        with pytest.raises(WrongPlace, match="holds the store"):
            await blocking.aio()
        return await keep.aio()

    async with app:
        assert "its own thread" in await (await pay.start()).result(timeout=20)
    with pytest.raises(WrongPlace, match="that is over"):
        kept[0].execute("SELECT 1")


async def test_a_result_that_cannot_be_stored_rolls_back(app: App, bank: Any) -> None:
    @app.transaction
    def bad(size: int) -> Any:
        outlast.connection().execute("UPDATE account SET cents = 1 WHERE name = 'bob'")
        return object() if size == 0 else "x" * size

    @app.workflow
    async def pay(size: int) -> None:
        await bad.aio(size)

    async with app:
        with pytest.raises(InvalidInput):
            await (await pay.start(0)).result(timeout=20)
        with pytest.raises(LimitExceeded):
            await (await pay.start(5_000_000)).result(timeout=20)
    assert balances(bank)["bob"] == 0


async def test_parallel_transactions_and_steps_replay_in_the_order_in_which_they_were_seen(
    clocked: Place, bank: Any
) -> None:
    seen: list[list[str]] = []
    gates = [asyncio.Event(), asyncio.Event()]
    gates[1].set()
    stopped = asyncio.Event()

    def build(app: App, n: int) -> Any:
        @app.transaction
        def write(name: str) -> str:
            outlast.connection().execute("UPDATE account SET cents = cents + 1 WHERE name = 'bob'")
            return name

        @app.step
        async def quick(name: str) -> str:
            return name

        @app.step
        async def stop() -> None:
            stopped.set()
            await gates[n].wait()

        @app.workflow(name="mixed")
        async def mixed() -> list[str]:
            order: list[str] = []
            seen.append(order)

            async def branch(name: str) -> None:
                for k in range(5):
                    order.append(await (write.aio if k % 2 else quick)(f"{name}{k}"))

            await asyncio.gather(*(branch(name) for name in "abcd"))
            await stop()
            return order

        return mixed

    first, second = clocked.app(), clocked.app()
    theirs = build(second, 1)
    async with first:
        await build(first, 0).options(id="it").start()
        await asyncio.wait_for(stopped.wait(), 20)
        opened, first._opened = first._opened, None
        assert opened is not None
        await opened.abandon()
    async with second:
        await clocked.pass_time(second, "2d")
        assert await theirs.execution("it").result(timeout=20) == seen[0]
    assert seen[1] == seen[0]
    assert balances(bank)["bob"] == 8


def test_the_users_file_is_the_stores(place: Place) -> None:
    """What the tests above rely on: the tables are in the very file that the store writes."""
    assert Path(file_of(place)).name == "acceptance.db"
