"""Where `fork(from_step=…)` and `retry(from_step=…)` cut a journal: what was recorded before a step stays."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.errors import ExecutionRefused, InvalidInput
from outlast.machine import retry_cut
from outlast.machine.changes import Code
from outlast.machine.replay import BESIDE
from outlast.model.journal import ORIGIN, SLEEP, UNDO_SCOPE, UNWIND, JournalEntry
from outlast.model.operation import CALLED, UNDOABLE

OCCURRENCE = "#"
"""`charge#2` is the second recorded call of `charge`."""


def cut(
    execution_id: str, journal: Sequence[JournalEntry], from_step: str
) -> tuple[list[JournalEntry], list[JournalEntry]]:
    """(what stays, what goes) of a journal in the order of its positions; an unknown step is refused with those that
    there are, and one behind anything that may have been undone. A cancel that the code observed before the step goes
    too, with what it cut short: what goes on from there is not cancelled."""
    step = _found(execution_id, journal, from_step)
    beside = {(f"{step.scope}{BESIDE}{step.occurrence}", step.name)}
    if step.op == SLEEP and not any(_sleeps(entry, step) for entry in journal if entry.position < step.position):
        beside.add((BESIDE, step.name))  # a named timer stands there: the first sleep of that name has set it
    cancelled = {entry.position for entry in retry_cut.cut_short(journal)}
    kept: list[JournalEntry] = []
    dropped: list[JournalEntry] = []
    for entry in journal:
        # What stands beside the step (its failed tries, how long it may wait) goes with it.
        goes = entry.position >= step.position or (entry.scope, entry.name) in beside or entry.position in cancelled
        # The mark that says who recorded the kept part stands behind it, and is kept.
        (dropped if goes and entry.op != ORIGIN else kept).append(entry)
    if all(entry.op == ORIGIN for entry in kept):
        kept, dropped = [], list(journal)
    if any(entry.op == UNWIND for entry in journal) and any(entry.op in UNDOABLE for entry in kept):
        # Nothing says which of its steps an undo takes back.
        raise ExecutionRefused(
            execution_id,
            Code.NOT_ALLOWED,
            f"its undos have run, so what it did before {from_step!r} may be taken back; start it anew, with "
            "if_exists='restart', or name its first step",
        )
    return kept, dropped


def run_again(execution_id: str, journal: Sequence[JournalEntry], from_step: str) -> list[JournalEntry]:
    """What leaves the journal for a retry from that step: all that goes, and how long what is kept still waits."""
    kept, dropped = cut(execution_id, journal, from_step)
    return [*dropped, *retry_cut.still_waiting(kept)]


def _sleeps(entry: JournalEntry, step: JournalEntry) -> bool:
    return (entry.op, entry.name) == (SLEEP, step.name)


def _found(execution_id: str, journal: Sequence[JournalEntry], from_step: object) -> JournalEntry:
    if not isinstance(from_step, str) or not from_step:
        raise InvalidInput(f"from_step must be the name of a recorded step, not {from_step!r}")
    by_name: dict[str, list[JournalEntry]] = {}
    for entry in journal:
        if entry.op in CALLED and entry.scope != UNDO_SCOPE and BESIDE not in entry.scope:
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
