"""`outlast flows show`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from outlast import App, FlowFailed

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Outlast


def run_one(url: str) -> None:
    app = App(url)

    @app.workflow
    async def number(x: int) -> int:
        if x < 0:
            raise ValueError("negative")
        return x

    async def run() -> None:
        async with app:
            flow = app.flow("nightly", id="nightly-1")
            a = flow.add("extract", number, 1)
            bad = flow.add("broken", number, -1)
            flow.add("report", number, a.output)
            flow.add("sum", number, bad.output)
            fh = await flow.start()
            try:
                await fh.result("20s")
            except FlowFailed:
                return

    asyncio.run(run())


def test_a_flow_is_drawn_with_the_state_of_every_member(outlast: Outlast):
    run_one("sqlite:///outlast.db")
    drawn = outlast("flows", "show", "nightly-1").out
    lines = {line.split()[1]: line for line in drawn.splitlines() if line.strip()[:1] in "✓✗-"}
    assert "✓ extract" in lines["extract"]
    assert "✗ broken" in lines["broken"]
    assert "after extract" in lines["report"]
    assert lines["report"].startswith("  "), "below what it waits for"
    assert "broken failed" in lines["sum"]
    assert "failed  4 members" in drawn


def test_a_flow_as_a_document(outlast: Outlast):
    run_one("sqlite:///outlast.db")
    document = outlast.json("flows", "show", "nightly-1", "--follow")
    assert document["status"] == "failed"
    assert document["counts"] == {"failed": 1, "succeeded": 2, "skipped": 1}
    assert {member["name"]: member["after"] for member in document["members"]}["report"] == ["extract"]


def test_to_follow_a_flow_gives_programs_one_document_at_its_end(outlast: Outlast, monkeypatch: pytest.MonkeyPatch):
    app = App("sqlite:///outlast.db")

    @app.workflow
    async def never() -> None: ...

    async def begin() -> None:
        async with app.client():  # no worker: it stays open
            flow = app.flow("nightly", id="nightly-1")
            flow.add("never", never)
            await flow.start()

    async def ended_meanwhile(seconds: float) -> None:
        async with app.client():
            await app.flow_handle("nightly-1").cancel(wait=True)

    asyncio.run(begin())
    monkeypatch.setattr("outlast.cli.flows.sleep", ended_meanwhile)
    assert outlast.json("flows", "show", "nightly-1", "--follow")["status"] == "cancelled"


def test_a_flow_that_is_not_there(outlast: Outlast):
    run_one("sqlite:///outlast.db")
    answer = outlast("flows", "show", "nowhere")
    assert answer.code == 1
    assert "no flow 'nowhere'" in answer.err


def test_to_show_a_flow_as_an_execution_says_how_it_is_shown(outlast: Outlast):
    run_one("sqlite:///outlast.db")
    answer = outlast("show", "nightly-1")
    assert (answer.code, "`outlast flows show nightly-1`" in answer.err) == (1, True)
    assert outlast("show", "nightly-1/extract").code == 0
