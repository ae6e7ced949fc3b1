"""The in-process fast path: what is started in a process with room begins there at once.

The start and the claim are one commit, so an execution that is started, run and awaited in one process takes one commit
less, and no look for work. Nothing is overtaken: the worker gives room only while it knows of nothing that waits.
"""

from __future__ import annotations

import asyncio
import logging

from outlast.errors import IdHeld, OutlastError
from outlast.machine.facts import Start
from outlast.runtime.engine import Engine, Told
from outlast.runtime.worker import Worker

_log = logging.getLogger(__name__)


class FastPath:
    """`worker = path.room(lane, requires)`, a `Start` with it, `await path.begin(start)`."""

    def __init__(self, engine: Engine, worker: Worker) -> None:
        self._engine = engine
        self._worker = worker

    def room(self, lane: str, requires: frozenset[str]) -> str | None:
        """The worker that a start may name, if there is room. Who gets it calls `begin`, or `leave`."""
        return self._worker.promise(lane, requires)

    def leave(self) -> None:
        """The start will not be made."""
        self._worker.release()

    async def begin(self, fact: Start) -> Told:
        """Start it, and let the worker run what it holds."""
        engine = self._engine
        try:
            answer, asked = engine.propose(fact)
            verdict, committed_at = await asked
            told = engine.begun(fact, answer, verdict, committed_at) or await engine.begun_before(fact, verdict)
        except asyncio.CancelledError:
            # The commit may be under way: a start that was accepted must not lie idle until its lease runs out.
            self._worker.errand(self._begin_anyway(fact))
            raise
        except IdHeld:
            # Somebody else's transaction may stay open for long: the room is not kept for that.
            self._worker.release()
            told = await engine.begin_held(fact)
            self._worker.kick()
            return told
        except BaseException:
            self._worker.release()
            raise
        self._hand_over(told, fact)
        return told

    async def _begin_anyway(self, fact: Start) -> None:
        """Verbatim, so it is the same start: if it was committed before, this finds it."""
        try:
            told = await self._engine.begin(fact)
        except OutlastError as error:
            # If it was accepted, its lease runs out, or a renewal finds that it does not run.
            _log.warning("a start that nobody waits for any more: %s", error)
            self._worker.release()
            return
        self._hand_over(told, fact)

    def _hand_over(self, told: Told, fact: Start) -> None:
        if told.claimed is not None:
            self._worker.keep(told.claimed, fact.input)
        else:
            self._worker.release()
            self._worker.kick()
