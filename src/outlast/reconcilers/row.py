"""What a reconciler is: how often, how much at once, what it looks at, and what it does with one item."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from outlast.model.record import Record
from outlast.reconcilers.sharing import STEAL_AFTER_INTERVALS
from outlast.runtime.engine import Engine
from outlast.store.port import EVERYTHING, Due, DueKind, Filter

Repair: TypeAlias = Callable[[Engine, Record], Awaitable[bool]]
"""Repairs one item, and says whether there was something to do: that it was done meanwhile is no error."""

RepairTogether: TypeAlias = Callable[[Engine, Sequence[Record]], Awaitable[list[bool]]]
"""Repairs many in one commit, and says which: each of the others is then repaired by itself."""

RepairWithin: TypeAlias = Callable[[Engine, Record, Filter], Awaitable[bool]]
"""The same for an item that stands for many: the filter says which of them are this reconciler's to repair."""

Look: TypeAlias = Callable[[Engine, int, Filter], Awaitable[Due]]
"""What is due, for a row that has no due index of its own."""


Sweep: TypeAlias = Callable[[Engine, int, Filter], Awaitable[int]]
"""Repairs up to so many items in one go, and says how many, for what the store does natively."""


class Row(Struct, frozen=True, kw_only=True):
    """One line of the table. `what` is its line in the docs. It repairs item by item, or sweeps."""

    name: str
    what: str
    interval_ms: int
    batch: int
    repair: Repair | None = None
    repair_together: RepairTogether | None = None
    repair_within: RepairWithin | None = None
    sweep: Sweep | None = None
    due: DueKind | None = None
    look: Look | None = None
    steal_after: int = STEAL_AFTER_INTERVALS
    """When an item is overdue by so many intervals, every process takes it, whoever's it is."""
    eager: bool = False
    """What it repairs may be due still, as a cycle takes a part of it: look again at once, while there is progress."""
    unhurried: bool = False
    """Nothing waits for it: it looks for the first time when an interval is over, and not while a process starts."""
    enabled: bool = True
    filter: Filter = EVERYTHING
