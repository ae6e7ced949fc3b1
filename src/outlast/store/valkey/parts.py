"""A batch that was not taken whole: what was answered stays answered, and the rest fails alone.

What a full server refuses may be the repetition of a change that was applied, and whose answer was lost. So it is
looked for before anybody is told that it failed: the records that a change leaves bear its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.errors import OutlastError, ReplyLost, StoreFull, StoreReadOnly
from outlast.machine.changes import Changes, Insert, Patch
from outlast.model.execution import Execution
from outlast.model.record import Key
from outlast.store.port import Verdict
from outlast.store.valkey import reading
from outlast.store.valkey.claim import Call


async def applied_before(
    call: Call, batch: Sequence[Changes], failed: Mapping[int, OutlastError], partitions: int, *, confirmed: bool
) -> dict[int, Verdict | OutlastError]:
    """Of the changes that failed (by their place in the batch): those that are there nevertheless.

    `confirmed` is whether finding them is enough. It is not if replicas must have them too, nor on a server that takes
    no writes any more: then whether they last is not known.
    """
    signed = {
        place: keys
        for place, error in failed.items()
        if isinstance(error, StoreFull | StoreReadOnly) and (keys := _signed(batch[place]))
    }
    wanted = list({key: None for place, keys in signed.items() for key in (*keys, *_about(batch[place]))})
    there = dict(zip(wanted, await reading.load(call, wanted, partitions), strict=True)) if wanted else {}
    found: dict[int, Verdict | OutlastError] = {}
    for place, keys in signed.items():
        if not any(getattr(there[key], "change_id", None) == batch[place].id for key in keys):
            continue
        if confirmed and isinstance(failed[place], StoreFull):
            inbox = next((one.inbox for key in _about(batch[place]) if isinstance(one := there[key], Execution)), None)
            found[place] = Verdict(True, inbox, again=True)
        else:
            found[place] = ReplyLost(f"it was written, and whether it lasts is not known yet: {failed[place]}")
    return found


def _signed(changes: Changes) -> list[Key]:
    """The records that bear its name once it is applied."""
    inserted = [write.record.key for write in changes.writes if isinstance(write, Insert)]
    patched = [write.key for write in changes.writes if isinstance(write, Patch) and "change_id" in write.fields]
    return inserted + patched


def _about(changes: Changes) -> list[Key]:
    """The execution that it is about, if there is one."""
    return [key for key in changes.anchors if key.kind == Execution.KIND][:1]
