"""The oracle: the store port's contract in memory, to be obvious by reading and for nothing else.

Records live in a dict by key. A commit applies guarded changes in the order given. Time is passed in: the caller knows
the clock. Where the port leaves a store some freedom (which of several equal executions a claim takes, what a bounded
purge removes), the oracle does not choose: it says what is allowed (`claimable`, `purgeable`) and adopts what was done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, assert_never

import msgspec

from outlast.machine.changes import (
    Add,
    Changes,
    Delete,
    Insert,
    Patch,
    Put,
    View,
    inserted,
    patched,
)
from outlast.machine.decide import decide
from outlast.machine.facts import Claim
from outlast.machine.guards import anchored_execution, applied_before, failed_guard
from outlast.model.execution import Execution, execution_key, parse_route
from outlast.model.flow import Flow, FlowState, Member, Summary, flow_key
from outlast.model.frame import Frame
from outlast.model.kinds import KINDS, OF_EXECUTION
from outlast.model.lane import Lane, Quota, lane_key, quota_key
from outlast.model.lease import ClaimRequest
from outlast.model.outbox import Delivery
from outlast.model.partition import partition_of
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import Key, Record, settled
from outlast.model.session import Session, session_key
from outlast.model.status import Status
from outlast.model.tag import Tag, tag_key
from outlast.store.port import Appended, DueItem, DueKind, Filter, Query, Verdict, filter_of

R = TypeVar("R", bound=Record)
Stream = tuple[str, str]


class Oracle:
    def __init__(self, *, partitions: int, exact_order: bool) -> None:
        self.partitions = partitions
        self.exact_order = exact_order
        self.records: dict[Key, Record] = {}
        self.streams: dict[Stream, list[Frame]] = {}
        self.appends: dict[Stream, set[str]] = {}
        self._numbered = 0

    # ---- looking --------------------------------------------------------------------------------------------------

    def get(self, key: Key, kind: type[R]) -> R | None:
        record = self.records.get(key)
        assert record is None or isinstance(record, kind)
        return record

    def all(self, kind: type[R]) -> list[R]:
        return [record for record in self.records.values() if isinstance(record, kind)]

    def home(self, namespace: str, execution_id: str) -> int:
        return partition_of(namespace, execution_id, self.partitions)

    def view(self, namespace: str, execution_id: str) -> View:
        execution = self.get(execution_key(namespace, execution_id), Execution)
        return View(self.home(namespace, execution_id), execution)

    def scan(self, kind: str, prefix: tuple[str | int, ...]) -> list[Record]:
        """Key order; sequenced kinds in the order of their commits."""
        found = [record for key, record in self.records.items() if key.kind == kind and _begins(key, prefix)]
        order: Callable[[Record], Any] = _seq if KINDS[kind].SEQUENCED else lambda record: record.key.values
        return sorted(found, key=order)

    def find(self, query: Query) -> list[Execution]:
        """All that match, newest first; those of one millisecond in any order."""
        return sorted(
            (e for e in self.all(Execution) if self._found(e, query)), key=lambda e: -(settled(e.created_at) or 0)
        )

    def _found(self, e: Execution, query: Query) -> bool:
        created_at = settled(e.created_at) or 0
        return (
            e.namespace == query.namespace
            and self._listed(e)
            and (not query.status or e.status in query.status)
            and query.reason in (None, e.reason)
            and query.workflow in (None, e.workflow)
            and query.lane in (None, e.lane)
            and all(self._tagged(e.namespace, e.id, tag) for tag in query.tags.items())
            and e.id.startswith(query.id_prefix or "")
            and (query.created_from is None or created_at >= query.created_from)
            and (query.created_before is None or created_at < query.created_before)
        )

    def _listed(self, e: Execution) -> bool:
        """Members of a flow that is still being staged are not there yet."""
        flow = None if e.flow is None else self.get(flow_key(e.namespace, e.flow), Flow)
        return flow is None or flow.staged_at is None

    def passes(self, filter: Filter, namespace: str, execution_id: str) -> bool:
        if filter.namespace not in (None, namespace):
            return False
        return filter.tag is None or self._tagged(namespace, execution_id, filter.tag)

    def _tagged(self, namespace: str, execution_id: str, tag: tuple[str, str]) -> bool:
        record = self.get(tag_key(namespace, execution_id, tag[0]), Tag)
        return record is not None and record.value == tag[1]

    # ---- commit ---------------------------------------------------------------------------------------------------

    def commit(self, batch: Sequence[Changes], now: int) -> list[Verdict]:
        return [self._apply(changes, now) for changes in batch]

    def _apply(self, changes: Changes, now: int) -> Verdict:
        failed = failed_guard(changes.guards, changes.writes, self.records, now)
        if failed is not None and applied_before(changes, self.records):
            return Verdict(True, self._inbox(changes), again=True)
        if failed is not None:
            return Verdict(False, self._inbox(changes), refused_by=failed, current=self.records.get(failed.key))
        self.write(changes, now)
        return Verdict(True, self._inbox(changes))

    def looked_at(self, changes: Changes, verdict: Verdict) -> Verdict:
        """The same verdict, given at a later look: the records that it shows are those of now."""
        if verdict.applied and not verdict.again:
            return verdict
        shown = None if verdict.refused_by is None else self.records.get(verdict.refused_by.key)
        return msgspec.structs.replace(verdict, inbox=self._inbox(changes), current=shown)

    def _inbox(self, changes: Changes) -> int | None:
        anchor = anchored_execution(changes)
        execution = None if anchor is None else self.get(anchor, Execution)
        return None if execution is None else execution.inbox

    def write(self, changes: Changes, now: int) -> None:
        """The writes alone. A patch of or an addition to a record that is not there leaves nothing."""
        for write in changes.writes:
            match write:
                case Insert(record) | Put(record):
                    self.records[record.key] = self._numbering(inserted(record, now))
                case Patch(key, fields):
                    if key in self.records:
                        self.records[key] = patched(self.records[key], fields, now)
                case Delete(key):
                    self.records.pop(key, None)
                case Add(key, field, amount):
                    if key in self.records:
                        more = getattr(self.records[key], field) + amount
                        self.records[key] = patched(self.records[key], {field: more}, now)
                case _:
                    assert_never(write)

    def _numbering(self, record: Record) -> Record:
        if not record.SEQUENCED:
            return record
        self._numbered += 1
        return msgspec.structs.replace(record, seq=self._numbered)

    # ---- claim and renew ------------------------------------------------------------------------------------------

    def claimed_before(self, request: ClaimRequest) -> list[Execution]:
        """What a claim with this id took, and its worker still holds: the answer to a repeated claim."""
        claim = (request.worker, request.claim_id)
        return [e for e in self.all(Execution) if (e.worker, e.claim_id) == claim]

    def claimable(self, request: ClaimRequest, taken: Sequence[Execution]) -> list[Execution]:
        """Which executions the claim may take next: the first of all, or without a global order of some partition."""
        suspects = sum(parse_route(e.route).suspect for e in taken)
        no_more_suspects = request.suspects is not None and suspects >= request.suspects
        fits = [e for e in self.all(Execution) if self._fits(e, request)]
        fits = [e for e in fits if not (no_more_suspects and parse_route(e.route).suspect)]
        first: dict[int, Any] = {}
        for e in fits:
            first[self._line(e)] = min(first.get(self._line(e), _claim_order(e)), _claim_order(e))
        return [e for e in fits if _claim_order(e) == first[self._line(e)]]

    def _line(self, e: Execution) -> int:
        return 0 if self.exact_order else self.home(e.namespace, e.id)

    def _fits(self, e: Execution, request: ClaimRequest) -> bool:
        route = parse_route(e.route)
        return (
            e.status is Status.READY
            and e.namespace == request.namespace
            and e.lane in request.lanes
            and (route.workflow, route.version) in request.serves
            and route.requires <= request.capabilities
            and self._gates_open(e)
        )

    def _gates_open(self, e: Execution) -> bool:
        """A lane or flow without a record is open; a quota without one has no permits."""
        partition = self.home(e.namespace, e.id)
        lane = self.get(lane_key(partition, e.namespace, e.lane), Lane)
        flow = None if e.flow is None else self.get(flow_key(e.namespace, e.flow), Flow)
        quota = None if e.quota is None else self.get(quota_key(partition, e.namespace, e.quota), Quota)
        return (
            (lane is None or not lane.paused)
            and (flow is None or flow.state is FlowState.OPEN or e.cancel_requested)
            and (e.quota is None or (quota is not None and quota.free > 0))
        )

    def adopt(self, e: Execution, request: ClaimRequest, now: int) -> Execution:
        """The execution as the machine says that a claim leaves it."""
        fact = Claim(change_id=request.claim_id, worker=request.worker, leap=request.leap)
        changes = decide(self.view(e.namespace, e.id), fact, now)
        assert isinstance(changes, Changes)
        self.write(changes, now)
        claimed = self.get(e.key, Execution)
        assert claimed is not None
        return claimed

    def input_of(self, e: Execution) -> bytes:
        """That of the generation whose journal it goes on with."""
        payload = self.get(payload_key(e.namespace, e.id, e.journal_generation, Role.INPUT), Payload)
        assert payload is not None
        return payload.value

    def renew(self, partition: int, worker: str, lease_ttl_ms: int, now: int) -> None:
        """A session lives at least for its new ttl; one that was promised more keeps it."""
        session = self.get(session_key(partition, worker), Session)
        if session is None:
            session = Session(partition=partition, worker=worker, expires_at=0, started_at=now)
        expires_at = max(settled(session.expires_at) or 0, now + lease_ttl_ms)
        self.records[session.key] = msgspec.structs.replace(session, expires_at=expires_at)

    def held(self, worker: str) -> list[Execution]:
        return [e for e in self.all(Execution) if e.worker == worker]

    # ---- due ------------------------------------------------------------------------------------------------------

    def due(self, kind: DueKind, now: int, filter: Filter) -> list[DueItem]:
        """All that is due, oldest first; those of one millisecond in any order."""
        items = [
            DueItem(time, record) for time, record in self._times(kind, filter_of(kind, filter)) if _reached(time, now)
        ]
        return sorted(items, key=lambda item: item.due_at)

    def _times(self, kind: DueKind, filter: Filter) -> list[tuple[Any, Record]]:
        ours = [e for e in self.all(Execution) if self.passes(filter, e.namespace, e.id)]
        match kind:
            case DueKind.LEASE:
                return [(self._lease_end(e), e) for e in ours if e.worker is not None]
            case DueKind.TIMEOUT:
                return [(e.attempt_deadline_at, e) for e in ours]
            case DueKind.DEADLINE:
                return [(e.deadline_at, e) for e in ours]
            case DueKind.TIMER:
                return [(e.wake_at, e) for e in ours]
            case DueKind.RETENTION:
                return [(e.purge_at, e) for e in ours]
            case DueKind.OUTBOX:
                return [(d.due_at, d) for d in self.all(Delivery) if self.passes(filter, d.namespace, d.target)]
            case DueKind.SESSION:
                return [(s.expires_at, s) for s in self.all(Session) if not self._hold_on(s)]
            case DueKind.FLOW:
                return [(f.purge_at, f) for f in self.all(Flow) if self.passes(filter, f.namespace, f.id)]
            case DueKind.CANCEL:
                return [(f.cancel_at, f) for f in self.all(Flow) if self.passes(filter, f.namespace, f.id)]
            case DueKind.SUMMARY:
                return [(s.check_at, s) for s in self.all(Summary) if self.passes(filter, s.namespace, s.id)]
            case DueKind.DEPENDENCY:
                return [(s.depend_at, s) for s in self.all(Summary) if self.passes(filter, s.namespace, s.id)]
            case DueKind.SIBLING:
                return [(m.siblings_at, m) for m in self.all(Member) if self.passes(filter, m.namespace, m.execution)]
            case _:
                assert_never(kind)

    def _lease_end(self, e: Execution) -> Any:
        session = self.get(session_key(self.home(e.namespace, e.id), e.worker or ""), Session)
        return e.claimed_at if session is None else session.expires_at

    def _hold_on(self, session: Session) -> bool:
        return any(self.home(e.namespace, e.id) == session.partition for e in self.held(session.worker))

    # ---- streams and purge ----------------------------------------------------------------------------------------

    def append(self, e: Key, epoch: int, change_id: str, frames: Sequence[bytes], now: int) -> Appended:
        stream = (str(e.values[0]), str(e.values[1]))
        written, seen = self.streams.get(stream, []), self.appends.get(stream, set())
        if change_id in seen:
            return Appended(True, len(written))
        execution = self.get(e, Execution)
        if execution is None or execution.status is not Status.ACTIVE or execution.epoch != epoch:
            return Appended(False, len(written))
        added = [Frame(len(written) + n, now, value) for n, value in enumerate(frames, start=1)]
        self.streams[stream], self.appends[stream] = written + added, seen | {change_id}
        return Appended(True, len(written) + len(added))

    def purgeable(self, finished_before: int | None, now: int, filter: Filter) -> list[Execution]:
        ended = [e for e in self.all(Execution) if e.status.terminal and self.passes(filter, e.namespace, e.id)]
        if finished_before is None:
            return [e for e in ended if _reached(e.purge_at, now)]
        return [e for e in ended if e.flow is None and (settled(e.finished_at) or 0) < finished_before]

    def purge(self, e: Execution) -> None:
        kinds = {kind.KIND for kind in OF_EXECUTION}
        for key in list(self.records):
            if key == e.key or (key.kind in kinds and key.values[:2] == (e.namespace, e.id)):
                del self.records[key]
        self.streams.pop((e.namespace, e.id), None)
        self.appends.pop((e.namespace, e.id), None)


def _claim_order(e: Execution) -> tuple[int, bool, int]:
    """By priority, then resumed before new, then age."""
    return (-e.priority, not e.resumed, settled(e.ready_at) or 0)


def _reached(time: Any, now: int) -> bool:
    return time is not None and time <= now


def _begins(key: Key, prefix: tuple[str | int, ...]) -> bool:
    return key.values[: len(prefix)] == prefix


def _seq(record: Record) -> int:
    return getattr(record, "seq", 0)
