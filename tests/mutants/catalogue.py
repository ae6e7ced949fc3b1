"""The mutants: one broken rule each, and the tests that must notice it.

A mutant replaces one piece of text, which must be in its file exactly once, by another. It breaks one rule or
settlement of the design and leaves all else working. Every test that it names must fail on it: name few, quick ones
that show the behaviour.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("src/outlast")

CONFORMANCE = "tests/conformance/test_sqlite.py::Test"
RULE = "tests/conformance/test_rules.py::TestRules::test_rule_"
SETTLEMENT = "tests/conformance/test_settlements.py::TestSettlements::test_settlement_"
MACHINE = "tests/unit/machine/test_"
FENCES = "tests/integration/sqlite/test_fences.py::test_"
GROUP_COMMIT = "tests/unit/runtime/test_group_commit.py::test_"
ENGINE = "tests/unit/runtime/test_engine.py::test_"
ATTEMPT = "tests/unit/runtime/test_attempt.py::test_"
REPLAY = "tests/acceptance/test_replay.py::test_"
WAITING = "tests/acceptance/test_waits.py::test_"
QUERIES = "tests/acceptance/test_queries.py::test_"
FAST = "tests/acceptance/test_fast_path.py::test_"
ENTRIES = "tests/conformance/test_valkey_entries.py::TestInShort::test_"

CONTROL = (
    f"{CONFORMANCE}Commit::test_a_start_and_what_follows_may_share_a_batch",
    f"{CONFORMANCE}Life::test_what_was_committed_is_there_after_reopening",
)
"""What must pass under every mutant: an ordinary life of an execution."""


class DoesNotApply(Exception):
    """The code has changed, and the mutant must follow it."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    name: str
    breaks: str
    what: str
    file: str
    old: str
    new: str
    noticed_by: tuple[str, ...]

    @property
    def module(self) -> str | None:
        """The dotted name of what it changes; None of SQL."""
        path = Path("outlast") / self.file
        return ".".join(path.with_suffix("").parts) if path.suffix == ".py" else None

    def applied_to(self, text: str) -> str:
        """The file's text with its rule broken."""
        found = text.count(self.old)
        if found != 1:
            raise DoesNotApply(f"{self.file} has its text {found} times, not once:\n{self.old}")
        mutated = text.replace(self.old, self.new)
        if self.module is not None:
            try:
                ast.parse(mutated)
            except SyntaxError as error:
                raise DoesNotApply(f"{self.file} would not be Python any more: {error}") from error
        return mutated


# ---- the machine: guards ------------------------------------------------------------------------------------------

_GUARDS = (
    Mutant(
        name="wait-met-after-its-timeout",
        breaks="rule 3",
        what="an event ends a wait whose time is over, if only nobody has said so yet",
        file="machine/decide_outside.py",
        old='        guards.append(TimeAhead(execution.key, "wake_at"))\n',
        new="        pass\n",
        noticed_by=(
            f"{MACHINE}ended_waits.py::test_an_event_meets_a_wait_with_a_timeout_only_before_that_by_the_stores_clock",
        ),
    ),
    Mutant(
        name="any-event-ends-a-wait",
        breaks="rule 3",
        what="an event of another name is taken for the one that the code waits for",
        file="machine/guards_and_writes.py",
        old="    if awaited.op not in ops or name not in (None, awaited.name):\n",
        new="    if awaited.op not in ops:\n",
        noticed_by=(f"{MACHINE}ended_waits.py::test_an_event_of_another_name_stays",),
    ),
    Mutant(
        name="epochs-go-up-by-one",
        breaks="rule 1",
        what="a claim that a server lost, and gives again, has the same epoch",
        file="store/sqlite/queries/claim_take.sql",
        old="epoch = epoch + ?5,",
        new="epoch = epoch + 1 + 0 * ?5,",
        noticed_by=(f"{CONFORMANCE}ClaimRecord::test_with_a_leap_of_the_epoch",),
    ),
    Mutant(
        name="epoch-unchecked",
        breaks="rule 1",
        what="a holder's writes are fenced by the status alone",
        file="machine/guards_and_writes.py",
        old='return Matches(_key(namespace, execution_id), {"status": _ACTIVE, "epoch": epoch})',
        new='return Matches(_key(namespace, execution_id), {"status": _ACTIVE})',
        noticed_by=(
            f"{RULE}01_every_write_of_a_worker_is_fenced",
            f"{CONFORMANCE}Zombie::test_no_write_of_a_zombie_changes_anything",
        ),
    ),
    Mutant(
        name="status-unchecked",
        breaks="rule 1",
        what="a holder's writes are fenced by the epoch alone, which a suspended execution still has",
        file="machine/guards_and_writes.py",
        old='return Matches(_key(namespace, execution_id), {"status": _ACTIVE, "epoch": epoch})',
        new='return Matches(_key(namespace, execution_id), {"epoch": epoch})',
        noticed_by=(f"{CONFORMANCE}Zombie::test_no_write_of_a_zombie_changes_anything",),
    ),
    Mutant(
        name="epoch-of-a-step-unchecked",
        breaks="rule 1",
        what="the entry of a step is fenced by the status alone",
        file="machine/decide_holder.py",
        old="guards=(fence,),\n            writes=(Insert(entry),),",
        new='guards=(Matches(fence.key, {"status": Status.ACTIVE}),),\n            writes=(Insert(entry),),',
        noticed_by=(
            f"{RULE}01_every_write_of_a_worker_is_fenced",
            f"{CONFORMANCE}Zombie::test_no_write_of_a_zombie_changes_anything",
        ),
    ),
    Mutant(
        name="status-of-a-step-unchecked",
        breaks="rule 1",
        what="the entry of a step is fenced by the epoch alone, which a suspended execution still has",
        file="machine/decide_holder.py",
        old="guards=(fence,),\n            writes=(Insert(entry),),",
        new='guards=(Matches(fence.key, {"epoch": fact.epoch}),),\n            writes=(Insert(entry),),',
        noticed_by=(f"{CONFORMANCE}Zombie::test_no_write_of_a_zombie_changes_anything",),
    ),
    Mutant(
        name="known-fence-of-another-epoch",
        breaks="rule 1",
        what="the writer takes a fence that it knows for good, whatever its epoch",
        file="store/sqlite/gathering.py",
        old="if known is None or fence.fields != known.held:",
        new="if known is None:",
        noticed_by=(
            f"{RULE}01_every_write_of_a_worker_is_fenced",
            f"{CONFORMANCE}Zombie::test_no_write_of_a_zombie_changes_anything",
        ),
    ),
    Mutant(
        name="gathered-behind-a-shut-gate",
        breaks="rule 1",
        what="a start is gathered with others and claimed although its lane is paused, or its worker's session is gone",
        file="store/sqlite/gathering.py",
        old="return self._gates.get(guard, 0) > self._now or",
        new="return self._gates.get(guard) is not None or",
        noticed_by=(
            f"{FENCES}a_gate_that_was_open_is_shut_by_whoever_pauses_the_lane",
            f"{FENCES}a_session_that_was_alive_lapses_with_time_and_lives_again_when_renewed",
        ),
    ),
    Mutant(
        name="gate-remembered-past-a-write",
        breaks="rule 1",
        what="the writer trusts a gate that it knew before it wrote the lane or the session itself",
        file="store/sqlite/fences.py",
        old="        elif key.kind in GATES:\n            self.gates.clear()\n",
        new="",
        noticed_by=(
            f"{FENCES}a_gate_that_was_open_is_shut_in_the_same_transaction",
            f"{FENCES}a_session_that_was_alive_lapses_with_time_and_lives_again_when_renewed",
        ),
    ),
    Mutant(
        name="gathered-end-leaves-its-fence",
        breaks="rule 1",
        what="the writer still takes for held what it has gathered the end of",
        file="store/sqlite/gathering.py",
        old="        self._fences.written(fence.key)\n        return applied(known.inbox)\n",
        new="        return applied(known.inbox)\n",
        noticed_by=(f"{CONFORMANCE}Batch::test_a_batch_is_as_its_changes_one_after_the_other",),
    ),
    Mutant(
        name="flow-remembered-past-a-write",
        breaks="rule 1",
        what="the writer takes a flow for open, or a member for uncounted, that it has written since",
        file="store/sqlite/fences.py",
        old="        self.rows.pop(key, None)\n",
        new="",
        noticed_by=(
            "tests/integration/sqlite/test_fences_of_flows.py::test_a_flow_that_was_stopped_here_is_not_taken_for_open",
        ),
    ),
    Mutant(
        name="inbox-guard-skipped",
        breaks="settlement 2",
        what="a suspension is not refused by what came from outside meanwhile: a lost wake-up",
        file="machine/guards_and_writes.py",
        old="""            "inbox": inbox,
            "has_children": execution.has_children,
""",
        new="""            "has_children": execution.has_children,
""",
        noticed_by=(f"{SETTLEMENT}02_suspend_is_refused_if_something_came",),
    ),
    Mutant(
        name="inbox-not-counted",
        breaks="settlement 2",
        what="an event leaves its record and rings no bell on the doorstep",
        file="machine/guards_and_writes.py",
        old='return [Insert(event), Add(execution.key, "inbox", 1)]',
        new="return [Insert(event)]",
        noticed_by=(
            f"{SETTLEMENT}02_suspend_is_refused_if_something_came",
            f"{SETTLEMENT}02_a_step_needs_no_read_and_its_verdict_tells_of_a_cancel",
        ),
    ),
    Mutant(
        name="completion-heeds-inbox",
        breaks="settlement 2",
        what="a completion is refused by a cancel that was not yet observed",
        file="machine/decide_holder.py",
        old="    fence = held_to_the_end(execution)\n",
        new="    fence = held_and_heard(execution, execution.inbox)\n",
        noticed_by=(f"{SETTLEMENT}02_a_completion_beats_a_cancel_not_yet_observed",),
    ),
    Mutant(
        name="crashes-counted-since-the-start",
        breaks="rule 2",
        what="a recorded step does not reset the counter of crashes since the last progress",
        file="machine/decide_holder.py",
        old='        fields["crashes_since_progress"] = 0\n    if fact.adopts',
        new="        pass\n    if fact.adopts",
        noticed_by=(
            "tests/unit/machine/test_crashes.py::test_a_step_forgives_the_crashes_before_it",
            f"{CONFORMANCE}Reconciler::test_crashes_with_progress_between_them_do_not_end_it",
        ),
    ),
    Mutant(
        name="progress-missed-by-a-takeover",
        breaks="settlement 4",
        what="a crash counts, although a step was recorded after it was decided upon",
        file="machine/decide_clock.py",
        old="if crashes else ()\n\n\ndef lease_lost",
        new="if crashes < 0 else ()\n\n\ndef lease_lost",
        noticed_by=(
            "tests/unit/machine/test_crashes.py::test_a_crash_is_decided_anew_if_a_step_was_recorded_meanwhile",
            f"{CONFORMANCE}Reconciler::test_a_crash_that_was_decided_before_a_step_is_refused_after_it",
        ),
    ),
    Mutant(
        name="quarantine-lifted-by-a-step",
        breaks="rule 2",
        what="what records something in each attempt and kills its process is never a suspect",
        file="machine/decide_holder.py",
        old="crashes = execution.crashes_since_suspension + int(crashed)",
        new="crashes = execution.crashes_since_progress + int(crashed)",
        noticed_by=(
            "tests/unit/machine/test_crashes.py::test_what_records_something_in_each_attempt_and_dies_is_a_suspect_all_the_same",
        ),
    ),
    Mutant(
        name="takeover-of-the-living",
        breaks="settlement 4",
        what="a lease can be lost although its session lives",
        file="machine/decide_clock.py",
        old='(GoneOrPast(_session(view, execution), "expires_at"), *_no_progress_since(execution))',
        new="_no_progress_since(execution)",
        noticed_by=(
            f"{CONFORMANCE}Takeover::test_a_takeover_is_refused_if_the_worker_renewed_just_before",
            f"{ENGINE}lease_that_was_renewed_meanwhile_is_not_lost",
        ),
    ),
    Mutant(
        name="timeout-of-the-dead",
        breaks="rule 2",
        what="an attempt whose worker died can time out: a crash is charged to the code",
        file="machine/decide_clock.py",
        old='        TimeAhead(_session(view, execution), "expires_at"),\n',
        new="",
        noticed_by=(
            f"{CONFORMANCE}Timeout::test_a_timeout_needs_a_live_session_and_a_loss_a_lapsed_one",
            f"{ENGINE}timeout_belongs_to_a_worker_that_lives",
        ),
    ),
    Mutant(
        name="wake-before-its-time",
        breaks="settlement 5",
        what="a timer fires when a reconciler says so, whatever the store's clock says",
        file="machine/decide_clock.py",
        old="""    if timed:
        guards.append(TimeReached(key_of(execution), "wake_at"))
""",
        new="",
        noticed_by=(f"{ENGINE}wake_that_is_early_by_the_stores_clock_is_not_due",),
    ),
    Mutant(
        name="event-received-twice",
        breaks="rule 3",
        what="an event that was received can be received again",
        file="machine/decide_holder.py",
        old='        guards.append(Matches(received, {"consumed": False}))\n',
        new="",
        noticed_by=(f"{RULE}03_receiving_an_event_and_going_on_are_one_commit",),
    ),
)

# ---- the machine: transitions -------------------------------------------------------------------------------------

_TRANSITIONS = (
    Mutant(
        name="end-without-completion",
        breaks="rule 3",
        what="the completion is not in the commit of the end",
        file="machine/guards_and_writes.py",
        old="writes: list[Write] = [Patch(key_of(execution), fields), Insert(completion)]",
        new="writes: list[Write] = [Patch(key_of(execution), fields)]",
        noticed_by=(
            f"{RULE}03_an_end_and_its_completion_are_one_commit",
            f"{CONFORMANCE}Completion::test_an_end_is_in_the_feed_with_its_record",
        ),
    ),
    Mutant(
        name="parent-not-told",
        breaks="rule 3",
        what="the word to the parent is not in the commit of the end",
        file="machine/guards_and_writes.py",
        old="    if execution.parent is not None:\n",
        new="    if False:\n",
        noticed_by=(
            f"{RULE}03_an_end_and_its_completion_are_one_commit",
            f"{CONFORMANCE}Reconciler::test_outbox_alone_tells_the_parent_that_its_child_ended",
        ),
    ),
    Mutant(
        name="crash-counted-as-failure",
        breaks="rule 2",
        what="a lost lease uses up an attempt of the user's code, and never the crash cap",
        file="machine/decide_holder.py",
        old="counted = next_attempt(execution, crashed=crashed)",
        new="counted = next_attempt(execution, crashed=False)",
        noticed_by=(
            f"{RULE}02_failures_crashes_and_suspensions_are_counted_apart",
            f"{RULE}02_crashes_have_a_cap_of_their_own",
        ),
    ),
    Mutant(
        name="attempts-reset-by-crash",
        breaks="rule 2",
        what="a lost lease forgets the failures and crashes before it: it is tried for ever",
        file="machine/guards_and_writes.py",
        old="""    return {**counted, "attempt": execution.attempt + 1, "attempt_open": False, "ran_ms": 0}
""",
        new="""    if crashed:
        counted = dict.fromkeys(("failures", *counted), 0)
    attempt = 1 if crashed else execution.attempt + 1
    return {**counted, "attempt": attempt, "attempt_open": False, "ran_ms": 0}
""",
        noticed_by=(
            f"{RULE}02_crashes_have_a_cap_of_their_own",
            f"{MACHINE}leases_and_timeouts.py::test_a_crash_is_counted_apart_from_failures",
            f"{MACHINE}leases_and_timeouts.py::test_failures_do_not_use_up_the_crashes_nor_crashes_the_failures",
        ),
    ),
    Mutant(
        name="cancel-forgotten-at-retry",
        breaks="settlement 2",
        what="an attempt that fails, times out or is lost is tried again although a cancel was requested",
        file="machine/decide_holder.py",
        old="""    if execution.cancel_requested and not execution.unwinds:
        tally""",
        new="""    if execution.cancel_requested and execution.unwinds:
        tally""",
        noticed_by=(
            f"{MACHINE}retries.py::test_a_cancel_wins_at_a_retry",
            f"{MACHINE}leases_and_timeouts.py::test_a_cancel_wins_at_a_lost_lease",
        ),
    ),
    Mutant(
        name="any-event-wakes",
        breaks="rule 3",
        what="an event wakes code that waits for another",
        file="machine/decide_outside.py",
        old="if execution.status is not Status.SUSPENDED or wait not in execution.waits_for:",
        new="if execution.status is not Status.SUSPENDED:",
        noticed_by=(f"{MACHINE}messages.py::test_a_message_that_nobody_waits_for_is_kept",),
    ),
    Mutant(
        name="no-event-wakes",
        breaks="rule 3",
        what="an event does not wake the code that waits for it",
        file="machine/decide_outside.py",
        old="if execution.status is not Status.SUSPENDED or wait not in execution.waits_for:",
        new="if execution.status is not Status.SUSPENDED or wait:",
        noticed_by=(
            f"{RULE}03_an_event_and_the_wake_up_are_one_commit",
            f"{MACHINE}messages.py::test_one_of_several_waits_is_enough",
        ),
    ),
    Mutant(
        name="deferred-overwritten",
        breaks="rule 4",
        what="the last resolution of a deferred wins, not the first",
        file="machine/decide_outside.py",
        old='return [Insert(deferred), Add(execution.key, "inbox", 1)]',
        new="""from outlast.machine.changes import Put

    return [Put(deferred), Add(execution.key, "inbox", 1)]""",
        noticed_by=(
            f"{CONFORMANCE}Race::test_a_deferred_resolved_by_ten_at_once_is_resolved_by_one",
            f"{ENGINE}deferred_that_was_resolved_before_shows_the_first",
        ),
    ),
    Mutant(
        name="hold-ignored-at-wake",
        breaks="rule 8",
        what="what an operator holds becomes ready when its wait or its attempt ends",
        file="machine/guards_and_writes.py",
        old="    held = execution.held if held is None else held\n",
        new="    held = bool(held)\n",
        noticed_by=(
            f"{MACHINE}suspend_and_wake.py::test_a_held_execution_wakes_into_its_hold",
            f"{MACHINE}messages.py::test_a_held_execution_is_woken_into_its_hold",
            f"{MACHINE}leases_and_timeouts.py::test_a_held_execution_loses_its_lease_into_its_hold",
        ),
    ),
    Mutant(
        name="retention-from-creation",
        breaks="rule 5",
        what="retention counts from the start of an execution",
        file="machine/guards_and_writes.py",
        old='fields["purge_at"] = Now(execution.retention_ms)',
        new='fields["purge_at"] = execution.retention_ms + (settled(execution.created_at) or 0)',
        noticed_by=(
            f"{RULE}05_retention_counts_from_the_end",
            f"{CONFORMANCE}Purge::test_retention_counts_from_the_end_to_the_millisecond",
        ),
    ),
    Mutant(
        name="another-end-is-the-same",
        breaks="rule 4",
        what="asking for another end of what has ended is answered as if it were that end",
        file="machine/decide.py",
        old="if _ENDS.get(type(fact)) is status and epoch in (None, execution.epoch):",
        new="if epoch in (None, execution.epoch):",
        noticed_by=(
            f"{RULE}04_terminal_operations_are_idempotent",
            f"{MACHINE}endings.py::test_a_different_end_is_refused_with_what_it_is",
        ),
    ),
    Mutant(
        name="failure-not-superseded",
        breaks="settlement 9",
        what="a retry finds the failure that escaped in its journal, and fails with it again",
        file="machine/decide_holder.py",
        old="        writes += superseded(execution, fact.supersedes)\n",
        new="        pass\n",
        noticed_by=(f"{SETTLEMENT}09_a_retry_supersedes_only_the_failure_that_escaped",),
    ),
    Mutant(
        name="failure-leaves-first",
        breaks="settlement 9",
        what="of many entries that a retry supersedes, the failure leaves ahead of what was given up because of it",
        file="machine/retry_cut.py",
        old="        return 1\n    return 2 if entry.op in BESIDE_CALLS else 3\n",
        new="        return 3\n    return 2 if entry.op in BESIDE_CALLS else 1\n",
        noticed_by=(f"{MACHINE}retry_cut.py::test_what_was_given_up_leaves_first_and_the_first_failure_last",),
    ),
    Mutant(
        name="lives-share-their-epochs",
        breaks="rule 1",
        what="the epochs of every execution begin at zero, also of an id that was purged and started anew",
        file="machine/start_records.py",
        old="        epoch=like.epoch + fact.first_epoch,\n",
        new="",
        noticed_by=(f"{RULE}01_a_zombie_of_a_former_life_is_refused",),
    ),
)

_LIMITS_AND_PLACES = (
    Mutant(
        name="journal-without-limit",
        breaks="rule 7",
        what="a journal grows without bound",
        file="machine/decide_holder.py",
        old="if fact.entries >= limits.JOURNAL_MAX_ENTRIES:",
        new="if fact.entries > 10 * limits.JOURNAL_MAX_ENTRIES:",
        noticed_by=(f"{RULE}07_a_full_journal_is_refused_with_what_to_do",),
    ),
    Mutant(
        name="stuck-without-a-reason",
        breaks="rule 10",
        what="a suspended execution that nothing can wake breaks no invariant",
        file="machine/invariants.py",
        old="    if e.wake_at is None and not e.waits:\n",
        new="    if e.wake_at is None and not e.waits and e.reason is None:\n",
        noticed_by=("tests/conformance/test_rules.py::test_rule_10_what_could_never_wake_breaks_an_invariant",),
    ),
    Mutant(
        name="start-past-the-gates",
        breaks="settlement 7",
        what="a start that claims asks neither the lane nor the session",
        file="machine/decide_start.py",
        old="        guards=gates,\n",
        new="",
        noticed_by=(
            f"{CONFORMANCE}ClaimGate::test_a_start_that_claims_finds_a_paused_lane_shut",
            f"{CONFORMANCE}ClaimGate::test_a_start_that_claims_needs_a_live_session",
        ),
    ),
    Mutant(
        name="family-apart",
        breaks="settlement 8",
        what="a child is placed by its own id, not with its parent",
        file="model/partition.py",
        old='return execution_id.partition("/")[0]',
        new="return execution_id",
        noticed_by=(
            "tests/conformance/test_settlements.py::test_settlement_08_a_family_lives_together_and_placement_is_fixed",
        ),
    ),
)

# ---- the SQLite store ---------------------------------------------------------------------------------------------

_STORE = (
    Mutant(
        name="only-the-first-guard",
        breaks="settlement 1",
        what="of several guards only the first is read",
        file="store/sqlite/commit.py",
        old="        for guard in guards:\n",
        new="        for guard in guards[:1]:\n",
        noticed_by=(f"{CONFORMANCE}Guard::test_all_guards_must_hold_wherever_the_failing_one_stands",),
    ),
    Mutant(
        name="refused-change-half-written",
        breaks="settlement 1",
        what="inserts that stand before a conflicting one stay although the change is refused",
        file="store/sqlite/commit.py",
        old="                    for record in reversed(inserted):\n",
        new="                    for record in inserted[len(inserted) :]:\n",
        noticed_by=(f"{CONFORMANCE}Commit::test_a_conflict_of_the_last_insert_undoes_every_write_before_it",),
    ),
    Mutant(
        name="refused-additions-counted",
        breaks="settlement 3",
        what="the additions of a refused or repeated change are applied",
        file="store/sqlite/commit.py",
        old="        again = any(self._signed_by(key) == changes.id for key in signed_keys(changes))\n",
        new="""        for write in changes.writes:
            if type(write) is Add:
                self._write(write)
        again = any(self._signed_by(key) == changes.id for key in signed_keys(changes))
""",
        noticed_by=(
            f"{CONFORMANCE}Verdict::test_additions_count_once_when_a_change_is_repeated_verbatim",
            f"{CONFORMANCE}Commit::test_a_conflict_of_the_last_insert_undoes_every_write_before_it",
        ),
    ),
    Mutant(
        name="own-record-not-known",
        breaks="settlement 3",
        what="a change whose reply was lost is refused by its own record",
        file="store/sqlite/commit.py",
        old="again = any(self._signed_by(key) == changes.id for key in signed_keys(changes))",
        new="again = False",
        noticed_by=(
            f"{SETTLEMENT}03_refusal_by_ones_own_record_is_success",
            f"{CONFORMANCE}LostReply::test_repeating_the_call_is_as_if_the_reply_had_come",
        ),
    ),
    Mutant(
        name="every-refusal-is-own",
        breaks="settlement 3",
        what="a refusal by somebody else's record is taken for success",
        file="store/sqlite/commit.py",
        old="again = any(self._signed_by(key) == changes.id for key in signed_keys(changes))",
        new="again = True",
        noticed_by=(
            f"{CONFORMANCE}Verdict::test_another_change_with_the_same_writes_is_not_oneself",
            f"{RULE}01_every_write_of_a_worker_is_fenced",
        ),
    ),
    Mutant(
        name="fence-remembered-past-a-stranger",
        breaks="rule 1",
        what="the writer trusts a fence that it knew before another process wrote",
        file="store/sqlite/fences.py",
        old="if connection.data_version() == self._version and len",
        new="if len",
        noticed_by=(f"{FENCES}a_zombie_whose_fence_the_writer_knew_is_refused_when_another_process_took_over",),
    ),
    Mutant(
        name="fence-remembered-past-a-write",
        breaks="rule 1",
        what="the writer trusts a fence that it knew before it wrote the row itself",
        file="store/sqlite/commit.py",
        old="        self._fences.written(key)\n",
        new="",
        noticed_by=(
            f"{FENCES}a_zombie_is_refused_when_the_same_process_took_over",
            f"{FENCES}what_comes_from_outside_shows_in_the_next_verdict",
        ),
    ),
    Mutant(
        name="journal-conflict-unnoticed",
        breaks="settlement 9",
        what="a step whose journal key is taken by another is told that it was recorded",
        file="store/sqlite/gathering.py",
        old="        if self._connection.total_changes() - before != rows_in_all:\n            raise Met\n",
        new="",
        noticed_by=(f"{SETTLEMENT}09_the_journal_is_insert_only_by_its_whole_key",),
    ),
    Mutant(
        name="commit-not-waited-for",
        breaks="settlement 11",
        what="a commit is answered before the disk has it, as if it were a claim",
        file="store/sqlite/connection.py",
        old='LEASES = frozenset({"claim", "renew"})\n',
        new='LEASES = frozenset({"claim", "renew", "commit"})\n',
        noticed_by=("tests/integration/sqlite/test_waiting_for_the_disk.py::test_a_commit_is_waited_for",),
    ),
    Mutant(
        name="repeated-claim-asks-one",
        breaks="settlement 3",
        what="a claim whose reply was lost asks only the partition that rang since, not those where it took something",
        file="store/valkey/near.py",
        old="if anywhere or repeated or not recent",
        new="if anywhere or not recent",
        noticed_by=("tests/unit/valkey/test_near.py::test_all_are_asked_by_a_claim_that_is_repeated",),
    ),
    Mutant(
        name="clock-not-shared",
        breaks="settlement 5",
        what="a process whose clock is behind sets the store's time back",
        file="store/sqlite/connection.py",
        old="now = max(self._clock.now_ms(), stored)",
        new="now = self._clock.now_ms()",
        noticed_by=(
            f"{CONFORMANCE}Clock::test_after_reopening",
            f"{CONFORMANCE}Clock::test_by_another_process_whose_clock_is_behind",
        ),
    ),
    Mutant(
        name="clock-goes-back",
        breaks="settlement 5",
        what="a reader's time follows a clock that is turned back",
        file="store/sqlite/store.py",
        old="self._newest = max(self._newest, self._clock.now_ms())",
        new="self._newest = self._clock.now_ms()",
        noticed_by=(f"{CONFORMANCE}Clock::test_by_a_store_that_only_read_the_time",),
    ),
    Mutant(
        name="claim-keeps-the-epoch",
        breaks="rule 1",
        what="a takeover leaves the fence where it was, so the zombie is the holder still",
        file="store/sqlite/queries/claim_take.sql",
        old="epoch = epoch + ?5",
        new="epoch = max(epoch, 1)",
        noticed_by=(
            f"{CONFORMANCE}Zombie::test_no_write_of_a_zombie_changes_anything",
            f"{CONFORMANCE}ClaimRecord::test_of_one_whose_worker_died",
        ),
    ),
    Mutant(
        name="claim-takes-twice",
        breaks="settlement 3",
        what="a claim that is asked again under its id takes anew",
        file="store/sqlite/claim.py",
        old="    again = [_execution(row) for row in tx.rows_beside(_AGAIN, (request.worker, request.claim_id))]\n",
        new="    again: list[Execution] = []\n",
        noticed_by=(
            f"{SETTLEMENT}03_a_claim_whose_reply_was_lost_is_found_by_its_id",
            f"{CONFORMANCE}ClaimAgain::test_the_same_claim_id_answers_what_it_took",
        ),
    ),
    Mutant(
        name="handed-on-after-a-stop",
        breaks="settlement 7",
        what="an end in a flow that was stopped meanwhile claims what follows",
        file="machine/decide_member.py",
        old='    return Matches(flow_key(namespace, flow_id), {"state": FlowState.OPEN, "revision": revision})\n',
        new='    return Matches(flow_key(namespace, flow_id), {"id": flow_id})\n',
        noticed_by=("tests/acceptance/test_handing_on.py::test_a_stop_that_is_accepted_first_lets_nothing_follow",),
    ),
    Mutant(
        name="paused-lane-claimed",
        breaks="settlement 7",
        what="claim takes from a paused lane",
        file="store/sqlite/claim.py",
        old="if not (paused and paused[0][0]):",
        new="if not (paused and paused[0][0] > 1):",
        noticed_by=(
            f"{SETTLEMENT}07_claim_has_its_gates",
            f"{CONFORMANCE}ClaimGate::test_a_paused_lane_gives_nothing_until_it_is_resumed",
        ),
    ),
    Mutant(
        name="closed-flow-claimed",
        breaks="settlement 7",
        what="claim takes members of a flow that is cancelled or still staging",
        file="store/sqlite/queries/claim_ready.sql",
        old="AND f.state <> 'open'",
        new="AND f.state = ''",
        noticed_by=(
            f"{SETTLEMENT}06_a_flow_in_staging_is_not_claimable",
            f"{CONFORMANCE}ClaimGate::test_members_of_a_flow_are_taken_only_while_it_is_open",
        ),
    ),
    Mutant(
        name="priority-ignored",
        breaks="settlement 7",
        what="across routes, claim does not look at the priority",
        file="store/sqlite/claim.py",
        old="return (-execution.priority, not execution.resumed,",
        new="return (0, not execution.resumed,",
        noticed_by=(f"{CONFORMANCE}ClaimOrder::test_the_order_holds_across_lanes_and_routes",),
    ),
    Mutant(
        name="resumed-not-preferred",
        breaks="settlement 7",
        what="work that was begun waits behind new work",
        file="store/sqlite/queries/claim_ready.sql",
        old="ORDER BY priority DESC, resumed DESC, ready_at, id LIMIT ?",
        new="ORDER BY priority DESC, resumed, ready_at, id LIMIT ?",
        noticed_by=(f"{CONFORMANCE}ClaimOrder::test_resumed_work_comes_before_new_work_of_its_priority",),
    ),
    Mutant(
        name="purge-takes-the-open",
        breaks="rule 5",
        what="a purge by age takes what has not ended",
        file="store/sqlite/queries/purge.sql",
        old="""AS x INDEXED BY outlast_execution_finished
WHERE x.finished_at < :finished_before""",
        new="""AS x
WHERE coalesce(x.finished_at, x.created_at) < :finished_before""",
        noticed_by=(f"{CONFORMANCE}Purge::test_only_what_has_ended",),
    ),
    Mutant(
        name="purge-by-age-of-the-start",
        breaks="rule 5",
        what="a purge by age counts from the start of what has ended",
        file="store/sqlite/queries/purge.sql",
        old="""AS x INDEXED BY outlast_execution_finished
WHERE x.finished_at < :finished_before""",
        new="""AS x
WHERE x.finished_at IS NOT NULL AND x.created_at < :finished_before""",
        noticed_by=(f"{CONFORMANCE}Purge::test_finished_before_counts_from_the_end_of_a_long_execution",),
    ),
    Mutant(
        name="listener-trusts-rings",
        breaks="rule 6",
        what="who begins to listen looks at nothing until somebody rings",
        file="store/sqlite/doorbell.py",
        old="        self._heard = {RESCAN}\n        self._wake",
        new="        self._heard = set[str]()\n        self._wake",
        noticed_by=(f"{CONFORMANCE}Doorbell::test_the_first_thing_heard_is_to_look_at_everything",),
    ),
    Mutant(
        name="zombie-appends-frames",
        breaks="rule 1",
        what="the frames of a stream are not fenced by the epoch",
        file="store/sqlite/writing.py",
        old="if not holder or holder[0] != (Status.ACTIVE, epoch):",
        new="if not holder or holder[0][0] != Status.ACTIVE:",
        noticed_by=(f"{CONFORMANCE}Frame::test_only_the_holder_appends",),
    ),
)

# ---- the runtime --------------------------------------------------------------------------------------------------

_RUNTIME = (
    Mutant(
        name="group-commit-out-of-order",
        breaks="settlement 1",
        what="what was submitted last is committed first",
        file="runtime/group_commit.py",
        old="batch = line.waiting[:most]",
        new="line.waiting = line.waiting[::-1]; batch = line.waiting[:most]",
        noticed_by=(f"{GROUP_COMMIT}batch_has_a_bound_and_order_is_kept_across_batches",),
    ),
    Mutant(
        name="lost-reply-given-up",
        breaks="settlement 3",
        what="a commit whose reply was lost is not tried again",
        file="runtime/patience.py",
        old="if waited_s >= patience_s:",
        new="if waited_s >= 0:",
        noticed_by=(
            f"{GROUP_COMMIT}lost_reply_is_retried_verbatim",
            f"{CONFORMANCE}LostReply::test_a_group_commit_repeats_by_itself",
        ),
    ),
    Mutant(
        name="struck-off-before-delivered",
        breaks="rule 3",
        what="a delivery is struck off the outbox before its target has it: a crash in between loses it",
        file="runtime/outbox.py",
        old="told = await engine.tell(delivery.namespace, delivery.target, fact, seen=seen, acks=acks)\n",
        new="""await self.strike(delivery)
        told = await engine.tell(delivery.namespace, delivery.target, fact, seen=seen)
""",
        noticed_by=("tests/unit/runtime/test_delivery.py::test_a_delivery_cut_off_at_any_commit_is_owed_or_done",),
    ),
    Mutant(
        name="children-left-behind",
        breaks="rule 3",
        what="an end does not owe its children anything",
        file="machine/guards_and_writes.py",
        old="    if execution.has_children:\n        errand",
        new="    if False:\n        errand",
        noticed_by=(
            f"{CONFORMANCE}Family::test_the_outbox_closes_the_children_of_an_ended_parent",
            "tests/unit/machine/test_endings.py::test_an_end_owes_its_children_what_they_were_started_for",
        ),
    ),
    Mutant(
        name="children-follow-their-parents-cancel",
        breaks="rule 3",
        what="a cancel ends the parent, and its children only later: one of them may still be claimed",
        file="runtime/engine.py",
        old="        return await with_children(self, execution, fact, answer, now)\n",
        new="        return answer\n",
        noticed_by=(f"{CONFORMANCE}Family::test_a_cancel_ends_a_parent_and_its_children_in_one_commit",),
    ),
    Mutant(
        name="received-word-forgotten-while-owed",
        breaks="settlement 3",
        what="a word of another partition that is still owed is forgotten once received: repeated, it is another one",
        file="runtime/forgetting.py",
        old="        return owed is None and age_ms > REPEATED_WITHIN_MS\n",
        new="        return age_ms > REPEATED_WITHIN_MS\n",
        noticed_by=("tests/unit/runtime/test_outbox.py::test_what_a_far_partition_received_is_kept_while_it_is_owed",),
    ),
    Mutant(
        name="told-twice-struck-off-never",
        breaks="rule 3",
        what="a debt whose word was told by somebody who died is owed for ever",
        file="runtime/outbox.py",
        old="and not told.verdict.again and self",
        new="and self",
        noticed_by=(f"{CONFORMANCE}Reconciler::test_a_delivery_that_is_repeated_tells_the_parent_once",),
    ),
    Mutant(
        name="replay-in-another-order",
        breaks="settlement 9",
        what="the journal is replayed in the order of its keys, not in that of its records",
        file="runtime/attempts/lease.py",
        old="            entries = sorted(entries, key=lambda entry: entry.position)\n",
        new="            entries = [*entries]\n",
        noticed_by=(f"{REPLAY}concurrent_branches_replay_to_the_same",),
    ),
    Mutant(
        name="recorded-step-runs-again",
        breaks="settlement 9",
        what="a step whose outcome is in the journal is performed again",
        file="machine/attempt.py",
        old="            self.replay.call(key)\n            return _REPLAY\n",
        new="            return _BEGIN\n",
        noticed_by=(
            f"{REPLAY}a_recorded_step_is_never_run_again",
            f"{REPLAY}a_recorded_def_step_is_never_run_again",
        ),
    ),
    Mutant(
        name="replay-not-awaited",
        breaks="settlement 9",
        what="new operations begin while the journal is still being replayed",
        file="machine/attempt.py",
        old="        if self.replay and (self.state is _REPLAYING or self.state is _LOOSE):\n",
        new="        if False:\n",
        noticed_by=(f"{ATTEMPT}code_does_nothing_new_before_its_journal_is_replayed",),
    ),
    Mutant(
        name="delivered-before-recorded",
        breaks="settlement 9",
        what="the code goes on with an outcome that is not durable yet",
        file="runtime/attempts/recording.py",
        old="""    recording = Recording(attempt, operation, outcome, placed)
""",
        new="""    recording = Recording(attempt, operation, outcome, placed)
    attempt.machine.recorded(operation, outcome, 0)
    attempt.nudge()
""",
        noticed_by=(f"{ATTEMPT}code_goes_on_only_with_what_is_durable",),
    ),
    Mutant(
        name="tasks-are-hashed-by-their-address",
        breaks="settlement 9",
        what="a set of tasks has another order when the code is replayed in another process",
        file="runtime/attempts/workflow_loop.py",
        old="        self._number = loop.number  # first",
        new="        self._number = id(self)  # first",
        noticed_by=(
            "tests/acceptance/test_sets_of_tasks.py::test_sets_of_tasks_and_futures_have_the_same_order_in_every_replay",
        ),
    ),
    Mutant(
        name="a-failed-delivery-leaves-the-loop-waiting",
        breaks="settlement 9",
        what="code of which one outcome could not be delivered is never run again",
        file="runtime/attempts/workflow_loop.py",
        old="""            self._pump_due = False
            raise
""",
        new="""            raise
""",
        noticed_by=(
            "tests/unit/runtime/test_code.py::test_what_is_delivered_to_code_that_rests_is_run_at_once_and_what_cannot_be_leaves_it_at_rest",
        ),
    ),
    Mutant(
        name="valkey-a-zombies-step-enters",
        breaks="rule 1",
        what="on Valkey a step enters the journal whoever holds the execution",
        file="store/valkey/scripts/commit.lua",
        old="  if as_it_was and found.packed == false then\n",
        new="  if found.packed == false then\n",
        noticed_by=(f"{ENTRIES}a_zombie_is_told_what_its_execution_is", f"{ENTRIES}nobodys_step_is_refused"),
    ),
    Mutant(
        name="valkey-a-step-overwrites",
        breaks="rule 3",
        what="on Valkey a step is written over the one that stands",
        file="store/valkey/scripts/commit.lua",
        old="  if as_it_was and found.packed == false then\n",
        new="  if as_it_was then\n",
        noticed_by=(f"{ENTRIES}what_stands_is_told",),
    ),
    Mutant(
        name="valkey-a-repeated-step-is-refused",
        breaks="rule 3",
        what="on Valkey a step whose reply was lost is refused when it is told again",
        file="store/valkey/scripts/commit.lua",
        old="  if made_by(found, batch[i + 3]) then",
        new="  if false then",
        noticed_by=(f"{ENTRIES}what_stands_is_told", f"{ENTRIES}a_zombie_is_told_what_its_execution_is"),
    ),
    Mutant(
        name="other-outcomes-delivered-before-recorded",
        breaks="settlement 9",
        what="the code goes on with an outcome, not of a step, that is not durable yet",
        file="runtime/attempts/recording.py",
        old="""    lease, entry = attempt.lease, outcome.entry
""",
        new="""    lease, entry = attempt.lease, outcome.entry
    machine.recorded(operation, outcome, 0)
    attempt.nudge()
""",
        noticed_by=(f"{ATTEMPT}code_goes_on_only_with_a_token_that_is_durable",),
    ),
    Mutant(
        name="event-taken-while-another-outcome-is-on-its-way",
        breaks="rule 3",
        what="an event is received while an outcome is delivered that makes the code give the receive up",
        file="runtime/attempts/attempt.py",
        old="        if not machine.settling and not self.lease.transacts:\n",
        new="        if True:\n",
        noticed_by=(f"{WAITING}an_event_is_not_taken_while_another_outcome_is_on_its_way",),
    ),
    Mutant(
        name="sleep-begins-anew",
        breaks="settlement 9",
        what="a sleep's wake time is not written down: after a restart it begins again",
        file="runtime/attempts/waits.py",
        old="        return self._attempt.replay.wake_times.get(_place(operation, kind))\n",
        new="        return kind.timer and self._attempt.replay.wake_times.get(_place(operation, kind))\n",
        noticed_by=(f"{WAITING}being_woken_for_something_else_does_not_lengthen_a_sleep",),
    ),
    Mutant(
        name="second-named-timer-wins",
        breaks="settlement 9",
        what="a named timer is set anew by every sleep of its name",
        file="runtime/operations/sleep.py",
        old="    def timer(self) -> str | None:\n        return self.timer_name",
        new="    def timer(self) -> str | None:\n        return None",
        noticed_by=(f"{WAITING}a_named_timer_keeps_its_first_wake_time",),
    ),
    Mutant(
        name="lost-lease-goes-on",
        breaks="settlement 4",
        what="a worker that learns that its lease is gone lets the user's code run on",
        file="runtime/worker.py",
        old='                attempt.lose("another holds it, or it has ended")\n',
        new="                continue\n",
        noticed_by=(f"{ATTEMPT}losing_the_lease_stops_the_code_at_once",),
    ),
    Mutant(
        name="unknown-lease-kept",
        breaks="settlement 4",
        what="a worker keeps renewing a lease on what it does not run",
        file="runtime/worker.py",
        old="if not self._claiming and now_s - since_s >= ",
        new="if now_s < since_s and now_s - since_s >= ",
        noticed_by=(f"{ATTEMPT}a_worker_hands_back_what_it_holds_and_does_not_run",),
    ),
    Mutant(
        name="room-of-a-look-given-away",
        breaks="settlement 7",
        what="what is started here takes the room that a look for work has asked for",
        file="runtime/worker.py",
        old="if self._others_wait or self._draining or self._free() <= self._claiming:\n",
        new="if self._others_wait or self._draining or self._free() <= 0:\n",
        noticed_by=(f"{FAST}what_a_look_for_work_may_find_has_its_room_kept",),
    ),
    Mutant(
        name="zombie-told-nothing",
        breaks="rule 1",
        what="a write that the store refuses to a zombie is taken for done",
        file="runtime/local_holder.py",
        old="            if verdict.applied:\n",
        new="            if verdict.applied or isinstance(told_fact, facts.StepRecorded):\n",
        noticed_by=(f"{ATTEMPT}a_refused_write_stops_the_code_at_once",),
    ),
    Mutant(
        name="replay-corrects-the-journal",
        breaks="rule 1",
        what="a query's replay takes what its own code cannot read for unread, and fails it",
        file="runtime/attempts/rehearsal.py",
        old="""may have read it, and gone on.\"""
        return False
""",
        new="""may have read it, and gone on.\"""
        return super().corrects(operation, entry)
""",
        noticed_by=(f"{QUERIES}code_that_cannot_read_what_another_has_read_changes_nothing[sqlite]",),
    ),
    Mutant(
        name="replay-has-a-timeout",
        breaks="rule 1",
        what="a query's replay ends the attempt of whoever holds the execution, when its time is over",
        file="runtime/attempts/rehearsal.py",
        old=", resumed=True, attempt_deadline_at=None)",
        new=", resumed=True)",
        noticed_by=(f"{QUERIES}a_query_tells_nobody_that_the_time_of_an_attempt_is_over[sqlite]",),
    ),
)

MUTANTS: tuple[Mutant, ...] = (*_GUARDS, *_TRANSITIONS, *_LIMITS_AND_PLACES, *_STORE, *_RUNTIME)
