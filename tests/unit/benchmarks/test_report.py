"""A figure is kept as the median of its turns, with their noise."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.fleet import System, in_turns
from benchmarks.peers.environment import PeerMissing, version_of
from benchmarks.report import Report, Scene
from benchmarks.throughput import times, together

SCENE = Scene(system="outlast", version="1", store="sqlite", scenario="end-to-end", steps=10, concurrency=100)


def figures(rate: float, p50_ms: float = 1.0):
    return {
        "executions_per_s": rate,
        "steps_per_s": rate * 10,
        "p50_ms": p50_ms,
        "p99_ms": p50_ms * 2,
        "cpu_us_per_execution": 5.0,
    }


def test_the_median_is_kept_with_least_and_most(tmp_path: Path):
    report = Report()
    assert report.add(SCENE, "steps_per_s", [3.0, 9.0, 4.0], "steps/s") == 4.0
    report.write(tmp_path / "latest.json")
    assert [(row.low, row.value, row.high) for row in report.rows] == [(3.0, 4.0, 9.0)]
    [kept] = msgspec.json.decode((tmp_path / "latest.json").read_bytes(), type=list[dict[str, object]])
    assert (kept["value"], kept["system"], kept["concurrency"]) == (4.0, "outlast", 100)
    assert not {"low", "high"} & kept.keys()


def test_a_ratio_compares_the_turns_one_by_one():
    turns = {
        "outlast": [figures(10.0), figures(100.0), figures(40.0)],
        "dbos": [figures(5.0), figures(10.0), figures(10.0)],
    }
    assert times(turns, "dbos") == 4.0  # pyright: ignore[reportArgumentType]
    assert times(turns, "restate") is None  # pyright: ignore[reportArgumentType]


def test_processes_together_add_up_their_rates_and_keep_the_slowest_time():
    both = together([figures(10.0, 1.0), figures(30.0, 3.0)])  # pyright: ignore[reportArgumentType]
    assert (both["executions_per_s"], both["p50_ms"], both["p99_ms"]) == (40.0, 2.0, 6.0)


def test_a_peer_that_fails_is_left_out_and_the_others_go_on(capsys):
    systems = [System(name=name, version="1", module="x", verbs=frozenset({"carry"})) for name in ("outlast", "dbos")]

    def turn(system: System) -> str:
        if system.name == "dbos":
            raise PeerMissing("it broke")
        return system.name

    assert in_turns(systems, 2, turn, verb="carry") == {"outlast": ["outlast", "outlast"]}
    assert "without dbos: it broke" in capsys.readouterr().out


def test_a_system_is_not_asked_for_what_it_cannot_do():
    [celery] = [System(name="celery", version="1", module="x", verbs=frozenset({"enqueue"}))]
    assert in_turns([celery], 1, lambda system: system.name, verb="carry") == {}


def test_every_peer_pins_its_own_version():
    folder = Path("benchmarks/peers")
    packages = {"absurd": "absurd-sdk", "restate": "restate-sdk"}
    names = sorted(path.stem for path in (Path(__file__).parents[3] / folder).glob("*.txt"))
    assert len(names) == 9
    assert all(version_of(name, package=packages.get(name)) for name in names)
