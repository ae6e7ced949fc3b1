"""What the machine is told happened. A fact is plain data, checked when it is made: a fact that exists is well-formed.

Three voices speak facts: the holder of the lease (`epoch` says which holder), the outside (anybody, at any time), and
the reconcilers (what the clock made true). Facts may travel through the outbox, so they are encodable.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

from outlast import limits
from outlast.errors import InvalidInput, LimitExceeded
from outlast.model.deferred import Resolution
from outlast.model.event import UPDATE
from outlast.model.execution import Execution, ParentClose
from outlast.model.journal import Awaited, JournalEntry
from outlast.model.names import check_id, check_name, check_recurring_name, check_text, check_user_name, check_word
from outlast.model.payload import Role
from outlast.model.retry import NO_RETRY, RetryPolicy
from outlast.model.status import TIMED_REASONS, Reason, Status, is_reason


class Fact(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """`change_id` is this fact's own name: the store uses it to recognise a repeated commit."""

    change_id: str


class HolderFact(Fact, frozen=True, kw_only=True):
    """Said by the worker that holds the lease at `epoch`."""

    epoch: int


# ---- from outside -------------------------------------------------------------------------------------------------


class Sent(Struct, frozen=True, gc=False):
    """An event that comes with a start."""

    name: str
    value: bytes

    def __post_init__(self) -> None:
        check_user_name("event", self.name)
        check_payload("event", self.value)


class Start(Fact, frozen=True, kw_only=True):
    """Somebody wants this work done. `delay_ms` and `deadline_ms` count from the commit.

    `first_epoch` is where the epochs of a new execution begin. Whoever starts it draws it at random, so that an id that
    is purged and started anew does not meet the epochs of its former life, and with them a zombie that has one of them.

    `sends` are events for it, whether this starts it or it was started before: one commit.

    `closes` with its parent, whose end may come before this does: then it is cancelled by whoever carries this.

    `worker` starts it where it was asked for: that worker has room, and holds it from the start. One commit instead of
    two; the fact's `change_id` is then its claim id as well.
    """

    namespace: str
    id: str
    workflow: str
    version: str
    input: bytes
    input_digest: str
    signature: str = ""
    lane: str = "default"
    requires: tuple[str, ...] = ()
    priority: int = 0
    delay_ms: int = 0
    deadline_ms: int | None = None
    timeout_ms: int | None = None
    retry: RetryPolicy = NO_RETRY
    crash_cap: int = 5
    life_crash_cap: int = 100
    retention_ms: int | None = None
    tags: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    parent: str | None = None
    closes: bool = False
    flow: str | None = None
    after_dependencies: bool = False
    if_exists: str = "same"
    first_epoch: int = 0
    worker: str | None = None
    sends: tuple[Sent, ...] = ()

    def __post_init__(self) -> None:
        check_recurring_name("namespace", self.namespace)
        # The engine itself names children and members under their parent.
        if self.parent is None and self.flow is None:
            check_id(self.id)
        else:
            check_name("id", self.id, max_chars=limits.ID_MAX_CHARS)
        check_word("workflow", self.workflow)
        check_word("version", self.version)
        check_word("lane", self.lane)
        if len(self.input) > limits.PAYLOAD_MAX_BYTES:
            check_payload("input", self.input)
        if self.requires:
            _at_most("requires", len(self.requires), limits.REQUIRES_MAX, "capabilities")
            for word in self.requires:
                check_word("capability", word)
        # Most starts have none of these: what is not there is not asked about.
        if self.tags:
            check_tags(self.tags)
        if self.sends:
            _at_most("events sent with a start", len(self.sends), limits.SENDS_MAX, "events")
        if self.priority:
            check_priority(self.priority)
        if self.delay_ms:
            _duration("delay", self.delay_ms)
        if self.deadline_ms is not None:
            _duration("deadline", self.deadline_ms)
        if self.timeout_ms is not None:
            _duration("timeout", self.timeout_ms)
        if self.retention_ms is not None:
            _duration("retention", self.retention_ms)
        if self.after_dependencies and self.delay_ms:
            raise InvalidInput("a delay cannot be combined with dependencies: delay an upstream instead")
        if not 1 <= self.crash_cap <= limits.CRASHES_MAX:
            raise InvalidInput(f"crash_cap must be between 1 and {limits.CRASHES_MAX}, not {self.crash_cap}")
        if not 1 <= self.life_crash_cap <= limits.CRASHES_MAX:
            raise InvalidInput(f"life_crash_cap must be between 1 and {limits.CRASHES_MAX}, not {self.life_crash_cap}")
        if not 0 <= self.first_epoch < limits.FIRST_EPOCHS:
            raise InvalidInput(f"first_epoch must be at least 0 and below 2**32, not {self.first_epoch}")
        if self.if_exists not in ("same", "error", "restart"):
            raise InvalidInput(f'if_exists must be "same", "error" or "restart", not {self.if_exists!r}')
        if self.worker is not None and (self.blocked_on is not None or self.flow):
            raise InvalidInput("what waits for a time or an upstream cannot be claimed by its start")

    @property
    def blocked_on(self) -> str | None:
        """What it waits for before anybody may claim it."""
        return Reason.DEPENDENCIES if self.after_dependencies else Reason.DELAY if self.delay_ms else None


class Fork(Fact, frozen=True, kw_only=True):
    """Somebody wants a new execution that begins as `source` did, with these entries of its journal and its input.
    `began_at` is when the code of `source` did."""

    id: str
    source: Execution
    input: bytes
    journal: tuple[JournalEntry, ...] = ()
    began_at: int | None = None

    def __post_init__(self) -> None:
        check_id(self.id)
        check_payload("input", self.input)
        # With the execution, its input and its tags it is one commit.
        _at_most("copied journal", len(self.journal), limits.FORK_MAX_ENTRIES, "entries")


class CancelRequested(Fact, frozen=True, kw_only=True):
    """`child_of`: only if that is its parent. Code that gives up a call may have named somebody else's execution."""

    reason: str = ""
    child_of: str | None = None

    def __post_init__(self) -> None:
        check_text("cancel reason", self.reason)
        _at_most("cancel reason", len(self.reason), limits.REASON_MAX_CHARS, "characters")


class Hold(Fact, frozen=True, kw_only=True):
    """An operator wants it not to run until released."""


class Release(Fact, frozen=True, kw_only=True):
    """The hold is over."""


class Retry(Fact, frozen=True, kw_only=True):
    """An operator wants a terminal execution tried again: a new generation on the same journal.

    `supersedes` are the journaled failures that ended it; everything else replays as it was. `seen_epoch` is the epoch
    at which they were found: if it has run again since, their keys may be those of other outcomes.
    """

    supersedes: tuple[tuple[str, str, int], ...] = ()
    seen_epoch: int | None = None
    with_flow: bool = False
    """Said of a member when its whole flow is retried; by itself it is not, because others have its answer."""
    waits_again: bool = False
    """… and it has not run yet, or not in its turn: it waits for its dependencies."""
    anew: bytes | None = None
    """… or its undos have run: it begins with this input and an empty journal."""


class Supersede(Fact, frozen=True, kw_only=True):
    """Journal entries leave ahead of a failure or a retry that supersedes more of them than one change holds.

    Said by the holder about to fail, or by whoever is about to retry what has ended; `epoch` is the one that they saw.
    """

    epoch: int
    entries: tuple[tuple[str, str, int], ...]


class EventSent(Fact, frozen=True, kw_only=True):
    """`dedup` makes the same event, sent again, the same; without one every send is its own. An update is an event of
    a reserved name, which the code's holder answers (`Answered`)."""

    name: str
    value: bytes
    dedup: str | None = None

    def __post_init__(self) -> None:
        if self.name != UPDATE:
            check_user_name("event", self.name)
        check_payload("event", self.value)
        if self.dedup is not None:
            check_name("event key", self.dedup)


class DeferredResolved(Fact, frozen=True, kw_only=True):
    name: str
    value: bytes
    resolution: Resolution = Resolution.RESOLVED

    def __post_init__(self) -> None:
        check_name("deferred", self.name)
        check_payload("deferred", self.value)


class ChildCompleted(Fact, frozen=True, kw_only=True):
    """A child of this execution ended; `value` is its output or failure. `generation` says which of its ends it is; it
    is 0 if it never began, because the id belongs to another."""

    child: str
    status: Status
    value: bytes | None
    generation: int = 1
    cause: str | None = None

    def __post_init__(self) -> None:
        if not self.status.terminal:
            raise InvalidInput(f"child {self.child!r} is {self.status}, which is not an end")


# ---- from the holder ----------------------------------------------------------------------------------------------


class Claim(Fact, frozen=True, kw_only=True):
    """A worker takes it. `change_id` is the claim id: a claim whose reply was lost is found again by it. `leap` is how
    far the epoch moves on, another each time: a server that loses a claim, and gives the same to another worker, does
    not give it the same number."""

    worker: str
    leap: int = 1


class Tell(Struct, frozen=True, gc=False):
    """A word to another execution: a fact, encoded, whose `change_id` is `id`."""

    id: str
    target: str
    fact: bytes


class StepRecorded(HolderFact, frozen=True, kw_only=True):
    """A durable operation has its outcome. `entries` is how many the journal holds so far, which is its place in it.

    `consumes` names the event (name, dedup) that this entry received. `unwinds` says that the entry registers an undo,
    so that a cancel must let the code unwind. `corrects` says that it takes the place of one that nobody has read yet;
    `overtakes` is one that nobody has read yet, and that stands behind this one from now on.

    What the operation does to others is in the same commit. `starts` is a child that lives in the same partition,
    `tells` is owed to executions anywhere. `adopts` names a child, and what becomes of it when this execution ends.
    """

    scope: str
    name: str
    occurrence: int
    op: str
    outcome: str
    value: bytes | None
    tries: int = 1
    entries: int = 0
    consumes: tuple[str, str] | None = None
    unwinds: bool = False
    starts: Start | None = None
    tells: tuple[Tell, ...] = ()
    adopts: tuple[str, ParentClose] | None = None
    corrects: bool = False
    overtakes: JournalEntry | None = None

    @property
    def plain(self) -> bool:
        """Nothing but its own entry, and that a new one."""
        others = self.starts or self.tells or self.adopts or self.overtakes
        return not (others or self.consumes or self.unwinds or self.corrects)

    def __post_init__(self) -> None:
        check_recurring_name("step", self.name)
        if len(self.scope) > limits.SCOPE_MAX_CHARS:
            _at_most("scope", len(self.scope), limits.SCOPE_MAX_CHARS, "characters")
        if self.value is not None and len(self.value) > limits.PAYLOAD_MAX_BYTES:
            check_payload("step result", self.value)


class Answered(HolderFact, frozen=True, kw_only=True):
    """What became of the update with that key: kept where whoever asked finds it."""

    dedup: str
    answer: bytes

    def __post_init__(self) -> None:
        check_payload("answer", self.answer)


class Progressed(HolderFact, frozen=True, kw_only=True):
    """How far the code is, or (`role`) where it stands still. Only the newest of each is kept."""

    value: bytes
    role: Role = Role.PROGRESS

    def __post_init__(self) -> None:
        check_payload("progress", self.value)


class Suspend(HolderFact, frozen=True, kw_only=True):
    """All that the code awaits is durable: nothing is left to run until one of `waits` comes, or `wake_at`.

    `inbox` is the newest that the code has seen: a write from outside since then refuses the suspension. `awaits` is
    the one operation that all of it comes to, if it is one: whoever ends the wait records its outcome.
    """

    inbox: int
    reason: str
    waits: tuple[str, ...] = ()
    wake_at: int | None = None
    awaits: Awaited | None = None

    def __post_init__(self) -> None:
        for wait in (self.reason, *self.waits):
            check_name("wait", wait, max_chars=limits.NAME_MAX_CHARS + 64)
            if not is_reason(wait):
                raise InvalidInput(f"{wait!r} is not a reason to wait")
            if wait in TIMED_REASONS and self.wake_at is None:
                raise InvalidInput(f"a suspension on {wait!r} needs a wake time")
        _at_most("waits", len(self.waits), limits.WAITS_MAX, "waits")
        if not self.waits and self.wake_at is None:
            raise InvalidInput("a suspension needs something that can wake it: a wait or a wake time")


class Complete(HolderFact, frozen=True, kw_only=True):
    """The code returned. A member of a flow that `hands_on` answers its edges in the same commit (`plan_end`), and owes
    them nothing."""

    output: bytes
    hands_on: bool = False

    def __post_init__(self) -> None:
        if len(self.output) > limits.PAYLOAD_MAX_BYTES:
            check_payload("output", self.output)


class Fail(HolderFact, frozen=True, kw_only=True):
    """The code raised. `supersedes` are the journaled failures that escaped (and what was given up because of them),
    so that a retry runs those steps again; what the code caught replays as it was.

    `jitter` is a random number in [0, 1): the machine has no randomness of its own.
    """

    failure: bytes
    retryable: bool = True
    supersedes: tuple[tuple[str, str, int], ...] = ()
    jitter: float = 0.0

    def __post_init__(self) -> None:
        _at_most("failure", len(self.failure), limits.FAILURE_MAX_BYTES, "bytes")
        _fraction("jitter", self.jitter)


class Continue(HolderFact, frozen=True, kw_only=True):
    """The code wants to go on from a clean page: the same execution, with this input and an empty journal.

    `interrupt` is the value of an interrupt, if it was asked to stop: the next generation is asked as well. `inbox` is
    how much had come from outside when that was looked for.
    """

    input: bytes
    inbox: int | None = None
    interrupt: bytes | None = None

    def __post_init__(self) -> None:
        check_payload("input", self.input)


class Cancelled(HolderFact, frozen=True, kw_only=True):
    """The code has observed the cancel request and unwound."""


class HandBack(HolderFact, frozen=True, kw_only=True):
    """The worker does not run it (draining, or claimed and never begun): no fault of the code, nothing is counted.

    `wait_ms` if the app's codec fails: it is not tried again before that.
    """

    wait_ms: int = 0


# ---- from the clock -----------------------------------------------------------------------------------------------


class Wake(Fact, frozen=True, kw_only=True):
    """The time or the condition that it waited for has come; `cause` is the reason that ends.

    `worker` has room for a member of a flow whose dependencies are satisfied, and claims it in the same commit. If the
    member is held, or needs a permit, it is woken without the claim.
    """

    cause: str
    worker: str | None = None

    def __post_init__(self) -> None:
        if self.worker is not None and self.cause != Reason.DEPENDENCIES:
            raise InvalidInput(f"a worker claims what waited for dependencies, not what waited for {self.cause}")


class TimeOut(Fact, frozen=True, kw_only=True):
    """The attempt ran longer than its timeout, on a worker that is alive. `jitter` as in `Fail`."""

    epoch: int
    jitter: float = 0.0

    def __post_init__(self) -> None:
        _fraction("jitter", self.jitter)


class LeaseLost(Fact, frozen=True, kw_only=True):
    """The session that the lease hangs on expired: the process is dead, or cut off."""

    epoch: int


class DeadlinePassed(Fact, frozen=True, kw_only=True):
    """The whole execution took longer than its deadline."""


class Skip(Fact, frozen=True, kw_only=True):
    """Its dependencies can no longer be satisfied."""

    cause: str = Status.SKIPPED


AnyFact: TypeAlias = (
    Start
    | Fork
    | Claim
    | StepRecorded
    | Answered
    | Progressed
    | Suspend
    | Wake
    | Complete
    | Fail
    | Continue
    | Cancelled
    | HandBack
    | TimeOut
    | LeaseLost
    | CancelRequested
    | Hold
    | Release
    | Retry
    | Supersede
    | DeadlinePassed
    | EventSent
    | DeferredResolved
    | ChildCompleted
    | Skip
)


# ---- errands ------------------------------------------------------------------------------------------------------


class CloseChildren(Fact, frozen=True, kw_only=True):
    """The execution has ended: what its open children were started to do then is owed. Not a fact about one execution,
    but bounded work over many, a part at a time."""

    reason: str


class Forget(Fact, frozen=True, kw_only=True):
    """The execution went on as new: what belongs to generations before this one is dropped, a part at a time, and the
    events that it has received."""

    before: int


class MemberEnded(Fact, frozen=True, kw_only=True):
    """A member of a flow has ended: its edges are owed an answer, and its flow is."""

    status: Status
    generation: int


class ReopenMembers(Fact, frozen=True, kw_only=True):
    """A flow is retried: the members that did not succeed are opened again, a part at a time."""


class StartFlow(Fact, frozen=True, kw_only=True):
    """The code of the execution that owes this started a flow, accepted as `decide_flow.encode_acceptance` says; it
    `closes` with its parent."""

    acceptance: bytes
    closes: bool = True


Errand: TypeAlias = CloseChildren | Forget | MemberEnded | ReopenMembers | StartFlow

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFact] = msgspec.msgpack.Decoder(AnyFact)
_debts: msgspec.msgpack.Decoder[AnyFact | Errand] = msgspec.msgpack.Decoder(AnyFact | Errand)


def encode_fact(fact: AnyFact | Errand) -> bytes:
    return _encoder.encode(fact)


def decode_fact(data: bytes) -> AnyFact:
    return _decoder.decode(data)


def decode_debt(data: bytes) -> AnyFact | Errand:
    """What an outbox record holds."""
    return _debts.decode(data)


# ---- checks -------------------------------------------------------------------------------------------------------


def check_payload(what: str, value: bytes) -> None:
    _at_most(what, len(value), limits.PAYLOAD_MAX_BYTES, "bytes")


def check_priority(priority: int) -> None:
    if not limits.PRIORITY_MIN <= priority <= limits.PRIORITY_MAX:
        raise InvalidInput(
            f"priority must be between {limits.PRIORITY_MIN:,} and {limits.PRIORITY_MAX:,}, not {priority:,}"
        )


def check_tags(tags: dict[str, str]) -> None:
    _at_most("tags", len(tags), limits.TAGS_MAX, "tags")
    for tag, value in tags.items():
        check_name("tag", tag, max_chars=limits.TAG_KEY_MAX_CHARS)
        check_name(f"value of tag {tag!r}", value, max_chars=limits.TAG_VALUE_MAX_CHARS)


def _at_most(what: str, actual: int, limit: int, unit: str) -> None:
    if actual > limit:
        raise LimitExceeded(what, actual=actual, limit=limit, unit=unit)


def _fraction(what: str, number: float) -> None:
    if not 0.0 <= number < 1.0:
        raise InvalidInput(f"{what} must be at least 0 and below 1, not {number}")


def _duration(what: str, ms: int) -> None:
    if ms < 0:
        raise InvalidInput(f"{what} must not be negative, not {ms} ms")
    _at_most(what, ms, limits.DURATION_MAX_MS, "ms")
