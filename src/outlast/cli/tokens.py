"""`outlast tokens`: keys and tokens for deferreds."""

from __future__ import annotations

import secrets
from typing import Annotated

from cyclopts import Parameter

from outlast.authoring.options import parse_lasting
from outlast.cli.context import ContextArgument, execution_of
from outlast.client.info import moment
from outlast.errors import InvalidInput
from outlast.model.names import check_user_name
from outlast.tokens import Claims, Tokens, new_key


async def tokens(
    what: Annotated[str, Parameter(help="key: a new key; or the id of an execution.")],
    name: Annotated[str | None, Parameter(help="key: the key's id; else the deferred's name.")] = None,
    /,
    *,
    expires: Annotated[str, Parameter(help="How long the token is good for.")] = "7d",
    context: ContextArgument,
) -> None:
    """Make a signing key, or a token for a deferred of an execution, signed with the first of $OUTLAST_TOKEN_KEYS.

    To rotate: put the new key first, and give the old one a grace: NEW,OLD@2026-12-01T00:00:00Z.

    Examples:
      outlast tokens key 2026-11
      outlast tokens order-42 approval --expires 3d
    """
    if what == "key":
        key = new_key(name or "1", secrets.token_bytes(32))
        if context.out.json:
            context.out.document({"key": key})
        else:
            context.out.line(key)
        return
    if name is None:
        raise InvalidInput(f"say which deferred: `outlast tokens {what} NAME`")
    deferred, lasts_ms = check_user_name("deferred", name), parse_lasting("--expires", expires)
    async with context.looking() as store:
        execution = await execution_of(store, context.namespace, what)
        expires_at = await store.now() + lasts_ms
    claims = Claims(execution.namespace, execution.id, execution.journal_generation, deferred, expires_at)
    token = Tokens(context.config().token_keys).sign(claims)
    if context.out.json:
        context.out.document(
            {
                "store": context.shown_store,
                "namespace": execution.namespace,
                "id": execution.id,
                "deferred": deferred,
                "expires_at": moment(expires_at),
                "token": token,
            }
        )
    else:
        context.out.line(token)
