"""A fork: a new execution that goes on from what another one had recorded."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import structs

from outlast import limits
from outlast.errors import InvalidName, LimitExceeded
from outlast.machine import facts
from outlast.machine.changes import Code, Put
from outlast.model.journal import ORIGIN, JournalEntry, Origin
from outlast.model.payload import Payload
from outlast.model.status import Status
from outlast.model.tag import Tag
from tests.unit.machine.build import NOW, SOURCE, after, changes_of, failed, insert_of, inserts_of, refusal_of, say


def entry(position: int) -> JournalEntry:
    return JournalEntry(
        namespace="shop",
        execution="order-41",
        generation=3,
        scope="",
        name=f"step-{position}",
        occurrence=1,
        op="step",
        outcome="succeeded",
        value=b"1",
        epoch=4,
        position=position,
        recorded_at=1,
        change_id="of the source",
    )


def test_a_fork_is_ready_and_starts_counting_anew():
    source = structs.replace(SOURCE, parent="cart-1", failures=2, crashes=1, attempt=4, route="checkout|1||suspect")
    forked = after(None, facts.Fork, source=source)
    assert (forked.id, forked.status, forked.ready_at, forked.created_at) == ("order-42", Status.READY, NOW, NOW)
    assert (forked.workflow, forked.version, forked.tags) == ("checkout", "1", source.tags)
    assert (forked.attempt, forked.failures, forked.crashes, forked.epoch, forked.finished_at) == (1, 0, 0, 0, None)
    assert (forked.parent, forked.route) == (None, "checkout|1|")


def test_it_has_the_input_the_journal_and_the_tags_as_its_own():
    changes = changes_of(None, facts.Fork, journal=(entry(0), entry(1)))
    assert insert_of(changes, Payload).value == b"[42]"
    *copied, origin = inserts_of(changes, JournalEntry)
    assert [(one.execution, one.generation, one.name) for one in copied] == [
        ("order-42", 1, "step-0"),
        ("order-42", 1, "step-1"),
    ]
    assert {one.change_id for one in (*copied, origin)} == {changes.id}
    put = [write.record for write in changes.writes if isinstance(write, Put)]
    assert [(one.execution, one.tag) for one in put if isinstance(one, Tag)] == [("order-42", "shop")]


def test_it_says_behind_what_it_keeps_who_recorded_that():
    [kept, origin] = inserts_of(changes_of(None, facts.Fork, journal=(entry(0),), began_at=7), JournalEntry)
    assert (origin.op, origin.position) == (ORIGIN, 1)
    assert msgspec.json.decode(origin.value or b"", type=Origin) == Origin(SOURCE.id, SOURCE.journal_generation, 7)
    # A fork of it from an earlier step keeps nothing that it recorded itself.
    assert len(inserts_of(changes_of(None, facts.Fork, journal=(kept, origin)), JournalEntry)) == 2
    behind = structs.replace(entry(1), position=2)
    [*_, second] = inserts_of(changes_of(None, facts.Fork, journal=(kept, origin, behind)), JournalEntry)
    assert (second.op, second.occurrence, second.position) == (ORIGIN, 2, 3)
    assert inserts_of(changes_of(None, facts.Fork), JournalEntry) == []


def test_its_second_generation_reads_the_journal_of_the_first():
    forked = after(None, facts.Fork)
    assert (forked.generation, forked.journal_generation) == (2, 1)


def test_a_deadline_counts_from_the_fork():
    assert after(None, facts.Fork, source=structs.replace(SOURCE, deadline_ms=500)).deadline_at == NOW + 500


def test_an_id_that_is_taken_is_refused():
    assert refusal_of(failed(), facts.Fork).code is Code.CONFLICT


def test_what_is_too_much_for_one_commit_is_refused_before_anything_is_written():
    with pytest.raises(LimitExceeded):
        say(facts.Fork, journal=tuple(entry(n) for n in range(limits.FORK_MAX_ENTRIES + 1)))
    with pytest.raises(InvalidName):
        say(facts.Fork, id="order-42/ship")


def test_a_fork_can_travel():
    fact = say(facts.Fork, journal=(entry(0),))
    assert facts.decode_fact(facts.encode_fact(fact)) == fact
