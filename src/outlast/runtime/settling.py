"""A change that settles a debt of the outbox as well."""

from __future__ import annotations

import msgspec

from outlast.machine.changes import Changes, Delete, Guard, Matches, Write
from outlast.model.outbox import Delivery


def settling(changes: Changes, delivery: Delivery) -> Changes:
    """The same change, and the debt that it settles, if both live in one partition: neither without the other."""
    if changes.partition != delivery.partition:
        return changes
    owed: Guard = Matches(delivery.key, {"change_id": delivery.change_id})
    struck: Write = Delete(delivery.key)
    return msgspec.structs.replace(
        changes,
        anchors=(*changes.anchors, delivery.key),
        guards=(owed, *changes.guards),
        writes=(*changes.writes, struck),
    )
