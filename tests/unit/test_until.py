"""`tests.waiting`: a test that waits in vain says for what."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import until


async def never() -> bool:
    await asyncio.Event().wait()
    return True


async def raises() -> bool:
    raise TimeoutError("of its own")


async def test_what_does_not_come_is_named():
    with pytest.raises(AssertionError, match=r"after 0.02 s: nobody is there"):
        await until(lambda: False, "nobody is there", seconds=0.02)


async def test_a_condition_that_hangs_is_not_waited_for():
    with pytest.raises(AssertionError, match="nobody answers"):
        await until(never, "nobody answers", seconds=0.02)


async def test_what_a_condition_raises_is_raised():
    with pytest.raises(TimeoutError, match="of its own"):
        await until(raises, "nobody answers")
