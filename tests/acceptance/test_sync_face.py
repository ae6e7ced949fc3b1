"""The blocking face: for programs, scripts and threads that have no event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast import App, ExecutionCancelled, ExecutionNotFound, Status, WrongPlace
from tests.acceptance.conftest import Place


class Declined(Exception):
    pass


def program_on(app: App) -> Any:
    @app.step
    def parse(line: str) -> int:
        return int(line)

    @app.step
    async def fetch(name: str) -> str:
        await asyncio.sleep(0)
        return f"<{name}>"

    @app.workflow
    def total(lines: list[str]) -> int:
        return sum(parse(line) for line in lines)

    @app.workflow
    async def page(name: str) -> str:
        if name == "bad":
            raise Declined(name)
        return await fetch(name)

    return total, page, parse, fetch


@pytest.fixture
def served(place: Place) -> Iterator[App]:
    """A worker in a thread of its own, as another process would be; yields an app that nobody has opened."""
    app = place.app()
    program_on(app)
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def serve() -> None:
        async with app:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(20)
    yield place.app()
    loop.call_soon_threadsafe(stop.set)
    thread.join(20)
    loop.close()


def close(app: App) -> None:
    """A program just ends; a test must leave nothing open."""
    from outlast.client.portal import portal

    portal().call(app._close)


def test_a_program_without_a_loop_starts_and_waits(served: App):
    total, page, _, _ = program_on(served)
    try:
        assert page.sync.start("index").result(timeout=20) == "<index>"
        assert page.sync("index") == "<index>"
        assert total(["1", "2"]) == 3, "a def workflow is called as the function that it is"
        assert total.sync.start(["3"]).result(timeout=20) == 3
    finally:
        close(served)


def test_the_blocking_handle_does_all_that_the_other_does(served: App):
    _, page, _, _ = program_on(served)
    try:
        handle = page.options(id="it", delay="1h", tags={"kind": "page"}).sync.start("index")
        assert handle.id == "it"
        info = handle.info()
        assert (info.status, info.reason, info.tags) == (Status.BLOCKED, "delay", {"kind": "page"})
        handle.hold()
        assert handle.info().reason == "operator"
        handle.release()
        with pytest.raises(TimeoutError):
            handle.result(timeout="20ms")
        handle.cancel("no")
        with pytest.raises(ExecutionCancelled):
            handle.result(timeout=20)
        handle.retry()
        assert handle.result(timeout=20) == "<index>"
        again = page.sync.execution("it")
        assert [entry.name for entry in again.journal()] == ["fetch"]
        assert [attempt.outcome for attempt in again.attempts()] == ["succeeded"]
        with pytest.raises(ExecutionNotFound):
            page.sync.execution("nobody").info()
    finally:
        close(served)


def test_failures_come_back_as_themselves(served: App):
    _, page, _, _ = program_on(served)
    try:
        with pytest.raises(Declined, match="bad"):
            page.sync("bad")
    finally:
        close(served)


def test_many_threads_share_one_portal(served: App):
    _, page, _, _ = program_on(served)
    results: list[str] = []
    before = {thread.name for thread in threading.enumerate()}

    def visit(n: int) -> None:
        results.append(page.sync(f"p{n}"))

    threads = [threading.Thread(target=visit, args=(n,)) for n in range(10)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        portals = [thread for thread in threading.enumerate() if thread.name == "outlast portal"]
    finally:
        close(served)
    assert sorted(results) == sorted(f"<p{n}>" for n in range(10))
    assert len(portals) == 1, before


def test_steps_outside_of_a_workflow_are_plain_calls(app: App):
    _, _, parse, fetch = program_on(app)
    assert parse("3") == 3
    assert parse.sync("3") == 3
    assert fetch.sync("x") == "<x>"


async def test_the_blocking_face_is_refused_on_a_loops_thread(app: App):
    total, page, _, fetch = program_on(app)
    async with app:
        for call in (
            lambda: page.sync("x"),
            lambda: page.sync.start("x"),
            lambda: page.sync.execution("x"),
            lambda: total(["1"]),
            lambda: fetch.sync("x"),
        ):
            with pytest.raises(WrongPlace, match="event loop"):
                call()
        assert await app.count() == 0


def test_the_blocking_face_is_refused_while_nobody_runs_the_apps_loop(app: App):
    """As in a `def` test with an app that an async fixture has opened: it would wait for ever."""
    total, _, _, _ = program_on(app)
    with asyncio.Runner() as runner:
        runner.run(app.__aenter__())
        with pytest.raises(WrongPlace, match="does not run just now"):
            total.sync(["1"])
        runner.run(app.__aexit__(None, None, None))


async def test_threads_of_an_open_app_use_its_loop(app: App):
    total, page, _, _ = program_on(app)
    async with app:
        assert await asyncio.to_thread(page.sync, "x") == "<x>"
        assert await asyncio.to_thread(total, ["1", "2"]) == 3
        handle = await asyncio.to_thread(page.sync.start, "y")
        assert await page.execution(handle.id).result(timeout=20) == "<y>"


FORKING = """
import asyncio, os, sys
from outlast import App, OutlastError

app = App(sys.argv[1])

@app.workflow
async def page(name: str) -> str:
    return f"<{name}>"

if sys.argv[2] == "portal":
    # The parent has used the blocking face; the child gets a portal of its own.
    before = page.sync.start("parent")
    child = os.fork()
    if child == 0:
        after = page.sync.start("child")
        os._exit(0 if after.info().status == "ready" and after.id != before.id else 3)
    _, status = os.waitpid(child, 0)
    assert before.info().status == "ready"
    print("child", os.waitstatus_to_exitcode(status))
else:
    # The parent's app is open in a loop; the child, which has neither that loop nor its threads, is told so.
    async def main():
        async with app:
            child = os.fork()
            if child == 0:
                try:
                    app.opened()
                except OutlastError as error:
                    os._exit(0 if type(error).__name__ == "WrongPlace" else 4)
                os._exit(3)
            while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
                await asyncio.sleep(0.01)
            print("child", os.waitstatus_to_exitcode(ended[1]), await page("parent"))
    asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode, said", [("portal", "child 0"), ("open", "child 0 <parent>")])
def test_a_fork_has_a_portal_of_its_own_and_never_its_parents_loop(place: Place, tmp_path: Path, mode: str, said: str):
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    command = [sys.executable, str(script), place.url, mode]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert ran.stdout.strip() == said, ran.stderr
    assert ran.returncode == 0


ENDING = """
import atexit, os, sys, threading, time
from outlast import App

app, mode = App(sys.argv[1]), sys.argv[2]

@app.workflow
async def page(name: str) -> str:
    return f"<{name}>"

handle = page.sync.start("x")
if mode == "waiting":
    threading.Thread(target=handle.result, daemon=True).start()
    time.sleep(0.1)
elif mode == "forking":
    if os.fork() == 0:
        sys.exit()
    os.wait()
elif mode == "exiting":
    atexit.register(lambda: print(handle.info().status))
"""


@pytest.mark.parametrize(
    "mode, said",
    [
        ("ending", ""),
        pytest.param("waiting", "", marks=pytest.mark.slow),
        pytest.param("forking", "", marks=pytest.mark.slow),
        pytest.param("exiting", "ready", marks=pytest.mark.slow),
    ],
)
def test_a_program_that_used_the_blocking_face_ends_without_a_word(place: Place, tmp_path: Path, mode: str, said: str):
    """Whether it just ends, has a daemon thread that waits, has forked, or uses the face when it exits."""
    script = tmp_path / "ending.py"
    script.write_text(ENDING)
    command = [sys.executable, str(script), place.url, mode]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (ran.returncode, ran.stderr, ran.stdout.strip()) == (0, "", said)


def test_a_worker_that_takes_signals_is_refused_beside_the_main_thread_and_says_what_to_use():
    with ThreadPoolExecutor(1) as pool, pytest.raises(WrongPlace, match=r"main thread .*`async with app.worker\(…\)`"):
        pool.submit(App("sqlite:///never.db").run_worker).result()


async def test_a_blocking_worker_is_refused_on_a_loop_and_says_what_to_use():
    with pytest.raises(
        WrongPlace, match=r"run_worker would block .*: `async with app.worker\(…\)`, or `await app.serve"
    ):
        App("sqlite:///never.db").run_worker()


async def test_a_def_workflows_own_code_cannot_use_handles_but_its_steps_can(app: App):
    @app.workflow
    async def waits() -> str:
        return await outlast.receive("go", str)

    @app.step
    def in_a_step(execution_id: str) -> str:
        return waits.sync.execution(execution_id).info().status

    @app.workflow
    def looks() -> list[str]:
        flow = app.flow("f", id="f")
        flow.add("waits", waits)
        fh, handle = flow.sync.start(), waits.sync.execution("f/waits")
        refused = list[str]()
        for call in (fh.status, fh.graph, fh.cancel, fh.retry, handle.info, handle.journal, handle.hold, handle.retry):
            with pytest.raises(WrongPlace, match="do it in a step"):
                call()
            refused.append(call.__name__)
        handle.send("go", "on")
        assert fh.result() == {"waits": "on"}
        return [*refused, in_a_step("f/waits")]

    async with app:
        told = await looks.aio()
    assert told == ["status", "graph", "cancel", "retry", "info", "journal", "hold", "retry", "succeeded"]
