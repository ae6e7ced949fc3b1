"""`outlast retry ID`."""

from __future__ import annotations

from outlast.cli.context import ContextArgument, Id
from outlast.cli.telling import tell


async def retry(id: Id, /, *, context: ContextArgument) -> None:
    """Open an execution that ended again: what was recorded is not run again, only what failed.

    What has not ended is refused (exit 1).

    Examples:
      outlast retry order-42
      outlast --json ls --status failed | jq -r '.executions[].id' | xargs -n1 outlast retry
    """
    await tell(context, id, lambda handle: handle.retry())
