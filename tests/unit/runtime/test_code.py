"""The user's code under way."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from outlast.runtime.attempts.code import AsyncCode
from outlast.runtime.attempts.workflow_loop import SLICE, SPIN_SLICES, NobodysLoop

_kept: list[asyncio.Task[None]] = []


async def test_code_that_raises_before_it_is_a_coroutine_ends_with_that():
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def decorated() -> Any:
        raise TypeError("of a decorator")

    class Owner(NobodysLoop):
        def code_ended(self, value: Any, error: BaseException | None) -> None:
            ended.set_result(error)

    code = AsyncCode(decorated, (), {}, contextvars.copy_context(), Owner(), ended.get_loop())
    code.begin()
    assert str(await asyncio.wait_for(ended, 10)) == "of a decorator"
    code.close()


async def test_code_that_ends_in_its_first_turn_lets_the_branches_it_leaves_have_theirs_first():
    """As code does that waits before it ends."""
    told: list[list[str]] = []
    for waits in (False, True):
        seen: list[str] = []
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        owner = _Noting(seen, ended)
        code = AsyncCode(_leaving_a_branch, (seen, waits), {}, contextvars.copy_context(), owner, ended.get_loop())
        code.begin()
        await asyncio.wait_for(ended, 10)
        code.close()
        told.append(seen)
    assert told == [["branch begins", "ended", "branch is left"]] * 2


async def test_code_that_leaves_nothing_has_ended_when_it_has_begun():
    seen: list[str] = []
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def at_once() -> None:
        return None

    code = AsyncCode(at_once, (), {}, contextvars.copy_context(), _Noting(seen, ended), ended.get_loop())
    code.begin()
    assert seen == ["ended"]
    assert asyncio.get_running_loop() is ended.get_loop()
    code.close()


async def test_the_real_loop_rests_while_code_goes_round_in_circles(monkeypatch: pytest.MonkeyPatch):
    """Threads of this process, a store's among them, wait for a loop that never rests."""
    turns, rests = 0, list[float]()

    async def goes_round() -> None:
        nonlocal turns
        while turns < SLICE * SPIN_SLICES * 2:
            turns += 1
            await asyncio.sleep(0)

    real = asyncio.get_running_loop()
    later = real.call_later

    def call_later(delay_s: float, *call: Any, **context: Any) -> asyncio.TimerHandle:
        if not rests:
            assert turns >= SLICE * SPIN_SLICES - 10, "code that is busy for a while does not wait"
        rests.append(delay_s)
        return later(delay_s, *call, **context)

    ended: asyncio.Future[None] = real.create_future()
    code = AsyncCode(goes_round, (), {}, contextvars.copy_context(), _Noting([], ended), real)
    monkeypatch.setattr(real, "call_later", call_later)
    code.begin()
    await ended
    monkeypatch.undo()
    assert len(rests) >= SPIN_SLICES
    assert min(rests) > 0
    code.close()


async def test_looks_at_code_that_goes_round_in_circles_leave_one_pump_behind_and_not_one_each():
    pumps = 0
    done = False

    async def spins() -> None:
        while not done:  # noqa: ASYNC110 (that is what it is about)
            await asyncio.sleep(0)

    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    code = AsyncCode(spins, (), {}, contextvars.copy_context(), _Noting([], ended), ended.get_loop())
    really = code.loop._run

    def run(most: int) -> int:
        nonlocal pumps
        pumps += 1
        return really(min(most, 10))

    code.loop._run = run
    code.begin()
    for _ in range(20):
        code.look()
    await asyncio.sleep(0)
    pumps = 0
    for _ in range(10):
        await asyncio.sleep(0)
    assert pumps <= 10, "one in each turn of the real loop"
    done = True
    await asyncio.wait_for(ended, 10)
    code.close()


async def _leaving_a_branch(seen: list[str], waits: bool) -> None:
    async def branch() -> None:
        seen.append("branch begins")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("branch is left")

    _kept.append(asyncio.create_task(branch()))
    if waits:
        await asyncio.sleep(0)


class _Noting(NobodysLoop):
    def __init__(self, seen: list[str], ended: asyncio.Future[None]) -> None:
        self._seen, self._ended = seen, ended

    def code_ended(self, value: Any, error: BaseException | None) -> None:
        assert error is None
        self._seen.append("ended")
        self._ended.set_result(None)


async def test_what_is_delivered_to_code_that_rests_is_run_at_once_and_what_cannot_be_leaves_it_at_rest():
    waited: list[asyncio.Future[str]] = []

    async def waits() -> list[str]:
        got: list[str] = []
        for _ in range(2):
            waited.append(asyncio.get_running_loop().create_future())
            got.append(await waited[-1])
        return got

    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    class Owner(NobodysLoop):
        def code_ended(self, value: Any, error: BaseException | None) -> None:
            ended.set_result(value)

    code = AsyncCode(waits, (), {}, contextvars.copy_context(), Owner(), ended.get_loop())
    code.begin()
    with pytest.raises(asyncio.InvalidStateError):
        code.loop.go_on(asyncio.Future.result, waited[0])
    assert code.loop.go_on(waited[0].set_result, "first")
    assert len(waited) == 2
    waited[1].set_result("second")
    assert not code.loop.go_on(waited.clear)  # it is about to run
    assert await asyncio.wait_for(ended, 10) == ["first", "second"]
    code.close()
    assert not code.loop.go_on(waited.clear)


async def test_tasks_and_futures_of_workflow_code_are_hashed_by_their_order_of_creation():
    real = asyncio.get_running_loop()
    hashes = [_hashes(real, began_ms) for began_ms in (1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_000)]
    assert hashes[0] == hashes[2], "a replay begins at the time of the first attempt, and has the same order of sets"
    assert len({*hashes[0], *hashes[1]}) == 22, "tasks of other code, which asyncio holds in the same set, collide"
    assert sorted(hashes[0]) == hashes[0]


def _hashes(real: asyncio.AbstractEventLoop, began_ms: int) -> list[int]:
    made: list[int] = []

    class Owner(NobodysLoop):
        now_ms = began_ms

        def code_ended(self, value: Any, error: BaseException | None) -> None:
            assert error is None

    async def makes() -> None:
        made.append(hash(asyncio.current_task()))
        for _ in range(5):
            made.append(hash(asyncio.create_task(asyncio.sleep(0))))
            made.append(hash(asyncio.get_running_loop().create_future()))

    code = AsyncCode(makes, (), {}, contextvars.copy_context(), Owner(), real)
    code.begin()
    code.close()
    return made
