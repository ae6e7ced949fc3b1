"""Retry arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import limits
from outlast.machine.backoff import delay_ms
from outlast.model.retry import RetryPolicy

DOUBLING = RetryPolicy(max_attempts=10, initial_ms=100, backoff=2.0, max_delay_ms=1_000, jitter=0.0)


@pytest.mark.parametrize("failures, expected", [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (6, 1_000)])
def test_delays_double_up_to_their_cap(failures: int, expected: int):
    assert delay_ms(DOUBLING, failures, 0.9) == expected


def test_a_backoff_of_one_stays_where_it_is():
    policy = RetryPolicy(max_attempts=10, initial_ms=100, backoff=1.0, max_delay_ms=1_000, jitter=0.0)
    assert delay_ms(policy, 9, 0.0) == 100


def test_no_initial_delay_is_no_delay_ever():
    assert delay_ms(RetryPolicy(max_attempts=10, initial_ms=0), 9, 0.0) == 0


def test_an_initial_delay_above_the_cap_is_the_cap():
    assert delay_ms(RetryPolicy(initial_ms=9_000, max_delay_ms=1_000, jitter=0.0), 1, 0.0) == 1_000


@pytest.mark.parametrize("jitter, expected", [(0.0, 100), (0.5, 88), (0.999, 75)])
def test_jitter_takes_away_at_most_its_share(jitter: float, expected: int):
    assert delay_ms(RetryPolicy(initial_ms=100, jitter=0.25), 1, jitter) == expected


def test_ten_thousand_failures_do_not_overflow():
    policy = RetryPolicy(max_attempts=limits.ATTEMPTS_MAX, backoff=1_000.0, max_delay_ms=limits.DURATION_MAX_MS)
    assert delay_ms(policy, limits.ATTEMPTS_MAX, 0.0) == limits.DURATION_MAX_MS


@given(
    initial_ms=st.integers(0, limits.DURATION_MAX_MS),
    backoff=st.floats(1.0, 1_000.0),
    max_delay_ms=st.integers(0, limits.DURATION_MAX_MS),
    share=st.floats(0.0, 1.0),
    failures=st.integers(1, 200),
    jitter=st.floats(0.0, 1.0, exclude_max=True),
)
def test_a_delay_is_never_negative_and_never_above_the_cap(
    initial_ms: int, backoff: float, max_delay_ms: int, share: float, failures: int, jitter: float
):
    policy = RetryPolicy(initial_ms=initial_ms, backoff=backoff, max_delay_ms=max_delay_ms, jitter=share)
    assert 0 <= delay_ms(policy, failures, jitter) <= max_delay_ms
