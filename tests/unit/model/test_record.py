"""Records: what every kind declares about itself, and times that are relative until they are stored."""

from __future__ import annotations

import msgspec
import pytest

from outlast.model.attempt import Attempt, Outcome, attempt_key
from outlast.model.completion import completion_key
from outlast.model.deferred import deferred_key
from outlast.model.event import event_key
from outlast.model.execution import execution_key
from outlast.model.flow import edge_answer_key, edge_key, flow_key, member_key, summary_key
from outlast.model.journal import journal_key
from outlast.model.kinds import KINDS, OF_EXECUTION
from outlast.model.lane import lane_key
from outlast.model.outbox import delivery_key
from outlast.model.payload import Role, payload_key
from outlast.model.record import Now, Record, settled
from outlast.model.session import session_key
from outlast.model.tag import tag_key


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_kind_declares_only_fields_that_it_has(kind: type[Record]):
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    declared = {*kind.KEY, *kind.TIMES, *kind.FLAGS, *kind.WORDS}
    assert declared <= set(fields)
    assert kind.SEQUENCED == ("seq" in fields)


@pytest.mark.parametrize("kind", OF_EXECUTION, ids=lambda kind: kind.KIND)
def test_what_belongs_to_an_execution_is_found_under_its_key(kind: type[Record]):
    assert kind.KEY[:2] == ("namespace", "execution")


@pytest.mark.parametrize(
    "key",
    [
        execution_key("n", "e"),
        payload_key("n", "e", 1, Role.INPUT),
        attempt_key("n", "e", 1, 2),
        journal_key("n", "e", 1, "s", "step", 0),
        event_key("n", "e", "plan", "1"),
        deferred_key("n", "e", 1, "approval"),
        completion_key("n", "e", 1),
        session_key(0, "w"),
        delivery_key(0, "d"),
        lane_key(0, "n", "gpu"),
        flow_key("n", "f"),
        summary_key("n", "f"),
        member_key("n", "e"),
        edge_key("n", "e", "d"),
        edge_answer_key("n", "e", "u"),
        tag_key("n", "e", "tier"),
    ],
    ids=str,
)
def test_a_key_has_a_value_for_each_of_its_fields(key):
    assert len(key.values) == len(KINDS[key.kind].KEY)


def test_every_kind_of_key_was_tried():
    assert len(KINDS) == 16, "a new kind wants its row above"


def test_what_a_store_reads_back_is_typed_again():
    row = {"namespace": "n", "execution": "e", "generation": 1, "number": 1, "epoch": 1, "worker": "w"}
    row |= {"started_at": 5, "ended_at": 6, "outcome": "timed_out", "failure": None, "change_id": "c"}
    attempt = Attempt.decode(dict(row))
    assert isinstance(attempt, Attempt)
    assert attempt.outcome is Outcome.TIMED_OUT
    still_open = Attempt.decode({**row, "outcome": None, "ended_at": None})
    assert isinstance(still_open, Attempt)
    assert still_open.outcome is None


def test_flags_that_come_back_as_numbers_are_flags_again():
    lane = KINDS["lane"].decode({"partition": 0, "namespace": "n", "lane": "gpu", "paused": 1})
    assert msgspec.structs.asdict(lane)["paused"] is True


def test_a_stored_time_is_never_relative():
    assert (settled(7), settled(None)) == (7, None)
    with pytest.raises(AssertionError, match="relative"):
        settled(Now())
