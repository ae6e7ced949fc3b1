"""Which attempt the running code belongs to, if any."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast.runtime.attempt import LiveAttempt

attempt_var: contextvars.ContextVar[LiveAttempt | None] = contextvars.ContextVar("outlast_attempt", default=None)
step_var: contextvars.ContextVar[str | None] = contextvars.ContextVar("outlast_step", default=None)
"""The step whose body is running: a step inside a step is a plain call."""


def inside() -> LiveAttempt | None:
    """The attempt whose workflow code is running, outside of its steps."""
    return None if step_var.get() is not None else attempt_var.get()
