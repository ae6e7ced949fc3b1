"""What people see of an execution, an operation of its journal, and a completion."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from outlast import limits
from outlast.errors import InvalidInput
from outlast.model.completion import Completion
from outlast.model.execution import Execution, parse_route
from outlast.model.record import settled
from outlast.model.status import Status
from outlast.store.port import cursor_of

_EPOCH = datetime.fromtimestamp(0, UTC)


class ProgressInfo(Struct, frozen=True, kw_only=True):
    """How far it says it is: `fraction` from 0 to 1, and in words."""

    fraction: float
    text: str


class Info(Struct, frozen=True, kw_only=True):
    """An execution as it is now. `reason` says why it is not running; `cause` why it ended, or last failed."""

    id: str
    namespace: str
    status: Status
    reason: str | None
    cause: str | None
    workflow: str
    version: str
    lane: str
    requires: tuple[str, ...]
    priority: int
    attempts: int
    failures: int
    crashes: int
    generation: int
    tags: dict[str, str]
    held: bool
    cancel_requested: bool
    worker: str | None
    created_at: datetime
    wake_at: datetime | None
    deadline_at: datetime | None
    finished_at: datetime | None
    progress: ProgressInfo | None = None
    """As last said by `outlast.progress`; in `handle.info()`, not in `app.find()`."""

    @property
    def cursor(self) -> str:
        """`app.find(after=info.cursor)` goes on behind it."""
        return cursor_of(to_epoch_ms(self.created_at, what="created_at"), self.id)


class FrameInfo(Struct, frozen=True, kw_only=True):
    """One frame of an execution's stream. `handle.frames(after=frame.offset)` goes on behind it."""

    offset: int
    value: Any
    at: datetime
    step: str | None
    """The step that emitted it; None for the workflow's own code."""
    epoch: int
    """Who held the execution then. Frames of one step and another epoch are those of another try."""


class JournalInfo(Struct, frozen=True, kw_only=True):
    """One recorded operation."""

    scope: str
    name: str
    occurrence: int
    op: str
    outcome: str
    tries: int
    epoch: int
    recorded_at: datetime
    value: bytes | None

    @property
    def key(self) -> tuple[str, str, int]:
        return (self.scope, self.name, self.occurrence)


class AttemptInfo(Struct, frozen=True, kw_only=True):
    """One try at running an execution: who held it, when, and how it ended (`outcome` is None while it runs)."""

    number: int
    generation: int
    epoch: int
    worker: str
    outcome: str | None
    started_at: datetime
    ended_at: datetime | None


class CompletionInfo(Struct, frozen=True, kw_only=True):
    """The end of an execution, from the feed. `cursor` goes on behind it."""

    execution_id: str
    namespace: str
    status: Status
    cause: str | None
    workflow: str
    tags: dict[str, str]
    finished_at: datetime
    cursor: str


def moment(ms: object) -> datetime:
    """In UTC; what no calendar has is as late as one can say."""
    assert isinstance(ms, int)
    return datetime.fromtimestamp(min(ms, limits.MOMENT_MAX_MS) / 1_000, UTC)


def to_epoch_ms(given: object, *, what: str) -> int:
    """The first whole millisecond that is not before an aware datetime."""
    if not isinstance(given, datetime) or given.utcoffset() is None:
        raise InvalidInput(f"{what} must be an aware datetime (with a time zone), not {given!r}")
    whole, rest = divmod(given - _EPOCH, timedelta(milliseconds=1))
    return max(0, whole + bool(rest))


def moment_or_none(ms: object) -> datetime | None:
    return None if ms is None else moment(ms)


def info_of(e: Execution) -> Info:
    begun = e.attempt if e.attempt_open or e.status.terminal else e.attempt - 1
    return Info(
        id=e.id,
        namespace=e.namespace,
        status=e.status,
        reason=e.reason,
        cause=e.cause,
        workflow=e.workflow,
        version=e.version,
        lane=e.lane,
        requires=tuple(sorted(parse_route(e.route).requires)),
        priority=e.priority,
        attempts=begun,
        failures=e.failures,
        crashes=e.crashes,
        generation=e.generation,
        tags=e.tag_map,
        held=e.held,
        cancel_requested=e.cancel_requested,
        worker=e.worker,
        created_at=moment(settled(e.created_at)),
        wake_at=moment_or_none(settled(e.wake_at)),
        deadline_at=moment_or_none(settled(e.deadline_at)),
        finished_at=moment_or_none(settled(e.finished_at)),
    )


def completion_of(completion: Completion, cursor: str | None) -> CompletionInfo:
    """`cursor` as the feed gives it: None where it is the completion's own number."""
    return CompletionInfo(
        execution_id=completion.execution,
        namespace=completion.namespace,
        status=completion.status,
        cause=completion.cause,
        workflow=completion.workflow,
        tags=completion.tag_map,
        finished_at=moment(settled(completion.finished_at)),
        cursor=str(completion.seq) if cursor is None else cursor,
    )
