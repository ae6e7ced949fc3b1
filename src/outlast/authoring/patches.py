"""`patched(name)`: two ways in one version of a workflow, the old one for executions that began before the change."""

from __future__ import annotations

from outlast.authoring.inside import workflow_code
from outlast.model.names import check_user_name


def patched(name: str) -> bool:
    """Whether this execution began with code that has this patch. The same at every replay.

        if outlast.patched("fraud-check"):
            await check_fraud(order)         # executions that begin from now on
        await charge(order)

    When no execution from before is open any more, the `if` and the name can go.
    """
    check_user_name("patch", name)
    return workflow_code("patched").patches.has(name)
