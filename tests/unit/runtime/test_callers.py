"""Who is called back with a verdict, instead of waiting for it: each once, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from outlast.errors import StoreClosed, StoreUnavailable
from outlast.machine.changes import Changes
from outlast.model.execution import execution_key
from outlast.runtime.attempts.current import attempt_var
from outlast.runtime.group_commit import GroupCommit
from outlast.store.port import Capabilities, Committed, Store, Verdict


class Told:
    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.heard: list[tuple[bool, int] | type[Exception]] = []
        self._then = then

    def answered(self, verdict: Verdict, at: int) -> None:
        self.heard.append((verdict.applied, at))
        self._then()

    def failed(self, error: Exception) -> None:
        self.heard.append(type(error))


class Answers:
    """As much of a store as a group commit sees: it answers every commit in the same way."""

    capabilities = Capabilities(native_doorbell=True, exact_order=False)

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error

    async def commit(self, batch: Sequence[Changes]) -> Committed:
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._error
        return Committed(7, [Verdict(True) for _ in batch])


def grouped(store: Answers) -> GroupCommit:
    return GroupCommit(cast("Store", store), patience_s=0)


def about(name: str) -> Changes:
    return Changes(id=name, partition=0, anchors=(execution_key("default", name),))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_callers_are_told_the_verdict_and_its_time_beside_those_who_wait():
    group, caller, after = grouped(Answers()), Told(), Told()
    group.commit_calling(about("a"), caller)
    waits = group.commit(about("b"))
    group.commit_calling(about("c"), after)
    assert await waits == Verdict(True)
    await turns()
    assert caller.heard == after.heard == [(True, 7)]
    await group.close()


async def test_callers_are_told_what_a_commit_failed_with():
    group, caller = grouped(Answers(StoreUnavailable("not now"))), Told()
    group.commit_calling(about("a"), caller)
    await turns()
    assert caller.heard == [StoreUnavailable]
    await group.close()


async def test_callers_are_told_of_a_pump_that_is_gone():
    group, caller = grouped(Answers(asyncio.CancelledError())), Told()
    group.commit_calling(about("a"), caller)
    await turns()
    assert caller.heard == [StoreClosed]


async def test_callers_that_were_answered_hear_so_before_they_hear_that_the_pump_is_gone():
    class Picky(Answers):
        async def commit(self, batch: Sequence[Changes]) -> Committed:
            if len(batch) > 1:
                raise ValueError("one of them")
            if batch[0].id == "b":
                raise asyncio.CancelledError
            return await super().commit(batch)

    group, first, second = grouped(Picky()), Told(), Told()
    group.commit_calling(about("a"), first)
    group.commit_calling(about("b"), second)
    await turns()
    assert first.heard[0] == (True, 7)
    assert second.heard == [StoreClosed]


def test_a_caller_that_stops_the_loop_leaves_the_others_their_turn():
    def stops() -> None:
        raise KeyboardInterrupt

    loop = asyncio.new_event_loop()
    told: list[Any] = [Told(), Told(stops), Told(), Told()]

    async def asks() -> None:
        group = grouped(Answers())
        for number, caller in enumerate(told):
            group.commit_calling(about(f"x{number}"), caller)
        await turns()

    asking = loop.create_task(asks())
    try:
        loop.run_until_complete(asking)
    except KeyboardInterrupt:
        loop.run_until_complete(asking)
    loop.close()
    assert [one.heard for one in told] == [[(True, 7)]] * 4


async def test_callers_are_called_in_no_context_but_the_engine_s():
    """A pump is made by whoever submits first: what that code has in its context is nobody else's."""
    group, seen = grouped(Answers()), list[object]()
    caller = Told(lambda: seen.append(attempt_var.get()))

    async def of_an_attempt() -> None:
        attempt_var.set(cast("Any", "somebody's"))
        group.commit_calling(about("a"), caller)

    await asyncio.create_task(of_an_attempt())
    await turns()
    assert seen == [None]
    await group.close()
