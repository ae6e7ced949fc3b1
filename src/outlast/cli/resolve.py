"""`outlast resolve ID NAME VALUE`, or with a token."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from outlast.cli.context import ContextArgument, sealed
from outlast.cli.sealing import are_sealed
from outlast.cli.telling import given_value, tell
from outlast.errors import InvalidInput
from outlast.tokens import Tokens

Id = Annotated[str | None, Parameter(help="The execution's id; not with --token.")]


async def resolve(
    id: Id = None,
    name: Annotated[str | None, Parameter(help="The deferred's name; not with --token.")] = None,
    /,
    value: Annotated[str | None, Parameter(help="JSON, such as true.")] = None,
    *,
    reject: Annotated[str | None, Parameter(help="Let it raise DeferredRejected with this message instead.")] = None,
    token: Annotated[str | None, Parameter(help="The token of the deferred, instead of its name.")] = None,
    context: ContextArgument,
) -> None:
    """Resolve (or reject) a deferred that an execution waits for. The first resolution stands.

    Examples:
      outlast resolve order-42 approval true
      outlast resolve order-42 approval --reject "too expensive"
      outlast resolve --token ol1.k1.… --value true
    """
    if value is not None and reject is not None:
        raise InvalidInput("a deferred is resolved with a value or rejected with a message, not both")
    data = None if value is None else given_value(value)
    if token is not None:
        if id is not None or name is not None:
            raise InvalidInput("a token names the execution and the deferred: leave both out")
        async with context.acting() as app:
            async with context.looking() as store:
                claims = Tokens(app.config.token_keys).authenticate(token, now=await store.now())
                if await are_sealed(store, claims.namespace, claims.execution, claims.generation):
                    raise sealed()
            await (app.resolve_token(token, data) if reject is None else app.reject_token(token, reject))
        if context.out.json:
            context.out.document({"store": context.shown_store, "namespace": context.namespace, "resolved": True})
        else:
            context.out.show("resolved" if reject is None else "rejected")
        return
    if id is None or name is None:
        raise InvalidInput("say which execution and which deferred, or give a --token")
    if reject is None:
        await tell(context, id, lambda handle: handle.resolve(name, data), writes=True)
    else:
        await tell(context, id, lambda handle: handle.reject(name, reject), writes=True)
