"""A change that settles a debt as well."""

from __future__ import annotations

from typing import Protocol

import msgspec

from outlast.machine.changes import Changes, Delete, Guard, Matches, Write
from outlast.model.record import Key
from outlast.store.port import Store


class Debt(Protocol):
    """A record that is there as long as something is owed: of the outbox, or of a child that is to be closed."""

    @property
    def partition(self) -> int: ...

    @property
    def key(self) -> Key: ...

    @property
    def change_id(self) -> str: ...


def settling(changes: Changes, debt: Debt) -> Changes:
    """The same change, and the debt that it settles, if both live in one partition: neither without the other."""
    if changes.partition != debt.partition:
        return changes
    owed: Guard = Matches(debt.key, {"change_id": debt.change_id})
    struck: Write = Delete(debt.key)
    return msgspec.structs.replace(
        changes,
        anchors=(*changes.anchors, debt.key),
        guards=(owed, *changes.guards),
        writes=(*changes.writes, struck),
        shape=None,
    )


async def is_owed(store: Store, debt: Debt) -> bool:
    """Whether nobody has settled it yet."""
    [record] = await store.load([debt.key])
    return record is not None
