"""`python -m benchmarks --store sqlite [--quick] [--only NAME] [--profile]`: measure, print, keep the figures."""

from __future__ import annotations

import argparse
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from os import cpu_count, getloadavg
from pathlib import Path

import apsw

import outlast
from benchmarks import (
    backlog,
    bursts,
    commit_path,
    end_to_end,
    fairness,
    flows,
    postgres,
    scale,
    scale_postgres,
    sleepers,
    valkey,
    virtual,
    wakeups,
)
from benchmarks.page import publish
from benchmarks.report import RESULTS, Machine, Published, Report, heading
from benchmarks.settings import Settings
from outlast.testing.postgres_server import installations
from outlast.testing.valkey_server import binary as valkey_binary

SCENARIOS: dict[str, dict[str, Callable[[Settings, Report], None]]] = {
    "sqlite": {
        "end-to-end": end_to_end.measure,
        "backlog": backlog.measure,
        "commit": commit_path.measure,
        "fairness": fairness.measure,
        "scale": scale.measure,
        "flows": flows.measure,
        "virtual": virtual.measure,
        "sleepers": sleepers.measure,
        "wake-ups": wakeups.measure,
        "bursts": bursts.measure,
    },
    "postgres": {
        "end-to-end": postgres.end_to_end,
        "backlog": postgres.backlog,
        "latency": postgres.latency,
        "round-trips": postgres.round_trips,
        "scale": scale_postgres.measure,
        "flows": flows.measure,
        "bursts": bursts.measure,
    },
    "valkey": {
        "end-to-end": valkey.end_to_end,
        "backlog": valkey.backlog,
        "latency": valkey.latency,
        "round-trips": valkey.round_trips,
        "flows": flows.measure,
        "bursts": bursts.measure,
    },
}


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    # An end from outside still ends the servers and workers that were started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scenarios = SCENARIOS[options.store]
    settings = Settings(
        store=options.store,
        version=outlast.__version__,
        quick=options.quick,
        profile=options.profile,
        systems=_systems(options),
        repeats=options.repeats or (3 if options.quick else 9),
        seconds=options.seconds or (0.3 if options.quick else 2.0),
        finished=options.finished or (20_000 if options.quick else 1_000_000),
        ready=2_000 if options.quick else 100_000,
        rounds=options.rounds or (100 if options.quick else 1_000),
    )
    began, report, load_before = time.perf_counter(), Report(), getloadavg()[0]
    print(
        f"outlast {outlast.__version__} · {_behind(options.store)} · "
        f"Python {platform.python_version()} · {cpu_count()} cores, load {load_before:.1f} · "
        f"medians of {settings.repeats} turns, their minimum and maximum beside them"
    )
    for name, measure in scenarios.items():
        if options.only in (None, name):
            measure(settings, report)
    report.write(options.output)
    if options.publish:
        minutes = (time.perf_counter() - began) / 60
        machine = Machine(
            processor=_processor(),
            cores=cpu_count() or 0,
            system=f"{platform.system()} {platform.release()}",
            python=platform.python_version(),
            store=_behind(options.store),
            began=f"{datetime.now(UTC):%Y-%m-%d}",
            minutes=minutes,
            load_before=load_before,
            load_after=getloadavg()[0],
            turns=settings.repeats,
        )
        publish(Published(machine=machine, rows=report.rows, bars=report.bars), options.store)
    heading(f"bars ({time.perf_counter() - began:.0f} s, load now {getloadavg()[0]:.1f}; {options.output})")
    for bar in report.bars:
        print(f"  {bar}")
    return 0


def _behind(store: str) -> str:
    """What keeps the data, with its version."""
    match store:
        case "postgres":
            return f"PostgreSQL {max(installations(), default='missing')}, durable"
        case "valkey":
            said = subprocess.run([valkey_binary(), "--version"], capture_output=True, text=True, check=True).stdout
            version = next((word[2:] for word in said.split() if word.startswith("v=")), "?")
            return f"Valkey {version}, append-only file"
        case _:
            return f"SQLite {apsw.sqlite_lib_version()}, WAL, synchronous=FULL"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _systems(options: argparse.Namespace) -> frozenset[str] | None:
    named = options.peers or ("none" if options.quick else "all")
    return None if named == "all" else frozenset(named.split(","))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--store", default="sqlite", help=f"one of: {', '.join(SCENARIOS)}")
    parser.add_argument("--quick", action="store_true", help="less of everything: done within a minute")
    parser.add_argument("--only", metavar="NAME", help="one scenario: end-to-end, backlog, commit, …")
    parser.add_argument("--peers", metavar="NAME,…", help="only these peers; `none`, which QUICK means, or `all`")
    parser.add_argument("--profile", action="store_true", help="also show where the time is spent")
    parser.add_argument("--repeats", type=int, metavar="N", help="how many turns each system gets")
    parser.add_argument("--seconds", type=float, metavar="S", help="how long each turn takes")
    parser.add_argument("--publish", action="store_true", help="put the run on the page docs/benchmarks.md")
    parser.add_argument("--rounds", type=int, metavar="N", help="how many calls the scale scenario times")
    parser.add_argument("--finished", type=int, metavar="N", help="how long the scale scenario's history is")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help=f"default: {RESULTS}")
    options = parser.parse_args(arguments)
    if options.store not in SCENARIOS:
        parser.error(f"there is no benchmark for the store {options.store!r}; there is: {', '.join(SCENARIOS)}")
    known = SCENARIOS[options.store]
    if options.only is not None and options.only not in known:
        parser.error(f"{options.store} has no scenario {options.only!r}; there is: {', '.join(known)}")
    if options.profile and options.store != "sqlite":
        parser.error("--profile is for sqlite: there the systems are in this process")
    if options.publish and (options.quick or options.only or options.peers):
        parser.error("only a whole run is published: neither --quick, nor --only, nor --peers")
    return options


if __name__ == "__main__":
    sys.exit(main())
