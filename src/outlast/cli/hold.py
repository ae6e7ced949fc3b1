"""`outlast hold ID`."""

from __future__ import annotations

from outlast.cli.context import ContextArgument, Id
from outlast.cli.telling import tell


async def hold(id: Id, /, *, context: ContextArgument) -> None:
    """Do not run an execution (any further, once it next waits) until it is released.

    Examples:
      outlast hold order-42
      outlast release order-42
    """
    await tell(context, id, lambda handle: handle.hold())
