"""Waiting for what nobody announces: asked again and again, and said what it was if it does not come."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

PAUSE_S = 0.005


async def until(condition: Callable[[], Any], what: str, *, seconds: float = 20, pause_s: float = PAUSE_S) -> None:
    """Until it holds. `what` is said if it does not: "the worker has not begun"."""
    if not await comes_true(condition, seconds=seconds, pause_s=pause_s):
        raise AssertionError(f"after {seconds:g} s: {what}")


async def comes_true(condition: Callable[[], Any], *, seconds: float, pause_s: float = PAUSE_S) -> bool:
    """Whether it holds within that time. It may be an `async def`, which is not waited for any longer either."""
    try:
        async with asyncio.timeout(seconds) as limit:
            while True:
                holds = condition()
                if inspect.isawaitable(holds):
                    holds = await holds
                if holds:
                    return True
                await asyncio.sleep(pause_s)
    except TimeoutError:
        if limit.expired():
            return False
        raise
