"""Waiting for the answer to an update, wherever its execution runs: it takes the place of what was sent."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from outlast.client.waiters import Waiters
from outlast.codec.failures import decode_failure, raised_again
from outlast.codec.values import Values
from outlast.errors import ExecutionConflict, ExecutionEnded, ExecutionNotFound, ExecutionRefused, UpdateRefused
from outlast.machine.changes import Code
from outlast.machine.upkeep import update_withdrawn
from outlast.model.event import UPDATE, Event, event_key
from outlast.model.execution import Execution, execution_key
from outlast.model.partition import partition_of
from outlast.model.record import Key
from outlast.runtime.attempts.asked import FAILED, REFUSED, Answer, answer_in
from outlast.runtime.engine import Engine


class Answers(Struct, frozen=True):
    """To the updates of one execution."""

    engine: Engine
    values: Values
    waiters: Waiters
    namespace: str
    execution_id: str

    async def is_known(self, key: str) -> bool:
        """Whether an update with that key was sent before."""
        [event] = await self.engine.store.load([self._key(key)])
        return isinstance(event, Event)

    async def to(self, key: str, name: str, annotation: Any) -> Any:
        """What the update's function returned; raises what it raised."""
        answer = await self.waiters.found(self.namespace, self.execution_id, lambda: self._look(key))
        if answer.name not in (name, ""):
            raise ExecutionConflict(
                self.execution_id,
                existing=f"update {answer.name!r}",
                given=f"update {name!r}",
                said="has {existing} under the key that was given for {given}",
                instead="use another key",
            )
        what = f"update {name!r}"
        if answer.outcome not in (FAILED, REFUSED):
            return self.values.decode(answer.value, annotation, f"answer to {what}")
        failure = decode_failure(self.values.unseal(answer.value))
        error = raised_again(failure, execution_id=self.execution_id, what=what)
        if answer.outcome == FAILED:
            raise error
        raise UpdateRefused(self.execution_id, name, failure.message) from error

    async def _look(self, key: str) -> Answer | None:
        """The answer, if there is one; raises if there will never be one."""
        store = self.engine.store
        execution, event = await store.load([execution_key(self.namespace, self.execution_id), self._key(key)])
        if isinstance(execution, Execution) and execution.status.terminal:
            [event] = await store.load([self._key(key)])  # what it was answered before its end is there by now
        answer = answer_in(event) if isinstance(event, Event) else None
        if answer is not None:
            return answer
        if not isinstance(execution, Execution):
            raise ExecutionNotFound(self.namespace, self.execution_id)
        if not isinstance(event, Event):
            raise ExecutionRefused(
                self.execution_id, Code.UNKNOWN, "was begun anew, and the update is gone with the old"
            )
        if execution.status.terminal and await self._withdrawn(event):
            raise ExecutionEnded(
                self.execution_id,
                f"has ended before it accepted the update: it is {execution.status}",
                status=execution.status,
                cause=execution.cause,
            )
        return None

    async def _withdrawn(self, event: Event) -> bool:
        """Nobody shall accept it later, should the execution be opened again. False if somebody has."""
        home = partition_of(self.namespace, self.execution_id, self.engine.store.partitions)
        withdrawn = update_withdrawn(home, event, self.engine.entropy.new_id())
        return (await self.engine.group.commit(withdrawn)).applied

    def _key(self, key: str) -> Key:
        return event_key(self.namespace, self.execution_id, UPDATE, key)
