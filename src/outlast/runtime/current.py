"""Which attempt the running code belongs to, if any."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.runtime.attempt import LiveAttempt
    from outlast.runtime.operation import Operation

attempt_var: contextvars.ContextVar[LiveAttempt | None] = contextvars.ContextVar("outlast_attempt", default=None)
step_var: contextvars.ContextVar[str | None] = contextvars.ContextVar("outlast_step", default=None)
"""The step whose body is running: a step inside a step is a plain call."""
operation_var: contextvars.ContextVar[Operation | None] = contextvars.ContextVar("outlast_operation", default=None)
"""The call that this step's body is run for."""
connection_var: contextvars.ContextVar[Any] = contextvars.ContextVar("outlast_connection", default=None)
"""The connection of the transaction whose body is running."""


def inside() -> LiveAttempt | None:
    """The attempt whose workflow code is running, outside of its steps."""
    return None if step_var.get() is not None else attempt_var.get()
