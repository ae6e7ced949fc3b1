"""Where what is started in this process, or follows on an end here, may begin at once: the worker's free places."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from outlast.model.execution import Execution


class Rooms(Protocol):
    """Where what is started here, or follows on an attempt that ends here, may begin at once."""

    def promise(self, lane: str, requires: frozenset[str]) -> str | None:
        """The name to claim under what is started now, if it may begin here."""
        ...

    def promise_next(self, execution: Execution, *, in_place_of: Execution | None) -> str | None:
        """The name to claim it under, if it may begin here, or in the room that another leaves, which ends here. Who
        gets it calls `keep`, or `release`."""
        ...

    def keep(self, execution: Execution, data: bytes) -> None: ...

    def release(self) -> None: ...

    def errand(self, work: Coroutine[Any, Any, None]) -> None: ...

    def kick(self) -> None:
        """There may be work."""
        ...
