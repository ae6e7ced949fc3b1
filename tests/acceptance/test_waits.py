"""Waiting: for time, for events, for values from outside. What waits is suspended, and goes on as if nothing were."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
from typing import Any

import pytest

import outlast
from outlast import (
    App,
    DeferredRejected,
    ExecutionEnded,
    ExecutionExpired,
    ExecutionNotFound,
    ExecutionRefused,
    InvalidInput,
    Retry,
    limits,
)
from outlast.app import store_for
from outlast.client.views.explanation import explain
from outlast.client.views.situation import situation_of
from outlast.machine import facts
from outlast.model.execution import Execution, execution_key
from outlast.model.journal import JournalEntry
from outlast.model.status import Reason
from outlast.runtime.attempts.lease import Lease
from outlast.runtime.attempts.waits import Waits
from outlast.runtime.operations.timer import Timer
from tests.acceptance.conftest import Gate, Place, status_is, until

pytestmark = pytest.mark.on_carried


async def suspended_on(handle: Any, reason: str) -> None:
    async def reached() -> bool:
        info = await handle.info()
        return (info.status, info.reason) == ("suspended", reason)

    await until(reached, f"{handle} is not suspended on {reason}")


# ---- sleep --------------------------------------------------------------------------------------------------------


async def test_a_sleep_suspends_until_its_wake_time(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def sleeper() -> str:
        await outlast.sleep("1h")
        return "awake"

    async with app.worker() as worker:
        handle = await sleeper.start()
        await suspended_on(handle, "timer")
        info = await handle.info()
        assert info.wake_at is not None
        assert info.wake_at - info.created_at == dt.timedelta(hours=1)
        await until(lambda: worker.busy == 0, "it holds the worker")
        await clocked.pass_time(app, "59m")
        assert (await handle.info()).status == "suspended"
        await clocked.pass_time(app, "1m")
        assert await handle.result(timeout=20) == "awake"


async def test_two_equal_sleeps_are_two_sleeps(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def twice() -> str:
        await outlast.sleep("1h")
        await outlast.sleep("1h")
        return "awake"

    async with app:
        handle = await twice.start()
        await suspended_on(handle, "timer")
        await clocked.pass_time(app, "1h")
        first = (await handle.info()).wake_at

        async def second_sleep() -> bool:
            info = await handle.info()
            return info.status == "suspended" and info.wake_at != first

        await until(second_sleep, "it does not sleep again")
        await clocked.pass_time(app, "1h")
        assert await handle.result(timeout=20) == "awake"


async def test_receive_takes_events_in_order(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def adder() -> list[int]:
        return [await outlast.receive("number", int) for _ in range(3)]

    async with app:
        handle = await adder.start()
        await suspended_on(handle, "event:number")
        for n in range(3):
            await handle.send("number", n)
        assert await handle.result(timeout=20) == [0, 1, 2]


async def test_a_deferred_is_resolved_from_outside(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def asks() -> bool:
        return await outlast.deferred("approval", bool)

    async with app:
        handle = await asks.start()
        await suspended_on(handle, "deferred:approval")
        await handle.resolve("approval", True)
        assert await handle.result(timeout=20) is True
        await handle.resolve("approval", True)
        with pytest.raises(ExecutionRefused, match="resolved before"):
            await handle.resolve("approval", False)


async def test_a_named_timer_keeps_its_first_wake_time(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def cooling() -> list[str]:
        await asyncio.gather(outlast.sleep("1h", name="cool"), outlast.sleep("9h", name="cool"))
        await outlast.sleep("9h", name="cool")
        return ["cool"]

    async with app:
        handle = await cooling.start()
        await suspended_on(handle, "timer")
        await clocked.pass_time(app, "1h")
        assert await handle.result(timeout=20) == ["cool"]


async def test_sleep_until_a_moment_that_has_passed_is_over_at_once(app: App):
    @app.workflow
    async def late() -> str:
        await outlast.sleep_until(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
        return "over"

    async with app:
        assert await late() == "over"


async def test_a_short_sleep_keeps_the_execution_in_memory(app: App):
    @app.workflow
    async def naps() -> int:
        for _ in range(5):
            await outlast.sleep("20ms")
        return 5

    async with app:
        handle = await naps.start()
        assert await handle.result(timeout=20) == 5
        assert len({entry.epoch for entry in await handle.journal()}) == 1, "it was claimed again"


async def test_a_suspended_sleep_ends_in_time(place: Place, monkeypatch: pytest.MonkeyPatch):
    """Not at the next look of a slow reconciler: a look says when the next timer is due."""
    monkeypatch.setenv("OUTLAST_RECONCILER_TIMER_INTERVAL", "2s")  # it looks before 2.2 s, and after 3.6 s
    app = place.app(resident=0)

    @app.workflow
    async def sleeper() -> float:
        await outlast.sleep("2500ms")
        return 0.0

    async with app:
        handles = [await sleeper.start() for _ in range(10)]
        await asyncio.gather(*(handle.result(timeout=20) for handle in handles))
        late: list[float] = []
        for handle in handles:
            began, fired = await handle.journal()
            late.append((fired.recorded_at - began.recorded_at).total_seconds() - 2.5)
    assert min(late) < 1.0, late


async def test_def_workflows_wait_too(clocked: Place):
    app = clocked.app()

    @app.workflow
    def waits() -> list[Any]:
        outlast.sync.sleep("1h")
        got = outlast.sync.receive("number", int)
        try:
            outlast.sync.receive("number", int, timeout="1m")
        except TimeoutError:
            return [got, outlast.sync.deferred("answer", str).result()]
        return []

    async with app:
        handle = await waits.start()
        await suspended_on(handle, "timer")
        await handle.send("number", 7)
        await handle.resolve("answer", "yes")
        await clocked.pass_time(app, "1h")
        await suspended_on(handle, "event:number")
        await clocked.pass_time(app, "1m")
        assert await handle.result(timeout=20) == [7, "yes"]


async def test_a_restart_does_not_lengthen_a_sleep(clocked: Place):
    """A worker leaves in the middle of it: the next one goes by what was written down."""
    first, second = clocked.app(resident="1m"), clocked.app(resident=0)
    for one in (first, second):

        @one.workflow(name="sleeper")
        async def sleeper() -> str:
            await outlast.sleep("60s")
            return "awake"

    async with first.worker(drain=0):
        [workflow] = first.registry
        handle = await workflow.options(id="it").start()

        async def sleeps() -> bool:
            return len(await handle.journal()) == 1

        await until(sleeps, "it does not sleep")
        assert (await handle.info()).status == "active", "it is resident"
        await clocked.pass_time(first, "40s")
    async with second:
        handle = second.execution("it")
        await suspended_on(handle, "timer")
        await clocked.pass_time(second, "20s")
        assert await handle.result(timeout=20) == "awake"


# ---- events -------------------------------------------------------------------------------------------------------


async def test_what_is_heard_while_the_code_falls_asleep_wakes_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, gate: Gate
):
    """It has its answer before the suspension is written, which says that it still waits for that."""
    app, write_down = place.app(), Waits.write_down

    async def held_up(waits: Waits) -> None:
        if Reason.deferred("approval") in waits.pending().waits:
            await gate()
        await write_down(waits)

    monkeypatch.setattr(Waits, "write_down", held_up)

    @app.workflow
    async def asks() -> str:
        said = await outlast.deferred("approval", str)
        await outlast.interrupted()
        return said

    async with app:
        handle = await asks.start()
        await gate.reached()
        await handle.resolve("approval", "yes")

        async def is_recorded() -> bool:
            return [entry.op for entry in await handle.journal()] == ["deferred"]

        await until(is_recorded, "the answer was not heard")
        gate.open()
        await suspended_on(handle, "deferred:outlast:interrupt")
        await handle.interrupt()
        assert await handle.result(timeout=20) == "yes"


async def test_a_sleep_that_ends_while_the_code_falls_asleep_does_not_shorten_another(
    clocked: Place, monkeypatch: pytest.MonkeyPatch, gate: Gate
):
    """The end of the first is recorded, and not yet known to the code, when the suspension is written: that has the
    wake time of the first, and must not take it for the second's."""
    app, write_down, record, answer = clocked.app(), Waits.write_down, Lease.record_placed, Gate()

    async def held_up(waits: Waits) -> None:
        await write_down(waits)
        await gate()

    async def answered_late(lease: Lease, fact: facts.StepRecorded) -> JournalEntry:
        entry = await record(lease, fact)
        if fact.op == Timer.OP:
            await answer()
        return entry

    monkeypatch.setattr(Waits, "write_down", held_up)
    monkeypatch.setattr(Lease, "record_placed", answered_late)

    @app.workflow
    async def sleeps() -> float:
        began = outlast.now()
        await asyncio.gather(asyncio.sleep(60), asyncio.sleep(7_200))
        return (outlast.now() - began).total_seconds()

    async with app:
        handle = await sleeps.start()
        await gate.reached()
        assert clocked._clock is not None
        assert app._opened is not None
        assert app._opened.parts is not None
        clocked._clock.advance("2m")
        await app._opened.parts.timers.look()
        await answer.reached()
        gate.open()
        await status_is(handle, "suspended")
        answer.open()
        for _ in range(2):
            await clocked.pass_time(app, "1m")
            await status_is(handle, "suspended")
        await clocked.pass_time(app, "2h")
        assert await handle.result(timeout=20) >= 7_200


async def test_being_woken_for_something_else_does_not_lengthen_a_sleep(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def naps() -> str:
        nap = asyncio.create_task(outlast.sleep("1h"))
        await outlast.receive("go")
        await nap
        return "awake"

    async with app:
        handle = await naps.start()
        await suspended_on(handle, "event:go")
        await clocked.pass_time(app, "30m")
        await handle.send("go")
        await suspended_on(handle, "timer")
        await clocked.pass_time(app, "29m")
        assert (await handle.info()).status == "suspended"
        await clocked.pass_time(app, "1m")
        assert await handle.result(timeout=20) == "awake"


async def test_the_same_key_is_the_same_event(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def two() -> list[int]:
        return [await outlast.receive("number", int), await outlast.receive("number", int)]

    async with app:
        handle = await two.start()
        await handle.send("number", 1, key="a")
        await handle.send("number", 1, key="a")
        await suspended_on(handle, "event:number")
        await handle.send("number", 1, key="a")
        await handle.send("number", 2, key="b")
        assert await handle.result(timeout=20) == [1, 2]


async def test_an_event_sent_before_the_timeout_is_received_however_late_somebody_looks(place: Place, clocked: Place):
    app = clocked.app()

    @app.workflow
    async def waits() -> int:
        return await outlast.receive("number", int, timeout="1h")

    async with app.worker(reconcilers=True):
        handle = await waits.options(id="it").start()
        await suspended_on(handle, "event:number")
    other = clocked.app()
    async with other.client():
        await other.execution("it").send("number", 7)
    assert clocked._clock is not None
    clocked._clock.advance("2h")
    async with app:
        assert await waits.execution("it").result(timeout=20) == 7


async def test_an_event_of_another_type_fails_the_receive_and_not_the_ones_after_it(app: App):
    @app.workflow
    async def typed() -> list[Any]:
        said: list[Any] = []
        for _ in range(2):
            try:
                said.append(await outlast.receive("number", int))
            except outlast.CodecError:
                said.append("no number")
        return said

    async with app:
        handle = await typed.start()
        await handle.send("number", "seven")
        await handle.send("number", 7)
        assert await handle.result(timeout=20) == ["no number", 7]


async def test_sending_to_what_has_ended_or_never_was_is_refused(app: App):
    @app.workflow
    async def short() -> None:
        return None

    async with app:
        handle = await short.start()
        await handle.result(timeout=20)
        for tell in (handle.send("x", 1), handle.resolve("x", 1), handle.reject("x", "no"), handle.interrupt()):
            with pytest.raises(ExecutionEnded, match="has ended: it is succeeded") as refused:
                await tell
            assert (refused.value.status, refused.value.cause, refused.value.code) == ("succeeded", None, "terminal")
        nobody = app.execution("nobody")
        for tell in (nobody.send("x", 1), nobody.resolve("x", 1), nobody.reject("x", "no"), nobody.interrupt()):
            with pytest.raises(ExecutionNotFound):
                await tell


async def test_what_a_failed_execution_never_received_is_logged(app: App, caplog: pytest.LogCaptureFixture):
    @app.workflow
    async def fussy() -> None:
        await outlast.receive("item", str)
        raise ValueError("not this one")

    async with app:
        options = fussy.options(send={"item": "tea", "note": "fragile"})
        handle = await options.start()
        with pytest.raises(ValueError, match="not this one"):
            await handle.result(timeout=20)
        await until(lambda: "nobody received" in caplog.text, "nothing is logged")
        assert f"execution {handle.id} failed with events that nobody received: note (1)" in caplog.text
        with pytest.raises(ExecutionEnded, match="it is failed"):
            await handle.send("item", "milk")


async def test_what_an_expired_execution_never_received_is_logged_by_whoever_expires_it(
    clocked: Place, caplog: pytest.LogCaptureFixture
):
    app = clocked.app()

    @app.workflow(deadline="1h")
    async def patient() -> None:
        await outlast.receive("go")

    async with app:
        handle = await patient.start()
        await status_is(handle, "suspended")
        await handle.send("note", 1)
        await handle.send("note", 2)
        await clocked.pass_time(app, "2h")
        with pytest.raises(ExecutionExpired):
            await handle.result(timeout=20)
        assert f"execution {handle.id} expired with events that nobody received: note (2)" in caplog.text
        with pytest.raises(ExecutionEnded, match=r"has ended: it is expired \(deadline\)"):
            await handle.send("go", None)


async def test_an_event_is_not_taken_while_another_outcome_is_on_its_way(place: Place):
    """That outcome may make the code give the receive up: then the event must be there for the next one."""

    class SlowToRecord:
        def __init__(self) -> None:
            self._store = store_for(place.url)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def commit(self, batch: Any) -> Any:
            if "'quick'" in str(batch):
                await handle.send("number", 7)
                await asyncio.sleep(0.2)
            return await self._store.commit(batch)

    app = place.app(store=SlowToRecord)

    @app.step
    async def quick() -> None:
        return None

    @app.workflow
    async def waits() -> list[int | None]:
        won = await outlast.race(quick(), outlast.receive("number", int))
        return [won, await outlast.receive("number", int, timeout="5s")]

    other = place.app()
    async with other.client():
        handle = other.execution("it")
        async with app:
            started = await waits.options(id="it").start()
            assert await started.result(timeout=20) == [None, 7]


# ---- deferreds ----------------------------------------------------------------------------------------------------


async def test_a_deferred_may_be_resolved_before_anybody_waits(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def asks() -> list[int]:
        await outlast.sleep("1h")
        answer = outlast.deferred("answer", int)
        return [await answer, await answer]

    async with app:
        handle = await asks.start()
        await handle.resolve("answer", 42)
        await suspended_on(handle, "timer")
        await clocked.pass_time(app, "1h")
        assert await handle.result(timeout=20) == [42, 42]


@pytest.mark.parametrize("name", ["child:7", "event:plan", "deferred:a"])
async def test_a_deferred_that_is_called_as_another_reason_is_resolved(app: App, name: str):
    @app.workflow
    async def asks() -> int:
        return await outlast.deferred(name, int)

    async with app:
        handle = await asks.start()
        await suspended_on(handle, f"deferred:{name}")
        await handle.resolve(name, 42)
        assert await handle.result(timeout=20) == 42


class TooExpensive(Exception):
    pass


async def test_a_rejected_deferred_raises(app: App):
    @app.workflow
    async def asks() -> list[str]:
        said: list[str] = []
        for name in ("first", "second"):
            try:
                await outlast.deferred(name, int)
            except (DeferredRejected, TooExpensive) as error:
                said.append(f"{type(error).__name__}: {error}")
        return said

    async with app:
        handle = await asks.start()
        await handle.reject("first", "too late")
        await handle.reject("first", "too late")
        with pytest.raises(ExecutionRefused, match="rejected before"):
            await handle.reject("first", "too early")
        with pytest.raises(ExecutionRefused, match="rejected before"):
            await handle.resolve("first", 1)
        await handle.reject("second", TooExpensive("by far"))
        assert await handle.result(timeout=20) == ["DeferredRejected: too late", "TooExpensive: by far"]


async def test_an_interrupt_is_a_graceful_stop(app: App):
    @app.workflow
    async def loops() -> list[int]:
        got: list[int] = []
        stop = asyncio.ensure_future(outlast.interrupted())
        while not stop.done():
            number = await outlast.race(asyncio.shield(stop), outlast.receive("number", int))
            if number is not None:
                got.append(number)
        return got

    async with app:
        handle = await loops.start()
        for n in range(3):
            await handle.send("number", n)

        async def received() -> bool:
            return [entry.outcome for entry in await handle.journal() if entry.op == "receive"] == ["succeeded"] * 3

        await until(received, "it does not receive")
        await handle.interrupt()
        await handle.interrupt()
        assert await handle.result(timeout=20) == [0, 1, 2]


async def test_an_interrupt_goes_along_when_a_loop_goes_on_as_new(app: App):
    """It came with an event, and the code took the event first."""

    @app.workflow
    async def device(seen: int = 0) -> str:
        reading = await outlast.race(outlast.receive("reading", int), outlast.interrupted())
        return f"stopped after {seen}" if reading is None else outlast.continue_as_new(seen + 1)

    async with app.client():
        handle = await device.start()
        await handle.send("reading", 20)
        await handle.interrupt()
    async with app:
        assert await handle.result(timeout=20) == "stopped after 1"


async def test_an_interrupt_that_comes_just_while_a_loop_goes_on_as_new_goes_along(
    app: App, monkeypatch: pytest.MonkeyPatch
):
    """Behind the look for it, before the commit of the next generation: it is looked for again."""
    looked = Lease.interrupt
    looks: list[bytes | None] = []

    async def interrupted_behind_it(lease: Lease) -> bytes | None:
        looks.append(await looked(lease))
        if len(looks) == 1:
            await handle.interrupt()
        return looks[-1]

    monkeypatch.setattr(Lease, "interrupt", interrupted_behind_it)

    @app.workflow
    async def device(generation: int = 1) -> int:
        if generation == 1:
            await outlast.receive("go", bool)
            outlast.continue_as_new(2)
        await outlast.interrupted()
        return generation

    async with app:
        handle = await device.start()
        await handle.send("go", True)
        assert await handle.result(timeout=20) == 2
    assert looks[0] is None
    assert looks[1] is not None


async def test_who_goes_on_as_new_though_it_was_asked_to_stop_is_still_asked(app: App):
    """As within one generation, where `interrupted()` ends at once from then on."""

    @app.workflow
    async def device(interrupts: int = 0) -> int:
        await outlast.interrupted()
        return interrupts if interrupts == 2 else outlast.continue_as_new(interrupts + 1)

    async with app:
        handle = await device.start()
        await handle.interrupt()
        assert await handle.result(timeout=20) == 2
        assert (await handle.info()).generation == 3


async def test_a_race_with_something_that_nobody_can_await_takes_nothing(app: App):
    @app.workflow
    async def waits() -> list[str]:
        try:
            await outlast.race(outlast.receive("word", str), 5)  # type: ignore[arg-type]
        except outlast.InvalidInput as error:
            return [str(error), await outlast.receive("word", str, timeout="1h")]
        return []

    async with app:
        handle = await waits.start()
        await handle.send("word", "one")
        said, word = await handle.result(timeout=20)
        assert "awaitables, not 5" in said
        assert word == "one"


# ---- tokens -------------------------------------------------------------------------------------------------------

KEYS = "new:" + "bmV3" * 8 + ",old:" + "b2xk" * 8 + "@2099-01-01T00:00:00Z"
OLD = "old:" + "b2xk" * 8
RETIRED = "new:" + "bmV3" * 8 + ",old:" + "b2xk" * 8 + "@2001-01-01T00:00:00Z"


def asking(app: App) -> tuple[Any, list[str]]:
    made: list[str] = []

    @app.step
    async def post(token: str) -> None:
        made.append(token)

    @app.workflow
    async def asks() -> bool:
        approval = outlast.deferred("approval", bool, timeout="1h")
        await post(await approval.token())
        return await approval

    return asks, made


async def test_a_token_resolves_its_deferred_and_nothing_else(clocked: Place):
    app = clocked.app(token_keys=KEYS)
    asks, made = asking(app)
    async with app:
        handle = await asks.options(id="it").start()
        await suspended_on(handle, "deferred:approval")
        [token] = made
        assert token not in str(await handle.journal()), "who reads the journal could use it"
        for forged in (token[:-2] + "xx", token.replace("ol1.new", "ol1.old"), "ol1.new.e30.x", "", "é", token + ".x"):
            with pytest.raises(outlast.InvalidToken, match=r"^this token is not valid$"):
                await app.resolve_token(forged, True)
        await app.resolve_token(token, True)
        await app.resolve_token(token, True)
        assert await handle.result(timeout=20) is True
        with pytest.raises(ExecutionRefused, match="resolved before"):
            await app.resolve_token(token, False)


async def test_a_token_expires_with_its_deferred(clocked: Place):
    app = clocked.app(token_keys=KEYS)
    asks, made = asking(app)
    async with app:
        handle = await asks.start()
        await suspended_on(handle, "deferred:approval")
        assert clocked._clock is not None
        clocked._clock.advance("1h")
        with pytest.raises(outlast.TokenExpired):
            await app.resolve_token(made[0], True)


async def test_a_rotated_key_is_good_for_its_grace(clocked: Place):
    first = clocked.app(token_keys=OLD)
    asks, made = asking(first)
    async with first:
        handle = await asks.options(id="it").start()
        await suspended_on(handle, "deferred:approval")
    retired, rotated = clocked.app(token_keys=RETIRED), clocked.app(token_keys=KEYS)
    async with retired.client():
        with pytest.raises(outlast.InvalidToken):
            await retired.resolve_token(made[0], True)
    async with rotated.client():
        await rotated.reject_token(made[0], "no")
        assert (await rotated.execution("it").info()).status == "ready"


async def test_a_token_must_be_good_for_longer_than_nothing(place: Place):
    app = place.app(token_keys=KEYS)

    @app.workflow
    async def asks() -> str:
        with pytest.raises(InvalidInput, match="expires must be longer than nothing"):
            await outlast.deferred("approval", bool).token(expires="0s")
        return "refused"

    async with app:
        assert await asks() == "refused"


async def test_a_token_needs_a_key(app: App):
    asks, _ = asking(app)
    async with app:
        with pytest.raises(outlast.InvalidConfig, match="OUTLAST_TOKEN_KEYS"):
            await asks()


# ---- the wrong place, the wrong input -----------------------------------------------------------------------------

WRONG = {
    "negative": lambda: outlast.sleep(-1),
    "nan": lambda: outlast.sleep(float("nan")),
    "too long": lambda: outlast.sleep("200000d"),
    "naive": lambda: outlast.sleep_until(dt.datetime(2030, 1, 1)),  # noqa: DTZ001
    "for ever": lambda: outlast.sleep_until(dt.datetime.max.replace(tzinfo=dt.UTC)),
    "over a century": lambda: outlast.sleep_until(outlast.now() + dt.timedelta(days=36_601)),
    "a timer for ever": lambda: asyncio.sleep(float("inf")),
    "a timer over a century": lambda: asyncio.sleep(36_601 * 86_400),
    "no moment": lambda: outlast.sleep_until("tomorrow"),  # type: ignore[arg-type]
    "long name": lambda: outlast.receive("n" * 300, int),
    "reserved": lambda: outlast.receive("outlast:cancel", int),
    "no name": lambda: outlast.deferred("", int),
    "timer's name": lambda: outlast.sleep("1s", name="a\nb"),
    "timeout": lambda: outlast.receive("number", int, timeout="soon"),
}


class Plain:
    """A class that no value is read as."""


UNREADABLE: list[Any] = [5, "int", Plain, [int], lambda: 1]


async def test_a_type_that_cannot_be_read_is_refused_before_an_event_is_taken(app: App):
    @app.workflow
    async def typo() -> int:
        for kind in UNREADABLE:
            with pytest.raises(InvalidInput, match="number"):
                await outlast.receive("number", kind)
            with pytest.raises(InvalidInput, match="approval"):
                outlast.deferred("approval", kind)
        return await outlast.receive("number", int)

    @app.workflow
    def typo_in_a_def() -> int:
        for kind in UNREADABLE:
            with pytest.raises(InvalidInput, match="number"):
                outlast.sync.receive("number", kind)
            with pytest.raises(InvalidInput, match="approval"):
                outlast.sync.deferred("approval", kind)
        return outlast.sync.receive("number", int)

    async with app:
        for workflow in (typo, typo_in_a_def):
            handle = await workflow.options(send={"number": 7}).start()
            assert await handle.result(timeout=20) == 7


@pytest.mark.parametrize("what", WRONG)
async def test_what_cannot_be_is_refused_at_the_call_and_leaves_nothing(what: str, app: App):
    @app.workflow
    async def wrong() -> str:
        try:
            await WRONG[what]()
        except InvalidInput as error:
            return str(error)
        return "accepted"

    async with app:
        handle = await wrong.start()
        assert await handle.result(timeout=20) != "accepted"
        assert await handle.journal() == []


@pytest.mark.parametrize("place_of_call", ["outside", "in a step"])
async def test_only_workflow_code_can_wait(place_of_call: str, app: App):
    async def waits() -> int:
        refused = 0
        for call in (
            lambda: outlast.sleep(1),
            lambda: outlast.receive("number", int),
            lambda: outlast.deferred("number", int),
            outlast.interrupted,
            lambda: outlast.sync.sleep(1),
            lambda: outlast.sync.receive("number", int),
        ):
            with pytest.raises(outlast.WrongPlace):
                call()
            refused += 1
        return refused

    step = app.step(waits, name="waits")

    @app.workflow
    async def outer() -> int:
        return await step()

    async with app:
        assert await (waits() if place_of_call == "outside" else outer()) == 6


async def test_each_colour_has_its_own_face(app: App):
    @app.workflow
    def blocking() -> str:
        try:
            _ = outlast.sleep(1)
        except outlast.WrongPlace as error:
            return str(error)
        return ""

    @app.workflow
    async def awaiting() -> str:
        try:
            outlast.sync.sleep(1)
        except outlast.WrongPlace as error:
            return str(error)
        return ""

    async with app:
        assert "outlast.sync.sleep" in await blocking.aio()
        assert "await outlast.sleep" in await awaiting()


# ---- cancelling, failing, racing ----------------------------------------------------------------------------------


async def test_a_cancel_comes_before_any_other_wake_up(clocked: Place):
    app = clocked.app()
    got: list[int] = []

    @app.workflow
    async def waits() -> None:
        got.append(await outlast.receive("number", int))

    async with app:
        handle = await waits.start()
        await suspended_on(handle, "event:number")
        await handle.hold()
        await handle.send("number", 7)
        await handle.cancel()
        with pytest.raises(outlast.ExecutionCancelled):
            await handle.result(timeout=20)
    assert got == []


@pytest.mark.parametrize("wakes", ["send", "resolve", "time"])
async def test_a_cancel_comes_before_a_wake_up_that_is_recorded_already(wakes: str, clocked: Place):
    app = clocked.app()
    got: list[str] = []

    @app.step
    async def undo() -> None:
        got.append("undone")

    @app.workflow
    async def waits() -> None:
        await outlast.compensate(undo)
        if wakes == "send":
            await outlast.receive("number", int)
        elif wakes == "resolve":
            await outlast.deferred("number", int)
        else:
            await outlast.sleep("1h")
        got.append("woken")

    reason = {"send": "event:number", "resolve": "deferred:number", "time": "timer"}[wakes]
    async with app:
        handle = await waits.start()
        await suspended_on(handle, reason)
        await handle.hold()
        if wakes == "time":
            await clocked.pass_time(app, "1h")
        else:
            await (handle.send("number", 7) if wakes == "send" else handle.resolve("number", 7))
        assert len([entry for entry in await handle.journal() if entry.outcome == "succeeded"]) == 2
        await handle.cancel()
        with pytest.raises(outlast.ExecutionCancelled):
            await handle.result(timeout=20)
        [*_, cancel, woken, _undo] = [
            entry.op for entry in await handle.journal() if entry.op not in ("wait", "unwind")
        ]
    assert got == ["undone"]
    assert (cancel, woken) == ("cancel", {"send": "receive", "resolve": "deferred", "time": "sleep"}[wakes])


async def test_a_cancel_that_overtook_a_wake_up_does_so_again_after_a_crash(
    clocked: Place, monkeypatch: pytest.MonkeyPatch, gate: Gate
):
    got: list[str] = []

    def build() -> Any:
        app = clocked.app(lease_ttl="10s")

        @app.step
        async def undo() -> None:
            got.append("undone")

        @app.workflow
        async def waits() -> None:
            await outlast.compensate(undo)
            await outlast.receive("number", int)
            got.append("woken")

        return app, waits

    record_cancel = Lease.record_cancel

    async def and_stall(lease: Lease, before: JournalEntry | None = None) -> JournalEntry:
        assert before is not None
        entry = await record_cancel(lease, before)
        await gate()
        return entry

    first, waits = build()
    async with first:
        handle = await waits.options(id="it").start()
        await suspended_on(handle, "event:number")
        await handle.hold()
        await handle.send("number", 7)
        monkeypatch.setattr(Lease, "record_cancel", and_stall)
        await handle.cancel()
        await gate.reached()  # it is written, and its holder dies
        assert first._opened is not None
        await first._opened.worker.abandon()
    second, _ = build()
    async with second:
        await clocked.pass_time(second, "11s")
        with pytest.raises(outlast.ExecutionCancelled):
            await second.execution("it").result(timeout=20)
    assert got == ["undone"]


async def test_a_cancel_of_live_code_is_heard_while_it_waits(place: Place):
    app, cleaned = place.app(resident="1m"), list[str]()

    @app.step
    async def clean() -> None:
        cleaned.append("clean")

    @app.workflow
    async def waits() -> None:
        try:
            await outlast.race(outlast.sleep("40s"), outlast.receive("number", int))
            await outlast.sleep("40s")
        finally:
            await clean()

    async with app:
        handle = await waits.start()

        async def sleeps() -> bool:
            return any(entry.op == "wait" for entry in await handle.journal())

        await until(sleeps, "it does not sleep")
        await handle.cancel()
        with pytest.raises(outlast.ExecutionCancelled):
            await handle.result(timeout=20)
    assert cleaned == ["clean"]


async def test_losers_of_a_race_are_journaled_as_given_up(app: App):
    @app.step
    async def slow() -> str:
        await asyncio.sleep(30)
        return "slow"

    @app.workflow
    async def races() -> str | None:
        return await outlast.race(slow(), outlast.sleep("20ms"), outlast.receive("number", str))

    async with app:
        handle = await races.start()
        assert await handle.result(timeout=20) is None
        outcomes = {(entry.op, entry.outcome) for entry in await handle.journal()}
    assert outcomes == {
        ("wait", "began"),
        ("sleep", "succeeded"),
        ("step", "cancelled"),
        ("receive", "cancelled"),
    }


async def test_what_the_code_gives_up_when_a_timer_strikes_leaves_its_event_to_the_next_receive(place: Place):
    """The timer and the event come in the same moment, again and again: whichever the code sees, the event stays."""
    app = place.app(resident="1m")

    @app.workflow
    async def listens(count: int) -> list[int]:
        heard: list[int] = []
        for _ in range(count):
            try:
                async with asyncio.timeout(0.001):
                    heard.append(await outlast.receive("number", int))
            except TimeoutError:
                heard.append(await outlast.receive("number", int))
        return heard

    async def counts(handle: Any, count: int) -> None:
        for number in range(count):
            await handle.send("number", number)

    async with app:
        handles = [await listens.options(id=f"listens-{n}").start(20) for n in range(10)]
        await asyncio.gather(*(counts(handle, 20) for handle in handles))
        for handle in handles:
            assert await handle.result(timeout=30) == list(range(20))


async def test_a_race_needs_somebody(app: App):
    @app.workflow
    async def empty() -> None:
        await outlast.race()

    async with app:
        with pytest.raises(InvalidInput):
            await empty()


async def test_a_timeout_of_a_receive_that_escaped_waits_again_after_a_retry(clocked: Place):
    app = clocked.app()

    @app.workflow(retry=Retry(max_attempts=2, initial=0))
    async def waits() -> int:
        return await outlast.receive("number", int, timeout="1h")

    async with app:
        handle = await waits.start()
        await suspended_on(handle, "event:number")
        await clocked.pass_time(app, "1h")

        async def second_attempt() -> bool:
            info = await handle.info()
            return info.status == "suspended" and info.failures == 1

        await until(second_attempt, "it is not tried again")
        await handle.send("number", 7)
        assert await handle.result(timeout=20) == 7


@pytest.mark.parametrize("how", ["shield", "wait"])
async def test_a_timer_beside_an_operation_that_goes_on_replays(how: str, place: Place):
    """It fired, the operation was not given up: only the timer's own record can say so."""

    def build(app: App) -> Any:
        @app.step
        async def slow() -> str:
            await struck.wait()
            return "slow"

        @app.step
        async def meanwhile() -> str:
            struck.set()
            return "meanwhile"

        @app.workflow
        async def impatient() -> list[str]:
            going = asyncio.create_task(slow())
            if how == "shield":
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(going), 0.05)
            else:
                nap = asyncio.create_task(asyncio.sleep(0.05))
                await asyncio.wait({going, nap}, return_when=asyncio.FIRST_COMPLETED)
            said = [await meanwhile(), await going]
            await outlast.receive("go on")
            await meanwhile()
            return said

        return impatient

    app, struck = place.app(resident=0), asyncio.Event()
    impatient = build(app)
    async with app:
        handle = await impatient.start()
        await suspended_on(handle, "event:go on")
        await handle.send("go on")
        assert await handle.result(timeout=20) == ["meanwhile", "slow"]
        assert len({entry.epoch for entry in await handle.journal()}) > 1, "it was not replayed"


@pytest.mark.parametrize("how", ["by itself", "by an operator"])
async def test_a_cancelled_sibling_an_error_and_a_durable_finally_do_not_stop_a_retry(how: str, app: App):
    """The error is the code's own: nothing in the journal says that what follows is due to it."""
    broken = [True]
    ran: list[str] = []

    @app.step
    async def effect(name: str, seconds: float = 0.0) -> str:
        ran.append(name)
        await asyncio.sleep(seconds if broken else 0)
        return name

    async def breaks() -> str:
        await effect("first")
        if broken:
            raise ValueError(broken.pop())
        return "mended"

    @app.workflow(retry=Retry(max_attempts=2, initial=0) if how == "by itself" else None)
    async def group() -> list[str]:
        try:
            async with asyncio.TaskGroup() as tasks:
                slow, quick = tasks.create_task(effect("slow", 30)), tasks.create_task(breaks())
            return [slow.result(), quick.result()]
        finally:
            await effect("clean")

    async with app:
        handle = await group.start()
        if how == "by an operator":
            await until(lambda: not broken, "it did not break")
            with pytest.raises(ExceptionGroup):
                await handle.result(timeout=20)
            await handle.retry()
        assert await handle.result(timeout=20) == ["slow", "mended"]


async def test_an_error_of_the_code_and_a_durable_finally_do_not_stop_a_retry(app: App):
    broken = [True]

    @app.step
    async def effect(name: str) -> str:
        return name

    clean = effect.options(name="clean")

    @app.workflow(retry=Retry(max_attempts=2, initial=0))
    async def careful() -> str:
        try:
            if broken:
                raise ValueError(broken.pop())
            return await effect("done")
        finally:
            await clean("clean")

    async with app:
        assert await (await careful.start()).result(timeout=20) == "done"


async def test_branches_nested_too_deeply_fail_at_the_call(app: App):
    ran: list[int] = []

    @app.step
    async def effect() -> None:
        ran.append(1)

    async def deeper(levels: int) -> str:
        if levels:
            return await asyncio.create_task(deeper(levels - 1))
        try:
            await effect()
        except outlast.LimitExceeded:
            return "refused"
        return "accepted"

    @app.workflow
    async def deep(levels: int) -> str:
        return await deeper(levels)

    async with app:
        assert await deep(600) == "refused"
        assert (await deep(100), len(ran)) == ("accepted", 1)


async def test_many_waits_of_one_execution(clocked: Place):
    app = clocked.app()
    many = many_waits(app)
    async with app:
        few = await many.start(200)
        await status_is(few, "suspended")
        for n in range(200):
            await few.resolve(f"d{n}", 1)
        assert await few.result(timeout=30) == 200


def many_waits(app: App) -> Any:
    @app.workflow
    async def many(count: int) -> int:
        return sum(await asyncio.gather(*(outlast.deferred(f"d{n}", int) for n in range(count))))

    return many


async def test_more_waits_than_a_suspension_can_name_stay_in_memory_and_go_on(
    clocked: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(limits, "WAITS_MAX", 20)
    app = clocked.app()
    many = many_waits(app)
    async with app:
        handle = await many.start(21)
        await until(lambda: "stays in memory while it waits: waits: 21" in caplog.text, "nobody said so")
        assert (await handle.info()).status == "active"
        for n in range(21):
            await handle.resolve(f"d{n}", 1)
        assert await handle.result(timeout=30) == 21
        assert (await handle.info()).attempts == 1


async def test_after_more_waits_than_a_suspension_can_name_everything_else_goes_on(
    clocked: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """What the code does when one of them has ended begins, and it is suspended once it waits for less."""
    monkeypatch.setattr(limits, "WAITS_MAX", 20)
    app = clocked.app()

    @app.step
    async def work() -> int:
        return 1

    @app.workflow
    async def much() -> int:
        first = await outlast.race(*(outlast.deferred(f"d{n}", int) for n in range(21)))
        return first + await work() + await outlast.receive("number", int)

    async with app:
        handle = await much.start()
        await until(lambda: "stays in memory while it waits: waits: 21" in caplog.text, "nobody said so")
        await handle.resolve("d3", 1)
        await suspended_on(handle, "event:number")
        await handle.send("number", 3)
        assert await handle.result(timeout=30) == 5


async def test_giving_up_a_wait_when_the_journal_is_full_is_said_and_the_code_goes_on(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The note that a wait was given up is for readers: without room for it the code is not held up."""
    monkeypatch.setattr(limits, "JOURNAL_MAX_ENTRIES", 3)

    @app.step
    async def work() -> int:
        return 1

    @app.workflow
    async def gives_up() -> str:
        waiting = asyncio.create_task(outlast.receive("never"))
        done = [await work() for _ in range(3)]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        try:
            await work()
        except outlast.LimitExceeded as full:
            return f"{sum(done)} done, then {full.what} full"
        return "no limit"

    async with app:
        handle = await gives_up.start()
        assert await handle.result(timeout=20) == "3 done, then journal full"
        assert len(await handle.journal()) == 3
    assert "that receive 'never' was given up is not noted" in caplog.text


async def test_awaiting_what_nothing_durable_can_end_is_warned_of_with_its_line(
    app: App, caplog: pytest.LogCaptureFixture
):
    lines: list[int] = []

    @app.workflow
    async def stuck() -> None:
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lines.append(inspect.currentframe().f_lineno + 1)  # type: ignore[union-attr]
        await never

    async with app:
        handle = await stuck.options(id="stuck").start()
        await until(lambda: "no durable operation can end" in caplog.text, "nobody warned")
        [warning] = [one.getMessage() for one in caplog.records if "no durable operation" in one.getMessage()]
        assert warning == (
            f"execution stuck awaits something that no durable operation can end, at {__file__}:{lines[0]}"
        )
        assert (await handle.info()).status == "active"
        await handle.cancel()
        with pytest.raises(outlast.ExecutionCancelled):
            await handle.result(timeout=20)


async def test_what_stands_still_says_so_where_it_is_shown_until_it_goes_on(place: Place, gate: Gate):
    app, lines, looks = place.app(), [], store_for(place.url)

    @app.workflow
    async def stuck() -> None:
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for _ in range(2):
            try:
                lines.append(inspect.currentframe().f_lineno + 1)  # type: ignore[union-attr]
                await never
            except asyncio.CancelledError:
                never = asyncio.get_running_loop().create_future()
                await hold()

    @app.step
    async def hold() -> None:
        await gate()

    async def shown() -> str:
        [e] = await looks.load([execution_key("default", "stuck")])
        assert isinstance(e, Execution)
        return explain(e, await situation_of(looks, e)).text

    async def stands() -> bool:
        return bool(lines) and f"no durable operation can end, at {__file__}:{lines[0]}: only" in await shown()

    async with app.worker(drain=0):
        await looks.open()
        handle = await stuck.options(id="stuck").start()
        await until(stands, "it is not shown")
        await handle.cancel()
        await gate.reached()
        assert "no durable operation" not in await shown()
        gate.open()
        await until(stands, "it is not shown that it stands again")
        await looks.close()
