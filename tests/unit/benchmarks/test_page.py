"""The page of benchmarks says what was measured: all of it, losses too, and on which machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.page import DOCS, losses, page, plots, publish, published
from benchmarks.report import Bar, Published
from tests.unit.benchmarks.figures import row, run_of


def test_machine_and_load_are_named():
    text = page({"postgres": run_of(row("outlast", 900.0))})
    assert "PostgreSQL 18, durable, Python 3.11.7, A Processor, 2 cores, Linux 6" in text
    assert "Load of the machine before the run 0.2, after it 2.7" in text


def test_bars_are_shown_met_or_missed():
    text = page({"postgres": run_of(bars=(Bar("70× dbos", True), Bar("idle start p50 9.0 ms", False)))})
    assert "| met | 70× dbos |" in text
    assert "| **missed** | idle start p50 9.0 ms |" in text


def test_figures_of_a_case_share_a_table_with_their_noise():
    text = page({"postgres": run_of(row("bare", 4_000.0), row("outlast", 2_000.0, noise=100.0), row("dbos", 20.0))})
    assert "**end-to-end**, 10 steps, concurrency 100" in text
    assert "| system | steps_per_s (steps/s) |" in text
    assert "| bare | 4,000 |" in text
    assert "| outlast 1.2 | 2,000 (1,900 – 2,100) |" in text
    assert "| dbos 1.2 | 20.0 |" in text


def test_cases_are_told_apart():
    text = page({"postgres": run_of(row("outlast", 1.0), row("outlast", 2.0, workers=4))})
    assert text.count("**end-to-end**, ") == 2
    assert "**end-to-end**, 10 steps, concurrency 100, 4 processes" in text


def test_a_peer_with_a_higher_rate_is_a_loss():
    assert list(losses([row("outlast", 500.0), row("pgqueuer", 800.0)])) == [
        "- end-to-end, 10 steps, concurrency 100, steps_per_s: pgqueuer 800.0 steps/s, Outlast 500.0 steps/s"
    ]


def test_a_peer_with_a_lower_time_is_a_loss():
    def waited(system: str, p50_ms: float):
        return row(system, p50_ms, metric="p50_ms", unit="ms", scenario="idle-start", steps=0, concurrency=1)

    assert list(losses([waited("outlast", 3.0), waited("taskiq", 1.7), waited("celery", 9.0)])) == [
        "- idle-start, p50_ms: taskiq 1.700 ms, Outlast 3.000 ms"
    ]


def test_the_yardstick_is_no_peer_and_other_cases_are_not_compared():
    assert not list(losses([row("outlast", 5.0), row("bare", 9.0), row("dbos", 9.0, workers=4)]))


def test_losses_are_on_the_page():
    text = page({"postgres": run_of(row("outlast", 500.0), row("pgqueuer", 800.0))})
    assert "- end-to-end, 10 steps, concurrency 100, steps_per_s: pgqueuer" in text
    assert "None in this run." in page({"postgres": run_of(row("outlast", 500.0), row("pgqueuer", 80.0))})


def test_a_plot_needs_somebody_to_compare_with():
    assert not plots(run_of(row("outlast", 500.0)))
    assert list(plots(run_of(row("outlast", 500.0), row("dbos", 5.0)))) == ["steps"]


def test_publishing_keeps_the_run_and_makes_page_and_plots(tmp_path: Path):
    run = run_of(row("outlast", 500.0), row("dbos", 5.0))
    publish(run, "postgres", tmp_path)
    assert published(tmp_path / "benchmarks") == {"postgres": run}
    assert (
        "![Ten steps each, 100 at a time, one process](benchmarks/postgres-steps.svg)"
        in (tmp_path / "benchmarks.md").read_text()
    )
    assert (tmp_path / "benchmarks" / "postgres-steps.svg").read_text().startswith("<svg")


def test_publishing_one_store_leaves_the_others_on_the_page(tmp_path: Path):
    publish(run_of(row("outlast", 500.0)), "postgres", tmp_path)
    publish(run_of(row("outlast", 700.0)), "sqlite", tmp_path)
    text = (tmp_path / "benchmarks.md").read_text()
    assert text.index("## SQLite") < text.index("## PostgreSQL")


def test_plots_of_an_older_run_are_removed(tmp_path: Path):
    publish(run_of(row("outlast", 500.0), row("dbos", 5.0)), "postgres", tmp_path)
    publish(run_of(row("outlast", 500.0)), "postgres", tmp_path)
    assert not list((tmp_path / "benchmarks").glob("*.svg"))


def test_a_published_run_reads_as_it_was_written():
    run = run_of(row("outlast", 500.0, noise=3.0), bars=(Bar("x", True),))
    assert msgspec.json.decode(msgspec.json.encode(run), type=Published) == run


def test_the_page_in_the_docs_is_what_its_runs_give():
    assert (DOCS / "benchmarks.md").read_text() == page(published(DOCS / "benchmarks"))
