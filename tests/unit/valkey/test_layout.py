"""Records on their way to a script and back."""

from __future__ import annotations

import msgspec
import pytest

from outlast.errors import CorruptState
from outlast.model.execution import Execution
from outlast.store.valkey.layout import LAYOUTS
from tests.unit.machine.build import active, ready, suspended

LAYOUT = LAYOUTS[Execution.KIND]


def answered(execution: Execution) -> list[bytes | None]:
    """As a script answers it."""
    values = msgspec.structs.astuple(execution)
    return [None if value is None else str(int(value) if type(value) is bool else value).encode() for value in values]


@pytest.mark.parametrize("execution", [ready(), active(), suspended()])
def test_a_record_comes_back_as_it_was(execution: Execution):
    assert LAYOUT.record(answered(execution)) == execution


def test_a_word_that_no_record_can_say_is_told_with_those_that_can():
    row = answered(ready())
    row[LAYOUT.positions["status"] - 1] = b"asleep"
    with pytest.raises(CorruptState, match=r"b'asleep', where only these may stand: b'blocked', b'ready'"):
        LAYOUT.record(row)
