"""Records on their way to a script and back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.errors import CorruptState, InvalidInput
from outlast.model.attempt import Attempt
from outlast.model.execution import Execution
from outlast.model.payload import Payload, Role
from outlast.model.record import Now
from outlast.store.valkey.keys import field
from outlast.store.valkey.layout import BESIDE, LAYOUTS
from tests.conformance.valkey_audit import unpacked
from tests.unit.machine.build import active, ready, suspended

ATTEMPT: dict[str, Any] = {
    "namespace": "shop", "execution": "a", "generation": 1, "number": 1, "epoch": 1, "worker": "w", "change_id": "c",
}  # fmt: skip
LAYOUT = LAYOUTS[Execution.KIND]


def answered(execution: Execution) -> list[bytes | None]:
    """As a script answers it."""
    values = [getattr(execution, name) for name in LAYOUT.fields]
    return [None if value is None else str(int(value) if type(value) is bool else value).encode() for value in values]


@pytest.mark.parametrize("execution", [ready(), active(), suspended()])
def test_a_record_comes_back_as_it_was(execution: Execution):
    assert LAYOUT.record(answered(execution)) == execution


def stored(execution: Execution) -> bytes:
    """As a script keeps it: the times behind the rest."""
    _, _, body, times = LAYOUT.packed(execution)
    values = [int(time[1:]) if time else False for time in times.removesuffix(",").split(",")]
    return body + b"".join(map(msgspec.msgpack.encode, values))


@pytest.mark.parametrize(
    "execution", [ready(), active(), suspended(), msgspec.structs.replace(ready(), epoch=2**60, reason="é")]
)
def test_a_packed_record_comes_back_as_it_was(execution: Execution):
    assert LAYOUT.record(stored(execution)) == execution


def test_a_time_that_is_relative_is_told_as_one():
    assert LAYOUTS["attempt"].packed(Attempt(**ATTEMPT, started_at=Now(-5)))[3] == "+-5,,"
    assert LAYOUTS["attempt"].packed(Attempt(**ATTEMPT, started_at=7, ended_at=2**60))[3] == f"=7,'{2**60},"


@pytest.mark.parametrize("number", [1, 2**60])
def test_a_record_has_the_name_that_its_key_has(number: int):
    attempt = Attempt(**{**ATTEMPT, "number": number}, started_at=7)
    assert LAYOUTS["attempt"].packed(attempt)[:2] == field(attempt.key)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_values_of_wrong_types_are_refused_whatever_the_kind(kind: str):
    layout = LAYOUTS[kind]
    wrong = layout.kind(**dict.fromkeys(layout.fields, 1.5))
    with pytest.raises(InvalidInput, match="a value that a record cannot have"):
        layout.packed(wrong)


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536])
def test_bytes_are_packed_as_scripts_pack_them(size: int):
    value = b"\xff" * size
    _, _, body, _ = LAYOUTS["payload"].packed(
        Payload(namespace="shop", execution="a", generation=1, role=Role.INPUT, value=value, change_id="c")
    )
    assert unpacked(body)[-1] == value


@pytest.mark.parametrize("wrong", [{"epoch": True}, {"worker": 1}, {"started_at": "now"}, {"failure": "text"}])
def test_a_value_of_a_type_that_a_field_does_not_have_is_refused(wrong: dict[str, Any]):
    with pytest.raises(InvalidInput, match="a value that a record cannot have"):
        LAYOUTS["attempt"].packed(Attempt(**{**ATTEMPT, "started_at": 7, **wrong}))


def test_a_word_that_no_record_can_say_is_told_with_those_that_can():
    row = answered(ready())
    row[LAYOUT.positions["status"] - 1] = b"asleep"
    with pytest.raises(CorruptState, match=r"b'asleep', where only these may stand: b'blocked', b'ready'"):
        LAYOUT.record(row)


@pytest.mark.parametrize(
    "epoch, told", [(7, 7), (2**60, str(2**60)), (8, 8)], ids=["first of its shape", "too large", "once more"]
)
@pytest.mark.parametrize("held", [True, False])
def test_each_of_some_values_is_sent_by_its_type(epoch: int, told: int | str, held: bool):
    at = LAYOUT.positions
    flat = LAYOUT.some({"worker": None, "epoch": epoch, "held": held, "wake_at": Now(5), "claim_id": "c"}, [])
    assert flat == [
        at["worker"], False, at["epoch"], told, at["held"], int(held), -at["wake_at"], 5, at["claim_id"], "c",
    ]  # fmt: skip
    assert [type(flat[1]), type(flat[5])] == [bool, int]  # which are equal to Python, and not to a script


def test_bytes_among_some_values_go_beside():
    at, blobs = LAYOUTS["payload"].positions, [b"another's"]
    assert LAYOUTS["payload"].some({"value": b"\xff", "change_id": "c"}, blobs) == [
        at["value"] + BESIDE, 2, at["change_id"], "c",
    ]  # fmt: skip
    assert blobs == [b"another's", b"\xff"]


def test_a_number_that_is_too_large_for_a_field_is_told_with_its_name():
    LAYOUT.some({"held": True, "epoch": 1}, [])
    with pytest.raises(InvalidInput, match=r"^execution\.epoch: 9223372036854775808 is too large"):
        LAYOUT.some({"held": True, "epoch": 2**63}, [])


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_record_that_is_packed_has_the_name_that_its_key_has(kind: str):
    values: dict[str, Any] = {}
    for number, one in enumerate(msgspec.structs.fields(LAYOUTS[kind].kind)):
        values[one.name] = _some_value(str(one.type), number)
    record = LAYOUTS[kind].kind(**values)
    of, name, *_ = LAYOUTS[kind].packed(record)
    assert (of, name) == field(record.key)


def _some_value(type_: str, number: int) -> Any:
    if "None" in type_:
        return None
    if "bytes" in type_:
        return b"b"
    if "bool" in type_:
        return True
    return number if "int" in type_ else f"text\0{number}"
