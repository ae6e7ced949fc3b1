"""The event loop of a worker process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop for a worker process, where it is installed (`outlast[uvloop]`); None is asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
