"""A part of an attempt that is made when it is first asked for.

Most code calls steps and returns: it waits for nothing, shows nothing, is asked nothing and undoes nothing. Thousands
of attempts live at once, and the collector of garbage looks at every object of each, again and again. So an attempt has
no parts that its code does not use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt

T = TypeVar("T")

_making = threading.RLock()
"""`def` code and its steps ask from threads of their own: each has the same part. Who holds it may ask again: garbage
may be collected at any time, and what ends by that may be code that asks."""


class LatePart(Generic[T]):
    """`waits = LatePart(Waits)` in a class with a slot `_waits`, which is None until then."""

    def __init__(self, make: Callable[[LiveAttempt], T]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"_{name}"

    def __get__(self, attempt: Any, owner: type | None = None) -> T:
        part = getattr(attempt, self._slot)
        return self._made(attempt) if part is None else part

    def _made(self, attempt: Any) -> T:
        made: Any = self._make(attempt)
        with _making:
            part: Any = getattr(attempt, self._slot)
            if part is None:
                part = made
                setattr(attempt, self._slot, part)
        return part
