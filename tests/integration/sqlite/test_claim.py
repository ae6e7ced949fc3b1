"""What a claim hands over on SQLite, so that its holder need not ask."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from outlast.machine import facts
from outlast.store.sqlite.claim import ALONG_BYTES, SHORT
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


@pytest.mark.parametrize("what", ["journal", "event"])
async def test_what_is_large_stays_behind_and_holds_up_nobody(tmp_path: Path, what: str):
    """All of one claim counts: many small ones are as large as one."""
    half = b'"' + b"x" * (ALONG_BYTES // 2) + b'"'
    async with opened(tmp_path / "o.db") as store, running(store) as engine:
        for name in ("a", "b", "c"):
            await engine.tell(NS, name, start(name))
        await claim(store)
        for name in ("a", "b", "c"):
            value = half if what == "journal" else b"1"
            await engine.tell(NS, name, structs.replace(step(1, change_id=f"step {name}"), value=value))
            value = half if what == "event" else b"1"
            await engine.tell(NS, name, facts.EventSent(change_id=f"send {name}", name="go", value=value))
            await engine.tell(NS, name, facts.HandBack(change_id=f"back {name}", epoch=1))
        taken = await claim(store, "claim-2")
        assert [one.execution.id for one in taken] == ["a", "b", "c"]
        assert [one.journal is not None for one in taken] == [True, False, False]
        assert [len(one.events) for one in taken] == [1, 0, 0]
        assert [one.input for one in taken] == [b"[]"] * 3
