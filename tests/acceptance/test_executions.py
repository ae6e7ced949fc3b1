"""Executions through the public surface: starting, waiting, finding, cancelling, holding, retrying, ending."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from outlast import (
    App,
    ExecutionCancelled,
    ExecutionConflict,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionNotFound,
    ExecutionRefused,
    Handle,
    Info,
    InvalidInput,
    Retry,
    Status,
)
from tests.acceptance.conftest import Gate, Place, status_is, until


class Declined(Exception):
    def __init__(self, code: int, *, card: str) -> None:
        super().__init__(f"card {card} declined with {code}")
        self.code, self.card = code, card


def echo_on(app: App, ran: list[str] | None = None) -> Any:
    @app.workflow
    async def echo(text: str) -> str:
        if ran is not None:
            ran.append(text)
        return text

    return echo


def waiting_on(app: App, gate: Gate) -> Any:
    """A workflow whose code runs until the gate opens."""

    @app.step
    async def wait() -> str:
        await gate()
        return "waited"

    @app.workflow
    async def waiting() -> str:
        return await wait()

    return waiting


def sleepy_on(app: App) -> Any:
    """A workflow that is suspended for an hour, and then done."""
    tries: list[int] = []

    @app.step(retry=Retry(max_attempts=2, initial="1h", max_delay="1h", jitter=0))
    async def later() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise TimeoutError
        return "later"

    @app.workflow
    async def sleepy() -> str:
        return await later()

    return sleepy


# ---- starting -----------------------------------------------------------------------------------------------------


async def test_started_is_accepted_and_runs_later_elsewhere(place: Place):
    starter, runner = place.app(), place.app()
    echo = echo_on(starter)
    async with starter.client():
        handle = await echo.options(id="it").start("hello")
        info = await handle.info()
        assert (info.id, info.status, info.reason, info.attempts) == ("it", Status.READY, None, 0)
        assert isinstance(info.created_at, dt.datetime)
        assert info.created_at.tzinfo is not None
    echo = echo_on(runner)
    async with runner:
        assert await echo.execution("it").result(timeout=20) == "hello"
        info = await echo.execution("it").info()
    assert (info.status, info.attempts, info.workflow, info.version) == (Status.SUCCEEDED, 1, "echo", "1")
    assert info.finished_at is not None
    assert info.finished_at >= info.created_at


async def test_thousands_start_in_one_call(app: App):
    echo = echo_on(app)
    async with app.client():
        handles = await app.start_many(echo.options(id=f"e{n}").bind(str(n)) for n in range(2_000))
        assert [handle.id for handle in handles] == [f"e{n}" for n in range(2_000)]
        assert await app.count(status="ready") == 2_000


async def test_many_start_and_all_of_them_end(app: App):
    echo = echo_on(app)
    async with app:
        handles = await app.start_many(echo.bind(str(n)) for n in range(300))
        assert await asyncio.gather(*(handle.result(timeout=20) for handle in handles)) == [str(n) for n in range(300)]


async def test_the_same_start_twice_is_the_same_execution(app: App):
    ran: list[str] = []
    echo = echo_on(app, ran)
    async with app:
        first = await echo.options(id="it").start("hello")
        assert await first.result() == "hello"
        again = await echo.options(id="it").start("hello")
        assert await again.result() == "hello"
        both = await app.start_many([echo.options(id="two").bind("x"), echo.options(id="two").bind("x")])
        assert [await handle.result() for handle in both] == ["x", "x"]
        assert await app.count() == 2
    assert ran == ["hello", "x"]


async def test_the_same_id_with_other_arguments_is_a_conflict_that_shows_both(app: App):
    echo = echo_on(app)
    async with app.client():
        await echo.options(id="it").start("hello")
        with pytest.raises(ExecutionConflict, match=r"(?s)'it'.*hello.*other"):
            await echo.options(id="it").start("other")
        assert await app.count() == 1


async def test_if_exists_error_refuses_even_the_same(app: App):
    echo = echo_on(app)
    async with app.client():
        await echo.options(id="it", if_exists="error").start("hello")
        with pytest.raises(ExecutionConflict):
            await echo.options(id="it", if_exists="error").start("hello")


async def test_if_exists_restart_begins_anew_once_it_has_ended(app: App, gate: Gate):
    ran: list[str] = []
    echo, waiting = echo_on(app, ran), waiting_on(app, gate)
    async with app:
        restarted = echo.options(id="it", if_exists="restart", tags={"round": "2"})
        assert await (await echo.options(id="it", tags={"round": "1"}).start("one")).result() == "one"
        handle = await restarted.start("two")
        assert await handle.result() == "two"
        info = await handle.info()
        assert (info.generation, info.attempts, info.tags) == (2, 1, {"round": "2"})
        assert await app.count(tags={"round": "1"}) == 0

        running = await waiting.options(id="busy").start()
        await gate.reached()
        with pytest.raises(ExecutionConflict):
            await waiting.options(id="busy", if_exists="restart").start()
        gate.open()
        assert await running.result() == "waited"
    assert ran == ["one", "two"]


async def test_a_delay_is_waited_for_and_said(clocked: Place):
    app = clocked.app()
    echo = echo_on(app)
    async with app:
        handle = await echo.options(delay="1h").start("late")
        info = await handle.info()
        assert (info.status, info.reason) == (Status.BLOCKED, "delay")
        assert info.wake_at is not None
        assert info.wake_at - info.created_at == dt.timedelta(hours=1)
        await clocked.pass_time(app, "59m")
        assert (await handle.info()).status == Status.BLOCKED
        await clocked.pass_time(app, "2m")
        assert await handle.result(timeout=20) == "late"


async def test_priority_goes_before_age(place: Place):
    starter = place.app()
    echo = echo_on(starter)
    async with starter.client():
        for text, priority in [("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -1)]:
            await echo.options(priority=priority, id=text).start(text)
    app, ran = place.app(), list[str]()
    echo = echo_on(app, ran)
    async with app.worker(concurrency=1):
        for text in "abcde":
            await echo.execution(text).result(timeout=20)
    assert ran == ["b", "d", "a", "c", "e"]


async def test_a_deadline_ends_it_whatever_it_is_doing(clocked: Place):
    app = clocked.app()
    gate = Gate()
    waiting, sleepy, echo = waiting_on(app, gate), sleepy_on(app), echo_on(app)
    async with app.worker():
        handles: list[Handle[Any]] = [
            await waiting.options(deadline="30m").start(),
            await sleepy.options(deadline="30m").start(),
            await echo.options(deadline="30m", delay="1h").start("late"),
        ]
        await gate.reached()
        await status_is(handles[1], "suspended")
        assert (await handles[0].info()).deadline_at == (await handles[0].info()).created_at + dt.timedelta(minutes=30)
        await clocked.pass_time(app, "31m")
        for handle in handles:
            with pytest.raises(ExecutionExpired, match="deadline"):
                await handle.result(timeout=20)
        assert {(await handle.info()).cause for handle in handles} == {"deadline"}


async def test_a_deadline_may_stand_at_the_workflow(clocked: Place):
    app = clocked.app()

    @app.workflow(deadline="1h")
    async def slow() -> None: ...

    async with app.client():
        info = await (await slow.start()).info()
        assert info.deadline_at == info.created_at + dt.timedelta(hours=1)
        info = await (await slow.options(deadline="2h").start()).info()
        assert info.deadline_at == info.created_at + dt.timedelta(hours=2)


async def test_namespaces_do_not_see_each_other(place: Place):
    blue, green = place.app(namespace="blue"), place.app(namespace="green")
    ran_blue, ran_green = list[str](), list[str]()
    echo_blue, echo_green = echo_on(blue, ran_blue), echo_on(green, ran_green)
    async with blue, green:
        one = await echo_blue.options(id="it").start("blue")
        two = await echo_green.options(id="it").start("green")
        assert (await one.result(timeout=20), await two.result(timeout=20)) == ("blue", "green")
        assert [info.namespace for info in await blue.find()] == ["blue"]
        assert await green.count() == 1
        await echo_blue.options(id="only-blue").start("x")
        with pytest.raises(ExecutionNotFound):
            await green.execution("only-blue").info()
    assert (ran_blue[0], ran_green) == ("blue", ["green"])


async def test_find_and_count_by_everything(app: App):
    echo = echo_on(app)

    @app.workflow(lane="mail")
    async def send() -> None: ...

    async with app.client():
        for n in range(4):
            await echo.options(id=f"e{n}", tags={"customer": str(n % 2), "kind": "echo"}).start("x")
        await send.options(id="s", tags={"customer": "0"}, delay="1h").start()
        assert [info.id for info in await app.find()] == ["s", "e3", "e2", "e1", "e0"], "newest first"
        assert [info.id for info in await app.find(limit=2)] == ["s", "e3"]
        assert [info.id for info in await app.find(tags={"customer": "1"})] == ["e3", "e1"]
        assert [info.id for info in await app.find(tags={"customer": "0", "kind": "echo"})] == ["e2", "e0"]
        assert [info.id for info in await app.find(workflow="send")] == ["s"]
        assert [info.id for info in await app.find(lane="mail")] == ["s"]
        assert [info.id for info in await app.find(status="blocked")] == ["s"]
        assert await app.count(status=["blocked", Status.READY]) == 5
        assert await app.count(tags={"customer": "0"}) == 3
        assert await app.count(tags={"customer": "7"}) == 0
        assert (await app.find(workflow="send"))[0].tags == {"customer": "0"}


@pytest.mark.on_cluster
async def test_find_goes_on_behind_a_page_whatever_happens_meanwhile(app: App):
    echo = echo_on(app)
    async with app.client():
        await app.start_many(echo.options(id=f"e{n:04}").bind("x") for n in range(1_150))
        everything = [info.id for info in await app.find(limit=5_000)]
        assert sorted(everything) == [f"e{n:04}" for n in range(1_150)], "more than one page of the store"
        assert [info.id for info in await app.find(limit=1_100)] == everything[:1_100]
        paged: list[str] = []
        page = await app.find(limit=400)
        while page:
            paged += [info.id for info in page]
            await echo.start("newer than all that is still to come")
            page = await app.find(limit=400, after=page[-1].cursor)
        assert paged == everything


@pytest.mark.on_cluster
async def test_find_and_count_by_the_time_of_creation(place: Place):
    app = place.app()
    echo = echo_on(app)
    async with app.client():
        infos: list[Info] = []
        for n in range(3):
            infos.append(await (await echo.options(id=f"e{n}").start("x")).info())
            await asyncio.sleep(0.003)
        first, second, third = (info.created_at for info in infos)
        assert [info.id for info in await app.find(created_from=second)] == ["e2", "e1"], "its own moment is included"
        assert [info.id for info in await app.find(created_before=second)] == ["e0"], "and is not, as the end"
        assert [info.id for info in await app.find(created_from=second, created_before=third)] == ["e1"]
        assert await app.count(created_from=first, created_before=third) == 2
        assert await app.count(created_from=second + dt.timedelta(microseconds=1)) == 1
        paris = second.astimezone(dt.timezone(dt.timedelta(hours=1)))
        assert await app.count(created_from=paris) == 2


@pytest.mark.parametrize("tags", [{"customer": 1}, {1: "customer"}, {"": "x"}, {"a": "\0"}, {"a": "x" * 300}])
async def test_tags_that_nothing_can_have_are_refused_by_every_look(app: App, tags: Any):
    async with app.client():
        for look in (app.find, app.count):
            with pytest.raises(InvalidInput):
                await look(tags=tags)
        with pytest.raises(InvalidInput):
            app.completions(tags=tags)


async def test_requires_may_stand_at_the_workflow_or_the_start(app: App):
    @app.workflow(requires={"gpu"})
    async def render() -> None: ...

    async with app.client():
        assert (await (await render.start()).info()).requires == ("gpu",)
        assert (await (await render.options(requires={"eu", "gpu"}).start()).info()).requires == ("eu", "gpu")


async def test_an_unknown_execution_is_a_typed_error(app: App):
    async with app.client():
        handle = app.execution("nobody")
        for call in (handle.info, handle.journal, handle.attempts, handle.cancel, handle.hold, handle.retry):
            with pytest.raises(ExecutionNotFound, match="nobody"):
                await call()
        with pytest.raises(ExecutionNotFound):
            await handle.result(timeout=20)


# ---- results and failures -----------------------------------------------------------------------------------------


async def test_a_failure_comes_back_as_itself_with_the_remote_traceback(app: App):
    @app.workflow
    async def pay() -> None:
        raise Declined(402, card="1234") from ValueError("no funds")

    async with app:
        with pytest.raises(Declined, match="card 1234 declined with 402") as caught:
            await pay()
    assert (caught.value.code, caught.value.card) == (402, "1234")
    assert isinstance(caught.value.__cause__, ValueError)
    remote = caught.value.__cause__.__cause__
    assert isinstance(remote, ExecutionFailed)
    assert "test_executions.py" in remote.traceback


async def test_a_failure_that_cannot_be_imported_comes_back_as_execution_failed(app: App):
    class Local(Exception):
        pass

    @app.workflow
    async def pay() -> None:
        raise Local("only here")

    async with app:
        with pytest.raises(ExecutionFailed, match="Local: only here") as caught:
            await pay()
    assert caught.value.error_type.endswith("Local")
    assert 'raise Local("only here")' in caught.value.traceback


async def test_a_failed_step_fails_the_workflow_as_itself(app: App):
    @app.step
    async def charge() -> None:
        raise Declined(402, card="1234")

    @app.workflow
    async def pay() -> None:
        await charge()

    async with app:
        handle = await pay.start()
        for _ in range(2):
            with pytest.raises(Declined) as caught:
                await handle.result()
            assert caught.value.card == "1234"
        info = await handle.info()
    assert (info.status, info.cause, info.failures) == (Status.FAILED, "failed", 1)


async def test_a_result_may_be_waited_for_with_a_timeout_and_goes_on(app: App, gate: Gate):
    waiting = waiting_on(app, gate)
    async with app:
        handle = await waiting.start()
        with pytest.raises(TimeoutError, match="it goes on"):
            await handle.result(timeout="30ms")
        await gate.reached()
        assert (await handle.info()).status == Status.ACTIVE
        gate.open()
        assert await handle.result(timeout=20) == "waited"


async def test_a_result_that_is_there_needs_no_time(app: App, gate: Gate):
    waiting = waiting_on(app, gate)
    async with app:
        handle = await waiting.start()
        with pytest.raises(TimeoutError, match="it goes on"):
            await handle.result(timeout=0)
        gate.open()
        assert await handle.result() == "waited"
        assert await handle.result(timeout=0) == "waited"
        with pytest.raises(ExecutionNotFound):
            await app.execution("nobody").result(timeout=0)


async def test_many_may_wait_for_the_same_end(app: App, gate: Gate):
    waiting = waiting_on(app, gate)
    async with app:
        handle = await waiting.start()
        waits = [asyncio.create_task(waiting.execution(handle.id).result(timeout=20)) for _ in range(20)]
        await gate.reached()
        gate.open()
        assert await asyncio.gather(*waits) == ["waited"] * 20


async def test_ends_are_pushed_to_whoever_waits_in_any_process(
    place: Place, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    """With all polling put off for an hour, only a push can bring work and ends."""
    monkeypatch.setattr("outlast.client.waiters.POLL_S", 3_600)
    client, runner = place.app(), place.app()
    waiting = waiting_on(client, gate)
    waiting_on(runner, gate)
    async with client.client(), runner.worker(poll="1h"):
        handle = await waiting.start()
        waiter = asyncio.create_task(handle.result())
        await gate.reached()
        assert not waiter.done()
        gate.open()
        async with asyncio.timeout(20):
            assert await waiter == "waited"


# ---- retries and timeouts of the whole ----------------------------------------------------------------------------


class Half:
    """Entropy with a fixed jitter."""

    def __init__(self) -> None:
        self._ids = itertools.count()

    def new_id(self) -> str:
        return f"{next(self._ids):032x}"

    def random(self) -> float:
        return 0.5


async def test_a_failed_workflow_waits_for_its_retry_in_the_store(clocked: Place):
    ran: list[str] = []

    def make(which: str) -> tuple[App, Any]:
        app = clocked.app(entropy=Half())

        @app.workflow(retry=Retry(max_attempts=3, initial="1h", backoff=4.0, max_delay="3h", jitter=0.5))
        async def stubborn() -> str:
            ran.append(which)
            if len(ran) < 3:
                raise Declined(len(ran), card="x")
            return which

        return app, stubborn

    app, stubborn = make("first")
    async with app:
        handle = await stubborn.options(id="it").start()
        await status_is(handle, "blocked")
        info = await handle.info()
        assert (info.reason, info.cause, info.failures, info.attempts) == ("retry", "failed", 1, 1)
        assert info.wake_at == info.created_at + dt.timedelta(hours=0.75), "half of the jittered half is taken off"
    app, stubborn = make("second")
    async with app:
        await clocked.pass_time(app, "46m")
        await until(lambda: ran == ["first", "second"], "it was not tried again")
        await status_is(stubborn.execution("it"), "blocked")
        info = await stubborn.execution("it").info()
        assert info.wake_at is not None
        assert info.wake_at - info.created_at == dt.timedelta(minutes=46, hours=0.75 * 3), "grown, and capped"
        await clocked.pass_time(app, "3h")
        assert await stubborn.execution("it").result(timeout=20) == "second"
        outcomes = [attempt.outcome for attempt in await stubborn.execution("it").attempts()]
    assert outcomes == ["failed", "failed", "succeeded"]


async def test_a_workflow_fails_after_its_last_attempt(app: App):
    ran: list[int] = []

    @app.workflow(retry=Retry(max_attempts=3, initial=0))
    async def hopeless() -> None:
        ran.append(1)
        raise Declined(len(ran), card="x")

    async with app:
        handle = await hopeless.start()
        with pytest.raises(Declined, match="with 3"):
            await handle.result(timeout=20)
        info = await handle.info()
    assert (len(ran), info.attempts, info.failures) == (3, 3, 3)


async def test_a_fatal_error_ends_a_workflow_at_once(app: App):
    ran: list[int] = []

    @app.workflow(retry=Retry(max_attempts=3, initial=0, fatal=(Declined,)))
    async def hopeless() -> None:
        ran.append(1)
        raise Declined(1, card="x")

    async with app:
        with pytest.raises(Declined):
            await hopeless()
    assert len(ran) == 1


async def test_a_fatal_error_in_a_group_ends_a_workflow_at_once(app: App):
    ran: list[int] = []

    @app.step
    async def charge() -> None:
        ran.append(1)
        raise Declined(1, card="x")

    async def charge_in_a_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(charge())

    @app.workflow(retry=Retry(max_attempts=3, initial=0, fatal=(Declined,)))
    async def hopeless() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(charge_in_a_group())

    async with app:
        with pytest.raises(ExceptionGroup):
            await hopeless()
    assert len(ran) == 1


async def test_an_attempt_longer_than_its_timeout_is_stopped_on_a_live_worker(app: App):
    said: list[str] = []

    @app.step
    async def endless() -> None:
        said.append("begun")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            said.append("stopped")
            raise

    @app.workflow(timeout="500ms", retry=Retry(max_attempts=2, initial=0))
    async def slow() -> None:
        await endless()

    async with app:
        handle = await slow.start()
        with pytest.raises(ExecutionExpired, match="attempt_timeout"):
            await handle.result(timeout=20)
        info = await handle.info()
        outcomes = [attempt.outcome for attempt in await handle.attempts()]
    assert (info.status, info.failures) == (Status.EXPIRED, 2)
    assert outcomes == ["timed_out", "timed_out"]
    assert said == ["begun", "stopped"] * 2


async def test_suspension_does_not_count_against_the_timeout(clocked: Place):
    app = clocked.app()
    tries: list[int] = []

    @app.step(retry=Retry(max_attempts=2, initial="1h", max_delay="1h"))
    async def later() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise TimeoutError
        return "later"

    @app.workflow(timeout="10m")
    async def patient() -> str:
        return await later()

    async with app:
        handle = await patient.start()
        await status_is(handle, "suspended")
        await clocked.pass_time(app, "2h")
        assert await handle.result(timeout=20) == "later"


# ---- cancelling ---------------------------------------------------------------------------------------------------


async def test_what_does_not_run_is_cancelled_at_once(place: Place):
    app, client = place.app(), place.app()
    sleepy, echo = sleepy_on(app), echo_on(client)
    async with client.client():
        ready = await echo.start("x")
        blocked = await echo.options(delay="1h").start("x")
        for handle in (ready, blocked):
            await handle.cancel("not needed")
            assert (await handle.info()).status == Status.CANCELLED
            with pytest.raises(ExecutionCancelled, match="was cancelled: not needed"):
                await handle.result()
    async with app:
        suspended = await sleepy.start()
        await status_is(suspended, "suspended")
        await suspended.cancel()
        assert (await suspended.info()).status == Status.CANCELLED
        assert await app.count(status="cancelled") == 3


async def test_running_code_is_cancelled_at_its_await_and_its_finally_is_honoured(app: App, gate: Gate):
    said: list[str] = []

    @app.step
    async def wait() -> None:
        try:
            await gate()
        except asyncio.CancelledError:
            said.append("step stopped")
            raise

    @app.step
    async def clean(name: str) -> str:
        said.append(name)
        return name

    @app.workflow
    async def careful() -> None:
        try:
            await wait()
        except asyncio.CancelledError:
            said.append("cancelled")
            raise
        finally:
            said.append(await clean("cleaned"))

    async with app:
        handle = await careful.start()
        await gate.reached()
        await handle.cancel("changed my mind")
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)
        info = await handle.info()
        assert (info.status, info.cause, info.failures) == (Status.CANCELLED, "cancelled", 0)
        assert [(entry.name, entry.outcome) for entry in await handle.journal() if entry.op == "step"] == [
            ("wait", "cancelled"),
            ("clean", "succeeded"),
        ]
    assert sorted(said[:2]) == ["cancelled", "step stopped"]
    assert said[2:] == ["cleaned", "cleaned"]


async def test_running_def_code_is_cancelled_at_its_next_step(app: App, gate: Gate):
    said: list[str] = []

    @app.step
    async def wait() -> None:
        await gate()

    @app.step
    def effect(name: str) -> None:
        said.append(name)

    @app.workflow
    def careful() -> None:
        try:
            wait.sync()
            effect("never")
        finally:
            effect("cleaned")

    async with app:
        handle = await careful.start()
        await gate.reached()
        await handle.cancel()
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)
    assert said == ["cleaned"]


async def test_code_that_has_done_its_work_may_complete_in_spite_of_a_cancel(app: App, gate: Gate):
    waiting = waiting_on(app, gate)

    @app.workflow
    async def stubborn() -> str:
        try:
            return await waiting.fn()
        except asyncio.CancelledError:
            return "done all the same"

    async with app:
        handle = await stubborn.start()
        await gate.reached()
        await handle.cancel()
        assert await handle.result(timeout=20) == "done all the same"
        assert (await handle.info()).status == Status.SUCCEEDED


async def test_cancelling_twice_is_the_same(app: App, gate: Gate):
    echo, waiting = echo_on(app), waiting_on(app, gate)
    async with app:
        delayed = await echo.options(delay="1h").start("x")
        for _ in range(3):
            await delayed.cancel()
        running = await waiting.start()
        await gate.reached()
        await asyncio.gather(*(running.cancel() for _ in range(3)))
        await status_is(running, "cancelled")
        await running.cancel()
        seen = [completion async for completion in first(app, 2)]
    assert [completion.status for completion in seen] == ["cancelled", "cancelled"]


async def test_a_cancel_reaches_code_in_another_process(place: Place, gate: Gate):
    client, runner = place.app(), place.app()
    waiting = waiting_on(client, gate)
    waiting_on(runner, gate)
    async with client.client(), runner:
        handle = await waiting.start()
        await gate.reached()
        await handle.cancel()
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=20)


async def test_terminal_operations_answer_the_same_or_say_what_it_is(app: App):
    echo = echo_on(app)
    async with app:
        handle = await echo.start("x")
        await handle.result()
        for call in (handle.cancel, handle.retry, handle.hold):
            for _ in range(2):
                with pytest.raises(ExecutionRefused, match="succeeded"):
                    await call()
        assert (await handle.info()).status == Status.SUCCEEDED
        assert await handle.result() == "x"


# ---- holding ------------------------------------------------------------------------------------------------------


async def test_a_ready_execution_can_be_held_and_released(place: Place):
    client, app = place.app(), place.app()
    echo = echo_on(client)
    async with client.client():
        handle = await echo.options(id="it").start("x")
        await handle.hold()
        await handle.hold()
        info = await handle.info()
        assert (info.status, info.reason, info.held) == (Status.BLOCKED, "operator", True)
    ran: list[str] = []
    echo = echo_on(app, ran)
    async with app:
        assert await echo("other") == "other"
        assert ran == ["other"]
        await echo.execution("it").release()
        assert await echo.execution("it").result(timeout=20) == "x"
        assert not (await echo.execution("it").info()).held


async def test_a_delayed_execution_that_is_held_waits_for_both(clocked: Place):
    app = clocked.app()
    ran: list[str] = []
    echo = echo_on(app, ran)
    async with app:
        handle = await echo.options(delay="1h").start("x")
        await handle.hold()
        assert (await handle.info()).reason == "operator"
        await clocked.pass_time(app, "2h")
        assert ((await handle.info()).status, ran) == (Status.BLOCKED, [])
        await handle.release()
        assert await handle.result(timeout=20) == "x"

        handle = await echo.options(delay="1h").start("y")
        await handle.hold()
        await handle.release()
        assert (await handle.info()).reason == "delay"


async def test_a_suspended_execution_that_is_held_goes_on_when_released(clocked: Place):
    app = clocked.app()
    sleepy = sleepy_on(app)
    async with app:
        handle = await sleepy.start()
        await status_is(handle, "suspended")
        await handle.hold()
        await clocked.pass_time(app, "2h")
        info = await handle.info()
        assert (info.status, info.reason) == (Status.BLOCKED, "operator")
        await handle.release()
        assert await handle.result(timeout=20) == "later"


async def test_running_code_that_is_held_stops_where_it_next_waits(clocked: Place, gate: Gate):
    app = clocked.app()
    sleepy, waiting = sleepy_on(app), waiting_on(app, gate)

    @app.workflow
    async def both() -> str:
        return await waiting.fn() + await sleepy.fn()

    async with app:
        handle = await both.start()
        await gate.reached()
        await handle.hold()
        assert (await handle.info()).status == Status.ACTIVE
        gate.open()
        await status_is(handle, "suspended")
        await clocked.pass_time(app, "2h")
        assert (await handle.info()).reason == "operator"
        await handle.release()
        assert await handle.result(timeout=20) == "waitedlater"


async def test_a_release_that_is_repeated_answers_the_same(place: Place):
    client = place.app()
    echo = echo_on(client)
    async with client.client():
        handle = await echo.start("x")
        await handle.hold()
        for _ in range(2):
            await handle.release()
            assert (await handle.info()).status == Status.READY


async def test_what_is_held_can_be_cancelled(app: App):
    echo = echo_on(app)
    async with app:
        handle = await echo.options(delay="1h").start("x")
        await handle.hold()
        await handle.cancel()
        assert (await handle.info()).status == Status.CANCELLED


# ---- retrying what has ended --------------------------------------------------------------------------------------


async def test_a_cancelled_execution_can_be_retried_and_what_was_cut_short_runs_again(app: App):
    ran: list[str] = []
    gates = [Gate(), Gate()]

    @app.step
    async def effect(name: str) -> str:
        ran.append(name)
        if name == "slow":
            await gates[ran.count("slow") - 1]()
        return name

    @app.workflow
    async def careful() -> list[str]:
        done = [await effect("first")]
        try:
            done.append(await effect("slow"))
        finally:
            done.append(await effect("clean"))
        return done

    async with app:
        handle = await careful.start()
        await gates[0].reached()
        await handle.cancel()
        await status_is(handle, "cancelled")
        await handle.retry()
        gates[1].open()
        assert await handle.result(timeout=20) == ["first", "slow", "clean"]
        info = await handle.info()
        assert (info.status, info.generation, info.cancel_requested) == (Status.SUCCEEDED, 2, False)
        assert [completion.status async for completion in first(app, 2)] == ["cancelled", "succeeded"]
    assert ran == ["first", "slow", "clean", "slow"]


async def test_an_expired_execution_can_be_retried_with_a_new_deadline(clocked: Place):
    app = clocked.app()
    ran: list[str] = []
    gates = [Gate(), Gate()]

    @app.step
    async def effect(name: str) -> str:
        ran.append(name)
        if name == "slow":
            await gates[ran.count("slow") - 1]()
        return name

    @app.workflow(deadline="1h")
    async def slow() -> list[str]:
        return [await effect("first"), await effect("slow")]

    async with app:
        handle = await slow.start()
        await gates[0].reached()
        await clocked.pass_time(app, "2h")
        await status_is(handle, "expired")
        await handle.retry()
        info = await handle.info()
        assert info.deadline_at == info.created_at + dt.timedelta(hours=3)
        gates[1].open()
        assert await handle.result(timeout=20) == ["first", "slow"]
    assert ran == ["first", "slow", "slow"]


async def test_retrying_what_still_runs_is_refused(app: App, gate: Gate):
    waiting = waiting_on(app, gate)
    async with app:
        handle = await waiting.start()
        await gate.reached()
        with pytest.raises(ExecutionRefused, match="active"):
            await handle.retry()
        gate.open()
        assert await handle.result(timeout=20) == "waited"


# ---- the feed of ends ---------------------------------------------------------------------------------------------


async def first(app: App, count: int, **filters: Any) -> AsyncIterator[Any]:
    """So many completions of the feed, which itself never ends."""
    async with asyncio.timeout(20), aclosing(app.completions(**filters)) as feed:  # type: ignore[type-var]
        for _ in range(count):
            yield await anext(feed)


async def test_every_end_is_in_the_feed_once_and_in_order(app: App):
    echo = echo_on(app)

    @app.workflow
    async def fails() -> None:
        raise Declined(1, card="x")

    async with app:
        for n in range(3):
            await echo.options(id=f"e{n}", tags={"n": str(n)}).start(str(n))
            await echo.execution(f"e{n}").result(timeout=20)
        await status_is(await fails.options(id="f").start(), "failed")
        seen = [completion async for completion in first(app, 4)]
        tagged = [completion async for completion in first(app, 1, tags={"n": "1"})]
    assert [(c.execution_id, c.status) for c in seen] == [
        ("e0", "succeeded"),
        ("e1", "succeeded"),
        ("e2", "succeeded"),
        ("f", "failed"),
    ]
    assert [c.workflow for c in seen] == ["echo"] * 3 + ["fails"]
    assert [c.execution_id for c in tagged] == ["e1"]
    assert seen[1].tags == {"n": "1"}


async def test_what_ended_before_another_began_stands_before_it_in_the_feed_however_fast(app: App):
    echo, names = echo_on(app), [f"e{n}" for n in range(50)]
    async with app:
        for name in names:  # several within a millisecond, in several partitions
            await (await echo.options(id=name).start("x")).result(timeout=20)
        assert [completion.execution_id async for completion in first(app, 50)] == names


async def test_the_feed_goes_on_from_a_cursor_after_a_restart(place: Place):
    app = place.app()
    echo = echo_on(app)
    async with app:
        for n in range(4):
            await (await echo.options(id=f"e{n}").start("x")).result(timeout=20)
        seen = [completion async for completion in first(app, 2)]
    again = place.app()
    echo = echo_on(again)
    async with again:
        await (await echo.options(id="e4").start("x")).result(timeout=20)
        rest = [completion async for completion in first(again, 3, after=seen[-1].cursor)]
    assert [c.execution_id for c in (*seen, *rest)] == ["e0", "e1", "e2", "e3", "e4"]


async def test_the_feed_brings_ends_as_they_come(app: App):
    echo = echo_on(app)
    seen: list[str] = []
    async with app:

        async def follow() -> None:
            async for completion in first(app, 5):
                seen.append(completion.execution_id)

        following = asyncio.create_task(follow())
        for n in range(5):
            await echo.options(id=f"e{n}").start("x")
            await echo.execution(f"e{n}").result(timeout=20)
            # One after the other: what comes while the partitions are read may be read in any order.
            await until(lambda n=n: len(seen) > n, "the feed brings it")
        await following
    assert seen == [f"e{n}" for n in range(5)]


async def test_purge_deletes_what_ended_long_ago_and_nothing_else(clocked: Place):
    app = clocked.app()
    echo = echo_on(app)
    async with app:
        await (await echo.options(id="old").start("x")).result()
        delayed = await echo.options(id="open", delay="60d").start("x")
        await clocked.pass_time(app, "31d")
        await (await echo.options(id="new").start("x")).result(timeout=20)
        assert await app.purge(older_than="30d") == 1
        assert {info.id for info in await app.find()} == {"open", "new"}
        assert (await delayed.info()).status == Status.BLOCKED
