"""`@app.transaction` on PostgreSQL: the user's SQL and the journal's record in one commit, exactly once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

import outlast
from outlast import App, Retry, StatementRefused, TransactionUnsupported, WrongPlace
from outlast.app import store_for
from outlast.store.postgres.transacting import refused
from outlast.testing import CrashPoints, ManualClock
from tests import postgres
from tests.acceptance.conftest import Place, claims_no_more, until

pytestmark = pytest.mark.timeout(60)

CUT_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture
async def url() -> str:
    return await postgres.empty()


@pytest.fixture
async def bank(url: str) -> AsyncIterator[Any]:
    """A table of the user's own, in the store's database."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        "DROP TABLE IF EXISTS account; CREATE TABLE account (name text PRIMARY KEY, cents int CHECK (cents >= 0));"
        "INSERT INTO account VALUES ('ann', 100), ('bob', 0)"
    )
    yield connection
    await connection.execute("DROP TABLE account")
    await connection.close()


@pytest.fixture
def app(url: str, bank: Any) -> App:
    return App(url)


@pytest.fixture
def clocked(url: str, bank: Any) -> Place:
    return Place(url, ManualClock())


async def balances(bank: Any) -> dict[str, int]:
    return dict(await bank.fetch("SELECT name, cents FROM account ORDER BY name"))


def define_move(app: App, **options: Any) -> Any:
    @app.transaction(**options)
    async def move(giver: str, taker: str, cents: int) -> int:
        sql = outlast.connection()
        assert await sql.execute("UPDATE account SET cents = cents + $1 WHERE name = $2", cents, taker) == "UPDATE 1"
        await sql.execute("UPDATE account SET cents = cents - $1 WHERE name = $2", cents, giver)
        return await sql.fetchval("SELECT cents FROM account WHERE name = $1", giver)

    return move


async def test_the_sql_is_committed_with_the_journal_and_its_result_is_the_steps(app: App, bank: Any):
    move = define_move(app)

    @app.workflow
    async def pay() -> list[int]:
        return [await move("ann", "bob", 30), await move("ann", "bob", 20)]

    async with app:
        handle = await pay.start()
        assert await handle.result(timeout=20) == [70, 50]
        assert [(e.op, e.name, e.outcome) for e in await handle.journal()] == [("transaction", "move", "succeeded")] * 2
    assert await balances(bank) == {"ann": 50, "bob": 50}


async def test_a_def_workflow_calls_it_by_its_blocking_face(app: App, bank: Any):
    move = define_move(app)

    @app.workflow
    def pay() -> int:
        return move.sync("ann", "bob", 30)

    async with app:
        assert await pay.aio() == 70
    assert await balances(bank) == {"ann": 70, "bob": 30}


async def test_what_it_raises_rolls_back_its_own_statements_and_nothing_else(app: App, bank: Any):
    move = define_move(app)

    @app.step
    async def other() -> str:
        return "fine"

    @app.workflow
    async def pay() -> list[str]:
        done = await asyncio.gather(move("ann", "bob", 10), move("ann", "bob", 999), other(), return_exceptions=True)
        return [type(one).__name__ if isinstance(one, Exception) else str(one) for one in done]

    async with app:
        handle = await pay.start()
        assert await handle.result(timeout=20) == ["90", "CheckViolationError", "fine"]
        assert sorted(e.outcome for e in await handle.journal()) == ["failed", "succeeded", "succeeded"]
    assert await balances(bank) == {"ann": 90, "bob": 10}


async def test_it_is_retried_as_it_says_from_a_clean_state(app: App, bank: Any):
    tries: list[int] = []

    @app.transaction(retry=Retry(max_attempts=3, initial="1ms"))
    async def flaky() -> int:
        await outlast.connection().execute("UPDATE account SET cents = cents + 1 WHERE name = 'bob'")
        tries.append(1)
        if len(tries) < 3:
            raise OSError("again")
        return len(tries)

    @app.workflow
    async def pay() -> int:
        return await flaky()

    async with app:
        handle = await pay.start()
        assert await handle.result(timeout=20) == 3
        [entry] = await handle.journal()
        assert entry.tries == 3
    assert (await balances(bank))["bob"] == 1


@pytest.mark.parametrize("waits", [True, False])
async def test_one_that_cancels_itself_is_rolled_back_and_has_failed(app: App, bank: Any, waits: bool):
    tries: list[int] = []

    @app.transaction(retry=Retry(max_attempts=3, initial="1ms"))
    async def cancelled() -> None:
        await outlast.connection().execute("UPDATE account SET cents = cents + 1 WHERE name = 'bob'")
        tries.append(1)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if waits:
            await asyncio.sleep(10)

    @app.workflow
    async def pay() -> None:
        await cancelled()

    async with app:
        handle = await pay.start()
        with pytest.raises(RuntimeError, match="ended with CancelledError"):
            await handle.result(timeout=20)
    assert len(tries) == 3
    assert (await balances(bank))["bob"] == 0


@pytest.mark.parametrize("exits", [SystemExit, GeneratorExit])
@pytest.mark.parametrize("below", [True, False])
async def test_one_that_exits_is_rolled_back_and_has_failed(
    app: App, bank: Any, exits: type[BaseException], below: bool
):
    async def leaves() -> None:
        raise exits

    @app.transaction
    async def exiting() -> None:
        await outlast.connection().execute("UPDATE account SET cents = cents + 1 WHERE name = 'bob'")
        if below and exits is GeneratorExit:  # a task that ends with SystemExit ends its loop
            await asyncio.create_task(leaves())
        await leaves()

    @app.workflow
    async def pay() -> None:
        await exiting()

    async with app:
        handle = await pay.start()
        with pytest.raises(RuntimeError, match=f"ended with {exits.__name__}"):
            await handle.result(timeout=20)
    assert (await balances(bank))["bob"] == 0


async def test_replay_does_not_call_it_again(clocked: Place, bank: Any):
    calls: list[str] = []
    gate: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]

    def build(app: App, n: int) -> Any:
        @app.transaction
        async def deposit() -> int:
            calls.append("deposit")
            sql = outlast.connection()
            return await sql.fetchval("UPDATE account SET cents = cents + 7 WHERE name = 'bob' RETURNING cents")

        @app.step
        async def stop() -> None:
            calls.append("stop")
            await gate[n].wait()

        @app.workflow(name="pay")
        async def pay() -> int:
            got = await deposit()
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
    assert (await balances(bank))["bob"] == 7


async def test_a_lost_reply_does_not_do_it_twice(url: str, bank: Any):
    points = CrashPoints()
    app = App(url, store=lambda: store_for(url, points=points))
    move = define_move(app)

    @app.workflow
    async def pay() -> int:
        return await move("ann", "bob", 30)

    async with app:
        points.lose_reply("transact")
        assert await (await pay.start()).result(timeout=20) == 70
    assert "transact:reply" in points.passed
    assert await balances(bank) == {"ann": 70, "bob": 30}


@pytest.mark.slow
async def test_a_connection_that_is_cut_at_any_moment_neither_loses_nor_doubles_it(app: App, bank: Any):
    """At random, and some of them for sure between what is written and its commit."""
    calls: list[int] = []
    asked, cut = asyncio.Event(), asyncio.Event()

    @app.transaction
    async def deposit() -> None:
        sql = outlast.connection()
        calls.append(1)
        await sql.execute("UPDATE account SET cents = cents + 1 WHERE name = 'bob'")
        if len(calls) in (3, 9, 15):
            cut.clear()
            asked.set()
            await cut.wait()
        await asyncio.sleep(0.005)
        await sql.fetchval("SELECT 1")

    @app.workflow
    async def pay() -> None:
        for _ in range(8):
            await deposit()

    async with app:
        handles = [await pay.options(id=f"p{n}").start() for n in range(3)]
        waiting = asyncio.gather(*(handle.result(timeout=60) for handle in handles))
        while not waiting.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), 0.2 + random.random() * 0.1)
            asked.clear()
            await bank.execute(CUT_OTHERS)
            cut.set()
        await waiting
    assert (await balances(bank))["bob"] == 24
    assert len(calls) > 24, "some were called again, after a rollback"


async def test_a_serialization_failure_and_a_deadlock_are_nobodys_business(url: str, bank: Any):
    app, tries = App(url), {"deadlock": 0, "serial": 0}
    both, two_have_read = asyncio.Event(), asyncio.Event()

    @app.transaction
    async def crossing(first: str, second: str) -> None:
        """Two of these lock each other out."""
        sql = outlast.connection()
        tries["deadlock"] += 1
        await sql.execute("UPDATE account SET cents = cents + 1 WHERE name = $1", first)
        if tries["deadlock"] >= 2:
            both.set()
        await both.wait()
        await sql.execute("UPDATE account SET cents = cents + 1 WHERE name = $1", second)

    @app.transaction
    async def counted() -> None:
        sql = outlast.connection()
        tries["serial"] += 1
        cents = await sql.fetchval("SELECT cents FROM account WHERE name = 'bob'")
        if tries["serial"] >= 2:
            two_have_read.set()
        await two_have_read.wait()
        await sql.execute("UPDATE account SET cents = $1 WHERE name = 'bob'", cents + 1)

    @app.workflow
    async def pay() -> None:
        await asyncio.gather(crossing("ann", "bob"), crossing("bob", "ann"))
        await asyncio.gather(*(counted() for _ in range(4)))

    database = postgres.RECYCLED
    await bank.execute(f"ALTER DATABASE {database} SET default_transaction_isolation = 'repeatable read'")
    await bank.execute(f"ALTER DATABASE {database} SET deadlock_timeout = '50ms'")
    try:
        async with app:
            handle = await pay.start()
            await handle.result(timeout=30)
            assert [entry.tries for entry in await handle.journal()] == [1] * 6
    finally:
        await bank.execute(f"ALTER DATABASE {database} RESET ALL")
    assert await balances(bank) == {"ann": 102, "bob": 6}
    assert tries["deadlock"] > 2
    assert tries["serial"] > 4


async def test_a_zombie_does_not_even_begin(clocked: Place, bank: Any):
    await zombie(clocked, bank, holds_before=True)


async def test_who_becomes_a_zombie_in_the_middle_is_rolled_back(clocked: Place, bank: Any):
    await zombie(clocked, bank, holds_before=False)


async def zombie(clocked: Place, bank: Any, *, holds_before: bool) -> None:
    first, second = clocked.app(), clocked.app()
    held: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]
    began, calls = asyncio.Event(), []

    def build(app: App, n: int) -> Any:
        async def wait() -> None:
            began.set()
            await held[n].wait()

        @app.step
        async def hold() -> None:
            if holds_before:
                await wait()

        @app.transaction
        async def deposit() -> None:
            calls.append(n)
            await outlast.connection().execute("INSERT INTO account VALUES ($1, 1)", f"worker {n}")
            if not holds_before:
                await wait()

        @app.workflow(name="pay")
        async def pay() -> None:
            await hold()
            await deposit()

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
            await asyncio.sleep(0.1)
    assert calls == ([1] if holds_before else [0, 1])
    assert set(await balances(bank)) == {"ann", "bob", "worker 1"}


REFUSED = [
    "SELECT * FROM outlast.execution",
    "UPDATE outlast.execution SET epoch = 99",
    'DELETE FROM "outlast" . "journal"',
    "DROP TABLE OUTLAST.frame",
    "SELECT outlast.commit_12345678()",
    "COMMIT",
    "  -- a comment\n /* and another */ ROLLBACK",
    "begin",
    "END",
    "ABORT",
    "START TRANSACTION",
    "SAVEPOINT mine",
    "RELEASE mine",
    "PREPARE TRANSACTION 'x'",
    "SET search_path = outlast",
    "SET SESSION synchronous_commit = off",
    "RESET ALL",
    "DISCARD ALL",
    "LISTEN outlast",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_statements_that_it_may_not_do(sql: str):
    said = refused(sql)
    assert said is not None
    assert any(word in said for word in ("schema outlast", "belong to Outlast", "beyond the transaction"))


async def test_it_may_not_touch_what_is_outlasts(app: App, bank: Any):
    @app.transaction
    async def bad(sql: str) -> None:
        connection = outlast.connection()
        await connection.execute("UPDATE account SET cents = 1 WHERE name = 'bob'")
        await connection.execute(sql)

    @app.workflow
    async def pay(sql: str) -> None:
        await bad(sql)

    async with app:
        for sql in REFUSED[:6]:
            with pytest.raises(StatementRefused):
                await pay(sql)
    assert await balances(bank) == {"ann": 100, "bob": 0}


async def test_several_statements_in_one_text_are_refused_by_the_server(app: App, bank: Any):
    @app.transaction
    async def bad() -> None:
        await outlast.connection().execute("UPDATE account SET cents = 1 WHERE name = 'bob'; COMMIT")

    @app.workflow
    async def pay() -> None:
        await bad()

    async with app:
        with pytest.raises(asyncpg.PostgresSyntaxError, match="multiple commands"):
            await pay()
    assert (await balances(bank))["bob"] == 0


@pytest.mark.parametrize(
    "sql",
    [
        "SET LOCAL work_mem = '8MB'",
        "SELECT 'outlast.execution'",
        "SELECT 1 AS outlast",
        "SELECT 1 -- COMMIT",
        "SELECT outlast.start('checkout')",
        "UPDATE my_outlast.account SET cents = 1",
        "",
    ],
)
def test_what_only_looks_like_it_is_fine(sql: str):
    assert refused(sql) is None


async def test_sql_that_takes_too_long_is_stopped_and_nobody_else_is_harmed(app: App, bank: Any):
    @app.transaction(timeout="200ms")
    async def endless() -> None:
        sql = outlast.connection()
        await sql.execute("UPDATE account SET cents = 1 WHERE name = 'bob'")
        await sql.execute("SELECT pg_sleep(60)")

    @app.transaction(timeout="100ms")
    async def sleepy() -> None:
        await outlast.connection().execute("UPDATE account SET cents = 1 WHERE name = 'ann'")
        await asyncio.sleep(60)

    @app.step
    async def other() -> int:
        return 1

    @app.workflow
    async def pay() -> list[str]:
        done = await asyncio.gather(endless(), sleepy(), other(), return_exceptions=True)
        return [type(one).__name__ for one in done]

    async with app:
        assert await (await pay.start()).result(timeout=30) == ["TimeoutError", "TimeoutError", "int"]
    assert await balances(bank) == {"ann": 100, "bob": 0}


async def test_a_process_that_stands_still_has_not_used_up_the_time(app: App, bank: Any):
    calls: list[int] = []

    @app.transaction(timeout="200ms")
    async def deposit() -> None:
        calls.append(1)
        await outlast.connection().execute("UPDATE account SET cents = cents + 1 WHERE name = 'bob'")
        if len(calls) == 1:
            time.sleep(1)  # noqa: ASYNC251 (as when it is frozen)
        await asyncio.sleep(0.01)

    @app.workflow
    async def pay() -> None:
        await deposit()

    async with app:
        await pay()
    assert len(calls) > 1, "it was called again"
    assert (await balances(bank))["bob"] == 1


async def test_while_it_runs_others_tell_its_execution_what_they_want(app: App, bank: Any):
    began, over = asyncio.Event(), asyncio.Event()

    @app.transaction
    async def slow() -> None:
        await outlast.connection().execute("UPDATE account SET cents = 1 WHERE name = 'bob'")
        began.set()
        await over.wait()

    @app.workflow
    async def pay() -> str:
        await slow()
        return await outlast.receive("word", str)

    async with app:
        handle = await pay.start()
        await began.wait()
        async with asyncio.timeout(20):
            await handle.send("word", "hello")
        over.set()
        assert await handle.result(timeout=10) == "hello"


async def test_a_statement_that_failed_and_was_swallowed_is_told(app: App, bank: Any):
    @app.transaction
    async def careless(again: bool) -> None:
        sql = outlast.connection()
        try:
            await sql.execute("INSERT INTO account VALUES ('ann', 1)")
        except asyncpg.UniqueViolationError:
            if again:
                await sql.execute("UPDATE account SET cents = 1 WHERE name = 'ann'")

    @app.workflow
    async def pay(again: bool) -> None:
        await careless(again)

    async with app:
        for again in (False, True):
            with pytest.raises(StatementRefused, match="rolled everything back"):
                await pay(again)
    assert await balances(bank) == {"ann": 100, "bob": 0}


@pytest.mark.parametrize("how", ["gives up", "gives up and goes on", "goes behind our back"])
async def test_a_statement_that_was_given_up_is_told_and_not_done_again(app: App, bank: Any, how: str):
    called: list[str] = []

    @app.transaction
    async def careless() -> None:
        called.append(how)
        sql = outlast.connection()
        await sql.execute("UPDATE account SET cents = 5 WHERE name = 'bob'")
        if how == "goes behind our back":
            with suppress(asyncpg.UniqueViolationError):
                await sql._session.connection.execute("INSERT INTO account VALUES ('ann', 1)")
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(sql.execute("SELECT pg_sleep(10)"), 0.05)
        if how == "gives up and goes on":
            await sql.execute("UPDATE account SET cents = 6 WHERE name = 'bob'")

    @app.workflow
    async def pay() -> None:
        await careless()

    async with asyncio.timeout(10), app:
        with pytest.raises(StatementRefused, match=r"a statement (was given up|before the end failed)"):
            await pay()
    assert called == [how]
    assert await balances(bank) == {"ann": 100, "bob": 0}


HASTY = ["together", "first of two", "left alone", "in a savepoint", "a savepoint raises", "a savepoint left alone"]


@pytest.mark.parametrize("how", HASTY)
async def test_statements_beside_each_other_are_refused(app: App, bank: Any, how: str):
    called: list[str] = []
    left: list[asyncio.Task[str]] = []

    @app.transaction
    async def hasty() -> None:
        called.append(how)
        sql = outlast.connection()
        one, two = (f"UPDATE account SET cents = 5 WHERE name = '{name}'" for name in ("ann", "bob"))
        match how:
            case "together":
                await asyncio.gather(sql.execute(one), sql.execute(two), return_exceptions=True)
            case "first of two":
                left.extend(asyncio.create_task(sql.execute(text)) for text in (one, two))
                await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            case "left alone":
                left.append(asyncio.create_task(sql.execute("SELECT pg_sleep(10)")))
                await asyncio.sleep(0.01)
            case "in a savepoint":
                with suppress(StatementRefused):
                    async with sql.savepoint():
                        await asyncio.gather(sql.execute("SELECT pg_sleep(10)"), sql.execute(two))
            case "a savepoint left alone":

                async def part() -> str:
                    async with sql.savepoint():
                        done = await sql.execute(one)
                        await asyncio.sleep(1)
                        return done

                left.append(asyncio.create_task(part()))
                await asyncio.sleep(0.2)
            case _:
                with suppress(RuntimeError):
                    async with sql.savepoint():
                        left.append(asyncio.create_task(sql.execute(one)))
                        await asyncio.sleep(0)
                        raise RuntimeError
                await asyncio.wait(left)

    @app.workflow
    async def pay() -> None:
        await hasty()

    async with asyncio.timeout(8), app:
        with pytest.raises(StatementRefused, match="still under way"):
            await pay()
    await asyncio.gather(*left, return_exceptions=True)
    assert called == [how]
    assert await balances(bank) == {"ann": 100, "bob": 0}


@pytest.mark.parametrize("how", ["a statement", "a savepoint", "swallowed", "left open"])
async def test_what_is_done_beside_a_savepoint_of_another_task_is_refused(app: App, bank: Any, how: str):
    """It would be rolled back with it, also if no two statements are under way at once."""

    @app.transaction
    async def hasty() -> None:
        sql = outlast.connection()
        inside, done = asyncio.Event(), asyncio.Event()

        async def part() -> None:
            with suppress(ValueError):
                async with sql.savepoint():
                    await sql.execute("UPDATE account SET cents = 5 WHERE name = 'ann'")
                    inside.set()
                    await done.wait()
                    raise ValueError

        async def other() -> None:
            await inside.wait()
            try:
                if how == "a savepoint":
                    async with sql.savepoint():
                        await sql.execute("UPDATE account SET cents = 5 WHERE name = 'bob'")
                elif how != "left open":
                    await sql.execute("UPDATE account SET cents = 5 WHERE name = 'bob'")
            except StatementRefused:
                if how != "swallowed":
                    raise
            finally:
                if how != "left open":
                    done.set()

        if how == "left open":
            with suppress(ValueError):
                async with sql.savepoint():
                    await sql.execute("UPDATE account SET cents = 5 WHERE name = 'bob'")
                    left = asyncio.create_task(part())
                    await other()
                    raise ValueError
            done.set()
            await asyncio.wait([left])
        else:
            await asyncio.gather(part(), other())

    @app.workflow
    async def pay() -> None:
        await hasty()

    async with asyncio.timeout(8), app:
        with pytest.raises(StatementRefused, match="a savepoint of another task is still under way"):
            await pay()
    assert await balances(bank) == {"ann": 100, "bob": 0}


async def test_tasks_that_a_savepoint_begins_are_of_it(app: App, bank: Any):
    @app.transaction
    async def careful() -> None:
        sql = outlast.connection()
        async with sql.savepoint():
            await asyncio.create_task(sql.execute("UPDATE account SET cents = 5 WHERE name = 'ann'"))
            with suppress(ValueError):
                async with sql.savepoint():
                    await asyncio.create_task(sql.execute("UPDATE account SET cents = 6 WHERE name = 'ann'"))
                    raise ValueError
        await asyncio.create_task(sql.execute("UPDATE account SET cents = 7 WHERE name = 'bob'"))

    @app.workflow
    async def pay() -> None:
        await careful()

    async with asyncio.timeout(8), app:
        await pay()
    assert await balances(bank) == {"ann": 5, "bob": 7}


@pytest.mark.parametrize("how", ["a statement", "a savepoint in a statement", "a savepoint between two"])
async def test_a_statement_may_be_given_up_in_a_savepoint_or_with_it(app: App, bank: Any, how: str):
    @app.transaction
    async def careful() -> None:
        sql = outlast.connection()

        async def part() -> None:
            async with sql.savepoint():
                await sql.execute("UPDATE account SET cents = 5 WHERE name = 'ann'")
                if how == "a statement":
                    await asyncio.wait_for(sql.execute("SELECT pg_sleep(10)"), 0.05)
                elif how == "a savepoint in a statement":
                    await sql.execute("SELECT pg_sleep(10)")
                else:
                    await asyncio.sleep(10)

        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await part()
        await sql.execute("UPDATE account SET cents = 6 WHERE name = 'bob'")

    @app.workflow
    async def pay() -> None:
        await careful()

    async with asyncio.timeout(10), app:
        await pay()
    assert await balances(bank) == {"ann": 100, "bob": 6}


async def slow_to_commit(bank: Any) -> None:
    """Something of the user's that is checked at the end takes a second."""
    await bank.execute(
        "CREATE OR REPLACE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.name = 'room' THEN PERFORM pg_sleep(1); END IF; RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON account DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION dawdle()"
    )


@pytest.mark.parametrize("by", ["an undo", "a transaction", "a step"])
@pytest.mark.parametrize("where", ["a statement", "a statement, and goes on", "its commit"])
async def test_what_takes_a_transaction_back_that_was_given_up_comes_after_it(app: App, bank: Any, where: str, by: str):
    """It is rolled back; or it is committed, and nothing else begins before."""
    reserved, failed = asyncio.Event(), asyncio.Event()

    @app.transaction
    async def reserve() -> None:
        sql = outlast.connection()
        await sql.execute("UPDATE account SET cents = 50 WHERE name = 'ann'")
        await sql.execute("INSERT INTO account VALUES ('room', 1)")
        reserved.set()
        if where == "its commit":
            await failed.wait()  # the failure has its place in the journal, and the code does not know of it yet
            return
        try:
            await sql.execute("SELECT pg_sleep(4.9)")
        except asyncio.CancelledError:
            if where == "a statement":
                raise

    @app.step
    async def fail() -> None:
        await reserved.wait()
        failed.set()
        raise ValueError("no")

    @app.transaction(timeout="4s")  # the rows are free by then
    async def release() -> None:
        sql = outlast.connection()
        await sql.execute("DELETE FROM account WHERE name = 'room'")
        await sql.execute("UPDATE account SET cents = 100 WHERE name = 'ann'")

    @app.step
    async def release_elsewhere() -> None:
        await bank.execute("DELETE FROM account WHERE name = 'room'")
        await bank.execute("UPDATE account SET cents = 100 WHERE name = 'ann'")

    @app.workflow
    async def book() -> None:
        if by == "an undo":
            await outlast.compensate(release)
        try:
            await all_of(reserve(), fail())
        except ValueError:
            if by == "an undo":
                raise
            await (release if by == "a transaction" else release_elsewhere)()

    if where == "its commit":
        await slow_to_commit(bank)
    async with asyncio.timeout(20), app:
        handle = await book.start()
        with suppress(ValueError):
            await handle.result()
        assert (await handle.info()).status == ("failed" if by == "an undo" else "succeeded")
        journal = [(entry.name, entry.scope) for entry in await handle.journal() if entry.op == "transaction"]
        assert (("reserve", "") in journal) is (where == "its commit")
        assert ("reserve", "!") in journal
    assert await balances(bank) == {"ann": 100, "bob": 0}


async def all_of(*work: Coroutine[Any, Any, None]) -> None:
    """One that fails stops the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


@pytest.mark.parametrize("nested", [False, True])
async def test_a_savepoint_that_is_given_up_as_it_begins_takes_nothing_else_along(app: App, bank: Any, nested: bool):
    @app.transaction
    async def careful() -> None:
        sql = outlast.connection()

        async def part() -> None:
            async with asyncio.timeout(0), sql.savepoint():
                await sql.execute("UPDATE account SET cents = 4 WHERE name = 'ann'")

        await sql.execute("UPDATE account SET cents = 6 WHERE name = 'bob'")
        with suppress(TimeoutError):
            if nested:
                async with sql.savepoint():
                    await sql.execute("UPDATE account SET cents = 5 WHERE name = 'ann'")
                    await part()
            else:
                await part()

    @app.workflow
    async def pay() -> None:
        await careful()

    async with asyncio.timeout(10), app:
        await pay()
    assert await balances(bank) == {"ann": 100, "bob": 6}


async def test_a_time_that_is_over_at_the_end_of_a_savepoint_comes_too_late(app: App, bank: Any):
    """Nothing is awaited there: no statement of it can be given up half way."""

    @app.transaction
    async def careful() -> None:
        sql = outlast.connection()
        for cents in range(3):
            async with asyncio.timeout(None) as limit, sql.savepoint():
                await sql.execute("UPDATE account SET cents = $1 WHERE name = 'bob'", cents)
                limit.reschedule(asyncio.get_running_loop().time())

    @app.workflow
    async def pay() -> None:
        await careful()

    async with asyncio.timeout(10), app:
        await pay()
    assert await balances(bank) == {"ann": 100, "bob": 2}


async def test_a_savepoint_that_has_ended_is_rolled_back_with_the_one_around_it(app: App, bank: Any):
    @app.transaction
    async def careful() -> None:
        sql = outlast.connection()
        for cents in range(3):
            with suppress(ValueError):
                async with sql.savepoint():
                    for name in ("ann", "bob"):
                        async with sql.savepoint():
                            await sql.execute("UPDATE account SET cents = $1 WHERE name = $2", cents, name)
                    if cents != 1:
                        raise ValueError

    @app.workflow
    async def pay() -> None:
        await careful()

    async with asyncio.timeout(10), app:
        await pay()
    assert await balances(bank) == {"ann": 1, "bob": 1}


async def test_a_savepoint_rolls_back_a_part(app: App, bank: Any):
    @app.transaction
    async def careful() -> str:
        sql = outlast.connection()
        await sql.execute("UPDATE account SET cents = 5 WHERE name = 'bob'")
        try:
            async with sql.savepoint():
                await sql.execute("UPDATE account SET cents = 6 WHERE name = 'bob'")
                async with sql.savepoint():
                    await sql.execute("INSERT INTO account VALUES ('ann', 1)")
        except asyncpg.UniqueViolationError:
            await sql.executemany("INSERT INTO account VALUES ($1, $2)", [("cid", 1), ("dee", 2)])
        async with sql.savepoint():
            await sql.execute("UPDATE account SET cents = 9 WHERE name = 'dee'")
        [row] = await sql.fetch("SELECT name FROM account WHERE cents = 1")
        return row["name"]

    @app.workflow
    async def pay() -> str:
        return await careful()

    async with app:
        assert await pay() == "cid"
    assert await balances(bank) == {"ann": 100, "bob": 5, "cid": 1, "dee": 9}


@pytest.mark.parametrize("fails", [False, True])
async def test_a_connection_carries_nothing_on_to_the_next_one(url: str, bank: Any, fails: bool):
    app = App(f"{url}&pool_size=1")
    seen: list[tuple[str, str, int]] = []

    @app.transaction
    async def untidy() -> None:
        sql = outlast.connection()
        path = await sql.fetchval("SELECT current_setting('search_path')")
        name = await sql.fetchval("SELECT current_setting('application_name')")
        seen.append((path, name, await sql.fetchval("SELECT pg_backend_pid()")))
        assert await sql.fetchval("SELECT count(*) FROM pg_cursors WHERE is_holdable") == 0
        await sql.execute("CREATE TEMP TABLE scratch (name text)")
        await sql.execute("INSERT INTO scratch VALUES ('ann')")
        assert await sql.fetchval("SELECT count(*) FROM scratch") == 1
        await sql.execute("DECLARE rows CURSOR WITH HOLD FOR SELECT * FROM account")
        await sql.fetch("SELECT pg_advisory_lock(42)")
        for setting in ("search_path", "application_name"):
            await sql.fetch("SELECT set_config($1, 'pg_catalog', false)", setting)
        if fails:
            raise ValueError

    @app.workflow
    async def pay() -> None:
        with suppress(ValueError):
            await untidy()

    async with app:
        for _ in range(3):
            await pay()
            assert await bank.fetchval("SELECT pg_try_advisory_lock(42) AND pg_advisory_unlock(42)")
    assert len(seen) == 3
    assert set(seen) == {('"$user", public', "outlast", seen[0][2])}


async def test_a_constraint_that_is_checked_by_the_commit_is_the_users_error(app: App, bank: Any):
    await bank.execute("ALTER TABLE account ADD COLUMN friend text REFERENCES account DEFERRABLE INITIALLY DEFERRED")

    @app.transaction
    async def befriend(name: str) -> None:
        await outlast.connection().execute("UPDATE account SET friend = $1 WHERE name = 'ann'", name)

    @app.workflow
    async def pay(name: str) -> None:
        await befriend(name)

    async with app:
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await pay("nobody")
        await pay("bob")
    assert await bank.fetchval("SELECT friend FROM account WHERE name = 'ann'") == "bob"


async def test_a_def_is_refused_on_postgresql_with_what_to_write(app: App):
    @app.transaction
    def move() -> None: ...

    @app.workflow
    async def pay() -> None:
        await move.aio()

    async with app:
        handle = await pay.start()
        with pytest.raises(TransactionUnsupported, match="runs transactions written as async def"):
            await handle.result(timeout=20)
        [refused] = await handle.journal()
        assert (refused.name, refused.op, refused.outcome) == ("move", "transaction", "failed")


async def test_a_connection_is_of_no_use_afterwards(app: App, bank: Any):
    kept: list[Any] = []

    @app.transaction
    async def keep() -> None:
        kept.append(outlast.connection())

    @app.workflow
    async def pay() -> None:
        await keep()

    async with app:
        await pay()
    with pytest.raises(WrongPlace, match="that is over"):
        await kept[0].execute("SELECT 1")


async def test_what_it_starts_is_committed_with_it(app: App, bank: Any):
    @app.workflow
    async def thank(name: str) -> str:
        return f"thank you, {name}"

    @app.transaction
    async def order(fails: bool) -> None:
        sql = outlast.connection()
        name = "nobody" if fails else "bob"
        await thank.options(id=f"thank {name}").start_in(sql, name)
        await sql.execute("SELECT outlast.start('thank', jsonb_build_object('name', $1::text), 'sql ' || $1)", name)
        if fails:
            raise ValueError

    @app.workflow
    async def ordering(fails: bool) -> None:
        await order(fails)

    async with app:
        await ordering(False)
        for execution_id in ("thank bob", "sql bob"):
            assert await app.execution(execution_id).result(timeout=10) == "thank you, bob"
        with pytest.raises(ValueError):
            await ordering(True)
        assert await app.count(workflow="thank") == 2


@pytest.mark.slow
async def test_crashes_at_every_point_leave_it_done_once(url: str, bank: Any):
    """As when the process dies there: the next one goes on, and the effect is there once."""
    names = await points_of(url, bank, None)
    assert {"transact:begin", "transact:commit", "transact:reply"} <= set(names)
    for number in range(len(names)):
        await bank.execute("UPDATE account SET cents = 0 WHERE name = 'bob'")
        await points_of(await postgres_emptied(bank, url), bank, number)
        assert (await balances(bank))["bob"] == 1, f"after a crash at {names[number]}, number {number}"


async def postgres_emptied(bank: Any, url: str) -> str:
    for kind in ("execution", "payload", "attempt", "journal", "completion", "session"):
        await bank.execute(f"DELETE FROM outlast.{kind}")
    await bank.execute("SELECT setval('outlast.clock', 0)")
    return url


class Died(BaseException):
    pass


async def points_of(url: str, bank: Any, dies_at: int | None) -> list[str]:
    """Run one transaction, dying at a point of it; a second process ends what is left. The points that were passed."""
    passed: list[str] = []

    def point(name: str) -> None:
        if name.startswith("transact:"):
            passed.append(name)
            if len(passed) - 1 == dies_at:
                raise Died

    clock = ManualClock()

    def build(points: Any) -> tuple[App, Any]:
        store = lambda: store_for(url, points=points, clock=clock)  # noqa: E731
        app = App(url, store=store, lease_ttl="1d", reconcile_shared=False)

        @app.transaction
        async def deposit() -> None:
            await outlast.connection().execute("UPDATE account SET cents = cents + 1 WHERE name = 'bob'")

        @app.workflow(name="pay")
        async def pay() -> None:
            await deposit()

        return app, pay

    first, pay = build(point)
    await first.__aenter__()
    handle = await pay.options(id="it").start()
    if dies_at is None:
        await handle.result(timeout=20)
    else:
        await until(lambda: len(passed) > dies_at, "it does not get there")
    opened, first._opened = first._opened, None
    assert opened is not None
    await opened.abandon()
    if dies_at is not None:
        second, pay = build(None)
        async with second:
            await Place(url, clock).pass_time(second, "2d")
            await pay.execution("it").result(timeout=20)
    return passed
