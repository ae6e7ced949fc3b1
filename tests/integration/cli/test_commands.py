"""Each command, from its words to its output: what it prints, what it changes, how it exits."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
import subprocess
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest

from outlast import App, FlowFailed
from outlast.app import store_for
from outlast.cli import context
from outlast.machine.changes import Changes, Patch
from outlast.model.execution import execution_key
from outlast.model.record import Now, Plain
from tests.integration.cli.conftest import COMMAND, Outlast


@pytest.mark.parametrize(
    "command",
    [
        ("ls",),
        ("show", "x"),
        ("doctor",),
        ("cancel", "x"),
        ("purge", "--older-than", "1d", "--yes"),
        ("replay", "shop:app", "--all-open"),
        ("query", "shop:app", "x", "y"),
        ("flows", "show", "x"),
        ("send", "x", "y", "1"),
        ("fork", "x", "--from-step", "y"),
    ],
    ids=lambda command: command[0],
)
def test_a_store_that_is_not_there_is_not_made(outlast: Outlast, command: tuple[str, ...]):
    answer = outlast(*command)
    assert answer.code == 1
    assert "there is no store at sqlite:///outlast.db" in answer.err
    assert "Traceback" not in answer.err
    assert [path.name for path in outlast.folder.iterdir()] == ["shop.py"]


def test_looking_leaves_a_stranger_s_database_as_it_is(outlast: Outlast):
    file = outlast.folder / "other.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = file.read_bytes()
    assert outlast("ls", "--url", "sqlite:///other.db").code == 1
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("ls", "--status", "done"), "there is no such status; write one of blocked, ready"),
        (("ls", "--limit", "none"), "--limit"),
        (("ls", "--limit", "1.5"), "--limit: write a whole number, not '1.5'"),
        (("ls", "--nope"), "Unknown option"),
        (("ls", "--since", "yesterday"), "write how long ago (30m, 2h, 7d) or when (2026-11-15"),
        (("ls", "--before", "2026-13-01"), "--before 2026-13-01: write how long ago"),
        (("shw", "x"), 'Did you mean "show"?'),
        (("show",), "requires an argument"),
        (("ls", "--url", "mysql://x"), "use sqlite:///file.db"),
        (("purge", "--older-than", "3 moons", "--yes"), 'write "200ms"'),
        (("ls", "--namespace", ""), "namespace '': must not be empty"),
        (("worker", "shop:app", "--namespace", ""), "namespace '': must not be empty"),
        (("worker", "shop:app", "--namespace", "a\x1bb"), "control characters"),
        (("start", "shop:app", "twice", "--arg", "1", "--namespace", ""), "namespace '': must not be empty"),
        (("copy", "--from", "shop.db", "--to", "outlast.db", "--namespace", ""), "namespace '': must not be empty"),
        (("worker", "shop:app", "--url", ""), "url must be a store's URL"),
        (("start", "shop:app", "twice", "--arg", '"\udcff"'), "not JSON"),
        (("send", "x", "y", '"\udcff"'), "the value must be JSON"),
        (("tokens", "key", "a:b"), "must not contain ':'"),
        (("tokens", "key", "a.b"), "must not contain '.'"),
        (("tokens", "order-42"), "say which deferred: `outlast tokens order-42 NAME`"),
        (("worker", "shop"), "write shop:app"),
        (("worker", "shop:app", "--lanes", ""), "--lanes names no lane"),
        (("flows",), "`outlast flows --help` shows how it is written"),
        (("shw", "x"), "`outlast --help` shows how it is written"),
        (("worker", "shop.py:app"), "write its module, shop:app"),
        (("worker", "shop:nothing"), "write shop:app"),
        (("worker", "missing:app"), "there is no module 'missing'"),
        (("worker", "shop:app", "--concurrency", "0"), "concurrency must be a whole number between 1 and"),
        (("worker", "shop:app", "--processes", "0.4"), "--processes: write a whole number, not '0.4'"),
        (("worker", "shop:app", "--concurrency", "0.4"), "--concurrency: write a whole number, not '0.4'"),
        (
            ("start", "shop:app", "twice", "--arg", "1", "--priority", "1.5"),
            "--priority: write a whole number, not '1.5'",
        ),
        (("start", "shop:app", "nothing"), "this app has broken, render, slow, twice"),
        (("start", "shop:app", "twice", "--arg", "text"), """write --arg '"text"'"""),
        (("start", "shop:app", "twice", "--arg", '"text"'), "int"),
        (("start", "shop:app", "twice", "--timeout", "1s"), "--timeout is for --wait"),
        (("start", "shop:app", "twice", "--arg", "1", "--wait", "--timeout", "5 s"), "'5 s' is not a duration"),
    ],
)
def test_what_cannot_be_used_exits_2_and_says_what_to_write(outlast: Outlast, arguments: tuple[str, ...], says: str):
    answer = outlast(*arguments)
    assert answer.code == 2, answer
    assert says in answer.err
    assert "Traceback" not in answer.err
    assert not (outlast.folder / "outlast.db").exists()


@pytest.mark.parametrize(
    "arguments",
    [("ls", "--nope"), ("shw", "x"), ("show",), ("ls", "--url"), ("ls", "--limit", "none"), ("ls", "--status", "done")],
    ids=" ".join,
)
def test_programs_get_a_document_also_when_the_line_cannot_be_used(outlast: Outlast, arguments: tuple[str, ...]):
    answer = outlast("--json", *arguments)
    assert (answer.code, answer.err) == (2, "")
    error = json.loads(answer.out)["error"]
    assert error["type"] == "InvalidInput"
    assert error["message"]


def test_a_start_says_how_to_look_at_it_also_if_the_app_has_a_store_of_its_own(outlast: Outlast):
    (outlast.folder / "sick.py").write_text(
        "from outlast import App\napp = App('sqlite:///own file.db', namespace='mine')\n"
        "@app.workflow\nasync def nothing() -> None: ...\n"
    )
    said = outlast("start", "sick:app", "nothing", "--id", "n-1").err
    assert "`outlast show n-1 --url 'sqlite:///own file.db' --namespace mine`" in said
    assert outlast("show", "n-1", "--url", "sqlite:///own file.db", "--namespace", "mine").code == 0
    assert "`outlast show t-1`" in outlast("start", "shop:app", "twice", "--id", "t-1", "--arg", "1").err


def test_long_text_in_the_timeline_is_cut_and_leaves_the_times_whole(outlast: Outlast):
    assert outlast("start", "shop:app", "twice", "--id", "t-1", "--arg", "1").code == 0
    assert outlast("cancel", "t-1", "--reason", "she called, and wrote, " * 9).code == 0
    told = outlast("show", "t-1").out.partition("Timeline")[2].splitlines()
    [asked] = [line for line in told if "cancel asked for" in line]
    assert re.match(r"  \d\d:\d\d:\d\d\.\d{3}  \+[\d.]+\w+  cancel asked for +.*she called, and wrote.*…$", asked), (
        asked
    )


def test_a_narrow_list_folds_ids_and_keeps_statuses_whole(outlast: Outlast, monkeypatch: pytest.MonkeyPatch):
    assert outlast("start", "shop:app", "twice", "--id", "long-" * 10, "--arg", "1").code == 0
    assert outlast("cancel", "long-" * 10).code == 0
    monkeypatch.setenv("COLUMNS", "40")
    listed = outlast("ls").out
    assert "".join(listed.splitlines()[:2]) == "long-" * 10
    assert "  cancelled  twice  0 attempts" in listed


def test_a_terminal_of_unknown_width_has_the_usual_one(outlast: Outlast, monkeypatch: pytest.MonkeyPatch):
    assert outlast("start", "shop:app", "twice", "--id", "order-42", "--arg", "7").code == 0
    usual = outlast("ls").out
    monkeypatch.setenv("COLUMNS", "0")
    assert outlast("ls").out == usual
    assert "order-42" in usual


def test_what_has_not_ended_is_not_retried(outlast: Outlast):
    assert outlast("start", "shop:app", "twice", "--id", "order-42", "--arg", "7").code == 0
    refused = outlast("retry", "order-42")
    assert (refused.code, "is ready: only what has ended is retried" in refused.err) == (1, True)


def test_show_counts_the_events_that_nobody_received(outlast: Outlast):
    assert outlast("start", "shop:app", "twice", "--id", "t-1", "--arg", "1").code == 0
    for name, value in (("note", "1"), ("note", "2"), ("stop", "null")):
        assert outlast("send", "t-1", name, value).code == 0
    assert outlast.json("show", "t-1")["unreceived"] == {}, "it may receive them yet"
    assert outlast("cancel", "t-1").code == 0
    assert "3 events that nobody received: note (2), stop (1)" in outlast("show", "t-1").out
    assert outlast.json("show", "t-1")["unreceived"] == {"note": 2, "stop": 1}


def test_show_says_how_near_the_crashes_are_to_their_bounds(outlast: Outlast):
    assert outlast("start", "shop:app", "twice", "--id", "t-1", "--arg", "1").code == 0

    async def crash() -> None:
        store = store_for("sqlite:///outlast.db")
        await store.open()
        counted: dict[str, Plain | Now] = {
            "crashes": 12,
            "crashes_since_progress": 3,
            "crashes_since_suspension": 4,
            "attempt": 13,
        }
        key = execution_key("default", "t-1")
        changes = Changes(id="crash", partition=0, anchors=(key,), writes=(Patch(key, counted),))
        assert (await store.commit([changes])).verdicts[0].applied
        await store.close()

    asyncio.run(crash())
    assert "3 since its last progress (5 end it), 12 in all (100 end it)" in outlast("show", "t-1").out


@pytest.mark.parametrize("columns", [40, 59, 79])
def test_what_is_shown_on_few_columns_breaks_no_word(outlast: Outlast, monkeypatch: pytest.MonkeyPatch, columns: int):
    assert outlast("start", "shop:app", "broken", "--id", "order-42", "--arg", "7").code == 0
    asyncio.run(ended("order-42"))
    words = set(re.findall(r"[a-z]{4,}", outlast("show", "order-42").out.partition("Failure")[0]))
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = outlast("show", "order-42").out
    before = shown.partition("Failure")[0]
    assert set(re.findall(r"[a-z]{4,}", before)) >= words, "every word as on a wide terminal"
    assert max(len(line) for line in before.splitlines()) <= columns
    assert re.search(
        r"^  \d\d:\d\d:\d\d\.\d{3}  \+\w+  failed\n    attempt 1 ended\n    ValueError: 7 is not", shown, re.MULTILINE
    )
    assert "  failed  broken  1 attempt" in outlast("ls").out


async def ended(execution_id: str) -> None:
    app = App()

    @app.workflow
    async def broken(number: int) -> int:
        raise ValueError(f"{number} is not a number that I like")

    async with app:
        with pytest.raises(ValueError, match="not a number"):
            await app.execution(execution_id).result("20s")


def test_to_retry_what_has_succeeded_says_how_it_runs_again(outlast: Outlast):
    app = App()

    @app.workflow
    async def fine() -> None: ...

    async def run() -> None:
        async with app:
            await fine.options(id="f-1").start()
            await app.execution("f-1").result("20s")

    asyncio.run(run())
    told = outlast.json("retry", "f-1", code=1)["error"]
    assert told["type"] == "ExecutionEnded"
    assert "it is succeeded: `outlast fork f-1 --from-step NAME`" in told["message"]


@pytest.mark.slow
def test_the_console_exits_as_the_commands_say(outlast: Outlast):
    """The same through `python -m outlast`, once for each exit code but 130."""
    assert outlast.real("migrate").code == 0
    listed = outlast.real("ls", "--json")
    assert (listed.code, json.loads(listed.out)["executions"]) == (0, [])
    missing = outlast.real("show", "x")
    assert (missing.code, missing.out) == (1, "")
    assert "no execution 'x'" in missing.err
    assert outlast.real("ls", "--nope").code == 2


@pytest.mark.parametrize(
    "command",
    [("worker", "sick:app"), ("start", "sick:app", "twice"), ("replay", "sick:app", "--all-open")],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize(
    "code, says",
    [
        ("import nothing_like_this", "ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("raise RuntimeError('no key')", "RuntimeError: no key"),
        ("def app(:", "SyntaxError: invalid syntax"),
    ],
    ids=["import", "raise", "syntax"],
)
def test_a_module_that_breaks_shows_its_own_traceback(outlast: Outlast, command: tuple[str, ...], code: str, says: str):
    (outlast.folder / "sick.py").write_text(f"{code}\n")
    answer = outlast(*command)
    assert answer.code == 2
    assert "importing sick failed" in answer.err
    assert says in answer.err
    assert code in answer.err, "the line that broke"
    assert "importlib" not in answer.err
    assert "loading.py" not in answer.err


def test_a_child_whose_import_breaks_has_failed_and_is_started_again(outlast: Outlast):
    (outlast.folder / "sick.py").write_text("raise RuntimeError('not now')\n")
    answer = outlast("worker", "sick:app", "--parent-pipe", "99")
    assert (answer.code, "RuntimeError: not now" in answer.err) == (1, True)


@pytest.mark.slow
def test_a_locale_without_our_characters_is_no_error(outlast: Outlast, monkeypatch: pytest.MonkeyPatch):
    outlast("start", "shop:app", "twice", "--id", "t-1", "--arg", "1", "--tag", "city=Çorlu")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    shown = outlast.real("show", "t-1")
    assert (shown.code, "Traceback" in shown.err) == (0, False)
    assert "t-1  twice version 1  ready" in shown.out
    [listed] = json.loads(outlast.real("ls", "--json").out)["executions"]
    assert listed["tags"] == {"city": "Çorlu"}


@pytest.mark.parametrize(
    "words",
    [("ls",), ("start", "shop:app", "twice", "--arg", "1")],
    ids=["ls", "start"],
)
def test_who_waits_for_a_server_that_is_away_is_told(
    outlast: Outlast, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(context, "SILENT_S", 0.01)
    away = "postgresql://postgres@127.0.0.1:1/x?patience=1"
    said = outlast(*words, "--url", away)
    assert said.code == 1
    assert "waiting for postgresql://postgres@127.0.0.1:1/x, which does not answer yet" in said.err, said
    to_programs = outlast(*words, "--url", away, "--json")
    assert json.loads(to_programs.out)["error"]["type"] == "StoreUnavailable"
    assert to_programs.err == ""


@pytest.mark.parametrize(
    "words", [("ls",), ("ls", "--json"), ("show", "nobody", "--json"), ("--version",)], ids=" ".join
)
def test_an_output_that_cannot_be_written_is_a_sentence(outlast: Outlast, words: tuple[str, ...]):
    assert outlast("start", "shop:app", "twice", "--arg", "1").code == 0
    with Path("/dev/full").open("w") as full:
        said = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1] == "outlast: the output cannot be written: No space left on device"
    assert "Traceback" not in said.stderr


@pytest.mark.slow
def test_operating_without_a_worker(outlast: Outlast):
    """The life of executions that nobody runs: started, seen, held, released, cancelled, purged."""
    made = outlast.json("migrate")
    assert made == {"store": "sqlite:///outlast.db", "schema": made["schema"], "changed": True}
    assert outlast.json("migrate")["changed"] is False
    assert outlast.json("doctor")["well"] is True

    started = outlast("start", "shop:app", "twice", "--id", "t-1", "--arg", "4", "--tag", "customer=anna")
    assert (started.code, started.out) == (0, "t-1\n")
    assert "store sqlite:///outlast.db" in started.err
    assert outlast("start", "shop:app", "render", "--id", "r-1", "--input", '{"number": -1}').code == 0
    assert outlast("start", "shop:app", "twice", "--id", "t-2", "--arg", "-4", "--delay", "1h").code == 0
    conflict = outlast("start", "shop:app", "twice", "--id", "t-1", "--arg", "5")
    assert conflict.code == 1
    assert "exists as twice" in conflict.err
    assert "use another --id, or --if-exists restart once it has ended" in " ".join(conflict.err.split())
    assert "if_exists" not in conflict.err

    listed = outlast("ls")
    assert listed.out.split()[:6] == ["ID", "WORKFLOW", "STATUS", "WHY", "ATTEMPTS", "AGE"]
    assert "no worker is alive" in listed.out
    assert "delay in 59m" in listed.out
    found = outlast.json("ls", "--tag", "customer=anna", "--status", "open")
    assert [execution["id"] for execution in found["executions"]] == ["t-1"]
    assert (found["total"], found["store"]) == (1, "sqlite:///outlast.db")
    assert outlast.json("ls", "--lane", "gpu")["executions"][0]["requires"] == ["cuda"]
    assert outlast.json("ls", "--status", "ended")["executions"] == []
    created_at = found["executions"][0]["created_at"]
    assert outlast.json("ls", "--since", "1h")["total"] == 3
    assert outlast.json("ls", "--before", "1h")["total"] == 0
    assert outlast.json("ls", "--since", created_at)["total"] == 3
    assert outlast.json("ls", "--before", created_at)["total"] == 0, "it was the first"
    assert outlast.json("ls", "--before", "2026-01-01")["total"] == 0
    assert outlast.json("ls", "--since", "2026-01-01T08:00")["total"] == 3

    shown = outlast.json("show", "r-1")
    assert "no worker that serves it is alive" in shown["waiting"]
    assert "--lanes gpu --capabilities cuda" in shown["waiting"]
    assert shown["input"] == {"number": -1}
    sick = outlast("doctor")
    assert sick.code == 1
    assert "none alive, and 2 executions are ready" in sick.out
    assert "start a worker: outlast worker" in sick.out

    assert outlast.json("hold", "t-1")["reason"] == "operator"
    assert "`outlast release t-1`" in outlast("show", "t-1").out
    assert outlast.json("release", "t-1")["status"] == "ready"
    assert outlast.json("cancel", "t-1", "--reason", "she called")["status"] == "cancelled"
    assert outlast("hold", "t-1").code == 1, "it has ended"
    page = outlast("show", "t-1").out
    assert "hold asked for" in page
    assert "she called" in page
    assert max(map(len, page.splitlines())) <= 100
    assert outlast.json("retry", "t-1")["status"] == "ready"
    assert outlast.json("cancel", "t-1")["status_before"] == "ready"

    asked = outlast("purge", "--older-than", "0s")
    assert asked.code == 1
    assert "add --yes" in asked.err
    assert outlast.json("purge", "--older-than", "0s", "--yes")["purged"] == 1
    gone = outlast.json("show", "t-1", code=1)
    assert gone["error"]["type"] == "ExecutionNotFound"


@pytest.mark.slow
def test_executions_end_and_tell_how(outlast: Outlast):
    worker = outlast.begin("worker", "shop:app", "--lanes", "default", "--concurrency", "5")
    won = outlast("start", "shop:app", "twice", "--id", "won", "--arg", "4", "--wait")
    assert (won.code, won.out) == (0, "16\n")
    lost = outlast("start", "shop:app", "broken", "--id", "lost", "--arg", "7", "--wait")
    assert (lost.code, lost.out) == (1, "")
    assert "failed  ValueError: 7 is not a number that I like" in lost.err
    late = outlast.json("start", "shop:app", "slow", "--id", "late", "--arg", "60", "--wait", "--timeout", "1s", code=1)
    assert late["status"] == "active"

    page = outlast("show", "won").out
    assert "Succeeded" in page
    assert "step double #2" in page
    assert "Result  16" in page
    shown = outlast.json("show", "lost")
    assert shown["failure"]["message"] == "7 is not a number that I like"
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["failed"]
    assert "outlast retry lost" in shown["waiting"]

    assert outlast("cancel", "late", "--reason", "enough").code == 0
    outlast.until(lambda: outlast.json("show", "late")["execution"]["status"] == "cancelled", "the cancel")
    assert outlast("doctor").code == 0

    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


HOSTILE = "\x1b[2J\x1b]0;pwned\x07 \x9b31m \x7f\r\nand\tmore \u202egpj.exe \u2066\u2069\u200e\u200f\u061c\u2028"


@pytest.mark.parametrize(
    "words",
    [
        ("show", "raised"),
        ("show", "raised", "--all"),
        ("show", "returned"),
        ("flows", "show", "f"),
        ("start", "hostile:app", "raises", "--id", "raised", "--wait"),
        ("start", "hostile:app", "returns", "--id", "returned", "--wait"),
        ("--json", "show", "returned"),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_control_characters_do_nothing_to_the_terminal(
    outlast: Outlast, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    app = App("outlast.db")

    @app.workflow
    async def raises() -> None:
        raise ValueError(HOSTILE)

    @app.workflow
    async def returns() -> str:
        return HOSTILE

    flow = app.flow("f", id="f")
    flow.add("raises", raises)

    async def run() -> None:
        async with app:
            assert await returns.options(id="returned")() == HOSTILE
            with pytest.raises(ValueError, match="pwned"):
                await raises.options(id="raised")()
            with pytest.raises(FlowFailed):
                await (await flow.start()).result("20s")

    asyncio.run(run())
    monkeypatch.setitem(sys.modules, "hostile", SimpleNamespace(app=app))
    answer = outlast(*words)
    said = answer.out + answer.err
    assert "pwned" in said
    assert not [one for one in said if unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp") and one not in "\n\t"]
    if words[0] == "--json":
        assert json.loads(answer.out)["result"] == HOSTILE


def test_an_app_that_makes_its_own_store_is_found_there(outlast: Outlast, monkeypatch: pytest.MonkeyPatch):
    app = App(store=lambda: store_for("own.db"))

    @app.workflow
    async def works() -> int:
        return 1

    monkeypatch.setitem(sys.modules, "own", SimpleNamespace(app=app))
    started = outlast("start", "own:app", "works", "--id", "it")
    assert (started.code, started.out) == (0, "it\n")
    assert "store sqlite:///own.db" in started.err
    assert "`outlast show it --url sqlite:///own.db`" in started.err
    assert outlast("replay", "own:app", "--all-open").code == 0
    assert not (outlast.folder / "outlast.db").exists()
    elsewhere = outlast("start", "own:app", "works", "--id", "other", "--url", "sqlite:///outlast.db")
    assert (elsewhere.code, "store sqlite:///outlast.db" in elsewhere.err) == (0, True)
    assert [one["id"] for one in outlast.json("ls")["executions"]] == ["other"]
