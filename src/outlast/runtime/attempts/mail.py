"""What came for one execution from outside, as its holder reads it: events in the order of their sending, deferreds.

Only the holder marks events as received, so what it has taken is known here. It reads; the commit is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Raw, Struct

from outlast.errors import ExecutionCancelled, ExecutionNotFound
from outlast.machine.flow_parents import was_closed
from outlast.model.child import ChildEnd
from outlast.model.deferred import Deferred, deferred_key
from outlast.model.event import CANCEL, Event, answer_id, ended_name, event_key
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import whole_of
from outlast.model.outbox import delivery_key
from outlast.model.partition import partition_of
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import Key, settled
from outlast.model.status import Status

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.runtime.attempts.lease import Lease
    from outlast.runtime.parts import Parts
    from outlast.store.port import Store

PAGE = 100


class FlowEnd(Struct, frozen=True, kw_only=True):
    """How a flow ended, to the execution that waits for it. Without a status there is nothing to wait for."""

    status: Status | None = None
    cause: str = ""
    ours: bool = True
    refused: bool = False
    outputs: dict[str, Raw] = {}
    failures: dict[str, str] = {}


class Mail:
    def __init__(self, parts: Parts, lease: Lease) -> None:
        self.values: Values = parts.values
        self._store = parts.engine.store
        self._flows = parts.engine.flows
        self._lease = lease
        self._read_to: dict[str, Key] = {}
        """Up to here all events of a name are received: the next look goes on behind it."""
        self._taken: set[Key] = set()

    @property
    def namespace(self) -> str:
        return self._lease.execution.namespace

    @property
    def execution_id(self) -> str:
        return self._lease.execution.id

    async def event(self, name: str, until: int | None) -> Event | None:
        """Take the oldest event of a name that is left, unless it was sent after `until`."""
        early = self.early(name, until)
        if early is not None:
            return early
        prefix = (self._lease.execution.namespace, self.execution_id, name)
        after = self._read_to.get(name)
        while True:
            page = await self._store.scan(Event.KIND, prefix, after=after, limit=PAGE)
            for event in page:
                assert isinstance(event, Event)
                if not event.consumed and event.key not in self._taken:
                    if until is not None and (settled(event.sent_at) or 0) > until:
                        return None
                    self._taken.add(event.key)
                    return event
                if event.consumed and self._read_to.get(name) == after:
                    self._read_to[name] = event.key
                    self._taken.discard(event.key)
                after = event.key
            if len(page) < PAGE:
                return None

    def early(self, name: str, until: int | None) -> Event | None:
        """The same, from the events that came with the journal. None: scan the store."""
        for event in self._lease.early:
            if event.name == name and not event.consumed and (until is None or (settled(event.sent_at) or 0) <= until):
                self._lease.early.remove(event)
                self._taken.add(event.key)
                return event
        return None

    def put_back(self, name: str, dedup: str) -> None:
        """It was taken, and nobody received it. From now on all are looked up: this one may stand before the others."""
        self._lease.early.clear()
        execution = self._lease.execution
        self._taken.discard(event_key(execution.namespace, execution.id, name, dedup))

    async def deferred(self, name: str, until: int | None) -> Deferred | None:
        """The resolution, if there is one; not if it came after `until`."""
        execution = self._lease.execution
        key = deferred_key(execution.namespace, execution.id, execution.journal_generation, name)
        [found] = await self._store.load([key])
        if not isinstance(found, Deferred) or (until is not None and (settled(found.resolved_at) or 0) > until):
            return None
        return found

    # ---- children -------------------------------------------------------------------------------------------------

    async def other(self, execution_id: str) -> Execution | None:
        """Another execution, as it is now."""
        [found] = await self._store.load([execution_key(self.namespace, execution_id)])
        return found if isinstance(found, Execution) else None

    async def end(self, child: str, start: str | None, until: int | None) -> ChildEnd | None:
        """How a child ended, if it has, and not after `until`.

        The child itself knows best: it may have been opened again. If it is purged, what it said when it ended stands.
        An answer to its start says that there is no such child. `ExecutionNotFound` if nobody will ever say more.
        """
        name = ended_name(child)
        if start is not None:
            [answer] = await self._store.load([event_key(self.namespace, self.execution_id, name, answer_id(start))])
            if isinstance(answer, Event):
                return ChildEnd.decode(answer.value or b"")
        execution = await self.other(child)
        if execution is not None and start is not None and execution.parent != self.execution_id:
            return None  # another's: the answer to the start will say so
        if execution is not None:
            if not execution.status.terminal or (until is not None and (settled(execution.finished_at) or 0) > until):
                return None
            role = Role.OUTPUT if execution.status is Status.SUCCEEDED else Role.FAILURE
            [payload] = await self._store.load([payload_key(self.namespace, child, execution.generation, role)])
            value = payload.value if isinstance(payload, Payload) else None
            cancelled = execution.status is Status.CANCELLED
            reason = await cancelled_because(self._store, self.namespace, child) if cancelled else ""
            if value is not None or await self.other(child) == execution:
                return ChildEnd(status=execution.status, cause=execution.cause, value=value, reason=reason)
            return await self.end(child, start, until)  # purged or begun anew between the two looks
        told = await self._store.scan(Event.KIND, (self.namespace, self.execution_id, name))
        last = told[-1] if told else None
        if last is None and start is not None and await self._not_owed(start) and await self.other(child) is None:
            raise ExecutionNotFound(self.namespace, child)
        if not isinstance(last, Event) or (until is not None and (settled(last.sent_at) or 0) > until):
            return None
        return ChildEnd.decode(last.value or b"")

    async def _not_owed(self, start: str) -> bool:
        """Whether what this execution started has begun, though it was never heard of since. That is so if it ended,
        and was purged, before this execution was retried: what has ended itself hears of no ends."""
        execution = self._lease.execution
        if execution.generation == execution.journal_generation:
            return False  # not retried
        home = partition_of(execution.namespace, execution.id, self._store.partitions)
        [owed] = await self._store.load([delivery_key(home, start)])
        return owed is None

    async def flow_end(self, flow_id: str, start: str | None, until: int | None) -> FlowEnd | None:
        """How a flow that this execution started ended, if it has, and not after `until`. Its records know best: it may
        have been opened again."""
        child, own = ended_name(whole_of(flow_id)), (self.namespace, self.execution_id)
        if start is not None:
            [answer] = await self._store.load([event_key(*own, child, answer_id(start))])
            if isinstance(answer, Event):
                return _refused(answer)
        flow, summary = await self._flows.heads(self.namespace, flow_id)
        if flow is None or summary is None:
            told = [event for event in await self._store.scan(Event.KIND, (*own, child)) if isinstance(event, Event)]
            answers = [event for event in told if start is not None and event.dedup == answer_id(start)]
            if answers:
                return _refused(answers[0])  # since the look above
            if start is not None and not told and not await self._not_owed(start):
                return None  # it has not begun
            flow, summary = await self._flows.heads(self.namespace, flow_id)
            if flow is None or summary is None:
                return FlowEnd()  # it has ended, and was purged
        if flow.parent != self.execution_id:
            return None if start is not None else FlowEnd(ours=False)
        if summary.outcome is None or (until is not None and (settled(summary.finished_at) or 0) > until):
            return None
        if start is not None and was_closed(flow) and not await self._not_owed(start):
            return None  # started once more, by a retry of this execution: that opens it again
        outputs, failures = await self._flows.results(self.namespace, flow_id, self.values)
        if await self._flows.heads(self.namespace, flow_id) != (flow, summary):
            return await self.flow_end(flow_id, start, until)  # retried or purged meanwhile
        return FlowEnd(status=summary.outcome, cause=flow.reason or "", outputs=outputs, failures=failures)


async def cancelled_because(store: Store, namespace: str, execution_id: str) -> str:
    """The reason that was given with the cancel that ended it, the newest one."""
    asked = await store.scan(Event.KIND, (namespace, execution_id, CANCEL))
    return (asked[-1].value or b"").decode(errors="replace") if asked and isinstance(asked[-1], Event) else ""


def was_cancelled(execution_id: str, reason: str) -> ExecutionCancelled:
    return ExecutionCancelled(f"execution {execution_id!r} was cancelled" + (f": {reason}" if reason else ""))


def _refused(answer: Event) -> FlowEnd:
    return FlowEnd(refused=True, cause=ChildEnd.decode(answer.value or b"").cause or "")
