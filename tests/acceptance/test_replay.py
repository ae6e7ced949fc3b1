"""What is recorded is not run again, and replays to the same, whatever runs it next.

The first process here leaves in the middle (it drains with no patience); the second one has code of its own and
finds the journal. `test_crash_everywhere.py` does the same with crashes at every point.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import json
import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from outlast import App, Retry, Status
from tests.acceptance.conftest import Gate, Place, status_is, until

Build = Callable[[App, Callable[[str], None], Any], Any]
"""`build(app, ran, last)` registers a workflow whose steps tell what `ran`, and which calls the step `last` at last."""


class Declined(Exception):
    pass


class Life:
    """One process: an app, its workflow, and what it ran."""

    def __init__(self, place: Place, build: Build, stop_at: Gate | None) -> None:
        self.ran: list[str] = []
        self.seen: list[Any] = []
        """What the code had in hands before its last step."""
        self.app = place.app()
        self._stop_at = stop_at

        @self.app.step
        async def last(*seen: Any) -> None:
            self.seen += seen
            if self._stop_at is not None:
                await self._stop_at()

        self.workflow = build(self.app, self.ran.append, last)

    async def leave_at_the_last_step(self, *args: Any) -> None:
        async with self.app.worker(drain=0):
            await self.workflow.options(id="it").start(*args)
            assert self._stop_at is not None
            await self._stop_at.reached()

    async def finish(self) -> Any:
        async with self.app:
            return await self.workflow.execution("it").result(timeout=20)


async def test_a_recorded_step_is_never_run_again(place: Place, gate: Gate):
    def build(app: App, ran: Any, last: Any):
        @app.step
        async def draw(n: int) -> str:
            ran(f"draw {n}")
            return str(uuid.uuid4())

        @app.workflow
        async def three() -> list[str]:
            drawn = [await draw(n) for n in range(3)]
            await last()
            return drawn

        return three

    first = Life(place, build, gate)
    await first.leave_at_the_last_step()
    second = Life(place, build, None)
    drawn = await second.finish()
    assert len(set(drawn)) == 3
    assert first.ran == ["draw 0", "draw 1", "draw 2"]
    assert second.ran == []


async def test_a_recorded_def_step_is_never_run_again(place: Place, gate: Gate):
    def build(app: App, ran: Any, last: Any):
        @app.step
        def draw(n: int) -> str:
            ran(f"draw {n}")
            return str(uuid.uuid4())

        @app.workflow
        def three() -> list[str]:
            drawn = [draw(n) for n in range(3)]
            last.sync()
            return drawn

        return three

    first = Life(place, build, gate)
    await first.leave_at_the_last_step()
    second = Life(place, build, None)
    assert len(set(await second.finish())) == 3
    assert (len(first.ran), second.ran) == (3, [])


async def test_only_what_was_not_recorded_runs_in_the_next_process(place: Place, gate: Gate):
    """One branch of a gather was done, the other was in the middle: only that one runs again."""

    def build(app: App, ran: Any, last: Any):
        @app.step
        async def part(name: str) -> str:
            ran(name)
            return name

        @app.workflow
        async def both() -> tuple[str, str]:
            async def slow() -> str:
                await last()
                return await part("slow")

            return await asyncio.gather(part("quick"), slow())

        return both

    first = Life(place, build, gate)
    async with first.app.worker(drain=0):
        handle = await first.workflow.options(id="it").start()
        await gate.reached()

        async def quick_is_recorded() -> bool:
            return [entry.name for entry in await handle.journal()] == ["part"]

        await until(quick_is_recorded, "quick was not recorded")
    second = Life(place, build, None)
    assert await second.finish() == ("quick", "slow")
    assert (first.ran, second.ran) == (["quick"], ["slow"])


# ---- concurrency replays to the same ------------------------------------------------------------------------------


def as_completed(app: App, ran: Any, last: Any):
    @app.step
    async def nap(name: str, seconds: float) -> str:
        ran(name)
        await asyncio.sleep(seconds)
        return name

    @app.workflow
    async def race(quick: float) -> list[str]:
        naps = [nap("a", 0.04), nap("b", 0.0), nap("c", 0.02)]
        order = [await done for done in asyncio.as_completed(naps)]
        await last(order)
        return order

    return race


def first_of_two(app: App, ran: Any, last: Any):
    @app.step
    async def nap(name: str, seconds: float) -> str:
        ran(name)
        await asyncio.sleep(seconds)
        return name

    @app.workflow
    async def race(quick: float) -> list[str]:
        tasks = [asyncio.create_task(nap("slow", 0.04)), asyncio.create_task(nap("quick", quick))]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winner = done.pop().result()
        rest = await asyncio.gather(*rest)
        await last([winner, *rest])
        return [winner, *rest]

    return race


def given_up(app: App, ran: Any, last: Any):
    """A timeout that struck strikes again at replay, without waiting; one that did not, does not."""

    @app.step
    async def nap(name: str, seconds: float) -> str:
        ran(name)
        await asyncio.sleep(seconds)
        return name

    @app.workflow
    async def impatient(quick: float) -> list[str]:
        said: list[str] = []
        try:
            said.append(await asyncio.wait_for(nap("wait_for", 30), 0.02))
        except TimeoutError:
            said.append("no wait_for")
        try:
            async with asyncio.timeout(0.02):
                said.append(await nap("timeout", 30))
        except TimeoutError:
            said.append("no timeout")
        async with asyncio.timeout(30):
            said.append(await nap("in time", quick))
        await last(said)
        return said

    return impatient


def groups(app: App, ran: Any, last: Any):
    @app.step
    async def nap(name: str, seconds: float) -> str:
        ran(name)
        await asyncio.sleep(seconds)
        if name == "fails":
            raise Declined
        return name

    @app.workflow
    async def nested(quick: float) -> list[str]:
        said: list[str] = []

        async def branch(b: int) -> None:
            async with asyncio.TaskGroup() as tasks:
                for n in range(3):
                    tasks.create_task(nap(f"{b}.{n}", quick * (3 - n)))
            said.append(await nap(f"{b}", 0.0))

        try:
            await asyncio.gather(branch(1), branch(2), nap("fails", 0.05))
        except Declined:
            said.append("declined")
        end = [*said]  # on a busy machine the branches may be behind the failure, and say more later
        await last(end)
        return end

    return nested


CONCURRENT = {build.__name__: build for build in (as_completed, first_of_two, given_up, groups)}


@pytest.mark.parametrize("name", CONCURRENT)
async def test_concurrent_branches_replay_to_the_same(name: str, place: Place, gate: Gate):
    first = Life(place, CONCURRENT[name], gate)
    await first.leave_at_the_last_step(0.005)
    second = Life(place, CONCURRENT[name], None)
    assert await second.finish() == second.seen[0] == first.seen[0]
    assert (second.ran, len(first.ran)) == ([], len(set(first.ran)))


async def test_a_failure_that_the_code_caught_replays_as_it_was(place: Place, gate: Gate):
    def build(app: App, ran: Any, last: Any):
        @app.step
        async def charge() -> None:
            ran("charge")
            raise Declined("insufficient funds", 402)

        @app.workflow
        async def pay() -> list[Any]:
            try:
                await charge()
            except Declined as error:
                await last()
                return [type(error).__name__, *error.args]
            return []

        return pay

    first = Life(place, build, gate)
    await first.leave_at_the_last_step()
    second = Life(place, build, None)
    assert await second.finish() == ["Declined", "insufficient funds", 402]
    assert (first.ran, second.ran) == (["charge"], [])


# ---- after a failure ----------------------------------------------------------------------------------------------


async def retried(app: App, workflow: Any, how: str) -> Any:
    """The result after one retry, by the workflow's own policy or by an operator."""
    async with app:
        handle = await workflow.options(id="it").start()
        if how == "by an operator":
            await status_is(handle, "failed")
            await handle.retry()
        result = await handle.result(timeout=20)
        assert (await handle.info()).failures == (1 if how == "by itself" else 0)
        return result


POLICY = {"by itself": Retry(max_attempts=2, initial=0), "by an operator": None}


@pytest.mark.parametrize("how", POLICY)
async def test_a_retry_runs_only_the_step_that_failed_it(app: App, how: str):
    ran: list[str] = []

    @app.step
    async def effect(name: str) -> str:
        ran.append(name)
        if name in ("bad", "caught") and ran.count("bad") < 2:
            raise Declined(name)
        return name

    @app.workflow(retry=POLICY[how])
    async def stubborn() -> list[str]:
        done = [await effect("good")]
        try:
            done.append(await effect("caught"))
        except Declined:
            done.append("lived with")
        return [*done, await effect("good too"), await effect("bad")]

    assert await retried(app, stubborn, how) == ["good", "lived with", "good too", "bad"]
    assert ran == ["good", "caught", "good too", "bad", "bad"]


@pytest.mark.parametrize("how", POLICY)
async def test_a_retry_after_an_error_of_the_code_itself_runs_no_step(app: App, how: str):
    ran: list[str] = []
    broken = [True]

    @app.step
    async def effect(name: str) -> str:
        ran.append(name)
        if name == "caught":
            raise Declined(name)
        return name

    @app.workflow(retry=POLICY[how])
    async def stubborn() -> list[str]:
        try:
            await effect("caught")
        except Declined:
            done = await effect("good")
        if broken:
            raise ValueError(broken.pop())
        return [done]

    assert await retried(app, stubborn, how) == ["good"]
    assert ran == ["caught", "good"]


@pytest.mark.parametrize("how", POLICY)
async def test_what_the_code_did_because_of_the_failure_does_not_stand_in_the_way_of_a_retry(app: App, how: str):
    """Steps in `finally` and `except` are recorded behind the failure, which a retry runs again."""
    ran: list[str] = []

    @app.step
    async def effect(name: str) -> str:
        ran.append(name)
        if name == "bad" and ran.count("bad") == 1:
            raise Declined(name)
        return name

    undo = effect.options(name="undo")

    @app.workflow(retry=POLICY[how])
    async def careful() -> str:
        try:
            async with asyncio.timeout(30):
                return await effect("bad")
        except Declined:
            await undo("undo")
            raise
        finally:
            await effect("clean")

    assert await retried(app, careful, how) == "bad"
    assert ran == ["bad", "undo", "clean", "bad"], "what is recorded is not run again"


@pytest.mark.parametrize("how", POLICY)
async def test_what_a_failure_cut_short_runs_again(app: App, how: str):
    ran: list[str] = []
    broken = [True]

    @app.step
    async def effect(name: str, seconds: float = 0.0) -> str:
        ran.append(name)
        await asyncio.sleep(30 if seconds and broken else 0)
        return name

    async def breaks() -> str:
        await effect("first")
        if broken:
            raise ValueError(broken.pop())
        return "mended"

    @app.workflow(retry=POLICY[how])
    async def group() -> list[str]:
        async with asyncio.TaskGroup() as tasks:
            slow, quick = tasks.create_task(effect("slow", 30)), tasks.create_task(breaks())
        return [slow.result(), quick.result()]

    assert await retried(app, group, how) == ["slow", "mended"]
    assert ran == ["slow", "first", "slow"]


@pytest.mark.parametrize("how", POLICY)
async def test_a_timeout_that_escaped_is_tried_again(app: App, how: str):
    ran: list[str] = []

    @app.step
    async def slow_at_first() -> str:
        ran.append("slow")
        await asyncio.sleep(30 if len(ran) == 1 else 0)
        return "done"

    @app.workflow(retry=POLICY[how])
    async def impatient() -> str:
        return await asyncio.wait_for(slow_at_first(), 0.2 if not ran else 30)

    assert await retried(app, impatient, how) == "done"
    assert len(ran) == 2


async def test_a_step_that_a_retry_runs_again_has_all_its_tries_again(clocked: Place):
    app = clocked.app()
    tries: list[int] = []

    @app.step(retry=Retry(max_attempts=2, initial="1h", max_delay="1h", jitter=0))
    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 4:
            raise Declined
        return len(tries)

    @app.workflow
    async def patient() -> int:
        return await flaky()

    async with app:
        handle = await patient.start()
        await status_is(handle, "suspended")
        await clocked.pass_time(app, "2h")
        await status_is(handle, "failed")
        await handle.retry()
        await status_is(handle, "suspended")
        await clocked.pass_time(app, "2h")
        assert await handle.result(timeout=20) == 4


# ---- values -------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.5


VALUES: list[tuple[Any, Any]] = [
    (tuple[int, str], (1, "a")),
    (list[tuple[int, ...]], [(1, 2), ()]),
    (Point, Point(1)),
    (dict[str, Point], {"a": Point(2, 3.0)}),
    (dt.datetime, dt.datetime(2026, 11, 15, 12, 30, tzinfo=dt.UTC)),
    (dt.date, dt.date(2026, 11, 15)),
    (set[int], {1, 2, 3}),
    (frozenset[str], frozenset({"a"})),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (uuid.UUID, uuid.UUID(int=7)),
    (bytes, b"\x00\xff"),
    (Colour, Colour.RED),
    (int | None, None),
    (float, 1.0),
]


async def test_values_are_the_same_live_and_replayed(place: Place, gate: Gate):
    lives: list[list[Any]] = []

    def build(app: App, ran: Any, last: Any):
        def step_for(annotation: Any, value: Any) -> Any:
            async def make():
                return value

            make.__annotations__["return"] = annotation
            return app.step(make)

        steps = [step_for(*one) for one in VALUES]

        @app.workflow
        async def look() -> None:
            lives.append([await step() for step in steps])
            await last()

        return look

    await Life(place, build, gate).leave_at_the_last_step()
    await Life(place, build, None).finish()
    for (_, value), live, replayed in zip(VALUES, *lives, strict=True):
        assert live == replayed == value
        assert type(live) is type(replayed) is type(value)


async def test_an_untyped_value_is_plain_json_live_and_replayed(place: Place, gate: Gate):
    """Without an annotation a tuple comes back as a list: already the first time, so that code sees no difference."""
    seen: list[Any] = []

    def build(app: App, ran: Any, last: Any):
        @app.step
        async def pair():
            return (1, 2)

        @app.workflow
        async def look() -> None:
            seen.append(await pair())
            await last()

        return look

    await Life(place, build, gate).leave_at_the_last_step()
    await Life(place, build, None).finish()
    assert seen[0] == seen[1]
    assert type(seen[0]) is type(seen[1])


# ---- code that changed --------------------------------------------------------------------------------------------


def old_code(app: App, ran: Any, last: Any):
    @app.step
    async def reserve() -> str:
        ran("reserve")
        return "reserved"

    @app.step
    async def charge() -> str:
        ran("charge")
        return "charged"

    @app.workflow(name="checkout")
    async def checkout() -> list[str]:
        done = [await reserve(), await charge()]
        await last()
        return done

    return checkout


def new_code(app: App, ran: Any, last: Any):
    @app.step
    async def reserve() -> str:
        ran("reserve")
        return "reserved"

    @app.step
    async def invoice() -> str:
        ran("invoice")
        return "invoiced"

    @app.workflow(name="checkout")
    async def checkout() -> list[str]:
        done = [await reserve(), await invoice()]
        await last()
        return done

    return checkout


def shorter_code(app: App, ran: Any, last: Any):
    @app.workflow(name="checkout")
    async def checkout() -> list[str]:
        return []

    return checkout


def raising_code(app: App, ran: Any, last: Any):
    @app.workflow(name="checkout")
    async def checkout() -> list[str]:
        return json.loads("no json")

    return checkout


CHANGED = {
    "another step": (new_code, "step 'invoice'", 2),
    "no step": (shorter_code, "nothing: it returns", 0),
    "an error": (raising_code, "nothing: it raises JSONDecodeError: Expecting value", 2),
}


@pytest.mark.parametrize("build, actual, lines", CHANGED.values(), ids=CHANGED)
async def test_changed_code_waits_for_the_old_one_and_does_nothing(
    place: Place, gate: Gate, caplog: pytest.LogCaptureFixture, build: Build, actual: str, lines: int
):
    first = Life(place, old_code, gate)
    await first.leave_at_the_last_step()
    changed = Life(place, build, None)
    with caplog.at_level(logging.ERROR, logger="outlast"):
        async with changed.app:
            handle = changed.workflow.execution("it")
            await status_is(handle, "suspended")
            info = await handle.info()
            assert (info.reason, info.failures, info.crashes) == ("version", 0, 0)
            assert [entry.name for entry in await handle.journal()] == ["reserve", "charge"], "nothing was written"
    assert changed.ran == [], "nothing was executed"
    expected = "step 'charge'" if build is new_code else "step 'reserve'"
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert f"'it' recorded {expected}, but the code now does {actual}" in said
    line = changed.workflow.fn.__code__.co_firstlineno + lines
    assert f"test_replay.py:{line})" in said

    restored = Life(place, old_code, None)
    assert await restored.finish() == ["reserved", "charged"]
    assert restored.ran == []
    assert (await _status(restored)) == Status.SUCCEEDED


async def _status(life: Life) -> Status:
    async with life.app.client():
        return (await life.workflow.execution("it").info()).status


async def test_what_waits_for_its_version_can_be_told_to_try_again(place: Place, gate: Gate):
    """The code was put right in a process that runs already: an operator says so."""
    await Life(place, old_code, gate).leave_at_the_last_step()
    app = place.app()
    put_right = False

    @app.step(name="reserve")
    async def effect() -> str:
        raise AssertionError("it is recorded")

    @app.step
    async def last() -> None: ...

    @app.workflow
    async def checkout() -> list[str]:
        first = await effect()
        second = await effect.options(name="charge" if put_right else "invoice")()
        await last()
        return [first, second]

    async with app:
        handle = checkout.execution("it")
        await status_is(handle, "suspended")
        put_right = True
        await handle.retry()
        assert await handle.result(timeout=20) == ["reserved", "charged"]


async def test_a_new_version_does_not_touch_executions_of_the_old(place: Place, gate: Gate):
    await Life(place, old_code, gate).leave_at_the_last_step()
    app = place.app()

    @app.workflow(name="checkout", version="2")
    async def checkout() -> list[str]:
        return ["new"]

    async with app:
        assert await checkout() == ["new"]
        assert (await app.execution("it").info()).status == Status.READY
    assert await Life(place, old_code, None).finish() == ["reserved", "charged"]
