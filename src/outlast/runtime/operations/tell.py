"""A word to another execution: an event, a resolution, a cancel. Journaled and owed in one commit, delivered once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from outlast.machine import facts
from outlast.model.outbox import SENT_BY_OUTBOX
from outlast.model.partition import partition_of
from outlast.runtime.attempts.effects import Effects
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.operations.performed import BackOff, Performed

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.model.execution import Execution
    from outlast.runtime.parts import Parts

FactOf = Callable[[str], facts.AnyFact]
"""The fact under a change id."""


class Tell(Performed):
    """Each verb is a kind of its own: it is its word in the journal."""

    __slots__ = ("fact_of", "target")

    def __init__(self, target: str, fact_of: FactOf) -> None:
        self.target = target
        self.fact_of = fact_of
        fact_of("checked")  # complains about names and sizes where it is called

    @property
    def name(self) -> str:
        return self.target

    async def perform(self, parts: Parts, execution: Execution, operation: Operation, tries: int) -> Outcome | BackOff:
        return Outcome(b"null", effects=owing(parts, execution, self.target, self.fact_of))

    def decode(self, values: Values, data: bytes, what: object) -> None:
        return None


class Send(Tell):
    __slots__ = ()
    OP: ClassVar = "send"


class Resolve(Tell):
    __slots__ = ()
    OP: ClassVar = "resolve"


class Reject(Tell):
    __slots__ = ()
    OP: ClassVar = "reject"


class Interrupt(Tell):
    __slots__ = ()
    OP: ClassVar = "interrupt"


class Cancel(Tell):
    __slots__ = ()
    OP: ClassVar = "cancel of another"


def owing(parts: Parts, execution: Execution, target: str, fact_of: FactOf) -> Effects:
    fact = fact_of(debt_id(parts, execution))
    return Effects(tells=(facts.Tell(fact.change_id, target, facts.encode_fact(fact)),))


def debt_id(parts: Parts, execution: Execution) -> str:
    """Says where the debt is kept, so that its target can find out whether it was struck off."""
    home = partition_of(execution.namespace, execution.id, parts.holder.terms.partitions)
    return f"{home}{SENT_BY_OUTBOX}{parts.entropy.new_id()}"
