"""Which attempt the running code belongs to, if any."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt
    from outlast.runtime.attempts.operation import Operation

attempt_var: contextvars.ContextVar[LiveAttempt | None] = contextvars.ContextVar("outlast_attempt", default=None)
operation_var: contextvars.ContextVar[Operation | None] = contextvars.ContextVar("outlast_operation", default=None)
"""The call that a step's body is run for: a step inside a step is a plain call."""
connection_var: contextvars.ContextVar[Any] = contextvars.ContextVar("outlast_connection", default=None)
"""The connection of the transaction whose body is running."""


class _StepVar:
    """Read like the others. It needs no variable of its own: setting one with every step takes a while."""

    def get(self) -> str | None:
        operation = operation_var.get()
        return None if operation is None else operation.kind.name


step_var = _StepVar()
"""The name of the step whose body is running."""


def inside() -> LiveAttempt | None:
    """The attempt whose workflow code is running, outside of its steps."""
    return None if operation_var.get() is not None else attempt_var.get()
