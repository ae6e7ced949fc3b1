"""The store port: what every store does, and all that the engine knows of it.

A store keeps records (`model/kinds.py`) and ordered indexes. It knows no transitions: it commits what the machine
decided, each `Changes` guarded and all-or-nothing, with a verdict of its own. Only what must be native for speed is
native: claim, due, renew, purge.

The contract, in short (the conformance suite `outlast.testing.conformance` is the judge):

- `commit` locks the anchors in key order, then reads guards under the locks, then writes. A refused change never fails
  its neighbours. Changes that share an anchor apply in the order given. A change that was applied before (its own
  records are there) is applied again as "done before": `Verdict.again`.
- Time is the store's. `Now(+ms)` in a change is resolved by the commit; every answer carries the store's time; a
  partition's clock never goes back. A store accepts a test `Clock` when it is made.
- Crash points: a store calls `points(name)` before and after each statement and reply, so that tests can stop it there.
- Doorbells are hints: a channel's name is their only content, they are coalesced, they may be lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct, field

from outlast.errors import InvalidInput, OutlastError, StoreError
from outlast.machine.changes import Changes, Guard
from outlast.model.completion import Completion
from outlast.model.execution import Execution
from outlast.model.frame import Frame
from outlast.model.lease import Claimed, ClaimRequest, Leases, Renewed
from outlast.model.record import Key, Record
from outlast.model.status import Status


class Clock(Protocol):
    """Where a store's time comes from, if not from the store itself."""

    def now_ms(self) -> int: ...


Points: TypeAlias = Callable[[str], None]
"""Called with the name of a crash point; may raise, or end the process."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """How a store differs, declared instead of guessed."""

    native_doorbell: bool
    exact_order: bool
    """Claims are ordered across the whole store, not only within a partition."""
    transactions: Literal["def", "async def"] | None = None
    """Which functions can run inside of a commit (`Transacting`); None if a store has no such commits."""
    joins: bool = False
    """Whether an execution can be started inside of a transaction of the caller's (`Joining`)."""
    apart: bool = False
    """Whether a server does the work: while it commits some changes, this process can make the next ones."""
    in_line: bool = False
    """Whether commits are decided in the order in which they were sent, so that one may follow before the last is
    answered."""
    one_server: bool = False
    """Whether a store that can be on several servers (`Sharded`) is on one: nothing goes on while that is away."""


# ---- commit -------------------------------------------------------------------------------------------------------


class Verdict(Struct, frozen=True, gc=False):
    """What became of one change.

    `inbox` is that of the anchored execution after the change, so that a holder sees a cancel without asking.
    A refusal says which guard failed and what the record is now (`None` if there is none): as it was refused, or later.
    """

    applied: bool
    inbox: int | None = None
    again: bool = False
    refused_by: Guard | None = None
    current: Record | None = None


class Committed(Struct, frozen=True):
    """`times` are the store's of each change, as its records have it; None if it is `now` for all of them."""

    now: int
    verdicts: list[Verdict]
    times: list[int] | None = None


class CommittedInPart(StoreError):
    """Some changes of a batch have their verdicts, others failed: `outcomes` has one of both for each.

    For stores whose batches are more than one transaction. Who failed may be tried again alone. `times` are those of
    the changes that have a verdict.
    """

    def __init__(
        self, now: int, outcomes: Sequence[Verdict | OutlastError], problem: OutlastError, times: Sequence[int]
    ) -> None:
        self.now, self.outcomes, self.problem, self.times = now, outcomes, problem, times
        super().__init__(str(problem))


# ---- due ----------------------------------------------------------------------------------------------------------


class DueKind(StrEnum):
    """The ordered indexes of what time makes true."""

    LEASE = "lease"
    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    TIMER = "timer"
    OUTBOX = "outbox"
    RETENTION = "retention"
    SESSION = "session"
    FLOW = "flow"
    CANCEL = "cancel"
    SUMMARY = "summary"
    DEPENDENCY = "dependency"
    SIBLING = "sibling"


class Filter(Struct, frozen=True, kw_only=True):
    """Which executions a reconciler looks at: all, those of a namespace, those with an instance tag."""

    namespace: str | None = None
    tag: tuple[str, str] | None = None


EVERYTHING = Filter()
OWED = frozenset({DueKind.CANCEL})
"""What is owed from the moment that it is written, though a reconciler leaves it to its writer for a while."""
_OF_FLOWS = frozenset({DueKind.FLOW, DueKind.CANCEL, DueKind.SUMMARY, DueKind.DEPENDENCY})


def filter_of(kind: DueKind, filter: Filter) -> Filter:
    """What of a filter applies to a kind of due: a session belongs to a worker and no namespace; a flow has no tags of
    its own, and its members are asked one by one."""
    if kind is DueKind.SESSION:
        return EVERYTHING
    return Filter(namespace=filter.namespace) if kind in _OF_FLOWS else filter


class DueItem(Struct, frozen=True):
    due_at: int
    record: Record


class Due(Struct, frozen=True):
    """Oldest first. `depth` counts all that is due, this page included.

    `next_at` is when the next one will be due, as far as the store can tell at no cost: who looks in time repairs in
    time. None is always a right answer: then it is found at the next look.

    `owed` counts beside what is due what will be: of cancels (`OWED`) only, where the store is asked for it.
    """

    now: int
    items: list[DueItem]
    depth: int
    next_at: int | None = None
    owed: int | None = None


# ---- find ---------------------------------------------------------------------------------------------------------


class Query(Struct, frozen=True, kw_only=True):
    """Which executions of a namespace; newest first. All conditions must hold. `after` is a page's cursor."""

    namespace: str
    status: frozenset[Status] = frozenset()
    reason: str | None = None
    workflow: str | None = None
    lane: str | None = None
    tags: dict[str, str] = field(default_factory=dict[str, str])
    id_prefix: str | None = None
    created_from: int | None = None
    created_before: int | None = None
    after: str | None = None
    limit: int = 100


class Page(Struct, frozen=True):
    """`cursor` is that of the last execution, as `cursor_of` writes it; None if there are no more."""

    executions: list[Execution]
    cursor: str | None


def cursor_of(created_at_ms: int, execution_id: str) -> str:
    """The place behind an execution in what `find` gives: the same on every store, and true when it is purged."""
    return f"{created_at_ms}:{execution_id}"


def cursor_number(text: str, what: str) -> int:
    """The number in a cursor."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InvalidInput(f"{text!r} is not from a cursor of {what}")
    return int(text)


class Feed(Struct, frozen=True):
    """Completions in commit order, and the cursor to go on from: a late commit is never skipped.

    `cursors` are those to go on from behind each of them; None where that is a completion's own number. A cursor is for
    the filter that it came with: what that left out may be behind it.
    """

    completions: list[Completion]
    cursor: str
    cursors: list[str] | None = None


class Appended(Struct, frozen=True):
    """`applied` is false when the writer no longer holds the execution; `seq` is the stream's newest frame."""

    applied: bool
    seq: int


# ---- doorbell -----------------------------------------------------------------------------------------------------


RESCAN = "*"
"""Heard first, and whenever rings may have been missed: look at everything."""


class Subscription(Protocol):
    """Rings heard since the last look: `async for channels in subscription`. The first item holds `RESCAN`."""

    def __aiter__(self) -> AsyncIterator[frozenset[str]]: ...

    async def close(self) -> None: ...


# ---- the port -----------------------------------------------------------------------------------------------------


class Store(Protocol):
    @property
    def url(self) -> str:
        """What people see: without passwords."""
        ...

    @property
    def partitions(self) -> int: ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def open(self) -> None:
        """Connect and check the schema: `SchemaMissing`, `SchemaOutdated` or `SchemaTooNew` if it does not fit."""
        ...

    async def close(self) -> None:
        """Finish what is in flight and let go of everything. Calling it twice is harmless."""
        ...

    async def migrate(self) -> int:
        """Bring the schema to this code's version and return that; safe when many processes do it at once."""
        ...

    async def now(self) -> int:
        """The store's time in milliseconds since 1970."""
        ...

    async def commit(self, batch: Sequence[Changes]) -> Committed:
        """Decide the changes in their order. `IdHeld`, and that soon, if a transaction of somebody else's that is still
        open has started one of the ids: others wait behind this call."""
        ...

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Take up to `limit` ready executions, by priority, then resumed before new, then age.

        Writes exactly what `decide(view, Claim)` gives, and renews the worker's session.
        """
        ...

    async def renew(self, worker: str, *, lease_ttl_ms: int) -> Renewed:
        """Keep the worker's sessions alive (also an expired one that nobody took over) and say what they hold."""
        ...

    async def held(self, worker: str, partitions: frozenset[int]) -> Leases:
        """What the worker's sessions in these partitions hold, as `renew` says it. Nothing is written."""
        ...

    async def load(self, keys: Sequence[Key]) -> list[Record | None]: ...

    async def scan(
        self, kind: str, prefix: tuple[str | int, ...], *, after: Key | None = None, limit: int = 1_000
    ) -> list[Record]:
        """Records whose key begins with `prefix`, in key order; sequenced kinds in the order of their `seq`,
        which counts within one partition: those of several partitions come in any order beside each other."""
        ...

    async def find(self, query: Query) -> Page: ...

    async def count(self, query: Query) -> int: ...

    async def due(self, kind: DueKind, *, limit: int, filter: Filter = EVERYTHING) -> Due:
        """What is due by now, oldest first: executions, or the records that the kind names."""
        ...

    async def append(
        self, namespace: str, execution_id: str, *, epoch: int, change_id: str, frames: Sequence[bytes]
    ) -> Appended:
        """Add frames to an execution's stream, fenced by its holder's epoch; a repeated call appends once."""
        ...

    async def frames(self, namespace: str, execution_id: str, *, after: int = 0, limit: int = 1_000) -> list[Frame]: ...

    async def completions(
        self, *, after: str | None = None, limit: int = 1_000, filter: Filter = EVERYTHING
    ) -> Feed: ...

    def ring(self, channels: frozenset[str]) -> None: ...

    def listen(self) -> Subscription: ...

    async def purge(
        self, *, finished_before: int | None = None, limit: int = 1_000, filter: Filter = EVERYTHING
    ) -> int:
        """Delete ended executions, with all that belongs to them: those whose retention is over, or, if
        `finished_before` is given, those that ended before. Returns how many.

        Members of flows go by their retention only, which is that of their flow: what others may still need stays."""
        ...


# ---- the user's own tables ----------------------------------------------------------------------------------------


class Transacted(Struct, frozen=True):
    """What became of it: the verdict on the change, or what the body raised, and then nothing is written."""

    now: int
    verdict: Verdict | None = None
    raised: BaseException | None = None


Body: TypeAlias = Callable[[Any], Changes | Awaitable[Changes]]
"""Gets a connection to the store's own database, and gives the change to commit with what it did there."""


@runtime_checkable
class Transacting(Protocol):
    """A store whose database also holds tables of the user's; `Capabilities.transactions` says so."""

    async def transact(self, check: Changes, body: Body, *, limit_ms: int) -> Transacted:
        """Commit what the body does and the change that it gives as one, or nothing of either.

        `check` is that change with another value. First its guards are read: if they do not hold, or its records are
        there, the verdict says so and the body is not called. It may be called again if the transaction is done anew;
        what it did before is rolled back then. It may not touch Outlast's tables, nor commit or roll back, and is
        stopped after `limit_ms`. Its connection is of no use afterwards.
        """
        ...


class Joined(Struct, frozen=True):
    """What is there instead, in the eyes of the transaction: None if the change was made. `input` is its input, if it
    is another than the one given."""

    existing: Execution | None = None
    input: bytes | None = None


@runtime_checkable
class Joining(Protocol):
    """A store that can write inside of a transaction of the caller's; `Capabilities.joins` says so."""

    async def join(self, connection: Any, changes: Changes) -> Joined:
        """Insert an execution as `changes` say, on the caller's connection: it is there when the caller commits.

        `WrongConnection` if the store does not know connections of that kind, if it is one to another database, or if
        no transaction is under way; nothing is written then. What the connection itself raises is the caller's.
        """
        ...

    def join_blocking(self, connection: Any, changes: Changes) -> Joined:
        """The same, for connections that block. In the caller's thread."""
        ...


@runtime_checkable
class Prompt(Protocol):
    """A store that says `IdHeld`, and can say so at once."""

    async def commit_promptly(self, batch: Sequence[Changes]) -> Committed:
        """The same as `commit`, for those of which one was found to be held: it waits for nobody's transaction."""
        ...


# ---- several servers ----------------------------------------------------------------------------------------------


@runtime_checkable
class Sharded(Protocol):
    """A store on several servers, of which one may be away while others are not. Claim, renew, held, due and now then
    answer for the partitions that can be asked, and fail only if none can; everything else fails if one that it needs
    is away.
    """

    def shard(self, partition: int) -> str:
        """Names what a partition shares its fate with, as far as is known now. It may change at any time."""
        ...


# ---- health -------------------------------------------------------------------------------------------------------


class Grade(StrEnum):
    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


class Check(Struct, frozen=True, kw_only=True):
    """One thing that was looked at: what was found, and what to do if that is not well."""

    name: str
    found: str
    grade: Grade = Grade.OK
    advice: str | None = None


class ReadyLane(Struct, frozen=True):
    """What waits in a lane for a worker, and since when the oldest does."""

    namespace: str
    lane: str
    depth: int
    oldest_at: int


class Health(Struct, frozen=True):
    checks: list[Check]
    ready: list[ReadyLane]


@runtime_checkable
class Reachable(Protocol):
    """A store on several servers that can tell how each is, also when it cannot be opened."""

    async def reach(self) -> list[Check]: ...


@runtime_checkable
class Examinable(Protocol):
    """A store that can tell how its own parts are; `doctor` asks those that can."""

    async def health(self, *, deep: bool = False) -> Health:
        """Reads only. `deep` also does what takes long on a large store."""
        ...
