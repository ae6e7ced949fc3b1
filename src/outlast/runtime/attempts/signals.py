"""What tells workflow code to stop. They derive from BaseException: a user's `except Exception` can't swallow them."""

from __future__ import annotations


class Signal(BaseException):
    """Not an error: the attempt leaves the code."""


class Suspended(Signal):
    """All that the code awaits is written down; it goes on from the journal when it is woken."""


class Stopped(Signal):
    """The worker no longer holds the execution, or hands it back: nothing that the code does counts any more."""


LEFT = (Suspended, Stopped)
"""The engine left the code; nothing in the code raised it."""


class ContinuedAsNew(Signal):
    """The code goes on from a clean page, with this input."""

    def __init__(self, data: bytes) -> None:
        super().__init__("continue_as_new")
        self.input = data
