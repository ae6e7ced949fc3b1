"""`outlast fork ID --from-step NAME`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from outlast.cli.context import ContextArgument, Id
from outlast.cli.telling import look_first


async def fork(
    id: Id,
    /,
    *,
    from_step: Annotated[str, Parameter(help="The first step to run anew: NAME, or NAME#2 for its second call.")],
    into: Annotated[str | None, Parameter(help="The new execution's id. [default: ID-fork-RANDOM]")] = None,
    context: ContextArgument,
) -> None:
    """Start a new execution that keeps what another one recorded before a step, and goes on from there.

    The other one stays as it is, whatever its status. An unknown step is refused with those that there are (exit 2).

    Examples:
      outlast fork order-42 --from-step ship
      outlast fork order-42 --from-step charge#2 --into order-42-again
    """
    async with context.acting() as app:
        forked = app.execution(id)
        await look_first(context, id)
        handle = await forked.fork(from_step=from_step, id=into)
    if context.out.json:
        document = {"store": context.shown_store, "namespace": context.namespace, "id": handle.id, "forked_from": id}
        context.out.document(document)
        return
    context.out.show(Text.assemble((handle.id, "head"), f"  goes on from {from_step} of {id}"))
