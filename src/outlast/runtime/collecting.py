"""How a process that runs executions collects garbage: seldom, as next to nothing that attempts leave is in circles.

Python's collector looks at all young objects whenever there are 700 more than before: with a hundred executions under
way that is at each of them several times, in vain, until they are old, and then at all that there is. So it is told to
wait for as many as those have that may be under way. Who has set a threshold of their own for good reasons, higher or
none at all, keeps it; `collect_seldom=False` leaves the collector alone.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

YOUNG = 10_000
"""So many objects more, and the young ones are looked at: about what two hundred executions under way have."""
YOUNG_EACH = 100
"""What an execution under way may have, twice over."""
FROZEN_BY_PYTHON = 1_000
"""Python 3.12 itself keeps some hundred objects from collections, in every process. Whoever freezes what is there
freezes more than so many: the interpreter alone has."""


class _Collector:
    """The process has one, and any number of apps: as long as one of them is open it is as the most demanding asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: list[int] = []
        self._before = gc.get_threshold()
        self._told = self._before

    def ask(self, young: int) -> None:
        with self._lock:
            if not self._asked:
                self._before = self._told = gc.get_threshold()
            self._asked.append(young)
            self._tell()

    def withdraw(self, young: int) -> None:
        with self._lock:
            self._asked.remove(young)
            self._tell()

    def _tell(self) -> None:
        if gc.get_threshold() != self._told:
            return  # somebody has set another one meanwhile, and keeps it
        young, *older = self._before
        self._told = (max(young, *self._asked) if young and self._asked else young, *older)
        gc.set_threshold(*self._told)


_collector = _Collector()


@contextmanager
def room_for(concurrency: int) -> Generator[None]:
    """While so many executions may be under way in this process."""
    young = min(YOUNG, YOUNG_EACH * concurrency)
    _collector.ask(young)
    try:
        yield
    finally:
        _collector.withdraw(young)


@contextmanager
def seldom_collecting() -> Generator[None]:
    """Of a process that has opened all that it needs, and serves until it ends: what is there by now stays, and
    collections need not look at it again."""
    _collector.ask(YOUNG)
    has_frozen = gc.get_freeze_count() > FROZEN_BY_PYTHON
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not has_frozen:
            gc.unfreeze()
        _collector.withdraw(YOUNG)
