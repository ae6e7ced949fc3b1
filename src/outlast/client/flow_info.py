"""What people see of a flow: how it is, who is in it, and what waits for whom."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from outlast.client.info import Plain
from outlast.model.status import Status


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MemberInfo(Plain):
    """One member. `after` are the names of its upstreams, of which `needed` must succeed."""

    name: str
    id: str
    workflow: str
    status: Status
    reason: str | None
    cause: str | None
    after: tuple[str, ...]
    needed: int
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FlowGraph(Plain):
    """All members, in the order in which they were added, and the edges between them as pairs of names."""

    id: str
    name: str
    members: tuple[MemberInfo, ...]

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        return tuple((upstream, member.name) for member in self.members for upstream in member.after)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FlowInfo(Plain):
    """A flow as it is now.

    `status` is None while it runs, then `succeeded`, `failed` or `cancelled`. `counts` says how many members are in
    each status. `critical_path` is the longest way through it, by the time that its members took so far. `blocked` says
    which members wait, and for whom; `held` which of them an operator holds: `release()` lets them go on.
    """

    id: str
    name: str
    status: Status | None
    cancelling: bool
    reason: str
    members: int
    counts: dict[Status, int]
    critical_path: tuple[str, ...]
    blocked: dict[str, tuple[str, ...]]
    held: tuple[str, ...] = ()
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FlowCancel(Plain):
    """What a cancel did: how many members are cancelled by now, and how many will be in the background."""

    cancelled: int
    scheduled: int
    already: bool = False
    """It was cancelled before."""
