"""What the yardsticks on servers share: group commit in the shape of Outlast's, and the load by hand.

A store of its own says how a batch is written. Nothing is decided, guarded or answered here: see `bare_postgres` and
`bare_valkey` for what that leaves out.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import uuid_utils

from benchmarks.bare import BATCH_MAX
from benchmarks.load import JITTER_S, VALUE, WORKER
from benchmarks.peers.driving import VALUE as ANSWER
from benchmarks.peers.driving import Execute, Load, for_ever, ready, run, say

PARTITIONS = 64

Rows = dict[str, list[tuple[Any, ...]]]
"""A batch: what begins (partition, id, change, worker, active), is claimed (partition, id, change), is a step
(partition, id, change, occurrence, value), or ends (partition, id, change)."""


class Batched(ABC):
    """What comes while a batch is in flight shares the next one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._waiting: list[tuple[str, tuple[Any, ...], asyncio.Future[None]]] = []
        self._pump: asyncio.Task[None] | None = None

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def create(self) -> None:
        """Make the schema."""

    @abstractmethod
    async def waiting(self) -> list[tuple[int, str]]:
        """All that nobody has claimed."""

    @abstractmethod
    async def write(self, rows: Rows) -> None:
        """One batch, in one round trip."""

    async def begin(self, execution_id: str, *, active: bool = True) -> BareExecution:
        partition = hash(execution_id) % PARTITIONS
        await self.commit("begin", (partition, execution_id, new_id(), WORKER if active else None, active))
        return BareExecution(self, partition, execution_id)

    async def claim(self, partition: int, execution_id: str) -> BareExecution:
        await self.commit("claim", (partition, execution_id, new_id()))
        return BareExecution(self, partition, execution_id)

    async def commit(self, kind: str, row: tuple[Any, ...]) -> None:
        if self._pump is None:
            self._loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((kind, row, future))
        if self._pump is None:
            self._pump = self._loop.create_task(self._drain())
        await future

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            rows: Rows = {"begin": [], "claim": [], "step": [], "end": []}
            for kind, row, _ in batch:
                rows[kind].append(row)
            try:
                await self.write(rows)
            except Exception as error:
                for _, _, future in batch:
                    future.set_exception(error)
            else:
                for _, _, future in batch:
                    future.set_result(None)
        self._pump = None


class BareExecution:
    def __init__(self, bare: Batched, partition: int, execution_id: str) -> None:
        self._commit, self._partition, self._id = bare.commit, partition, execution_id

    async def step(self, occurrence: int) -> None:
        await self._commit("step", (self._partition, self._id, new_id(), occurrence, VALUE))

    async def complete(self) -> None:
        await self._commit("end", (self._partition, self._id, new_id()))


async def charge() -> dict[str, object]:
    return ANSWER


async def charge_slowly() -> dict[str, object]:
    await asyncio.sleep(random.random() * JITTER_S)
    return ANSWER


class Yardstick(Load):
    def __init__(self, make: Callable[[str], Batched]) -> None:
        self._make = make

    async def prepare(self, url: str) -> None:
        await self._make(url).create()

    @asynccontextmanager
    async def _opened(self, url: str) -> AsyncIterator[Batched]:
        bare = self._make(url)
        await bare.open()
        yield bare
        await bare.close()

    @asynccontextmanager
    async def embedded(
        self, url: str, concurrency: int, charge: Callable[[], Awaitable[object]] = charge
    ) -> AsyncIterator[Execute]:
        async with self._opened(url) as bare:

            async def checkout(steps: int) -> int:
                execution = await bare.begin(new_id())
                for number in range(steps):
                    msgspec.json.decode(msgspec.json.encode(await charge()))
                    await execution.step(number)
                await execution.complete()
                return steps

            yield checkout

    def jittered(self, url: str, concurrency: int) -> Any:
        return self.embedded(url, concurrency, charge_slowly)

    async def enqueue(self, url: str, count: int) -> float:
        async with self._opened(url) as bare:
            ids = [new_id() for _ in range(count)]
            began = time.perf_counter()
            await asyncio.gather(*(bare.begin(execution_id, active=False) for execution_id in ids))
            return time.perf_counter() - began

    def work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        run(self._work(url, concurrency, number, workers))

    async def _work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        async with self._opened(url) as bare:
            ids = (await bare.waiting())[number::workers]
            ready()
            say(f"first {time.time():.6f}")

            async def one_after_another() -> None:
                while ids:
                    execution = await bare.claim(*ids.pop())
                    await execution.complete()

            await asyncio.gather(*(one_after_another() for _ in range(concurrency)))
            await for_ever()


def new_id() -> str:
    return uuid_utils.uuid7().hex
