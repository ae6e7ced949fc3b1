"""Backoffs that begin short, which the worker sits out, and grow long, which are written down: every try counts."""

from __future__ import annotations

from typing import Any, Literal

import pytest

import outlast
from outlast import App, Retry
from outlast.testing import harness

GROWING = Retry(max_attempts=5, initial="2s", jitter=0)
"""Waits of 2, 4, 8 and 16 s: the third and the fourth failed try are written down, then how the fifth ended."""
REPEATED = {1: 3, 2: 1, 3: 1}
"""A crash before the nth of these entries repeats the tries since the last one that is written down."""


class Away(Exception):
    pass


def step(app: App, calls: list[int]) -> Any:
    @app.step(retry=GROWING)
    async def flaky() -> None:
        calls.append(1)
        raise Away

    @app.workflow
    async def works() -> None:
        await flaky()

    return works


def undo(app: App, calls: list[int]) -> Any:
    @app.step(retry=GROWING)
    async def flaky() -> None:
        calls.append(1)
        raise ConnectionError

    @app.workflow
    async def works() -> None:
        await outlast.compensate(flaky)
        raise Away

    return works


def transaction(app: App, calls: list[int]) -> Any:
    @app.transaction(retry=GROWING)
    def flaky() -> None:
        calls.append(1)
        raise Away

    @app.workflow
    async def works() -> None:
        await flaky.aio()

    return works


@pytest.mark.parametrize("kind", [step, undo, transaction])
async def test_tries_with_short_backoffs_count_as_those_with_long_ones(kind: Any):
    app, calls = App(), list[int]()
    works = kind(app, calls)
    async with harness(app):
        handle = await works.start()
        with pytest.raises(Away):
            await handle.result()
        tried = [entry for entry in await handle.journal() if entry.op == "retry"]
        assert [entry.occurrence for entry in tried] == [3, 4]
        assert len(calls) == GROWING.max_attempts


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", REPEATED)
@pytest.mark.parametrize("kind", [step, undo, transaction])
async def test_a_crash_keeps_the_count_of_tries(kind: Any, nth: int, when: Literal["before", "after"]):
    app, calls = App(), list[int]()
    works = kind(app, calls)
    async with harness(app) as h:
        h.crash_at("flaky", nth=nth + (kind is undo), when=when)  # its first entry is the registration
        handle = await works.start()
        with pytest.raises(Away):
            await handle.result()
        assert h.crashes == 1
        assert len(calls) == GROWING.max_attempts + (REPEATED[nth] if when == "before" else 0)
        assert (await handle.journal())[-1].tries == GROWING.max_attempts
