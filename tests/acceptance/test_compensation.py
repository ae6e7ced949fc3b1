"""Undos: registered durably, run in reverse when the workflow does not succeed, each once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import outlast
from outlast import App, ExecutionCancelled, ExecutionExpired, ExecutionRefused, InvalidInput, Retry, WrongPlace
from outlast.runtime.attempts import performing
from tests.acceptance.conftest import Gate, Place, status_is, until

pytestmark = pytest.mark.on_carried


class Shop:
    """Steps that take and give back, and what became of it."""

    def __init__(self, app: App) -> None:
        self.done: list[str] = []
        self.fails: dict[str, int] = {}

        @app.step
        async def take(what: str) -> str:
            self.do(f"take {what}")
            return what

        @app.step(retry=Retry(max_attempts=3, initial="1ms"))
        async def give_back(what: str) -> None:
            self.do(f"give back {what}")

        @app.step
        def throw_away(what: str) -> None:
            self.do(f"throw away {what}")

        self.take, self.give_back, self.throw_away = take, give_back, throw_away

    def do(self, what: str) -> None:
        self.done.append(what)
        if self.fails.get(what, 0) > 0:
            self.fails[what] -= 1
            raise RuntimeError(f"cannot {what}")


async def ops(handle: Any) -> list[tuple[str, str, str]]:
    return [(entry.op, entry.name, entry.outcome) for entry in await handle.journal()]


async def test_a_failure_undoes_in_reverse_and_is_raised_as_it_was(app: App) -> None:
    shop = Shop(app)

    @app.workflow
    async def order() -> None:
        for what in ("room", "car", "seat"):
            await outlast.compensate(shop.give_back, what)
            await shop.take(what)
        raise KeyError("sold out")

    async with app:
        handle = await order.start()
        with pytest.raises(KeyError, match="sold out"):
            await handle.result(timeout=20)
        assert shop.done[3:] == ["give back seat", "give back car", "give back room"]
        assert (await handle.info()).status == "failed"
        assert (await ops(handle))[-4:] == [
            ("unwind", "outlast:unwind", "failed"),
            ("step", "give_back", "succeeded"),
            ("step", "give_back", "succeeded"),
            ("step", "give_back", "succeeded"),
        ]


async def test_a_success_forgets_the_undos(app: App) -> None:
    shop = Shop(app)

    @app.workflow
    async def order() -> str:
        await outlast.compensate(shop.give_back, "room")
        return await shop.take("room")

    async with app:
        assert await order() == "room"
    assert shop.done == ["take room"]


async def test_def_workflows_and_def_steps_undo_too(app: App) -> None:
    shop = Shop(app)

    @app.workflow
    def order() -> None:
        outlast.compensate(shop.throw_away, "bag")
        shop.take.sync("bag")
        raise KeyError("no")

    async with app:
        with pytest.raises(KeyError):
            await (await order.start()).result(timeout=20)
    assert shop.done == ["take bag", "throw away bag"]


async def test_a_failure_that_is_retried_undoes_nothing_until_it_is_the_last(app: App) -> None:
    shop = Shop(app)
    shop.fails["take car"] = 2

    @app.workflow(retry=Retry(max_attempts=3, initial="1ms"))
    async def order(give_up: bool) -> str:
        await outlast.compensate(shop.give_back, "room")
        await shop.take("room")
        if give_up:
            raise KeyError("no")
        return await shop.take("car")

    async with app:
        assert await (await order.start(False)).result(timeout=20) == "car"
        assert "give back room" not in shop.done
        shop.done.clear()
        handle = await order.start(True)
        with pytest.raises(KeyError):
            await handle.result(timeout=20)
        assert shop.done == ["take room", "give back room"]
        assert (await handle.info()).failures == 3


async def test_an_undo_is_retried_as_its_step_says(app: App) -> None:
    shop = Shop(app)
    shop.fails["give back room"] = 2

    @app.workflow
    async def order() -> None:
        await outlast.compensate(shop.give_back, "room")
        raise KeyError("no")

    async with app:
        handle = await order.start()
        with pytest.raises(KeyError):
            await handle.result(timeout=20)
        assert shop.done == ["give back room"] * 3
        [undo] = [entry for entry in await handle.journal() if entry.scope == "undo."]
        assert (undo.name, undo.outcome, undo.tries) == ("give_back", "succeeded", 3)


async def test_an_undo_that_fails_for_good_is_recorded_and_the_others_run(app: App) -> None:
    shop = Shop(app)
    shop.fails["give back car"] = 99

    @app.workflow
    async def order() -> None:
        for what in ("room", "car", "seat"):
            await outlast.compensate(shop.give_back, what)
        raise KeyError("the first failure stands")

    async with app:
        handle = await order.start()
        with pytest.raises(KeyError, match="the first failure stands"):
            await handle.result(timeout=20)
        undone = [(e.occurrence, e.outcome) for e in await handle.journal() if e.scope == "undo."]
        assert undone == [(3, "succeeded"), (2, "failed"), (1, "succeeded")]
        failed = next(e for e in await handle.journal() if e.scope == "undo." and e.outcome == "failed")
        assert b"cannot give back car" in (failed.value or b"")


@pytest.mark.parametrize("below", [True, False])
async def test_an_undo_that_exits_has_failed(app: App, below: bool) -> None:
    @app.step
    async def give_back() -> None:
        if below:
            await asyncio.create_task(leaves())
        await leaves()

    async def leaves() -> None:
        raise GeneratorExit

    @app.workflow
    async def order() -> None:
        await outlast.compensate(give_back)
        raise KeyError("no")

    async with app:
        handle = await order.start()
        with pytest.raises(KeyError, match="no"):
            await handle.result(timeout=20)
        assert [e.outcome for e in await handle.journal() if e.scope == "undo."] == ["failed"]


async def test_a_long_backoff_of_an_undo_suspends(clocked: Place) -> None:
    app = clocked.app()
    tries: list[int] = []

    @app.step(retry=Retry(max_attempts=2, initial="1h", jitter=0))
    async def give_back() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("later")

    @app.workflow
    async def order() -> None:
        await outlast.compensate(give_back)
        raise KeyError("no")

    async with app:
        handle = await order.start()
        await status_is(handle, "suspended")
        assert (await handle.info()).reason == "retry"
        await clocked.pass_time(app, "61m")
        with pytest.raises(KeyError):
            await handle.result(timeout=20)
    assert len(tries) == 2


async def test_a_cancel_lets_the_code_unwind_and_then_undoes(app: App, gate: Gate) -> None:
    shop = Shop(app)

    @app.step
    async def wait() -> None:
        await gate()

    @app.workflow
    async def order() -> None:
        await outlast.compensate(shop.give_back, "room")
        try:
            await wait()
        finally:
            await shop.take("breath")

    async with app:
        handle = await order.start()
        await gate.reached()
        await handle.cancel("changed my mind")
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)
        assert shop.done == ["take breath", "give back room"]


async def test_a_cancel_wakes_what_is_suspended_and_undoes(clocked: Place) -> None:
    app = clocked.app()
    shop = Shop(app)

    @app.workflow
    async def order() -> None:
        await outlast.compensate(shop.give_back, "room")
        await asyncio.sleep(3_600)

    async with app:
        handle = await order.start()
        await status_is(handle, "suspended")
        await handle.cancel()
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)
    assert shop.done == ["give back room"]


async def test_a_cancel_during_a_backoff_undoes_at_once(clocked: Place) -> None:
    """The code fails again before it can hear of the cancel: nobody waits for the other backoffs."""
    app = clocked.app()
    shop = Shop(app)

    @app.workflow(retry=Retry(max_attempts=4, initial="1h"))
    async def order() -> None:
        await outlast.compensate(shop.give_back, "room")
        raise ValueError("no such room")

    async with app:
        handle = await order.start()
        await status_is(handle, "blocked")
        await handle.cancel()
        with pytest.raises(ValueError, match="no such room"):
            await handle.result(timeout=20)
    assert shop.done == ["give back room"]


async def test_a_deadline_undoes_and_then_expires(clocked: Place) -> None:
    app = clocked.app()
    shop = Shop(app)

    @app.workflow(deadline="1h")
    async def order() -> None:
        await outlast.compensate(shop.give_back, "room")
        await asyncio.sleep(36_000)

    async with app:
        handle = await order.start()
        await status_is(handle, "suspended")
        await clocked.pass_time(app, "2h")
        with pytest.raises(ExecutionExpired, match="deadline"):
            await handle.result(timeout=20)
        info = await handle.info()
        assert (info.status, info.cause) == ("expired", "deadline")
    assert shop.done == ["give back room"]


async def test_a_cancel_ends_a_hold_though_the_deadline_has_told_it_before(clocked: Place) -> None:
    app = clocked.app()
    shop = Shop(app)

    @app.workflow(deadline="1h")
    async def order() -> None:
        await outlast.compensate(shop.give_back, "room")
        await outlast.receive("paid")

    async with app:
        handle = await order.start()
        await status_is(handle, "suspended")
        await handle.hold()
        await clocked.pass_time(app, "2h")
        info = await handle.info()
        assert (info.status, info.reason, info.cause) == ("blocked", "operator", "unwinding:deadline")
        await handle.cancel("it has waited long enough")
        await status_is(handle, "expired")
        info = await handle.info()
        assert (info.held, info.cause) == (False, "deadline")
    assert shop.done == ["give back room"]


async def test_the_last_timeout_undoes_and_then_expires(clocked: Place, gate: Gate) -> None:
    app = clocked.app()
    shop = Shop(app)

    @app.step
    async def hang() -> None:
        await gate()

    @app.workflow(timeout="1h")
    async def order() -> None:
        await outlast.compensate(shop.give_back, "room")
        await hang()

    async with app:
        handle = await order.start()
        await gate.reached()
        await clocked.pass_time(app, "2h")
        with pytest.raises(ExecutionExpired, match="attempt_timeout"):
            await handle.result(timeout=20)
        assert [attempt.outcome for attempt in await handle.attempts()] == ["timed_out", "cancelled"]
    assert shop.done == ["give back room"]


async def test_the_last_crash_undoes_and_then_expires(clocked: Place) -> None:
    """The step that kills its worker is not performed again; what was done before it is undone."""
    begun: list[str] = []
    gate = Gate()

    def build(app: App) -> tuple[Any, Shop]:
        shop = Shop(app)

        @app.step
        async def deadly() -> None:
            begun.append("deadly")
            await gate()

        @app.workflow(name="order")
        async def order() -> None:
            await outlast.compensate(shop.give_back, "room")
            await deadly()

        return order, shop

    first = clocked.app()
    order, _ = build(first)
    async with first:
        await order.options(id="it").start()
        await gate.reached()
        opened, first._opened = first._opened, None
        assert opened is not None
        await opened.abandon()
    for _ in range(4):  # the cap is 5
        gate = Gate()
        app = clocked.app()
        build(app)
        async with app:
            await clocked.pass_time(app, "2d")
            await gate.reached()
            opened, app._opened = app._opened, None
            assert opened is not None
            await opened.abandon()
    last = clocked.app()
    order, shop = build(last)
    async with last:
        await clocked.pass_time(last, "2d")
        handle = order.execution("it")
        with pytest.raises(ExecutionExpired, match="crashes"):
            await handle.result(timeout=20)
    assert shop.done == ["give back room"]
    assert len(begun) == 5


async def test_steps_that_still_run_are_stopped_before_their_undo(app: App) -> None:
    shop = Shop(app)
    begun = asyncio.Event()

    @app.step
    async def slow() -> None:
        begun.set()
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(0.2)  # what it has begun it brings to an end
            shop.do("stop slow")

    @app.step
    async def fail() -> None:
        await begun.wait()
        raise KeyError("no")

    @app.workflow
    async def order() -> None:
        await outlast.compensate(shop.give_back, "room")
        await asyncio.gather(slow(), fail())

    async with app:
        with pytest.raises(KeyError):
            await (await order.start()).result(timeout=20)
    assert shop.done == ["stop slow", "give back room"]


async def test_a_step_that_does_not_stop_keeps_nobody_from_undoing(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(app)
    begun, over = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(performing, "CLEAN_UP_S", 0.1)

    @app.step
    async def stubborn() -> None:
        begun.set()
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    @app.step
    async def fail() -> None:
        await begun.wait()
        raise KeyError("no")

    @app.workflow
    async def order() -> None:
        await outlast.compensate(shop.give_back, "room")
        await asyncio.gather(stubborn(), fail())

    async with app:
        with pytest.raises(KeyError):
            await (await order.start()).result(timeout=20)
        over.set()
    assert shop.done == ["give back room"]
    assert "step 'stubborn' was given up, and does not end" in caplog.text


async def test_a_result_that_cannot_be_stored_undoes_too(app: App) -> None:
    shop = Shop(app)

    @app.workflow
    async def order() -> int:
        await outlast.compensate(shop.give_back, "room")
        return "no number"  # type: ignore[return-value]

    async with app:
        with pytest.raises(InvalidInput):
            await (await order.start()).result(timeout=20)
    assert shop.done == ["give back room"]


async def test_what_was_undone_is_not_retried_but_may_be_started_anew(app: App) -> None:
    shop = Shop(app)
    fails = [True]

    @app.workflow
    async def order() -> str:
        await outlast.compensate(shop.give_back, "room")
        await shop.take("room")
        if fails:
            raise KeyError("no")
        return "done"

    async with app:
        handle = await order.options(id="it").start()
        with pytest.raises(KeyError):
            await handle.result(timeout=20)
        with pytest.raises(ExecutionRefused, match="undos have run"):
            await handle.retry()
        fails.clear()
        again = await order.options(id="it", if_exists="restart").start()
        assert await again.result(timeout=20) == "done"
    assert shop.done == ["take room", "give back room", "take room"]


async def test_a_compensation_that_cannot_be_is_refused_where_it_stands(app: App) -> None:
    shop = Shop(app)
    refused: list[Exception] = []

    def plain() -> None: ...

    @app.workflow
    async def order() -> None:
        for call in (
            lambda: outlast.compensate(plain),  # type: ignore[arg-type]
            lambda: outlast.compensate(order),  # type: ignore[arg-type]
            lambda: outlast.compensate(shop.give_back),  # type: ignore[call-arg]
            lambda: outlast.compensate(shop.give_back, "a", "b"),  # type: ignore[call-arg]
        ):
            try:
                call()
            except InvalidInput as error:
                refused.append(error)

    async with app:
        handle = await order.start()
        await handle.result(timeout=20)
        assert await handle.journal() == []
    assert len(refused) == 4
    with pytest.raises(WrongPlace, match="outside of a workflow"):
        outlast.compensate(shop.give_back, "room")


async def test_crash_between_the_undos_repeats_none_and_goes_on(clocked: Place) -> None:
    def build(app: App, gate: Gate | None) -> tuple[Any, Shop]:
        shop = Shop(app)

        @app.step
        async def stop() -> None:
            if gate is not None:
                await gate()

        @app.workflow(name="order")
        async def order() -> None:
            await outlast.compensate(shop.give_back, "room")
            await outlast.compensate(stop)
            await outlast.compensate(shop.give_back, "seat")
            raise KeyError("no")

        return order, shop

    gate = Gate()
    first, second = clocked.app(), clocked.app()
    mine, my_shop = build(first, gate)
    theirs, their_shop = build(second, None)
    async with first:
        await mine.options(id="it").start()
        await gate.reached()
        opened, first._opened = first._opened, None
        assert opened is not None
        await opened.abandon()
    async with second:
        await clocked.pass_time(second, "2d")
        with pytest.raises(KeyError, match="no"):
            await theirs.execution("it").result(timeout=20)
    assert my_shop.done == ["give back seat"]
    assert their_shop.done == ["give back room"]


async def test_code_that_would_go_on_after_its_undos_began_waits_for_a_fixed_deploy(clocked: Place) -> None:
    gate = Gate()

    def build(app: App, *, fails: bool) -> tuple[Any, Shop]:
        shop = Shop(app)

        @app.step
        async def stop() -> None:
            await gate()

        @app.workflow(name="order")
        async def order() -> None:
            await outlast.compensate(stop)
            if fails:
                raise KeyError("no")
            await shop.take("room")

        return order, shop

    first, second = clocked.app(), clocked.app()
    mine, _ = build(first, fails=True)
    theirs, shop = build(second, fails=False)
    async with first:
        await mine.options(id="it").start()
        await gate.reached()
        opened, first._opened = first._opened, None
        assert opened is not None
        await opened.abandon()
    async with second:
        await clocked.pass_time(second, "2d")
        handle = theirs.execution("it")
        await until(lambda: _waits_for_version(handle), "it does not wait for its version")
    assert shop.done == []


async def _waits_for_version(handle: Any) -> bool:
    return (await handle.info()).reason == "version"
