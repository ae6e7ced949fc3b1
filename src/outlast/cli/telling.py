"""What cancel, retry, hold, release, send and resolve share: tell an execution something, then say how it is now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from rich.text import Text

from outlast.cli.context import Context, execution_of, sealed
from outlast.cli.sealing import are_sealed
from outlast.client.handle import Handle
from outlast.client.views.explanation import explain
from outlast.client.views.situation import situation_of
from outlast.errors import InvalidInput
from outlast.model.execution import Execution


def given_value(text: str) -> Any:
    """A value as it is written on a command line."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise InvalidInput(f"the value must be JSON, such as 42, true or '\"text\"', not {text!r}: {error}") from error


async def look_first(context: Context, execution_id: str, *, of_flows: str = "show", writes: bool = False) -> Execution:
    """The execution before it is told anything. `of_flows` is what to do instead with a flow, should the id be one's;
    `writes` says that a value comes with what it is told."""
    async with context.looking() as store:
        e = await execution_of(store, context.namespace, execution_id, of_flows=of_flows)
        if writes and await are_sealed(store, e.namespace, e.id, e.journal_generation):
            raise sealed()
    return e


async def tell(
    context: Context,
    execution_id: str,
    say: Callable[[Handle[Any]], Awaitable[None]],
    *,
    of_flows: str = "show",
    writes: bool = False,
) -> None:
    async with context.acting() as app:
        handle = app.execution(execution_id)
        before = (await look_first(context, execution_id, of_flows=of_flows, writes=writes)).status
        await say(handle)
    async with context.looking() as store:
        e = await execution_of(store, context.namespace, execution_id)
        around = await situation_of(store, e)
    explanation = explain(e, around)
    if context.out.json:
        context.out.document(
            {
                "store": context.shown_store,
                "namespace": context.namespace,
                "id": e.id,
                "status_before": before,
                "status": e.status,
                "reason": around.offers.reason(e),
                "waiting": explanation.text,
                "explanation": explanation,
            }
        )
        return
    change = [(str(before), str(before)), (" → ", "quiet")] if before != e.status else []
    context.out.show(
        Text.assemble((e.id, "head"), "  ", *change, (str(e.status), str(e.status)), f"  {explanation.text}")
    )
