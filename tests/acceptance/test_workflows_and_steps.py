"""Workflows and steps, as a person writes them: colours, names, retries, concurrency."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

import outlast
from outlast import App, CodecError, LimitExceeded, Retry, Status, WrongPlace
from outlast.testing import harness
from tests.acceptance.conftest import Gate, Place, status_is, until

pytestmark = [pytest.mark.on_cluster, pytest.mark.on_carried]

AT_ONCE = Retry(max_attempts=3, initial=0, jitter=0)


class Flaky(Exception):
    """Trying again may help."""


class Declined(Exception):
    """Trying again does not help."""


# ---- colours ------------------------------------------------------------------------------------------------------


async def test_an_async_workflow_awaits_async_steps(app: App):
    @app.step
    async def double(n: int) -> int:
        return n * 2

    @app.workflow
    async def quadruple(n: int) -> int:
        return await double(await double(n))

    async with app:
        assert await quadruple(3) == 12
        assert await quadruple.aio(3) == 12


async def test_a_def_workflow_calls_def_steps_in_threads(app: App):
    threads: dict[str, int] = {}

    @app.step
    def parse(line: str) -> int:
        threads["step"] = threading.get_ident()
        return int(line)

    @app.workflow
    def total(lines: list[str]) -> int:
        threads["workflow"] = threading.get_ident()
        return sum(parse(line) for line in lines)

    async with app:
        assert await total.aio(["1", "2", "3"]) == 6
    assert threading.get_ident() not in threads.values()


async def test_an_async_workflow_awaits_def_steps_by_aio(app: App):
    @app.step
    def parse(line: str) -> int:
        time.sleep(0.01)  # blocks a thread, not the loop
        return int(line)

    @app.workflow
    async def total(lines: list[str]) -> int:
        return sum(await asyncio.gather(*(parse.aio(line) for line in lines)))

    async with app:
        assert await total(["1", "2", "3"]) == 6


async def test_a_def_workflow_calls_async_steps_by_sync(app: App):
    @app.step
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return n * 2

    @app.workflow
    def quadruple(n: int) -> int:
        return double.sync(double.sync(n))

    async with app:
        assert await quadruple.aio(3) == 12


async def test_a_def_step_that_would_block_an_async_workflow_is_refused(app: App):
    @app.step
    def parse(line: str) -> int:
        return int(line)

    @app.workflow
    async def total() -> int:
        return parse("1")

    async with app:
        with pytest.raises(WrongPlace, match=r"await parse\.aio"):
            await total()
        assert await app.count(status="failed") == 1


async def test_an_async_step_in_a_def_workflow_is_refused_unless_by_sync(app: App):
    @app.step
    async def double(n: int) -> int:
        return n * 2

    @app.workflow
    def forgot() -> int:
        return asyncio.run(double(1))

    async with app:
        with pytest.raises(WrongPlace, match=r"double\.sync"):
            await forgot.aio()


# ---- what can be a step -------------------------------------------------------------------------------------------


async def test_decorators_work_with_and_without_arguments(app: App):
    @app.step
    async def plain() -> str:
        return "plain"

    @app.step()
    async def called() -> str:
        return "called"

    @app.step(name="other-name", timeout="5s")
    async def named() -> str:
        return "named"

    @app.workflow()
    async def first() -> list[str]:
        return [await plain(), await called(), await named()]

    @app.workflow(name="second", version="2")
    async def whatever() -> list[str]:
        return await first.fn()

    async with app:
        assert await first() == ["plain", "called", "named"]
        handle = await whatever.start()
        assert await handle.result() == ["plain", "called", "named"]
        info = await handle.info()
        assert (info.workflow, info.version) == ("second", "2")
        assert [entry.name for entry in await handle.journal()] == ["plain", "called", "other-name"]


async def test_steps_may_be_methods(app: App):
    class Till:
        def __init__(self, currency: str) -> None:
            self.currency = currency

        @app.step
        async def ring(self, amount: int) -> str:
            return f"{amount} {self.currency}"

        @app.step
        def count(self, notes: list[int]) -> str:
            return f"{sum(notes)} {self.currency}"

    euros, francs = Till("EUR"), Till("CHF")

    @app.workflow
    async def day() -> list[str]:
        return [await euros.ring(1), await francs.ring(2), await euros.count.aio([3, 4])]

    async with app:
        handle = await day.start()
        assert await handle.result() == ["1 EUR", "2 CHF", "7 EUR"]
        assert [entry.key for entry in await handle.journal()] == [
            ("", "Till.ring", 1),
            ("", "Till.ring", 2),
            ("", "Till.count", 1),
        ]


async def test_any_callable_can_be_a_step(app: App):
    class Rates:
        async def get(self, currency: str) -> float:
            return {"EUR": 1.1}[currency]

    rates = Rates()
    add = functools.partial(lambda a, b: a + b, 1)

    @app.workflow
    async def convert() -> list[float]:
        rate = await app.step(rates.get, name="fx")("EUR")
        length = await app.step(len).aio([1, 2])
        return [rate, length, await app.step(add, name="add").aio(2)]

    async with app:
        handle = await convert.start()
        assert await handle.result() == [1.1, 2, 3]
        assert [entry.name for entry in await handle.journal()] == ["fx", "len", "add"]


async def test_options_make_another_step_and_leave_the_first(app: App):
    calls: list[str] = []

    @app.step(retry=AT_ONCE)
    async def charge(amount: int) -> int:
        calls.append("try")
        raise Flaky

    @app.workflow
    async def pay() -> str:
        try:
            await charge.options(name="charge-once", retry=None)(1)
        except Flaky:
            return str(len(calls))
        return "never"

    async with app:
        handle = await pay.start()
        assert await handle.result() == "1"
        [entry] = await handle.journal()
        assert (entry.name, entry.outcome, entry.tries) == ("charge-once", "failed", 1)
    assert charge.name == "charge"


async def test_fn_is_the_function_itself(app: App):
    async def original(n: int) -> int:
        return n

    step, workflow = app.step(original), app.workflow(original, name="w")
    assert step.fn is original
    assert workflow.fn is original
    assert await step.fn(3) == 3


async def test_a_step_outside_of_a_workflow_is_a_plain_call(app: App):
    @app.step
    async def double(n: int) -> int:
        return n * 2

    @app.step
    def parse(line: str) -> int:
        return int(line)

    assert await double(2) == 4
    assert parse("3") == 3
    assert await parse.aio("3") == 3
    async with app:
        assert await double(2) == 4
        assert await app.count() == 0


async def test_a_step_inside_a_step_is_a_plain_call(app: App):
    @app.step
    async def inner() -> str:
        return "inner"

    @app.step
    def inner_def() -> str:
        return "inner def"

    @app.step
    async def outer() -> list[str]:
        return [await inner(), await inner_def.aio()]

    @app.step
    def outer_def() -> str:
        return inner_def()

    @app.workflow
    async def nested() -> list[str]:
        return [*await outer(), await outer_def.aio()]

    async with app:
        handle = await nested.start()
        assert await handle.result() == ["inner", "inner def", "inner def"]
        assert [entry.name for entry in await handle.journal()] == ["outer", "outer_def"]


async def test_steps_see_their_arguments_as_they_are(app: App):
    """A step's arguments are not stored: they may be anything."""
    seen: list[object] = []
    lock = threading.Lock()

    @app.step
    async def look(thing: object) -> None:
        seen.append(thing)

    @app.workflow
    async def pass_on() -> None:
        await look(lock)

    async with app:
        await pass_on()
    assert seen == [lock]


# ---- failures and retries of a step -------------------------------------------------------------------------------


async def test_a_step_is_tried_until_it_succeeds(app: App):
    tries: list[float] = []

    @app.step(retry=Retry(max_attempts=5, initial="10ms", backoff=3.0, jitter=0))
    async def flaky() -> int:
        tries.append(time.monotonic())
        if len(tries) < 4:
            raise Flaky
        return len(tries)

    @app.workflow
    async def persistent() -> int:
        return await flaky()

    async with app:
        handle = await persistent.start()
        assert await handle.result() == 4
        [entry] = await handle.journal()
        assert (entry.outcome, entry.tries) == ("succeeded", 4)
        assert (await handle.info()).attempts == 1, "a step's tries are not the workflow's attempts"
    waits = [after - before for before, after in itertools.pairwise(tries)]
    assert waits[0] >= 0.01
    assert waits[1] >= 0.03
    assert waits[2] >= 0.09


async def test_a_step_that_fails_for_good_raises_its_own_error(app: App):
    tries: list[int] = []

    @app.step(retry=AT_ONCE)
    async def hopeless() -> None:
        tries.append(1)
        raise Flaky("still not")

    @app.workflow
    async def patient() -> str:
        try:
            await hopeless()
        except Flaky as error:
            return str(error)
        return "never"

    async with app:
        assert await patient() == "still not"
    assert len(tries) == 3


async def test_a_fatal_error_is_not_tried_again(app: App):
    tries: list[int] = []

    @app.step(retry=Retry(max_attempts=5, initial=0, fatal=(Declined,)))
    async def charge() -> None:
        tries.append(1)
        raise Declined("no money")

    @app.workflow
    async def pay() -> None:
        await charge()

    async with app:
        with pytest.raises(Declined, match="no money"):
            await pay()
    assert len(tries) == 1


@pytest.mark.parametrize("fatal", [Declined("no money"), WrongPlace("not here")], ids=["theirs", "ours"])
async def test_a_fatal_error_in_a_group_is_not_tried_again(fatal: Exception, app: App):
    tries: list[int] = []

    @app.step(retry=Retry(max_attempts=5, initial=0, fatal=(Declined,)))
    async def charge() -> None:
        tries.append(1)
        raise ExceptionGroup("both", [Flaky(), ExceptionGroup("inner", [fatal])])

    @app.workflow
    async def pay() -> None:
        await charge()

    async with app:
        with pytest.raises(ExceptionGroup):
            await pay()
    assert len(tries) == 1


async def test_a_step_without_a_retry_is_tried_once(app: App):
    tries: list[int] = []

    @app.step
    async def once() -> None:
        tries.append(1)
        raise Flaky

    @app.workflow
    async def single() -> None:
        await once()

    async with app:
        with pytest.raises(Flaky):
            await single()
    assert len(tries) == 1


async def test_a_step_longer_than_its_timeout_is_cancelled_and_tried_again(app: App):
    tries: list[str] = []

    # More tries than one: the last ones may take too long as well, where the machine stalls.
    @app.step(timeout="30ms", retry=Retry(max_attempts=20, initial=0))
    async def slow_at_first() -> str:
        tries.append("begun")
        try:
            await asyncio.sleep(0 if len(tries) > 1 else 30)
        except asyncio.CancelledError:
            tries.append("cancelled")
            raise
        return "done"

    @app.workflow
    async def impatient() -> str:
        return await slow_at_first()

    async with app:
        assert await impatient() == "done"
    assert tries[:3] == ["begun", "cancelled", "begun"]
    assert tries == ["begun", "cancelled"] * (len(tries) // 2) + ["begun"]


async def test_a_timeout_reaches_the_code_as_a_timeout_error(app: App):
    given_up = threading.Event()

    @app.step(timeout="20ms")
    async def slow() -> None:
        await asyncio.sleep(30)

    @app.step(timeout="20ms")
    def slow_def() -> None:
        given_up.wait(30)

    @app.workflow
    async def impatient() -> list[str]:
        said: list[str] = []
        for step in (slow, slow_def):
            try:
                await step.aio()
            except TimeoutError as error:
                said.append(str(error))
        return said

    async with app:
        assert await impatient() == [
            "step 'slow' took longer than 0.02 s",
            "step 'slow_def' took longer than 0.02 s",
        ]
        given_up.set()


async def test_a_timeout_of_the_steps_own_is_not_taken_for_ours(app: App):
    @app.step(timeout="10s")
    async def connect() -> None:
        raise TimeoutError("no answer")

    @app.workflow
    async def call() -> None:
        await connect()

    async with app:
        with pytest.raises(TimeoutError, match="no answer"):
            await call()


async def test_a_result_that_cannot_be_stored_fails_the_step(app: App):
    @app.step(retry=AT_ONCE)
    async def opens() -> object:
        return threading.Lock()

    @app.step
    async def long() -> str:
        return "x" * 5_000_000

    @app.workflow
    async def returns() -> list[str]:
        said: list[str] = []
        for step, error in ((opens, CodecError), (long, LimitExceeded)):
            try:
                await step()
            except error as caught:
                said.append(type(caught).__name__)
        return said

    async with app:
        assert await returns() == ["CodecError", "LimitExceeded"]


async def test_a_long_backoff_suspends_and_frees_the_worker(clocked: Place):
    app = clocked.app()
    tries: list[int] = []

    @app.step(retry=Retry(max_attempts=3, initial="1h", backoff=2.0, max_delay="1d", jitter=0))
    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise Flaky
        return len(tries)

    @app.workflow
    async def patient() -> int:
        return await flaky()

    @app.workflow
    async def other() -> str:
        return "there is room"

    async with app.worker(concurrency=1) as worker:
        handle = await patient.start()
        await status_is(handle, "suspended")
        info = await handle.info()
        assert info.reason == "retry"
        assert info.wake_at is not None
        assert (info.wake_at - info.created_at).total_seconds() == 3600
        assert await other() == "there is room"
        await until(lambda: worker.busy == 0, "somebody holds the worker")  # a result comes a moment before its room

        await clocked.pass_time(app, "59m")
        assert ((await handle.info()).status, len(tries)) == (Status.SUSPENDED, 1)
        await clocked.pass_time(app, "2m")
        await status_is(handle, "suspended")
        assert len(tries) == 2
        await clocked.pass_time(app, "2h")
        assert await handle.result(timeout=20) == 3
        info = await handle.info()
        assert (info.attempts, info.failures) == (1, 0), "suspension consumes nothing"


async def test_a_long_backoff_outlives_the_process(clocked: Place):
    tries: list[str] = []

    def make(which: str):
        app = clocked.app()

        @app.step(retry=Retry(max_attempts=2, initial="1d", max_delay="1d", jitter=0))
        async def flaky() -> str:
            tries.append(which)
            if len(tries) == 1:
                raise Flaky
            return which

        @app.workflow
        async def patient() -> str:
            return await flaky()

        return app, patient

    first, patient = make("first")
    async with first:
        handle = await patient.options(id="it").start()
        await status_is(handle, "suspended")
    second, patient = make("second")
    async with second:
        await clocked.pass_time(second, "25h")
        assert await patient.execution("it").result(timeout=20) == "second"
    assert tries == ["first", "second"]


async def test_a_sibling_that_runs_keeps_a_backing_off_step_company(clocked: Place, gate: Gate):
    """While other steps of the code run, it is not suspended; when only the backoff is left, it is."""
    app = clocked.app()
    tries: list[int] = []

    @app.step(retry=Retry(max_attempts=2, initial="1h", max_delay="1h", jitter=0))
    async def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise Flaky
        return "in the end"

    @app.step
    async def slow() -> str:
        await gate()
        return "slow"

    @app.workflow
    async def both() -> tuple[str, str]:
        return await asyncio.gather(flaky(), slow())

    async with app:
        handle = await both.start()
        await gate.reached()
        assert (await handle.info()).status == Status.ACTIVE
        gate.open()
        await status_is(handle, "suspended")
        await clocked.pass_time(app, "61m")
        assert await handle.result(timeout=20) == ("in the end", "slow")
        slow_entries = [entry for entry in await handle.journal() if entry.name == "slow"]
        assert len(slow_entries) == 1


# ---- concurrency --------------------------------------------------------------------------------------------------


def nap_step(app: App, ran: list[str]):
    @app.step
    async def nap(name: str, seconds: float) -> str:
        ran.append(name)
        await asyncio.sleep(seconds)
        return name

    return nap


async def test_gather_runs_steps_side_by_side_and_keeps_their_order(app: App):
    together = asyncio.Barrier(5)

    @app.step
    async def part(n: int) -> int:
        async with asyncio.timeout(20):
            await together.wait()
        return n

    @app.workflow
    async def spread() -> list[int]:
        return await asyncio.gather(*(part(n) for n in range(5)))

    async with app:
        assert await spread() == [0, 1, 2, 3, 4]


async def test_a_task_group_cancels_the_siblings_of_a_failure(app: App):
    ended: list[str] = []
    sleeping = asyncio.Event()

    @app.step
    async def fails() -> None:
        await sleeping.wait()
        raise Declined("no")

    @app.step
    async def sleeps() -> None:
        sleeping.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @app.step
    async def after() -> str:
        return "after"

    @app.workflow
    async def group() -> str:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fails())
                tasks.create_task(sleeps())
        except* Declined:
            pass
        return await after()

    async with app:
        handle = await group.start()
        assert await handle.result(timeout=20) == "after"
        outcomes = {entry.name: entry.outcome for entry in await handle.journal()}
    assert outcomes == {"fails": "failed", "sleeps": "cancelled", "after": "succeeded"}
    assert ended == ["cancelled"]


async def test_as_completed_gives_the_quickest_first(app: App):
    nap = nap_step(app, [])

    @app.workflow
    async def race() -> list[str]:
        naps = [nap("slow", 0.1), nap("quick", 0.0), nap("middle", 0.05)]
        return [await done for done in asyncio.as_completed(naps)]

    async with app:
        assert await race() == ["quick", "middle", "slow"]


async def test_wait_returns_the_first_and_leaves_the_rest_running(app: App):
    nap = nap_step(app, [])

    @app.workflow
    async def first_then_all() -> list[str]:
        tasks = [asyncio.create_task(nap(*args)) for args in (("slow", 0.05), ("quick", 0.0))]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        names = [task.result() for task in done]
        return [*names, *await asyncio.gather(*rest)]

    async with app:
        assert await first_then_all() == ["quick", "slow"]


async def test_wait_for_and_timeout_give_a_step_up(app: App):
    nap = nap_step(app, [])

    @app.workflow
    async def impatient() -> list[str]:
        said: list[str] = []
        try:
            await asyncio.wait_for(nap("wait_for", 30), timeout=0.02)
        except TimeoutError:
            said.append("wait_for")
        try:
            async with asyncio.timeout(0.02):
                await nap("timeout", 30)
        except TimeoutError:
            said.append("timeout")
        async with asyncio.timeout(30):
            said.append(await nap("in time", 0))
        return said

    async with app:
        handle = await impatient.start()
        assert await handle.result(timeout=20) == ["wait_for", "timeout", "in time"]
        outcomes = [(entry.op, entry.outcome) for entry in await handle.journal()]
    struck, given_up = ("timer", "succeeded"), ("step", "cancelled")
    assert outcomes == [struck, given_up, struck, given_up, ("step", "succeeded")]


async def test_what_is_given_up_before_its_first_turn_never_begins(app: App):
    begun: list[str] = []

    @app.step
    async def charge(where: str) -> None:
        begun.append(where)

    @app.workflow
    async def child(where: str) -> None:
        begun.append(where)

    @app.workflow
    async def hasty() -> None:
        for start in (charge, child):
            with suppress(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(start("group"))
                    raise ValueError("body")
            task = asyncio.create_task(start("task"))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(start("wait_for"), 0)
            start("nobody").close()
        await charge("last")

    async with app:
        handle = await hasty.start()
        await handle.result(timeout=20)
        assert begun == ["last"]
        assert [entry.key for entry in await handle.journal()] == [("", "charge", 5)]  # keys are fixed at the call
        assert await app.count(workflow="child") == 0


async def test_a_forgotten_await_is_warned_of_by_the_name_of_the_call(recwarn: pytest.WarningsRecorder):
    app = App(token_keys="k1:bm90LWEtc2VjcmV0LW9ubHktYS1zYW1wbGU")

    @app.step
    async def charge() -> None:
        pass

    @app.step
    def parse() -> None:
        pass

    @app.workflow
    async def ship() -> None:
        pass

    @app.workflow
    async def forgets() -> None:
        charge()  # pyright: ignore[reportUnusedCoroutine]
        charge.options(name="fee")()  # pyright: ignore[reportUnusedCoroutine]
        parse.aio()  # pyright: ignore[reportUnusedCoroutine]
        ship()  # pyright: ignore[reportUnusedCoroutine]
        outlast.sleep("1h")  # pyright: ignore[reportUnusedCoroutine]
        outlast.sleep_until(outlast.now())  # pyright: ignore[reportUnusedCoroutine]
        outlast.receive("word")  # pyright: ignore[reportUnusedCoroutine]
        outlast.interrupted()  # pyright: ignore[reportUnusedCoroutine]
        outlast.deferred("approval").token()  # pyright: ignore[reportUnusedCoroutine]

    async with harness(app):
        await forgets()
        ship()  # pyright: ignore[reportUnusedCoroutine]
        charge()  # pyright: ignore[reportUnusedCoroutine]
    names = [str(one.message).split("'")[1] for one in recwarn if "was never awaited" in str(one.message)]
    waits = ["sleep", "sleep_until", "receive", "interrupted", "token"]
    assert names == ["step charge", "step fee", "step parse", "workflow ship", *waits, "workflow ship", "step charge"]


async def test_a_library_may_ask_the_loop_for_its_task_factory(app: App):
    @app.workflow
    async def asks() -> bool:
        return asyncio.get_running_loop().get_task_factory() is None

    async with app:
        assert await asks()


async def test_steps_are_made_by_the_factory_that_somebody_gave_the_loop(app: App):
    made: set[asyncio.Task[Any]] = set()

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **options)
        made.add(task)
        return task

    @app.step
    async def charge() -> bool:
        task = asyncio.current_task()
        assert task is not None
        assert task.get_name() == "outlast charge"
        return task in made

    @app.workflow
    async def pays() -> bool:
        return await charge()

    async with app:
        assert not await pays()
        asyncio.get_running_loop().set_task_factory(factory)
        assert await pays()


async def test_loops_and_conditionals_over_steps(app: App):
    @app.step
    async def halve(n: int) -> int:
        return n // 2

    @app.step
    async def triple(n: int) -> int:
        return 3 * n + 1

    @app.workflow
    async def collatz(n: int) -> int:
        count = 0
        while n != 1:
            n = await (halve(n) if n % 2 == 0 else triple(n))
            count += 1
        return count

    async with app:
        handle = await collatz.start(6)
        assert await handle.result() == 8
        numbered = [(entry.name, entry.occurrence) for entry in await handle.journal()]
    assert numbered[:4] == [("halve", 1), ("triple", 1), ("halve", 2), ("triple", 2)]


async def test_branches_that_call_the_same_step_stay_apart(app: App):
    nap = nap_step(app, [])

    @app.workflow
    async def five() -> list[list[str]]:
        async def branch(b: int) -> list[str]:
            return [await nap(f"{b}.{n}", 0.01 * ((b * 3 + n * 7) % 4)) for n in range(4)]

        return await asyncio.gather(*(branch(b) for b in range(5)))

    async with app:
        handle = await five.start()
        assert await handle.result() == [[f"{b}.{n}" for n in range(4)] for b in range(5)]
        keys = [entry.key for entry in await handle.journal()]
    assert len(set(keys)) == 20
    assert {scope for scope, _, _ in keys} == {"1.", "2.", "3.", "4.", "5."}


# ---- values -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Order:
    id: str
    lines: list[int] = dataclasses.field(default_factory=list)


async def test_typed_arguments_and_results_arrive_as_their_types(app: App):
    @app.step
    async def add_line(order: Order, line: int) -> Order:
        return dataclasses.replace(order, lines=[*order.lines, line])

    @app.workflow
    async def fill(order: Order, *, line: int = 7) -> Order:
        assert isinstance(order, Order)
        return await add_line(order, line)

    async with app:
        handle = await fill.options(id="it").start(Order("a"))
        assert await handle.result() == Order("a", [7])
        assert await fill(Order("b"), line=8) == Order("b", [8])
        assert await fill.execution("it").result() == Order("a", [7])
        assert await app.execution("it").result() == {"id": "a", "lines": [7]}, "an untyped handle gives plain JSON"


async def test_code_that_belongs_into_a_step_is_refused_in_a_workflow(app: App):
    @app.workflow
    async def impatient() -> str:
        return await asyncio.to_thread(str, 3)

    async with app:
        with pytest.raises(WrongPlace, match="move it into a step"):
            await impatient()
