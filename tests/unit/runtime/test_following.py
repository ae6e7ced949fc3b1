"""Group commit where commits are decided in the order in which they were sent: many follow before the last batch is
answered, and what is about the same execution stays behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from outlast.errors import ReplyLost, StoreClosed
from outlast.machine.changes import Changes
from outlast.model.execution import execution_key
from outlast.runtime.group_commit import FOLLOWS_MIN, HALVED_MIN, GroupCommit
from outlast.store.port import Capabilities, Committed, Verdict


class Server:
    """As much of a store as a group commit sees: each commit is answered when it is let."""

    def __init__(self, *, in_line: bool = True) -> None:
        self.capabilities = Capabilities(native_doorbell=True, exact_order=False, apart=True, in_line=in_line)
        self.sent: list[list[str]] = []
        self.answers: list[asyncio.Future[None]] = []

    async def commit(self, batch: Sequence[Changes]) -> Committed:
        self.sent.append([changes.id for changes in batch])
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]
        return Committed(1, [Verdict(True) for _ in batch])

    def answer(self, number: int, error: BaseException | None = None) -> None:
        if error is None:
            self.answers[number].set_result(None)
        else:
            self.answers[number].set_exception(error)


@pytest.fixture
def server() -> Server:
    return Server()


def grouped(server: Any, **options: Any) -> GroupCommit:
    return GroupCommit(server, **options)


def about(name: str, number: int = 0) -> Changes:
    return Changes(id=f"{name}{number or ''}", partition=0, anchors=(execution_key("default", name),))


def many(first: int, last: int) -> list[Changes]:
    return [about(f"x{n}") for n in range(first, last)]


def submitted(group: GroupCommit, changes: list[Changes]) -> list[asyncio.Future[Verdict]]:
    return [group.commit(one) for one in changes]


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def ids(first: int, last: int) -> list[str]:
    return [one.id for one in many(first, last)]


async def test_many_follow_before_the_last_batch_is_answered(server: Server):
    group = grouped(server)
    first = submitted(group, many(0, 1))
    await turn()
    rest = submitted(group, many(1, 1 + FOLLOWS_MIN))
    await turn()
    assert server.sent == [ids(0, 1), ids(1, 1 + FOLLOWS_MIN)]
    server.answer(0)
    await asyncio.gather(*first)
    assert not any(future.done() for future in rest)
    server.answer(1)
    assert all(verdict.applied for verdict in await asyncio.gather(*rest))
    await group.close()


async def test_no_more_than_two_batches_are_in_flight(server: Server):
    group = grouped(server)
    submitted(group, many(0, 1))
    await turn()
    submitted(group, many(1, 50))
    await turn()
    submitted(group, many(50, 100))
    await turn()
    assert server.sent == [ids(0, 1), ids(1, 50)]
    server.answer(1)
    await turn()
    assert server.sent[2:] == [ids(50, 100)], "whichever is answered makes room"
    for number in (0, 2):
        server.answer(number)
    await group.close()


async def test_few_wait_for_the_batch_in_flight(server: Server):
    group = grouped(server)
    submitted(group, many(0, 1))
    await turn()
    submitted(group, many(1, FOLLOWS_MIN))
    await turn()
    assert len(server.sent) == 1
    server.answer(0)
    await turn()
    assert server.sent[1:] == [ids(1, FOLLOWS_MIN)]
    server.answer(1)
    await group.close()


async def test_many_that_wait_go_in_halves_one_behind_the_other(server: Server):
    group = grouped(server)
    submitted(group, many(0, HALVED_MIN))
    await turn()
    half = HALVED_MIN // 2
    assert server.sent == [ids(0, half), ids(half, HALVED_MIN)]
    server.answer(0)
    server.answer(1)
    await group.close()


async def test_what_is_about_the_same_execution_waits_until_the_one_before_is_answered(server: Server):
    """Else a commit whose reply was lost would be repeated behind what followed it."""
    group = grouped(server, pause=lambda _: asyncio.sleep(0))
    submitted(group, [about("x0")])
    await turn()
    rest = submitted(group, [*many(1, 30), about("x0", 2), *many(30, 60)])
    await turn()
    assert server.sent == [["x0"], ids(1, 30)]
    server.answer(1)
    await turn()
    assert len(server.sent) == 2, "what comes behind it in line waits as well"
    server.answer(0, ReplyLost("cut"))
    await turn()
    assert server.sent[2:] == [["x0"]], "the same, once more"
    server.answer(2)
    await turn()
    assert server.sent[3:] == [["x02", *ids(30, 60)]]
    server.answer(3)
    assert all(verdict.applied for verdict in await asyncio.gather(*rest))
    await group.close()


async def test_a_line_that_waits_for_what_is_in_flight_starts_no_pump_for_each_that_comes(server: Server):
    group = grouped(server)
    submitted(group, [about("x0")])
    await turn()
    submitted(group, [about("x0", 2), *many(1, 40)])
    await turn()
    before = asyncio.all_tasks()
    submitted(group, many(40, 60))
    assert asyncio.all_tasks() == before
    server.answer(0)
    await turn()
    assert server.sent[1:] == [["x02", *ids(1, 60)]]
    server.answer(1)
    await group.close()


async def test_stores_that_do_not_say_so_have_one_batch_in_flight():
    server = Server(in_line=False)
    group = grouped(server)
    submitted(group, many(0, 1))
    await turn()
    submitted(group, many(1, HALVED_MIN))
    await turn()
    assert len(server.sent) == 1
    server.answer(0)
    await turn()
    assert server.sent[1:] == [ids(1, HALVED_MIN)]
    server.answer(1)
    await group.close()


async def test_a_store_that_stops_reaches_everybody_who_waits_and_both_batches(server: Server):
    class Crash(BaseException):
        pass

    group = grouped(server)
    first = submitted(group, many(0, 1))
    await turn()
    second = submitted(group, many(1, 40))
    await turn()
    third = submitted(group, many(40, 50))
    server.answer(0, Crash())
    for future in (*first, *third):
        with pytest.raises(StoreClosed):
            await future
    assert not any(future.done() for future in second)
    server.answer(1)
    assert all(verdict.applied for verdict in await asyncio.gather(*second))
    [again] = submitted(group, [about("x0")])
    await turn()
    assert server.sent[-1] == ["x0"], "nothing is left of what was in flight"
    server.answer(2)
    assert (await again).applied
    await group.close()


@pytest.mark.parametrize("in_line", [True, False])
async def test_a_pump_that_breaks_between_two_batches_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, in_line: bool
):
    server = Server(in_line=in_line)
    group = grouped(server)
    first = submitted(group, many(0, 1))
    await turn()
    second = submitted(group, many(1, FOLLOWS_MIN))

    def breaks(batch: object) -> int:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("outlast.runtime.group_commit._fitting", breaks)
    server.answer(0)
    assert (await asyncio.gather(*first))[0].applied
    for future in second:
        with pytest.raises(StoreClosed, match="a fault of ours"):
            await asyncio.wait_for(future, 5)
    monkeypatch.undo()
    [again] = submitted(group, [about("x0")])
    await turn()
    server.answer(1)
    assert (await again).applied
    await group.close()
