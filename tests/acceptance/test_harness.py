"""The testing kit: a user's own app on a private store, by virtual time, with crashes, stubs and journals."""

import asyncio
import logging
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

import outlast
from outlast import App, ExecutionExpired, ExecutionRefused, InvalidInput, Retry
from outlast.testing import Harness, Stuck, harness, replay_every_await

ROOT = Path(__file__).parents[2]

app = App("sqlite:///of-the-user.db")
ledger: list[str] = []


@app.step
async def charge(cents: int) -> str:
    ledger.append("charge")
    return f"paid {cents}"


@app.step
def ship(sku: str) -> str:
    ledger.append("ship")
    return f"sent {sku}"


@app.workflow
async def checkout(sku: str, cents: int) -> str:
    return f"{await charge(cents)}, {await ship.aio(sku)}"


@app.workflow
def checkout_in_a_thread(sku: str, cents: int) -> str:
    return f"{charge.sync(cents)}, {ship(sku)}"


class NotYet(Exception):
    pass


@app.step(retry=Retry(max_attempts=5, initial="1h", backoff=2.0, max_delay="1d", jitter=0.0))
async def stubborn() -> str:
    ledger.append("stubborn")
    if ledger.count("stubborn") < 4:
        raise NotYet
    return "at last"


@app.workflow
async def patient() -> str:
    return await stubborn()


@app.step(timeout="10s")
async def slow(gate: str) -> str:
    await asyncio.Event().wait()
    return gate


@app.workflow
async def in_time() -> str:
    try:
        return await slow("never")
    except TimeoutError:
        return "too slow"


@app.workflow(timeout="1m")
async def long_attempt() -> str:
    await asyncio.Event().wait()
    return "never"


@pytest.fixture(autouse=True)
def _empty_ledger():
    ledger.clear()


async def test_the_app_runs_on_a_store_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with harness(app):
        assert await checkout("tea", 5) == "paid 5, sent tea"
    assert not (tmp_path / "of-the-user.db").exists()
    assert app.config.url == "sqlite:///of-the-user.db"


async def test_two_harnesses_share_nothing():
    for _ in range(2):
        async with harness(app):
            assert await app.count() == 0
            await checkout.options(id="same").start("tea", 5)


async def test_a_def_workflow_runs_too():
    async with harness(app):
        assert await checkout_in_a_thread.aio("tea", 5) == "paid 5, sent tea"


async def test_time_begins_where_the_test_says_and_stands_still():
    start = datetime(2031, 5, 6, tzinfo=UTC)
    async with harness(app, start=start) as h:
        handle = await checkout.start("tea", 5)
        assert await handle.result() == "paid 5, sent tea"
        info = await handle.info()
        assert (info.created_at, info.finished_at, h.clock.now) == (start, start, start)


@pytest.mark.parametrize("moment", ["tomorrow", date(2031, 1, 1), datetime.fromisoformat("2031-01-01"), 5], ids=repr)
async def test_time_is_told_as_an_aware_datetime(moment):
    with pytest.raises(InvalidInput, match="start needs an aware datetime"):
        async with harness(app, start=moment):
            pass
    async with harness(app) as h:
        with pytest.raises(InvalidInput, match="advance_to needs an aware datetime"):
            await h.clock.advance_to(moment)


async def test_what_is_no_app_or_workflow_is_refused():
    for other in ("app", checkout, None):
        with pytest.raises(InvalidInput, match="harness takes an app, not"):
            async with harness(cast("Any", other)):
                pass
    async with harness(app) as h:
        with pytest.raises(InvalidInput, match="deploy takes an app, not"):
            await h.deploy(cast("Any", checkout))
    for other in ("checkout", app, lambda: charge):
        with pytest.raises(InvalidInput, match="replay_every_await takes a workflow, or a function that makes one"):
            await replay_every_await(cast("Any", other))


async def test_a_delay_of_months_takes_no_time():
    began = time.monotonic()
    async with harness(app) as h:
        before = h.clock.now
        assert await checkout.options(delay="90d").start("tea", 5)
        later = await checkout.options(delay="60d").start("cup", 5)
        assert await later.result() == "paid 5, sent cup"
        assert h.clock.now - before == timedelta(days=60)
    assert time.monotonic() - began < 30


async def test_advance_runs_what_falls_due_in_order_and_no_further():
    async with harness(app) as h:
        handles = [await checkout.options(delay=f"{day}d", id=f"on-day-{day}").start("tea", day) for day in (3, 1, 2)]
        await h.clock.advance("2d")
        done = [(i.id, (i.finished_at or i.created_at) - i.created_at) for i in await app.find(status="succeeded")]
        assert sorted(done) == [("on-day-1", timedelta(days=1)), ("on-day-2", timedelta(days=2))]
        assert (await h.info(handles[0])).status == "blocked"
        await h.clock.advance("1d")
        assert (await h.info(handles[0])).status == "succeeded"


async def test_a_steps_backoff_is_virtual():
    async with harness(app) as h:
        handle = await patient.start()
        assert await handle.result() == "at last"
        assert h.clock.now - (await handle.info()).created_at == timedelta(hours=1 + 2 + 4)
        journal = await h.journal(handle)
        assert journal.entry("stubborn").tries == 4


@pytest.mark.parametrize("wait", ["2s", "1h"])
async def test_a_backoff_of_an_undo_is_virtual(wait):
    own = App("sqlite:///of-the-user.db")
    undone: list[str] = []

    @own.step(retry=Retry(max_attempts=3, initial=wait))
    async def give_back() -> None:
        undone.append("tried")
        if len(undone) < 3:
            raise NotYet

    @own.workflow
    async def order() -> None:
        await outlast.compensate(give_back)
        raise KeyError("sold out")

    async with harness(own), asyncio.timeout(20):
        with pytest.raises(KeyError):
            await order()
    assert len(undone) == 3


async def test_a_steps_timeout_is_virtual():
    async with harness(app) as h:
        handle = await in_time.start()
        await h.clock.advance("9s")
        assert (await h.info(handle)).status == "active"
        await h.clock.advance("2s")
        assert await handle.result() == "too slow"


async def test_an_attempts_timeout_is_virtual():
    async with harness(app) as h:
        handle = await long_attempt.start()
        await h.clock.advance("2m")
        with pytest.raises(ExecutionExpired, match="attempt_timeout"):
            await handle.result()


async def test_a_results_timeout_is_virtual():
    async with harness(app) as h:
        handle = await checkout.options(delay="1d").start("tea", 5)
        with pytest.raises(TimeoutError):
            await handle.result(timeout="1h")
        assert await handle.result(timeout="30h") == "paid 5, sent tea"
        assert h.clock.now - (await handle.info()).created_at == timedelta(days=1)


async def test_without_auto_advance_only_the_test_moves_the_clock():
    async with harness(app, auto_advance=False) as h:
        handle = await checkout.options(delay="1d").start("tea", 5)
        waiting = asyncio.create_task(handle.result())
        await h.settle()
        assert not waiting.done()
        await h.clock.advance("1d")
        assert await waiting == "paid 5, sent tea"


own_lanes = App("sqlite:///of-the-user.db")


async def test_a_result_that_can_never_come_is_told(monkeypatch):
    monkeypatch.setattr("outlast.testing.world.STUCK_S", 0.05)
    async with harness(app):
        handle = await checkout.options(delay="1d").start("tea", 5)
        await handle.hold()
        with pytest.raises(Stuck, match="operator"):
            await handle.result()


@own_lanes.workflow
async def render() -> str:
    return "rendered"


@own_lanes.workflow(requires={"gpu"})
async def train() -> str:
    return "trained"


@own_lanes.workflow
async def render_as_a_child() -> str:
    return await render.options(lane="film", id="film")()


async def test_a_worker_of_the_kit_offers_what_the_workflows_require(monkeypatch):
    monkeypatch.setattr("outlast.testing.world.STUCK_S", 0.05)
    async with harness(own_lanes):
        assert await train() == "trained"
    async with harness(own_lanes, lanes=["default", "film"]):
        assert await render_as_a_child() == "rendered"
    async with harness(own_lanes, capabilities=[]):
        handle = await train.start()
        with pytest.raises(Stuck, match=r"ready \(capability:gpu\), which no worker here offers: .*capabilities=\["):
            await handle.result()


@pytest.mark.parametrize("started", [render_as_a_child, render.options(lane="film")], ids=["child", "start"])
async def test_what_no_worker_of_the_kit_serves_is_told_with_what_to_write(monkeypatch, started: Any):
    monkeypatch.setattr("outlast.testing.world.STUCK_S", 0.05)
    async with harness(own_lanes) as h:
        handle = await started.start()
        says = r"is ready in lane 'film', which no worker here serves: harness\(app, lanes=\["
        with pytest.raises(Stuck, match=says):
            await handle.result()
        await h.crash()
        with pytest.raises(Stuck, match=r"no worker runs: await h\.restart\(\)"):
            await handle.result()


# ---- stubs --------------------------------------------------------------------------------------------------------


async def test_time_passes_while_a_flow_is_awaited(monkeypatch):
    own = App("sqlite:///of-the-user.db")

    @own.workflow
    async def sleeper() -> int:
        await outlast.sleep("1d")
        return 1

    @own.workflow
    async def listener(n: int) -> int:
        return n + await outlast.receive("more", int)

    async with harness(own) as h, asyncio.timeout(20):
        begun = h.clock.now
        flow = own.flow("nightly")
        flow.add("sleeps", sleeper)
        assert await (await flow.start()).result() == {"sleeps": 1}
        assert h.clock.now - begun == timedelta(days=1)

        monkeypatch.setattr("outlast.testing.world.STUCK_S", 0.1)
        flow = own.flow("nightly", id="n-2")
        flow.add("listens", listener, flow.add("sleeps", sleeper).output)
        with pytest.raises(Stuck, match=r"n-2/listens is suspended \(event:more\)"):
            await (await flow.start()).result()


async def test_time_passes_while_frames_are_awaited(monkeypatch):
    own = App("sqlite:///of-the-user.db")

    @own.workflow
    async def talker(then: str) -> None:
        for number in range(3):
            outlast.emit(number)
            await outlast.sleep("1h")
        if then == "listen":
            await outlast.receive("more")

    async with harness(own), asyncio.timeout(20):
        assert [frame.value async for frame in (await talker.start("end")).frames()] == [0, 1, 2]

        monkeypatch.setattr("outlast.testing.world.STUCK_S", 0.1)
        with pytest.raises(Stuck, match="event:more"):
            async for _ in (await talker.start("listen")).frames():
                pass


async def test_a_stub_gives_a_value_raises_or_calls():
    async with harness(app) as h:
        stub = h.stub(charge, "free")
        h.stub(ship, lambda sku: f"no {sku}")
        assert await checkout("tea", 5) == "free, no tea"
        assert stub.calls == [((5,), {})]
        h.stub("charge", ValueError("no card"))
        with pytest.raises(ValueError, match="no card"):
            await checkout("tea", 5)
        h.unstub(charge)
        assert (await checkout("tea", 5)).startswith("paid 5")
    assert ledger == ["charge"]
    async with harness(app):
        assert await checkout("tea", 5) == "paid 5, sent tea"


async def test_a_stub_must_keep_the_steps_type():
    async with harness(app) as h:
        h.stub(charge, 12)
        with pytest.raises(ValueError, match="charge"):
            await checkout("tea", 5)


@pytest.mark.parametrize("use", [Harness.stub, Harness.unstub, Harness.crash_at])
async def test_what_is_no_step_cannot_be_stubbed(use):
    async with harness(app) as h:
        for other in (checkout, checkout_in_a_thread, len):
            with pytest.raises(InvalidInput, match="takes a step, a transaction or a name, not"):
                use(h, other)


@pytest.mark.parametrize("url", ["sqlite:///of-the-user.db", "postgresql://nobody@/nowhere"])
async def test_a_stub_of_a_transaction_needs_no_sql(url: str):
    own = App(url)

    def book(cents: int) -> int:
        raise AssertionError("never")

    async def book_on_postgresql(cents: int) -> int:
        raise AssertionError("never")

    booked = own.transaction(name="book")(cast("Any", book if url.startswith("sqlite") else book_on_postgresql))

    @own.workflow
    async def pay(cents: int) -> int:
        await outlast.compensate(booked, -cents)
        if await booked.aio(cents) > cents:
            raise ValueError("too dear")
        return cents

    async with harness(own) as h:
        stub = h.stub(booked, lambda cents: cents)
        assert await pay(5) == 5
        h.stub(booked, lambda cents: stub.calls.append(((cents,), {})) or cents + 1)
        with pytest.raises(ValueError, match="too dear"):
            await pay(7)
        assert stub.calls == [((5,), {}), ((7,), {}), ((-7,), {})]


# ---- crashes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2])
async def test_a_crash_at_an_await_is_recovered(nth, when):
    async with harness(app) as h:
        h.crash_at(nth=nth, when=when)
        handle = await checkout.start("tea", 5)
        assert await handle.result() == "paid 5, sent tea"
        assert h.crashes == 1
        assert (await handle.info()).crashes == 1
        (await h.journal(handle)).assert_steps("charge", "ship")
    twice = [] if when == "after" else [["charge", "ship"][nth - 1]]
    assert sorted(ledger) == sorted(["charge", "ship", *twice])


async def test_a_crash_at_a_named_step():
    async with harness(app) as h:
        h.crash_at(ship)
        assert await checkout("tea", 5) == "paid 5, sent tea"
    assert ledger == ["charge", "ship", "ship"]


async def test_a_crash_now_and_a_restart():
    async with harness(app, auto_advance=False) as h:
        handle = await checkout.options(delay="1h").start("tea", 5)
        await h.crash()
        await h.clock.advance("2h")
        assert (await h.info(handle)).status == "blocked"
        await h.restart()
        await h.settle()
        assert await handle.result() == "paid 5, sent tea"


# ---- journals -----------------------------------------------------------------------------------------------------


async def test_the_journal_reads_well_and_complains_well():
    async with harness(app) as h:
        handle = await checkout.options(id="order-1").start("tea", 5)
        await handle.result()
        journal = await h.journal("order-1")
        journal.assert_steps("charge", "ship")
        assert journal.value("charge") == "paid 5"
        assert journal.outcome("ship") == "succeeded"
        journal.assert_never_ran("refund")
        with pytest.raises(AssertionError, match=r"step charge: succeeded 'paid 5'"):
            journal.assert_ran("charge", times=2)


# ---- fork and retry from a step -----------------------------------------------------------------------------------


async def test_a_fork_keeps_what_came_before_the_step():
    async with harness(app) as h:
        handle = await checkout.options(id="order-1", tags={"shop": "paris"}).start("tea", 5)
        await handle.result()
        h.stub(ship, "sent anew")
        forked = await handle.fork(from_step="ship")
        assert await forked.result() == "paid 5, sent anew"
        assert await handle.result() == "paid 5, sent tea"
        assert forked.id.startswith("order-1-fork-")
        info = await forked.info()
        assert (info.workflow, info.version, info.tags, info.generation) == ("checkout", "1", {"shop": "paris"}, 2)
    assert ledger == ["charge", "ship"]


async def test_a_fork_of_an_open_execution_with_an_id_of_its_own():
    async with harness(app) as h:
        handle = await patient.options(id="it").start()
        await h.clock.advance("30m")
        with pytest.raises(ValueError, match="has recorded no 'stubborn'; it has recorded nothing yet"):
            await handle.fork(from_step="stubborn")
        assert await handle.result() == "at last"
        forked = await handle.fork(from_step="stubborn", id="it-again")
        assert (forked.id, await forked.result()) == ("it-again", "at last")
        (await h.journal(forked)).assert_steps("stubborn")
        with pytest.raises(ExecutionRefused, match="exists"):
            await handle.fork(from_step="stubborn", id="it-again")


async def test_an_unknown_step_is_refused_with_those_that_there_are():
    async with harness(app):
        handle = await checkout.start("tea", 5)
        await handle.result()
        with pytest.raises(ValueError, match=r"no 'refund'; it has recorded charge, ship"):
            await handle.fork(from_step="refund")
        with pytest.raises(ValueError, match=r"no 'charge#2'"):
            await handle.fork(from_step="charge#2")


async def test_a_retry_from_a_step_runs_it_and_what_follows_again():
    async with harness(app) as h:
        h.stub(ship, ValueError("no stamps"))
        handle = await checkout.start("tea", 5)
        with pytest.raises(ValueError, match="no stamps"):
            await handle.result()
        h.unstub(ship)
        h.stub(charge, "paid anew")
        await handle.retry(from_step="charge")
        assert await handle.result() == "paid anew, sent tea"
        with pytest.raises(ExecutionRefused, match="fork it"):
            await handle.retry(from_step="charge")


@pytest.mark.parametrize("name", ["nap", None])
async def test_a_fork_from_a_sleep_sleeps_again(name: str | None):
    naps = App()

    @naps.workflow
    async def twice() -> None:
        await outlast.sleep("1d", name=name)
        await outlast.sleep("1d", name=name)

    async with harness(naps) as h:
        handle = await twice.start()
        await handle.result()
        await h.clock.advance("10d")
        for step, days in ((name or "sleep", 1 if name else 2), (f"{name or 'sleep'}#2", 0 if name else 1)):
            begun = h.clock.now
            await (await handle.fork(from_step=step)).result()
            assert h.clock.now - begun == timedelta(days=days), f"from {step}: a timer with a name is one for all"


# ---- time in workflows --------------------------------------------------------------------------------------------


@app.step
async def bill(month: int) -> int:
    ledger.append(f"bill {month}")
    return month


@app.workflow
async def subscription(months: int) -> int:
    billed = 0
    for month in range(months):
        await outlast.sleep("30d")
        billed += await bill(month) >= 0
    return billed


@app.workflow
async def trial() -> str:
    await outlast.sleep("14d", name="trial")
    await outlast.sleep("1h", name="grace")
    return await outlast.receive("verdict", str, timeout="7d")


async def test_a_subscription_of_ten_years_takes_no_time():
    """Nothing really waits. (How long it takes is measured by `make bench`, scenario `virtual`.)"""
    async with harness(app) as h:
        start = h.clock.now
        handle = await subscription.start(120)
        assert await handle.result() == 120
        assert h.clock.now - start == timedelta(days=3_600)
    assert ledger == [f"bill {month}" for month in range(120)]


async def test_a_crash_in_the_middle_of_a_subscription_bills_no_month_twice():
    async with harness(app) as h:
        h.crash_at("bill", nth=7, when="after")
        h.crash_at("claim", nth=10, when="after")
        assert await subscription(12) == 12
        assert h.crashes == 2
    assert ledger == [f"bill {month}" for month in range(12)]


async def test_a_named_timer_can_be_fired():
    async with harness(app, auto_advance=False) as h:
        handle = await trial.start()
        start = h.clock.now
        assert await h.fire_timer("trial") - start == timedelta(days=14)
        with pytest.raises(AssertionError, match="no timer 'trial' is set; those that are: grace"):
            await h.fire_timer("trial")
        await h.fire_timer("grace")
        assert (await h.info(handle)).reason == "event:verdict"
        await handle.send("verdict", "bought")
        await h.settle()
        assert await handle.result() == "bought"


async def test_a_timeout_of_a_wait_is_virtual():
    async with harness(app) as h:
        handle = await trial.start()
        with pytest.raises(TimeoutError):
            await handle.result()
        assert h.clock.now - (await handle.info()).created_at == timedelta(days=21, hours=1)


async def test_every_await_of_a_workflow_can_be_a_crash():
    found = await replay_every_await(subscription, 2)
    assert found.outcome == 2
    assert found.crashes >= 16  # before and after: claims, wake times, outcomes, suspensions, the end
    found.journal.assert_steps("bill", "bill")


async def test_a_timer_that_is_due_at_the_crash_holds_nobody():
    own = App("sqlite:///of-the-user.db")

    @own.workflow
    async def naps() -> str:
        await asyncio.gather(outlast.sleep(0), outlast.sleep(1))
        return "awake"

    async with asyncio.timeout(30):
        found = await replay_every_await(naps)
    assert found.outcome == "awake"
    assert found.crashes >= 16


async def test_what_continues_as_new_performs_each_step_once_per_page():
    own = App("sqlite:///of-the-user.db")

    @own.step
    async def turn(page: int) -> int:
        return page

    @own.workflow
    async def read(page: int = 0) -> int:
        await turn(page)
        if page < 1:
            outlast.continue_as_new(page + 1)
        return page

    found = await replay_every_await(read)
    assert found.outcome == 1
    assert found.crashes >= 10


async def test_crashes_that_were_asked_for_are_no_errors(caplog: pytest.LogCaptureFixture):
    await replay_every_await(subscription, 1)
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


ways: list[str] = []


@app.workflow
async def depends_on_what_is_not_recorded() -> str:
    ways.append("one more")
    if len(ways) % 2:
        await charge(1)
    return await ship.aio("tea")


async def test_a_workflow_that_takes_another_way_when_replayed_is_found_out(monkeypatch):
    monkeypatch.setattr("outlast.testing.world.STUCK_S", 0.05)
    with pytest.raises(AssertionError, match=r"after a crash (before|after) write \d+ of its worker"):
        await replay_every_await(depends_on_what_is_not_recorded)


@app.workflow
async def approved() -> str:
    who = await outlast.receive("approved", str)
    return f"{await charge(1)} by {who}"


async def test_a_workflow_that_never_ends_proves_nothing(monkeypatch):
    monkeypatch.setattr("outlast.testing.world.STUCK_S", 0.05)
    with pytest.raises(Stuck, match="event:approved"):
        await replay_every_await(approved)
    with pytest.raises(Stuck, match="capability:gpu"):
        await replay_every_await(train, settings={"capabilities": []})


async def test_every_await_can_be_prepared_and_told_things():
    async def prepare(h: Harness) -> None:
        h.stub(charge, "free")

    async def meanwhile(h: Harness, handle: Any) -> None:
        await handle.send("approved", "anna")

    found = await replay_every_await(approved, prepare=prepare, meanwhile=meanwhile)
    assert found.outcome == "free by anna"
    assert found.crashes > 8
    assert ledger == []
