"""One unit of durable work. This is the hot row: what guards, claim, due and find read, and nothing wide.

Who writes which fields is what makes the engine safe:

- the holder (a worker with the lease, fenced by `epoch`): status, reason, waits, the attempt's counters;
- everybody else, at any time: an inbox record (event, deferred), `inbox` + 1, `cancel_requested`, `held`, `priority`.

So an outside write never fights with the holder, and a holder that must not miss one guards its change by `inbox`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, NamedTuple

import msgspec

from outlast.model.record import Key, Record, Time
from outlast.model.retry import RetryPolicy
from outlast.model.status import Status

WAITS_SEPARATOR = "\n"
UNWINDING = "unwinding:"
"""The cause of an execution whose time is over, but which undoes first what it did: with what it will end."""
ROUTE_SEPARATOR = "|"


class ParentClose(StrEnum):
    """What becomes of a child when its parent ends before it."""

    CANCEL = "cancel"
    ABANDON = "abandon"
    WAIT = "wait"
    """The parent's code ends only when the child has. Where it cannot wait (a deadline, a cancel), as `cancel`."""


class Execution(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "execution"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "id")
    TIMES: ClassVar[tuple[str, ...]] = (
        "ready_at",
        "wake_at",
        "deadline_at",
        "claimed_at",
        "attempt_deadline_at",
        "created_at",
        "finished_at",
        "purge_at",
    )
    FLAGS: ClassVar[tuple[str, ...]] = (
        "resumed",
        "attempt_open",
        "cancel_requested",
        "held",
        "unwinds",
        "has_children",
    )
    WORDS: ClassVar[Mapping[str, type[StrEnum]]] = {"status": Status}

    # Identity and routing.
    namespace: str
    id: str
    workflow: str
    version: str
    signature: str = ""
    lane: str
    route: str
    parent: str | None = None
    flow: str | None = None
    quota: str | None = None
    tags: str = "{}"
    input_digest: str

    # Where it is.
    status: Status
    reason: str | None = None
    waits: str = ""
    awaits: str = ""
    """The one operation that suspended code awaits, if it is one (`Awaited`): whatever ends the wait records it."""
    cause: str | None = None
    generation: int = 1
    journal_generation: int = 1

    # The fence and the doorstep.
    epoch: int = 0
    inbox: int = 0

    # Order among the ready.
    priority: int = 0
    resumed: bool = False
    ready_at: Time | None = None

    # The lease: who holds it, since when.
    worker: str | None = None
    claim_id: str | None = None
    claimed_at: Time | None = None

    # Times at which something is due.
    wake_at: Time | None = None
    deadline_at: Time | None = None
    attempt_deadline_at: Time | None = None
    purge_at: Time | None = None

    # The attempt under way, or the next one; once it has ended, how many there were.
    attempt: int = 1
    attempt_open: bool = False
    failures: int = 0
    crashes: int = 0
    """All crashes of this generation."""
    crashes_since_progress: int = 0
    """Crashes since an operation was recorded, or since the execution was suspended."""
    crashes_since_suspension: int = 0
    """Crashes since the execution was suspended: what makes it a suspect."""
    ran_ms: int = 0

    # Policy, fixed at the start.
    timeout_ms: int | None = None
    deadline_ms: int | None = None
    retry: str = ""
    crash_cap: int = 5
    """It expires with the crash that makes so many since its last progress …"""
    life_crash_cap: int = 100
    """… or so many in this generation."""
    retention_ms: int | None = None

    # What was asked from outside.
    cancel_requested: bool = False
    held: bool = False
    unwinds: bool = False
    has_children: bool = False
    """Whether children were started that its end may concern."""

    # Life.
    created_at: Time
    finished_at: Time | None = None
    change_id: str = ""

    @property
    def retry_policy(self) -> RetryPolicy:
        return RetryPolicy.parse(self.retry) if self.retry else RetryPolicy()

    @property
    def waits_for(self) -> tuple[str, ...]:
        return tuple(self.waits.split(WAITS_SEPARATOR)) if self.waits else ()

    @property
    def never_ran(self) -> bool:
        """Nobody has run it before, in any generation: it has no journal."""
        return not self.resumed and self.generation == 1

    @property
    def expires_for(self) -> str | None:
        """The cause with which it will expire once its undos have run; None if it is not expiring."""
        cause = self.cause
        return cause.removeprefix(UNWINDING) if cause is not None and cause.startswith(UNWINDING) else None

    @property
    def tag_map(self) -> dict[str, str]:
        return msgspec.json.decode(self.tags, type=dict[str, str])


def execution_key(namespace: str, execution_id: str) -> Key:
    return Key(Execution.KIND, (namespace, execution_id))


def route_of(workflow: str, version: str, requires: tuple[str, ...], quota: str | None = None) -> str:
    """Ready work is indexed by route: a worker scans only the routes that it can serve, and skips one at once."""
    return ROUTE_SEPARATOR.join((workflow, version, ",".join(sorted(requires)), quota or ""))


class Route(NamedTuple):
    """What a worker must offer to serve a route, and the quota whose permits its executions take.

    A suspect has crashed its process, or shared one that crashed, too often: workers run one suspect at a time, so that
    the one that kills its process is told from those that happened to be there.
    """

    workflow: str
    version: str
    requires: frozenset[str]
    quota: str | None
    suspect: bool


_SUSPECT = "suspect"


@lru_cache(maxsize=10_000)
def parse_route(route: str) -> Route:
    """Remembered: there are few, and every claim asks of all that it sees."""
    workflow, version, requires, quota, *marks = route.split(ROUTE_SEPARATOR)
    words = frozenset(requires.split(",")) if requires else frozenset[str]()
    return Route(workflow, version, words, quota or None, _SUSPECT in marks)


def suspect_route(route: str, *, suspect: bool) -> str:
    """The same route, marked or not."""
    plain = route.removesuffix(f"{ROUTE_SEPARATOR}{_SUSPECT}")
    return f"{plain}{ROUTE_SEPARATOR}{_SUSPECT}" if suspect else plain
