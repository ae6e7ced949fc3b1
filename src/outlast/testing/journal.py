"""What an execution has recorded, in words that a test can assert on, and that a failing test prints."""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.client.info import JournalInfo
from outlast.codec.failures import decode_failure
from outlast.model.journal import STEP
from outlast.model.operation import PLAIN


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded operation: `value` is what it gave as plain JSON data, or the text of what it raised."""

    op: str
    name: str
    occurrence: int
    scope: str
    outcome: str
    tries: int
    value: Any

    def __str__(self) -> str:
        again = f" #{self.occurrence}" if self.occurrence > 1 else ""
        branch = f" in branch {self.scope.rstrip('.')}" if self.scope else ""
        tries = f" after {self.tries} tries" if self.tries > 1 else ""
        return f"{self.op} {self.name}{again}{branch}: {self.outcome}{tries} {self.value!r}"


class Journal:
    """`journal = await h.journal(handle)`; `journal.assert_steps("charge", "ship")`; `journal.value("charge")`."""

    def __init__(self, execution_id: str, entries: list[Entry]) -> None:
        self.execution_id = execution_id
        self.entries = entries

    @property
    def steps(self) -> list[str]:
        """The names of the recorded steps, in the order in which they were recorded."""
        return [entry.name for entry in self.entries if entry.op == STEP]

    def count(self, name: str) -> int:
        """How often an operation of that name was recorded."""
        return sum(1 for entry in self.entries if entry.name == name)

    def entry(self, name: str, occurrence: int = 1) -> Entry:
        """The nth recorded operation of that name."""
        found = [entry for entry in self.entries if entry.name == name]
        assert len(found) >= occurrence, f"{name!r} was recorded {len(found)} times, not {occurrence}\n\n{self}"
        return found[occurrence - 1]

    def value(self, name: str, occurrence: int = 1) -> Any:
        return self.entry(name, occurrence).value

    def outcome(self, name: str, occurrence: int = 1) -> str:
        """`succeeded`, `failed` or `cancelled`."""
        return self.entry(name, occurrence).outcome

    def assert_steps(self, *names: str) -> None:
        """These steps, in this order, and no others."""
        assert self.steps == list(names), f"expected the steps {', '.join(names) or 'none'}\n\n{self}"

    def assert_ran(self, name: str, *, times: int = 1) -> None:
        assert self.count(name) == times, f"expected {name!r} {times} times, not {self.count(name)}\n\n{self}"

    def assert_never_ran(self, name: str) -> None:
        self.assert_ran(name, times=0)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        lines = [f"  {number}. {entry}" for number, entry in enumerate(self.entries, start=1)]
        return "\n".join([f"the journal of {self.execution_id!r}:", *(lines or ["  (nothing)"])])


def journal_of(execution_id: str, recorded: list[JournalInfo]) -> Journal:
    """Without the engine's own marks: the failed tries of a step are counted at the step."""
    return Journal(execution_id, [_entry(one) for one in recorded if one.op not in PLAIN])


def _entry(one: JournalInfo) -> Entry:
    return Entry(
        op=one.op,
        name=one.name,
        occurrence=one.occurrence,
        scope=one.scope,
        outcome=one.outcome,
        tries=one.tries,
        value=_value(one),
    )


def _value(one: JournalInfo) -> Any:
    if one.value is None:
        return None
    if one.outcome == "failed":
        failure = decode_failure(one.value)
        return f"{failure.type}: {failure.message}"
    try:
        return msgspec.json.decode(one.value)
    except msgspec.DecodeError:
        return one.value
