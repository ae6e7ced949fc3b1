"""A durable operation of workflow code: named when it is called, settled when its outcome is in the journal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from outlast.model.retry import RetryPolicy

if TYPE_CHECKING:
    import asyncio
    import contextvars

_PACKAGE = str(Path(__file__).parent.parent)
_OURS: set[CodeType] = set()
"""Code of Outlast that was seen below user code: found again faster than by its file's name."""

SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
STEP, RETRY, CANCEL = "step", "retry", "cancel"

OperationKey = tuple[str, str, int]
"""(scope, name, occurrence): with the execution and its generation, the journal's key."""


class StepDefinition(Struct, frozen=True, kw_only=True):
    """What the runtime must know of a step."""

    name: str
    fn: Callable[..., Any]
    is_async: bool
    result: Any
    retry: RetryPolicy
    fatal: tuple[type[Exception], ...]
    timeout_s: float | None


class Operation:
    """One call of a step, waiting for its outcome. `future` belongs to the code that called it."""

    __slots__ = ("args", "context", "dropped", "future", "key", "kwargs", "place", "step")

    def __init__(
        self,
        key: OperationKey,
        step: StepDefinition,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: asyncio.Future[Any] | ThreadFuture[Any],
        context: contextvars.Context,
        place: tuple[CodeType, int],
    ) -> None:
        self.key = key
        self.step = step
        self.args = args
        self.kwargs = kwargs
        self.future = future
        self.context = context
        self.place = place
        self.dropped = False
        """Nobody wants its outcome any more: the code gave it up, or the attempt has ended."""

    @property
    def line(self) -> str:
        code, number = self.place
        return f"{code.co_filename}:{number}"

    def __str__(self) -> str:
        return described(STEP, self.key)


def described(op: str, key: OperationKey) -> str:
    scope, name, occurrence = key
    which = "" if occurrence == 1 else f", call {occurrence}"
    where = f" in branch {scope.rstrip('.')}" if scope else ""
    return f"{op} {name!r}{which}{where}"


def calling_place() -> tuple[CodeType, int]:
    """Where user code called: the nearest frame outside of Outlast."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while (code := frame.f_code) in _OURS or code.co_filename.startswith(_PACKAGE):
        _OURS.add(code)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return code, frame.f_lineno
