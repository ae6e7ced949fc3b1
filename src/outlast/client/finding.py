"""Finding more executions than one look at the store gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import structs

from outlast import limits
from outlast.model.execution import Execution
from outlast.store.port import Page, Query


async def found_by(find: Callable[[Query], Awaitable[Page]], query: Query) -> list[Execution]:
    """As many as were asked for, page by page; `find` is the store's, or calls it."""
    found, after = list[Execution](), query.after
    while len(found) < query.limit:
        some = structs.replace(query, after=after, limit=min(query.limit - len(found), limits.FIND_MAX))
        page = await find(some)
        found += page.executions
        after = page.cursor
        if after is None:
            break
    return found
