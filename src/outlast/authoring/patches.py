"""`patched(name)`: two ways in one version of a workflow, the old one for executions that began before the change."""

from __future__ import annotations

from outlast.errors import WrongPlace
from outlast.model.names import check_user_name
from outlast.runtime.current import attempt_var, step_var


def patched(name: str) -> bool:
    """Whether this execution began with code that has this patch. The same at every replay.

        if outlast.patched("fraud-check"):
            await check_fraud(order)         # executions that begin from now on
        await charge(order)

    When no execution from before is open any more, the `if` and the name can go.
    """
    check_user_name("patch", name)
    attempt = attempt_var.get()
    if attempt is None or step_var.get() is not None:
        raise WrongPlace(f"patched({name!r}) asks about the execution of a workflow: call it in a workflow's own code")
    return attempt.patches.has(name)
