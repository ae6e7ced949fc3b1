"""Called children that were cancelled because the code gave them up, or because their parent ended: a retry starts
others in their place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import outlast
from outlast import App, ExecutionCancelled, ExecutionExpired, Retry
from outlast.authoring.workflow import Workflow
from outlast.testing import harness, replay_every_await
from tests.acceptance.conftest import Gate, Place, status_is, until

AT_ONCE = Retry(max_attempts=3, initial=0, jitter=0)


class Family:
    """A parent that calls a child, and something that fails once beside it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.failed = False

        @app.step
        async def flaky() -> str:
            if not self.failed:
                self.failed = True
                raise ConnectionError("once")
            return "fine"

        @app.workflow
        async def ship() -> str:
            return await outlast.receive("go", str)

        self.flaky, self.ship = flaky, ship

    async def in_a_group(self) -> str:
        async with asyncio.TaskGroup() as group:
            late, child = group.create_task(self._late()), group.create_task(self.ship())
        return f"{late.result()}, {child.result()}"

    async def _late(self) -> str:
        await outlast.receive("fail")
        return await self.flaky()

    async def ships(self, child: str) -> None:
        """Let that child end, once it waits for it."""
        await self.waits(child)
        await self.app.execution(child).send("go", "shipped")

    async def waits(self, child: str) -> None:
        async def has_begun() -> bool:
            return [info.reason for info in await self.app.find(workflow="ship") if info.id == child] == ["event:go"]

        await until(has_begun, f"{child} does not wait")

    async def ids(self) -> set[str]:
        return {info.id for info in await self.app.find(workflow="ship")}


async def test_a_retry_starts_another_in_place_of_the_child_that_a_failure_made_the_code_give_up(app: App):
    family = Family(app)

    @app.workflow(retry=AT_ONCE)
    async def order() -> str:
        return await family.in_a_group()

    async with app:
        handle = await order.options(id="order").start()
        await family.waits("order/ship.1")
        await handle.send("fail")
        await family.ships("order/ship.1@1.2")
        assert await handle.result(timeout=20) == "fine, shipped"
        await status_is(app.execution("order/ship.1"), "cancelled")
        assert await family.ids() == {"order/ship.1", "order/ship.1@1.2"}
        assert (await handle.info()).attempts == 2


async def test_a_retry_starts_another_when_the_same_attempt_has_started_it_and_given_it_up(app: App):
    """It was never suspended in between: what it knows of the child is what it recorded itself."""
    family = Family(app)

    @app.step
    async def flaky() -> str:
        if not family.failed:
            await family.waits("order/ship.1")
        return await family.flaky.fn()

    @app.workflow(retry=AT_ONCE)
    async def order() -> str:
        async with asyncio.TaskGroup() as group:
            child, beside = group.create_task(family.ship()), group.create_task(flaky())
        return f"{beside.result()}, {child.result()}"

    async with app:
        handle = await order.options(id="order").start()
        await family.ships("order/ship.1@1.2")
        assert await handle.result(timeout=20) == "fine, shipped"
        await status_is(app.execution("order/ship.1"), "cancelled")


async def test_a_retry_by_hand_starts_another_too(app: App):
    family = Family(app)

    @app.workflow
    async def order() -> str:
        return await family.in_a_group()

    async with app:
        handle = await order.options(id="order").start()
        await family.waits("order/ship.1")
        await handle.send("fail")
        with pytest.raises(ExceptionGroup):
            await handle.result(timeout=20)
        await handle.retry()
        await family.ships("order/ship.1@2")
        assert await handle.result(timeout=20) == "fine, shipped"


async def test_what_was_cancelled_with_its_parent_is_started_anew_when_that_is_retried(app: App, gate: Gate):
    """However often: suspended, when both end in one commit, and running, when the code gives the child up."""
    family = Family(app)

    @app.step
    async def hold() -> None:
        await gate()

    @app.workflow
    async def order(busy: bool) -> str:
        if busy:
            _, shipped = await asyncio.gather(hold(), family.ship())
            return shipped
        return await family.ship()

    async with app:
        for busy, name in ((False, "suspended"), (True, "running")):
            handle = await order.options(id=name).start(busy)
            await family.waits(f"{name}/ship.1")
            for generation in (2, 3):
                await handle.cancel()
                with pytest.raises(ExecutionCancelled):
                    await handle.result(timeout=20)
                await status_is(app.execution(f"{name}/ship.1"), "cancelled")
                await handle.retry()
                await family.waits(f"{name}/ship.1@{generation}")
            gate.open()
            await family.ships(f"{name}/ship.1@3")
            assert await handle.result(timeout=20) == "shipped"


async def test_what_was_cancelled_at_its_parents_deadline_is_started_anew(clocked: Place):
    app = clocked.app()
    family = Family(app)

    @app.workflow
    async def order() -> str:
        return await family.ship()

    async with app:
        handle = await order.options(id="order", deadline="1h").start()
        await family.waits("order/ship.1")
        await clocked.pass_time(app, "2h")
        with pytest.raises(ExecutionExpired):
            await handle.result(timeout=20)
        await status_is(app.execution("order/ship.1"), "cancelled")
        await handle.retry()
        await family.ships("order/ship.1@2")
        assert await handle.result(timeout=20) == "shipped"


async def test_a_def_workflow_calls_another_one_too(app: App):
    family = Family(app)

    @app.workflow
    def order() -> str:
        return family.ship.sync()

    async with app:
        handle = await order.options(id="order").start()
        await family.waits("order/ship.1")
        await handle.cancel()
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)
        await handle.retry()
        await family.ships("order/ship.1@2")
        assert await handle.result(timeout=20) == "shipped"


async def test_a_child_that_is_held_or_has_an_id_stays_the_same(app: App):
    """What the code has told it is recorded: another one would wait for it in vain."""
    family = Family(app)

    @app.workflow
    async def held() -> str:
        child = await family.ship.start()
        return await child.result()

    @app.workflow
    async def named() -> str:
        return await family.ship.options(id="ship.1").aio()

    async with app:
        for parent in (held, named):
            handle = await parent.options(id=parent.name).start()
            child = app.execution(f"{parent.name}/ship.1")
            await family.waits(child.id)
            await handle.cancel()
            await status_is(child, "cancelled")
            await handle.retry()
            with pytest.raises(ExecutionCancelled, match="cancelled"):
                await handle.result(timeout=20)
            await child.retry()
            await handle.retry()
            await family.ships(child.id)
            assert await handle.result(timeout=20) == "shipped"
        assert len(await family.ids()) == 2


# ---- what the code lived with -------------------------------------------------------------------------------------


async def by_a_timeout(child: Callable[[], Any], flaky: Callable[[], Any]) -> str:
    try:
        async with asyncio.timeout(60):
            return await child()
    except TimeoutError:
        return "late"


async def by_a_race(child: Callable[[], Any], flaky: Callable[[], Any]) -> str:
    return await outlast.race(child(), outlast.sleep("1m")) or "late"


async def by_a_failure(child: Callable[[], Any], flaky: Callable[[], Any]) -> str:
    async def sleeps_and_fails() -> None:
        await outlast.sleep("1m")
        await flaky()

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(sleeps_and_fails())
    except ExceptionGroup:
        return "late"
    return "shipped"


async def by_hand(child: Callable[[], Any], flaky: Callable[[], Any]) -> str:
    shipping = asyncio.create_task(child())
    await outlast.sleep("1m")
    shipping.cancel()
    return "late"


@pytest.mark.parametrize("given_up", [by_a_timeout, by_a_race, by_a_failure, by_hand])
async def test_a_child_that_the_code_gave_up_and_lived_without_is_not_started_again(given_up: Callable[..., Any]):
    app, failed = App(), list[str]()

    @app.step
    async def flaky(name: str) -> str:
        failed.append(name)
        if failed.count(name) == 1:
            raise ConnectionError(name)
        return name

    @app.workflow
    async def ship() -> str:
        return await outlast.receive("never", str)

    @app.workflow(retry=Retry(max_attempts=5, initial="1h"))
    async def order() -> list[str]:
        said = [await given_up(ship, lambda: flaky("first"))]
        said += [await flaky("second")]
        await outlast.sleep("1h")
        return [*said, await flaky("third")]

    async with harness(app):
        handle = await order.options(id="order").start()
        assert await handle.result() == ["late", "second", "third"]
        assert {info.id for info in await app.find(workflow="ship")} == {"order/ship.1"}
        assert (await handle.info()).failures == 2


def shop() -> Workflow[[], str]:
    """It fails until a child was lost, whatever crashes."""
    app = App()

    @app.step
    async def flaky() -> str:
        if not await app.find(workflow="ship", status=["cancelled"]):
            raise ConnectionError("not yet")
        return "fine"

    @app.workflow
    async def ship() -> str:
        await outlast.sleep("1h")
        return "shipped"

    async def late() -> str:
        await outlast.sleep("10m")
        return await flaky()

    @app.workflow(retry=Retry(max_attempts=3, initial="1m"))
    async def order() -> str:
        async with asyncio.TaskGroup() as group:
            one, child = group.create_task(late()), group.create_task(ship())
        lost = await app.step(app.count, name="lost")(workflow="ship", status=["cancelled"])
        return f"{one.result()}, {child.result()}, {lost} lost"

    return order


async def test_a_crash_while_another_is_started_leaves_one():
    assert (await replay_every_await(shop)).outcome == "fine, shipped, 1 lost"
