"""Errors that are not as errors should be: they refuse attributes, or are what no future can carry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import outlast
from outlast import App, Retry
from outlast.runtime.attempts.attempt import LiveAttempt
from tests.acceptance.conftest import Place

ONCE = Retry(max_attempts=1)


class Immutable(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("immutable")


async def refused(number: int) -> int:
    raise Immutable(str(number))


async def test_an_error_that_refuses_attributes_is_raised_like_any_other(app: App):
    step = app.step(refused, retry=ONCE)

    @app.workflow
    async def one_and_many() -> list[str]:
        try:
            await step(0)
        except Immutable as alone:
            together = await asyncio.gather(step(1), step(2), step(3), return_exceptions=True)
            return [repr(alone), *map(repr, together)]
        return []

    async with app:
        found = await (await one_and_many.start()).result(timeout=10)
    assert found == [f"Immutable('{number}')" for number in range(4)]


async def test_an_error_that_refuses_attributes_is_known_again_by_a_retry(app: App):
    """What it came from is run again, and nothing else."""
    ran: list[int] = []

    @app.step(retry=ONCE)
    async def fails_once(number: int) -> int:
        ran.append(number)
        if ran == [0, 1]:
            raise Immutable("once")
        return number

    @app.workflow(retry=Retry(max_attempts=2, initial="0s"))
    async def both() -> int:
        return await fails_once(0) + await fails_once(1)

    async with app:
        assert await (await both.start()).result(timeout=10) == 1
    assert ran == [0, 1, 1]


@pytest.mark.parametrize("how", ["child", "deferred"])
async def test_a_stop_iteration_is_told_as_what_a_future_can_carry(app: App, how: str):
    @app.workflow
    def child() -> int:
        return next(iter(()))

    @app.workflow
    async def waiting() -> str:
        try:
            if how == "child":
                await child.aio()
            else:
                await outlast.deferred("approval", int)
        except RuntimeError as error:
            return str(error)
        return "nothing"

    async with app:
        handle = await waiting.start()
        if how == "deferred":
            await handle.reject("approval", StopIteration("no more"))
        assert "StopIteration" in await handle.result(timeout=10)


async def test_what_goes_wrong_where_an_outcome_is_delivered_costs_the_attempt_and_no_more(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    """Both ways: a lone step's outcome is delivered at once, that of one among several when it is its turn."""
    broken: list[Any] = []
    deliver = LiveAttempt._deliver

    def breaks_once_each(self: LiveAttempt, operation: Any, *args: Any) -> None:
        if operation.key not in broken and len(broken) < 2:
            broken.append(operation.key)
            raise OSError("broken here")
        deliver(self, operation, *args)

    monkeypatch.setattr(LiveAttempt, "_deliver", breaks_once_each)
    app = place.app(lease_ttl="1s")

    @app.step
    async def told(number: int) -> int:
        return number

    @app.workflow
    async def one_and_many() -> int:
        return await told(1) + sum(await asyncio.gather(told(2), told(3)))

    async with app:
        handle = await one_and_many.start()
        assert await handle.result(timeout=20) == 6
    assert len(broken) == 2
