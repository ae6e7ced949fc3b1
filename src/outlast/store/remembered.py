"""What was made of things that come again, found by the thing itself: to compare what it holds would take longer.

For frozen things only. Each is kept with what was made of it, so its `id` stays its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """`made = remembered(thing)`: made by `make`, unless it was before. Past `most` it begins anew."""

    __slots__ = ("_known", "_make", "_most")

    def __init__(self, make: Callable[[K], V], *, most: int) -> None:
        self._make = make
        self._most = most
        self._known: dict[int, tuple[K, V]] = {}

    def __call__(self, thing: K) -> V:
        try:
            return self._known[id(thing)][1]
        except KeyError:
            pass
        made = self._make(thing)
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[id(thing)] = (thing, made)
        return made
