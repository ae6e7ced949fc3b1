"""The benchmarks run and leave rows that can be compared. How fast anything is, is no test's business."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.peers import environment
from benchmarks.report import Row

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_every_scenario_leaves_its_rows(tmp_path: Path):
    output = tmp_path / "results" / "latest.json"

    done = run("--quick", "--repeats", "1", "--seconds", "0.05", "--rounds", "3", "--output", str(output))

    assert done.returncode == 0, done.stderr
    rows = msgspec.json.decode(output.read_bytes(), type=list[Row], strict=True)
    assert {(row.system, row.scenario) for row in rows if row.metric == "steps_per_s"} == {
        (system, scenario) for system in ("bare", "outlast") for scenario in ("end-to-end", "lockstep", "jittered")
    }
    assert {row.concurrency for row in rows if row.metric == "steps_per_s"} == {1, 100}
    assert {row.metric for row in rows if row.system == "bare"} == {
        "steps_per_s",
        "executions_per_s",
        "p50_ms",
        "p99_ms",
        "cpu_us_per_step",
        "cpu_us_per_execution",
        "enqueue_per_s",
        "drain_per_s",
    }
    assert {(row.steps, row.concurrency) for row in rows if row.scenario == "end-to-end"} == {
        (steps, concurrency) for steps in (0, 1, 10) for concurrency in (1, 100)
    }
    assert {(row.system, row.metric) for row in rows if row.scenario == "backlog"} == {
        (system, metric) for system in ("bare", "outlast") for metric in ("enqueue_per_s", "drain_per_s")
    }
    assert "without DBOS (QUICK)" in done.stdout
    assert {row.metric for row in rows if row.scenario == "sleepers"} == {
        "bytes_each",
        "pages_bytes_each",
        "threads",
        "threads_more",
        "files_more",
        "wake_per_s",
        "drain_per_s",
        "wake_share",
        "late_p50_ms",
        "late_p99_ms",
    }
    assert {(row.scenario, row.metric) for row in rows if row.scenario.startswith("wake-up-")} == {
        (f"wake-up-{kind}", metric) for kind in ("resident", "evicted") for metric in ("p50_ms", "p99_ms")
    }
    assert {row.workers for row in rows if row.scenario == "fairness"} == {4}
    assert {row.scenario for row in rows} >= {"claim-few", "claim-20000", "due-timer-few", "due-timer-20000"}
    assert all(row.store == "sqlite" and row.value >= 0 and row.unit for row in rows)
    keys = msgspec.json.decode(output.read_bytes())[0].keys()
    assert set(keys) == set("system version store scenario steps concurrency workers metric value unit".split())
    assert "bars (" in done.stdout


MEASURED = {
    "end-to-end": {
        ("end-to-end", "steps_per_s"),
        ("end-to-end", "executions_per_s"),
        ("end-to-end", "cpu_us_per_execution"),
    },
    "backlog": {("backlog", "enqueue_per_s"), ("backlog", "drain_per_s")},
    "latency": {("idle-start", "p50_ms"), ("event-wake", "p50_ms")},
    "round-trips": {("round-trips", "trips_per_step"), ("round-trips", "trips_per_execution")},
}
PUBLISHED = {("end-to-end", "executions_per_s"), ("event-wake", "p50_ms")}
"""What FlowFabric says of itself, beside Valkey."""


@pytest.mark.slow
@pytest.mark.parametrize("scenario", MEASURED)
@pytest.mark.parametrize("store", ["postgres", "valkey"])
def test_a_server_is_measured_by_all_that_a_fleet_asks_of_it(store: str, scenario: str, tmp_path: Path):
    output = tmp_path / "latest.json"

    done = run(
        *("--store", store, "--quick", "--repeats", "1", "--seconds", "0.05", "--rounds", "3"),
        *("--only", scenario, "--output", str(output)),
    )

    assert done.returncode == 0, done.stderr
    rows = msgspec.json.decode(output.read_bytes(), type=list[Row], strict=True)
    assert all(row.store == store for row in rows)
    ours = {(row.scenario, row.metric) for row in rows if row.system == "outlast"}
    assert ours >= MEASURED[scenario]
    published = {(row.scenario, row.metric) for row in rows if row.system == "flowfabric, published"}
    assert published == ({row for row in PUBLISHED if row in MEASURED[scenario]} if store == "valkey" else set())


def test_an_environment_that_cannot_be_made_leaves_the_peer_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*command: str) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="no network\nno such package")

    monkeypatch.setattr(environment, "PEERS", tmp_path)
    monkeypatch.setattr(environment, "_run", fail)

    with pytest.raises(environment.PeerMissing, match="dbos could not be installed: no such package"):
        environment.python_for("dbos")
    assert not (tmp_path / "dbos").exists()


def test_the_peer_is_pinned():
    assert environment.version_of("dbos")[0].isdigit()


def test_unknown_store_is_named_with_the_known_ones():
    done = run("--store", "oracle")

    assert done.returncode == 2
    assert "no benchmark for the store 'oracle'; there is: sqlite" in done.stderr


def test_unknown_scenario_is_named_with_the_known_ones():
    done = run("--only", "everything")

    assert done.returncode == 2
    assert "sqlite has no scenario 'everything'; there is: end-to-end, backlog, commit, fairness, scale" in done.stderr
