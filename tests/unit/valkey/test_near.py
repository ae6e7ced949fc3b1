"""When a claim on Valkey may ask one partition alone: only if nothing was left anywhere, and just that one rang."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from outlast.model.lease import ClaimRequest
from outlast.store.valkey import near
from outlast.store.valkey.near import Line, Near

REQUEST = ClaimRequest(
    namespace="default",
    lanes=("default",),
    serves=frozenset({("w", "1")}),
    worker="w1",
    claim_id="first",
    limit=10,
    lease_ttl_ms=10_000,
)


def asks(claim_id: str, **options: Any) -> ClaimRequest:
    return structs.replace(REQUEST, claim_id=claim_id, **options)


@pytest.fixture
def known() -> Near:
    """After a look at everything that left nothing."""
    known = Near()
    assert known.only(REQUEST) is None
    known.looked(REQUEST, nothing_left=True)
    return known


def test_the_one_that_rang_is_asked_alone(known: Near):
    known.heard(7)
    assert known.only(asks("second")) == 7
    known.heard(3)
    assert known.only(asks("third")) == 3


def test_all_are_asked_if_nobody_rang_or_several_did(known: Near):
    assert known.only(asks("second")) is None
    known.looked(REQUEST, nothing_left=True)
    known.heard(7)
    known.heard(3)
    assert known.only(asks("third")) is None


def test_all_are_asked_after_a_ring_for_all(known: Near):
    known.heard(7)
    known.heard(None)
    assert known.only(asks("second")) is None


def test_all_are_asked_if_something_was_left(known: Near):
    known.looked(REQUEST, nothing_left=False)
    known.heard(7)
    assert known.only(asks("second")) is None


def test_all_are_asked_after_a_claim_that_may_have_left_some(known: Near):
    known.heard(7)
    assert known.only(asks("second")) == 7
    known.left_some()
    known.heard(7)
    assert known.only(asks("third")) is None


def test_all_are_asked_by_a_claim_that_is_repeated(known: Near):
    """It may have taken some elsewhere, before its reply was lost."""
    known.heard(7)
    assert known.only(asks("second")) == 7
    known.heard(7)
    assert known.only(asks("second")) is None


@pytest.mark.parametrize("other", [{"namespace": "n"}, {"lanes": ("l",)}, {"serves": frozenset()}, {"suspects": 0}])
def test_all_are_asked_by_who_asks_for_something_else(known: Near, other: dict[str, Any]):
    known.heard(7)
    assert known.only(asks("second", **other)) is None


def test_all_are_asked_now_and_then(known: Near, monkeypatch: pytest.MonkeyPatch):
    """Whatever rings: what nobody rang for is found, too."""
    later = near.time.monotonic() + near.OFTEN_S
    monkeypatch.setattr(near.time, "monotonic", lambda: later)
    known.heard(7)
    assert known.only(asks("second")) is None


# ---- what is left ----------------------------------------------------------------------------------------------------


def lines() -> list[Line]:
    return [Line(b"b", 1, 50), Line(b"a", 0, 70)]


@pytest.fixture
def left() -> Near:
    """After a look at everything that left much, where all bells are heard."""
    left = Near()
    left.bells = 16
    assert left.only(REQUEST) is None
    left.looked(REQUEST, nothing_left=False)
    left.left(lines())
    return left


def test_a_claim_goes_on_where_much_was_left(left: Near):
    assert left.recalled(asks("second"), 16) == lines()


def test_who_went_on_and_did_not_say_what_is_left_leaves_nothing_known(left: Near):
    left.recalled(asks("second"), 16)
    assert left.recalled(asks("third"), 16) == []


def test_all_are_asked_after_any_ring_however_much_was_left(left: Near):
    left.heard(7)
    assert left.recalled(asks("second"), 16) == []


def test_all_are_asked_however_much_was_left_where_a_bell_is_not_heard(left: Near):
    left.bells = 15
    assert left.recalled(asks("second"), 16) == []


def test_all_are_asked_by_a_claim_that_is_repeated_however_much_was_left(left: Near):
    went_on = left.recalled(asks("second"), 16)
    left.left(went_on)
    assert left.recalled(asks("second"), 16) == []
    assert left.only(asks("second")) is None


@pytest.mark.parametrize("other", [{"namespace": "n"}, {"lanes": ("l",)}, {"serves": frozenset()}, {"suspects": 0}])
def test_what_is_left_is_for_who_asks_the_same(left: Near, other: dict[str, Any]):
    assert left.recalled(asks("second", **other), 16) == []


def test_what_is_left_is_known_for_a_little_while(left: Near, monkeypatch: pytest.MonkeyPatch):
    later = near.time.monotonic() + near.FRESH_S
    monkeypatch.setattr(near.time, "monotonic", lambda: later)
    assert left.recalled(asks("second"), 16) == []
