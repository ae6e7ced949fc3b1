"""Changes that wait aside of the line of commits for a transaction of somebody else's: the line goes on without them.

Only starts come here: another transaction that is still open has started the same id (`IdHeld`). What comes later for
the same execution waits behind it, so that the changes of one execution keep their order. A start that a worker claims
does not wait here (`IdHeld`): the worker keeps room for it, which others need meanwhile.
"""

from __future__ import annotations

import asyncio

from outlast.errors import IdHeld
from outlast.machine.changes import Changes, started_by
from outlast.model.execution import Execution
from outlast.model.record import Key
from outlast.runtime.patience import Pause, TimeS, patiently
from outlast.store.port import Committed, Prompt, Store

AT_ONCE = 2
"""So many are tried at the same time: each takes a connection of the store's."""
AGAIN_S, AGAIN_MAX_S = 0.1, 1.0
"""The first pause before one is tried again, and the longest."""


class Aside:
    def __init__(self, store: Store, *, patience_s: float, pause: Pause, time_s: TimeS) -> None:
        self._store = store
        self._prompt = store if isinstance(store, Prompt) else None
        self._patience_s = patience_s
        self._pause = pause
        self._time_s = time_s
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._last: dict[Key, asyncio.Task[Committed]] = {}
        """For each execution that something here is about: what came last."""
        self._closing = False

    def __bool__(self) -> bool:
        return bool(self._last)

    def concerns(self, changes: Changes) -> bool:
        """Whether something here is to be decided before it."""
        return any(anchor in self._last for anchor in changes.anchors)

    def commit(self, changes: Changes) -> asyncio.Task[Committed]:
        keys = {anchor for anchor in changes.anchors if anchor.kind == Execution.KIND}
        keys.update(execution.key for execution in started_by(changes))
        before = {self._last[key] for key in keys if key in self._last}
        task = asyncio.get_running_loop().create_task(self._commit(changes, before), name="outlast commit aside")
        if not (before and _claimed(changes)):
            self._last.update(dict.fromkeys(keys, task))
        task.add_done_callback(self._forget)
        return task

    async def close(self) -> None:
        """Until all that is here is decided; what is held still when it is tried once more stays undecided."""
        self._closing = True
        while self._last:
            await asyncio.wait(set(self._last.values()))

    async def _commit(self, changes: Changes, before: set[asyncio.Task[Committed]]) -> Committed:
        asked_at_s = self._time_s()
        claimed = _claimed(changes)
        if before and claimed:
            raise IdHeld([execution.id for execution in started_by(changes)])
        if before:
            await asyncio.wait(before)
        left_s = self._patience_s - (self._time_s() - asked_at_s)
        for task in before:
            held = None if task.cancelled() else task.exception()
            if left_s <= 0 and isinstance(held, IdHeld):
                raise IdHeld(held.execution_ids)
        return await self._until_free(changes, left_s, once=claimed)

    async def _until_free(self, changes: Changes, left_s: float, *, once: bool) -> Committed:
        delay_s = AGAIN_S
        while True:
            last, tried_at_s = once or self._closing, self._time_s()
            try:
                return await patiently(
                    lambda: self._alone(changes),
                    patience_s=left_s,
                    pause=self._pause,
                    time_s=self._time_s,
                    first_s=AGAIN_S,
                    unless=IdHeld,
                )
            except IdHeld:
                left_s -= self._time_s() - tried_at_s
                if last or left_s <= 0:
                    raise
            await self._pause(delay_s)
            left_s -= delay_s
            delay_s = min(delay_s * 2, AGAIN_MAX_S)

    async def _alone(self, changes: Changes) -> Committed:
        async with self._turn:
            if self._prompt is not None:
                return await self._prompt.commit_promptly([changes])
            return await self._store.commit([changes])

    def _forget(self, task: asyncio.Task[Committed]) -> None:
        for key in [key for key, last in self._last.items() if last is task]:
            del self._last[key]


def _claimed(changes: Changes) -> bool:
    """Whether a worker begins at once what it starts."""
    return any(execution.worker is not None for execution in started_by(changes))
