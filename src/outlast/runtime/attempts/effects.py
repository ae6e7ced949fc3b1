"""What an operation of workflow code does to other executions, in the commit of its journal entry."""

from __future__ import annotations

from msgspec import Struct

from outlast.machine import facts
from outlast.model.execution import ParentClose


class Effects(Struct, frozen=True):
    """As in `facts.StepRecorded`: a child to start here, words that are owed, a child to remember."""

    starts: facts.Start | None = None
    tells: tuple[facts.Tell, ...] = ()
    adopts: tuple[str, ParentClose] | None = None


NO_EFFECTS = Effects()
