"""Leases: what a worker asks for, what a claim takes, what a renewal says. Plain data, the same for every store."""

from __future__ import annotations

from msgspec import Struct

from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """What a worker can take. `serves` are (workflow, version) pairs; `claim_id` finds a claim whose reply was lost.

    `suspects` is how many executions on suspect routes it takes at most (None: as many as it may). `leap` is how far
    the epochs of what it takes move on. `first`: nobody has asked under this `claim_id` before, so there is nothing
    that it took; a store may look for it all the same.
    """

    namespace: str
    lanes: tuple[str, ...]
    serves: frozenset[tuple[str, str]]
    worker: str
    claim_id: str
    limit: int
    lease_ttl_ms: int
    capabilities: frozenset[str] = frozenset()
    suspects: int | None = None
    leap: int = 1
    first: bool = False


class ClaimedExecution(Struct, frozen=True, gc=False):
    """What a claim took. What its holder reads next may come with it, if the store has that at hand; it asks otherwise.

    `began_at` is when the first attempt began. `journal` is all that is recorded, in any order; and `events` are then
    the first of those that came, in their order: at most `EARLY_EVENTS`.
    """

    execution: Execution
    input: bytes
    began_at: int | None = None
    journal: list[JournalEntry] | None = None
    events: list[Event] = []


EARLY_EVENTS = 20
"""So many events are read together with a journal: most often what woke an execution is among them."""


class Claimed(Struct, frozen=True):
    """`more` is false only if this claim left nothing that it could have taken: then the worker need not look again
    until somebody rings. A store that does not know says true. `passed_over` is true if it knows of some that it left
    although there was room, such as a row that a commit had locked: nobody rings for that, and soon it may be free."""

    now: int
    executions: list[ClaimedExecution]
    more: bool = True
    passed_over: bool = False


class Held(Struct, frozen=True):
    """A lease as the store sees it: the worker compares it with what it runs, and hands the rest back."""

    namespace: str
    id: str
    epoch: int
    inbox: int


class Leases(Struct, frozen=True, kw_only=True):
    """What a worker holds. `unreached` are partitions that could not be asked now: nothing is known of the leases
    there, and nothing is listed of them."""

    held: list[Held]
    unreached: frozenset[int] = frozenset()


class Renewed(Leases, frozen=True, kw_only=True):
    """… at `now`, to which its sessions were renewed; perhaps not where it is `unreached`."""

    now: int
