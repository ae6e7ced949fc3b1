"""Retry arithmetic: pure numbers."""

from __future__ import annotations

from outlast.model.retry import RetryPolicy


def delay_ms(policy: RetryPolicy, failures: int, jitter: float) -> int:
    """How long to wait after the `failures`-th failure. `jitter` is a random number in [0, 1).

    Grows by `backoff` up to `max_delay_ms`; the policy's share of it is random, downwards, so the cap holds.
    """
    # Compare exponents before powers: 2.0 ** 5000 does not fit in a float.
    grown = float(policy.initial_ms)
    for _ in range(failures - 1):
        if grown >= policy.max_delay_ms:
            break
        grown *= policy.backoff
    return round(min(grown, policy.max_delay_ms) * (1.0 - policy.jitter * jitter))
