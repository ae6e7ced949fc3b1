"""Metrics by name. Plain numbers that anybody may read at any time; exporters translate them."""

from __future__ import annotations

from dataclasses import dataclass

RECONCILER_CYCLES = "outlast_reconciler_cycles_total"
RECONCILER_DURATION = "outlast_reconciler_cycle_seconds"
RECONCILER_PROCESSED = "outlast_reconciler_processed_total"
RECONCILER_ERRORS = "outlast_reconciler_errors_total"
RECONCILER_LAG = "outlast_reconciler_lag_seconds"
RECONCILER_DEPTH = "outlast_reconciler_backlog_depth"
RECONCILER_DUE = "outlast_reconciler_due"


@dataclass
class ReconcilerMetrics:
    """Of one reconciler. `lag_s`, `due` and `depth` are samples: one that failed keeps the last value, never zero, and
    before the first that succeeded there is none.

    `due` is what is to be repaired now. `depth` is all that is owed: of `cancel_backlog` also what is still left to
    whoever cancelled, of all others the same.
    """

    cycles: int = 0
    duration_s: float = 0.0
    processed: int = 0
    errors: int = 0
    lag_s: float = 0.0
    depth: int = 0
    due: int = 0
    sampled: bool = False

    def samples(self, reconciler: str) -> list[tuple[str, dict[str, str], float]]:
        """(metric, labels, value) for an exporter."""
        labels = {"reconciler": reconciler}
        counted: list[tuple[str, dict[str, str], float]] = [
            (RECONCILER_CYCLES, labels, self.cycles),
            (RECONCILER_DURATION, labels, self.duration_s),
            (RECONCILER_PROCESSED, labels, self.processed),
            (RECONCILER_ERRORS, labels, self.errors),
        ]
        if not self.sampled:
            return counted
        return [
            *counted,
            (RECONCILER_LAG, labels, self.lag_s),
            (RECONCILER_DEPTH, labels, self.depth),
            (RECONCILER_DUE, labels, self.due),
        ]
