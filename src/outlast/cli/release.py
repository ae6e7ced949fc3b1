"""`outlast release ID`."""

from __future__ import annotations

from outlast.cli.context import ContextArgument, Id
from outlast.cli.telling import tell


async def release(id: Id, /, *, context: ContextArgument) -> None:
    """Let an execution that is held go on.

    Examples:
      outlast release order-42
    """
    await tell(context, id, lambda handle: handle.release())
