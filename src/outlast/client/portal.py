"""One thread with an event loop, for code that has none. Opened when first needed, once per process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from outlast.errors import WrongPlace

T = TypeVar("T")


class Portal:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="outlast portal", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        refuse_on_loop()
        return call_in(self.loop, work)


def call_in(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work()` in a loop of another thread, and wait for it."""
    return asyncio.run_coroutine_threadsafe(_called(work), loop).result()


async def _called(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await work()


def refuse_on_loop(what: str = "the blocking face (.sync)", instead: str = "await the async one") -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WrongPlace(f"{what} would block this thread's event loop: {instead} instead")


_portals: dict[int, Portal] = {}
_guard = threading.Lock()


def portal() -> Portal:
    """This process's portal; a fork has its own."""
    with _guard:
        if os.getpid() not in _portals:
            _portals.clear()
            _portals[os.getpid()] = Portal()
        return _portals[os.getpid()]
