"""The life of a worker process: it opens, works until a signal, and closes. A second signal ends it at once.

Nothing is left open behind it, whatever ends it: an opening that is given up is waited for, and what has opened is
closed, also if its caller cancels it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from typing import Any

from outlast.runtime.collecting import seldom_collecting

_log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
QUIET_S = 0.5
"""What takes longer to close says so."""


async def serve_until_signal(
    opening: Coroutine[Any, Any, None], close: Callable[[], Awaitable[None]], *, collect_seldom: bool = True
) -> None:
    """In the main thread. Raises what opening raised."""
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    opened, stopping = loop.create_task(opening), loop.create_task(stop.wait())
    try:
        await asyncio.wait((opened, stopping), return_when=asyncio.FIRST_COMPLETED)
        if opened.done():
            opened.result()
            with seldom_collecting() if collect_seldom else nullcontext():
                await stopping
    finally:
        stopping.cancel()
        await _unless_hurried(loop.create_task(_closed(opened, close)), hurry)
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def _closed(opened: asyncio.Task[None], close: Callable[[], Awaitable[None]]) -> None:
    if not opened.done():
        opened.cancel()
        await asyncio.wait((opened,))
    if not opened.cancelled() and opened.exception() is None:
        await close()


async def _unless_hurried(closed: asyncio.Task[None], hurry: asyncio.Event) -> None:
    hurried = asyncio.create_task(hurry.wait())
    done, _ = await asyncio.wait((closed, hurried), timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED)
    if not done:
        _log.info("still stopping; a second signal stops at once")
        await asyncio.wait((closed, hurried), return_when=asyncio.FIRST_COMPLETED)
    if not closed.done():
        os._exit(1)
    hurried.cancel()
    closed.result()
