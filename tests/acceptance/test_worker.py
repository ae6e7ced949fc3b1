"""Workers: what they claim, how much at once, how they stop, and how they share work."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast import App, Retry, Status
from outlast.app import store_for
from outlast.machine import facts
from outlast.model.execution import Execution
from outlast.model.lease import ClaimRequest
from outlast.model.session import Session
from outlast.runtime import worker as worker_module
from outlast.runtime.holder import Reply
from outlast.runtime.local_holder import LocalHolder
from outlast.testing import CrashPoints
from tests.acceptance.conftest import Gate, Place, status_is, until


def echo_on(app: App, ran: list[str] | None = None, **options: Any) -> Any:
    @app.workflow(**options)
    async def echo(text: str) -> str:
        if ran is not None:
            ran.append(text)
        return text

    return echo


# ---- what it claims -----------------------------------------------------------------------------------------------


async def test_a_worker_serves_only_its_lanes(place: Place):
    app = place.app()
    ran: list[str] = []
    echo = echo_on(app, ran)
    async with app.worker(lanes=["mail", "reports"]):
        other = await echo.start("default")
        for lane in ("mail", "reports"):
            handle = await echo.options(lane=lane).start(lane)
            assert await handle.result(timeout=20) == lane
        assert (await other.info()).status == Status.READY
    assert ran == ["mail", "reports"]


async def test_a_worker_serves_the_lanes_of_its_workflows_by_itself(app: App):
    echo = echo_on(app, lane="mail")
    async with app:
        handle = await echo.start("x")
        assert await handle.result(timeout=20) == "x"
        assert (await handle.info()).lane == "mail"


async def test_a_worker_claims_only_what_it_is_capable_of(place: Place):
    plain, gpu = place.app(), place.app()
    ran_plain, ran_gpu = list[str](), list[str]()
    echo = echo_on(plain, ran_plain)
    echo_on(gpu, ran_gpu)
    async with plain:
        needs_gpu = await echo.options(requires={"gpu"}).start("gpu")
        needs_both = await echo.options(requires={"gpu", "eu"}).start("both")
        assert await echo("plain") == "plain"
        async with gpu.worker(capabilities={"gpu"}):
            assert await needs_gpu.result(timeout=20) == "gpu"
            assert (await needs_both.info()).status == Status.READY
    assert (ran_plain, ran_gpu) == (["plain"], ["gpu"])


async def test_a_worker_claims_only_workflows_and_versions_that_it_has(place: Place):
    old, new = place.app(), place.app()
    echo_old, echo_new = echo_on(old, version="1"), echo_on(new, version="2")
    async with old, new:
        one, two = await echo_old.start("1"), await echo_new.start("2")
        assert await one.result(timeout=20) == "1"
        assert await two.result(timeout=20) == "2"
        [first], [second] = await one.attempts(), await two.attempts()
        assert first.worker != second.worker
        assert ((await one.info()).version, (await two.info()).version) == ("1", "2")


async def test_a_client_runs_nothing(app: App):
    ran: list[str] = []
    echo = echo_on(app, ran)
    async with app.client():
        handle = await echo.start("x")
        with pytest.raises(TimeoutError):
            await handle.result(timeout="100ms")
    assert ran == []


# ---- how much at once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["async def", "def"])
async def test_concurrency_is_a_limit_that_is_used_and_kept(app: App, colour: str):
    running = most = 0
    used = asyncio.Event()

    @app.step
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 4:
            used.set()
        async with asyncio.timeout(20):
            await used.wait()
        await asyncio.sleep(0.01)
        running -= 1

    async def calls() -> None:
        await work()

    def calls_def() -> None:
        work.sync()

    busy: Any = app.workflow(calls if colour == "async def" else calls_def, name="busy")
    async with app.worker(concurrency=4):
        handles = await app.start_many(busy.bind() for _ in range(20))
        await asyncio.gather(*(handle.result(timeout=20) for handle in handles))
    assert most == 4


async def test_a_worker_claims_as_capacity_frees(app: App):
    """With polling put off, each end makes room for the next claim."""
    echo = echo_on(app)
    async with app.worker(concurrency=2, poll="1h"):
        handles = await app.start_many(echo.bind(str(n)) for n in range(50))
        results = await asyncio.gather(*(handle.result(timeout=20) for handle in handles))
    assert results == [str(n) for n in range(50)]


@pytest.mark.parametrize("concurrency, begun", [(1, 1), (2, 3), (3, 5)])
async def test_room_is_for_code_and_not_for_ends_on_their_way(
    place: Place, monkeypatch: pytest.MonkeyPatch, concurrency: int, begun: int
):
    """What has only to be written leaves its room to the next, up to as many as run; but one at a time is one."""
    app, ran, durable = place.app(), list[str](), asyncio.Event()
    echo = echo_on(app, ran)
    really = LocalHolder.tell

    async def tell(self: LocalHolder, seen: Execution, fact: facts.HolderFact, **options: Any) -> Reply:
        if isinstance(fact, facts.Complete):
            await durable.wait()
        return await really(self, seen, fact, **options)

    monkeypatch.setattr(LocalHolder, "tell", tell)
    async with app.client():
        handles = [await echo.start(str(number)) for number in range(8)]
    async with app.worker(concurrency=concurrency):
        await until(lambda: len(ran) >= begun, "the next does not begin")
        await asyncio.sleep(0.1)
        assert len(ran) == begun
        durable.set()
        for handle in handles:
            await handle.result(timeout=20)
    assert sorted(ran) == sorted(str(number) for number in range(8))


async def test_code_that_is_lost_keeps_its_room_until_it_has_stopped(app: App, gate: Gate):
    """Whose lease is gone has nothing to write; but as long as it cleans up, it runs."""
    begun, cleaned, go = list[str](), asyncio.Event(), asyncio.Event()

    @app.step
    async def works(name: str) -> str:
        begun.append(name)
        try:
            await (gate() if name == "lost" else go.wait())
        finally:
            if name == "lost":
                await cleaned.wait()
        return name

    @app.workflow
    async def code(name: str) -> str:
        return await works(name)

    async with app.worker(concurrency=2) as worker:
        await code.start("lost")
        await gate.reached()
        worker.attempts[0].lose("for this test")
        others = [await code.start(name) for name in "ab"]
        await until(lambda: len(begun) > 1, "the other room is not used")
        await asyncio.sleep(0.1)
        at_once = len(begun)
        cleaned.set()
        go.set()
        assert at_once == 2, begun
        assert [await one.result(timeout=20) for one in others] == ["a", "b"]


async def test_what_waits_elsewhere_takes_no_room(clocked: Place):
    """A hundred executions that back off for long leave room for one more on a worker with room for one."""
    app = clocked.app()

    @app.step(retry=Retry(max_attempts=2, initial="1h", max_delay="1h"))
    async def fails() -> None:
        raise TimeoutError

    @app.workflow
    async def patient() -> None:
        await fails()

    echo = echo_on(app)
    async with app.worker(concurrency=1):
        await app.start_many(patient.bind() for _ in range(100))

        async def all_suspended() -> bool:
            return await app.count(status="suspended") == 100

        await until(all_suspended, "not all are suspended")
        assert await echo("room") == "room"


async def test_def_code_runs_side_by_side_in_threads(app: App):
    meet = threading.Barrier(5, timeout=20)

    @app.step
    def meets() -> None:
        meet.wait()

    @app.workflow
    def visitor() -> None:
        meets()

    async with app.worker(concurrency=5):
        handles = await app.start_many(visitor.bind() for _ in range(5))
        await asyncio.gather(*(handle.result(timeout=20) for handle in handles))


# ---- how it stops -------------------------------------------------------------------------------------------------


async def test_closing_lets_what_runs_finish(place: Place, gate: Gate):
    app = place.app()

    @app.step
    async def wait() -> str:
        await gate()
        return "finished"

    @app.workflow
    async def waiting() -> str:
        return await wait()

    async with app.worker(drain="20s"):
        await waiting.options(id="it").start()
        await gate.reached()
        asyncio.get_running_loop().call_later(0.05, gate.open)
    async with app.client():
        assert await waiting.execution("it").result(timeout=20) == "finished"
        info = await waiting.execution("it").info()
    assert (info.attempts, info.crashes, info.failures) == (1, 0, 0)


async def test_closing_hands_back_what_does_not_finish(place: Place, gate: Gate):
    stopped: list[str] = []

    def make(gate: Gate | None) -> tuple[App, Any]:
        app = place.app()

        @app.step
        async def wait() -> str:
            try:
                if gate is not None:
                    await gate()
            except asyncio.CancelledError:
                stopped.append("stopped")
                raise
            return "finished"

        @app.workflow
        async def waiting() -> str:
            return await wait()

        return app, waiting

    app, waiting = make(gate)
    async with app.worker(drain="50ms"):
        await waiting.options(id="it").start()
        await gate.reached()
    assert stopped == ["stopped"]
    async with app.client():
        assert (await waiting.execution("it").info()).status == Status.READY, "without waiting for the lease to run out"
    app, waiting = make(None)
    async with app:
        assert await waiting.execution("it").result(timeout=20) == "finished"
        info = await waiting.execution("it").info()
    assert (info.attempts, info.crashes, info.failures) == (1, 0, 0), "being handed back counts as nothing"


@pytest.mark.parametrize("waits_for", ["a sleep", "a sleep in a thread", "a timeout"])
async def test_closing_does_not_wait_for_what_only_waits(clocked: Place, waits_for: str):
    """It would stay in memory, because it is woken soon. But another worker can wake it as well."""

    def make() -> tuple[App, Any]:
        app = clocked.app(resident="1m")

        if waits_for == "a sleep in a thread":

            @app.workflow(name="waiting")
            def thread() -> str:
                outlast.sync.sleep("50s")
                return "woken"

            return app, thread

        @app.workflow
        async def waiting() -> str:
            if waits_for == "a sleep":
                await outlast.sleep("50s")
            else:
                with suppress(TimeoutError):
                    await outlast.receive("word", str, timeout="50s")
            return "woken"

        return app, waiting

    app, waiting = make()
    loop = asyncio.get_running_loop()
    async with app.worker(drain="10m") as worker:
        handle = await waiting.options(id="it").start()

        async def waits() -> bool:
            attempt = worker.resident("default", "it")
            return attempt is not None and attempt.at_rest and not attempt.under_way

        await until(waits, "it does not wait")
        assert (await handle.info()).status == Status.ACTIVE, "it is resident"
        began_s = loop.time()
    assert loop.time() - began_s < 30, "it was waited for"
    async with app.client():
        assert (await waiting.execution("it").info()).status == Status.SUSPENDED
    app, waiting = make()
    async with app:
        await clocked.pass_time(app, "1m")
        assert await waiting.execution("it").result(timeout=20) == "woken"
        info = await waiting.execution("it").info()
    assert (info.attempts, info.crashes, info.failures) == (1, 0, 0)


@pytest.mark.on_cluster
async def test_a_worker_that_leaves_says_so_in_all_partitions_at_once(place: Place):
    points, beside = CrashPoints(), store_for(place.url)
    app = App(place.url, store=lambda: store_for(place.url, points=points))
    echo = echo_on(app)

    async def present() -> set[int]:
        return {partition for partition in range(beside.partitions) if await beside.scan(Session.KIND, (partition,))}

    async with app:
        assert await echo("anything") == "anything"
        await beside.open()
        assert len(await present()) == beside.partitions
        points.passed.clear()
    assert await present() == set()
    assert points.passed.count("commit:begin") <= 3, "one, or one for each server"
    await beside.close()


async def test_closing_that_is_cut_short_leaves_nothing_running(
    place: Place, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    """Whoever closes the app has no more time for it: nothing may go on behind their back."""
    monkeypatch.setattr(worker_module, "CUT_SHORT_S", 20)  # where the machine stalls, handing back takes longer
    app, stopped = place.app(), asyncio.Event()

    @app.step
    async def works() -> None:
        try:
            await gate()
        finally:
            stopped.set()

    @app.workflow
    async def code() -> None:
        await works()

    before = asyncio.all_tasks()
    await app.__aenter__()
    await code.options(id="it").start()
    await gate.reached()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await app.__aexit__()
    assert stopped.is_set()
    await until(lambda: asyncio.all_tasks() == before, "something goes on")
    gate.open()
    async with app:
        await app.execution("it").result(timeout=20)
        assert (await app.execution("it").info()).crashes == 0, "it was handed back"


async def test_what_was_claimed_just_now_is_not_handed_back_however_often_somebody_rings(place: Place):
    """The store knows of a claim before its worker hears the answer, which may take a busy loop a while."""
    app = place.app(lease_ttl="10m")
    echo = echo_on(app)
    async with app:
        await echo.options(id="it", lane="elsewhere").start("x")
        opened = app._opened
        assert opened is not None
        assert opened.worker is not None
        assert opened.parts is not None
        request = ClaimRequest(
            namespace="default",
            lanes=("elsewhere",),
            serves=frozenset({("echo", "1")}),
            worker=opened.worker.name,
            claim_id="just-now",
            limit=1,
            lease_ttl_ms=10_000,
        )
        await opened.parts.holder.claim(request)
        for _ in range(5):
            await opened.worker.renew()
        await asyncio.gather(*opened.worker._errands)
        assert (await app.execution("it").info()).status == Status.ACTIVE


async def test_a_closing_worker_claims_nothing_more(place: Place, gate: Gate):
    app, client = place.app(), place.app()
    ran: list[str] = []
    echo_on(app, ran)
    echo = echo_on(client)

    @app.step
    async def wait() -> None:
        await gate()

    @app.workflow
    async def waiting() -> None:
        await wait()

    async with client.client():
        async with app.worker(drain="20s") as worker:
            await waiting.start()
            await gate.reached()

            async def while_closing() -> Status:
                await until(lambda: worker._draining and not worker._claiming, "it does not close")
                handle = await echo.start("late")
                await asyncio.sleep(0.2)
                gate.open()
                return (await handle.info()).status

            closing = asyncio.create_task(while_closing())
        assert await closing == Status.READY
    assert ran == []


async def test_finally_runs_when_code_is_handed_back_and_writes_nothing(place: Place, gate: Gate):
    app = place.app()
    said: list[str] = []

    @app.step
    async def wait() -> None:
        await gate()

    @app.step
    async def clean() -> None:
        said.append("never")

    @app.workflow
    async def careful() -> None:
        try:
            await wait()
        except Exception:
            said.append("swallowed")
        finally:
            said.append("finally")
            await clean()

    async with app.worker(drain=0):
        await careful.options(id="it").start()
        await gate.reached()
    async with app.client():
        assert await careful.execution("it").journal() == []
    assert said == ["finally"]


# ---- leases -------------------------------------------------------------------------------------------------------


async def test_a_worker_that_claims_anew_what_it_lost_stops_the_code_that_it_lost(
    clocked: Place, monkeypatch: pytest.MonkeyPatch
):
    """Its lease ran out (the machine slept), and it is the first to claim again."""
    app = clocked.app()
    gates = [Gate(), Gate()]
    said: list[str] = []

    @app.step
    async def wait() -> int:
        which = said.count("begun")
        said.append("begun")
        try:
            await gates[which]()
        except asyncio.CancelledError:
            said.append("stopped")
            raise
        return which

    @app.workflow
    async def waiting() -> int:
        return await wait()

    async with app.worker(drain="5s") as worker:
        await until(lambda: not worker._others_wait, "its first looks are not over")
        awake = asyncio.Event()
        monkeypatch.setattr(worker, "renew", awake.wait)  # a ring would have it keep the lease
        handle = await waiting.start()
        await gates[0].reached()
        await clocked.pass_time(app, "2d")
        await gates[1].reached()
        monkeypatch.undo()
        awake.set()
        await until(lambda: worker.busy == 1, "the first attempt still runs")
        assert "stopped" in said
        gates[1].open()
        assert await handle.result(timeout=20) == 1
        info = await handle.info()
        assert (info.attempts, info.crashes) == (2, 1)


async def test_a_renewal_without_an_answer_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with place.app(lease_ttl="300ms").worker() as worker:
        await until(lambda: not worker._others_wait, "its first looks are not over")
        awake = asyncio.Event()
        monkeypatch.setattr(worker, "renew", awake.wait)
        await until(lambda: "renewing the leases failed" in caplog.text, "nobody says that a renewal failed")
        monkeypatch.undo()
        awake.set()
    assert "renewing the leases failed, and is tried again: no answer in time" in caplog.text


# ---- code that blocks the loop ------------------------------------------------------------------------------------


async def test_code_that_blocks_the_loop_is_warned_of_with_its_line(app: App):
    said: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "in rude" in record.getMessage():
                said.append(record.getMessage())

    @app.step
    async def rude() -> None:
        for _ in range(2_000):
            time.sleep(0.01)  # noqa: ASYNC251
            if said:
                break
        time.sleep(0.3)  # noqa: ASYNC251 (for a look or two more)

    @app.workflow
    async def blocks() -> None:
        await rude()

    log, heard = logging.getLogger("outlast.runtime.watchdog"), Heard()
    log.addHandler(heard)
    try:
        async with app:
            await blocks()
    finally:
        log.removeHandler(heard)
    [warning] = said
    assert "blocked" in warning
    lines = [rude.fn.__code__.co_firstlineno + below for below in (2, 3, 4)]
    assert any(f"test_worker.py:{line} in rude" in warning for line in lines), warning


# ---- sharing ------------------------------------------------------------------------------------------------------


async def test_two_apps_on_one_store_share_the_work(place: Place):
    ran: dict[str, list[str]] = {"one": [], "two": []}

    def make(which: str) -> tuple[App, Any]:
        app = place.app()

        @app.step
        async def work(n: int) -> int:
            ran[which].append(str(n))
            # Neither gets ahead by more than it has room for, however late the other is.
            mine, other = len(ran[which]), ran["two" if which == "one" else "one"]
            await until(lambda: len(other) > mine - 3 or sum(map(len, ran.values())) == 30, f"only {which} works")
            return n

        @app.workflow
        async def busy(n: int) -> int:
            return await work(n)

        return app, busy

    (one, busy), (two, _) = make("one"), make("two")
    async with one.worker(concurrency=3), two.worker(concurrency=3):
        handles = await one.start_many(busy.bind(n) for n in range(30))
        assert await asyncio.gather(*(handle.result(timeout=20) for handle in handles)) == list(range(30))
    assert sorted(map(int, ran["one"] + ran["two"])) == list(range(30)), "each ran once"
    assert len(ran["one"]) >= 5
    assert len(ran["two"]) >= 5


SETTINGS = {
    "fast path off": {"fast_path": "no"},
    "doorbell off": {"doorbell": "no"},
    "both off": {"fast_path": "no", "doorbell": "no"},
}


@pytest.mark.parametrize("setting", SETTINGS)
async def test_the_nets_alone_carry_everything(place: Place, gate: Gate, setting: str):
    """Doorbells and the fast path are hints: without them the same happens, a little later."""
    client = place.app(**SETTINGS[setting])
    app = place.app(lease_ttl="1s", **SETTINGS[setting])  # a cancel may be heard of with the next renewal
    echo, ran = echo_on(client), list[str]()
    echo_on(app, ran)

    @app.step
    async def wait() -> None:
        await gate()

    @app.workflow
    async def waiting() -> None:
        await wait()

    async with client.client(), app.worker(poll="50ms"):
        assert await (await echo.start("from elsewhere")).result(timeout=20) == "from elsewhere"
        handles = await client.start_many(echo.bind(str(n)) for n in range(20))
        assert len([await handle.result(timeout=20) for handle in handles]) == 20
        running = await waiting.start()
        await gate.reached()
        await client.execution(running.id).cancel()
        await status_is(running, "cancelled")
        assert Counter(info.status for info in await client.find()) == {"succeeded": 21, "cancelled": 1}


# ---- processes ----------------------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, os
from pathlib import Path
from outlast import App

app = App()

@app.step
async def where() -> int:
    Path(f"{os.getpid()}.here").touch()
    while len(list(Path().glob("*.here"))) < 2:  # the other one has work, too
        await asyncio.sleep(0.01)
    return os.getpid()

@app.workflow
async def locate() -> int:
    return await where()
"""


@pytest.fixture
def program(tmp_path: Path, place: Place):
    """`outlast worker` on a program of its own, in real processes."""
    (tmp_path / "program.py").write_text(PROGRAM)
    started: list[subprocess.Popen[bytes]] = []

    def worker(*options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "outlast", "worker", "program:app", "--url", place.url, *options]
        started.append(subprocess.Popen(command, cwd=tmp_path))
        return started[-1]

    yield worker
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.slow
async def test_two_processes_on_one_store_share_the_work_and_drain(place: Place, program):
    app = place.app()

    @app.step
    async def where() -> int: ...

    @app.workflow
    async def locate() -> int:
        return await where()

    async def present() -> set[str]:
        sessions = await app.opened()._engine.store.scan(Session.KIND, ())
        return {session.worker for session in sessions if isinstance(session, Session)}

    async def both_are_here() -> bool:
        return len(await present()) == 2

    async with app.client():
        processes = [program("--concurrency", "2"), program("--concurrency", "2")]
        await until(both_are_here, "they do not begin")
        handles = await app.start_many(locate.bind() for _ in range(200))
        pids = {await handle.result(timeout=60) for handle in handles}
        assert pids == {process.pid for process in processes}
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [await asyncio.to_thread(process.wait, 20) for process in processes] == [0, 0]


async def test_what_has_ended_leaves_no_garbage(app: App):
    """Everything of an attempt is freed when it ends: nothing waits for the collector, however many there were."""

    @app.step
    async def twice(number: int) -> int:
        return 2 * number

    @app.workflow
    async def double(number: int) -> int:
        return await twice(number) + await twice(number)

    async with app:
        await asyncio.gather(*(double(number) for number in range(20)))
        gc.collect()
        gc.disable()
        try:
            await asyncio.gather(*(double(number) for number in range(20)))
            await asyncio.sleep(0.05)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = Counter(type(one).__name__ for one in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left["LiveAttempt"] == left["Operation"] == left["WorkflowLoop"] == left["Task"] == 0, left
