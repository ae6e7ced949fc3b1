"""Another chance for what waits for its version: a worker that starts may bring the code that fits its journal."""

from __future__ import annotations

from outlast.machine.facts import Wake
from outlast.model.status import Reason, Status
from outlast.runtime.engine import Engine
from outlast.store.port import Query

_PAGE = 1_000


async def reconsider(engine: Engine, namespace: str, serves: frozenset[tuple[str, str]]) -> int:
    """Wake what is suspended with reason `version` and served here; returns how many.

    If the code does not fit either, the replay finds out before it does anything, and the execution waits again.
    """
    woken, after = 0, None
    while True:
        page = await engine.store.find(
            Query(namespace=namespace, status=frozenset({Status.SUSPENDED}), after=after, limit=_PAGE)
        )
        for execution in page.executions:
            if execution.reason == Reason.VERSION and (execution.workflow, execution.version) in serves:
                fact = Wake(change_id=engine.entropy.new_id(), cause=Reason.VERSION)
                woken += (await engine.tell(namespace, execution.id, fact, seen=execution)).applied
        if page.cursor is None:
            return woken
        after = page.cursor
