"""Tasks of the real loop, made as fast as Python makes them: with every step, every execution and every commit."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def spawn(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T],
    name: str,
    context: contextvars.Context | None = None,
) -> asyncio.Task[T]:
    """As the loop does it, unless somebody gave it a factory of their own: uvloop names a task twice, and that takes
    half as long as to make it."""
    if loop.get_task_factory() is None:
        return asyncio.Task(work, loop=loop, name=name, context=context)
    return loop.create_task(work, name=name, context=context)
