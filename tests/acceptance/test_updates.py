"""Updates: asked from outside, checked and accepted by the workflow's own code, answered durably."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import outlast
from outlast import (
    App,
    CodecError,
    ExecutionConflict,
    ExecutionNotFound,
    ExecutionRefused,
    InvalidInput,
    InvalidName,
    Status,
    UpdateRefused,
    WrongPlace,
)
from outlast.model.event import UPDATE, Event
from outlast.testing import harness
from tests.acceptance.conftest import Gate, Place, sessions_run_out, status_is, until

pytestmark = pytest.mark.on_carried


@dataclass
class Line:
    item: str
    pieces: int = 1


def cart_of(app: App, *, log: list[str] | None = None) -> Any:
    """A cart that is full with so many lines; `log` hears of each call of the handler."""

    @app.workflow
    async def cart(full: int) -> list[str]:
        lines: list[Line] = []
        done = asyncio.Event()

        @outlast.query("items")
        def items() -> list[str]:
            return [line.item for line in lines]

        @outlast.update("add")
        def add(line: Line) -> int:
            if log is not None:
                log.append(line.item)
            lines.append(line)
            if len(lines) >= full:
                done.set()
            return sum(line.pieces for line in lines)

        @add.validator
        def sensible(line: Line) -> None:
            if line.pieces < 1:
                raise ValueError(f"{line.pieces} pieces")

        await done.wait()
        return items()

    return cart


async def sent(app: App, execution_id: str) -> list[Event]:
    """The updates that were sent to it, in order."""
    assert app._opened is not None
    found = await app._opened._store.scan(Event.KIND, ("default", execution_id, UPDATE))
    return [event for event in found if isinstance(event, Event)]


async def test_an_update_is_answered_with_what_its_function_returned_and_the_code_goes_on_with_it(app: App):
    cart = cart_of(app)
    async with app:
        handle = await cart.start(2)
        assert await handle.update("add", Line("pear", 3), type=int, timeout=20) == 3
        assert await handle.update("add", Line("fig"), timeout=20) == 4
        assert await handle.result(timeout=20) == ["pear", "fig"]
        assert [(entry.op, entry.name, entry.occurrence) for entry in await handle.journal()] == [
            ("update", "add", 1),
            ("update", "add", 2),
        ]


async def test_a_refused_update_is_a_typed_error_and_leaves_no_trace_in_the_workflow(app: App):
    cart = cart_of(app)
    async with app:
        handle = await cart.start(1)
        with pytest.raises(UpdateRefused, match="refused update 'add': 0 pieces") as refused:
            await handle.update("add", Line("pear", 0), timeout=20)
        assert isinstance(refused.value.__cause__, ValueError)
        assert (refused.value.execution_id, refused.value.name) == (handle.id, "add")
        assert await handle.journal() == []
        assert await handle.query("items") == []
        assert await handle.update("add", Line("fig"), timeout=20) == 1
        assert await handle.result(timeout=20) == ["fig"]


async def test_what_came_with_it_must_be_what_the_function_takes(app: App):
    cart = cart_of(app)
    async with app:
        handle = await cart.start(1)
        with pytest.raises(UpdateRefused, match="update 'add'") as refused:
            await handle.update("add", {"item": 7}, timeout=20)
        assert isinstance(refused.value.__cause__, CodecError)
        with pytest.raises(UpdateRefused, match="no update 'remove'; it has 'add'"):
            await handle.update("remove", Line("pear"), timeout=20)
        assert await handle.update("add", {"item": "fig"}, timeout=20) == 1


async def test_the_same_key_is_the_same_update_and_has_the_same_answer_also_after_the_end(app: App):
    log: list[str] = []
    cart = cart_of(app, log=log)
    async with app:
        handle = await cart.start(2)
        first = await handle.update("add", Line("pear", 3), key="click-1", timeout=20)
        assert await handle.update("add", Line("pear", 3), key="click-1", timeout=20) == first == 3
        with pytest.raises(UpdateRefused, match="0 pieces"):
            await handle.update("add", Line("pear", 0), key="click-2", timeout=20)
        with pytest.raises(UpdateRefused, match="0 pieces"):
            await handle.update("add", Line("pear", 5), key="click-2", timeout=20)
        with pytest.raises(ExecutionConflict, match=r"has update 'add' under the key .* use another key"):
            await handle.update("remove", Line("pear"), key="click-1", timeout=20)
        assert await handle.update("add", Line("fig"), key="click-3", timeout=20) == 4
        assert await handle.result(timeout=20) == ["pear", "fig"]
        assert await handle.update("add", Line("pear", 3), key="click-1", timeout=20) == 3


def log_of(app: App) -> Any:
    @app.workflow
    async def log() -> list[str]:
        said: list[str] = []
        done = asyncio.Event()

        @outlast.update("say")
        def say(word: str) -> int:
            said.append(f"say {word}")
            if word == "bye":
                done.set()
            return len(said)

        @outlast.update("shout")
        def shout(word: str) -> int:
            said.append(f"shout {word}")
            return len(said)

        await done.wait()
        return said

    return log


async def were_sent(app: App, execution_id: str, number: int) -> bool:
    return len(await sent(app, execution_id)) == number


async def test_updates_are_taken_in_the_order_of_their_sending_whatever_their_names(place: Place):
    client, worker = place.app(), place.app()
    log_of(worker)
    words = [("say", "a"), ("shout", "b"), ("shout", "c"), ("say", "d"), ("say", "bye")]
    asked: list[asyncio.Task[Any]] = []
    async with client.client():
        handle = await log_of(client).start()
        for number, (name, word) in enumerate(words):
            asked.append(asyncio.create_task(handle.update(name, word, timeout=20)))
            await until(partial(were_sent, client, handle.id, number + 1), "it was not sent")
        assert not any(one.done() for one in asked)
        async with worker:
            assert await asyncio.gather(*asked) == [1, 2, 3, 4, 5]
            assert await handle.result(timeout=20) == [f"{name} {word}" for name, word in words]


async def test_many_updates_at_once_are_all_answered_each_once(app: App):
    log: list[str] = []
    cart = cart_of(app, log=log)
    async with app:
        handle = await cart.start(30)
        answers = await asyncio.gather(*(handle.update("add", Line(str(n)), timeout=60) for n in range(30)))
        assert sorted(answers) == list(range(1, 31))
        assert sorted(await handle.result(timeout=20)) == sorted(str(n) for n in range(30))


async def test_what_is_suspended_is_woken_by_an_update_from_another_process(place: Place):
    worker, client = place.app(), place.app()
    cart = cart_of(worker)
    cart_of(client)
    async with worker:
        handle = await cart.options(id="cart").start(2)
        await status_is(handle, "suspended")
        assert (await handle.info()).reason == f"event:{UPDATE}"
        async with client.client():
            other = client.execution("cart")
            assert await other.update("add", Line("pear"), timeout=20) == 1
            await status_is(other, "suspended")
            with pytest.raises(UpdateRefused, match="0 pieces"):
                await other.update("add", Line("pear", 0), timeout=20)
            await status_is(other, "suspended")
            assert await other.update("add", Line("fig"), timeout=20) == 2
        assert await handle.result(timeout=20) == ["pear", "fig"]


async def test_a_sleep_goes_on_after_an_update_and_its_reason_is_told(app: App, place: Place):
    @app.workflow
    async def sleeper() -> int:
        turns = 0

        @outlast.update("turn")
        def turn() -> int:
            nonlocal turns
            turns += 1
            return turns

        await outlast.sleep("1h", name="nap")
        return turns

    async with harness(app, url=place.url) as h:
        handle = await sleeper.start()
        info = await h.info(handle)
        assert (info.status, info.reason) == (Status.SUSPENDED, "timer")
        due = h.clock.now
        await h.clock.advance("30m")
        assert await handle.update("turn") == 1
        assert await handle.update("turn") == 2
        assert (await h.info(handle)).reason == "timer"
        assert await handle.result() == 2
        assert (h.clock.now - due).total_seconds() == 3_600


# ---- crashes --------------------------------------------------------------------------------------------------------


async def updated_twice(cart: Any) -> tuple[Any, ...]:
    handle = await cart.options(id="cart").start(2)
    first = await handle.update("add", Line("pear", 3), key="1")
    refused = None
    try:
        await handle.update("add", Line("pear", 0), key="no")
    except UpdateRefused as error:
        refused = str(error)
    second = await handle.update("add", Line("fig"), key="2")
    journal = [(entry.op, entry.name, entry.occurrence) for entry in await handle.journal()]
    return first, refused, second, await handle.result(), journal


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_accepted_update_is_answered_whoever_dies(place: Place, when: Any):
    """It is accepted, and the process dies before it answers: another one replays it, and answers the same."""
    app = App(place.url)
    cart = cart_of(app)
    async with harness(app, url=place.url) as h:
        h.crash_at("add", when=when)
        outcome = await updated_twice(cart)
        assert h.crashes == 1
    assert outcome == (
        3,
        "execution 'cart' refused update 'add': 0 pieces",
        4,
        ["pear", "fig"],
        [("update", "add", 1), ("update", "add", 2)],
    )


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_at_any_write_changes_nothing_about_the_answers(when: Any):
    expected = None
    for nth in range(200):
        app = App("sqlite:///never-opened.db")
        cart = cart_of(app)
        async with harness(app, seed=1) as h:
            if nth:
                h.crash_at("write", nth=nth, when=when)
            outcome = await updated_twice(cart)
            if nth and not h.crashes:
                break
        expected = expected or outcome
        assert outcome == expected, f"a crash {when} write {nth}"
    assert nth > 6


async def test_an_update_that_ends_the_code_is_answered_before_the_end_by_whoever_takes_over(app: App, place: Place):
    cart = cart_of(app)
    async with harness(app, url=place.url) as h:
        handle = await cart.start(1)
        await h.settle()
        h.crash_at("add", when="after")
        assert await handle.update("add", Line("pear", 2), key="last") == 2
        assert h.crashes == 1
        assert await handle.result() == ["pear"]
        assert await handle.update("add", Line("pear", 2), key="last") == 2


async def test_a_replay_applies_accepted_updates_where_they_were_applied(app: App, place: Place):
    """Between two steps, while one runs: what the code did with it, it does again."""
    ran: list[str] = []

    @app.step
    async def price(item: str, discount: int) -> int:
        ran.append(item)
        return 100 - discount

    @app.workflow
    async def sale() -> list[int]:
        discount = 0

        @outlast.update("discount")
        def lower(by: int) -> int:
            nonlocal discount
            discount += by
            return discount

        first = await price("a", discount)
        await outlast.receive("go")
        second = await price("b", discount)
        await outlast.receive("go")
        third = await price("c", discount)
        return [first, second, third]

    async with harness(app, url=place.url) as h:
        handle = await sale.start()
        await h.settle()
        assert await handle.update("discount", 10) == 10
        await handle.send("go")
        await h.settle()
        assert await handle.update("discount", 5) == 15
        await h.crash()
        await h.restart()
        await handle.send("go")
        assert await handle.result() == [100, 90, 85]
        assert ran == ["a", "b", "c"]
        assert h.performed_again == []
        assert await h.replay(handle) is None


# ---- refusals -------------------------------------------------------------------------------------------------------


async def test_code_without_updates_refuses_them_wherever_it_is(app: App, gate: Gate):
    @app.step
    async def slow() -> None:
        await gate()

    @app.workflow
    async def deaf() -> None:
        await slow()
        await outlast.receive("plan")

    async with app:
        handle = await deaf.start()
        await gate.reached()
        asked = asyncio.create_task(handle.update("add", 1, timeout=20))

        await until(partial(were_sent, app, handle.id, 1), "it was not sent")
        gate.open()
        with pytest.raises(UpdateRefused, match="no update 'add'; it has none"):
            await asked
        await status_is(handle, "suspended")
        with pytest.raises(ExecutionRefused, match="takes no updates where it waits now"):
            await handle.update("add", 1, timeout=20)
        assert len(await sent(app, handle.id)) == 1
        await handle.send("plan")
        await handle.result(timeout=20)


async def test_what_ended_before_it_accepted_an_update_refuses_it_and_never_takes_it(app: App, gate: Gate):
    log: list[str] = []

    @app.step
    async def slow() -> None:
        await gate()

    @app.workflow
    async def ends() -> None:
        @outlast.update("add")
        def add(word: str) -> None:
            log.append(word)

        await slow()
        raise RuntimeError("enough")

    async with app:
        handle = await ends.start()
        await gate.reached()
        assert await handle.update("add", "in time", timeout=20) is None
        gate.open()
        with pytest.raises(RuntimeError, match="enough"):
            await handle.result(timeout=20)
        with pytest.raises(ExecutionRefused, match="has ended"):
            await handle.update("add", "too late", timeout=20)
        with pytest.raises(ExecutionNotFound):
            await app.execution("nobody").update("add", "x", timeout=20)
        assert log == ["in time"]


async def test_an_update_that_nobody_takes_before_the_end_is_withdrawn(app: App):
    cart = cart_of(app)
    async with app:
        handle = await cart.options(delay="1h").start(1)
        asked = asyncio.create_task(handle.update("add", Line("pear"), timeout=20))

        await until(partial(were_sent, app, handle.id, 1), "it was not sent")
        await handle.cancel()
        with pytest.raises(ExecutionRefused, match="ended before it accepted the update: it is cancelled"):
            await asked
        assert await sent(app, handle.id) == []


async def test_an_update_that_times_out_stays_and_the_same_key_finds_its_answer(app: App, place: Place):
    cart = cart_of(app)
    async with harness(app, url=place.url, auto_advance=False) as h:
        handle = await cart.options(delay="1h").start(1)
        asked = asyncio.create_task(handle.update("add", Line("pear"), key="k", timeout="10m"))
        await h.clock.advance("11m")
        with pytest.raises(TimeoutError, match="update 'add' was not accepted within 600 s"):
            await asked
        await h.clock.advance("1h")
        assert await handle.update("add", Line("pear"), key="k") == 1


async def test_what_its_function_raises_is_raised_to_the_caller_and_the_code_goes_on(app: App):
    @app.workflow
    async def moody() -> int:
        calls = 0
        done = asyncio.Event()

        @outlast.update("poke")
        def poke(word: str) -> int:
            nonlocal calls
            calls += 1
            if word == "odd":
                return b"\xff"  # type: ignore[return-value]
            if word == "rude":
                raise KeyError(word)
            done.set()
            return calls

        await done.wait()
        return calls

    async with app:
        handle = await moody.start()
        with pytest.raises(KeyError, match="rude"):
            await handle.update("poke", "rude", key="1", timeout=20)
        with pytest.raises(KeyError, match="rude"):
            await handle.update("poke", "rude", key="1", timeout=20)
        with pytest.raises(CodecError, match="result of update 'poke'"):
            await handle.update("poke", "odd", timeout=20)
        await status_is(handle, "suspended")
        assert await handle.update("poke", "kind", timeout=20) == 3
        assert await handle.result(timeout=20) == 3


def test_an_interrupt_of_the_process_is_no_answer(place: Place):
    async def asked(stops: bool) -> str:
        app = place.app()

        @app.workflow
        async def cart() -> None:
            @outlast.update("stop")
            def stop() -> str:
                if stops:
                    raise KeyboardInterrupt
                return "stopped"

            await outlast.receive("never")

        async with app:
            handle = await cart.options(id="cart").start()
            return await handle.update("stop", key="once", timeout="20s")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(asked(True))
    asyncio.run(sessions_run_out(place.url))
    assert asyncio.run(asked(False)) == "stopped"


async def test_a_function_that_others_ask_for_does_nothing_durable(app: App):
    @app.step
    async def charge() -> None:
        raise AssertionError("it ran")

    @app.workflow
    async def shop() -> int:
        done = asyncio.Event()

        @outlast.update("charge")
        def charges() -> None:
            charge()  # pyright: ignore[reportUnusedCoroutine]

        @outlast.update("checked")
        def checked() -> None:
            done.set()

        @checked.validator
        def looks() -> None:
            outlast.emit("seen")

        @outlast.update("branch")
        def branch() -> None:
            """What takes longer is a branch of the code."""
            work.append(asyncio.create_task(later()))

        work: list[asyncio.Task[int]] = []

        async def later() -> int:
            await outlast.sleep("1ms")
            done.set()
            return 7

        await done.wait()
        return await work[0]

    async with app:
        handle = await shop.start()
        with pytest.raises(WrongPlace, match="step 'charge' was called in update 'charge'"):
            await handle.update("charge", timeout=20)
        with pytest.raises(UpdateRefused, match=r"emit\(\) was called in update 'checked'"):
            await handle.update("checked", timeout=20)
        await handle.update("branch", timeout=20)
        assert await handle.result(timeout=20) == 7


async def test_bad_registrations_and_bad_calls_complain_where_they_stand(app: App):
    @app.workflow
    async def wrong() -> list[str]:
        found: list[str] = []

        async def slow(value: int) -> None: ...

        def two(a: int, b: int) -> None: ...

        for register in (
            lambda: outlast.update("slow")(slow),
            lambda: outlast.query("two")(two),
            lambda: outlast.update("outlast:mine"),
            lambda: outlast.query(""),
            lambda: outlast.update("ok")(lambda: None).validator(two),  # type: ignore[arg-type]
            lambda: outlast.update("five")(5),  # type: ignore[arg-type]
            lambda: outlast.query("five")(5),  # type: ignore[type-var]
            lambda: outlast.update("ok")(lambda: None).validator(5),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidInput) as error:
                register()
            found.append(str(error.value))
        with pytest.raises(WrongPlace, match="do it in a step"):
            await app.execution("other").update("add")
        with pytest.raises(WrongPlace, match="do it in a step"):
            await app.execution("other").query("items")
        return found

    async with app:
        found = await wrong()
        assert "must be a plain def" in found[0]
        assert "takes one value, or none" in found[1]
        assert "reserved" in found[2]
        assert "empty" in found[3]
        assert "the validator of update 'ok' takes one value" in found[4]
        assert "a handler of update 'five' must be a function, not 5" in found[5]
        assert "a handler of query 'five' must be a function, not 5" in found[6]
        assert "a validator of update 'ok' must be a function, not 5" in found[7]
        handle = await wrong.options(delay="1h").start()
        with pytest.raises(InvalidName, match="reserved"):
            await handle.update("outlast:x")
        with pytest.raises(InvalidName, match="reserved"):
            await handle.send(UPDATE, 1)
        with pytest.raises(InvalidName):
            await handle.update("add", key="")
        with pytest.raises(InvalidInput, match="answer to update 'add'"):
            await handle.update("add", type=5)
        assert await sent(app, handle.id) == []
    with pytest.raises(WrongPlace, match="outside of a workflow"):
        outlast.update("add")


# ---- the rest of the model ------------------------------------------------------------------------------------------


async def test_a_def_workflow_takes_updates_while_it_waits(app: App):
    @app.workflow
    def counter() -> int:
        total = 0

        @outlast.update("add")
        def add(amount: int) -> int:
            nonlocal total
            total += amount
            return total

        @add.validator
        def positive(amount: int) -> None:
            if amount <= 0:
                raise ValueError("positive amounts only")

        @outlast.query("total")
        def shown() -> int:
            return total

        outlast.sync.receive("stop")
        return total

    async with app:
        handle = await counter.start()
        assert await handle.update("add", 2, timeout=20) == 2
        with pytest.raises(UpdateRefused, match="positive amounts only"):
            await handle.update("add", 0, timeout=20)
        await status_is(handle, "suspended")
        assert await handle.update("add", 3, timeout=20) == 5
        assert await handle.query("total") == 5
        await handle.send("stop")
        assert await handle.result(timeout=20) == 5
        assert await handle.query("total") == 5


async def test_updates_that_were_not_taken_survive_continue_as_new(app: App):
    @app.workflow
    async def pages(total: int, page: int) -> int:
        sum_of_page = 0
        turn = asyncio.Event()

        @outlast.update("add")
        def add(amount: int) -> int:
            nonlocal sum_of_page
            sum_of_page += amount
            turn.set()
            return total + sum_of_page

        await turn.wait()
        if page < 5:
            outlast.continue_as_new(total + sum_of_page, page + 1)
        return total + sum_of_page

    async with app:
        handle = await pages.start(0, 1)
        answers = await asyncio.gather(*(handle.update("add", 1, key=str(n), timeout=20) for n in range(5)))
        assert sorted(answers) == [1, 2, 3, 4, 5]
        assert await handle.result(timeout=20) == 5


async def test_code_that_lost_an_update_waits_for_its_version(place: Place):
    before, after = place.app(), place.app()
    cart = cart_of(before)
    async with before:
        handle = await cart.options(id="cart").start(2)
        assert await handle.update("add", Line("pear"), timeout=20) == 1
        await status_is(handle, "suspended")

    @after.workflow(name="cart")
    async def without(full: int) -> list[str]:
        await outlast.receive("never")
        return []

    async with after:
        handle = after.execution("cart")
        # Nobody listens for updates in this code; but the execution does, and is woken.
        asked = asyncio.create_task(handle.update("add", Line("fig"), key="k", timeout=30))

        async def diverged() -> bool:
            return (await handle.info()).reason == "version"

        await until(diverged, "it does not wait for its version")
        asked.cancel()
    again = place.app()
    cart = cart_of(again)
    async with again:
        assert await cart.execution("cart").update("add", Line("fig"), key="k", timeout=20) == 2


async def test_a_fork_keeps_the_updates_before_its_step(app: App):
    @app.step
    async def noted(word: str) -> str:
        return word

    @app.workflow
    async def story() -> list[str]:
        words: list[str] = []
        go = asyncio.Event()

        @outlast.update("say")
        def say(word: str) -> int:
            words.append(word)
            go.set()
            return len(words)

        await go.wait()
        words.append(await noted("middle"))
        return words

    async with app:
        handle = await story.start()
        assert await handle.update("say", "hello", timeout=20) == 1
        assert await handle.result(timeout=20) == ["hello", "middle"]
        fork = await handle.fork(from_step="noted")
        assert await fork.result(timeout=20) == ["hello", "middle"]


def test_the_blocking_face(place: Place):
    app = place.app()
    cart = cart_of(app)

    async def serve(ready: asyncio.Event, stop: asyncio.Event) -> None:
        async with app:
            ready.set()
            await stop.wait()

    async def main() -> None:
        ready, stop = asyncio.Event(), asyncio.Event()
        serving = asyncio.create_task(serve(ready, stop))
        await ready.wait()

        def caller() -> None:
            handle = cart.sync.start(1)
            assert handle.query("items", type=list[str]) == []
            with pytest.raises(UpdateRefused):
                handle.update("add", Line("pear", 0), timeout=20)
            assert handle.update("add", Line("pear"), type=int, timeout=20) == 1
            assert handle.result(timeout=20) == ["pear"]
            assert handle.query("items") == ["pear"]

        await asyncio.to_thread(caller)
        stop.set()
        await serving

    asyncio.run(main())
