"""Rows and runs for the tests of the page: short to write, and made up."""

from __future__ import annotations

from benchmarks.report import Bar, Machine, Published, Row


def row(
    system: str,
    value: float,
    *,
    metric: str = "steps_per_s",
    unit: str = "steps/s",
    scenario: str = "end-to-end",
    steps: int = 10,
    concurrency: int = 100,
    workers: int = 1,
    noise: float = 0.0,
) -> Row:
    return Row(
        system=system,
        version="-" if system == "bare" else "1.2",
        store="postgres",
        scenario=scenario,
        steps=steps,
        concurrency=concurrency,
        workers=workers,
        metric=metric,
        value=value,
        unit=unit,
        low=value - noise,
        high=value + noise,
    )


def run_of(*rows: Row, bars: tuple[Bar, ...] = ()) -> Published:
    machine = Machine(
        processor="A Processor",
        cores=2,
        system="Linux 6",
        python="3.11.7",
        store="PostgreSQL 18, durable",
        began="2026-11-15",
        minutes=12.4,
        load_before=0.2,
        load_after=2.7,
        turns=5,
    )
    return Published(machine=machine, rows=list(rows), bars=list(bars))
