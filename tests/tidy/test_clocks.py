"""Time and chance come from one place each (`runtime/timing.py`, `runtime/entropy.py`), so that a test or a simulation
can give its own. Times of day are the store's."""

from __future__ import annotations

import ast

import pytest

from tests.tidy.tree import package_files, relative

ROOMS = ("runtime", "reconcilers", "client", "authoring", "app.py", "opened.py")

CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"},
    "asyncio": {"wait_for", "timeout", "timeout_at"},
    "random": {"random", "uniform", "choice", "randint", "shuffle", "sample"},
    "uuid_utils": {"uuid4", "uuid7"},
    "uuid": {"uuid1", "uuid4"},
    "os": {"urandom"},
}

PLACES = {
    "runtime/timing.py": "the place itself",
    "runtime/entropy.py": "the place itself",
    "runtime/watchdog.py": "tells that the real loop is blocked, from a thread",
    "app.py": "the blocking face waits for another thread that opens the app, in the portal's own loop",
    "runtime/attempts/stream.py": "a thread of def code waits for room",
}


def readings(source: str) -> list[str]:
    """Calls that read a clock, wait for one or draw a number. `asyncio.sleep(0)` waits for a turn, not for time."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="sleep"), args=[ast.Constant(value=0)]):
                pass
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="sleep")):
                found.append(f"line {node.lineno}: asyncio.sleep")
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if name in CLOCKS.get(module, ()):
                found.append(f"line {node.lineno}: {module}.{name}")
            case _:
                pass
    return found


def _room(path: str) -> str:
    return path.removeprefix("src/outlast/")


def test_time_and_chance_have_one_place_each():
    inside = [path for path in package_files(".py") if _room(relative(path)).startswith(ROOMS)]
    assert len(inside) > 80
    found = [
        f"{relative(path)}: {finding}"
        for path in inside
        if _room(relative(path)) not in PLACES
        for finding in readings(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_every_exception_is_one():
    files = {_room(relative(path)): path for path in package_files(".py")}
    for place in PLACES:
        assert readings(files[place].read_text()), f"{place} reads no clock any more: take it off the list"


@pytest.mark.parametrize(
    "source",
    ["time.monotonic()", "asyncio.sleep(0.1)", "asyncio.sleep(delay)", "asyncio.timeout(3)", "random.random()"],
)
def test_the_rule_notices(source: str):
    assert readings(source)


@pytest.mark.parametrize(
    "source",
    ["asyncio.sleep(0)", "self._timing.time_s()", "engine.entropy.random()", "def f(time_s=time.monotonic): ..."],
)
def test_the_rule_leaves_alone(source: str):
    assert readings(source) == []
