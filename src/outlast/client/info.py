"""What people see of an execution, an operation of its journal, and a completion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from outlast import limits
from outlast.errors import InvalidInput
from outlast.model.completion import Completion
from outlast.model.execution import Execution, parse_route
from outlast.model.record import settled
from outlast.model.status import Status
from outlast.store.port import cursor_of

_EPOCH = datetime.fromtimestamp(0, UTC)


class Plain:
    """What these dataclasses share. FastAPI, Pydantic and msgspec take dataclasses as they are, with a JSON schema.

    A generated `__eq__` and `__repr__` for each class would cost every import of Outlast some milliseconds.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """As a dict of plain values, those inside of it too."""
        return asdict(self)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        inside = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
        return f"{type(self).__name__}({inside})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ErrorInfo(Plain):
    """What was raised: `str(error)` is `CardDeclined: no funds`. The type is `module:qualified name`."""

    type: str
    message: str
    traceback: str = ""
    """As it was where it was raised. Lists (`app.find`) leave it out."""

    def __str__(self) -> str:
        name = self.type.rpartition(":")[2]
        return ": ".join(part for part in (name, self.message) if part)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ProgressInfo(Plain):
    """How far it says it is: `fraction` from 0 to 1, and in words."""

    fraction: float
    text: str


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Info(Plain):
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
    error: ErrorInfo | None = None
    """What it failed with; of one that has not ended, what its last attempt failed with, in `handle.info()` only."""
    _input: ClassVar[Callable[[], Any] | None] = None

    @property
    def cursor(self) -> str:
        """`app.find(after=info.cursor)` goes on behind it."""
        return cursor_of(to_epoch_ms(self.created_at, what="created_at"), self.id)

    def input(self) -> Any:
        """The arguments that it was given, by name, as plain JSON data; defaults are not among them.

        None of a member of a flow that waits for its upstreams. Only `handle.info()` reads the input.
        """
        if self._input is None:
            raise InvalidInput(f"the input of {self.id!r} is not read for a list: ask `(await handle.info()).input()`")
        return self._input()

    def with_input(self, read: Callable[[], Any]) -> Info:
        """The same, with what reads its input."""
        info = replace(self)
        object.__setattr__(info, "_input", read)
        return info


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FrameInfo(Plain):
    """One frame of an execution's stream. `handle.frames(after=frame.offset)` goes on behind it."""

    offset: int
    value: Any
    at: datetime
    step: str | None
    """The step that emitted it; None for the workflow's own code."""
    epoch: int
    """Who held the execution then. Frames of one step and another epoch are those of another try."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class JournalInfo(Plain):
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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AttemptInfo(Plain):
    """One try at running an execution: who held it, when, and how it ended (`outcome` is None while it runs)."""

    number: int
    generation: int
    epoch: int
    worker: str
    outcome: str | None
    started_at: datetime
    ended_at: datetime | None
    error: ErrorInfo | None = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CompletionInfo(Plain):
    """The end of an execution, from the feed. `cursor` goes on behind it."""

    execution_id: str
    namespace: str
    status: Status
    cause: str | None
    workflow: str
    tags: dict[str, str]
    finished_at: datetime
    cursor: str
    error: ErrorInfo | None = None
    """What it failed with, if the execution has not been retried or purged since."""


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


def completion_of(completion: Completion, cursor: str | None, error: ErrorInfo | None) -> CompletionInfo:
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
        error=error,
    )
