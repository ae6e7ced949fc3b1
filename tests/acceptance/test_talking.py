"""Talking to other executions: from inside a workflow durably and once; with a start, in one commit."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import outlast
from outlast import App, CodecError, ExecutionConflict, ExecutionRefused, InvalidInput, InvalidName, Status, WrongPlace
from outlast.machine import facts
from outlast.model.event import UNDELIVERED, Event
from outlast.model.outbox import Delivery
from outlast.runtime.outbox import Outbox
from outlast.store.port import DueKind
from tests.acceptance.conftest import Place, status_is, until

pytestmark = pytest.mark.on_cluster


def listener(app: App) -> Any:
    @app.workflow
    async def listens() -> list[Any]:
        heard: list[Any] = [await outlast.receive("first", str), await outlast.receive("second", int)]
        try:
            heard.append(await outlast.deferred("approval", bool))
        except outlast.DeferredRejected as error:
            heard.append(str(error))
        await outlast.interrupted()
        return heard

    return listens


async def nothing_owed(app: App) -> None:
    async def none() -> bool:
        assert app._opened is not None
        return not (await app._opened._store.due(DueKind.OUTBOX, limit=10)).items

    await until(none, "something is owed for ever")


async def undelivered(app: App, execution_id: str) -> list[dict[str, str]]:
    assert app._opened is not None
    events = await app._opened._store.scan(Event.KIND, ("default", execution_id, UNDELIVERED))
    return [json.loads(event.value or b"") for event in events if isinstance(event, Event)]


async def test_what_a_workflow_tells_another_is_journaled_and_delivered(app: App):
    listens = listener(app)

    @app.workflow
    async def talks() -> None:
        other = listens.execution("other")
        await other.send("first", "hello")
        await app.execution("other").send("second", 2)
        await other.resolve("approval", True)
        await other.interrupt()

    async with app:
        other = await listens.options(id="other").start()
        talking = await talks.start()
        await talking.result(timeout=20)
        assert await other.result(timeout=20) == ["hello", 2, True]
        assert [entry.op for entry in await talking.journal()] == ["send", "send", "resolve", "interrupt"]
        await nothing_owed(app)


async def test_a_def_workflow_talks_through_the_blocking_face(app: App):
    listens = listener(app)

    @app.workflow
    def talks() -> None:
        other = listens.sync.execution("other")
        other.send("first", "hello")
        other.send("second", 2)
        other.reject("approval", "too late")
        other.interrupt()

    @app.workflow
    def stops() -> None:
        listens.sync.execution("third").cancel("enough")

    async with app:
        other = await listens.options(id="other").start()
        third = await listens.options(id="third").start()
        await talks.aio()
        assert await other.result(timeout=20) == ["hello", 2, "too late"]
        await stops.aio()
        await status_is(third, "cancelled")


async def test_what_a_workflow_tells_another_is_heard_in_the_order_in_which_it_was_said(app: App):
    """Also while the other one falls asleep and is woken again, so that a word must be told twice."""

    @app.workflow
    async def listens(count: int) -> list[int]:
        return [await outlast.receive("number", int) for _ in range(count)]

    @app.workflow
    async def counts(other: str, count: int) -> None:
        for number in range(count):
            await listens.execution(other).send("number", number)

    async with app:
        heard = [await listens.options(id=f"listens-{n}").start(60) for n in range(6)]
        await asyncio.gather(*(counts(handle.id, 60) for handle in heard))
        for handle in heard:
            assert await handle.result(timeout=60) == list(range(60))


async def test_a_cancel_from_a_workflow(app: App):
    listens = listener(app)

    @app.workflow
    async def stops() -> None:
        await listens.execution("other").cancel("enough")

    async with app:
        other = await listens.options(id="other").start()
        await stops()
        await status_is(other, "cancelled")


async def test_a_word_for_what_has_ended_or_is_unknown_is_struck_off_and_recorded(app: App):
    @app.workflow
    async def ended() -> None: ...

    @app.workflow
    async def talks() -> str:
        await ended.execution("ended").send("first", 1)
        await app.execution("unknown").resolve("approval", True)
        return "went on"

    async with app:
        await (await ended.options(id="ended").start()).result(timeout=20)
        handle = await talks.options(id="it").start()
        assert await handle.result(timeout=20) == "went on"
        await nothing_owed(app)
        found = {note["target"]: (note["fact"], note["code"]) for note in await undelivered(app, "it")}
        assert found == {"ended": ("EventSent", "terminal"), "unknown": ("DeferredResolved", "unknown")}


async def test_a_second_resolution_that_differs_is_recorded_with_its_sender(app: App):
    listens = listener(app)

    @app.workflow
    async def talks(value: bool) -> None:
        await listens.execution("other").resolve("approval", value)

    async with app:
        await listens.options(id="other").start()
        for name, value in (("one", True), ("two", True), ("three", False)):
            await (await talks.options(id=name).start(value)).result(timeout=20)
            await nothing_owed(app)
        assert [await undelivered(app, name) for name in ("one", "two")] == [[], []]
        [note] = await undelivered(app, "three")
        assert note["code"] == "conflict"


async def test_what_cannot_be_sent_is_refused_where_it_is_said(app: App):
    @app.workflow
    async def talks() -> list[str]:
        other, errors = app.execution("other"), []
        for attempt in (
            lambda: other.send("first", {1, object()}),
            lambda: other.send("outlast:mine", 1),
            lambda: other.info(),
        ):
            try:
                await attempt()
            except (CodecError, InvalidName, WrongPlace) as error:
                errors.append(type(error).__name__)
        return errors

    async with app:
        handle = await talks.start()
        assert await handle.result(timeout=20) == ["CodecError", "InvalidName", "WrongPlace"]
        assert await handle.journal() == []


NO_REASONS: list[Any] = [None, 5, b"enough", ValueError("enough")]
NO_REJECTIONS: list[Any] = [None, 5, b"no", ValueError, KeyboardInterrupt(), asyncio.CancelledError()]


async def test_a_cancel_and_a_rejection_take_only_what_they_can_keep(app: App):
    listens = listener(app)

    @app.workflow
    async def tells() -> int:
        other, refused = app.execution("other"), 0
        for told in (
            *(lambda why=why: other.cancel(why) for why in NO_REASONS),
            *(lambda why=why: other.reject("approval", why) for why in NO_REJECTIONS),
        ):
            with pytest.raises(InvalidInput):
                await told()
            refused += 1
        return refused

    async with app:
        handle = await listens.options(id="other").start()
        await status_is(handle, "suspended")
        for why in NO_REASONS:
            with pytest.raises(InvalidInput, match="cancel reason must be a text"):
                await handle.cancel(reason=why)
        for why in NO_REJECTIONS:
            with pytest.raises(InvalidInput, match="rejected with a text or an exception"):
                await handle.reject("approval", why)
        teller = await tells.start()
        assert await teller.result(timeout=20) == len(NO_REASONS) + len(NO_REJECTIONS)
        assert await teller.journal() == []
        assert (await handle.info()).status == "suspended"
        assert await app._opened._store.scan(Event.KIND, ("default", "other")) == []  # type: ignore[union-attr]


async def test_a_start_with_an_event_starts_once_and_sends_every_time(app: App):
    @app.workflow
    async def cart() -> list[str]:
        return [await outlast.receive("item", str) for _ in range(3)]

    async with app:
        for item in ("shoe", "hat", "coat"):
            handle = await cart.options(id="cart-7", send={"item": item}).start()
        assert await handle.result(timeout=20) == ["shoe", "hat", "coat"]
        with pytest.raises(ExecutionRefused, match="has ended"):
            await cart.options(id="cart-7", send={"item": "late"}).start()
        again = await cart.options(id="cart-7", if_exists="restart", send={"item": "new"}).start()
        await status_is(again, "suspended")
        assert (await again.info()).generation == 2


async def test_a_start_with_an_event_keeps_to_the_rules_of_starts(app: App):
    @app.workflow
    async def cart(owner: str) -> list[str]:
        return [await outlast.receive("item", str) for _ in range(2)]

    async with app:
        handle = await cart.options(id="cart-7", send={"item": "shoe"}).start("ann")
        with pytest.raises(ExecutionConflict):
            await cart.options(id="cart-7", send={"item": "hat"}).start("bob")
        with pytest.raises(CodecError):
            await cart.options(id="cart-7", send={"item": object()}).start("ann")
        await handle.send("item", "coat")
        assert await handle.result(timeout=20) == ["shoe", "coat"]


async def test_a_hundred_starts_with_events_at_once_are_one_execution_that_hears_them_all(app: App):
    @app.workflow
    async def counts() -> int:
        return sum([await outlast.receive("n", int) for _ in range(100)])

    async with app:
        handles = await asyncio.gather(*(counts.options(id="it", send={"n": number}).start() for number in range(100)))
        assert await handles[0].result(timeout=30) == 4950


async def test_a_workflow_starts_a_detached_one_with_an_event(app: App):
    @app.workflow
    async def cart() -> list[str]:
        return [await outlast.receive("item", str) for _ in range(2)]

    @app.workflow
    async def adds(item: str) -> None:
        await cart.options(id="cart-7", detached=True, send={"item": item}).start()

    @app.workflow
    async def has_one() -> list[str]:
        child = await cart.options(id="cart", send={"item": "shoe"}).start()
        await cart.options(id="cart", send={"item": "hat"}).start()
        return await child.result()

    async with app:
        await adds("shoe")
        await adds("hat")

        async def has_begun() -> bool:
            return await app.count(workflow="cart") == 1

        await until(has_begun, "the detached one has not begun")  # it may be on its way when its parent has ended
        assert await cart.execution("cart-7").result(timeout=20) == ["shoe", "hat"]
        assert await has_one() == ["shoe", "hat"]


async def test_a_word_to_itself_is_heard(app: App):
    @app.workflow
    async def talks() -> str:
        await app.execution("it").send("note", "mine")
        return await outlast.receive("note", str)

    async with app:
        assert await (await talks.options(id="it").start()).result(timeout=20) == "mine"


async def test_what_was_not_carried_at_once_is_carried_by_the_reconciler(clocked: Place):
    """The process dies after the commit: another one finds the debt."""
    app = clocked.app()
    listens = listener(app)

    @app.workflow
    async def talks() -> None:
        await listens.execution("other").send("first", "hello")

    async with app:
        other = await listens.options(id="other").start()
        await status_is(other, "suspended")
        assert app._opened is not None
        app._opened._engine.outbox._closed = True  # as good as dead
        await talks()
        assert (await other.info()).reason == "event:first"
        assert app._opened.reconcilers is not None
        await app._opened.reconcilers.cycle("outbox")
        await until(lambda: _waits_for(other, "event:second"), "it has not heard")
        assert (await app.count(status=Status.FAILED)) == 0


async def _waits_for(handle: Any, reason: str) -> bool:
    return (await handle.info()).reason == reason


@pytest.mark.parametrize("says", ["send", "resolve"])
async def test_a_word_that_was_heard_is_not_said_to_be_refused_if_its_target_has_ended_since(
    says: str, place: Place, monkeypatch: pytest.MonkeyPatch
):
    """Whoever carried it died before it struck the word off."""
    monkeypatch.setattr(Outbox, "post", lambda self, changes: None)
    monkeypatch.setenv("OUTLAST_RECONCILER_OUTBOX_ENABLED", "no")
    app = place.app()

    @app.workflow
    async def hears() -> int:
        if says == "send":
            return await outlast.receive("number", int)
        return await outlast.deferred("number", int)

    @app.workflow
    async def tells() -> None:
        other = hears.execution("other")
        await (other.send("number", 7) if says == "send" else other.resolve("number", 7))
        await outlast.receive("end")

    async with app:
        other = await hears.options(id="other").start()
        teller = await tells.options(id="teller").start()
        assert app._opened is not None
        engine = app._opened._engine

        async def debts() -> list[Delivery]:
            due = await engine.store.due(DueKind.OUTBOX, limit=10)
            return [item.record for item in due.items if isinstance(item.record, Delivery)]

        await until(debts, "nothing is owed")
        [debt] = await debts()
        fact = facts.decode_debt(debt.fact)
        assert isinstance(fact, facts.EventSent | facts.DeferredResolved)
        assert (await engine.tell("default", "other", fact)).applied
        assert await other.result(timeout=20) == 7
        await engine.deliver(debt)
        assert await undelivered(app, "teller") == []
        assert await debts() == []
        await teller.cancel()
