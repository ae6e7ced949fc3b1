"""`outlast retry ID`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from outlast.cli.context import ContextArgument, Failed, Id
from outlast.cli.telling import tell
from outlast.errors import ExecutionRefused
from outlast.machine.changes import Code


async def retry(
    id: Id,
    /,
    *,
    from_step: Annotated[
        str | None, Parameter(help="Run this step (NAME, or NAME#2 for its second call) and all after it again.")
    ] = None,
    context: ContextArgument,
) -> None:
    """Open an execution that ended again: what was recorded is not run again, only what failed.

    What has not ended is refused (exit 1), and so is what has succeeded: `outlast fork` it.

    Examples:
      outlast retry order-42
      outlast retry order-42 --from-step charge
      outlast --json ls --status failed | jq -r '.executions[].id' | xargs -n1 outlast retry
    """
    try:
        await tell(context, id, lambda handle: handle.retry(from_step=from_step), of_flows="retry")
    except ExecutionRefused as refused:
        if refused.code != Code.TERMINAL:
            raise
        told = f"{refused}: `outlast fork {id} --from-step NAME` runs it again from a step, as a new execution"
        raise Failed(told, kind=type(refused).__name__) from refused
