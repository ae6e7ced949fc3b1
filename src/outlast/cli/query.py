"""`outlast query module:app ID NAME`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from outlast.cli.context import ContextArgument, Id, execution_of
from outlast.cli.loading import Target, load
from outlast.cli.reading import reading
from outlast.cli.telling import given_value
from outlast.runtime.attempts.inquiry import Inquiries

QueryName = Annotated[str, Parameter(help="The query's name, as the code registers it.")]
Value = Annotated[str, Parameter(help="What comes with it, in JSON.")]


async def query(
    target: Target,
    id: Id,
    name: QueryName,
    value: Value = "null",
    /,
    *,
    context: ContextArgument,
) -> None:
    """Ask an execution's code what it shows. Its journal is replayed here: no step runs, nothing is written.

    Examples:
      outlast query shop:app order-42 items
      outlast query shop:app order-42 has '"pear"'
    """
    data = given_value(value)
    app = load(context, target)
    async with reading(context, app) as (store, parts):
        execution = await execution_of(store, app.config.namespace, id)
        inquiries = Inquiries(parts, app.definition_of, lambda namespace, execution_id: None)
        answer = await inquiries.ask(execution, name, app.values.encode(data, f"query {name!r}"))
    decoded: Any = app.values.decode(answer, Any, f"answer to query {name!r}")
    if context.out.json:
        document = {"store": context.shown_store, "namespace": app.config.namespace, "id": id, "answer": decoded}
        context.out.document(document)
        return
    context.out.line(app.values.unseal(answer).decode())
