"""Durations as people write them."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import limits
from outlast.errors import InvalidDuration, InvalidInput
from outlast.model.duration import to_ms


@pytest.mark.parametrize(
    "written, ms",
    [
        ("200ms", 200),
        ("30s", 30_000),
        ("10m", 600_000),
        ("1h", 3_600_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("1h30m", 5_400_000),
        ("1d2h3m4s5ms", 93_784_005),
        ("0s", 0),
        ("1.5s", 1_500),
        ("0.5ms", 1),
        (0, 0),
        (2, 2_000),
        (2.5, 2_500),
        (0.0001, 1),
        (timedelta(seconds=1), 1_000),
        (timedelta(days=2, milliseconds=7), 172_800_007),
        (timedelta(microseconds=1), 1),
        (timedelta(0), 0),
        (limits.DURATION_MAX_MS / 1_000, limits.DURATION_MAX_MS),
    ],
)
def test_what_people_write_is_understood(written: object, ms: int):
    assert to_ms(written) == ms


@pytest.mark.parametrize("written, ms", [("1.1h", 3_960_000), ("0.07h", 252_000), ("1.1d", 95_040_000), (2.007, 2_007)])
def test_a_fraction_gains_no_millisecond_from_binary_rounding(written: object, ms: int):
    assert to_ms(written) == ms


@given(st.integers(0, limits.DURATION_MAX_MS))
def test_every_whole_number_of_milliseconds_is_kept(ms: int):
    assert to_ms(f"{ms}ms") == ms
    assert to_ms(timedelta(milliseconds=ms)) == ms


@given(st.integers(0, 10**15))
def test_a_fraction_of_a_millisecond_counts_as_a_whole_one(microseconds: int):
    assert to_ms(timedelta(microseconds=microseconds)) == math.ceil(Fraction(microseconds, 1_000))


@pytest.mark.parametrize("negative", [-1, -0.001, timedelta(seconds=-1), -math.inf])
def test_time_does_not_run_backwards(negative: object):
    with pytest.raises(InvalidDuration, match="negative"):
        to_ms(negative)


def test_not_a_number_is_not_a_duration():
    with pytest.raises(InvalidDuration, match="not a number"):
        to_ms(math.nan)


@pytest.mark.parametrize(
    "garbage",
    ["", " ", "abc", "10", "1 h", "1h ", "-5s", "+5s", "1h-30m", "5y", "s", "1.s", ".5s", "1e3s", "1h\n", "5S", "1,5s"],
)
def test_garbage_is_refused_with_what_to_write_instead(garbage: str):
    with pytest.raises(InvalidDuration, match="1h30m"):
        to_ms(garbage)


@pytest.mark.parametrize("thing", [True, False, None, [], {}, b"1s", 1j, object])
def test_other_things_are_refused(thing: object):
    with pytest.raises(InvalidDuration, match="is not a duration"):
        to_ms(thing)


@pytest.mark.parametrize(
    "long",
    ["36601d", "6000w", timedelta.max, math.inf, 10**12, 10**400, "9" * 400 + "s", limits.DURATION_MAX_MS / 1_000 + 1],
)
def test_over_a_century_is_refused(long: object):
    with pytest.raises(InvalidDuration, match="over a hundred years"):
        to_ms(long)


def test_the_error_names_the_option_and_is_bad_input():
    with pytest.raises(InvalidInput, match=r"^lease_ttl: 'soon' is not"):
        to_ms("soon", what="lease_ttl")
