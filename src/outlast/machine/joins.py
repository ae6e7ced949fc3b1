"""The arithmetic of joins: what a number of answers means to a member. It knows no records of others and no time.

A join needs `needed` successes of its upstreams. Any other end of an upstream counts against it, and as soon as more
of them have than it can do without, it is impossible: the member is skipped at once, without waiting for the rest.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from outlast.model.flow import EdgeAnswer, Member, OnFailure, OnSatisfied, Settled
from outlast.model.status import Status


class Answer(StrEnum):
    """What an upstream's end meant to a member."""

    ALREADY_RESOLVED = "already_resolved"
    """Its join was settled before, or it has ended: nothing changes."""
    PENDING = "pending"
    """Others must answer."""
    SATISFIED = "satisfied"
    IMPOSSIBLE = "impossible"


class Count(Struct, frozen=True, gc=False):
    """The answers that a member has: how many, how many of them successes, and which was the last."""

    answered: int
    succeeded: int
    drained: str


def counted(member: Member, edges: list[EdgeAnswer]) -> Count:
    """The member's answers, with those that have come since."""
    successes = sum([edge.answer == Status.SUCCEEDED for edge in edges])
    drained = edges[-1].upstream if edges else member.drained
    return Count(member.answered + len(edges), member.succeeded + successes, drained)


def settled_by(member: Member, count: Count) -> Settled:
    """What becomes of the join. One that runs on failure waits for all of its upstreams: it wants to see all of it."""
    if count.succeeded >= member.needed:
        return Settled.SATISFIED
    against = count.answered - count.succeeded
    if against <= member.upstreams - member.needed:
        return Settled.OPEN
    if member.on_failure is OnFailure.RUN and count.answered < member.upstreams:
        return Settled.OPEN
    return Settled.IMPOSSIBLE


def runs(member: Member, settled: Settled, edges: list[EdgeAnswer]) -> bool:
    """Whether the member may run, now that its join is settled so by these answers."""
    if settled is not Settled.IMPOSSIBLE:
        return settled is Settled.SATISFIED
    if member.on_failure is OnFailure.TURN:
        return all(edge.answer != Status.SKIPPED for edge in edges)
    return member.on_failure is OnFailure.RUN


def spares_siblings(member: Member, settled: Settled, count: Count) -> bool:
    """Whether upstreams are left that the member no longer needs, and wants cancelled."""
    return (
        settled is Settled.SATISFIED
        and member.on_satisfied is OnSatisfied.CANCEL_REMAINING
        and count.answered < member.upstreams
    )
