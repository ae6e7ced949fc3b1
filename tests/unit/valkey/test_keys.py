"""Names in Valkey: they sort as the values do, no two values share one, and they fall into the cluster's slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import InvalidInput
from outlast.model.execution import execution_key
from outlast.model.journal import journal_key
from outlast.model.record import Key
from outlast.model.session import session_key
from outlast.store.valkey.keys import Names, encoded, home, place, slot_of

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\0\1\2a"), max_size=6)
numbers = st.integers(0, 12) | st.integers(0, 2**63 - 1)
keys = st.tuples(texts, numbers, texts)


@given(keys, keys)
def test_bytes_sort_as_the_values_do(one: tuple[str, int, str], other: tuple[str, int, str]):
    a, b = encoded(one).encode(), encoded(other).encode()
    assert (a < b, a == b) == (one < other, one == other)


@given(keys, st.integers(0, 3), keys)
def test_a_name_begins_with_another_exactly_if_the_values_do(
    one: tuple[str, int, str], length: int, other: tuple[str, int, str]
):
    prefix = other[:length]
    assert encoded(one).startswith(encoded(prefix)) == (one[:length] == prefix)


def test_what_belongs_to_an_execution_is_named_after_it():
    journal = journal_key("shop", "order-1", 1, "", "charge", 12)
    assert place(journal) == (4, "shop\0order-1\0", "a1\0charge\0b12")
    assert place(execution_key("shop", "order-1")) == (1, "shop\0order-1\0", "")


@pytest.mark.parametrize(
    "key",
    [
        Key("unicorn", ("a",)),
        Key("execution", ("a",)),
        Key("journal", ("a", "b", -1, "", "x", 0)),
        session_key(-1, "w"),
    ],
    ids=str,
)
def test_what_is_no_key_is_refused(key: Key):
    with pytest.raises(InvalidInput):
        place(key)


def test_a_partition_that_does_not_exist_is_refused():
    with pytest.raises(InvalidInput, match="no partition"):
        home(session_key(16, "w"), 16)


def test_all_keys_of_a_partition_are_in_one_slot():
    names = Names("outlast")
    assert slot_of(names.clock(3)) == slot_of(names.bell(3)) == slot_of("{outlast:3}:of:shop\0a\0")
    assert len({slot_of(names.clock(number)) for number in range(16)}) == 16


@pytest.mark.parametrize(
    "key, slot", [("foo", 12_182), ("{user1000}.following", 3_443), ("foo{}{bar}", 8_363), ("", 0)]
)
def test_slots_are_those_of_the_cluster_specification(key: str, slot: int):
    assert slot_of(key) == slot
