"""`outlast send ID NAME VALUE`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from outlast.cli.context import ContextArgument, Id
from outlast.cli.telling import given_value, tell

EventName = Annotated[str, Parameter(help="The event's name, as the code receives it.")]
Value = Annotated[str, Parameter(help='JSON: \'{"plan": "gold"}\', 42, \'"text"\'.')]


async def send(
    id: Id,
    name: EventName,
    value: Value = "null",
    /,
    *,
    key: Annotated[str | None, Parameter(help="The same key again is the same event.")] = None,
    context: ContextArgument,
) -> None:
    """Send an execution an event. It is kept until the code receives it.

    Examples:
      outlast send order-42 plan '{"name": "gold"}' --key mail-7
    """
    data = given_value(value)
    await tell(context, id, lambda handle: handle.send(name, data, key=key), writes=True)
