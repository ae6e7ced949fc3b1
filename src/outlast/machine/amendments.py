"""What may be added to changes that were decided before: other decided changes, guards, and a debt that is settled.

Nothing else amends a decided change, and each of these functions checks that what was checked of its parts still holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import structs

from outlast.errors import CorruptState
from outlast.machine.changes import Changes, Delete, Guard, Matches, Patch
from outlast.model.event import Event
from outlast.model.outbox import Delivery
from outlast.model.record import Key

_DEBTS = frozenset({Delivery.KIND, Event.KIND})


class Debt(Protocol):
    """A record that is there as long as something is owed: of the outbox, or of a child that is to be closed."""

    @property
    def partition(self) -> int: ...

    @property
    def key(self) -> Key: ...

    @property
    def change_id(self) -> str: ...


def together(first: Changes, others: Sequence[Changes]) -> Changes:
    """One change that is all of them, or none. Each part was checked by itself, so no two may patch one record."""
    anchors, rings = dict.fromkeys(first.anchors), dict.fromkeys(first.rings)
    guards, writes = list(first.guards), list(first.writes)
    patched = {write.key for write in writes if type(write) is Patch}
    for other in others:
        if other.partition != first.partition:
            raise CorruptState(f"change {first.id!r} is of partition {first.partition}, not of {other.partition}")
        for write in other.writes:
            if type(write) is Patch:
                if write.key in patched:
                    raise CorruptState(f"two parts of change {first.id!r} patch {write.key}")
                patched.add(write.key)
        anchors.update(dict.fromkeys(other.anchors))
        guards += [guard for guard in other.guards if guard not in guards]
        writes += other.writes
        rings.update(dict.fromkeys(other.rings))
    return structs.replace(
        first, anchors=tuple(anchors), guards=tuple(guards), writes=tuple(writes), rings=tuple(rings), shape=None
    )


def with_guards(changes: Changes, guards: Sequence[Guard]) -> Changes:
    """The same change, refused unless these guards hold as well. They are asked first."""
    return structs.replace(changes, guards=(*guards, *changes.guards), shape=None)


def acknowledging(changes: Changes, debt: Debt) -> Changes:
    """The same change, and the debt that it settles, if both live in one partition: neither without the other."""
    if changes.partition != debt.partition:
        return changes
    if debt.key.kind not in _DEBTS:
        raise CorruptState(f"{debt.key} is no debt, and is not struck off")
    return structs.replace(
        changes,
        anchors=(*changes.anchors, debt.key),
        guards=(Matches(debt.key, {"change_id": debt.change_id}), *changes.guards),
        writes=(*changes.writes, Delete(debt.key)),
        shape=None,
    )
