"""Code that does what code does: cancels itself, exits, spins, races, swallows, leaves things behind."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outlast import App, ExecutionCancelled, OutlastError, Retry
from outlast.app import store_for
from outlast.errors import StoreClosed, StoreError, WrongPlace
from outlast.runtime.threads import DaemonThreads
from tests.acceptance.conftest import Gate, Place, sessions_run_out, status_is, until

Build = Callable[[App], Any]


async def crashed_and_resumed(place: Place, build: Build, gate: Gate, *, store: Any = None) -> Any:
    """The result of a workflow whose worker dies while it waits at the gate."""
    options = {} if store is None else {"store": store}
    first = App(place.url, lease_ttl="10m", **options)
    workflow = build(first)
    await first.__aenter__()
    await workflow.options(id="it").start()
    await gate.reached()
    opened, first._opened = first._opened, None
    assert opened is not None
    await opened.abandon()
    await sessions_run_out(place.url)
    gate.open()
    second = place.app()
    workflow = build(second)
    async with second:
        return await workflow.execution("it").result(timeout=15)


# ---- replay -------------------------------------------------------------------------------------------------------


async def test_what_lost_a_race_after_it_was_recorded_is_no_divergence(place: Place, gate: Gate):
    def build(app: App) -> Any:
        fast = app.step(lambda name: name, name="fast")
        last = app.step(gate.__call__, name="last")

        @app.workflow
        async def racing() -> list[str]:
            both = [asyncio.create_task(fast.aio("a")), asyncio.create_task(fast.aio("b"))]
            done, pending = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for loser in pending:
                loser.cancel()
            after = await fast.aio("c")
            await last()
            return [*(one.result() for one in done), after]

        return racing

    won, after = await crashed_and_resumed(place, build, gate)
    assert (won in ("a", "b"), after) == (True, "c")


async def test_code_may_end_while_a_recorded_branch_is_left_behind(place: Place):
    def build(app: App) -> Any:
        @app.step
        async def fast(name: str) -> str:
            return name

        @app.workflow(retry=Retry(max_attempts=2, initial="10ms"))
        async def leaving() -> str:
            both = [asyncio.create_task(fast("a")), asyncio.create_task(fast("b"))]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if ran.append(1) or len(ran) == 1:
                raise ValueError("once")
            return "left"

        return leaving

    ran: list[int] = []
    app = place.app()
    leaving = build(app)
    async with app:
        assert await (await leaving.start()).result(timeout=15) == "left"


async def test_a_timeout_in_one_branch_is_replayed_before_what_came_after_it_in_another(place: Place, gate: Gate):
    def build(app: App) -> Any:
        @app.step
        async def nap(seconds: float) -> float:
            await asyncio.sleep(seconds)
            return seconds

        @app.step
        async def say(word: str) -> str:
            return word

        last = app.step(gate.__call__, name="last")

        @app.workflow
        async def branches() -> str:
            late = False

            async def one() -> None:
                nonlocal late
                try:
                    await asyncio.wait_for(nap(30), 0.1)
                except TimeoutError:
                    late = True

            async def two() -> str:
                await nap(0.3)
                return await say("late") if late else await say.options(name="other")("early")

            _, said = await asyncio.gather(one(), two())
            await last()
            return said

        return branches

    assert await crashed_and_resumed(place, build, gate) == "late"


async def test_what_asyncio_wait_gives_comes_in_the_same_order_at_replay(place: Place, gate: Gate):
    def build(app: App) -> Any:
        @app.step
        async def same(number: int) -> int:
            return number

        last = app.step(gate.__call__, name="last")

        @app.workflow
        async def waiting() -> dict[int, int]:
            done, _ = await asyncio.wait({asyncio.create_task(same(n)) for n in range(30)})
            found = {one.result(): await same(one.result()) for one in done}
            await last()
            return found

        return waiting

    found = await crashed_and_resumed(place, build, gate)
    assert found == {n: n for n in range(30)}


async def test_an_outcome_on_its_way_to_the_journal_beats_a_timeout_that_comes_later(place: Place, gate: Gate):
    """What is recorded first is seen first, live as at replay."""
    recording = asyncio.Event()

    class SlowToRecord:
        def __init__(self) -> None:
            self._store = store_for(place.url)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def commit(self, batch: Any) -> Any:
            if "'late'" in str(batch):
                recording.set()
                await asyncio.sleep(0.3)
            return await self._store.commit(batch)

    def build(app: App) -> Any:
        @app.step
        async def late() -> str:
            return "late"

        @app.step
        async def instead() -> str:
            return "instead"

        last = app.step(gate.__call__, name="last")

        @app.workflow
        async def impatient() -> str:
            try:
                async with asyncio.timeout(None) as limit:
                    going = asyncio.create_task(late())
                    while not recording.is_set():  # noqa: ASYNC110 (however long that takes)
                        await asyncio.sleep(0)
                    limit.reschedule(asyncio.get_running_loop().time() + 0.1)
                    said = await going
            except TimeoutError:
                said = await instead()
            await last()
            return said

        return impatient

    assert await crashed_and_resumed(place, build, gate, store=SlowToRecord) == "late"


async def test_an_outcome_that_comes_when_the_code_has_given_up_is_not_seen_at_replay_either(place: Place, gate: Gate):
    """Code that goes round in circles gives up whenever it likes: no outcome made it do so."""
    recording = asyncio.Event()

    class SlowToRecord:
        def __init__(self) -> None:
            self._store = store_for(place.url)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def commit(self, batch: Any) -> Any:
            if "'late'" in str(batch):
                recording.set()
                await asyncio.sleep(0.3)
            return await self._store.commit(batch)

    def build(app: App) -> Any:
        @app.step
        async def late() -> str:
            return "late"

        @app.step
        async def instead() -> str:
            return "instead"

        last = app.step(gate.__call__, name="last")

        @app.workflow
        async def restless() -> str:
            going = asyncio.create_task(late())
            while not recording.is_set():  # noqa: ASYNC110 (it goes round in circles, which is the point)
                await asyncio.sleep(0)
            going.cancel()
            said = await instead()
            await last()
            return said if going.cancelled() else "seen"

        return restless

    assert await crashed_and_resumed(place, build, gate, store=SlowToRecord) == "instead"


# ---- steps --------------------------------------------------------------------------------------------------------


async def cancel_yourself() -> None:
    inner = asyncio.create_task(asyncio.sleep(60))
    inner.cancel()
    await inner


async def exit_async() -> None:
    sys.exit(3)


def exit_def() -> None:
    sys.exit(3)


async def exit_a_generator() -> None:
    raise GeneratorExit


async def await_one_who_exits_a_generator() -> None:
    await asyncio.create_task(exit_a_generator())


def stop_iteration() -> Any:
    return next(iter([]))


@pytest.mark.parametrize("timeout", [None, "10s"])
@pytest.mark.parametrize(
    "hostile",
    [cancel_yourself, exit_async, exit_def, exit_a_generator, await_one_who_exits_a_generator, stop_iteration],
)
async def test_a_step_that_ends_in_an_unusual_way_fails_and_nothing_else(app: App, hostile: Any, timeout: Any):
    step = app.step(hostile, name="hostile", timeout=timeout)

    @app.workflow
    async def calling() -> str:
        try:
            await step.aio()
        except RuntimeError as error:
            return str(error)
        return "nothing"

    async with app:
        assert "step 'hostile' ended with" in await (await calling.start()).result(timeout=10)


async def test_a_workflow_that_exits_fails_and_its_worker_goes_on(app: App):
    @app.workflow
    async def leaving(how: str) -> str:
        if how == "exit":
            sys.exit(3)
        return how

    async with app:
        with pytest.raises(RuntimeError, match="SystemExit"):
            await (await leaving.start("exit")).result(timeout=10)
        assert await (await leaving.start("stay")).result(timeout=10) == "stay"


async def test_a_step_that_was_given_up_is_not_tried_again_whatever_it_makes_of_that(app: App):
    calls: list[str] = []

    @app.step(retry=Retry(max_attempts=5, initial="1ms"))
    async def stubborn(what: str) -> str:
        calls.append(what)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            if what == "raises":
                raise ConnectionError("the driver says so") from None
        return what

    @app.step
    async def after() -> str:
        await asyncio.sleep(0.1)
        return "after"

    @app.workflow
    async def impatient(what: str) -> str:
        try:
            async with asyncio.timeout(0.05):
                await stubborn(what)
        except TimeoutError:
            pass
        return await after()

    async with app:
        for what in ("raises", "returns"):
            handle = await impatient.start(what)
            assert await handle.result(timeout=10) == "after"
            steps = [one.outcome for one in await handle.journal() if one.op == "step"]
            assert steps == ["cancelled", "succeeded"]
            assert len(await handle.attempts()) == 1
    assert calls == ["raises", "returns"]


async def test_the_time_of_a_def_step_counts_from_when_it_has_a_thread(app: App):
    begun: list[str] = []

    @app.step
    def long() -> None:
        begun.append("long")
        time.sleep(1.5)

    @app.step(timeout="1s")
    def short() -> str:
        begun.append("short")
        return "in time"

    @app.workflow
    async def both() -> list[str | None]:
        return list(await asyncio.gather(long.aio(), short.aio()))

    async with app.worker(concurrency=1):
        assert await (await both.start()).result(timeout=20) == [None, "in time"]
        assert begun == ["long", "short"], "there is one thread"


async def test_a_step_that_ends_as_its_time_does_says_that_it_took_too_long(app: App, monkeypatch: pytest.MonkeyPatch):
    class Over:
        """A limit that is reached as what it is about ends."""

        async def __aenter__(self) -> Over:
            return self

        async def __aexit__(self, *raised: object) -> None:
            raise TimeoutError

        def expired(self) -> bool:
            return True

        def restart(self, delay_s: float) -> None: ...

    @app.step(timeout="1h")
    async def late() -> None: ...

    @app.workflow
    async def calls() -> None:
        await late()

    async with app:
        assert app._opened is not None
        assert app._opened.parts is not None
        monkeypatch.setattr(app._opened.parts.timing, "limit", lambda delay_s: Over())
        with pytest.raises(TimeoutError, match="'late' took longer than 3600 s"):
            await (await calls.start()).result()


async def test_a_long_backoff_counts_from_the_failure_not_from_what_was_last_heard(clocked: Place):
    app = clocked.app()
    clock = clocked._clock
    assert clock is not None

    @app.step(retry=Retry(max_attempts=2, initial="1m", backoff=1.0))
    async def long() -> None:
        clock.advance("10m")
        raise ValueError("in vain")

    @app.workflow
    async def patient() -> None:
        await long()

    async with app.worker(poll="1h"):
        handle = await patient.start()
        await status_is(handle, "suspended")
        [entry] = await handle.journal()
        assert entry.value is not None
        assert int(entry.value) > clock.now_ms(), "the time to wait had passed before it began"


async def test_a_step_with_the_longest_name_waits_for_its_next_try_like_any_other(app: App):
    ran: list[int] = []

    @app.step(name="n" * 255, retry=Retry(max_attempts=2, initial="1h"))
    async def named() -> None:
        ran.append(1)
        raise ValueError("not yet")

    @app.workflow
    async def waiting() -> None:
        await named()

    async with app:
        await status_is(await waiting.start(), "suspended")
    assert ran == [1]


async def test_a_failure_that_gives_up_more_than_one_commit_can_take_ends_the_execution(app: App):
    failing = asyncio.Event()

    @app.step
    async def work(number: int) -> None:
        if number == 0:
            await failing.wait()
            raise ValueError("the first")
        if number == 1_199:
            failing.set()
        await asyncio.sleep(60)

    @app.workflow(retry=Retry(max_attempts=2, initial="1ms"))
    async def wide() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(1_200):
                group.create_task(work(number))

    async with app:
        with pytest.raises(ExceptionGroup):
            await (await wide.start()).result(timeout=15)


def test_threads_of_steps_are_daemons_and_take_what_waits_in_turn():
    threads = DaemonThreads(2, name="test")
    seen: list[bool] = []
    done = [threads.submit(lambda: seen.append(threading.current_thread().daemon)) for _ in range(20)]
    for one in done:
        one.result(timeout=20)
    assert seen == [True] * 20
    block = threading.Event()
    both_run = threading.Barrier(3)
    stuck = [threads.submit(lambda: (both_run.wait(20), block.wait(20))) for _ in range(2)]
    both_run.wait(20)
    waiting = threads.submit(print)
    threads.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    block.set()
    for one in stuck:
        one.result(timeout=20)


def test_a_thread_whose_work_was_given_up_is_made_up_for():
    threads, block, begun = DaemonThreads(1, name="test"), threading.Event(), threading.Event()
    stuck = threads.submit(lambda: (begun.set(), block.wait(20)))
    assert begun.wait(20)
    waiting = threads.submit(threading.get_ident)
    unwanted = threads.submit(print)
    threads.forsake(unwanted)
    assert unwanted.cancelled(), "it has not begun"
    threads.forsake(stuck)
    waiting.result(timeout=20)
    assert threads.submit(threading.get_ident).result(timeout=20) == waiting.result(), "one is enough"
    block.set()
    stuck.result(timeout=20)
    threads.forsake(stuck)  # it has ended: there is nothing to make up for
    threads.submit(print).result(timeout=20)
    threads.shutdown()


@pytest.mark.parametrize("given_up_by", ["timeout", "cancel"])
async def test_def_steps_that_never_return_keep_no_others_from_running(place: Place, given_up_by: str):
    app, block, begun = place.app(), threading.Event(), list[int]()

    @app.step(timeout="100ms" if given_up_by == "timeout" else None)
    def hangs() -> None:
        begun.append(1)
        block.wait(30)

    @app.step
    def quick() -> str:
        return "done"

    @app.workflow
    async def stuck() -> None:
        await hangs.aio()

    @app.workflow
    async def fine() -> str:
        return await quick.aio()

    async with app.worker(concurrency=2):
        for number in range(1, 4):
            handle = await stuck.start()
            await until(lambda count=number: len(begun) == count, "it waits for a thread")
            if given_up_by == "cancel":
                await handle.cancel()
            with pytest.raises((TimeoutError, ExecutionCancelled)):
                await handle.result(timeout=20)
        assert await (await fine.start()).result(timeout=20) == "done"
        block.set()


# ---- code of workflows --------------------------------------------------------------------------------------------


async def test_code_that_spins_holds_up_nobody_and_gets_its_outcomes(app: App):
    @app.step
    async def nap() -> str:
        await asyncio.sleep(0.1)
        return "rested"

    @app.workflow
    async def spinning() -> str:
        napping = asyncio.create_task(nap())
        while not napping.done():  # noqa: ASYNC110 (that is the point)
            await asyncio.sleep(0)
        return napping.result()

    async with app:
        assert await (await spinning.start()).result(timeout=15) == "rested"


async def test_a_generator_that_is_left_early_cleans_up_with_a_step(app: App):
    @app.step
    async def page(number: int) -> int:
        return number

    @app.step
    async def clean() -> None: ...

    @app.workflow
    async def reading() -> int:
        async def pages() -> AsyncIterator[int]:
            try:
                for number in range(5):
                    yield await page(number)
            finally:
                await clean()
                cleaned.append(1)

        async for number in pages():
            if number == 1:
                break
        for number in range(3):
            await page(number)
        return number

    cleaned: list[int] = []
    async with app:
        assert await (await reading.start()).result(timeout=10) == 2
    assert cleaned == [1]


async def test_workflow_code_cannot_look_at_what_a_replay_would_see_otherwise(app: App):
    @app.workflow
    async def meddling(how: str) -> None:
        other = app.execution("other")
        await {"count": app.count, "info": other.info, "journal": other.journal, "hold": other.hold}[how]()

    async with app:
        for how in ("count", "info", "journal", "hold"):
            with pytest.raises(WrongPlace, match="do it in a step"):
                await (await meddling.start(how)).result(timeout=10)


async def test_a_def_workflow_cannot_call_steps_in_threads_that_have_its_context(app: App):
    """In a thread without its context nothing knows of the workflow, and a step is a plain call (docs/workflows.md)."""

    @app.step
    def work(number: int) -> int:
        return number

    @app.workflow
    def threaded() -> list[int]:
        with ThreadPoolExecutor(2) as own:
            calls = [own.submit(contextvars.copy_context().run, work, n) for n in range(4)]
            return [call.result() for call in calls]

    async with app:
        with pytest.raises(WrongPlace, match="thread"):
            await (await threaded.start()).result(timeout=10)


async def test_def_code_that_was_busy_when_the_cancel_came_does_not_begin_its_next_step(app: App):
    ran: list[int] = []
    busy, go_on = threading.Event(), threading.Event()

    @app.step
    def effect() -> None:
        ran.append(1)

    @app.workflow
    def computing() -> None:
        busy.set()
        go_on.wait(10)
        effect()

    async with app:
        handle = await computing.start()
        await asyncio.to_thread(busy.wait, 10)
        await handle.cancel()
        await until(handle.journal, "the cancel is not recorded")
        go_on.set()
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=10)
    assert ran == []


# ---- clients ------------------------------------------------------------------------------------------------------


async def test_a_timeout_that_the_workflow_raised_is_not_taken_for_that_of_the_wait(app: App):
    @app.workflow
    async def failing() -> None:
        raise TimeoutError("the bank did not answer")

    async with app:
        with pytest.raises(TimeoutError, match="the bank"):
            await (await failing.start()).result(timeout=10)


async def test_whoever_waits_is_told_when_the_app_closes(app: App):
    @app.workflow
    async def never() -> None: ...

    async with app.client():
        handle = await never.start()
        waiting = asyncio.create_task(handle.result())
        await asyncio.sleep(0.2)
    with pytest.raises(StoreClosed):
        async with asyncio.timeout(20):
            await waiting


async def test_an_app_that_could_not_be_opened_can_be_opened_later(
    place: Place, app: App, monkeypatch: pytest.MonkeyPatch
):
    def refuse(self: object) -> Any:
        raise StoreError("no doorbell")

    with monkeypatch.context() as broken:
        broken.setattr(type(store_for(place.url)), "listen", refuse)
        with pytest.raises(OutlastError, match="no doorbell"):
            await app.__aenter__()
    async with app:
        assert await app.count() == 0


async def test_an_app_that_is_open_in_another_loop_says_so(app: App):
    def elsewhere() -> None:
        asyncio.run(count())

    async def count() -> None:
        await app.count()

    async with app.client():
        with pytest.raises(WrongPlace, match="another event loop"):
            await asyncio.to_thread(elsewhere)
