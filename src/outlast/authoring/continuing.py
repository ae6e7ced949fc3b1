"""Going on from a clean page: for loops that never end.

    @app.workflow
    async def account(balance: int = 0) -> None:
        for _ in range(100):
            balance += await outlast.receive("deposit", int)
        outlast.continue_as_new(balance)

The execution keeps its id, its open children and the events that it has not received yet; its journal begins anew.
"""

from __future__ import annotations

from typing import Any, NoReturn

from outlast.authoring.inside import workflow_code
from outlast.runtime.attempts.mishaps import encoding
from outlast.runtime.attempts.signals import ContinuedAsNew


def continue_as_new(*args: Any, **kwargs: Any) -> NoReturn:
    """End this generation and begin the next one with these arguments. It does not return: no code runs behind it.

    `WrongPlace` if undos are registered (`compensate`): they belong to this generation, and would be lost.
    """
    attempt = workflow_code("continue_as_new")
    attempt.unwinding.refuse_new_page()
    with encoding():
        data, _ = attempt.workflow.arguments.encode(attempt.parts.values, args, kwargs)
    raise ContinuedAsNew(data)
