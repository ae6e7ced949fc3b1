"""Finding executions: more than one look at the store gives, and by reasons that no store knows.

That no live worker can take what is ready (`version`, `capability:…`) is not stored: it is found out from what the
workers offer. Who asks for such a reason gets what is suspended with it, and what is ready and has it by now; for that
all that is ready is read, page by page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from msgspec import structs

from outlast import limits
from outlast.client.info import Info, info_of
from outlast.client.offers import Offers, offers_in
from outlast.client.stored_failures import error_in, failure_keys, stored_failures
from outlast.client.waiters import Waiters
from outlast.codec.values import Values
from outlast.model.execution import Execution
from outlast.model.record import settled
from outlast.model.status import Reason, Status
from outlast.store.port import Page, Query, Store

Find = Callable[[Query], Awaitable[Page]]


class Finding:
    """What a client finds in its store."""

    def __init__(self, store: Store, waiters: Waiters, values: Values) -> None:
        self._store = store
        self._values = values
        self._patiently = waiters.patiently

    async def find(self, query: Query) -> list[Info]:
        found = await found_by(self._page, query)
        if _is_told_by_offers(query):
            both = {e.id: e for e in found}  # what was woken between two looks is in both
            async for e in _ready(self._page, query, await self._offers()):
                both[e.id] = e
                if len(both) >= len(found) + query.limit:
                    break
            found = sorted(both.values(), key=lambda e: (settled(e.created_at) or 0, e.id), reverse=True)[: query.limit]
        infos, keys = await self.infos(found), failure_keys(found)
        if not keys:
            return infos
        failures = await stored_failures(lambda some: self._patiently(lambda: self._store.load(some)), keys)
        errors = {name: error_in(self._values, data, traceback=False) for name, data in failures.items()}
        return [replace(info, error=errors[info.id]) if info.id in errors else info for info in infos]

    async def count(self, query: Query) -> int:
        count = await self._patiently(lambda: self._store.count(query))
        if _is_told_by_offers(query):
            async for _ in _ready(self._page, query, await self._offers()):
                count += 1
        return count

    async def infos(self, executions: Sequence[Execution]) -> list[Info]:
        """With the reasons that are not stored: why no live worker can take what is ready."""
        if not any(execution.status is Status.READY for execution in executions):
            return [info_of(execution) for execution in executions]
        offers = await self._offers()
        return [replace(info_of(execution), reason=offers.reason(execution)) for execution in executions]

    async def _page(self, query: Query) -> Page:
        return await self._patiently(partial(self._store.find, query))

    async def _offers(self) -> Offers:
        return await self._patiently(lambda: offers_in(self._store))


async def found_by(find: Find, query: Query) -> list[Execution]:
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


def _is_told_by_offers(query: Query) -> bool:
    reason = query.reason or ""
    told = reason == Reason.VERSION or reason.startswith(Reason.capability(""))
    return told and (not query.status or Status.READY in query.status)


async def _ready(find: Find, query: Query, offers: Offers) -> AsyncIterator[Execution]:
    """What is ready, and has the reason that is asked for."""
    some = structs.replace(query, status=frozenset({Status.READY}), reason=None, limit=limits.FIND_MAX)
    while True:
        page = await find(some)
        for execution in page.executions:
            if offers.reason(execution) == query.reason:
                yield execution
        if page.cursor is None:
            return
        some = structs.replace(some, after=page.cursor)
