"""Log what an execution that failed or expired never received: its senders were told that it was accepted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from outlast import limits
from outlast.model.event import UPDATE, Event
from outlast.model.execution import Execution
from outlast.model.status import Status
from outlast.runtime.engine import Engine

_log = logging.getLogger(__name__)


async def warn_of_unreceived(engine: Engine, executions: Sequence[Execution]) -> None:
    """One line for each, with the number of events by name. None for those that go on, or have received all events."""
    asked = [execution.key for execution in executions if execution.inbox]
    for ended in await engine.store.load(asked) if asked else ():
        if isinstance(ended, Execution) and ended.status in (Status.FAILED, Status.EXPIRED):
            prefix = (ended.namespace, ended.id)
            found = await engine.store.scan(Event.KIND, prefix, limit=limits.SCAN_MAX_RECORDS)
            names = Counter(event.name for event in found if isinstance(event, Event) and event.is_unreceived)
            if names:
                _log.warning(
                    "execution %s %s with events that nobody received: %s", ended.id, ended.status, counted(names)
                )


def counted(names: Mapping[str, int]) -> str:
    return ", ".join(f"{'update' if name == UPDATE else name} ({count:,})" for name, count in names.items())
