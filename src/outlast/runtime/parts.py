"""What every attempt of a process shares, and what the runtime must know of a workflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from outlast.codec.arguments import Arguments
from outlast.codec.values import Values
from outlast.machine.changes import Changes, View
from outlast.runtime.engine import Engine
from outlast.runtime.threads import DaemonThreads


class WorkflowDefinition(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    fn: Callable[..., Any]
    is_async: bool
    arguments: Arguments
    fatal: tuple[type[Exception], ...] = ()


class Parts:
    """The engine, the codec, and threads for `def` steps."""

    def __init__(
        self, engine: Engine, values: Values, *, threads: int, committed: Callable[[View, Changes], None]
    ) -> None:
        self.engine = engine
        self.values = values
        self.threads = DaemonThreads(threads, name="outlast step")
        self.committed = committed
        self.stand_ins: dict[str, Callable[..., Any]] = {}
        """What is called instead of a step, by its name: for tests."""

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
