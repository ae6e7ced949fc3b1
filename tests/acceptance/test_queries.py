"""Queries: what a workflow's code shows of itself, read without writing anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

import pytest

import outlast
from outlast import (
    App,
    ExecutionNotFound,
    ExecutionRefused,
    NonDeterminism,
    Retry,
    UnknownWorkflow,
    WrongPlace,
)
from outlast.model.kinds import OF_EXECUTION
from outlast.runtime.attempts import inquiry
from outlast.runtime.attempts.rehearsal import rehearse
from tests.acceptance.conftest import Gate, Place, status_is, until


def tour_of(app: App, ran: list[str]) -> Any:
    @app.step
    async def visit(town: str) -> str:
        ran.append(town)
        return town.upper()

    @app.workflow
    async def tour() -> list[str]:
        seen: list[str] = []

        @outlast.query("seen")
        def shown() -> list[str]:
            return seen

        @outlast.query("has")
        def has(town: str) -> bool:
            return town in seen

        seen.append(await visit("rome"))
        await outlast.receive("go on")
        seen += await asyncio.gather(visit("oslo"), visit("bern"))
        await outlast.receive("go on")
        return seen

    return tour


async def records_of(app: App, execution_id: str) -> list[Any]:
    """All that the store keeps for an execution."""
    assert app._opened is not None
    store = app._opened._store
    found: list[Any] = await store.load([(await app._opened._engine.look("default", execution_id)).key])  # type: ignore[union-attr]
    for kind in OF_EXECUTION:
        found += await store.scan(kind.KIND, ("default", execution_id))
    return found


async def shows(handle: Any, name: str, expected: Any) -> bool:
    return await handle.query(name) == expected


async def test_a_query_shows_what_the_code_knows_asleep_and_ended_and_writes_and_runs_nothing(app: App):
    ran: list[str] = []
    tour = tour_of(app, ran)
    async with app:
        handle = await tour.start()
        await status_is(handle, "suspended")
        before = await records_of(app, handle.id)
        assert await handle.query("seen", type=list[str]) == ["ROME"]
        assert await handle.query("has", "ROME") is True
        assert await handle.query("has", "OSLO") is False
        assert await records_of(app, handle.id) == before
        assert (await handle.info()).status == "suspended"
        await handle.send("go on")
        await handle.send("go on")
        assert await handle.result(timeout=20) == ["ROME", "OSLO", "BERN"]
        before = await records_of(app, handle.id)
        assert await handle.query("seen") == ["ROME", "OSLO", "BERN"]
        assert await records_of(app, handle.id) == before
        assert ran == ["rome", "oslo", "bern"]


async def test_a_client_without_workers_asks_what_runs_elsewhere(place: Place, gate: Gate):
    worker, client = place.app(), place.app()

    def build(app: App) -> Any:
        @app.step
        async def slow(n: int) -> int:
            await gate()
            return n

        @app.step
        async def quick(n: int) -> int:
            return n

        @app.workflow
        async def adds() -> int:
            total = 0

            @outlast.query("total")
            def shown() -> int:
                return total

            async def add(step: Any, n: int) -> None:
                nonlocal total
                added = await step(n)
                total += added

            await asyncio.gather(add(slow, 1), add(quick, 10), add(quick, 100))
            return total

        return adds

    adds = build(worker)
    build(client)
    async with worker, client.client():
        handle = await adds.options(id="it").start()
        await gate.reached()
        await until(partial(shows, client.execution("it"), "total", 110), "the quick ones are not seen")
        assert await handle.query("total") == 110, "asked of the code as it stands in this process"
        gate.open()
        assert await handle.result(timeout=20) == 111
        assert await client.execution("it").query("total") == 111


async def test_what_is_at_rest_in_this_process_is_asked_as_it_stands(app: App, gate: Gate, monkeypatch: Any):
    replayed: list[str] = []
    as_claimed = inquiry.as_claimed

    async def noticed(parts: Any, execution: Any) -> Any:
        replayed.append(execution.id)
        return await as_claimed(parts, execution)

    monkeypatch.setattr(inquiry, "as_claimed", noticed)

    @app.step
    async def slow() -> None:
        await gate()

    @app.workflow
    async def works() -> str:
        state = "working"

        @outlast.query("state")
        def shown() -> str:
            return state

        await slow()
        state = "done"
        return state

    async with app:
        handle = await works.start()
        await gate.reached()
        assert await handle.query("state") == "working"
        assert replayed == []
        gate.open()
        await handle.result(timeout=20)
        assert await handle.query("state") == "done"
        assert replayed == [handle.id]


async def test_what_failed_was_cancelled_or_never_began_can_be_asked(app: App):
    @app.workflow(retry=Retry(max_attempts=2, initial="1ms"))
    async def fails() -> None:
        stage = "begun"

        @outlast.query("stage")
        def shown() -> str:
            return stage

        @outlast.query("now")
        def when() -> datetime:
            return outlast.now()

        await outlast.receive("go")
        stage = "broken"
        raise ValueError("no")

    async with app:
        later = await fails.options(delay="1h").start()
        assert await later.query("stage") == "begun"
        made_at = (await later.info()).created_at
        assert await later.query("now", type=datetime) == made_at
        handle = await fails.start()
        await handle.send("go")
        with pytest.raises(ValueError, match="no"):
            await handle.result(timeout=20)
        assert await handle.query("stage") == "broken"
        await later.cancel()
        assert await later.query("stage") == "begun"
        assert await app.purge("0s") == 2
        with pytest.raises(ExecutionNotFound):
            await handle.query("stage")


async def test_what_cannot_be_asked_is_a_typed_error(place: Place):
    app, other, changed = place.app(), place.app(), place.app()
    tour = tour_of(app, [])
    async with app:
        handle = await tour.options(id="it").start()
        await status_is(handle, "suspended")
        with pytest.raises(ExecutionRefused, match="no query 'miles'; it has 'has', 'seen'"):
            await handle.query("miles")
        with pytest.raises(outlast.CodecError, match="query 'has'"):
            await handle.query("has", 7)
        with pytest.raises(outlast.CodecError, match="takes no value"):
            await handle.query("seen", 7)
        with pytest.raises(outlast.CodecError, match="answer to query 'seen'"):
            await handle.query("seen", type=int)
        with pytest.raises(outlast.InvalidInput, match="answer to query 'seen'"):
            await handle.query("seen", type=5)
        with pytest.raises(ExecutionNotFound):
            await app.execution("nobody").query("seen")

    @changed.workflow(name="tour")
    async def another() -> None:
        await outlast.sleep("1h")

    async with other.client():
        with pytest.raises(UnknownWorkflow):
            await other.execution("it").query("seen")
    async with changed.client():
        with pytest.raises(NonDeterminism, match="recorded step 'visit'"):
            await changed.execution("it").query("seen")


async def test_a_query_only_looks(app: App):
    sent: list[str] = []

    @app.step
    async def charge() -> None:
        sent.append("charge")

    @app.step
    def ring() -> None:
        sent.append("ring")

    @app.workflow
    async def shop() -> None:
        @outlast.query("charge")
        def charges() -> None:
            charge()  # pyright: ignore[reportUnusedCoroutine]

        @outlast.query("ring")
        def rings() -> None:
            ring()

        @outlast.query("random")
        def number() -> float:
            return outlast.random().random()

        @outlast.query("progress")
        def shows() -> None:
            outlast.progress(0.5)

        @outlast.query("branch")
        def branches() -> None:
            coroutine = asyncio.sleep(0)
            try:
                asyncio.create_task(coroutine)  # noqa: RUF006
            finally:
                coroutine.close()

        @outlast.query("now")
        def when() -> str:
            return outlast.now().isoformat()

        @outlast.query("fails")
        def fails() -> None:
            raise LookupError("nothing here")

        await outlast.receive("close")

    async with app:
        handle = await shop.start()
        for _ in range(2):  # as it stands, or replayed: whichever it is, the second is asleep
            for name in ("charge", "ring", "random", "progress"):
                with pytest.raises(WrongPlace):
                    await handle.query(name)
            with pytest.raises(RuntimeError, match="no running event loop"):
                await handle.query("branch")
            with pytest.raises(LookupError, match="nothing here"):
                await handle.query("fails")
            await status_is(handle, "suspended")
        assert await handle.query("now") == await handle.query("now")
        assert sent == []
        await handle.send("close")
        await handle.result(timeout=20)
        assert sent == []


async def test_code_that_issues_tokens_or_starts_children_can_be_asked(place: Place):
    app = place.app(token_keys="k1:" + "s" * 32)

    @app.workflow
    async def child() -> int:
        return 7

    @app.workflow
    async def parent() -> int:
        got: list[int] = []

        @outlast.query("got")
        def shown() -> list[int]:
            return got

        got.append(await child())
        approval = outlast.deferred("approval", bool)
        got.append(int(bool(await approval.token())))
        await approval
        return got[0]

    async with app:
        handle = await parent.start()
        await until(partial(shows, handle, "got", [7, 1]), "it does not show what it got")


async def test_code_that_never_rests_is_not_waited_for_for_ever(app: App, monkeypatch: Any):
    monkeypatch.setattr(inquiry, "PATIENCE_S", 0.2)
    turns = 0

    @app.workflow
    async def spins() -> None:
        @outlast.query("it")
        def shown() -> int:
            return 1

        nonlocal turns
        while True:  # going round in circles is what it is about
            turns += 1
            await asyncio.sleep(0)

    async with app:
        handle = await spins.options(delay="1h").start()
        with pytest.raises(TimeoutError, match="does not come to rest"):
            await handle.query("it")
        await asyncio.sleep(0.05)
        turned = turns
        await asyncio.sleep(0.05)
        assert turns == turned, "and it does not go on"


@asynccontextmanager
async def opened_at_last(gate: Gate) -> AsyncIterator[None]:
    """However the test ends: a worker does not wait for the gate."""
    try:
        yield
    finally:
        gate.open()


def reader_of(app: App, kind: type, gate: Gate) -> Any:
    @app.step
    async def slow() -> None:
        await gate()

    @app.workflow
    async def reader() -> Any:
        read = await outlast.receive("plan", kind)
        outlast.query("read")(lambda: read)
        await slow()
        return read

    return reader


async def test_code_that_cannot_read_what_another_has_read_changes_nothing(place: Place, gate: Gate):
    old, new = place.app(), place.app()
    reader = reader_of(old, int, gate)
    reader_of(new, str, gate)
    async with old, new.client(), opened_at_last(gate):
        handle = await reader.start()
        await handle.send("plan", 7)
        await gate.reached()
        before = await records_of(old, handle.id)
        with pytest.raises(NonDeterminism, match="recorded receive 'plan', but the code now does something else"):
            await new.execution(handle.id).query("read")
        assert old._opened is not None
        assert old._opened.parts is not None
        execution = await old._opened._engine.look("default", handle.id)
        assert execution is not None
        definition = new.definition_of(execution.workflow, execution.version)
        found = (await rehearse(old._opened.parts, execution, definition)).divergence
        assert found is not None
        assert found.expected == "receive 'plan'"
        assert found.actual.startswith("something else: ")
        assert await records_of(old, handle.id) == before
        gate.open()
        assert await handle.result(timeout=20) == 7


async def test_a_query_tells_nobody_that_the_time_of_an_attempt_is_over(place: Place, gate: Gate, monkeypatch: Any):
    monkeypatch.setattr(inquiry, "PATIENCE_S", 0.6)
    worker, client = place.app(), place.app()

    def build(app: App, *, rests: bool) -> Any:
        @app.step
        async def slow() -> None:
            await gate()

        @app.workflow(timeout="300ms")
        async def order() -> None:
            while not rests:  # noqa: ASYNC110 - going round in circles is what it is about
                await asyncio.sleep(0)
            await slow()

        return order

    build(worker, rests=True)
    order = build(client, rests=False)
    async with worker, client.client(), opened_at_last(gate):
        handle = await order.start()  # so the client knows the store's time
        await gate.reached()
        told: list[Any] = []
        assert client._opened is not None
        engine = client._opened._engine
        tell = engine.tell

        async def overheard(*args: Any, **options: Any) -> Any:
            told.append(args)
            return await tell(*args, **options)

        monkeypatch.setattr(engine, "tell", overheard)
        with pytest.raises(TimeoutError, match="does not come to rest"):
            await client.execution(handle.id).query("it")
        assert told == []


async def test_code_that_has_not_begun_for_want_of_an_input_cannot_be_asked(app: App):
    @app.workflow
    async def up() -> int:
        return await outlast.receive("number", int)

    @app.workflow
    async def down(number: int) -> int:
        outlast.query("number")(lambda: number)
        return number

    async with app:
        flow = app.flow("nightly", id="n")
        flow.add("down", down, flow.add("up", up).output)
        await flow.start()
        with pytest.raises(ExecutionRefused, match="has not begun"):
            await app.execution("n/down").query("number")
        await app.execution("n/up").send("number", 7)
        assert await app.execution("n/down").result(timeout=20) == 7
        assert await app.execution("n/down").query("number") == 7
