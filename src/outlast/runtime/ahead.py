"""What waits for the end of a member and for nothing else, known before that end: of a flow that this process started,
and of a member whose beginning is being committed here.

An end that hands on (`handing_on.py`) needs to know who waits for it. That hardly ever changes while they wait, and
whatever is decided upon it is guarded: what turns out to be old is refused, and read anew. So this saves reads, and is
never relied upon. It is bounded: what nobody asks for is forgotten, the oldest first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from msgspec import Struct

from outlast.errors import OutlastError
from outlast.machine.changes import Changes, Insert, inserted
from outlast.machine.decide_member import MemberView, waits
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import Dependency, Flow, FlowState, Member, flow_key, member_key
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import Key, Record

Seen: TypeAlias = dict[Key, Record | None]
"""What was looked at just now, and need not be again: every change is guarded by what it was decided upon."""

TOGETHER_MAX = 8
"""So few that wait for nothing else are advanced in the commit that strikes off the debt."""
KNOWN_MAX = 2_000
"""So many members' downstreams are known ahead."""
BYTES_MAX = 16 * 1024
"""Only of so many bytes of inputs each."""


class Behind(Struct, frozen=True):
    """Few members that wait for one end alone, their flow, and all that was read of them."""

    flow: Flow
    views: list[MemberView]
    seen: Seen


class Known(Struct, frozen=True):
    """What is behind a member. None: nothing, or it is not that simple."""

    behind: Behind | None


def wanted_of(namespace: str, flow_id: str, page: list[Dependency]) -> list[Key]:
    """All that must be known of those behind an end, the flow first."""
    keys = [flow_key(namespace, flow_id)]
    for one in page:
        keys += (execution_key(namespace, one.downstream), member_key(namespace, one.downstream))
        keys += (payload_key(namespace, one.downstream, 1, role) for role in (Role.TEMPLATE, Role.INPUT))
    return keys


def are_simple(views: list[MemberView], page: list[Dependency]) -> bool:
    """All of them are there, and each waits for this one end."""
    return len(views) == len(page) and all(view.member.upstreams == 1 and waits(view) for view in views)


def are_few(page: list[Dependency]) -> bool:
    """Few enough for one commit, and each waits for nothing else. Of one that waits for thousands, nothing is read with
    each of their ends."""
    return len(page) <= TOGETHER_MAX and all(one.alone for one in page)


class Ahead:
    """`read` finds out what is behind a member."""

    def __init__(self, read: Callable[[Execution], Coroutine[Any, Any, Behind | None]]) -> None:
        self._read = read
        self._known: dict[Key, Known | asyncio.Task[Known | None]] = {}
        self.remembers = False
        """Whether members begin in this process, so that it is worth while."""

    async def take(self, execution: Execution) -> Known | None:
        """What is known ahead of its end, once; None if nothing is."""
        known = self._known.pop(execution.key, None)
        return await known if isinstance(known, asyncio.Task) else known

    def look(self, execution: Execution) -> None:
        """It is about to begin here: find out who waits for its end while that is being written."""
        if execution.key not in self._known:
            self._keep(execution.key, asyncio.create_task(self._look(execution), name="outlast look ahead"))

    async def _look(self, execution: Execution) -> Known | None:
        try:
            return _small(await self._read(execution))
        except OutlastError:
            return None  # whoever asks will ask the store, and hear of it there

    def remember(self, started: Changes, now: int) -> None:
        """A flow that was started by this commit, all of it."""
        if not self.remembers:
            return
        records: Seen = {write.record.key: write.record for write in started.writes if type(write) is Insert}
        [flow] = [record for record in records.values() if isinstance(record, Flow)]
        behind: dict[str, list[Dependency]] = {r.id: [] for r in records.values() if isinstance(r, Execution)}
        for record in records.values():
            if isinstance(record, Dependency) and record.execution in behind:
                behind[record.execution].append(record)
        for upstream, page in behind.items():
            known = _small(_of_new(flow, page, records, started, now))
            if known is not None:
                self._keep(execution_key(flow.namespace, upstream), known)

    def _keep(self, key: Key, known: Known | asyncio.Task[Known | None]) -> None:
        while len(self._known) >= KNOWN_MAX:
            self._forget(next(iter(self._known)))
        self._known[key] = known

    def _forget(self, key: Key) -> None:
        known = self._known.pop(key)
        if isinstance(known, asyncio.Task):
            known.cancel()

    def close(self) -> None:
        for key in list(self._known):
            self._forget(key)


def _of_new(flow: Flow, page: list[Dependency], records: Seen, started: Changes, now: int) -> Behind | None:
    if not page or not are_few(page) or flow.state is not FlowState.OPEN:
        return None
    seen = {key: records.get(key) for key in wanted_of(flow.namespace, flow.id, page)}
    views: list[MemberView] = []
    for one in page:
        execution = seen[execution_key(flow.namespace, one.downstream)]
        member = seen[member_key(flow.namespace, one.downstream)]
        assert isinstance(execution, Execution)
        assert isinstance(member, Member)
        stored = inserted(execution, now)
        assert isinstance(stored, Execution)
        seen[stored.key] = stored
        views.append(MemberView(started.partition, stored, member))
    return Behind(flow, views, seen) if are_simple(views, page) else None


def _small(behind: Behind | None) -> Known | None:
    """None if it is too much to keep."""
    records = () if behind is None else behind.seen.values()
    size = sum(len(record.value) for record in records if isinstance(record, Payload))
    return Known(behind) if size <= BYTES_MAX else None
