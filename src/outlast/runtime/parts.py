"""What every attempt of a process shares, and what the runtime must know of a workflow."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from msgspec import Struct

from outlast.codec.arguments import Arguments
from outlast.codec.values import Values
from outlast.machine.changes import Changes, View
from outlast.model.execution import Execution
from outlast.model.journal import OperationKey
from outlast.runtime.engine import Engine
from outlast.runtime.threads import DaemonThreads
from outlast.runtime.timers import Timers
from outlast.tokens import Tokens


class WorkflowDefinition(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    fn: Callable[..., Any]
    is_async: bool
    arguments: Arguments
    signature: Callable[[], str]
    """Of its code as it is now."""
    fatal: tuple[type[Exception], ...] = ()
    patches: Callable[[], tuple[str, ...]] = tuple
    """The names in `patched(name)` in its source."""


class Rooms(Protocol):
    """Where what is started here, or follows on an attempt that ends here, may begin at once."""

    def promise(self, lane: str, requires: frozenset[str]) -> str | None:
        """The name to claim under what is started now, if it may begin here."""
        ...

    def promise_next(self, execution: Execution, *, in_place_of: Execution | None) -> str | None:
        """The name to claim it under, if it may begin here, or in the room that another leaves, which ends here. Who
        gets it calls `keep`, or `release`."""
        ...

    def keep(self, execution: Execution, data: bytes) -> None: ...

    def release(self) -> None: ...

    def errand(self, work: Coroutine[Any, Any, None]) -> None: ...

    def kick(self) -> None:
        """There may be work."""
        ...


class Parts:
    """The engine, the codec, the wake times that are waited for in memory, and threads for `def` steps."""

    def __init__(
        self,
        engine: Engine,
        values: Values,
        *,
        threads: int,
        committed: Callable[[View, Changes], None],
        resident_ms: int = 1_000,
        tokens: Tokens | None = None,
        token_ttl_ms: int = 0,
    ) -> None:
        self.engine = engine
        self.values = values
        self.timers = Timers(engine)
        self.tokens = tokens or Tokens(())
        self.token_ttl_ms = token_ttl_ms
        self.resident_ms = resident_ms
        """What will be woken so soon is not suspended."""
        self.threads = DaemonThreads(threads, name="outlast step")
        self.committed = committed
        self.context = contextvars.copy_context()
        """In which the code of all attempts is looked after: nothing in it is of whoever started one of them."""
        self.stand_ins: dict[str, Callable[..., Any]] = {}
        """What is called instead of a step, by its name: for tests."""
        self.on_perform: Callable[[Execution, OperationKey], None] | None = None
        """Told which operation of which execution is performed: for tests."""

    async def close(self) -> None:
        await self.timers.close()
        self.threads.shutdown(wait=False, cancel_futures=True)
