"""What a claim hands over on SQLite, so that its holder need not ask."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from outlast.errors import CorruptState
from outlast.machine import facts
from outlast.machine.changes import Changes, Delete
from outlast.model.execution import execution_key
from outlast.model.payload import Role, payload_key
from outlast.store.sqlite.claim import ALONG_BYTES, SHORT, SHORT_BYTES
from tests.integration.sqlite.tools import NS, claim, opened, running, start, step


@pytest.mark.parametrize("entries, comes_along", [(0, True), (SHORT, True), (SHORT + 1, False)])
async def test_a_short_journal_comes_along_and_a_long_one_does_not(tmp_path: Path, entries: int, comes_along: bool):
    async with opened(tmp_path / "o.db") as store, running(store) as engine:
        await engine.tell(NS, "a", start("a"))
        [first] = await claim(store)
        assert first.journal is None  # nobody has run it: there is nothing to ask for
        for number in range(entries):
            await engine.tell(NS, "a", step(number))
        waits = facts.Suspend(change_id="suspend", epoch=1, inbox=0, reason="event:go", waits=("event:go",))
        await engine.tell(NS, "a", waits)
        await engine.tell(NS, "a", facts.EventSent(change_id="send", name="go", value=b"1"))
        [again] = await claim(store, "claim-2")
        assert (again.journal is not None) == comes_along
        if again.journal is not None:
            assert len(again.journal) == entries
            assert [event.name for event in again.events] == ["go"]


async def test_a_few_large_values_do_not_come_along(tmp_path: Path):
    async with opened(tmp_path / "o.db") as store, running(store) as engine:
        await engine.tell(NS, "a", start("a"))
        await claim(store)
        large = structs.replace(step(1), value=b"x" * (SHORT_BYTES + 1))
        await engine.tell(NS, "a", large)
        waits = facts.Suspend(change_id="suspend", epoch=1, inbox=0, reason="event:go", waits=("event:go",))
        await engine.tell(NS, "a", waits)
        await engine.tell(NS, "a", facts.EventSent(change_id="send", name="go", value=b"1"))
        [again] = await claim(store, "claim-2")
        assert (again.journal, again.events) == (None, [])


async def test_all_that_one_claim_takes_counts(tmp_path: Path):
    """Many journals that are not long are as long as one that is."""
    value = b'"' + b"x" * (SHORT_BYTES - 1_000) + b'"'
    names = [f"e{number}" for number in range(ALONG_BYTES // SHORT_BYTES + 3)]
    async with opened(tmp_path / "o.db") as store, running(store) as engine:
        for name in names:
            await engine.tell(NS, name, start(name))
        await claim(store)
        for name in names:
            await engine.tell(NS, name, structs.replace(step(1, change_id=f"step {name}"), value=value))
            await engine.tell(NS, name, facts.HandBack(change_id=f"back {name}", epoch=1))
        taken = await claim(store, "claim-2")
    assert [one.execution.id for one in taken] == names
    assert [one.journal is not None for one in taken] == [True] * (len(names) - 3) + [False] * 3


async def test_what_is_ready_and_has_no_input_is_named(tmp_path: Path):
    async with opened(tmp_path / "o.db") as store, running(store) as engine:
        await engine.tell(NS, "a", start("a"))
        key = payload_key(NS, "a", 1, Role.INPUT)
        gone = Changes(id="gone", partition=0, anchors=(execution_key(NS, "a"),), writes=(Delete(key),))
        await engine.commit(gone)
        with pytest.raises(CorruptState, match="execution 'a' is ready, and has no input"):
            await claim(store)
