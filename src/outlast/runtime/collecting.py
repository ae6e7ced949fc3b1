"""How a worker process collects garbage: as seldom as it may, as next to nothing that attempts leave is in circles.

Python's collector looks at all young objects whenever there are 700 more than before: with a hundred executions under
way that is at each of them several times, in vain. A process that does nothing else is told to wait for more. Who has
set a threshold of their own for good reasons, higher or none at all, keeps it.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

YOUNG = 10_000
"""So many objects more, and the young ones are looked at: about what two hundred executions under way have."""


@contextmanager
def seldom_collecting() -> Generator[None]:
    """Of a process that has opened all that it needs, and serves until it ends."""
    before = young, *older = gc.get_threshold()
    if 0 < young < YOUNG:
        gc.set_threshold(YOUNG, *older)
    has_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()  # what is there by now stays: collections need not look at it again
    try:
        yield
    finally:
        if not has_frozen:
            gc.unfreeze()
        gc.set_threshold(*before)
