"""Waiting for ends by push: this process's own commits, doorbells of others, and polling as the net."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from outlast.machine.changes import Changes, Insert, View
from outlast.model.completion import Completion
from outlast.model.execution import Execution, execution_key
from outlast.model.partition import partition_of
from outlast.store.port import Store

_log = logging.getLogger(__name__)

Name = tuple[str, str]
POLL_S = 1.0


class Waiters:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[Name, set[asyncio.Future[None]]] = {}
        self._poll: asyncio.Task[None] | None = None

    async def ended(self, namespace: str, execution_id: str) -> Execution | None:
        """The execution once it has ended; None if there is none."""
        name = (namespace, execution_id)
        while True:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # Wait before looking: an end between the two rings, too.
            self._waiting.setdefault(name, set()).add(future)
            self._keep_polling()
            try:
                [found] = await self._store.load([execution_key(namespace, execution_id)])
                if found is None:
                    return None
                assert isinstance(found, Execution)
                if found.status.terminal:
                    return found
                await future
            finally:
                waiting = self._waiting.get(name)
                if waiting is not None:
                    waiting.discard(future)
                    if not waiting:
                        del self._waiting[name]

    def committed(self, view: View, changes: Changes) -> None:
        """A commit of this process: its ends are known at once."""
        for write in changes.writes:
            if isinstance(write, Insert) and isinstance(write.record, Completion):
                self._wake((write.record.namespace, write.record.execution))

    async def rescan(self, partitions: Iterable[int] | None = None) -> None:
        """Look at all that is waited for, or at that of some partitions."""
        wanted = None if partitions is None else set(partitions)
        names = [
            name for name in self._waiting if wanted is None or partition_of(*name, self._store.partitions) in wanted
        ]
        for begin in range(0, len(names), 500):
            some = names[begin : begin + 500]
            for name, found in zip(some, await self._store.load([execution_key(*name) for name in some]), strict=True):
                if found is None or (isinstance(found, Execution) and found.status.terminal):
                    self._wake(name)

    def _wake(self, name: Name) -> None:
        for future in self._waiting.get(name, ()):
            if not future.done():
                future.set_result(None)

    def _keep_polling(self) -> None:
        if self._poll is None:
            self._poll = asyncio.create_task(self._polling(), name="outlast waiters")

    async def _polling(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            if not self._waiting:
                continue
            try:
                await self.rescan()
            except Exception as error:
                _log.warning("looking for ends failed, and is tried again: %s", error)

    async def close(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)
            self._poll = None
