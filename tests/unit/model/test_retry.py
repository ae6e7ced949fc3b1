"""What a retry policy may be."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from outlast import limits
from outlast.errors import InvalidInput, LimitExceeded
from outlast.model.retry import NO_RETRY, RetryPolicy


def test_by_default_there_is_one_attempt():
    """Design: default retry of a workflow: none."""
    assert NO_RETRY == RetryPolicy()
    assert NO_RETRY.max_attempts == 1


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy(),
        RetryPolicy(max_attempts=limits.ATTEMPTS_MAX, initial_ms=0, backoff=1.0, max_delay_ms=0, jitter=0.0),
        RetryPolicy(max_attempts=2, initial_ms=limits.DURATION_MAX_MS, max_delay_ms=limits.DURATION_MAX_MS, jitter=1.0),
        RetryPolicy(backoff=1_000.0),
    ],
)
def test_a_policy_is_kept_as_text_and_read_back(policy: RetryPolicy):
    assert RetryPolicy.parse(policy.encode()) == policy


@pytest.mark.parametrize(
    "given",
    [
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"initial_ms": -1},
        {"max_delay_ms": -1},
        {"backoff": 0.99},
        {"backoff": 1_000.1},
        {"backoff": math.nan},
        {"backoff": math.inf},
        {"jitter": -0.01},
        {"jitter": 1.01},
        {"jitter": math.nan},
    ],
    ids=str,
)
def test_nonsense_is_refused(given: dict[str, Any]):
    with pytest.raises(InvalidInput):
        RetryPolicy(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"max_attempts": limits.ATTEMPTS_MAX + 1},
        {"initial_ms": limits.DURATION_MAX_MS + 1},
        {"max_delay_ms": limits.DURATION_MAX_MS + 1},
        {"initial_ms": 10**400},
    ],
    ids=lambda given: next(iter(given)),
)
def test_past_a_limit_is_refused(given: dict[str, Any]):
    with pytest.raises(LimitExceeded):
        RetryPolicy(**given)


def test_a_stored_policy_is_checked_when_it_is_read():
    with pytest.raises(msgspec.ValidationError, match="max_attempts"):
        RetryPolicy.parse('{"max_attempts": 0}')
