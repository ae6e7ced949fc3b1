"""What a worker says of its work: one line for each execution that ends badly, in the process that ended it."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast import App, Retry
from outlast.errors import CorruptState, ExecutionExpired, FlowFailed
from outlast.model.status import Status
from outlast.observe.events import ExecutionEnded
from outlast.observe.log import LogObserver
from outlast.runtime import local_holder, unreceived
from tests.acceptance.conftest import Gate, Place, status_is
from tests.waiting import until

HERE = Path(__file__)


class CardDeclined(Exception):
    pass


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def infos_of(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    return [line for line in lines if line.startswith(about)]


async def die(app: App) -> None:
    opened, app._opened = app._opened, None
    assert opened is not None
    await opened.abandon()


def place_of(mark: str, function: str) -> str:
    """The line of this file that ends with a mark, as the log names it."""
    lines = HERE.read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return f"{HERE.relative_to(Path.cwd())}:{number} in {function}"


async def test_a_failed_execution_leaves_one_line_with_the_error_and_where_it_was_raised(
    app: App, caplog: pytest.LogCaptureFixture
):
    @app.step
    async def charge() -> None:
        raise CardDeclined("no funds\nat all")  # declined here

    @app.workflow
    async def checkout() -> None:
        await charge()

    async with app:
        handle = await checkout.options(id="order-42").start()
        with pytest.raises(CardDeclined):
            await handle.result("20s")
    where = place_of("declined here", "charge")
    [line] = warnings_of(caplog)
    assert line == f"execution order-42 of workflow checkout failed: CardDeclined: no funds at all ({where})"
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    said = {name: record.__dict__[name] for name in ("name", "execution", "workflow", "attempt")}
    assert said == {"name": "outlast.executions", "execution": "order-42", "workflow": "checkout", "attempt": 1}


async def test_the_line_is_the_users_also_if_a_library_raised_the_error(app: App, caplog: pytest.LogCaptureFixture):
    @app.workflow
    def parses(text: str) -> Any:
        return json.loads(text)  # parsed here

    async with app:
        handle = await parses.options(id="it").start("{")
        with pytest.raises(json.JSONDecodeError):
            await handle.result("20s")
    [line] = warnings_of(caplog)
    assert line.startswith("execution it of workflow parses failed: JSONDecodeError: Expecting property name")
    assert line.endswith(f"({place_of('parsed here', 'parses')})")


async def test_a_failed_child_and_its_parent_name_the_line_of_the_child(app: App, caplog: pytest.LogCaptureFixture):
    @app.workflow
    async def ship() -> None:
        raise LookupError("no such address")  # not shipped here

    @app.workflow
    async def checkout() -> None:
        await ship()

    async with app:
        handle = await checkout.options(id="it").start()
        with pytest.raises(LookupError):
            await handle.result("20s")
    child, parent = warnings_of(caplog)
    where = place_of("not shipped here", "ship")
    assert child == f"execution it/ship.1 of workflow ship failed: LookupError: no such address ({where})"
    assert parent == f"execution it of workflow checkout failed: LookupError: no such address ({where})"


async def test_ends_that_are_no_failure_leave_no_line(app: App, caplog: pytest.LogCaptureFixture):
    @app.workflow
    async def sleeps(duration: str) -> None:
        await outlast.sleep(duration)

    async with app:
        await (await sleeps.start("0s")).result("20s")
        handle = await sleeps.start("1h")
        await handle.cancel("not needed")
        await status_is(handle, "cancelled")
    assert warnings_of(caplog) == []


async def test_a_failure_that_is_retried_leaves_a_warning_only_at_the_end(app: App, caplog: pytest.LogCaptureFixture):
    tries: list[int] = []

    @app.workflow(retry=Retry(max_attempts=3, initial=0, jitter=0))
    async def fails() -> None:
        tries.append(1)
        raise CardDeclined(f"try {len(tries)}")

    async with app:
        handle = await fails.options(id="it").start()
        with pytest.raises(CardDeclined):
            await handle.result("20s")
    [line] = warnings_of(caplog)
    assert line.startswith("execution it of workflow fails failed: CardDeclined: try 3 (")


async def test_an_attempt_that_its_own_worker_times_out_leaves_a_line(app: App, caplog: pytest.LogCaptureFixture):
    @app.step
    async def endless() -> None:
        await asyncio.sleep(600)

    @app.workflow(timeout="100ms")
    async def slow() -> None:
        await endless()

    async with app:
        handle = await slow.options(id="it").start()
        with pytest.raises(ExecutionExpired):
            await handle.result("20s")
    assert warnings_of(caplog) == ["execution it of workflow slow expired: attempt 1 took longer than its timeout"]


async def test_a_deadline_that_passes_leaves_a_line(clocked: Place, caplog: pytest.LogCaptureFixture):
    app = clocked.app()

    @app.workflow(deadline="1h")
    async def waits() -> None:
        await outlast.receive("never")

    async with app:
        handle = await waits.options(id="it").start()
        await status_is(handle, "suspended")
        await clocked.pass_time(app, "2h")
        await status_is(handle, "expired")
    assert warnings_of(caplog) == ["execution it of workflow waits expired: its deadline passed"]


async def test_an_execution_that_expires_with_an_error_names_both(clocked: Place, caplog: pytest.LogCaptureFixture):
    app = clocked.app()

    @app.step
    async def give_back() -> None: ...

    @app.workflow(deadline="1h")
    async def waits() -> None:
        await outlast.compensate(give_back)
        try:
            await outlast.receive("never")
        except asyncio.CancelledError:
            raise CardDeclined("too late") from None  # too late here

    async with app:
        handle = await waits.options(id="it").start()
        await status_is(handle, "suspended")
        await clocked.pass_time(app, "2h")
        await status_is(handle, "expired")
    [line] = warnings_of(caplog)
    error = f"CardDeclined: too late ({place_of('too late here', 'waits')})"
    assert line == f"execution it of workflow waits expired: its deadline passed, and its code ended with {error}"


async def test_an_execution_whose_workers_all_died_leaves_a_line_where_it_expired(
    clocked: Place, caplog: pytest.LogCaptureFixture
):
    for life in range(5):
        app, gate = clocked.app(), Gate()

        @app.step
        async def deadly(gate: Gate = gate) -> None:
            await gate()

        @app.workflow(name="order")
        async def order(deadly: Any = deadly) -> None:
            await deadly()

        async with app:
            if life == 0:
                await order.options(id="it").start()
            else:
                await clocked.pass_time(app, "2d")
            await gate.reached()
            await die(app)
    caplog.clear()
    last = clocked.app()
    async with last:
        await clocked.pass_time(last, "2d")
        assert (await last.execution("it").info()).status == "expired"
    [line] = warnings_of(caplog)
    why = "its worker died or lost its lease too often without any progress (5 times in all)"
    assert line == f"execution it of workflow order expired: {why}"


async def test_an_execution_that_reached_the_bound_of_its_life_says_so(caplog: pytest.LogCaptureFixture):
    log = LogObserver()
    log.hear(
        ExecutionEnded(
            namespace="default",
            execution="it",
            workflow="order",
            version="1",
            status=Status.EXPIRED,
            cause="crashes_in_life",
            attempt=100,
            crashes=100,
            error=None,
        )
    )
    log.close()
    why = "its worker died or lost its lease 100 times in all, which is its bound"
    assert warnings_of(caplog) == [f"execution it of workflow order expired: {why}"]


async def test_a_failed_execution_stays_failed_if_what_it_never_received_cannot_be_read(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """It has ended by then: a line says that they could not be read, and the attempt is not taken for broken."""

    @app.workflow
    async def deaf() -> None:
        await outlast.receive("go")
        raise CardDeclined("no funds")

    async with app:
        handle = await deaf.options(id="it", send={"note": 1}).start()
        await status_is(handle, "suspended")
        opened: Any = app._opened
        store, asked = opened._engine.store, list[str]()

        async def scan(kind: str, *args: Any, **options: Any) -> list[Any]:
            asked.append(kind)
            raise CorruptState("a record that cannot be read")

        await handle.send("go", None)
        monkeypatch.setattr(local_holder, "warn_of_unreceived", partial(_unread, scan, monkeypatch, store))
        with pytest.raises(CardDeclined):
            await handle.result(timeout=20)
        await until(lambda: "event" in asked, "nobody looked for what it never received")
        monkeypatch.undo()
    assert "the attempt broke" not in caplog.text
    assert "execution it: the events that it never received could not be read: a record" in caplog.text
    assert (await _status_of(app)) == "failed"


async def _unread(scan: Any, monkeypatch: pytest.MonkeyPatch, store: Any, engine: Any, executions: Any) -> None:
    """What runs behind the end, on a store that can no longer be scanned."""
    with monkeypatch.context() as broken:
        broken.setattr(store, "scan", scan)
        await unreceived.warn_of_unreceived(engine, executions)


async def _status_of(app: App) -> str:
    async with app.client():
        return (await app.execution("it").info()).status


async def test_a_failed_member_of_a_flow_leaves_a_line(app: App, caplog: pytest.LogCaptureFixture):
    @app.workflow
    async def extract() -> int:
        raise CardDeclined("not today")  # the member fails here

    @app.workflow
    async def load(rows: int) -> int:
        return rows

    async with app:
        flow = app.flow("nightly", id="night")
        flow.add("load", load, flow.add("extract", extract).output)
        with pytest.raises(FlowFailed):
            await (await flow.start()).result("20s")
    [line] = warnings_of(caplog)
    where = place_of("the member fails here", "extract")
    assert line == f"execution night/extract of workflow extract failed: CardDeclined: not today ({where})"


async def test_many_failures_at_once_are_counted(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("outlast.observe.log.WINDOW_S", 0.5)

    @app.workflow
    async def checkout(number: int) -> None:
        raise CardDeclined(f"no funds {number}") if number % 4 else ValueError(number)

    def counted() -> list[str]:
        return [line for line in warnings_of(caplog) if " more executions " in line]

    def alone() -> int:
        return sum(line.startswith("execution ") for line in warnings_of(caplog))

    def number_in(line: str) -> int:
        return int(line.split(" s ")[1].split()[0])

    async with app:
        handles = await app.start_many(checkout.bind(number) for number in range(50))
        for handle in handles:
            with pytest.raises((CardDeclined, ValueError)):
                await handle.result("20s")

        await until(lambda: alone() + sum(number_in(line) for line in counted()) == 50, "not all are counted")
    assert alone() >= 10
    assert " more executions failed or expired: checkout CardDeclined " in counted()[0]
    assert len(warnings_of(caplog)) < 30


async def test_each_retry_of_a_step_says_what_failed_and_when_it_goes_on(app: App, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    tries: list[int] = []

    @app.step(retry=Retry(max_attempts=3, initial="10ms", backoff=2, jitter=0))
    async def charge() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise CardDeclined("try again")  # refused here
        return "paid"

    @app.workflow
    async def checkout() -> str:
        return await charge()

    async with app:
        handle = await checkout.options(id="it").start()
        assert await handle.result("20s") == "paid"
    error = f"CardDeclined: try again ({place_of('refused here', 'charge')})"
    assert infos_of(caplog, "execution") == [
        f"execution it of workflow checkout: try 1 of step charge failed, and the next one follows in 0.01 s: {error}",
        f"execution it of workflow checkout: try 2 of step charge failed, and the next one follows in 0.02 s: {error}",
    ]
    [record, _] = [record for record in caplog.records if record.name == "outlast.executions"]
    said = {name: record.__dict__[name] for name in ("execution", "workflow", "step", "attempt")}
    assert said == {"execution": "it", "workflow": "checkout", "step": "charge", "attempt": 1}


async def test_each_retry_of_an_execution_says_what_failed_and_when_it_goes_on(
    clocked: Place, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    app = clocked.app()
    tries: list[int] = []

    @app.workflow(retry=Retry(max_attempts=2, initial="1h", max_delay="1h", jitter=0))
    async def checkout() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise CardDeclined("later")  # put off here

    async with app:
        handle = await checkout.options(id="it").start()
        await status_is(handle, "blocked")
        await clocked.pass_time(app, "2h")
        await handle.result("20s")
    error = f"CardDeclined: later ({place_of('put off here', 'checkout')})"
    assert infos_of(caplog, "execution") == [
        f"execution it of workflow checkout: attempt 1 failed, and attempt 2 follows in 3600 s: {error}"
    ]


async def test_an_attempt_that_times_out_and_is_followed_by_another_says_so(app: App, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    tries: list[int] = []

    @app.step
    async def hangs_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            await asyncio.sleep(600)

    @app.workflow(timeout="200ms", retry=Retry(max_attempts=5, initial=0))
    async def checkout() -> None:
        await hangs_once()

    async with app:
        await (await checkout.options(id="it").start()).result("20s")
    line = "execution it of workflow checkout: attempt 1 took longer than its timeout, and attempt 2 follows at once"
    assert infos_of(caplog, "execution")[0] == line


async def test_the_worker_that_takes_over_from_a_dead_one_says_so(clocked: Place, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    first, second = clocked.app(), clocked.app()
    gate = Gate()
    ran: list[str] = []

    def build(app: App, name: str) -> Any:
        @app.step(name="work")
        async def work() -> str:
            ran.append(name)
            if name == "first":
                await gate()
            return name

        @app.workflow(name="order")
        async def order() -> str:
            return await work()

        return order

    order = build(first, "first")
    build(second, "second")
    async with first:
        await order.options(id="it").start()
        await gate.reached()
        assert first._opened is not None
        assert first._opened.worker is not None
        dead = first._opened.worker.name
        await die(first)
    async with second:
        await clocked.pass_time(second, "2d")
        assert await second.execution("it").result("20s") == "second"
    taken = "was taken from worker {}, which died or lost its lease: attempt 2 follows"
    assert infos_of(caplog, "execution") == [f"execution it of workflow order {taken.format(dead)}"]


async def test_a_worker_says_when_it_starts_and_what_its_drain_waits_for(
    app: App, gate: Gate, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)

    @app.step
    async def work() -> None:
        await gate()

    @app.workflow
    async def order() -> None:
        await work()

    async with app.worker(drain="50ms", concurrency=7) as worker:
        await order.options(id="it").start()
        await gate.reached()
    assert infos_of(caplog, "worker") == [
        f"worker {worker.name} has started: it runs up to 7 executions at a time from lane default",
        f"worker {worker.name} drains: it claims nothing more, waits up to 0.05 s for 1 execution (it), "
        "and hands back what still runs then",
        f"worker {worker.name} has stopped, and handed back 1 execution (it)",
    ]


async def test_a_long_message_is_cut_and_stays_on_one_line(app: App, caplog: pytest.LogCaptureFixture):
    @app.workflow
    async def imports(row: str) -> None:
        raise ValueError(f"this row is of no use:\n{row}")

    async with app:
        with pytest.raises(ValueError, match="of no use"):
            await (await imports.options(id="it").start("private " * 1_000)).result("20s")
    [line] = warnings_of(caplog)
    assert line.startswith(
        "execution it of workflow imports failed: ValueError: this row is of no use: private private"
    )
    assert "\n" not in line
    assert len(line) < 500
