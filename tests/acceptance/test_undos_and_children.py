"""Undos beside children and new generations: first the undos, then the children, then the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import outlast
from outlast import (
    App,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionNotFound,
    ExecutionRefused,
    Handle,
    Retry,
    WrongPlace,
)
from outlast.testing import harness, replay_every_await
from tests.acceptance.conftest import Gate, Place, status_is, until


async def waits_for(handle: Handle[Any], reason: str) -> None:
    async def so() -> bool:
        try:
            return (await handle.info()).reason == reason
        except ExecutionNotFound:
            return False  # a child that is about to start

    await until(so, f"{handle.id} does not wait for {reason}")


class Family:
    """A parent that registers an undo, starts a child, waits to be told, and fails (`ends="fails"`) or not."""

    def __init__(self, app: App, *, parent_close: Any, **options: Any) -> None:
        self.done: list[str] = []

        @app.step
        async def give_back(what: str) -> None:
            self.done.append(what)

        @app.workflow
        async def child() -> str:
            return await outlast.receive("go", str)

        @app.workflow(**options)
        async def parent(fails: bool) -> str:
            await outlast.compensate(give_back, "room")
            await child.options(id="child", parent_close=parent_close).start()
            await outlast.receive("end")
            if fails:
                raise KeyError("sold out")
            return "booked"

        self.app, self.parent = app, parent

    async def begun(self, *, fails: bool = True) -> tuple[Handle[str], Handle[Any]]:
        handle = await self.parent.options(id="it").start(fails)
        await waits_for(handle, "event:end")
        return handle, self.app.execution("it/child")


async def test_a_failed_parent_is_undone_once_then_waits_for_its_child_then_ends(app: App) -> None:
    family = Family(app, parent_close="wait")
    async with app:
        handle, child = await family.begun()
        await handle.send("end")
        await waits_for(handle, "child:it/child")
        assert family.done == ["room"]
        await child.send("go", "on")
        with pytest.raises(KeyError, match="sold out"):
            await handle.result(timeout=20)
        assert family.done == ["room"]
        assert await child.result(timeout=20) == "on"


async def test_a_cancel_while_an_undone_parent_waits_ends_it_as_it_failed(app: App) -> None:
    family = Family(app, parent_close="wait")
    async with app:
        handle, child = await family.begun()
        await handle.send("end")
        await waits_for(handle, "child:it/child")
        await handle.cancel()
        await status_is(handle, "failed")
        await status_is(child, "cancelled")
        assert family.done == ["room"]


async def test_a_parent_that_succeeds_waits_for_its_child_and_undoes_nothing(app: App) -> None:
    family = Family(app, parent_close="wait")
    async with app:
        handle, child = await family.begun(fails=False)
        await handle.send("end")
        await waits_for(handle, "child:it/child")
        await child.send("go", "on")
        assert await handle.result(timeout=20) == "booked"
        assert family.done == []


@pytest.mark.parametrize("parent_close", ["cancel", "wait"])
async def test_a_cancelled_parent_is_undone_and_takes_its_child_along(app: App, parent_close: str) -> None:
    family = Family(app, parent_close=parent_close)
    async with app:
        handle, child = await family.begun()
        await handle.cancel()
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)
        assert family.done == ["room"]
        await status_is(child, "cancelled")


async def test_a_deadline_undoes_and_takes_the_child_along(clocked: Place) -> None:
    app = clocked.app()
    family = Family(app, parent_close="wait", deadline="1h")
    async with app:
        handle, child = await family.begun()
        await clocked.pass_time(app, "2h")
        with pytest.raises(ExecutionExpired, match="deadline"):
            await handle.result(timeout=20)
        assert family.done == ["room"]
        await status_is(child, "cancelled")


async def test_a_retry_does_not_wait_for_children(app: App) -> None:
    """The child may wait for what only the next attempt does."""
    tries: list[int] = []

    @app.workflow
    async def child() -> str:
        return await outlast.receive("go", str)

    @app.workflow(retry=Retry(max_attempts=2, initial="1ms"))
    async def parent() -> str:
        started = await child.options(id="child", parent_close="wait").start()
        tries.append(1)
        if len(tries) == 1:
            raise KeyError("not yet")
        await started.send("go", "on")
        return "done"

    async with app:
        handle = await parent.start()
        assert await handle.result(timeout=20) == "done"
        assert len(await handle.attempts()) == 2


async def test_a_child_undoes_what_is_its_own(app: App) -> None:
    done: list[str] = []

    @app.step
    async def give_back(what: str) -> None:
        done.append(what)

    @app.workflow
    async def book() -> None:
        await outlast.compensate(give_back, "of the child")
        raise KeyError("sold out")

    @app.workflow
    async def travel() -> str:
        await outlast.compensate(give_back, "of the parent")
        try:
            await book()
        except KeyError:
            return "at home"
        return "away"

    async with app:
        assert await travel() == "at home"
        assert done == ["of the child"]


# ---- continue_as_new ----------------------------------------------------------------------------------------------


async def test_a_new_generation_is_refused_while_undos_are_registered_and_they_run(app: App) -> None:
    done: list[str] = []

    @app.step
    async def give_back(what: str) -> None:
        done.append(what)

    @app.workflow(retry=Retry(max_attempts=3, initial="1ms"))
    async def loop(turn: int) -> None:
        await outlast.compensate(give_back, f"room {turn}")
        outlast.continue_as_new(turn + 1)

    async with app:
        handle = await loop.start(1)
        with pytest.raises(WrongPlace, match="1 undo registered"):
            await handle.result(timeout=20)
        info = await handle.info()
        assert (info.status, info.generation, len(await handle.attempts())) == ("failed", 1, 1)
        assert done == ["room 1"]


async def test_an_undo_that_is_registered_behind_the_call_refuses_it_too(app: App) -> None:
    done: list[str] = []

    @app.step
    async def give_back(what: str) -> None:
        done.append(what)

    @app.workflow
    async def loop(turn: int) -> None:
        try:
            outlast.continue_as_new(turn + 1)
        finally:
            await outlast.compensate(give_back, "room")

    async with app:
        with pytest.raises(WrongPlace, match="1 undo registered"):
            await loop(1)
        assert done == ["room"]


async def test_a_def_workflow_is_refused_as_well(app: App) -> None:
    done: list[str] = []

    @app.step
    def give_back(what: str) -> None:
        done.append(what)

    @app.workflow
    def loop(turn: int) -> str:
        outlast.compensate(give_back, "room")
        try:
            outlast.continue_as_new(turn + 1)
        except WrongPlace:
            return "went on"

    async with app:
        assert await loop.aio(1) == "went on"
        assert done == []


# ---- forks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("called", [False, True])
async def test_a_fork_has_the_end_of_a_child_of_the_original_or_hears_that_it_is_not_its_own(
    app: App, called: bool
) -> None:
    gate = Gate()

    @app.step
    async def look() -> None:
        await gate()

    @app.workflow
    async def child() -> str:
        return await outlast.receive("go", str)

    @app.workflow
    async def parent() -> str:
        if called:
            result = asyncio.create_task(child.options(id="child")())
            await look()
            return await result
        started = await child.options(id="child").start()
        await look()
        return await started.result()

    async with app:
        handle, its_child = await parent.options(id="it").start(), app.execution("it/child")
        await gate.reached()
        await waits_for(its_child, "event:go")
        gate.open()
        await waits_for(handle, "child:it/child")
        early = await handle.fork(from_step="look")
        with pytest.raises(ExecutionRefused, match="not a child"):
            await early.result(timeout=20)
        assert (await its_child.info()).status == "suspended"
        await its_child.send("go", "on")
        assert await handle.result(timeout=20) == "on"
        late = await handle.fork(from_step="look")
        assert await late.result(timeout=20) == "on"


# ---- in the testing kit -------------------------------------------------------------------------------------------


def travel_agency() -> Any:
    """A parent with undos of its own, a child that is undone, one that is waited for at the end, and a loop."""
    app = App()

    @app.step
    async def give_back(what: str) -> str:
        return what

    @app.workflow
    async def book(what: str) -> None:
        await outlast.compensate(give_back, what)
        await outlast.sleep("1d")
        raise KeyError(what)

    @app.workflow
    async def count(turn: int) -> int:
        await outlast.sleep("1d")
        return turn if turn == 3 else outlast.continue_as_new(turn + 1)

    @app.workflow
    async def travel() -> None:
        await outlast.compensate(give_back, "passport")
        await count.options(id="count", parent_close="wait").start(1)
        await book("room")

    return travel


@pytest.mark.slow
async def test_a_crash_at_any_await_of_a_family_changes_nothing() -> None:
    found = await replay_every_await(travel_agency)
    assert "room" in str(found.outcome)
    assert found.crashes >= 20
    found.journal.assert_steps("give_back")


async def test_a_parent_that_waits_at_its_end_can_be_rehearsed() -> None:
    travel = travel_agency()
    async with harness(travel.app, auto_advance=False) as h:
        handle = await travel.options(id="it").start()
        await h.settle()
        await h.clock.advance("1d")
        await h.settle()
        assert (await h.info(handle)).reason == "child:it/count"
        assert await h.replay(handle) is None
        h.auto_advance = True
        with pytest.raises(KeyError, match="room"):
            await handle.result()
        assert await h.replay("it/count") is None
        assert (await h.info("it/count")).generation == 3
