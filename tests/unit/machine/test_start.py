"""Starting: a new execution, the same one again, or a new generation of one that has ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.errors import InvalidInput
from outlast.machine import facts, start_records
from outlast.machine.changes import Absent, Code, Insert, Put, TimeAhead
from outlast.machine.decide_start import conflict_with
from outlast.model import event
from outlast.model.attempt import Attempt
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.lane import lane_key
from outlast.model.payload import Payload, Role
from outlast.model.record import Now
from outlast.model.retry import RetryPolicy
from outlast.model.session import session_key
from outlast.model.status import Status
from outlast.model.tag import Tag, tag_key
from tests.unit.machine.build import (
    ENDED_ONES,
    KEY,
    NOW,
    OPEN_ONES,
    PARTITION,
    RETRIES,
    active,
    additions_of,
    after,
    as_it_was,
    asked_to_cancel,
    backing_off,
    changes_of,
    delayed,
    deletes_of,
    dependent,
    failed,
    insert_of,
    inserts_of,
    patch_of,
    ready,
    refusal_of,
    say,
    succeeded,
    undoable,
)


def test_a_new_execution_is_ready_at_once_and_its_lane_hears_of_it():
    changes = changes_of(None, facts.Start, lane="gpu")
    execution = insert_of(changes, Execution)
    assert (execution.status, execution.reason, execution.waits) == (Status.READY, None, "")
    assert (execution.ready_at, execution.created_at) == (Now(), Now())
    assert changes.rings == ("lane:shop:gpu",)


def test_a_start_is_guarded_by_its_own_insert():
    changes = changes_of(None, facts.Start)
    assert changes.anchors == (KEY,)
    assert changes.guards == ()
    assert insert_of(changes, Execution).key == KEY
    assert all(write.record.change_id == "a-Start" for write in changes.writes if isinstance(write, Insert))  # pyright: ignore[reportAttributeAccessIssue]


def test_epochs_begin_where_the_start_says_and_a_restart_goes_on_from_them():
    """Rule 1: the next life of a purged id has other epochs, so a zombie of the former one is refused."""
    assert after(active(first_epoch=7_000), facts.Complete).epoch == 7_001
    assert after(succeeded(first_epoch=7_000), facts.Start, if_exists="restart", first_epoch=5).epoch == 7_001


@pytest.mark.parametrize("first_epoch", [-1, 2**32])
def test_epochs_begin_within_bounds(first_epoch: int):
    with pytest.raises(InvalidInput, match="first_epoch"):
        ready(first_epoch=first_epoch)


def test_the_input_is_kept_beside_the_hot_row_in_the_same_commit():
    changes = changes_of(None, facts.Start, input=b"[1,2]")
    assert insert_of(changes, Payload) == Payload(
        namespace="shop", execution="order-42", generation=1, role=Role.INPUT, value=b"[1,2]", change_id="a-Start"
    )


def test_tags_are_on_the_execution_and_in_their_index():
    changes = changes_of(None, facts.Start, tags={"tier": "gold", "city": "paris"})
    assert insert_of(changes, Execution).tag_map == {"city": "paris", "tier": "gold"}
    tags = [write.record for write in changes.writes if isinstance(write, Put)]
    assert tags == [
        Tag(namespace="shop", execution="order-42", tag="tier", value="gold"),
        Tag(namespace="shop", execution="order-42", tag="city", value="paris"),
    ]


def test_a_delay_blocks_it_until_a_time_that_the_store_counts():
    changes = changes_of(None, facts.Start, delay_ms=5_000)
    execution = insert_of(changes, Execution)
    assert (execution.status, execution.reason, execution.waits) == (Status.BLOCKED, "delay", "delay")
    assert (execution.wake_at, execution.ready_at) == (Now(5_000), None)
    assert changes.rings == ()


def test_dependencies_block_it_without_a_time():
    execution = dependent()
    assert (execution.status, execution.reason, execution.waits) == (Status.BLOCKED, "dependencies", "dependencies")
    assert execution.wake_at is None


def test_the_deadline_counts_from_the_commit():
    assert insert_of(changes_of(None, facts.Start, deadline_ms=60_000), Execution).deadline_at == Now(60_000)
    assert ready(deadline_ms=60_000).deadline_at == NOW + 60_000


def test_policy_and_routing_are_fixed_at_the_start():
    execution = ready(
        requires=("gpu", "eu"),
        retry=RETRIES,
        timeout_ms=1_000,
        crash_cap=2,
        retention_ms=9,
        priority=3,
        parent="cart-1",
        signature="s1",
    )
    assert execution.route == "checkout|1|eu,gpu"
    assert execution.retry_policy == RETRIES
    assert (execution.timeout_ms, execution.crash_cap, execution.retention_ms) == (1_000, 2, 9)
    assert (execution.priority, execution.parent, execution.signature) == (3, "cart-1", "s1")
    assert (execution.epoch, execution.inbox, execution.generation, execution.attempt) == (0, 0, 1, 1)


@pytest.mark.parametrize("status", [*OPEN_ONES, *ENDED_ONES])
def test_the_same_start_again_is_the_same_execution(status: str):
    existing = (OPEN_ONES | ENDED_ONES)[status]()
    refusal = refusal_of(existing, facts.Start)
    assert refusal.code is Code.ALREADY
    assert existing.status in refusal.message


@pytest.mark.parametrize("other", [{"input_digest": "digest-of-43"}, {"workflow": "refund"}])
@pytest.mark.parametrize("if_exists", ["same", "error"])
def test_an_id_that_is_taken_by_other_work_is_a_conflict(other: dict[str, str], if_exists: str):
    refusal = refusal_of(active(), facts.Start, if_exists=if_exists, **other)
    assert refusal.code is Code.CONFLICT
    assert "other arguments" in refusal.message


def test_other_arguments_are_a_conflict_even_when_it_has_ended():
    assert refusal_of(succeeded(), facts.Start, input_digest="digest-of-43").code is Code.CONFLICT


def test_if_exists_error_refuses_even_the_same_start():
    refusal = refusal_of(active(), facts.Start, if_exists="error")
    assert refusal.code is Code.CONFLICT
    assert "other arguments" not in refusal.message


@pytest.mark.parametrize("status", OPEN_ONES)
def test_a_restart_waits_for_the_end_of_what_runs(status: str):
    refusal = refusal_of(OPEN_ONES[status](), facts.Start, if_exists="restart")
    assert refusal.code is Code.CONFLICT
    assert "once it has ended" in refusal.message


# ---- restart ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ENDED_ONES)
def test_a_restart_opens_a_new_generation_with_an_empty_journal(status: str):
    ended = ENDED_ONES[status]()
    restarted = after(ended, facts.Start, if_exists="restart")
    assert restarted.status is Status.READY
    assert restarted.generation == restarted.journal_generation == 2
    assert (restarted.attempt, restarted.failures, restarted.crashes, restarted.ran_ms) == (1, 0, 0, 0)
    assert (restarted.cause, restarted.finished_at, restarted.purge_at) == (None, None, None)


def test_a_restart_forgets_the_cancel_and_the_undo_of_the_life_before():
    ended = after(asked_to_cancel(undoable()), facts.Cancelled)
    assert (ended.cancel_requested, ended.unwinds) == (True, True)
    restarted = after(ended, facts.Start, if_exists="restart")
    assert (restarted.cancel_requested, restarted.unwinds, restarted.resumed) == (False, False, False)


def test_a_restart_keeps_the_fence_and_the_doorstep_growing():
    ended = after(asked_to_cancel(active()), facts.Cancelled)
    restarted = after(ended, facts.Start, if_exists="restart")
    assert restarted.epoch == ended.epoch == 1
    assert restarted.inbox == ended.inbox + 1
    assert restarted.created_at == ended.created_at


def test_a_restart_takes_everything_that_the_new_start_says():
    ended = after(backing_off(timeout_ms=1_000, retention_ms=5), facts.CancelRequested)
    restarted = after(
        ended,
        facts.Start,
        if_exists="restart",
        workflow="refund",
        version="2",
        lane="slow",
        input_digest="other",
        priority=9,
        delay_ms=700,
        deadline_ms=8_000,
        signature="s2",
        crash_cap=7,
    )
    assert (restarted.workflow, restarted.version, restarted.lane, restarted.route) == (
        "refund",
        "2",
        "slow",
        "refund|2|",
    )
    assert (restarted.status, restarted.reason, restarted.wake_at) == (Status.BLOCKED, "delay", NOW + 700)
    assert (restarted.deadline_at, restarted.deadline_ms, restarted.timeout_ms) == (NOW + 8_000, 8_000, None)
    assert (restarted.priority, restarted.input_digest, restarted.signature) == (9, "other", "s2")
    assert (restarted.crash_cap, restarted.retention_ms, restarted.retry_policy.max_attempts) == (7, None, 1)


def test_a_restart_is_one_commit_with_its_input_and_its_trail():
    ended = failed()
    changes = changes_of(ended, facts.Start, if_exists="restart", input=b"[43]", input_digest="digest-of-43")
    assert changes.guards == (as_it_was(ended),)
    assert insert_of(changes, Payload).generation == 2
    assert insert_of(changes, Event).name == event.RESTART
    assert [(add.key, add.field, add.amount) for add in additions_of(changes)] == [(KEY, "inbox", 1)]
    assert inserts_of(changes, Execution) == []
    assert changes.rings == ("lane:shop:default",)


def test_a_delayed_restart_rings_nobody():
    assert changes_of(failed(), facts.Start, if_exists="restart", delay_ms=1).rings == ()


def test_a_restart_drops_the_tags_that_are_not_said_again():
    changes = changes_of(
        failed(tags={"tier": "gold", "city": "paris"}), facts.Start, if_exists="restart", tags={"tier": "iron"}
    )
    assert deletes_of(changes) == [tag_key("shop", "order-42", "city")]
    assert [write.record for write in changes.writes if isinstance(write, Put)] == [
        Tag(namespace="shop", execution="order-42", tag="tier", value="iron")
    ]
    assert msgspec.json.decode(patch_of(changes)["tags"]) == {"tier": "iron"}


def test_a_delayed_execution_can_be_started_only_once():
    assert refusal_of(delayed(), facts.Start).code is Code.ALREADY


# ---- started and claimed at once ----------------------------------------------------------------------------------


def test_a_start_by_a_worker_with_room_writes_what_a_start_and_a_claim_would():
    apart = after(after(None, facts.Start, timeout_ms=5_000), facts.Claim, change_id="a-Start")
    at_once = after(None, facts.Start, timeout_ms=5_000, worker="worker-1")
    assert at_once == apart
    claim = changes_of(after(None, facts.Start), facts.Claim, change_id="a-Start")
    assert insert_of(changes_of(None, facts.Start, worker="worker-1"), Attempt) == insert_of(claim, Attempt)


def test_a_start_that_claims_asks_the_gates_of_a_claim():
    changes = changes_of(None, facts.Start, worker="worker-1", lane="gpu")
    assert changes.guards == (
        TimeAhead(session_key(PARTITION, "worker-1"), "expires_at"),
        Absent(lane_key(PARTITION, "shop", "gpu")),
    )
    assert changes.rings == (), "nobody else need look for it"


def test_a_restart_is_left_to_whoever_claims_it():
    assert after(succeeded(), facts.Start, if_exists="restart", worker="worker-1").status is Status.READY


@pytest.mark.parametrize("waits", [{"delay_ms": 1}, {"after_dependencies": True}, {"flow": "nightly"}])
def test_what_must_wait_cannot_be_claimed_by_its_start(waits: dict[str, Any]):
    with pytest.raises(InvalidInput, match="cannot be claimed by its start"):
        changes_of(None, facts.Start, worker="worker-1", **waits)


# ---- what starts have in common -----------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "namespace": "bank",
    "workflow": "refund",
    "version": "2",
    "input_digest": "digest-of-43",
    "signature": "s",
    "lane": "gpu",
    "requires": ("gpu",),
    "priority": 7,
    "delay_ms": 500,
    "deadline_ms": 900,
    "timeout_ms": 800,
    "retry": RetryPolicy(max_attempts=9),
    "crash_cap": 3,
    "life_crash_cap": 30,
    "retention_ms": 1_000,
    "tags": {"shop": "paris"},
    "parent": "order-41",
    "flow": "nightly",
    "after_dependencies": True,
    "first_epoch": 77,
    "sends": (facts.Sent("go", b"1"),),
}
NOT_IN_THE_EXECUTION = {"change_id", "id", "input", "closes", "if_exists", "worker"}


@pytest.mark.parametrize("name", sorted(set(facts.Start.__struct_fields__) - NOT_IN_THE_EXECUTION))
def test_what_is_remembered_of_one_start_is_not_taken_for_another(name: str):
    usual = insert_of(changes_of(None, facts.Start), Execution)
    other = insert_of(changes_of(None, facts.Start, **{name: OTHER[name]}), Execution)
    assert other != usual
    start_records._like.cache_clear()
    assert insert_of(changes_of(None, facts.Start, **{name: OTHER[name]}), Execution) == other
    assert insert_of(changes_of(None, facts.Start), Execution) == usual


def test_what_is_remembered_of_a_start_by_one_worker_is_not_taken_for_another():
    for worker in ("worker-1", "worker-2"):
        for change_id in ("a", "b"):
            held = insert_of(changes_of(None, facts.Start, worker=worker, change_id=change_id), Execution)
            assert (held.worker, held.claim_id, held.change_id) == (worker, change_id, change_id)
    assert insert_of(changes_of(None, facts.Start), Execution).worker is None


def test_code_that_starts_a_child_where_another_one_is_is_told_what_is_there():
    same, other = say(facts.Start), say(facts.Start, workflow="ship")
    assert conflict_with(active(), same) is None
    told = conflict_with(active(), other)
    assert told is not None
    assert (told.existing, told.given) == (f"{active().workflow} (active)", "ship here")
