"""The holder port: all that an attempt may ask of the outside, whoever answers.

Whoever holds the lease of an execution says facts and asks questions; what a fact comes to is decided behind the port.
Nothing here knows a store. `LocalHolder` answers in this process, on the engine. The port is made to be carried over a
network as well, so these rules hold:

- What crosses it is plain data that msgspec encodes and decodes: facts, questions, records. Errors cross it as the
  errors of `errors.py`. The one exception is `transact`, which takes a function: a holder that cannot call it next to
  the store's own tables says so (`Terms.transactions`), and then it is not called.
- No call depends on an earlier one: each brings the execution as its holder knows it. So several operations of several
  attempts can share one message, and any server can answer it.
- A claim brings what its holder reads first: the input, the journal, the oldest events.

`submit` is the short way of a step's outcome: the answer calls back, and no future is made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from outlast import limits
from outlast.codec.failures import Failure
from outlast.errors import LimitExceeded
from outlast.machine import facts
from outlast.machine.changes import Refusal
from outlast.machine.decide_flow import NewMember
from outlast.model.child import ChildEnd
from outlast.model.deferred import Deferred
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.frame import Frame
from outlast.model.journal import JournalEntry
from outlast.model.lease import Claimed, ClaimedExecution, ClaimRequest, Leases, Renewed
from outlast.model.record import Key
from outlast.model.status import Status

T = TypeVar("T")

Body: TypeAlias = Callable[[Any], facts.StepRecorded | Awaitable[facts.StepRecorded]]
"""Gets a connection to the store's database, and gives the success to record with what it did there."""

PAGE = 100
"""Events in one answer; fewer are the last."""
FRAMES_PAGE = 1_000
"""Frames in one answer; fewer are the last."""


class Terms(Struct, frozen=True, kw_only=True):
    """What an attempt must know of the store behind the port. `transactions`: the colour of the functions that it can
    call inside of its own commits (`App.transaction`), if it can call any."""

    url: str
    partitions: int
    transactions: Literal["def", "async def"] | None = None


# ---- facts --------------------------------------------------------------------------------------------------------


class Reply(Struct, frozen=True, gc=False):
    """What became of a fact: committed at `at`, or refused by the machine, or (neither) overtaken by something that
    came from outside. `inbox` is how far the inbox has grown; `execution` is the execution as it was read anew."""

    applied: bool
    at: int
    inbox: int | None = None
    refusal: Refusal | None = None
    execution: Execution | None = None


class Submitted(Protocol):
    """What becomes of a step's outcome that was submitted."""

    @property
    def applied(self) -> bool: ...

    @property
    def again(self) -> bool:
        """Whether an earlier commit of the same outcome had been applied, whose reply was lost."""
        ...

    @property
    def inbox(self) -> int | None: ...


class Recorder(Protocol):
    """Called back with the answer to what it submitted, and the store's time of that commit; once, in a callback of the
    event loop. If the line to the store is cut off, also those hear `failed` that were answered just before."""

    def answered(self, verdict: Submitted, at: int) -> None: ...

    def failed(self, error: Exception) -> None: ...


class TransactionReply(Struct, frozen=True, kw_only=True):
    """What became of a transaction: recorded at `at`, or, if its reply had been lost, as `entry` says; or what its
    function `raised`, and then nothing is written."""

    at: int = 0
    inbox: int | None = None
    entry: JournalEntry | None = None
    raised: BaseException | None = None


class FanIn(Struct, frozen=True):
    """A member that is there already, and waits for what is added. With the last of it: all that it waits for besides,
    and how its input is made of them."""

    member: str
    upstreams: tuple[str, ...] = ()
    template: bytes | None = None


class NewMembers(Struct, frozen=True):
    """Members that the running member of a flow adds behind itself; `place` names the call in its code."""

    flow: str
    place: str
    members: list[NewMember]
    fan_in: FanIn | None = None


# ---- questions ----------------------------------------------------------------------------------------------------


class HolderQuestion(Struct, Generic[T], frozen=True, tag=True):
    """A question about an execution that changes nothing; `T` is the type of the answer."""


class History(Struct, frozen=True):
    """The journal in the order of its entries, the oldest events, and when the code first began."""

    entries: list[JournalEntry]
    events: list[Event]
    began_at: int


class ReadJournal(HolderQuestion[History], frozen=True, tag=True):
    """What is recorded so far."""


class Look(HolderQuestion[Execution], frozen=True, tag=True):
    """The execution as it is now. `LeaseLost` if it is not held any more."""


class LookAt(HolderQuestion[Execution | None], frozen=True, tag=True):
    """Another execution of the same namespace, as it is now."""

    id: str


class Oldest(Struct, frozen=True):
    """The event that was asked for, if there is one. The next look may go on behind `after`; `received` are those of
    the taken ones that are recorded as received by now."""

    event: Event | None = None
    after: Key | None = None
    received: tuple[Key, ...] = ()


class OldestEvent(HolderQuestion[Oldest], frozen=True, tag=True):
    """The oldest event of a name that was not received, unless it was sent after `until`. The holder has `taken` some
    that it has not recorded yet; those up to `after` are all received."""

    name: str
    until: int | None = None
    after: Key | None = None
    taken: tuple[Key, ...] = ()


class ReadUpdates(HolderQuestion[list[Event]], frozen=True, tag=True):
    """The next `PAGE` updates behind `after`, oldest first: also those that were accepted or answered."""

    after: Key | None = None


class ReadDeferred(HolderQuestion[Deferred | None], frozen=True, tag=True):
    """How a deferred was resolved, if it was; not if that was after `until`."""

    name: str
    until: int | None = None


class EndOfChild(HolderQuestion[ChildEnd | None], frozen=True, tag=True):
    """How a child ended, if it has, and not after `until`; `start` is the change id of its start, if this execution
    started it. `ExecutionNotFound` if nobody will ever say."""

    child: str
    start: str | None
    until: int | None = None


class MemberEnd(Struct, frozen=True, kw_only=True):
    """How a member of a flow ended: its output if it succeeded, its failure if it failed, sealed by the codec."""

    name: str
    id: str
    status: Status
    cause: str | None = None
    value: bytes | None = None


class FlowEnd(Struct, frozen=True, kw_only=True):
    """How a flow ended, to the execution that waits for it. Without a status there is nothing to wait for."""

    status: Status | None = None
    cause: str = ""
    ours: bool = True
    refused: bool = False
    members: list[MemberEnd] = []


class EndOfFlow(HolderQuestion[FlowEnd | None], frozen=True, tag=True):
    """How a flow that this execution started ended, if it has, and not after `until`."""

    flow: str
    start: str | None
    until: int | None = None


class ChildrenToAwait(HolderQuestion[tuple[str, ...]], frozen=True, tag=True):
    """The open children that the code must wait for before it ends, as reasons of a suspension."""


class ReadFrames(HolderQuestion[list[Frame]], frozen=True, tag=True):
    """The next `FRAMES_PAGE` frames of its stream behind `after`."""

    after: int = 0


class AsClaimed(HolderQuestion[ClaimedExecution | None], frozen=True, tag=True):
    """What a claim would bring, with the whole journal, for a look at an execution that others may hold. None: its code
    has not begun, because it has no input yet (a member of a flow that waits for an output)."""


class BegunAnew(HolderQuestion[Execution | None], frozen=True, tag=True):
    """The execution as it is now, if it has begun anew since it was seen: what was read since may not be whole.
    `ExecutionNotFound` if it is gone."""


# ---- the port -----------------------------------------------------------------------------------------------------


class LeaseHolder(Protocol):
    """What a lease asks. `seen` is the execution as the caller knows it; behind the port it may be read anew."""

    @property
    def now(self) -> int:
        """The store's time in milliseconds since 1970, as last heard."""
        ...

    async def ask(self, seen: Execution, question: HolderQuestion[T]) -> T: ...

    async def tell(
        self,
        seen: Execution,
        fact: facts.HolderFact | facts.TimeOut | facts.Supersede,
        *,
        failure: Failure | None = None,
    ) -> Reply:
        """Say a fact about an execution until it is settled. `LeaseLost` if it is not held any more;
        `ExecutionConflict` if it starts a child where there is another. `failure` is what a `Fail` has as sealed bytes:
        for the log."""
        ...

    def submit(self, seen: Execution, fact: facts.StepRecorded, recorder: Recorder) -> bool:
        """The outcome of a step and nothing else, on its way to the journal. False if there is more to it, or no room:
        nothing is on its way, and the recorder is not called."""
        ...

    async def transact(
        self,
        seen: Execution,
        check: facts.StepRecorded,
        body: Body,
        *,
        limit_ms: int,
    ) -> TransactionReply:
        """Record a success together with what `body` does in the store's database. `check` is that success without its
        value. The body gets a connection, perhaps in a thread of the store's, and again if the store begins anew."""
        ...


class Holder(LeaseHolder, Protocol):
    """The whole port."""

    @property
    def terms(self) -> Terms: ...

    async def time(self) -> int:
        """The store's time, asked now."""
        ...

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Take what is ready. A claim whose reply was lost is asked again under the same id, and finds what it took."""
        ...

    async def renew(self, worker: str, lease_ttl_ms: int) -> Renewed:
        """Keep the leases of a worker, and say which they are."""
        ...

    async def held(self, worker: str, partitions: frozenset[int]) -> Leases:
        """Which leases a worker has there; nothing is written."""
        ...

    async def hand_on(self, seen: Execution, fact: facts.Complete) -> bool:
        """The end of a flow's member, in one commit with what it means to those that waited for it, which begin where
        it ran. False if that cannot be: nothing is written, and the end is to be told as any other."""
        ...

    async def grow(self, seen: Execution, members: NewMembers) -> bool:
        """False if the execution is told to end instead: its flow is cancelled, or what was to join the new members has
        ended. `FlowRefused`, `FlowNotFound` or `InvalidFlow` if it cannot be."""
        ...

    async def append(self, seen: Execution, change_id: str, frames: list[bytes]) -> int:
        """Add frames to its stream; the number of the newest. `LeaseLost` if it is not held any more."""
        ...


def journal_is_full(entries: int) -> LimitExceeded:
    return LimitExceeded("journal", actual=entries, limit=limits.JOURNAL_MAX_ENTRIES, unit="entries")
