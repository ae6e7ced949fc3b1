"""What came from outside for an attempt, and what it has taken of that.

Only the holder marks events as received, so what it has taken and not recorded yet is known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.model.event import Event, event_key
from outlast.model.execution import Execution
from outlast.model.record import Key, settled
from outlast.runtime.holder import HolderQuestion, OldestEvent

if TYPE_CHECKING:
    from typing import TypeVar

    from outlast.codec.values import Values
    from outlast.runtime.attempts.lease import Lease
    from outlast.runtime.parts import Parts

    T = TypeVar("T")


class Mail:
    def __init__(self, parts: Parts, lease: Lease) -> None:
        self.values: Values = parts.values
        self._lease = lease
        self._read_to: dict[str, Key] = {}
        """Up to here all events of a name are received: the next look goes on behind it."""
        self._taken: dict[Key, None] = {}

    @property
    def execution(self) -> Execution:
        return self._lease.execution

    async def ask(self, question: HolderQuestion[T]) -> T:
        return await self._lease.ask(question)

    async def event(self, name: str, until: int | None) -> Event | None:
        """Take the oldest event of a name that is left, unless it was sent after `until`."""
        event = self.early(name, until)
        while event is None:
            taken = tuple(key for key in self._taken if key.values[2] == name)
            found = await self.ask(OldestEvent(name, until, self._read_to.get(name), taken))
            if found.after is not None:
                self._read_to[name] = found.after
            for key in found.received:
                self._taken.pop(key, None)
            if found.event is None:
                return None
            if found.event.key not in self._taken:  # by another look meanwhile
                event = found.event
        self._taken[event.key] = None
        return event

    def early(self, name: str, until: int | None) -> Event | None:
        """The same, from the events that came with the journal. None: ask for it."""
        for event in self._lease.early:
            if event.name == name and not event.consumed and (until is None or (settled(event.sent_at) or 0) <= until):
                self._lease.early.remove(event)
                self._taken[event.key] = None
                return event
        return None

    def put_back(self, name: str, dedup: str) -> None:
        """It was taken, and nobody received it. From now on all are looked up: this one may stand before the others."""
        self._lease.early.clear()
        self._taken.pop(event_key(self.execution.namespace, self.execution.id, name, dedup), None)
