"""The differential test's seed: all stores get the same random operations in a run, in whatever process they are tried.

`OUTLAST_STATEFUL_SEED` repeats those of a run that printed it; `OUTLAST_STATEFUL_EXAMPLES=2000` makes it a long one.
"""

from __future__ import annotations

import os
import random
from hashlib import sha256

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from outlast.testing.differential import StoreMachine

STEPS = 50


def _seed() -> int:
    given = os.environ.get("OUTLAST_STATEFUL_SEED")
    if given:
        return int(given)
    together = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # the processes of one run share it
    return int(sha256(together.encode()).hexdigest()[:8], 16) if together else random.SystemRandom().randrange(2**32)


SEED = _seed()


def agree(machine: type[StoreMachine], *, examples: int) -> None:
    """Run it: each example begins with an empty store, and has up to fifty operations."""
    examples = int(os.environ.get("OUTLAST_STATEFUL_EXAMPLES", examples))
    print(f"OUTLAST_STATEFUL_SEED={SEED}: {machine.__name__}, {examples} examples of up to {STEPS} operations")
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=False,
        database=None,
        print_blob=True,
        # An example opens a store and compares whole states after each of its steps: slow by design, not by accident.
        suppress_health_check=[HealthCheck.too_slow],
    )
    run_state_machine_as_test(seed(SEED)(machine), settings=chosen)
