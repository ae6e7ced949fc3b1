"""One thread with an event loop, for code that has none. Opened when first needed, once per process; ends with it."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from outlast.errors import WrongPlace

T = TypeVar("T")


CLOSE_S = 1.0
"""What runs in the portal when the process ends has so long to hear of it."""


class Portal:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="outlast portal", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)  # Python complains of tasks that nobody ended
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_S))
        self.loop.close()

    def close(self) -> None:
        """The process ends. Whoever keeps the loop busy is not waited for."""
        with suppress(RuntimeError):  # closed already
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(2 * CLOSE_S)

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        refuse_on_loop()
        return call_in(self.loop, work)


def call_in(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work()` in a loop of another thread, and wait for it."""
    if loop.is_closed():
        raise WrongPlace("the blocking face (.sync) is closed: this process is ending")
    try:
        return asyncio.run_coroutine_threadsafe(_called(work), loop).result()
    except CancelledError:
        if _ending.is_set():
            raise SystemExit from None  # a daemon thread, which ends with the process and has nobody to tell
        raise


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
_ending = threading.Event()


def portal() -> Portal:
    """This process's portal; a fork has its own."""
    with _guard:
        if os.getpid() not in _portals:
            _portals.clear()
            _portals[os.getpid()] = Portal()
        return _portals[os.getpid()]


@atexit.register
def _close() -> None:
    """Behind whatever the program itself has registered since it imported Outlast."""
    mine = _portals.get(os.getpid())
    if mine is not None:
        _ending.set()
        mine.close()


def _forked() -> None:
    """The tasks of the parent's loop are nothing to complain of when they go."""
    for parents in _portals.values():
        for task in asyncio.all_tasks(parents.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_forked)
