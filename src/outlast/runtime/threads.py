"""Threads for `def` steps. They are daemons: a step that never returns must not keep a drained worker from exiting.

Nor may it keep other steps from running: no thread can be stopped, so one whose step was given up (its timeout, a
cancel, a lost lease) is made up for by another.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Work = tuple["Future[Any]", Callable[[], Any]]

FORSAKEN_MAX = 1_000
"""So many threads are made up for."""

_log = logging.getLogger(__name__)


class DaemonThreads(Executor):
    """Made as they are needed, up to a number that somebody waits for; kept until the end."""

    def __init__(self, most: int, *, name: str) -> None:
        self._most = most
        self._forsaken = 0
        self._name = name
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._threads = 0
        self._free = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._guard:
            if self._closed:
                raise RuntimeError("these threads were shut down")
            self._work.put((future, lambda: fn(*args, **kwargs)))
            if self._free:
                self._free -= 1
            elif self._threads < self._most + self._forsaken:
                self._grow(future)
        return future

    def forsake(self, future: Future[Any]) -> None:
        """Nobody waits for it any more. If it runs, whoever waits for a thread gets another one."""
        if future.done() or future.cancel():
            return
        with self._guard:
            if self._closed or self._forsaken >= FORSAKEN_MAX:
                return
            self._forsaken += 1
            if self._forsaken == self._most:
                _log.warning("%d threads run def steps that nobody waits for any more: do they end?", self._forsaken)
            if not self._work.empty() and not self._free:
                self._grow(future)
        future.add_done_callback(self._returned)

    def _returned(self, _: Future[Any]) -> None:
        with self._guard:
            self._forsaken -= 1

    def _grow(self, wanted_by: Future[Any]) -> None:
        try:
            threading.Thread(target=self._serve, name=f"{self._name} {self._threads + 1}", daemon=True).start()
        except RuntimeError:  # the machine has no more threads: those that there are will come to it
            if self._threads == 0:
                wanted_by.cancel()
                raise
        else:
            self._threads += 1

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            _do(*work)
            del work
            with self._guard:
                if self._work.empty():
                    self._free += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What runs goes on; nobody waits for it."""
        with self._guard:
            self._closed = True
            if cancel_futures:
                self._cancel_what_waits()
            for _ in range(self._threads):
                self._work.put(None)

    def _cancel_what_waits(self) -> None:
        with suppress(Empty):
            while True:
                work = self._work.get_nowait()
                if work is not None:
                    work[0].cancel()


def _do(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
