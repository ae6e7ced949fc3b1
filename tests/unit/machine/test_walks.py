"""Random walks: facts from everybody, decided upon old views, at any time. The guards must keep the world sound.

A step of a walk looks at one of the last few views, says something about it, and commits the answer against what is
there now. That is a race of two writers, and the later one must be refused by its guards, or do exactly what would be
decided now.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.machine import facts
from outlast.machine.changes import Changes, Insert, Refusal, View, execution_after
from outlast.machine.decide import decide
from outlast.machine.invariants import check
from outlast.machine.transitions import allowed
from outlast.model.attempt import Attempt
from outlast.model.completion import Completion, completion_key
from outlast.model.execution import Execution, ParentClose
from outlast.model.record import Key
from outlast.model.retry import RetryPolicy
from outlast.model.session import Session, session_key
from outlast.model.status import Status
from tests.unit.machine.build import NOW, PARTITION, say
from tests.unit.machine.reach import SAID
from tests.unit.machine.world import World

LEASE_TTL_MS = 10_000
OLDEST_VIEW = 4
CLAIM: tuple[type[facts.Fact], dict[str, Any]] = (facts.Claim, {})

POLICIES = st.fixed_dictionaries(
    {
        "retry": st.sampled_from(
            [RetryPolicy(), RetryPolicy(max_attempts=3, initial_ms=0), RetryPolicy(max_attempts=3)]
        ),
        "crash_cap": st.integers(1, 3),
        "timeout_ms": st.sampled_from([None, 3_000]),
        "deadline_ms": st.sampled_from([None, None, 40_000]),
        "delay_ms": st.sampled_from([0, 0, 2_000]),
        "retention_ms": st.sampled_from([None, 5_000]),
        "parent": st.sampled_from([None, "cart-1"]),
    }
)


class Walk:
    def __init__(self, policy: dict[str, Any]) -> None:
        self.world = World(NOW)
        self.policy = policy
        self.views: list[Execution | None] = [None]
        self.completions: Counter[Key] = Counter()
        self.continued: set[int] = set()
        """The generations that went on as new: they have not ended."""
        self.first_life = 1
        self.said = 0

    def step(self, choice: tuple[type[facts.Fact], dict[str, Any]], lag: int, wait_ms: int, worker: str) -> None:
        self.world.now += wait_ms
        seen = self.views[max(0, len(self.views) - 1 - lag)]
        fact = self.fact(choice, seen, worker)
        answer = decide(View(PARTITION, seen), fact, self.world.now)
        if isinstance(answer, Refusal):
            return
        before = self.world.execution
        if not self.world.commit(answer):
            assert self.world.execution is before, "a refused change leaves nothing behind"
            return
        self.completions.update(
            w.record.key for w in answer.writes if isinstance(w, Insert) and isinstance(w.record, Completion)
        )
        after = self.world.execution
        assert after is not None
        self.agrees(View(PARTITION, before), fact, answer, after)
        self.sound(before, fact, after)
        self.views.append(after)

    def fact(self, choice: tuple[type[facts.Fact], dict[str, Any]], seen: Execution | None, worker: str) -> Any:
        kind, given = choice
        self.said += 1
        usual: dict[str, Any] = {"change_id": f"change-{self.said}"}
        if seen is None:
            usual |= {name: 0 for name in ("epoch", "inbox") if name in kind.__struct_fields__}
        if kind is facts.Start:
            usual |= {**self.policy, "delay_ms": 0 if given.get("after_dependencies") else self.policy["delay_ms"]}
        if kind is facts.Start and given.get("worker"):
            usual |= {"delay_ms": 0}
            self.renew(given["worker"])
        if kind is facts.Claim:
            usual["worker"] = worker
            self.renew(worker)
        if kind is facts.StepRecorded:
            usual["occurrence"] = self.said
        if "wake_at" in given:
            given = {**given, "wake_at": self.world.now + 1_500}
        return say(kind, seen, **{**usual, **given})

    def renew(self, worker: str) -> None:
        session = Session(partition=PARTITION, worker=worker, expires_at=self.world.now + LEASE_TTL_MS, started_at=NOW)
        self.world.records[session.key] = session

    # ---- what must hold after every commit ----

    def agrees(self, view: View, fact: Any, answer: Changes, after: Execution) -> None:
        """A change that its guards let pass is the one that would be decided now, however old the view was."""
        assert execution_after(view, answer, self.world.now) == after
        before = None if view.execution is None else view.execution.status
        assert after.status in allowed(type(fact), before)
        fresh = decide(view, fact, self.world.now)
        assert isinstance(fresh, Changes), fresh
        if isinstance(fact, facts.StepRecorded):
            assert execution_after(view, fresh, self.world.now) == after  # An undo may be marked twice.
        else:
            assert fresh.writes == answer.writes
        if isinstance(fact, facts.Suspend):
            assert fact.inbox == after.inbox, "nothing is unheard: no wake-up is lost"

    def sound(self, before: Execution | None, fact: facts.Fact, after: Execution) -> None:
        check(after)
        records = self.world.records.values()
        if before is not None:
            assert after.epoch == before.epoch + (type(fact) is facts.Claim)
            assert before.inbox <= after.inbox <= before.inbox + 1
            ended = before.status.terminal
            reopened = ended and type(fact) is not facts.Supersede
            assert not reopened or isinstance(fact, facts.Start | facts.Retry), "what has ended stays ended"
            continued = type(fact) is facts.Continue and not after.status.terminal
            if continued:
                self.continued.add(before.generation)
            assert after.generation == before.generation + (reopened or continued)
            if before.unwinds and not ended and after.status is Status.CANCELLED:
                assert type(fact) is facts.Cancelled, "no undo is lost"
            if before.held and not after.held and not after.status.terminal:
                assert isinstance(fact, facts.Release | facts.CancelRequested), "no hold is forgotten"
        # One completion for each life that has ended, in the same commit.
        lives = after.generation if after.status.terminal else after.generation - 1
        if before is None:
            self.first_life = after.generation  # a fork's is its second: the journal is of the first
        ends = [
            completion_key("shop", "order-42", life)
            for life in range(self.first_life, lives + 1)
            if life not in self.continued
        ]
        assert self.completions == Counter(ends)
        if after.status.terminal:
            completion = self.world.records[ends[-1]]
            assert isinstance(completion, Completion)
            assert (completion.status, completion.finished_at) == (after.status, after.finished_at)
        else:
            assert after.attempt == after.failures + after.crashes + 1
        # The attempt that is open, and no other.
        open_ones = [a for a in records if isinstance(a, Attempt) and a.ended_at is None]
        assert len(open_ones) == after.attempt_open
        for attempt in open_ones:
            assert (attempt.generation, attempt.number) == (after.generation, after.attempt)
            assert attempt.epoch == after.epoch
        assert all((a.outcome is None) == (a.ended_at is None) for a in records if isinstance(a, Attempt))


STEPS = st.tuples(
    st.booleans(),
    st.integers(0, 10_000),
    st.sampled_from([0, 0, 1, 2, OLDEST_VIEW]),
    st.sampled_from([0, 1, 1_000, 5_000, 15_000]),
    st.sampled_from(["worker-1", "worker-2"]),
)


@settings(max_examples=400, deadline=None)
@given(policy=POLICIES, steps=st.lists(STEPS, min_size=5, max_size=60))
def test_whatever_is_said_in_whatever_order_the_world_stays_sound(policy: dict[str, Any], steps: list[Any]):
    walk = Walk(policy)
    for anything, number, lag, wait_ms, worker in steps:
        seen = walk.views[max(0, len(walk.views) - 1 - lag)]
        status = None if seen is None else seen.status
        # Mostly what can happen there, so that walks lead somewhere; sometimes anything at all.
        can_happen = [choice for choice in SAID if anything or allowed(choice[0], status)]
        if status is Status.READY:
            can_happen += [CLAIM] * len(can_happen)
        walk.step(can_happen[number % len(can_happen)], lag, wait_ms, worker)


# Races by name: after `story`, `late` is decided upon a view that is `lag` commits old, and must be refused.
START, LOST, HOLD = (facts.Start, {}), (facts.LeaseLost, {}), (facts.Hold, {})
SUSPEND, SENT, CANCEL = (facts.Suspend, {}), (facts.EventSent, {}), (facts.CancelRequested, {})
UNDO = (facts.StepRecorded, {"unwinds": True})
ADOPT = (facts.StepRecorded, {"adopts": ("order-42/ship", ParentClose.CANCEL)})
RACES: dict[str, tuple[list[Any], Any, int]] = {
    "a zombie's step": ([START, CLAIM, LOST, CLAIM], (facts.StepRecorded, {}), 2),
    "a zombie's completion": ([START, CLAIM, LOST, CLAIM], (facts.Complete, {}), 2),
    "a zombie's failure": ([START, CLAIM, LOST, CLAIM], (facts.Fail, {}), 2),
    "a second claim": ([START, CLAIM], CLAIM, 1),
    "a claim of what was held meanwhile": ([START, HOLD], CLAIM, 1),
    "a claim of what was cancelled meanwhile": ([START, CANCEL], CLAIM, 1),
    "a suspension that has not heard an event": ([START, CLAIM, SENT], SUSPEND, 1),
    "a suspension that has not heard a cancel": ([START, CLAIM, CANCEL], SUSPEND, 1),
    "a retry that has not heard a cancel": ([START, CLAIM, CANCEL], (facts.Fail, {}), 1),
    "a takeover that has not heard a cancel": ([START, CLAIM, CANCEL], LOST, 1),
    "a wake-up into a hold it has not heard of": ([START, CLAIM, SUSPEND, HOLD], SENT, 1),
    "an event for what has just suspended": ([START, CLAIM, SUSPEND], SENT, 1),
    "a cancel of what has just completed": ([START, CLAIM, (facts.Complete, {})], CANCEL, 1),
    "a takeover that ends what must be undone": ([START, CLAIM, CANCEL, UNDO], LOST, 1),
    "a last takeover that ends what must be undone": ([START, CLAIM, UNDO], LOST, 1),
    "a hand-back that ends what must be undone": ([START, CLAIM, CANCEL, UNDO], (facts.HandBack, {}), 1),
    "an end that leaves a child behind": ([START, CLAIM, ADOPT], (facts.Complete, {}), 1),
    "a takeover that leaves a child behind": ([START, CLAIM, CANCEL, ADOPT], LOST, 1),
    "a new generation that has not heard a cancel": ([START, CLAIM, CANCEL], (facts.Continue, {}), 1),
}


@pytest.mark.parametrize("name", RACES)
def test_the_later_of_two_writers_is_refused_and_looks_again(name: str):
    story, late, lag = RACES[name]
    policy = {"retry": RetryPolicy(max_attempts=3), "crash_cap": 1 if "last" in name else 5, "delay_ms": 0}
    walk = Walk(policy)
    for choice in story:
        walk.step(choice, 0, LEASE_TTL_MS, "worker-1")
    assert len(walk.views) == 1 + len(story), "the story happened"
    seen = walk.views[-1 - lag]
    assert isinstance(decide(View(PARTITION, seen), walk.fact(late, seen, "worker-2"), NOW), Changes), "it was possible"
    walk.world.records.pop(session_key(PARTITION, "worker-1"), None)  # A takeover is due: nothing else may stop it.
    walk.step(late, lag, 0, "worker-1")
    assert len(walk.views) == 1 + len(story), "refused"
