"""Waiting for ends by push: this process's own commits, doorbells of others, and polling as the net.

An end that this process commits goes straight to whoever waits for it, with its output: nothing is read again. Ends of
other processes are found by looking, once somebody rings. As rings do not say who rang, and a busy process rings for
itself all the time, looks that find nothing keep a distance from one another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from outlast.errors import CorruptState, StoreClosed
from outlast.machine.changes import Changes, Insert, Patch, View
from outlast.model.completion import Completion
from outlast.model.event import UPDATE, Event
from outlast.model.execution import Execution, execution_key
from outlast.model.partition import partition_of
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import Key, Record
from outlast.model.status import Status
from outlast.observe.telemetry import Telemetry
from outlast.runtime.outages import Outages
from outlast.runtime.patience import patiently
from outlast.runtime.timing import LoopTiming, Timing
from outlast.store.port import Sharded, Store

_log = logging.getLogger(__name__)

T = TypeVar("T")
Name = tuple[str, str]
Load = Callable[[list[Key]], Awaitable[list[Record | None]]]
POLL_S = 1.0
PATIENCE_S = 30.0
"""For so long a store that does not answer is asked again."""
FRESH_S = 0.1
"""What was started here so short a time ago, and nobody rang since, has not ended elsewhere: wait without a look."""
FRESH_MAX = 10_000
_ENDS = (Role.OUTPUT, Role.FAILURE)
DISTANCE = 20
"""A look that found nothing is not repeated before it was idle for so many times as long as it took."""
FOUND_DISTANCE_S = 0.02
"""… nor is one for something that will be there soon, but no longer than this."""


HAVE_VALUES = frozenset({Status.SUCCEEDED, Status.FAILED})
"""These ends always leave an output or a failure."""


class End(Struct, frozen=True, gc=False):
    """How an execution ended, and its output or failure."""

    status: Status
    cause: str | None
    workflow: str
    value: bytes | None


class Waiters:
    def __init__(self, store: Store, timing: Timing | None = None, outages: Outages | None = None) -> None:
        self._store = store
        self._timing: Timing = timing or LoopTiming()
        self._outages = outages or Outages(Telemetry(), self._timing.time_s)
        self._waiting: dict[Name, set[asyncio.Future[End | None]]] = {}
        self._beside: list[tuple[Name, asyncio.Future[Any]]] = []
        self._poll: asyncio.Task[None] | None = None
        self._sharded = store if isinstance(store, Sharded) else None
        self._looks: dict[str, asyncio.Task[bool]] = {}
        """Of a sharded store: what is under way, by server."""
        self._owed = asyncio.Event()
        self._looked = 0
        self._look_at_s = 0.0
        self._fresh: OrderedDict[Name, tuple[int, float]] = OrderedDict()
        self.rings = 0
        """Grows whenever something may have ended, here or elsewhere."""
        self._bell: asyncio.Event | None = None
        """Rung at the next ring; made by who waits for that."""
        self.on_wait: Callable[[], None] | None = None
        """Called when somebody begins to wait."""
        self.runs_here: Callable[[str, str], bool] = lambda namespace, execution_id: False
        """Whether this process holds it."""

    def started(self, namespace: str, *execution_ids: str) -> None:
        """Started by this process, just now."""
        fresh, now = self._fresh, (self._looked, self._timing.time_s())
        for execution_id in execution_ids:
            fresh[(namespace, execution_id)] = now
        while len(fresh) > FRESH_MAX:
            fresh.popitem(last=False)

    def touched(self, namespace: str, execution_id: str) -> None:
        """Told something: it may have ended by that."""
        self._fresh.pop((namespace, execution_id), None)

    def is_fresh(self, namespace: str, execution_id: str) -> bool:
        """Whether it need not be looked at, because this process started it just now: asked once, by whoever waits
        first."""
        started = self._fresh.pop((namespace, execution_id), None)
        return started is not None and started[0] == self._looked and self._timing.time_s() - started[1] < FRESH_S

    async def rung(self, rings: int) -> None:
        """Until something may have ended since there were so many `rings`; for so long as the net takes, at most."""
        if self.rings == rings:
            await self._timing.beat(POLL_S, unless=self._next_ring(), of="completions")

    def _ring(self) -> None:
        self.rings += 1
        if self._bell is not None:
            self._bell.set()
            self._bell = None

    def _next_ring(self) -> asyncio.Event:
        if self._bell is None:
            self._bell = asyncio.Event()
        return self._bell

    async def ended(self, namespace: str, execution_id: str) -> End | None:
        """How the execution ended, once it has; None if there is none."""
        name = (namespace, execution_id)
        fresh = self.is_fresh(namespace, execution_id)
        gone: Execution | None = None
        while True:
            # Wait before looking: an end between the two rings, too.
            future = self.wait(name)
            try:
                if not fresh:
                    [found] = await self._load([execution_key(namespace, execution_id)])
                    if found is None:
                        return None
                    assert isinstance(found, Execution)
                    if found.status.terminal:
                        [end] = await self._ends_of([found], self._load)
                        if end is not None:
                            return end
                        if found == gone:
                            raise CorruptState(f"execution {execution_id!r} {found.status} without a value")
                        gone = found  # purged between the two looks: look again
                        continue
                fresh = False
                end = await future
                if end is not None:
                    return end
            finally:
                self.leave(name, future)

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Whoever looks waits while one of several servers gives its place to another. A store on one server says by
        itself for how long it is waited for."""
        if self._sharded is None:
            return await ask()
        return await patiently(ask, patience_s=PATIENCE_S, pause=self._timing.sleep, time_s=self._timing.time_s)

    async def _load(self, keys: list[Key]) -> list[Record | None]:
        """Whoever waits for an end also waits for a store that is away for a while, as a commit does."""
        return await patiently(
            lambda: self._store.load(keys), patience_s=PATIENCE_S, pause=self._timing.sleep, time_s=self._timing.time_s
        )

    async def found(self, namespace: str, execution_id: str, look: Callable[[], Awaitable[T | None]]) -> T:
        """What a look finds, once it does: it looks again whenever something may have happened."""
        name = (namespace, execution_id)
        while True:
            ended, bell = self.wait(name), self._next_ring()
            rung = asyncio.ensure_future(bell.wait())
            try:
                began_s = self._timing.time_s()
                result = await self.patiently(look)
                if result is not None:
                    return result
                distance_s = min((self._timing.time_s() - began_s) * DISTANCE, FOUND_DISTANCE_S)
                await asyncio.wait((ended, rung), return_when=asyncio.FIRST_COMPLETED)
                if not ended.done() and distance_s > 0:
                    # A busy store rings all the time, mostly for others; this process's own answers do not wait.
                    await self._until(ended, distance_s)
                if ended.done():
                    ended.result()  # raises if it is in vain
            finally:
                rung.cancel()
                self.leave(name, ended)

    async def _until(self, future: asyncio.Future[End | None], delay_s: float) -> None:
        pause = asyncio.ensure_future(self._timing.sleep(delay_s))
        try:
            await asyncio.wait((future, pause), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()

    @contextmanager
    def beside(self, name: Name, future: asyncio.Future[Any], *, still: bool = False) -> Generator[None]:
        """Somebody waits for more than an end (a flow's, a frame), and looks by himself. `future` fails if in vain.

        `still=True`: a repeated look; it does not count as beginning to wait (`on_wait` is not called)."""
        place = (name, future)
        self._beside.append(place)
        if self.on_wait is not None and not still:
            self.on_wait()
        try:
            yield
        finally:
            self._beside.remove(place)

    def wait(self, name: Name) -> asyncio.Future[End | None]:
        """For the next that is heard of its end: None if one must look. Whoever waits leaves."""
        if self._poll is None:
            self._loop = asyncio.get_running_loop()  # asked once: in Python 3.11 it costs a system call
            self._poll = self._loop.create_task(self._polling(), name="outlast waiters")
        future: asyncio.Future[End | None] = asyncio.Future(loop=self._loop)
        waiting = self._waiting.get(name)
        if waiting is None:
            self._waiting[name] = {future}
        else:
            waiting.add(future)
        if self.on_wait is not None:
            self.on_wait()
        return future

    def leave(self, name: Name, future: asyncio.Future[End | None]) -> None:
        waiting = self._waiting.get(name)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[name]

    async def _ends_of(self, executions: list[Execution], load: Load) -> list[End | None]:
        """How they ended; None for one whose value is not there any more, because it was purged meanwhile."""
        keys = [
            payload_key(e.namespace, e.id, e.generation, Role.OUTPUT if e.status is Status.SUCCEEDED else Role.FAILURE)
            for e in executions
        ]
        values = [record.value if isinstance(record, Payload) else None for record in await load(keys)]
        return [
            None if value is None and e.status in HAVE_VALUES else End(e.status, e.cause, e.workflow, value)
            for e, value in zip(executions, values, strict=True)
        ]

    def committed(self, view: View, changes: Changes) -> None:
        """A commit of this process: its ends are known at once."""
        completion: Completion | None = None
        value: bytes | None = None
        for write in changes.writes:
            if type(write) is Insert:
                record = write.record
                if type(record) is Completion:
                    completion = record
                elif type(record) is Payload and record.role in _ENDS:
                    value = record.value
            elif type(write) is Patch and write.key.kind == Event.KIND and write.key.values[2] == UPDATE:
                self._wake((str(write.key.values[0]), str(write.key.values[1])), None)
        if completion is not None:
            name = (completion.namespace, completion.execution)
            self._fresh.pop(name, None)
            self._ring()
            self._wake(name, End(completion.status, completion.cause, completion.workflow, value))

    async def rescan(self, partitions: Iterable[int] | None = None, ended_in: Iterable[int] = ()) -> None:
        """Look at all that is waited for, or at that of some partitions: now, or when it is time again. In those where
        only holders `ended` what they held, not at what this process holds: that has not ended."""
        self._looked += 1
        self._ring()
        for _ in range(4):  # an end of this process rings before it is heard here: it need not be looked up
            if not self._waiting:
                return
            await asyncio.sleep(0)
        names = [*self._waiting] if partitions is None else self._concerned(frozenset(partitions), frozenset(ended_in))
        if not names:
            return
        began_s = self._timing.time_s()
        if began_s < self._look_at_s:
            self._owed.set()
            return
        found_any = await (self._look(names) if self._sharded is None else self._look_apart(self._sharded, names))
        if not found_any:
            now_s = self._timing.time_s()
            self._look_at_s = now_s + min((now_s - began_s) * DISTANCE, POLL_S)

    def _concerned(self, partitions: frozenset[int], ended_in: frozenset[int]) -> list[Name]:
        either, concerned = partitions | ended_in, list[Name]()
        for name in self._waiting:
            rung = partitions if self.runs_here(*name) else either
            if rung and partition_of(*name, self._store.partitions) in rung:
                concerned.append(name)
        return concerned

    async def _look(self, names: list[Name]) -> bool:
        """Whether somebody was woken."""
        found_any = False
        for begin in range(0, len(names), 500):
            some = names[begin : begin + 500]
            # Not who comes while it looks: an end that was retried meanwhile is not what they wait for.
            for_whom = {name: frozenset(self._waiting.get(name, ())) for name in some}
            records = await self._store.load([execution_key(*name) for name in some])
            found = [record for record in records if isinstance(record, Execution) and record.status.terminal]
            for execution, end in zip(
                found, await self._ends_of(found, self._store.load) if found else (), strict=True
            ):
                name = (execution.namespace, execution.id)
                found_any = self._wake(name, end, for_whom[name]) or found_any
            for name, record in zip(some, records, strict=True):
                if record is None:
                    self._wake(name, None, for_whom[name])
        return found_any

    async def _look_apart(self, store: Sharded, names: list[Name]) -> bool:
        """Server by server, at once: one that is away keeps nobody from hearing of the ends on the others."""
        apart: dict[str, list[Name]] = {}
        for name in names:
            apart.setdefault(store.shard(partition_of(*name, self._store.partitions)), []).append(name)
        if len(apart) < 2:
            return await self._look(names)
        looks: list[asyncio.Task[bool]] = []
        for shard, some in apart.items():
            if shard not in self._looks:
                look = self._looks[shard] = asyncio.create_task(self._look(some), name="outlast look")
                look.add_done_callback(partial(self._looked_at, shard))
                looks.append(look)
        done, _ = await asyncio.wait(looks, timeout=POLL_S) if looks else (set[asyncio.Task[bool]](), None)
        return any(look.result() for look in done if not look.cancelled() and look.exception() is None)

    def _looked_at(self, shard: str, look: asyncio.Task[bool]) -> None:
        del self._looks[shard]
        if not look.cancelled() and (error := look.exception()) is not None:
            self._outages.report(_log, "looking for ends failed, and is tried again", error)

    @property
    def awaited(self) -> list[Name]:
        """For whom somebody waits."""
        return [*self._waiting, *(name for name, _ in self._beside)]

    def give_up(self, error: Exception) -> None:
        """Tell everybody who waits that it is in vain."""
        ends = [future for waiting in self._waiting.values() for future in waiting]
        for future in (*ends, *(future for _, future in self._beside)):
            if not future.done():
                future.set_exception(error)
                future.exception()  # its waiter may be busy with a look, and fail by that

    def _wake(self, name: Name, end: End | None, whom: Iterable[asyncio.Future[End | None]] | None = None) -> bool:
        """True if somebody waited who did not know yet."""
        woken = False
        for future in self._waiting.get(name, ()) if whom is None else whom:
            if not future.done():
                future.set_result(end)
                woken = True
        return woken

    async def _polling(self) -> None:
        while True:
            await self._timing.beat(POLL_S, unless=self._owed)
            distance_s = self._look_at_s - self._timing.time_s()
            if distance_s > 0:
                await self._timing.sleep(distance_s)
            self._owed.clear()
            if not self._waiting:
                continue
            try:
                await self.rescan()
                if self._outages.under_way:
                    self._outages.answered()
            except Exception as error:
                self._outages.report(_log, "looking for ends failed, and is tried again", error)

    async def close(self) -> None:
        """Whoever still waits is told: nobody looks for them any more."""
        self._ring()
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)
            self._poll = None
        for look in self._looks.values():
            look.cancel()
        await asyncio.gather(*self._looks.values(), return_exceptions=True)
        self.give_up(StoreClosed("the app was closed while somebody waited for this execution"))
