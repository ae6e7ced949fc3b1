"""Where `fork(from_step=…)` and `retry(from_step=…)` cut a journal: what was recorded before a step stays."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.errors import InvalidInput
from outlast.machine.replay import BESIDE
from outlast.model.journal import PATCH, RETRY, JournalEntry

OCCURRENCE = "#"
"""`charge#2` is the second recorded call of `charge`."""


def cut(
    execution_id: str, journal: Sequence[JournalEntry], from_step: str
) -> tuple[list[JournalEntry], list[JournalEntry]]:
    """(what stays, what goes) of a journal in the order of its positions; an unknown step is refused with those that
    there are."""
    step = _found(execution_id, journal, from_step)
    beside = (f"{step.scope}{BESIDE}{step.occurrence}", step.name)
    kept: list[JournalEntry] = []
    dropped: list[JournalEntry] = []
    for entry in journal:
        # What stands beside the step (its failed tries, how long it may wait) goes with it.
        goes = entry.position >= step.position or (entry.scope, entry.name) == beside
        (dropped if goes else kept).append(entry)
    return kept, dropped


def _found(execution_id: str, journal: Sequence[JournalEntry], from_step: object) -> JournalEntry:
    if not isinstance(from_step, str) or not from_step:
        raise InvalidInput(f"from_step must be the name of a recorded step, not {from_step!r}")
    by_name: dict[str, list[JournalEntry]] = {}
    for entry in journal:
        if entry.op not in (RETRY, PATCH) and BESIDE not in entry.scope:
            by_name.setdefault(entry.name, []).append(entry)
    name, marked, number = from_step.rpartition(OCCURRENCE)
    if from_step in by_name:
        return by_name[from_step][0]
    if marked and number.isdigit() and 1 <= int(number) <= len(by_name.get(name, ())):
        return by_name[name][int(number) - 1]
    names = ", ".join(n if len(calls) == 1 else f"{n} ({len(calls)} times)" for n, calls in by_name.items())
    raise InvalidInput(
        f"execution {execution_id!r} has recorded no {from_step!r}; it has recorded {names or 'nothing yet'}"
        f" (write NAME{OCCURRENCE}2 for the second call of a name)"
    )
