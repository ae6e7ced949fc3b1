"""`outlast cancel ID`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from outlast.cli.context import ContextArgument, Id
from outlast.cli.telling import tell


async def cancel(
    id: Id,
    /,
    *,
    reason: Annotated[str, Parameter(help="Why; `outlast show` tells it.")] = "",
    context: ContextArgument,
) -> None:
    """Cancel an execution: at once if no code runs, otherwise its code is told and unwinds.

    Cancelling twice is the same. What has ended otherwise is refused (exit 1).

    Examples:
      outlast cancel order-42 --reason "the customer called"
    """
    await tell(context, id, lambda handle: handle.cancel(reason=reason), of_flows="cancel")
