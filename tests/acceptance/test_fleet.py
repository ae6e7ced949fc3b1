"""Workers killed, frozen and drained by signals: nothing is lost, nothing recorded is done again."""

import asyncio
import random
import signal
from pathlib import Path

import pytest

from outlast.app import store_for
from outlast.errors import ExecutionExpired
from outlast.model.completion import Completion
from outlast.model.journal import JournalEntry
from outlast.model.status import Status
from outlast.reconcilers.table import ROWS
from tests.acceptance.conftest import Place
from tests.acceptance.fleet import STEPS, effects, make_app, spawn, was_stopped_in
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SETTINGS = {
    "as it is": {},
    "without the fast path": {"OUTLAST_FAST_PATH": "no"},
    "without the doorbell": {"OUTLAST_DOORBELL": "no", "OUTLAST_FAST_PATH": "no"},
    "without other reconcilers": {
        f"OUTLAST_RECONCILER_{row.name.upper()}_ENABLED": "no"
        for row in ROWS
        if row.name not in ("lease_expiry", "timer")
    },
}


@pytest.fixture
def url(place: Place) -> str:
    return place.url


@pytest.fixture
def fleet(url, tmp_path):
    """Spawns processes, and ends those that are left, by pid."""
    processes = []

    def start(role, **env):
        process = spawn(role, url, tmp_path / "ledger", **env)
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


@pytest.mark.parametrize("setting", SETTINGS)
async def test_workers_killed_at_random_lose_nothing_and_redo_nothing_recorded(setting, fleet, url, tmp_path):
    number, seconds = (200, 20) if setting == "as it is" else (60, 6)
    env = SETTINGS[setting]
    app = make_app(url, str(tmp_path / "ledger"))
    async with app.client():
        fleet("reconcilers", **env)
        workers = [fleet("worker-without-reconcilers", **env) for _ in range(2)]
        ten = app.registry.newest("ten")
        handles = []
        for second in range(seconds):
            # Each second some more, so that there is work to be killed until the last one.
            begun = range(number * second // seconds, number * (second + 1) // seconds)
            handles += await app.start_many(ten.options(id=f"e{n}").bind(n) for n in begun)
            kill_after_s = random.random() * 0.6
            await asyncio.sleep(kill_after_s)
            index = random.randrange(2)
            workers[index].kill()
            workers[index].wait()
            workers[index] = fleet("worker-without-reconcilers", **env)
            await asyncio.sleep(1 - kill_after_s)
        results = await asyncio.wait_for(asyncio.gather(*(handle.result() for handle in handles)), 120)
    assert results == [sum(range(STEPS)) + n for n in range(number)]
    await assert_nothing_recorded_was_redone(url, tmp_path / "ledger", number)


async def assert_nothing_recorded_was_redone(url: str, ledger: Path, number: int) -> None:
    store = store_for(url)
    await store.open()
    took_effect = effects(ledger)
    for n in range(number):
        entries = await store.scan(JournalEntry.KIND, ("default", f"e{n}"))
        recorded = {entry.occurrence - 1: entry.epoch for entry in entries if isinstance(entry, JournalEntry)}
        assert sorted(recorded) == list(range(STEPS))
        for step, epoch in recorded.items():
            runs = {e: times for (execution, s, e), times in took_effect.items() if (execution, s) == (f"e{n}", step)}
            assert runs[epoch] == 1, f"e{n} step {step} ran {runs[epoch]} times at epoch {epoch}"
            later = [e for e in runs if e > epoch]
            assert not later, f"e{n} step {step} was recorded at epoch {epoch} and ran again at {later}"
        completions = await store.scan(Completion.KIND, ("default", f"e{n}"))
        assert len(completions) == 1
    await store.close()


async def freeze(process, url: str) -> None:
    """SIGSTOP it, but not in the middle of a commit: one file has one writer at a time, and that one would be it."""
    store = store_for(url)
    await store.open()
    while True:
        process.send_signal(signal.SIGSTOP)
        renewed = asyncio.ensure_future(store.renew("bystander", lease_ttl_ms=1_000))
        done, _ = await asyncio.wait({renewed}, timeout=1)
        if done:
            break
        process.send_signal(signal.SIGCONT)
        await renewed
    await store.close()


async def test_a_worker_stopped_past_its_lease_is_a_zombie_whose_writes_are_refused(fleet, url, tmp_path):
    app = make_app(url, str(tmp_path / "ledger"))
    async with app.client():
        frozen = fleet("worker", FLEET_STEP_S="0.5")
        ten = app.registry.newest("ten")
        handles = await app.start_many(ten.options(id=f"e{n}").bind(n) for n in range(10))

        async def begun():
            return len(effects(tmp_path / "ledger")) >= 10

        await until(begun, "the worker has not begun", seconds=20)
        await freeze(frozen, url)
        fleet("worker")
        results = await asyncio.wait_for(asyncio.gather(*(handle.result() for handle in handles)), 60)
        assert not was_stopped_in(tmp_path / "ledger", frozen.pid)
        frozen.send_signal(signal.SIGCONT)

        async def stopped():
            return was_stopped_in(tmp_path / "ledger", frozen.pid)

        await until(stopped, "its code was not stopped", seconds=20)
        await asyncio.sleep(1)
        assert results == [45 + n for n in range(10)]
        infos = [await handle.info() for handle in handles]
        assert {info.status for info in infos} == {Status.SUCCEEDED}
    await assert_nothing_recorded_was_redone(url, tmp_path / "ledger", 10)
    frozen.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(frozen.wait, 20) == 0


async def test_a_step_longer_than_the_lease_runs_once_and_charges_nothing(fleet, url, tmp_path):
    app = make_app(url, str(tmp_path / "ledger"))
    async with app.client():
        for _ in range(2):
            fleet("worker", FLEET_LEASE_TTL="3s")  # which a machine that stalls for a second does not make it lose
        handle = await app.registry.newest("longer_than_the_lease").start()
        assert await handle.result(timeout=60) == "done"
        info = await handle.info()
    assert (info.attempts, info.failures, info.crashes) == (1, 0, 0)
    [line] = (tmp_path / "ledger").read_text().splitlines()
    assert line.startswith("long "), "once, by its first holder"


async def test_a_workflow_that_kills_its_process_expires_and_harms_no_other(fleet, url, tmp_path):
    app = make_app(url, str(tmp_path / "ledger"))
    async with app.client():
        poison = await app.registry.newest("poison").start()
        others = await app.start_many(app.registry.newest("ten").options(id=f"e{n}").bind(n) for n in range(5))
        workers = [fleet("worker")]

        async def ended():
            if workers[-1].poll() is not None:
                workers.append(fleet("worker"))
            return (await poison.info()).status.terminal

        await until(ended, "the poison has not expired", seconds=90)
        with pytest.raises(ExecutionExpired, match="crashes"):
            await poison.result()
        if workers[-1].poll() is not None:
            fleet("worker")
        assert await asyncio.gather(*(other.result(timeout=60) for other in others)) == [45 + n for n in range(5)]
        info = await poison.info()
    assert (info.status, info.crashes, info.failures) == (Status.EXPIRED, 5, 0)


async def test_what_is_killed_at_each_of_its_steps_finishes(fleet, url, tmp_path):
    """Twelve crashes, none of them twice at the same place: each attempt records something."""
    app = make_app(url, str(tmp_path / "ledger"))
    async with app.client():
        handle = await app.registry.newest("dies_at_each_step").start()
        await ended_under_care(fleet, handle)
        assert await handle.result() == sum(range(12))
        assert (await handle.info()).crashes == 12


async def test_what_makes_progress_and_kills_its_process_expires_and_harms_no_other(fleet, url, tmp_path):
    """It is quarantined although it records something in each attempt: others run one step for longer than it lives."""
    app = make_app(url, str(tmp_path / "ledger"))
    async with app.client():
        poison = await app.registry.newest("poison_with_progress").start()
        others = await app.start_many(app.registry.newest("one_long_step").bind() for _ in range(4))
        await ended_under_care(fleet, poison, *others)
        with pytest.raises(ExecutionExpired, match="crashes_in_life"):
            await poison.result()
        info = await poison.info()
        assert (info.crashes, info.failures) == (7, 0)
        assert [await other.result() for other in others] == ["done"] * 4


async def test_a_loop_of_events_outlives_a_kill_per_second_and_loses_none(fleet, url, tmp_path):
    number = 60
    app = make_app(url, str(tmp_path / "ledger"))
    async with app.client():
        handle = await app.registry.newest("adds").start(number)
        for sent in range(number):
            if sent % 6 == 0:
                worker = fleet("worker", FLEET_STEP_S="0.5")
            await handle.send("number", sent)
            await asyncio.sleep(0.25)
            if sent % 6 == 5:
                worker.kill()
                worker.wait()
        fleet("worker")
        assert await handle.result(timeout=60) == sum(range(number))
        assert (await handle.info()).crashes > 5


async def ended_under_care(fleet, *handles):
    """All of them have ended. A worker that dies is followed by another one."""
    worker = fleet("worker")

    async def ended():
        nonlocal worker
        if worker.poll() is not None:
            worker = fleet("worker")
        return all([(await handle.info()).status.terminal for handle in handles])

    await until(ended, "not all have ended", seconds=120, pause_s=0.05)


async def test_a_worker_drains_on_sigterm_and_hands_back_what_does_not_finish(fleet, url, tmp_path):
    app = make_app(url, str(tmp_path / "ledger"))
    async with app.client():
        first = fleet("worker")
        handle = await app.registry.newest("ten").start(1)

        async def begun():
            return bool(effects(tmp_path / "ledger"))

        await until(begun, "the worker has not begun", seconds=20)
        first.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(first.wait, 20) == 0
        if not (await handle.info()).status.terminal:
            fleet("worker")
        assert await handle.result(timeout=30) == 46
        assert (await handle.info()).crashes == 0
