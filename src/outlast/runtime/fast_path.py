"""Starts an execution, and lets it begin at once where this process has room for it.

The start and the claim are then one commit, so an execution that is started, run and awaited in one process takes one
commit less, and no look for work. Nothing is overtaken: the worker gives room only while it knows of nothing that
waits.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec import structs

from outlast.errors import IdHeld, OutlastError
from outlast.machine.facts import Start
from outlast.runtime.engine import Engine, Told
from outlast.runtime.rooms import Rooms

_log = logging.getLogger(__name__)


async def start(engine: Engine, fact: Start) -> Told:
    """Start it: claimed by this process's worker if that has room, else left to whoever claims it."""
    rooms = engine.rooms
    if rooms is None:
        return await engine.begin(fact)
    worker = None if fact.delay_ms else rooms.promise(fact.lane, frozenset(fact.requires))
    if worker is None:
        told = await engine.begin(fact)
        rooms.kick()
        return told
    structs.force_setattr(fact, "worker", worker)  # made for this start alone: a copy would be checked once more
    try:
        answer, asked = engine.propose(fact)
        verdict, committed_at = await asked
        told = engine.begun(fact, answer, verdict, committed_at) or await engine.begun_before(fact, verdict)
    except asyncio.CancelledError:
        # The commit may be under way: a start that was accepted must not lie idle until its lease runs out.
        rooms.errand(_start_anyway(engine, rooms, fact))
        raise
    except IdHeld:
        # Somebody else's transaction may stay open for long: the room is not kept for that.
        rooms.release()
        told = await engine.begin_held(fact)
        rooms.kick()
        return told
    except BaseException:
        rooms.release()
        raise
    _hand_over(rooms, told, fact)
    return told


async def _start_anyway(engine: Engine, rooms: Rooms, fact: Start) -> None:
    """Verbatim, so it is the same start: if it was committed before, this finds it."""
    try:
        told = await engine.begin(fact)
    except OutlastError as error:
        # If it was accepted, its lease runs out, or a renewal finds that it does not run.
        _log.warning("a start that nobody waits for any more: %s", error)
        rooms.release()
        return
    _hand_over(rooms, told, fact)


def _hand_over(rooms: Rooms, told: Told, fact: Start) -> None:
    if told.claimed is not None:
        rooms.keep(told.claimed, fact.input)
    else:
        rooms.release()
        rooms.kick()
