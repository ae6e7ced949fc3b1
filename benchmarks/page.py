"""`docs/benchmarks.md`, made from the runs in `docs/benchmarks/STORE.json`: tables, plots, bars, and every loss.

    python -m benchmarks.page        # make the page again from the runs that were published

`python -m benchmarks --publish` keeps its run there and makes the page. Nothing on the page is written by hand but the
words in this file, and what is not flattering is on it by the same rule as what is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.plots import Mark, bar_chart
from benchmarks.report import Published, Row, number

DOCS = Path(__file__).resolve().parent.parent / "docs"
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "valkey": "Valkey"}
YARDSTICK = "bare"
OURS = "outlast"
LOWER_IS_BETTER = ("ms", "µs", "s", "trips")
NOT_COMPARED = ("ratio", "of fair")

INTRO = """# Benchmarks

<!-- Made by `python -m benchmarks.page` from the runs in docs/benchmarks/: do not edit. -->

How fast Outlast is, beside the yardstick and beside its peers, in turns of one run on one machine. `bare` is what the
same disk, driver and batches give when nothing is decided, guarded or indexed: a prototype by hand, not something to
use. Peers are pinned (`benchmarks/peers/*.txt`), each in an environment of its own, with a server set up like
Outlast's, as durable, and with the settings that their own documentation recommends; where a documented setting makes a
peer faster, it has that. A figure is the median of interleaved turns, in brackets the least and the most of them. *A
figure of another machine, or of a busy one, cannot be compared with these*: run `make bench STORE=…` on your own.

What is measured:

- **end-to-end**: executions of so many steps from start to result, so many at a time (`concurrency`), all in one
  process, or shared by four (`processes`). **jittered**: the same with steps that take up to 4 ms.
- **backlog**: thousands are started while nobody works; then worker processes drain them, each for so many at a time,
  timed from the first claim to the moment when nothing is left undone or unacknowledged. No steps.
- **idle-start**, **event-wake**: from the call in another process to the first line of user code: of a new execution,
  or behind a wait that held no process.
- **round-trips**: between a lone execution and its server, counted on the wire.
- CPU is that of the Python process that runs the executions, not of the server.

To publish: `make bench-publish STORE=sqlite` (or `postgres`, `valkey`) on an idle machine.
"""
NOTHING = "\nNo run has been published yet.\n"
NO_LOSSES = "None in this run."


class Chart(Struct, frozen=True, kw_only=True):
    """One plot, of every store that has such rows."""

    name: str
    title: str
    scenario: str
    metric: str
    steps: int = 0
    concurrency: int = 1
    workers: int = 1


CHARTS = (
    Chart(
        name="steps",
        title="Ten steps each, 100 at a time, one process",
        scenario="end-to-end",
        metric="steps_per_s",
        steps=10,
        concurrency=100,
    ),
    Chart(
        name="lone-steps",
        title="Ten steps each, one at a time",
        scenario="end-to-end",
        metric="steps_per_s",
        steps=10,
    ),
    Chart(
        name="executions",
        title="No steps, 100 at a time, one process",
        scenario="end-to-end",
        metric="executions_per_s",
        concurrency=100,
    ),
    Chart(
        name="drain",
        title="A backlog, drained by one worker process",
        scenario="backlog",
        metric="drain_per_s",
        concurrency=100,
    ),
    Chart(name="idle-start", title="Idle start, median", scenario="idle-start", metric="p50_ms"),
    Chart(name="event-wake", title="Event to resumed code, median", scenario="event-wake", metric="p50_ms"),
)


def publish(run: Published, store: str, docs: Path = DOCS) -> None:
    folder = docs / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{store}.json").write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
    write(docs)


def write(docs: Path = DOCS) -> None:
    """The page and its plots, from all runs that were published."""
    folder = docs / "benchmarks"
    runs = published(folder)
    for stale in folder.glob("*.svg"):
        stale.unlink()
    for store, run in runs.items():
        for name, svg in plots(run).items():
            (folder / f"{store}-{name}.svg").write_text(svg)
    (docs / "benchmarks.md").write_text(page(runs))


def published(folder: Path) -> dict[str, Published]:
    found = {store: folder / f"{store}.json" for store in STORES}
    decode = msgspec.json.Decoder(Published).decode
    return {store: decode(path.read_bytes()) for store, path in found.items() if path.exists()}


def page(runs: dict[str, Published]) -> str:
    parts = [INTRO, *(_of_store(store, run) for store, run in runs.items())]
    return "".join(parts) if runs else INTRO + NOTHING


def plots(run: Published) -> dict[str, str]:
    """Charts that have somebody to compare with."""
    made: dict[str, str] = {}
    for chart in CHARTS:
        rows = [row for row in run.rows if _shows(chart, row)]
        if len(rows) > 1:
            marks = [Mark(row.system, row.value, row.low, row.high) for row in _ranked(rows)]
            made[chart.name] = bar_chart(chart.title, _unit(rows[0]), marks)
    return made


def _shows(chart: Chart, row: Row) -> bool:
    wanted = (chart.scenario, chart.metric, chart.steps, chart.concurrency, chart.workers)
    return (row.scenario, row.metric, row.steps, row.concurrency, row.workers) == wanted


# ---- one store ------------------------------------------------------------------------------------------------------


def _of_store(store: str, run: Published) -> str:
    machine = run.machine
    lines = [
        "",
        f"## {STORES[store]}",
        "",
        f"{machine.store}, Python {machine.python}, {machine.processor}, {machine.cores} cores, {machine.system}; "
        f"{machine.began}, {machine.minutes:.0f} minutes, up to {machine.turns} turns. Load of the machine before the "
        f"run {machine.load_before:.1f}, after it {machine.load_after:.1f} (its own included).",
        "",
        *((run.note, "") if run.note else ()),
        *(f"![{chart.title}](benchmarks/{store}-{chart.name}.svg)" for chart in CHARTS if chart.name in plots(run)),
        "",
        f"### Bars of {STORES[store]}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {'met' if bar.met else '**missed**'} | {_cell(bar.text)} |" for bar in run.bars),
        "",
        f"### Where a peer does better than Outlast on {STORES[store]}",
        "",
        *(list(losses(run.rows)) or [NO_LOSSES]),
        "",
        f"### Figures of {STORES[store]}",
        "",
        *_tables(run.rows),
    ]
    return "\n".join(lines).rstrip() + "\n"


def losses(rows: list[Row]) -> Iterator[str]:
    """Every figure of a peer that is better than ours in the same case. The yardstick is no peer."""
    for case in _cases(rows).values():
        ours = {row.metric: row for row in case if row.system == OURS}
        for row in case:
            own = ours.get(row.metric)
            if own is None or row.system in (OURS, YARDSTICK) or row.unit in NOT_COMPARED:
                continue
            if (row.value < own.value) if _lower_is_better(row) else (row.value > own.value):
                where = f"{row.scenario}{_describe(row)}"
                yield (
                    f"- {where}, {row.metric}: {_cell(row.system)} {number(row.value)} {row.unit}, "
                    f"Outlast {number(own.value)} {own.unit}"
                )


def _tables(rows: list[Row]) -> Iterator[str]:
    for case in _cases(rows).values():
        metrics = list(dict.fromkeys((row.metric, row.unit) for row in case))
        yield f"**{case[0].scenario}**{_describe(case[0])}"
        yield ""
        yield "| system | " + " | ".join(f"{metric} ({unit})" for metric, unit in metrics) + " |"
        yield "|---|" + "---:|" * len(metrics)
        for system in dict.fromkeys((row.system, row.version) for row in case):
            cells = {row.metric: _figure(row) for row in case if (row.system, row.version) == system}
            name = system[0] if system[1] == "-" else f"{system[0]} {system[1]}"
            yield f"| {_cell(name)} | " + " | ".join(cells.get(metric, "") for metric, _ in metrics) + " |"
        yield ""


def _cases(rows: list[Row]) -> dict[tuple[str, int, int, int], list[Row]]:
    cases: dict[tuple[str, int, int, int], list[Row]] = {}
    for row in rows:
        cases.setdefault((row.scenario, row.steps, row.concurrency, row.workers), []).append(row)
    return cases


def _describe(row: Row) -> str:
    said = [f"{row.steps} steps"] if row.scenario.startswith(("end-to-end", "jittered", "lockstep")) else []
    said += [f"concurrency {row.concurrency}"] if row.concurrency > 1 or said else []
    said += [f"{row.workers} processes"] if row.workers > 1 else []
    return "".join(f", {part}" for part in said)


def _figure(row: Row) -> str:
    noise = f" ({number(row.low)} – {number(row.high)})" if row.high > row.low else ""
    return f"{number(row.value)}{noise}"


def _ranked(rows: list[Row]) -> list[Row]:
    """The best first."""
    return sorted(rows, key=lambda row: row.value, reverse=not _lower_is_better(rows[0]))


def _lower_is_better(row: Row) -> bool:
    return row.unit in LOWER_IS_BETTER


def _unit(row: Row) -> str:
    return "executions/s" if row.unit == "1/s" else row.unit


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    write()
    sys.exit(0)
