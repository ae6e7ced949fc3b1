"""`outlast flows show`, `cancel` and `retry`."""

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
    assert lines["broken"].split() == ["✗", "broken", "failed", "ValueError:", "negative"]
    assert "after extract" in lines["report"]
    assert lines["report"].startswith("  "), "below what it waits for"
    assert "broken failed" in lines["sum"]
    assert "failed  4 members" in drawn


@pytest.mark.parametrize(
    "words, code",
    [
        (("flows", "show", "nightly-1"), 0),
        (("show", "nightly-1/extract"), 0),
        (("ls",), 0),
        (("doctor", "--deep"), 0),
        (("replay", "shop:app", "--all-open"), 0),
        (("tokens", "nightly-1/extract", "approval"), 0),
        (("flows", "retry", "nightly-1"), 1),
        (("cancel", "nightly-1/extract"), 1),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_a_store_that_is_opened_to_be_read_is_enough_to_look(
    outlast: Outlast, words: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OUTLAST_TOKEN_KEYS", "k1:bm90LWEtc2VjcmV0LW9ubHktYS1zYW1wbGU")
    run_one("sqlite:///outlast.db")
    answer = outlast(*words, "--url", "sqlite:///outlast.db?mode=ro")
    assert answer.code == code, answer
    assert ("was opened with ?mode=ro: it can be read, not written" in answer.err) == bool(code)


def test_a_flow_as_a_document(outlast: Outlast):
    run_one("sqlite:///outlast.db")
    document = outlast.json("flows", "show", "nightly-1", "--follow")
    assert document["status"] == "failed"
    assert (document["namespace"], document["cancelling"]) == ("default", False)
    assert document["counts"] == {"failed": 1, "succeeded": 2, "skipped": 1}
    errors = {member["name"]: member["error"] for member in document["members"]}
    assert errors == {"extract": None, "broken": "ValueError: negative", "report": None, "sum": None}
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


def test_one_member_is_counted_as_one_and_a_long_error_is_shortened(outlast: Outlast):
    app = App("sqlite:///outlast.db")

    @app.workflow
    async def wordy() -> None:
        raise ValueError("word\n" * 1_000)

    async def run() -> None:
        async with app:
            flow = app.flow("nightly", id="nightly-1")
            flow.add("only", wordy)
            with pytest.raises(FlowFailed):
                await (await flow.start()).result("20s")

    asyncio.run(run())
    assert "  1 member: 1 failed" in outlast("flows", "show", "nightly-1").out
    [member] = outlast.json("flows", "show", "nightly-1")["members"]
    assert member["error"].startswith("ValueError: word word")
    assert len(member["error"]) == 201


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


def begin_one(url: str = "sqlite:///outlast.db") -> None:
    """Accepted, and nobody runs it."""
    app = App(url)

    @app.workflow
    async def number(x: int) -> int:
        return x

    async def begin() -> None:
        async with app.client():
            flow = app.flow("nightly", id="nightly-1")
            flow.add("report", number, flow.add("extract", number, 1).output)
            await flow.start()

    asyncio.run(begin())


def test_a_flow_is_cancelled_with_its_members(outlast: Outlast):
    begin_one()
    answer = outlast("flows", "cancel", "nightly-1", "--reason", "wrong day", "--wait")
    assert (answer.code, answer.out) == (0, "nightly-1  cancelled  2 members cancelled\n")
    drawn = outlast("flows", "show", "nightly-1").out
    assert "cancelled because: wrong day" in drawn
    assert "2 cancelled" in drawn
    assert "cancelled  cancelled" not in drawn


def test_without_waiting_the_members_are_cancelled_before_the_command_has_ended(outlast: Outlast):
    begin_one()
    answer = outlast.json("flows", "cancel", "nightly-1", "--reason", "wrong day")
    assert answer["cancelled"] + answer["scheduled"] == 2
    assert (answer["reason"], answer["already"]) == ("wrong day", False)
    assert outlast.json("flows", "show", "nightly-1")["counts"] == {"cancelled": 2}


def test_to_cancel_a_flow_alone_leaves_its_members_as_they_are(outlast: Outlast):
    begin_one()
    answer = outlast("flows", "cancel", "nightly-1", "--policy", "flow_only")
    assert (answer.code, "2 open members left as they are" in answer.out) == (0, True)
    assert outlast.json("flows", "show", "nightly-1")["counts"] == {"ready": 1, "blocked": 1}


def test_to_cancel_a_flow_alone_whose_members_have_ended_leaves_nothing_open(outlast: Outlast):
    begin_one()
    for words in (("flows", "cancel", "nightly-1", "--policy", "flow_only"), ("cancel", "nightly-1/extract")):
        assert outlast(*words).code == 0
    assert outlast("cancel", "nightly-1/report").code == 0
    answer = outlast("flows", "cancel", "nightly-1", "--policy", "flow_only")
    assert (answer.code, "all of its members have ended; it was cancelled before" in answer.out) == (0, True)


def test_of_a_long_way_only_the_beginning_is_shown(outlast: Outlast):
    app = App("sqlite:///outlast.db")

    @app.workflow
    async def number(x: int) -> int:
        return x

    async def run() -> None:
        async with app:
            flow = app.flow("long", id="long-1")
            last = flow.add("m0", number, 0)
            for n in range(1, 25):
                last = flow.add(f"m{n}", number, last.output)
            await (await flow.start()).result("20s")

    asyncio.run(run())
    drawn = " ".join(outlast("flows", "show", "long-1").out.split())
    assert "m18 → m19 → 5 more" in drawn


@pytest.mark.parametrize("member", ["extract", "report"])
def test_a_member_of_a_flow_that_was_cancelled_alone_says_why_it_does_not_go_on(outlast: Outlast, member: str):
    begin_one()
    before = outlast.json("show", f"nightly-1/{member}")["waiting"]
    assert "cancelled" not in before
    outlast("flows", "cancel", "nightly-1", "--policy", "flow_only")
    waiting = outlast.json("show", f"nightly-1/{member}")["waiting"]
    assert "Its flow was cancelled (flow_only)" in waiting
    assert "`outlast flows retry nightly-1`" in waiting
    assert "waits for a worker" not in waiting


def test_a_blocked_member_says_whom_it_waits_for(outlast: Outlast):
    begin_one()
    waiting = outlast.json("show", "nightly-1/report")["waiting"]
    assert "depends on: nightly-1/extract (ready). `outlast flows show nightly-1`" in waiting


def test_a_failed_member_says_that_it_is_retried_with_its_flow(outlast: Outlast):
    run_one("sqlite:///outlast.db")
    assert "`outlast flows retry nightly-1`" in outlast.json("show", "nightly-1/broken")["waiting"]


def test_to_cancel_a_flow_twice_says_that_it_was_cancelled_before(outlast: Outlast):
    begin_one()
    outlast("flows", "cancel", "nightly-1", "--reason", "wrong day", "--wait")
    answer = outlast("flows", "cancel", "nightly-1", "--reason", "another reason")
    assert (answer.code, "it was cancelled before, because: wrong day" in answer.out) == (0, True)
    assert outlast.json("flows", "cancel", "nightly-1")["already"] is True


def test_a_flow_that_has_ended_is_not_cancelled(outlast: Outlast):
    run_one("sqlite:///outlast.db")
    answer = outlast("flows", "cancel", "nightly-1")
    assert (answer.code, "has ended: it is failed" in answer.err) == (1, True)


def test_a_flow_that_failed_is_retried(outlast: Outlast):
    run_one("sqlite:///outlast.db")
    answer = outlast("flows", "retry", "nightly-1")
    assert answer.out == "nightly-1  failed → running  2 members opened again, 2 kept as succeeded\n"
    again = outlast("flows", "retry", "nightly-1")
    assert (again.code, "has not ended" in again.err) == (1, True)


def test_a_retried_flow_as_a_document(outlast: Outlast):
    run_one("sqlite:///outlast.db")
    document = outlast.json("flows", "retry", "nightly-1")
    assert (document["status_before"], document["status"]) == ("failed", None)
    assert (document["reopened"], document["kept"]) == (2, 2)


@pytest.mark.parametrize("what", ["cancel", "retry"])
def test_what_is_not_there_is_neither_cancelled_nor_retried(outlast: Outlast, what: str):
    run_one("sqlite:///outlast.db")
    assert outlast.json("flows", what, "nowhere", code=1)["error"]["type"] == "FlowNotFound"


@pytest.mark.parametrize("what", ["cancel", "retry"])
def test_to_tell_a_flow_as_an_execution_says_which_command_does(outlast: Outlast, what: str):
    run_one("sqlite:///outlast.db")
    answer = outlast(what, "nightly-1")
    assert (answer.code, f"`outlast flows {what} nightly-1`" in answer.err) == (1, True)


def test_options_of_another_word_are_refused(outlast: Outlast):
    begin_one()
    assert outlast("flows", "cancel", "nightly-1", "--follow").code == 2
    assert outlast("flows", "show", "nightly-1", "--reason", "x").code == 2
    assert outlast("flows", "retry", "nightly-1", "--wait").code == 2
    assert outlast("flows", "cancel", "nightly-1", "--policy", "everything").code == 2
    assert outlast.json("flows", "show", "nightly-1")["counts"] == {"ready": 1, "blocked": 1}, "nothing was done"


@pytest.mark.parametrize("what", ["show", "cancel", "retry"])
def test_to_tell_an_execution_as_a_flow_says_which_command_does(outlast: Outlast, what: str):
    assert outlast("start", "shop:app", "twice", "--id", "t-1", "--arg", "4").code == 0
    answer = outlast("flows", what, "t-1")
    assert (answer.code, f"t-1 is an execution, not a flow: `outlast {what} t-1`" in answer.err) == (1, True)
