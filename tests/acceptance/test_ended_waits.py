"""Whoever ends the one wait of suspended code records its outcome in the same commit: no worker need be there for it,
and the one that goes on with the code writes nothing before it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import outlast
from outlast import App
from outlast.client.handle import Handle
from outlast.runtime.attempts.waits import Waits
from tests.acceptance.conftest import Gate, Place, status_is, until
from tests.acceptance.test_waits import suspended_on

Build = Callable[[App], Any]


async def asleep(place: Place, build: Build, reason: str) -> None:
    """Started as `it`, suspended, and no worker is left."""
    app = place.app()
    workflow = build(app)
    async with app:
        await suspended_on(await workflow.options(id="it").start(), reason)


async def ended(handle: Handle[Any], op: str) -> list[tuple[str, str]]:
    """What the journal says of these operations."""
    return [(entry.name, entry.outcome) for entry in await handle.journal() if entry.op == op]


async def goes_on(place: Place, build: Build) -> Any:
    app = place.app()
    workflow = build(app)
    async with app:
        return await workflow.execution("it").result(timeout=20)


def receives(app: App) -> Any:
    @app.workflow
    async def takes() -> list[int]:
        return [await outlast.receive("number", int) for _ in range(2)]

    return takes


async def test_an_event_is_received_by_its_send(clocked: Place):
    await asleep(clocked, receives, "event:number")
    app = clocked.app()
    async with app.client():
        handle = app.execution("it")
        await handle.send("number", 1, key="one")
        assert await ended(handle, "receive") == [("number", "succeeded")]
        assert (await handle.info()).status == "ready"
        # The same again is the same; and what comes now is for the next receive.
        await handle.send("number", 1, key="one")
        await handle.send("number", 2)
        assert await ended(handle, "receive") == [("number", "succeeded")]
    assert await goes_on(clocked, receives) == [1, 2]


async def test_the_end_of_a_sleep_is_recorded_by_its_timer(clocked: Place):
    def build(app: App) -> Any:
        @app.workflow
        async def sleeps() -> float:
            began = outlast.now()
            await outlast.sleep("1h")
            return (outlast.now() - began).total_seconds()

        return sleeps

    await asleep(clocked, build, "timer")
    assert clocked._clock is not None
    clocked._clock.advance("2h")
    reconciles = clocked.app()  # it serves no workflow: it only keeps time
    async with reconciles:
        handle = reconciles.execution("it")
        await clocked.pass_time(reconciles, 0)
        assert (await handle.info()).status == "ready"
        assert await ended(handle, "sleep") == [("sleep", "succeeded")]
    assert await goes_on(clocked, build) >= 7_200


@pytest.mark.parametrize("rejected", [False, True], ids=["resolved", "rejected"])
async def test_a_deferred_is_answered_by_its_resolution(rejected: bool, clocked: Place):
    def build(app: App) -> Any:
        @app.workflow
        async def asks() -> str:
            try:
                return f"yes: {await outlast.deferred('approval', int, timeout='1d')}"
            except outlast.OutlastError as error:
                return f"no: {error}"

        return asks

    await asleep(clocked, build, "deferred:approval")
    app = clocked.app()
    async with app.client():
        handle = app.execution("it")
        await (handle.reject("approval", "too late") if rejected else handle.resolve("approval", 7))
        assert await ended(handle, "deferred") == [("approval", "failed" if rejected else "succeeded")]
    said = await goes_on(clocked, build)
    assert "too late" in said if rejected else said == "yes: 7"


async def test_a_parent_is_answered_by_the_success_of_its_child(clocked: Place):
    def build(app: App, *, parent: bool = True) -> Any:
        @app.workflow(lane="children")
        async def child() -> int:
            return await outlast.receive("number", int)

        if not parent:
            return child

        @app.workflow
        async def waits() -> int:
            return await child()

        return waits

    await asleep(clocked, build, "child:it/child.1")
    app = clocked.app()
    build(app, parent=False)
    async with app:
        child = app.execution("it/child.1")
        await child.send("number", 7)
        await child.result(timeout=20)
        handle = app.execution("it")
        await status_is(handle, "ready")  # the word of the child's end is carried after it
        assert await ended(handle, "child") == [("it/child.1", "succeeded")]
    assert await goes_on(clocked, build) == 7


async def test_an_event_after_the_timeout_stays_for_the_next_receive(clocked: Place):
    def build(app: App) -> Any:
        @app.workflow
        async def patient() -> list[Any]:
            said: list[Any] = []
            for timeout in ("1h", "1d"):
                try:
                    said.append(await outlast.receive("number", int, timeout=timeout))
                except TimeoutError:
                    said.append("late")
            return said

        return patient

    await asleep(clocked, build, "event:number")
    assert clocked._clock is not None
    clocked._clock.advance("2h")
    app = clocked.app()
    async with app.client():
        handle = app.execution("it")
        await handle.send("number", 7)
        assert await ended(handle, "receive") == []
    assert await goes_on(clocked, build) == ["late", 7]


async def test_a_value_of_another_type_fails_the_receive_the_same_way_at_every_replay(clocked: Place):
    def build(app: App) -> Any:
        @app.workflow
        async def typed() -> list[Any]:
            said: list[Any] = []
            for _ in range(3):
                try:
                    said.append(await outlast.receive("number", int))
                except outlast.CodecError as error:
                    said.append("event 'number'" in str(error))
            return said

        return typed

    await asleep(clocked, build, "event:number")
    app = clocked.app()
    workflow = build(app)
    async with app.client():
        await workflow.execution("it").send("number", "seven")
    async with app:  # it fails, is written down as that, and the code waits again
        handle = workflow.execution("it")
        await suspended_on(handle, "event:number")
        assert await ended(handle, "receive") == [("number", "failed")]
        await handle.send("number", 7)
        await suspended_on(handle, "event:number")
        await handle.send("number", 8)
        assert await handle.result(timeout=20) == [True, 7, 8]


async def test_what_waits_for_two_things_chooses_itself(clocked: Place):
    def build(app: App) -> Any:
        @app.workflow
        async def either() -> Any:
            return await outlast.race(outlast.receive("left", int), outlast.receive("right", int))

        return either

    await asleep(clocked, build, "event:left")
    app = clocked.app()
    async with app.client():
        handle = app.execution("it")
        await handle.send("right", 2)
        assert await ended(handle, "receive") == []
    assert await goes_on(clocked, build) is not None


async def test_a_fork_of_what_waits_waits_on_its_own(clocked: Place):
    def build(app: App) -> Any:
        @app.step
        async def first() -> int:
            return 1

        @app.workflow
        async def takes() -> list[int]:
            return [await first(), await outlast.receive("number", int)]

        return takes

    await asleep(clocked, build, "event:number")
    app = clocked.app()
    workflow = build(app)
    async with app:
        fork = await workflow.execution("it").fork(from_step="first")
        await suspended_on(fork, "event:number")
        await fork.send("number", 2)
        assert await fork.result(timeout=20) == [1, 2]
        assert (await workflow.execution("it").info()).status == "suspended"


async def test_a_sleep_that_ends_while_the_code_falls_asleep_does_not_end_another(
    place: Place, monkeypatch: pytest.MonkeyPatch, gate: Gate
):
    app, write_down = place.app(resident=0), Waits.write_down

    async def held_up(waits: Waits) -> None:
        await gate()
        await write_down(waits)

    monkeypatch.setattr(Waits, "write_down", held_up)

    @app.workflow
    async def naps() -> None:
        short, long = asyncio.create_task(outlast.sleep("500ms")), asyncio.create_task(outlast.sleep("1h"))
        await short
        await long

    async with app:
        handle = await naps.start()
        await gate.reached()

        async def is_over() -> bool:
            return await ended(handle, "sleep") == [("sleep", "succeeded")]

        await until(is_over, "the short sleep does not end")
        [before] = await handle.attempts()
        gate.open()

        async def is_claimed_again() -> bool:
            return (await handle.attempts())[0].epoch != before.epoch

        # The wake time of its suspension has passed: it is woken, and sleeps on.
        await until(is_claimed_again, "nobody woke it")
        await suspended_on(handle, "timer")
        assert await ended(handle, "sleep") == [("sleep", "succeeded")]
