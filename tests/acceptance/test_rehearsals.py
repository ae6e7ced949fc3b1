"""`h.replay`, as `outlast replay`: does the code still do what is recorded? It says so only where it does not."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast import App
from outlast.model.execution import Execution, execution_key
from outlast.runtime.attempts.rehearsal import rehearse
from outlast.runtime.engine import Engine
from outlast.runtime.local_holder import LocalHolder, local_parts
from outlast.store.sqlite import SqliteStore
from outlast.testing import harness


async def test_what_has_no_input_yet_has_nothing_to_replay():
    app = App("sqlite:///nowhere.db")

    @app.workflow
    async def up() -> int:
        return await outlast.receive("number", int)

    @app.workflow
    async def down(number: int) -> int:
        return number

    async with harness(app) as h:
        flow = app.flow("nightly", id="n")
        flow.add("down", down, flow.add("up", up).output)
        await flow.start()
        assert await h.replay("n/up") is None
        assert await h.replay("n/down") is None


async def test_code_that_rests_on_an_update_is_as_recorded():
    app = App("sqlite:///nowhere.db")

    @app.step
    async def stock() -> list[str]:
        return ["tea"]

    @app.workflow
    async def cart() -> list[str]:
        items = await stock()
        paid = asyncio.Event()

        @outlast.update("add")
        def add(item: str) -> int:
            items.append(item)
            return len(items)

        @outlast.update("pay")
        def pay() -> None:
            paid.set()

        await paid.wait()
        return items

    async with harness(app) as h, asyncio.timeout(5):
        handle = await cart.start()
        assert await h.replay(handle) is None
        await handle.update("add", "pear")
        assert await h.replay(handle) is None
        await handle.update("pay")
        assert await handle.result() == ["tea", "pear"]
        assert await h.replay(handle) is None


async def test_code_that_no_longer_has_the_update_that_it_recorded_is_found():
    apps = [App("sqlite:///nowhere.db"), App("sqlite:///nowhere.db")]
    for app, name in zip(apps, ("add", "put"), strict=True):

        @app.workflow(name="cart")
        async def cart(name: str = name) -> None:
            outlast.update(name)(lambda: None)
            await asyncio.Event().wait()

    async with harness(apps[0]) as h:
        handle = await apps[0].registry.newest("cart").start()
        await handle.update("add")
        found = await h.replay(handle, app=apps[1])
        assert found is not None
        assert found.expected == "update 'add'"
        assert found.actual == "nothing: its code has no update 'add'; it has 'put'"


async def test_a_race_that_is_replayed_says_nothing(caplog: pytest.LogCaptureFixture):
    app = App("sqlite:///nowhere.db")

    @app.step
    async def one() -> int:
        return 1

    @app.workflow
    async def race() -> int | None:
        await one()
        return await outlast.race(outlast.sleep("20d"), outlast.receive("number", int), outlast.interrupted())

    with caplog.at_level(logging.WARNING):
        async with harness(app) as h:
            handle = await race.start()
            assert await h.replay(handle) is None
            gc.collect()
            await asyncio.sleep(0)
    # In a process with much in it that collection takes long: the watchdog may say so.
    assert [one.getMessage() for one in caplog.records if one.name != "outlast.runtime.watchdog"] == []


@pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])
async def test_a_replay_and_a_query_need_no_token_keys(is_async: bool):
    keys = "k1:bm90LWEtc2VjcmV0LW9ubHktYS1zYW1wbGU"
    apps = [App("sqlite:///nowhere.db", token_keys=keys), App("sqlite:///nowhere.db")]
    for app in apps:

        async def approval() -> bool:
            decision = outlast.deferred("decision", bool, timeout="10d")
            token = await decision.token()
            outlast.query("token")(lambda: token)
            return await decision

        def approval_in_a_thread() -> bool:
            decision = outlast.sync.deferred("decision", bool, timeout="10d")
            token = decision.token()
            outlast.query("token")(lambda: token)
            return decision.result()

        app.workflow(name="approval")(approval if is_async else approval_in_a_thread)

    async with harness(apps[0]) as h:
        handle = await apps[0].registry.newest("approval").start()
        assert await h.replay(handle, app=apps[1]) is None
        token = await handle.query("token")
        await h.deploy(apps[1])
        await h.stop(apps[0])
        other = apps[1].execution(handle.id)
        assert await other.query("token") != token
        with pytest.raises(outlast.InvalidToken):
            await apps[0].resolve_token(await other.query("token"), True)


def branches(app: App, step: str) -> None:
    @app.step
    async def one() -> None: ...

    @app.step
    async def two() -> None: ...

    @app.workflow
    async def branched() -> None:
        async def other() -> None:
            await one()
            await (one if step == "one" else two)()
            await outlast.sleep("1d")

        await asyncio.gather(outlast.receive("never"), other(), outlast.receive("ever"))

    @app.workflow
    async def raced() -> None:
        await outlast.race(outlast.sleep("1s"), outlast.receive("never"))
        await outlast.race(outlast.receive("never"), (one if step == "one" else two)())
        await outlast.sleep("1d")


@pytest.mark.parametrize(
    "name, expected, actual, line",
    [
        ("branched", "step 'one', call 2 in branch 2", "step 'two' in branch 2", 4),
        ("raced", "step 'one'", "step 'two'", 3),
    ],
)
async def test_a_divergence_names_what_its_own_branch_does(name: str, expected: str, actual: str, line: int):
    apps = [App("sqlite:///nowhere.db"), App("sqlite:///nowhere.db")]
    branches(apps[0], "one")
    branches(apps[1], "two")
    async with harness(apps[0]) as h:
        workflow = apps[0].registry.newest(name)
        handle = await workflow.start()
        await h.clock.advance("2s")
        found = await h.replay(handle, app=apps[1])
        assert found is not None
        assert (found.expected, found.actual) == (expected, actual)
        assert found.line == f"{__file__}:{workflow.fn.__code__.co_firstlineno + line}"


class Sold(Exception):
    pass


def sell() -> None:
    raise Sold


async def returns() -> None: ...


async def raises() -> None:
    sell()


async def raises_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raises())


async def begins_anew() -> None:
    outlast.continue_as_new()


def raises_in_a_thread() -> None:
    sell()


@pytest.mark.parametrize(
    "code, actual, at",
    [
        (returns, "nothing: it returns", (returns, 0)),
        (raises, "nothing: it raises Sold", (sell, 1)),
        (raises_in_a_group, "nothing: it raises Sold", (sell, 1)),
        (raises_in_a_thread, "nothing: it raises Sold", (sell, 1)),
        (begins_anew, "nothing: it continues as new", (begins_anew, 1)),
    ],
)
async def test_code_that_ends_too_soon_says_how_and_where(code: Any, actual: str, at: tuple[Any, int]):
    old, new = App("sqlite:///nowhere.db"), App("sqlite:///nowhere.db")

    @old.workflow(name="sale")
    async def sale() -> None:
        await outlast.sleep("1s")
        await outlast.sleep("1d")

    new.workflow(name="sale")(code)
    async with harness(old) as h:
        handle = await sale.start()
        await h.clock.advance("2s")
        found = await h.replay(handle, app=new)
        assert found is not None
        function, line = at
        assert (found.actual, found.line) == (actual, f"{__file__}:{function.__code__.co_firstlineno + line}")


@pytest.mark.parametrize("meanwhile", ["it is woken", "it is cancelled"])
async def test_what_is_woken_while_it_is_looked_at_is_as_recorded(meanwhile: str, tmp_path: Path):
    """The execution is read first, and its journal afterwards."""
    file = tmp_path / "outlast.db"
    app = App(f"sqlite:///{file}")

    @app.step
    async def note() -> None:
        return None

    @app.workflow
    async def nap() -> None:
        await outlast.compensate(note)
        try:
            await outlast.receive("alarm")
        finally:
            await note()

    async with app:
        handle = await nap.options(id="nap").start()
        while (await handle.info()).status != "suspended":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        store = SqliteStore(str(file))
        await store.open()
        try:
            [seen] = await store.load([execution_key("default", "nap")])
            assert isinstance(seen, Execution)
            assert seen.awaits
            await (handle.send("alarm") if meanwhile == "it is woken" else handle.cancel())
            with suppress(outlast.ExecutionCancelled):
                await handle.result("10s")
            parts = local_parts(LocalHolder(Engine(store)), app.values, threads=1)
            assert (await rehearse(parts, seen, nap.definition)).divergence is None
            await parts.close()
        finally:
            await store.close()
