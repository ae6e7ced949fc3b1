"""A batch that was not taken whole: what was answered stays answered, and the rest fails alone.

What a full server refuses may be the repetition of a change that was applied, and whose answer was lost. So it is
looked for before anybody is told that it failed: the records that a change leaves bear its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.errors import OutlastError, ReplyLost, StoreFull, StoreReadOnly
from outlast.machine import guards
from outlast.machine.changes import Changes
from outlast.model.execution import Execution
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
    asked = {
        place: (*keys, *filter(None, [guards.anchored_execution(batch[place])]))
        for place, error in failed.items()
        if isinstance(error, StoreFull | StoreReadOnly) and (keys := guards.signed_keys(batch[place]))
    }
    wanted = list({key: None for keys in asked.values() for key in keys})
    there = dict(zip(wanted, await reading.load(call, wanted, partitions), strict=True)) if wanted else {}
    found: dict[int, Verdict | OutlastError] = {}
    for place in asked:
        if not guards.applied_before(batch[place], there):
            continue
        if confirmed and isinstance(failed[place], StoreFull):
            anchor = guards.anchored_execution(batch[place])
            execution = None if anchor is None else there[anchor]
            inbox = execution.inbox if isinstance(execution, Execution) else None
            found[place] = Verdict(True, inbox, again=True)
        else:
            found[place] = ReplyLost(f"it was written, and whether it lasts is not known yet: {failed[place]}")
    return found
