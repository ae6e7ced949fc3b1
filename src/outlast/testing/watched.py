"""A store as one process of a harness sees it: every call is counted, and the process can die at one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from msgspec import Struct

from outlast.errors import StoreClosed
from outlast.machine.changes import Changes, Delete, Insert, Write
from outlast.machine.replay import key_of
from outlast.model.journal import START, SUCCEEDED, JournalEntry
from outlast.model.lease import Claimed
from outlast.model.outbox import Delivery
from outlast.store.port import Committed, Store

WRITES = frozenset({"commit", "claim"})
Operation: TypeAlias = tuple[str, int, str, str, int]
"""(execution, generation, scope, name, occurrence)."""


class CrashPlan(Struct, kw_only=True):
    """Die at the `left`-th of what it counts: before the store is asked, or after it has answered."""

    counts: Callable[[str, tuple[Any, ...]], int]
    """How many of them are in a call of the store, by its name and arguments."""
    left: int
    after: bool


class Traffic:
    """What goes on between the processes of a harness and their stores."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.calls = 0
        self.progress = 0
        """How many calls have changed something."""
        self.deliveries = False
        """Something was put into the outbox, ever."""
        self.rung = False
        """Somebody may have something to look at: work, an end, a word from outside."""
        self.activity = asyncio.Event()
        """Something has happened that the driver should look at."""
        self.calm = asyncio.Event()
        """No call is in flight."""
        self.calm.set()
        self.recorded: dict[Operation, str] = {}
        """The operations whose success is recorded, and of which kind they are."""

    def note(self, write: Write) -> None:
        """A journal is written to. What a retry takes out of it still counts as done, but for the start of a child that
        was lost: another one is started in its place."""
        if isinstance(write, Insert) and isinstance(write.record, JournalEntry) and write.record.outcome == SUCCEEDED:
            entry = write.record
            self.recorded[entry.execution, entry.generation, *key_of(entry)] = entry.op
        elif isinstance(write, Delete) and write.key.kind == JournalEntry.KIND:
            _, *operation = write.key.values
            if self.recorded.get(cast("Operation", tuple(operation))) == START:
                del self.recorded[cast("Operation", tuple(operation))]


class WatchedStore:
    """Passes everything on to a store. All that is not a coroutine of it is its own."""

    def __init__(self, store: Store, traffic: Traffic) -> None:
        self._store = store
        self._traffic = traffic
        self._grave: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.plans: list[CrashPlan] = []
        self.dead = asyncio.Event()
        # They are there, and not only found: from Python 3.12 on, what a store can do is asked without `__getattr__`.
        for name, method in inspect.getmembers(type(store), inspect.isfunction):
            if not name.startswith("_"):
                setattr(self, name, self._watched(name, method))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        bound: Callable[..., Any] = getattr(self._store, name)
        if not inspect.iscoroutinefunction(method) or name == "close":
            return bound

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._call(name, bound, args, kwargs)

        return call

    async def _call(self, name: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = self._dies_at(name, args)
        if plan is not None and not plan.after:
            self.dead.set()
        if self.dead.is_set():
            await self._gone()
        traffic = self._traffic
        traffic.calls += 1
        traffic.in_flight += 1
        traffic.calm.clear()
        try:
            answer = await method(*args, **kwargs)
        finally:
            traffic.in_flight -= 1
            if not traffic.in_flight:
                traffic.calm.set()
        if isinstance(answer, Committed):
            self._note(args[0], answer)
        if plan is not None:
            self.dead.set()
        if self.dead.is_set():
            await self._gone()
        if _changed(answer):
            traffic.progress += 1
            traffic.activity.set()
        return answer

    def _note(self, batch: Sequence[Changes], answer: Committed) -> None:
        for changes, verdict in zip(batch, answer.verdicts, strict=True):
            self._traffic.rung = self._traffic.rung or (verdict.applied and bool(changes.rings))
            if any(isinstance(write, Insert) and isinstance(write.record, Delivery) for write in changes.writes):
                self._traffic.deliveries = True
            for write in changes.writes if verdict.applied else ():
                self._traffic.note(write)

    def _dies_at(self, name: str, args: tuple[Any, ...]) -> CrashPlan | None:
        for plan in list(self.plans):
            counted = plan.counts(name, args)
            if counted >= plan.left:
                self.plans.remove(plan)
                return plan
            plan.left -= counted
        return None

    async def _gone(self) -> None:
        """A dead process hears no answer. It hangs until it is buried, then all of it ends at once."""
        self._traffic.activity.set()
        await asyncio.shield(self._grave)

    def bury(self) -> None:
        self.dead.set()
        if not self._grave.done():
            self._grave.set_exception(StoreClosed("this process of the harness has crashed"))
            self._grave.exception()


def _changed(answer: object) -> bool:
    match answer:
        case Committed(verdicts=verdicts):
            return any(verdict.applied and not verdict.again for verdict in verdicts)
        case Claimed(executions=executions):
            return bool(executions)
        case _:
            return False


def journaled(batch: Sequence[Changes]) -> list[JournalEntry]:
    """The operations that a commit records."""
    writes = [write for changes in batch for write in changes.writes]
    return [write.record for write in writes if isinstance(write, Insert) and isinstance(write.record, JournalEntry)]
