"""What this process knows of an execution while facts about it are on their way to the store.

Many facts about one execution may be told at once: a burst of events, or the ends of five thousand children. They share
one look at it, and each is decided on what those before it make of it; otherwise the store would refuse all but the
first, and each of the others would look and try again alone.

No rule depends on this: every change is guarded by what it was decided upon. A wrong prediction costs a second try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from outlast.machine.changes import Changes, Patch, View, execution_after
from outlast.model.execution import Execution, execution_key
from outlast.store.port import Verdict

Look: TypeAlias = Callable[[str, str], Awaitable[Execution | None]]
"""Reads the execution with this namespace and id from the store."""


class SharedView:
    """One execution, as all facts about it that are under way in this process see it."""

    __slots__ = (
        "_flights",
        "_look",
        "_name",
        "_next",
        "_sent",
        "_sent_as",
        "asked",
        "execution",
        "is_known",
        "is_predicted",
        "told",
        "users",
    )

    def __init__(self, name: tuple[str, str], look: Look) -> None:
        self._name = name
        self._look = look
        self._next: asyncio.Task[Execution | None] | None = None
        """The look that is sent in the next turn of the loop."""
        self._sent: asyncio.Task[Execution | None] | None = None
        """The last look that was sent, until it is answered; `_sent_as` is its number."""
        self._sent_as = 0
        self._flights: set[asyncio.Future[Verdict]] = set()
        self.users = 0
        self.asked = 0
        """How many questions were sent to the store: looks and commits."""
        self.told = 0
        """The number of the question whose answer is known. It was read after that question was sent."""
        self.execution: Execution | None = None
        """The execution, or None if there is none; as it will be once the changes in flight are committed."""
        self.is_known = False
        self.is_predicted = False
        """Whether `execution` holds a change that may still be refused."""

    def know(self, execution: Execution | None, question: int | None = None) -> None:
        """Keep the answer to a question, unless that to a later one is known; by default to one that was just sent."""
        if question is None:
            question = self.asked = self.asked + 1
        if question > self.told or not self.is_known:
            self.execution, self.is_known, self.is_predicted, self.told = execution, True, False, question

    async def now(self, since: int) -> tuple[Execution | None, bool]:
        """The execution, and whether the store had it like this after `since` questions were sent."""
        if not self.is_known:
            await self._read_together(since)
        return self.execution, self.told > since and not self.is_predicted

    async def settled(self) -> tuple[Execution | None, bool]:
        """The same as the store has it, once all that is in flight now has its verdict."""
        if self._flights:
            await asyncio.wait(set(self._flights))
        return await self._read_together(self.asked), True

    async def _read_together(self, since: int) -> Execution | None:
        """Reads it by one look for all who may share it: it was not sent yet, or after `since` questions."""
        looking = self._sent if self._sent is not None and self._sent_as > since else self._next
        if looking is None:
            looking = self._next = asyncio.create_task(self._read_soon())
            looking.add_done_callback(_retrieved)
        return await asyncio.shield(looking)

    async def _read_soon(self) -> Execution | None:
        await asyncio.sleep(0)
        question = self.asked = self._sent_as = self.asked + 1
        looking, self._sent, self._next = self._next, self._next, None
        try:
            execution = await self._look(*self._name)
        finally:
            if self._sent is looking:
                self._sent = None
        if not self._flights or not self.is_known:
            self.know(execution, question)
        return execution

    async def verdict(
        self, upon: Execution | None, changes: Changes, flight: asyncio.Future[Verdict], now: int
    ) -> Verdict:
        """The verdict on changes that were decided upon `upon` and are on their way to the store as `flight`."""
        question = self.asked = self.asked + 1
        base, key = self.told, execution_key(*self._name)
        if any(type(write) is Patch and write.key == key for write in changes.writes):
            self.execution = execution_after(View(changes.partition, upon), changes, now)
            self.is_predicted = True
        self._flights.add(flight)
        try:
            verdict = await flight
        except BaseException:
            self.is_known = False  # it may have been committed or not
            raise
        finally:
            self._flights.discard(flight)
        if not verdict.applied and base == self.told:
            # The prediction was wrong. When a batch is refused for one reason, the first refusal corrects it for all.
            current = verdict.current
            if verdict.refused_by is not None and verdict.refused_by.key == key and isinstance(current, Execution):
                self.know(current, question)
            else:
                self.is_known = False
        return verdict


class SharedViews:
    """The views in use, by namespace and id."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._views: dict[tuple[str, str], SharedView] = {}

    def enter(self, namespace: str, execution_id: str) -> SharedView:
        """The view of an execution, in use until `leave`."""
        name = (namespace, execution_id)
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = SharedView(name, self._look)
        view.users += 1
        return view

    def leave(self, namespace: str, execution_id: str, view: SharedView) -> None:
        view.users -= 1
        if not view.users:
            del self._views[namespace, execution_id]


def _retrieved(looking: asyncio.Task[Execution | None]) -> None:
    """Whoever asked may have been cancelled, and an error of the read is then nobody's."""
    if not looking.cancelled():
        looking.exception()
