"""Children: executions that workflow code starts, called or held, and what becomes of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import outlast
from outlast import (
    App,
    ExecutionCancelled,
    ExecutionConflict,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionNotFound,
    ExecutionRefused,
    InvalidInput,
    LimitExceeded,
    Retry,
    Status,
    WrongPlace,
)
from tests.acceptance.conftest import Gate, Place, status_is, until

pytestmark = pytest.mark.on_carried


@dataclass
class Parcel:
    order: str
    weight: int


class OutOfStock(Exception):
    def __init__(self, item: str, left: int) -> None:
        super().__init__(f"{item}: {left} left")
        self.item, self.left = item, left


async def ids_in(app: App) -> list[str]:
    return sorted(info.id for info in await app.find(limit=1_000))


# ---- calling ------------------------------------------------------------------------------------------------------


async def test_a_workflow_called_in_a_workflow_is_a_child_execution_named_under_its_parent(app: App):
    @app.workflow
    async def ship(order: str) -> Parcel:
        return Parcel(order, 3)

    @app.workflow
    async def checkout(order: str) -> list[Any]:
        first = await ship(order)
        second = await ship("other")
        return [type(first).__name__, first.order, second.order]

    async with app:
        assert await checkout.options(id="order-42").start("a") is not None
        assert await checkout.execution("order-42").result(timeout=20) == ["Parcel", "a", "other"]
        assert await ids_in(app) == ["order-42", "order-42/ship.1", "order-42/ship.2"]
        assert (await app.execution("order-42/ship.1").info()).status is Status.SUCCEEDED


async def test_children_in_branches_have_names_of_their_own(app: App):
    @app.workflow
    async def ship(number: int) -> int:
        return number * 10

    @app.workflow
    async def checkout() -> list[int]:
        return await asyncio.gather(*(ship(number) for number in range(5)))

    async with app:
        handle = await checkout.options(id="it").start()
        assert await handle.result(timeout=20) == [0, 10, 20, 30, 40]
        assert len(await ids_in(app)) == 6


async def test_a_child_is_awaited_while_its_parent_holds_no_worker(app: App):
    """One place for two executions: the parent leaves it to its child."""

    @app.workflow
    async def ship() -> str:
        return "shipped"

    @app.workflow
    async def checkout() -> str:
        return await ship()

    async with app.worker(concurrency=1):
        assert await checkout() == "shipped"


async def test_a_held_child_goes_on_while_its_parent_does_other_things(app: App, gate: Gate):
    @app.step
    async def wait_there() -> str:
        await gate()
        return "shipped"

    @app.workflow
    async def ship(order: str) -> str:
        return order + await wait_there()

    @app.step
    async def pack() -> str:
        await gate.reached()
        gate.open()
        return "packed"

    @app.workflow
    async def checkout() -> list[str]:
        child = await ship.options(id="ship").start("42 ")
        return [await pack(), await child.result(), await child.result(), child.id]

    async with app:
        handle = await checkout.options(id="order-42").start()
        assert await handle.result(timeout=20) == ["packed", "42 shipped", "42 shipped", "order-42/ship"]


async def test_def_workflows_have_children_too(app: App):
    @app.workflow
    def parse(line: str) -> int:
        return int(line)

    @app.workflow
    async def double(number: int) -> int:
        return number * 2

    @app.workflow
    def total(lines: list[str]) -> list[int]:
        held = double.sync.start(21)
        return [*(parse(line) for line in lines), double.sync(4), held.result(), double.sync.start(1).result(timeout=9)]

    @app.workflow
    async def from_async(line: str) -> int:
        return await parse.aio(line)

    async with app:
        assert await total.aio(["1", "2"]) == [1, 2, 8, 42, 2]
        assert await from_async("7") == 7


async def test_grandchildren_live_under_their_grandparent(app: App):
    @app.workflow
    async def label() -> str:
        return outlast_id()

    def outlast_id() -> str:
        return "labelled"

    @app.workflow
    async def ship() -> str:
        return await label.options(id="label")()

    @app.workflow
    async def checkout() -> str:
        return await ship.options(id="ship")()

    async with app:
        handle = await checkout.options(id="order-42").start()
        assert await handle.result(timeout=20) == "labelled"
        assert await ids_in(app) == ["order-42", "order-42/ship", "order-42/ship/label"]


async def test_a_workflow_called_in_a_step_is_refused(app: App):
    @app.workflow
    async def ship() -> None: ...

    @app.step
    async def step() -> None:
        await ship()

    @app.workflow
    async def checkout() -> None:
        await step()

    async with app:
        with pytest.raises(WrongPlace, match="inside step"):
            await checkout()


async def test_the_colours_of_children_are_kept_apart(app: App):
    @app.workflow
    async def ship() -> None: ...

    @app.workflow
    def parse() -> None: ...

    @app.workflow
    async def blocks() -> None:
        parse()

    @app.workflow
    def awaits() -> None:
        _ = ship()

    async with app:
        with pytest.raises(WrongPlace, match=r"await parse\.aio"):
            await blocks()
        with pytest.raises(WrongPlace, match=r"ship\.sync"):
            await awaits.aio()


# ---- failures -----------------------------------------------------------------------------------------------------


async def test_a_child_fails_its_parent_with_the_exception_it_raised(app: App):
    @app.workflow
    async def ship() -> None:
        raise OutOfStock("shoe", 2)

    @app.workflow
    async def checkout() -> list[Any]:
        try:
            await ship()
        except OutOfStock as error:
            return [error.item, error.left, str(error)]
        return []

    async with app:
        assert await checkout() == ["shoe", 2, "shoe: 2 left"]


async def test_an_exception_that_cannot_be_imported_comes_with_its_remote_traceback(app: App):
    class Local(Exception):
        pass

    @app.workflow
    async def ship() -> None:
        raise Local("deep inside")

    @app.workflow
    async def checkout() -> list[str]:
        try:
            await ship()
        except ExecutionFailed as error:
            return [error.error_type.rpartition(".")[2], error.message, error.traceback]
        return []

    async with app:
        kind, message, lines = await checkout()
        assert (kind, message) == ("Local", "deep inside")
        assert "in ship" in lines


async def test_a_cancelled_and_an_expired_child_have_errors_of_their_own(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def waits() -> None:
        await outlast.receive("never")

    @app.workflow(deadline="1h")
    async def expires() -> None:
        await outlast.receive("never")

    @app.workflow
    async def parent() -> list[str]:
        outcomes: list[str] = []
        for child in (waits, expires):
            handle = await child.options(id=child.name).start()
            try:
                await handle.result()
            except (ExecutionCancelled, ExecutionExpired) as error:
                outcomes.append(f"{type(error).__name__}: {error}")
        return outcomes

    async with app:
        handle = await parent.options(id="it").start()
        await status_is(handle, "suspended")
        assert (await handle.info()).reason == "child:it/waits"
        await app.execution("it/waits").cancel(reason="out of stock")
        await until(lambda: _reason_is(handle, "child:it/expires"), "it does not wait for the second")
        await child_is(app, "it/expires", "suspended")
        await clocked.pass_time(app, "2h")
        assert await handle.result(timeout=20) == [
            "ExecutionCancelled: execution 'it/waits' was cancelled: out of stock",
            "ExecutionExpired: execution 'it/expires' expired: deadline",
        ]


async def _reason_is(handle: Any, reason: str) -> bool:
    return (await handle.info()).reason == reason


async def test_waiting_for_a_child_may_end_in_a_timeout_and_the_child_goes_on(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def slow() -> str:
        return await outlast.receive("go", str)

    @app.workflow
    async def parent() -> list[str]:
        child = await slow.options(id="slow").start()
        try:
            return [await child.result(timeout="1h")]
        except TimeoutError:
            await child.send("go", "late")
            return ["timed out", await child.result()]

    async with app:
        handle = await parent.options(id="it").start()
        await until(lambda: _reason_is(handle, "child:it/slow"), "it does not wait")
        await clocked.pass_time(app, "2h")
        assert await handle.result(timeout=20) == ["timed out", "late"]


async def test_a_retry_of_the_parent_waits_for_the_same_child_again(app: App):
    begun: list[str] = []

    @app.workflow
    async def ship() -> str:
        begun.append("ship")
        return "shipped"

    @app.step
    async def flaky() -> None:
        begun.append("flaky")
        if begun.count("flaky") < 3:
            raise OSError("not yet")

    @app.workflow(retry=Retry(max_attempts=5, initial=0, jitter=0))
    async def checkout() -> str:
        child = await ship.start()
        await flaky()
        return await child.result()

    async with app:
        assert await checkout() == "shipped"
        assert begun.count("ship") == 1


async def test_the_same_id_with_other_arguments_is_a_conflict(app: App):
    @app.workflow
    async def ship(order: str) -> str:
        return order

    @app.workflow
    async def checkout() -> list[str]:
        first = await ship.options(id="ship").start("a")
        again = await ship.options(id="ship").start("a")
        try:
            await ship.options(id="ship").start("b")
        except ExecutionConflict:
            return [await first.result(), await again.result(), "conflict"]
        return []

    async with app:
        assert await checkout() == ["a", "a", "conflict"]


async def test_two_branches_that_start_one_id_at_once_share_the_child(app: App):
    begun: list[str] = []

    @app.workflow
    async def ship(order: str) -> str:
        begun.append(order)
        return order

    @app.workflow
    async def checkout() -> list[str]:
        return await asyncio.gather(*(ship.options(id="ship")("a") for _ in range(5)))

    async with app:
        assert await checkout() == ["a"] * 5
        assert begun == ["a"]


async def test_an_id_that_grows_too_long_is_refused_by_its_limit(app: App):
    @app.workflow
    async def ship() -> None: ...

    @app.workflow
    async def checkout() -> str:
        try:
            await ship.options(id="x" * 200).start()
        except LimitExceeded as error:
            return error.what
        return ""

    async with app:
        handle = await checkout.options(id="y" * 100).start()
        assert await handle.result(timeout=20) == "id"


async def test_options_of_children_are_refused_where_there_is_no_parent(app: App):
    @app.workflow
    async def ship() -> None: ...

    async with app:
        for options in ({"detached": True}, {"parent_close": "wait"}):
            with pytest.raises(InvalidInput, match="inside a workflow"):
                await ship.options(**options).start()  # type: ignore[typeddict-item]
    for options in ({"detached": 1}, {"parent_close": "kill"}, {"send": "item"}, {"send": {"outlast:x": 1}}):
        with pytest.raises(InvalidInput):
            ship.options(**options)  # type: ignore[typeddict-item]


# ---- detached -----------------------------------------------------------------------------------------------------


async def test_a_detached_child_is_placed_on_its_own_and_can_be_awaited(app: App):
    @app.workflow
    async def ship(order: str) -> str:
        return f"{order} shipped"

    @app.workflow
    async def checkout() -> list[str]:
        child = await ship.options(id="parcel-7", detached=True).start("a")
        called = await ship.options(detached=True)("b")
        return [child.id, await child.result(), called]

    async with app:
        handle = await checkout.options(id="order-42").start()
        assert await handle.result(timeout=20) == ["parcel-7", "a shipped", "b shipped"]
        assert {"order-42", "parcel-7"} < set(await ids_in(app))


async def test_a_detached_start_of_another_ones_execution_is_told_so(app: App):
    @app.workflow
    async def cart() -> str:
        return await outlast.receive("item", str)

    @app.workflow
    async def other(number: int) -> int:
        return number

    @app.workflow
    async def adds() -> list[str]:
        mine = await cart.options(id="cart-7", detached=True, send={"item": "shoe"}).start()
        outcomes: list[str] = []
        try:
            await mine.result()
        except ExecutionConflict as error:
            outcomes.append(str(error))
        taken = await other.options(id="cart-7", detached=True).start(1)
        try:
            await taken.result()
        except ExecutionConflict as error:
            outcomes.append(str(error))
        return outcomes

    async with app:
        somebody_elses = await cart.options(id="cart-7").start()
        first, second = await adds()
        assert "is not a child of" in first
        assert "exists with other arguments" in second
        assert await somebody_elses.result(timeout=20) == "shoe"


# ---- the end of the parent ----------------------------------------------------------------------------------------


def family(app: App, **options: Any) -> Any:
    @app.workflow
    async def child() -> str:
        return await outlast.receive("go", str)

    @app.workflow
    async def parent(fails: bool = False) -> str:
        await child.options(id="child", **options).start()
        await outlast.receive("end")
        if fails:
            raise OutOfStock("shoe", 0)
        return "ended"

    return parent


async def begun(app: App, parent: Any, *args: Any) -> tuple[Any, Any]:
    handle, child = await parent.options(id="it").start(*args), app.execution("it/child")
    await until(lambda: _reason_is(handle, "event:end"), "the parent does not wait")
    await status_is(child, "suspended")
    return handle, child


@pytest.mark.parametrize("fails", [False, True])
async def test_children_are_cancelled_when_their_parent_ends_before_them(app: App, fails: bool):
    async with app:
        handle, child = await begun(app, family(app), fails)
        await handle.send("end")
        await status_is(handle, "failed" if fails else "succeeded")
        await status_is(child, "cancelled")


async def test_an_abandoned_child_outlives_its_parent(app: App):
    async with app:
        handle, child = await begun(app, family(app, parent_close="abandon"))
        await handle.send("end")
        await status_is(handle, "succeeded")
        await child.send("go", "on")
        assert await child.result(timeout=20) == "on"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_parent_that_waits_ends_when_its_child_has(app: App, fails: bool):
    async with app:
        handle, child = await begun(app, family(app, parent_close="wait"), fails)
        await handle.send("end")
        await until(lambda: _reason_is(handle, "child:it/child"), "it does not wait for its child")
        await child.send("go", "on")
        await status_is(handle, "failed" if fails else "succeeded")
        assert await child.result(timeout=20) == "on"


@pytest.mark.parametrize("policy", ["cancel", "wait"])
async def test_a_cancel_ends_the_family_in_one_commit(app: App, policy: str):
    async with app:
        handle, child = await begun(app, family(app, parent_close=policy))
        await handle.cancel()
        assert [(await one.info()).status for one in (handle, child)] == [Status.CANCELLED, Status.CANCELLED]


async def test_a_cancel_reaches_grandchildren_and_large_families(app: App):
    @app.workflow
    async def leaf() -> None:
        await outlast.receive("never")

    @app.workflow
    async def branch(leaves: int) -> None:
        await asyncio.gather(*(leaf() for _ in range(leaves)))

    @app.workflow
    async def tree() -> None:
        await asyncio.gather(branch(2), branch(60))

    async with app:
        handle = await tree.options(id="it").start()
        await until(lambda: _count_is(app, 65, "suspended"), "the tree does not stand")
        await handle.cancel()
        await until(lambda: _count_is(app, 65, "cancelled"), "not all are cancelled")


async def child_is(app: App, execution_id: str, status: str) -> None:
    async def reached() -> bool:
        return any(info.id == execution_id and info.status == status for info in await app.find())

    await until(reached, f"{execution_id} is not {status}")


async def _count_is(app: App, number: int, status: str) -> bool:
    return await app.count(status=status) == number


async def test_a_deadline_applies_the_policy_too(clocked: Place):
    app = clocked.app()
    async with app:
        parent = family(app, parent_close="wait")
        handle, child = parent.execution("it"), app.execution("it/child")
        await parent.options(id="it", deadline="1h").start()
        await until(lambda: _reason_is(handle, "event:end"), "the parent does not wait")
        await clocked.pass_time(app, "2h")
        await status_is(handle, "expired")
        await status_is(child, "cancelled")


async def test_code_that_gives_up_a_called_child_cancels_it(app: App):
    @app.workflow
    async def slow() -> None:
        await outlast.receive("never")

    @app.workflow
    async def parent() -> str:
        try:
            async with asyncio.timeout(0.05):
                await slow()
        except TimeoutError:
            await outlast.receive("end")
        return "given up"

    async with app:
        handle = await parent.options(id="it").start()
        await child_is(app, "it/slow.1", "cancelled")
        await handle.send("end")
        assert await handle.result(timeout=20) == "given up"


async def test_a_cancel_of_running_code_reaches_its_child(app: App, gate: Gate):
    @app.step
    async def hold() -> None:
        await gate()

    @app.workflow
    async def slow() -> None:
        await outlast.receive("never")

    @app.workflow
    async def parent() -> None:
        await asyncio.gather(slow(), hold())

    async with app:
        handle = await parent.options(id="it").start()
        await gate.reached()
        await child_is(app, "it/slow.1", "suspended")
        await handle.cancel()
        await status_is(handle, "cancelled")
        await status_is(app.execution("it/slow.1"), "cancelled")


# ---- waiting for others -------------------------------------------------------------------------------------------


async def test_the_result_of_what_has_ended_can_be_read_and_of_others_only_a_parent_hears(app: App):
    @app.workflow
    async def ended() -> int:
        return 7

    @app.workflow
    async def open_one() -> None:
        await outlast.receive("never")

    @app.workflow
    async def asks() -> list[Any]:
        answers: list[Any] = [await ended.execution("ended").result()]
        for execution_id in ("open", "unknown"):
            try:
                answers.append(await app.execution(execution_id).result())
            except (ExecutionRefused, ExecutionNotFound) as error:
                answers.append(type(error).__name__)
        return answers

    async with app:
        await (await ended.options(id="ended").start()).result(timeout=20)
        await open_one.options(id="open").start()
        assert await asks() == [7, "ExecutionRefused", "ExecutionNotFound"]


async def test_a_child_that_was_purged_has_told_its_parent(app: App, gate: Gate):
    @app.workflow
    async def ship() -> int:
        return 7

    @app.step
    async def wait_there() -> None:
        await gate()

    @app.workflow
    async def parent() -> int:
        child = await ship.options(id="ship").start()
        await wait_there()
        return await child.result()

    async with app:
        handle = await parent.options(id="it").start()
        await gate.reached()
        await status_is(app.execution("it/ship"), "succeeded")
        await until(lambda: _told(app, "it"), "the parent has not heard")
        assert await app.purge(older_than=0) == 1
        gate.open()
        assert await handle.result(timeout=20) == 7


async def _told(app: App, execution_id: str) -> bool:
    assert app._opened is not None
    execution = await app._opened._engine.look("default", execution_id)
    return execution is not None and execution.inbox > 0
