"""Accepts a flow in one commit, and lets begin here at once what waits for nothing, as far as there is room.

As with executions (`fast_path.py`), the commit that accepts is then the claim of the first members: no look for work,
and nothing is overtaken. If a gate is shut, it is accepted without the claims.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from outlast.errors import IdHeld, OutlastError
from outlast.machine.changes import Changes, inserted, started_by
from outlast.machine.decide_flow import NewFlow, NewMember, accepted
from outlast.model.execution import Execution, execution_key
from outlast.model.lane import Lane
from outlast.model.session import Session
from outlast.runtime.flows.downstream_cache import TOGETHER_MAX

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine
    from outlast.runtime.rooms import Rooms
    from outlast.store.port import Verdict

_log = logging.getLogger(__name__)


class Acceptance(Struct, frozen=True, gc=False):
    """What became of it. `begun` are the members that began here by it."""

    verdict: Verdict
    begun: frozenset[str] = frozenset()


async def accept(engine: Engine, partition: int, new: NewFlow, members: list[NewMember]) -> Acceptance:
    """All of it, or nothing."""
    rooms = engine.rooms
    worker, firsts = _promised(rooms, members)
    if rooms is not None and worker is not None:
        found = await _begin(
            engine, rooms, firsts, lambda: accepted(partition, new, members, worker=worker, begins=firsts)
        )
        if found is not None and not _is_gate(found.verdict):
            return found
    whole = accepted(partition, new, members)
    verdict, committed_at = await engine.group.commit_timed(whole)  # it owes nobody anything: there is nothing to post
    if verdict.applied and not verdict.again:
        engine.flows.downstreams.remember(whole, committed_at)
    return Acceptance(verdict)


def _promised(rooms: Rooms | None, members: list[NewMember]) -> tuple[str | None, dict[str, NewMember]]:
    """Who claims, and which members: room is kept for them."""
    worker, firsts = None, dict[str, NewMember]()
    for member in members:
        start = member.start
        if rooms is None or len(firsts) == TOGETHER_MAX:
            break
        if start.blocked_on is None:
            promised = rooms.promise(start.lane, frozenset(start.requires))
            if promised is not None:
                worker, firsts[start.id] = promised, member
    return worker, firsts


async def _begin(
    engine: Engine, rooms: Rooms, firsts: dict[str, NewMember], decided: Callable[[], Changes]
) -> Acceptance | None:
    """None if somebody else's open transaction keeps an id: room is not kept for so long."""
    whole: Changes | None = None
    try:
        whole = decided()
        verdict, held = await _committed(engine, whole, firsts)
    except asyncio.CancelledError:
        # The commit may be under way: what was accepted must not lie idle until its lease runs out.
        assert whole is not None
        rooms.errand(_begin_anyway(engine, rooms, whole, firsts))
        raise
    except IdHeld:
        _release(rooms, len(firsts))
        return None
    except BaseException:
        _release(rooms, len(firsts))
        raise
    return _begun(rooms, verdict, held, firsts)


async def _begin_anyway(engine: Engine, rooms: Rooms, whole: Changes, firsts: dict[str, NewMember]) -> None:
    """Verbatim, so it is the same start: if it was committed before, this finds it."""
    try:
        verdict, held = await _committed(engine, whole, firsts)
    except OutlastError as error:
        # If it was accepted, its leases run out, or a renewal finds that they do not run.
        _log.warning("a start of a flow that nobody waits for any more: %s", error)
        _release(rooms, len(firsts))
        return
    _begun(rooms, verdict, held, firsts)


async def _committed(engine: Engine, whole: Changes, firsts: dict[str, NewMember]) -> tuple[Verdict, list[Execution]]:
    """The verdict, and what is held here by it."""
    verdict, committed_at = await engine.group.commit_timed(whole)
    held: list[Execution] = []
    if verdict.again:
        held = await _still_held(engine, whole, firsts)
    elif verdict.applied:
        engine.flows.downstreams.remember(whole, committed_at)
        first = [inserted(one, committed_at) for one in started_by(whole) if one.id in firsts]
        held = [one for one in first if isinstance(one, Execution)]
    return verdict, held


def _begun(rooms: Rooms, verdict: Verdict, held: list[Execution], firsts: dict[str, NewMember]) -> Acceptance:
    """Each takes the room that was promised for it, also if one of them cannot begin."""
    left = len(firsts)
    try:
        for execution in held:
            left -= 1
            rooms.keep(execution, firsts[execution.id].start.input)
    finally:
        _release(rooms, left)
    return Acceptance(verdict, frozenset([execution.id for execution in held]))


async def _still_held(engine: Engine, whole: Changes, firsts: dict[str, NewMember]) -> list[Execution]:
    """The reply of the commit was lost: when they began is in the records, of those that are held still."""
    keys = [execution_key(one.start.namespace, one.start.id) for one in firsts.values()]
    found = await engine.store.load(keys)
    return [one for one in found if isinstance(one, Execution) and one.claim_id == whole.id]


def _release(rooms: Rooms, number: int) -> None:
    for _ in range(number):
        rooms.release()


def _is_gate(verdict: Verdict) -> bool:
    """Whether nothing but the claim was refused: the worker's session has lapsed, or the lane is paused."""
    return verdict.refused_by is not None and verdict.refused_by.key.kind in (Session.KIND, Lane.KIND)
