"""Group commit: changes that come while a commit is in flight share the next one. No artificial delay.

One batch is in flight at a time and changes keep their order, so what was submitted first is decided first. A commit
whose reply was lost is retried verbatim: every change is safe to repeat, and its verdict says so.

Where commits are decided in the order in which they were sent (`Capabilities.in_line`), many that wait follow before
the last batch is answered: so the server has the next one at hand. What is about something that is in flight stays
behind: if that must be repeated, nothing of the same execution may have been decided before it.

A store on several servers has a line for each of them: while one server is away, the changes of the others go on. A
partition keeps its line while something of it is under way, also if it moves to another server meanwhile.

Those that commit step after step come round together: all wait for the commit, and then all go on while the store has
nothing to do. So where a server does the work (`Capabilities.apart`), many that go on are committed in two halves:
while the one is at the server, this process goes on with the other.

A start whose id is held by somebody else's transaction leaves the line (`aside.py`): nobody else waits for that.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol, TypeAlias

from outlast import limits
from outlast.errors import IdHeld, StoreClosed, StoreUnavailable
from outlast.machine.changes import Changes, is_end, size_of, started_by
from outlast.model.record import Key
from outlast.observe.telemetry import Telemetry
from outlast.runtime.aside import Aside
from outlast.runtime.outages import Outages
from outlast.runtime.patience import Pause, TimeS, patiently
from outlast.runtime.spawning import spawn
from outlast.store.port import Committed, CommittedInPart, Sharded, Store, Verdict

AGAIN_S = 0.01
"""The first pause before a commit is repeated."""

HALVED_MIN = 64
"""Fewer are committed together: a commit more would take longer than what it saves."""

FOLLOWS_MIN = 24
"""Fewer wait until the batch in flight is answered, and may become more."""

SURELY_SMALL = limits.BATCH_MAX_BYTES // limits.PAYLOAD_MAX_BYTES
"""So many changes, each with a value, can be committed together whatever they are."""


class Caller(Protocol):
    """Who is called back with a verdict and its time. Every step has one: a future would be three objects more.

    It is called once; but of a pump that dies while it tries the changes of a batch one by one, all hear that it was
    cut off, also those who were answered before. What comes first counts."""

    def answered(self, verdict: Verdict, at: int) -> None: ...

    def failed(self, error: Exception) -> None: ...


Waiting: TypeAlias = "tuple[Changes, asyncio.Future[Any] | Caller, bool]"
"""A change, who waits for its verdict, and whether they want to know its time as well."""


class _Line:
    """What waits for the same server, and the pumps that commit it while there is any."""

    __slots__ = ("in_flight", "kept_back", "pumps", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.pumps: set[asyncio.Task[None]] = set()
        self.in_flight: list[list[Waiting]] = []
        """Batches that are not answered: what is about the same as they are stays behind."""
        self.kept_back = False
        """The first that waits does so for what is in flight."""


class GroupCommit:
    """`verdict = await group.commit(changes)`."""

    def __init__(
        self,
        store: Store,
        *,
        batch_max: int = 500,
        patience_s: float = 30.0,
        pause: Pause = asyncio.sleep,
        time_s: TimeS = time.monotonic,
        outages: Outages | None = None,
    ) -> None:
        assert 1 <= batch_max <= limits.BATCH_MAX_CHANGES
        self._store = store
        self._sharded = store if isinstance(store, Sharded) and not store.capabilities.one_server else None
        self._halves = store.capabilities.apart
        self._follows = store.capabilities.in_line
        self.batch_max = batch_max
        self._patience_s = patience_s
        self._pause = pause
        self._time_s = time_s
        self._line = _Line()
        self._lines: dict[str, _Line] = {"": self._line}
        self._under_way: dict[int, tuple[_Line, int]] = {}
        """Of a sharded store: the line of a partition, and how many of its changes are in it."""
        self._aside = Aside(store, patience_s=patience_s, pause=pause, time_s=time_s)
        self._context = contextvars.copy_context()
        """In which callers are called back, whoever made a pump."""
        self._closed = False
        self._outages = outages or Outages(Telemetry(), time_s)
        self.now = 0
        """The store's time as last heard."""

    def commit(self, changes: Changes) -> asyncio.Future[Verdict]:
        """The verdict on `changes`, once they are durable or refused. A future and no coroutine: this is called with
        every step, and awaited at once."""
        return self._submit(changes, timed=False)

    def commit_timed(self, changes: Changes) -> asyncio.Future[tuple[Verdict, int]]:
        """The verdict, and the store's time of the commit that it is about."""
        return self._submit(changes, timed=True)

    def commit_calling(self, changes: Changes, caller: Caller) -> None:
        """The caller is told the verdict and its time, in a turn of the loop in which nothing else runs but others."""
        self._add(self._line_for(changes), (changes, caller, True))

    def commit_aside(self, changes: Changes) -> asyncio.Future[Verdict]:
        """The verdict on a start whose id was found to be held: nobody waits behind it."""
        if self._closed:
            raise StoreClosed("the engine is closed")
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._set_aside((changes, future, False))
        return future

    def _submit(self, changes: Changes, *, timed: bool) -> asyncio.Future[Any]:
        line = self._line_for(changes)
        future: asyncio.Future[Any] = asyncio.Future(loop=self._loop)  # a call less than `create_future`
        self._add(line, (changes, future, timed))
        return future

    def _line_for(self, changes: Changes) -> _Line:
        if self._closed:
            raise StoreClosed("the engine is closed")
        line = self._line if self._sharded is None else self._line_of(self._sharded, changes.partition)
        if not line.pumps:
            # Asked once per pump and not per change: in Python 3.11 it costs a system call.
            self._loop = asyncio.get_running_loop()
        return line

    def _add(self, line: _Line, one: Waiting) -> None:
        line.waiting.append(one)
        pumps = len(line.pumps)
        if pumps == 0 or (pumps == 1 and self._follows and len(line.waiting) >= FOLLOWS_MIN and not line.kept_back):
            line.pumps.add(spawn(self._loop, self._drain(line), "outlast group commit"))

    def _line_of(self, store: Sharded, partition: int) -> _Line:
        line, number = self._under_way.get(partition, (None, 0))
        if line is None:
            shard = store.shard(partition)
            line = self._lines.get(shard)
            if line is None:
                line = self._lines[shard] = _Line()
        self._under_way[partition] = (line, number + 1)
        return line

    def _answered(self, batch: list[Waiting]) -> None:
        if self._sharded is None:
            return
        for changes, _, _ in batch:
            line, number = self._under_way[changes.partition]
            if number > 1:
                self._under_way[changes.partition] = (line, number - 1)
            else:
                del self._under_way[changes.partition]

    async def close(self) -> None:
        """Take nothing more, and let what was taken be answered."""
        self._closed = True
        await asyncio.gather(*(pump for line in self._lines.values() for pump in line.pumps))
        await self._aside.close()

    async def _drain(self, line: _Line) -> None:
        pump = asyncio.current_task()
        assert pump is not None
        batch: list[Waiting] = []
        try:
            while batch := self._next(line):
                await self._commit(self._not_aside(batch) if self._aside else batch)
                self._answered(batch)
                self._landed(line, batch)
                batch = []  # answered: whatever happens now is not about them
        except BaseException as died:
            # Whoever waits must not wait for ever for a pump that is gone.
            unanswered, line.waiting = [*batch, *line.waiting], []
            self._answered(unanswered)
            self._landed(line, batch)
            for _, who, _ in unanswered:
                self._fail(who, _cut_off(died))
            if isinstance(died, asyncio.CancelledError):
                raise
        finally:
            line.pumps.discard(pump)

    def _next(self, line: _Line) -> list[Waiting]:
        """What a pump commits next. Nothing, if nothing waits, or if it is left to the pump with a batch in flight."""
        most = self._most(line.waiting)
        if line.in_flight:
            most = min(most, self._following(line))
        batch = line.waiting[:most]
        if len(batch) > SURELY_SMALL:
            batch = batch[: _fitting(batch)]
        line.waiting = line.waiting[len(batch) :]
        if batch and self._follows:
            line.in_flight.append(batch)
        return batch

    def _following(self, line: _Line) -> int:
        """How many from the first on may follow what is in flight."""
        if len(line.waiting) < FOLLOWS_MIN:
            return 0
        named: set[Key] = set()
        named.update(*[changes.anchors for batch in line.in_flight for changes, _, _ in batch])
        for number, (changes, _, _) in enumerate(line.waiting):
            if not changes.anchors or not named.isdisjoint(changes.anchors):
                line.kept_back = number == 0
                return number
        return len(line.waiting)

    def _landed(self, line: _Line, batch: list[Waiting]) -> None:
        if self._follows:
            line.kept_back = False
            line.in_flight = [other for other in line.in_flight if other is not batch]

    def _most(self, waiting: list[Waiting]) -> int:
        """How many of them are committed next. On an end nothing follows: it leaves nobody behind who could go on. But
        where the other half may follow at once, that need not be found out."""
        if self._follows:
            return self.batch_max if len(waiting) < HALVED_MIN else min(self.batch_max, (len(waiting) + 1) // 2)
        if self._halves and len(waiting) >= HALVED_MIN:
            going_on = sum(not is_end(changes) for changes, _, _ in waiting)
            if going_on >= HALVED_MIN:
                return min(self.batch_max, len(waiting) - going_on // 2)
        return self.batch_max

    async def _commit(self, batch: list[Waiting]) -> None:
        if not batch:
            return
        try:
            committed = await self._until_answered([changes for changes, _, _ in batch])
        except IdHeld:
            # Which of the starts it is shows when each is alone.
            await self._commit(self._not_aside(batch, starts=True))
            return
        except CommittedInPart as part:
            await self._commit_the_rest(batch, part)
            return
        except Exception as error:
            if len(batch) == 1 or isinstance(error, StoreUnavailable):
                for _, who, _ in batch:
                    self._fail(who, error)
                return
            # One of them spoils it for all: find out which.
            for alone in batch:
                await self._commit([alone])
            return
        self._answer(batch, committed)

    def _not_aside(self, batch: list[Waiting], *, starts: bool = False) -> list[Waiting]:
        """What stays in line: all but what is about an execution that something waits for aside, and `starts`."""
        stays: list[Waiting] = []
        for one in batch:
            if self._aside.concerns(one[0]) or (starts and started_by(one[0])):
                self._set_aside(one)
            else:
                stays.append(one)
        assert not starts or len(stays) < len(batch), "a store says that an id is held, and there is none"
        return stays

    def _set_aside(self, one: Waiting) -> None:
        self._aside.commit(one[0]).add_done_callback(partial(self._decided, one))

    def _decided(self, one: Waiting, task: asyncio.Task[Committed]) -> None:
        died = asyncio.CancelledError() if task.cancelled() else task.exception()
        if died is None:
            committed = task.result()
            self.now = max(self.now, committed.now)
            self._answer([one], committed)
        else:
            self._fail(one[1], died if isinstance(died, Exception) else _cut_off(died))

    async def _commit_the_rest(self, batch: list[Waiting], part: CommittedInPart) -> None:
        """What has its verdict is not asked again. What a partition was refused is tried change by change."""
        self.now = max(self.now, part.now)
        unknown: list[Waiting] = []
        refused: list[Waiting] = []
        for waiting, outcome, at in zip(batch, part.outcomes, part.times, strict=True):
            if isinstance(outcome, Verdict):
                self._answer([waiting], Committed(at, [outcome]))
            else:
                (unknown if isinstance(outcome, StoreUnavailable) else refused).append(waiting)
        for alone in refused:
            await self._commit([alone])
        if unknown:
            await self._commit(unknown)

    async def _until_answered(self, batch: list[Changes]) -> Committed:
        """Verbatim retries while the store does not answer, up to the patience."""
        committed = await patiently(
            lambda: self._asked(batch),
            patience_s=self._patience_s,
            pause=self._pause,
            time_s=self._time_s,
            first_s=AGAIN_S,
            unless=IdHeld,
        )
        if self._outages.under_way:
            self._outages.answered(written=True)
        self.now = max(self.now, committed.now)
        return committed

    async def _asked(self, batch: list[Changes]) -> Committed:
        try:
            return await self._store.commit(batch)
        except StoreUnavailable as error:
            self._outages.explain(error)
            raise

    def _answer(self, batch: list[Waiting], committed: Committed) -> None:
        times = committed.times or [committed.now] * len(batch)
        calls: list[tuple[Caller, Verdict, int]] = []
        for (_, who, timed), verdict, at in zip(batch, committed.verdicts, times, strict=True):
            if not isinstance(who, asyncio.Future):
                calls.append((who, verdict, at))
            elif not who.done():
                who.set_result((verdict, at) if timed else verdict)
        if calls:
            self._loop.call_soon(self._call, iter(calls), context=self._context)

    def _call(self, calls: Iterator[tuple[Caller, Verdict, int]]) -> None:
        try:
            for caller, verdict, at in calls:
                caller.answered(verdict, at)
        except BaseException:  # the loop is told to stop: should it run again, the others have their turn
            self._loop.call_soon(self._call, calls, context=self._context)
            raise

    def _fail(self, who: asyncio.Future[Any] | Caller, error: Exception) -> None:
        if not isinstance(who, asyncio.Future):
            self._loop.call_soon(who.failed, error, context=self._context)
        elif not who.done():
            who.set_exception(error)


def _fitting(batch: list[Waiting]) -> int:
    """How many from the first on are committed together: at least one, and no more bytes than a batch may have."""
    if sum([size_of(changes) for changes, _, _ in batch]) <= limits.BATCH_MAX_BYTES:
        return len(batch)
    size = 0
    for number, (changes, _, _) in enumerate(batch):
        size += size_of(changes)
        if size > limits.BATCH_MAX_BYTES and number:
            return number
    return len(batch)


def _cut_off(died: BaseException) -> StoreClosed:
    return StoreClosed(f"the commit was cut off: {died!r}")
