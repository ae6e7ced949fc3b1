"""What every attempt of a process shares, and what the runtime must know of a workflow."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from outlast.codec.arguments import Arguments
from outlast.codec.values import Values
from outlast.model.execution import Execution
from outlast.model.journal import OperationKey
from outlast.observe.telemetry import Telemetry
from outlast.runtime.entropy import Entropy
from outlast.runtime.holder import Holder
from outlast.runtime.refusals import Refusals
from outlast.runtime.threads import DaemonThreads
from outlast.runtime.timers import Timers
from outlast.runtime.timing import Timing
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


class Parts:
    """The holder port, the codec, the wake times that are waited for in memory, and threads for `def` steps."""

    def __init__(
        self,
        holder: Holder,
        values: Values,
        *,
        timing: Timing,
        entropy: Entropy,
        refusals: Refusals,
        telemetry: Telemetry,
        threads: int,
        resident_ms: int = 1_000,
        tokens: Tokens | None = None,
        token_ttl_ms: int = 0,
    ) -> None:
        self.holder = holder
        self.values = values
        self.timing = timing
        self.entropy = entropy
        self.refusals = refusals
        self.telemetry = telemetry
        self.timers = Timers(holder, timing)
        self.tokens = tokens or Tokens(())
        self.token_ttl_ms = token_ttl_ms
        self.resident_ms = resident_ms
        """What will be woken so soon is not suspended."""
        self.threads = DaemonThreads(threads, name="outlast step")
        self.context = contextvars.copy_context()
        """In which the code of all attempts is looked after: nothing in it is of whoever started one of them."""
        self.stand_ins: dict[str, Callable[..., Any]] = {}
        """What is called instead of a step, by its name: for tests."""
        self.on_perform: Callable[[Execution, OperationKey], None] | None = None
        """Told which operation of which execution is performed: for tests."""

    async def close(self) -> None:
        await self.timers.close()
        self.threads.shutdown(wait=False, cancel_futures=True)
