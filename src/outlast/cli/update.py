"""`outlast update ID NAME VALUE`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.text import Text

from outlast.cli.context import ContextArgument, Failed, Id
from outlast.cli.telling import given_value, look_first
from outlast.client.views.words import shown

UpdateName = Annotated[str, Parameter(help="The update's name, as the code registers it.")]
Value = Annotated[str, Parameter(help="What comes with it, in JSON.")]


async def update(
    id: Id,
    name: UpdateName,
    value: Value = "null",
    /,
    *,
    key: Annotated[str | None, Parameter(help="The same key again is the same update, with the same answer.")] = None,
    timeout: Annotated[str, Parameter(help="How long to wait for the answer. [default: 30s]")] = "30s",
    context: ContextArgument,
) -> None:
    """Ask an execution's code to change something, and print its answer once it was accepted. Refused: exit 1.

    Examples:
      outlast update cart-7 add '"pear"' --key click-3
    """
    data = given_value(value)
    async with context.acting() as app:
        handle = app.execution(id)
        await look_first(context, id, writes=True)
        try:
            answer = await handle.update(name, data, key=key, timeout=timeout)
        except TimeoutError as late:
            raise Failed(str(late), kind="TimeoutError") from late
    if context.out.json:
        context.out.document({"store": context.shown_store, "namespace": context.namespace, "id": id, "answer": answer})
        return
    context.out.show(Text.assemble((id, "head"), f"  accepted: {shown(msgspec.json.encode(answer))}"))
