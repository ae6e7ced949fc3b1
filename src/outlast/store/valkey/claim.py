"""Claim and renew: which partitions to take from, and what their functions answer.

A claim looks at every partition in one round trip (what waits there, and the first one's place in the order of
claims), then takes from those whose first comes first, in another. So order is exact within a partition; between
partitions the most urgent goes first, and others wait for one claim at most. Partitions whose server is away are left
out, as long as another one answers. If only one partition can have anything (`near.py`), it alone is asked; and while
there is much, and nobody rings, it is known for a little while where it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, cast

from outlast.model.event import Event
from outlast.model.execution import Execution, parse_route
from outlast.model.journal import JournalEntry
from outlast.model.lease import Claimed, ClaimedExecution, ClaimRequest, Held, Leases, Renewed
from outlast.store.valkey.commit import Arguments, packed
from outlast.store.valkey.keys import whole
from outlast.store.valkey.layout import LAYOUTS
from outlast.store.valkey.near import Line, Near

_LAYOUT, _JOURNAL, _EVENT = LAYOUTS[Execution.KIND], LAYOUTS[JournalEntry.KIND], LAYOUTS[Event.KIND]

Call: TypeAlias = Callable[[str, Mapping[int, Arguments]], Awaitable[dict[int, Any]]]
"""Call a function in some partitions."""


async def claim(call: Call, request: ClaimRequest, partitions: int, now: int | None, near: Near) -> Claimed:
    asked = _Asked(call, request, now)
    lines = near.recalled(request, partitions)
    if lines:
        found = await _take_in_order(asked, lines)
        if len(found) == request.limit:
            near.left(lines)
        if found:
            return Claimed(asked.newest, found)
    only = 0 if partitions == 1 else near.only(request)
    if only is not None:  # nothing to choose from
        [(found, _, _)] = (await asked.take([Line(b"", only, 0, request.limit, suspects=request.suspects)])).values()
        if len(found) == request.limit:
            near.left_some()
        if found or partitions == 1:
            return Claimed(asked.newest, found)
    looks = await call("peek", {p: asked.argument(p, request.limit, request.suspects) for p in range(partitions)})
    asked.newest = max(look[0] for look in looks.values())
    before = [Line(b"", p, 0, request.limit) for p, look in looks.items() if look[1]]
    if before:
        taken = await asked.take(before)
        return Claimed(asked.newest, [item for items, _, _ in taken.values() for item in items])
    lines = [Line(look[3], p, look[2]) for p, look in looks.items() if look[2]]
    waiting = sum(line.count for line in lines)
    found = await _take_in_order(asked, lines)
    more = waiting > len(found) or len(looks) < partitions
    near.looked(request, nothing_left=not more)
    if len(found) == request.limit and len(looks) == partitions:
        near.left(lines)
    return Claimed(asked.newest, found, more=more)


async def _take_in_order(asked: _Asked, lines: list[Line]) -> list[ClaimedExecution]:
    """From the lines whose first is first, until enough are taken or no line has any left: those stay that may."""
    limit, suspects = asked.request.limit, asked.request.suspects
    found: list[ClaimedExecution] = []
    while lines and len(found) < limit:
        lines.sort(key=lambda line: line.order)
        chosen = _shared(lines, limit - len(found), suspects)
        taken = await asked.take(chosen)
        for line in chosen:
            got, left, first = taken[line.partition]
            found += got
            line.order = first or line.order
            line.count = left
            line.asked_before = True
            more = len(got) == line.share and line.count > 0
            if len(got) < line.share and line.suspects == 0 and suspects:
                # It had as many, and was to give no suspects: those it has not counted. The first line is asked for
                # them, so this comes to an end.
                line.count = max(left, line.share - len(got))
                more = True
            if suspects is not None:
                suspects -= sum(parse_route(item.execution.route).suspect for item in got)
            if not more:
                lines.remove(line)
    return found


def _shared(lines: list[Line], missing: int, suspects: int | None) -> list[Line]:
    """Who is asked for how many. Only the first may give suspects, if their number is limited: else all might."""
    chosen: list[Line] = []
    for line in lines:
        if missing <= 0:
            break
        line.share = min(missing, line.count)
        line.suspects = 0 if suspects is not None and chosen else suspects
        missing -= line.share
        chosen.append(line)
    return chosen


class _Asked:
    """A request, and the newest time heard while it was answered."""

    def __init__(self, call: Call, request: ClaimRequest, now: int | None) -> None:
        self._call = call
        self.request = request
        self._now = now
        self.newest = 0

    async def take(self, lines: list[Line]) -> dict[int, tuple[list[ClaimedExecution], int, bytes]]:
        """What each line gives, how many are left there, and the first one's place."""
        asked = {
            line.partition: self.argument(line.partition, line.share, line.suspects, line.asked_before)
            for line in lines
        }
        answers = await self._call("claim", asked)
        self.newest = max(self.newest, *(answer[0] for answer in answers.values()))
        return {p: (_claimed(answer[2], answer[1]), answer[3], answer[4] or b"") for p, answer in answers.items()}

    def argument(self, partition: int, limit: int, suspects: int | None, goes_on: bool = False) -> Arguments:
        request = self.request
        return packed(
            (
                self._now or False,
                whole(partition),
                request.namespace,
                tuple(dict.fromkeys(request.lanes)),
                {f"{workflow}|{version}": True for workflow, version in request.serves},
                dict.fromkeys(request.capabilities, True),
                request.worker,
                request.claim_id,
                limit,
                request.lease_ttl_ms,
                -1 if suspects is None else suspects,
                int(goes_on),
                request.leap,
            )
        )


def _claimed(rows: list[Any], again: int) -> list[ClaimedExecution]:
    found: list[ClaimedExecution] = []
    for row, value, began_at, journal, events in rows:
        execution = _LAYOUT.record(row)
        assert isinstance(execution, Execution)
        found.append(ClaimedExecution(execution, value, began_at, *_past(execution, journal, events)))
    return sorted(found, key=_order_again) if again else found


def _past(
    execution: Execution, journal: list[Any] | None, events: list[Any] | None
) -> tuple[list[JournalEntry] | None, list[Event]]:
    """What was there in no order, the journals of other generations among it."""
    if journal is None or events is None:
        return None, []
    entries = [cast("JournalEntry", _JOURNAL.record(row)) for row in journal]
    came = [cast("Event", _EVENT.record(row)) for row in events]
    mine = [entry for entry in entries if entry.generation == execution.journal_generation]
    return mine, sorted(came, key=lambda event: event.seq)


def _order_again(item: ClaimedExecution) -> tuple[int, bool, str]:
    """What a claim took before, as far as its order is still known."""
    return (-item.execution.priority, not item.execution.resumed, item.execution.id)


async def renew(call: Call, worker: str, lease_ttl_ms: int, partitions: int, now: int | None) -> Renewed:
    asked = {p: packed((now or False, whole(p), worker, lease_ttl_ms)) for p in range(partitions)}
    answers = await call("renew", asked)
    leases = [_lease(*values) for answer in answers.values() for values in answer[1]]
    seen = max(answer[0] for answer in answers.values())
    return Renewed(now=seen, held=leases, unreached=frozenset(asked.keys() - answers.keys()))


async def held(call: Call, worker: str, partitions: frozenset[int]) -> Leases:
    answers = await call("held", {partition: packed((worker,)) for partition in partitions})
    leases = [_lease(*values) for answer in answers.values() for values in answer]
    return Leases(held=leases, unreached=partitions - answers.keys())


def _lease(namespace: bytes, execution_id: bytes, epoch: int, inbox: int) -> Held:
    return Held(namespace.decode(), execution_id.decode(), int(epoch), int(inbox))
