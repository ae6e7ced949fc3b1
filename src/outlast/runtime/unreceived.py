"""Log what an execution that failed or expired never received: its senders were told that it was accepted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from outlast import limits
from outlast.errors import OutlastError
from outlast.model.event import UPDATE, Event
from outlast.model.execution import Execution
from outlast.model.status import Status
from outlast.runtime.engine import Engine

_log = logging.getLogger(__name__)


async def warn_of_unreceived(engine: Engine, executions: Sequence[Execution]) -> None:
    """One line for each, with the number of events by name. None for those that go on, or have received all events.
    They have ended, so nothing fails if their events cannot be read: the log says so."""
    for execution in executions:
        if execution.inbox:
            try:
                await _warn(engine, execution)
            except OutlastError as error:
                what = f"execution {execution.id}: the events that it never received could not be read"
                engine.outages.report(_log, what, error)


async def _warn(engine: Engine, execution: Execution) -> None:
    ended = await engine.look(execution.namespace, execution.id)
    if ended is None or ended.status not in (Status.FAILED, Status.EXPIRED):
        return
    found = await engine.store.scan(Event.KIND, (ended.namespace, ended.id), limit=limits.SCAN_MAX_RECORDS)
    names = Counter(event.name for event in found if isinstance(event, Event) and event.is_unreceived)
    if names:
        _log.warning("execution %s %s with events that nobody received: %s", ended.id, ended.status, counted(names))


def counted(names: Mapping[str, int]) -> str:
    return ", ".join(f"{'update' if name == UPDATE else name} ({count:,})" for name, count in names.items())
