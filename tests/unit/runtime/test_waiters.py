"""Who is told of an end: whoever waited for it, and nobody who came later."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from outlast.client.waiters import FRESH_MAX, Waiters
from outlast.model.execution import Execution
from outlast.model.status import Status
from outlast.testing.conformance.samples import ended_execution

CANCELLED = msgspec.structs.replace(ended_execution(), status=Status.CANCELLED)
RETRIED = msgspec.structs.replace(CANCELLED, status=Status.READY)


class SlowStore:
    """Answers with what was there when it was asked, once it may."""

    partitions = 1

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def load(self, keys: list[Any]) -> list[Execution | None]:
        found = [self.execution if key.kind == Execution.KIND else None for key in keys]
        self.asked.set()
        await self.may_answer.wait()
        return found


async def test_who_waits_after_a_retry_is_not_told_of_the_end_before_it():
    store = SlowStore(RETRIED)
    waiters = Waiters(store)  # type: ignore[arg-type]
    name = (CANCELLED.namespace, CANCELLED.id)
    earlier = asyncio.create_task(waiters.ended(*name))
    await until_it_waits(store)
    store.execution = CANCELLED
    store.may_answer.clear()
    look = asyncio.create_task(waiters.rescan())
    await until_asked(store)
    # The look has seen the end and has not said so yet; meanwhile it is retried, and somebody waits for the next end.
    store.execution = RETRIED
    later = asyncio.create_task(waiters.ended(*name))
    await until_asked(store)
    store.may_answer.set()
    await look
    end = await earlier
    assert end is not None
    assert end.status is Status.CANCELLED
    await asyncio.sleep(0)
    assert not later.done()
    store.execution = CANCELLED
    await waiters.rescan()
    assert await later == end
    await waiters.close()


async def until_it_waits(store: SlowStore) -> None:
    await until_asked(store)
    await asyncio.sleep(0)


async def until_asked(store: SlowStore) -> None:
    async with asyncio.timeout(20):
        await store.asked.wait()
    store.asked.clear()


async def test_of_many_that_were_started_just_now_the_last_are_not_looked_at():
    store = SlowStore(RETRIED)
    waiters = Waiters(store)  # type: ignore[arg-type]
    waiters.started("shop", *(str(number) for number in range(FRESH_MAX + 1)))
    first, last = (asyncio.create_task(waiters.ended("shop", name)) for name in ("0", str(FRESH_MAX)))
    await until_asked(store)
    store.asked.clear()
    await asyncio.sleep(0)
    assert not store.asked.is_set(), "one look, and that at the first"
    new = waiters.wait(("shop", "new"))
    await asyncio.sleep(0)
    assert not store.asked.is_set()
    for waiting in (first, last):
        waiting.cancel()
    await asyncio.gather(first, last, return_exceptions=True)
    assert waiters.awaited == [("shop", "new")]
    waiters.leave(("shop", "new"), new)
    assert waiters.awaited == []
    await waiters.close()


async def test_an_end_by_a_holder_is_no_reason_to_look_at_what_this_process_holds():
    store = SlowStore(RETRIED)
    waiters = Waiters(store)  # type: ignore[arg-type]
    waiters.runs_here = lambda namespace, execution_id: execution_id == "here"
    here = waiters.wait(("shop", "here"))
    await waiters.rescan([], [0])
    assert not store.asked.is_set()
    await waiters.rescan([0])
    assert store.asked.is_set(), "somebody else may have ended it"
    store.asked.clear()
    elsewhere = waiters.wait(("shop", "elsewhere"))
    await asyncio.sleep(0.05)  # looks that find nothing keep a distance
    await waiters.rescan([], [0])
    assert store.asked.is_set()
    waiters.leave(("shop", "here"), here)
    waiters.leave(("shop", "elsewhere"), elsewhere)
    await waiters.close()
