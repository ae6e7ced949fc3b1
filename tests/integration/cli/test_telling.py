"""Words to executions from the command line: `send`, `resolve`, `tokens`, `update`, and the question `query`."""

from __future__ import annotations

import asyncio
import importlib
import shutil
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast import App, UpstreamFailure
from outlast.testing import harness
from tests.acceptance.conftest import status_is
from tests.integration.cli.conftest import Outlast

KEYS = "k1:bm90LWEtc2VjcmV0LW9ubHktYS1zYW1wbGU"
OTHER_KEYS = "k1:YW5vdGhlci1rZXktdGhhdC1pcy1ub3Qtb3Vycw"


@pytest.fixture
def desk(outlast: Outlast) -> Iterator[Outlast]:
    """With executions of `desk.py` started; nobody runs them yet."""
    shutil.copy(Path(__file__).with_name("desk.py"), outlast.folder / "desk.py")
    sys.modules.pop("desk", None)
    for workflow, name in (("plans", "p-1"), ("approved", "a-1"), ("approved", "a-2"), ("counter", "c-1")):
        assert outlast("start", "desk:app", workflow, "--id", name).code == 0
    yield outlast
    sys.modules.pop("desk", None)


def results(desk: Outlast, *names: str) -> list[Any]:
    """Run them, in this process."""

    async def run() -> list[Any]:
        app = the_app()
        async with app:
            return [await app.execution(name).result(timeout=20) for name in names]

    return asyncio.run(run())


def the_app() -> App:
    return importlib.import_module("desk").app  # copied there by the fixture


def test_an_event_is_sent_once_per_key_and_received(desk: Outlast):
    told = desk.json("send", "p-1", "plan", '"gold"', "--key", "mail-7")
    assert (told["id"], told["status"], told["store"]) == ("p-1", "ready", "sqlite:///outlast.db")
    assert desk("send", "p-1", "plan", '"gold"', "--key", "mail-7").code == 0
    said = desk("send", "p-1", "plan", '"silver"')
    assert (said.code, said.out.split()[:2]) == (0, ["p-1", "ready"])
    events = desk.json("show", "p-1")["events"]
    assert [(event["name"], event["value"]) for event in events] == [("plan", "gold"), ("plan", "silver")]
    assert results(desk, "p-1") == [["gold", "silver"]]
    late = desk("send", "p-1", "plan", '"tin"')
    assert (late.code, "has ended" in late.err) == (1, True)


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (("send", "p-1", "plan", "gold"), 2, "the value must be JSON"),
        (("send", "nobody", "plan", "1"), 1, "no execution 'nobody'"),
        (("send", "p-1", "outlast:cancel", "1"), 2, "reserved"),
        (("resolve", "a-1"), 2, "say which execution and which deferred"),
        (("resolve", "a-1", "approval", "--token", "x"), 2, "leave both out"),
        (("resolve", "a-1", "approval", "true", "--reject", "no"), 2, "not both"),
        (("resolve", "--token", "ol1.k1.x.y"), 2, "this token is not valid"),
        (("tokens", "nobody", "approval"), 1, "no execution 'nobody'"),
        (("tokens", "a-1", "outlast:interrupt"), 2, "reserved"),
        (("tokens", "a-1", "approval", "--expires", "soon"), 2, 'write "200ms"'),
        (("tokens", "a-1", "approval", "--expires", "0s"), 2, "--expires must be longer than nothing"),
        (("update", "c-1", "add", "three"), 2, "the value must be JSON"),
        (("query", "desk:app", "c-1", "sum"), 1, "no query 'sum'; it has 'total'"),
        (("query", "desk:app", "nobody", "total"), 1, "no execution 'nobody'"),
    ],
)
def test_what_cannot_be_said_is_explained(desk: Outlast, arguments: tuple[str, ...], code: int, says: str):
    answer = desk(*arguments)
    assert (answer.code, says in answer.err) == (code, True), answer
    assert "Traceback" not in answer.err


def test_a_deferred_is_resolved_once_and_rejected(desk: Outlast):
    assert desk("resolve", "a-1", "approval", "true").code == 0
    assert desk("resolve", "a-1", "approval", "--value", "true").code == 0, "the same again"
    other = desk("resolve", "a-1", "approval", "false")
    assert (other.code, "with another value" in other.err) == (1, True)
    assert desk.json("resolve", "a-2", "approval", "--reject", "too expensive")["id"] == "a-2"
    assert results(desk, "a-1", "a-2") == ["yes", "rejected: too expensive"]


def test_tokens_are_made_with_the_keys_of_the_environment_and_resolve(desk: Outlast, monkeypatch: pytest.MonkeyPatch):
    key = desk("tokens", "key", "2026-11").out.strip()
    assert key.startswith("2026-11:")
    assert desk.json("tokens", "key")["key"] != desk.json("tokens", "key")["key"]
    assert desk("tokens", "a-1", "approval").code != 0, "there is no key to sign with"

    monkeypatch.setenv("OUTLAST_TOKEN_KEYS", KEYS)
    made = desk.json("tokens", "a-1", "approval", "--expires", "3d")
    assert (made["id"], made["deferred"], made["expires_at"][-1]) == ("a-1", "approval", "Z")
    rejecting = desk("tokens", "a-2", "approval").out.strip()
    expired = desk("tokens", "a-1", "approval", "--expires", "1ms").out.strip()

    monkeypatch.setenv("OUTLAST_TOKEN_KEYS", OTHER_KEYS)
    forged = desk("resolve", "--token", made["token"], "--value", "true")
    assert (forged.code, "this token is not valid" in forged.err) == (2, True)
    monkeypatch.setenv("OUTLAST_TOKEN_KEYS", KEYS)
    late = desk("resolve", "--token", expired, "--value", "true")
    assert (late.code, "expired" in late.err) == (2, True)
    assert desk("resolve", "--token", made["token"], "--value", "true").out == "resolved\n"
    assert desk("resolve", "--token", rejecting, "--reject", "no").out == "rejected\n"
    assert results(desk, "a-1", "a-2") == ["yes", "rejected: no"]


def test_a_query_shows_and_an_update_is_answered_or_refused(desk: Outlast):
    assert desk("query", "desk:app", "c-1", "total").out == "0\n"
    nobody = desk("update", "c-1", "add", "3", "--key", "k", "--timeout", "50ms")
    assert (nobody.code, "was not accepted within 0.05 s" in nobody.err) == (1, True)

    async def with_a_worker(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with the_app():
            await work()

    async def ask() -> None:
        told = await asyncio.to_thread(desk.json, "update", "c-1", "add", "3", "--key", "k")
        assert told["answer"] == 3
        said = await asyncio.to_thread(desk, "update", "c-1", "add", "4")
        assert (said.code, said.out) == (0, "c-1  accepted: 7\n")
        refused = await asyncio.to_thread(desk, "update", "c-1", "add", "0")
        assert (refused.code, "refused update 'add': only more" in refused.err) == (1, True)

    asyncio.run(with_a_worker(ask))
    assert desk.json("query", "desk:app", "c-1", "total")["answer"] == 7
    page = desk("show", "c-1").out
    assert "update add" in page
    assert "refused" in page
    assert "only more" in page
    events = desk.json("show", "c-1")["events"]
    assert [event["value"]["outcome"] for event in events] == ["accepted", "accepted", "refused"]
    assert events[1]["value"] == {"update": "add", "outcome": "accepted", "answer": 7}


async def test_replay_knows_the_tokens_of_the_app(outlast: Outlast):
    """Code that issues a token is replayed with the app's keys, as by its workers."""
    (outlast.folder / "desk.py").write_text(
        "import outlast\n"
        "from outlast import App\n"
        f'app = App("sqlite:///outlast.db", token_keys="{KEYS}")\n'
        "@app.workflow\n"
        "async def asks() -> bool:\n"
        '    approval = outlast.deferred("approval", bool)\n'
        "    await approval.token()\n"
        "    return await approval\n"
    )
    sys.modules.pop("desk", None)
    sys.path.insert(0, str(outlast.folder))
    app = the_app()
    try:
        async with harness(app) as h:
            handle = await app.registry.newest("asks").start()
            await h.settle()
            assert [entry.op for entry in await handle.journal()] == ["token"]
            assert await h.replay(handle) is None
        async with app:
            handle = await app.registry.newest("asks").options(id="t-1").start()
            while (await handle.info()).status != "suspended":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        answer = await asyncio.to_thread(outlast, "replay", "desk:app", "--execution", "t-1")
        assert answer.code == 0, answer
    finally:
        sys.modules.pop("desk", None)
        sys.path.remove(str(outlast.folder))


# ---- an app with a codec ------------------------------------------------------------------------------------------


class Masked:
    def encode(self, data: bytes) -> bytes:
        return bytes(byte ^ 0x55 for byte in data)

    decode = encode


class Sealed:
    """An app with a codec, on the store of the command."""

    def __init__(self) -> None:
        self.app = app = App("outlast.db", codec=Masked(), token_keys=KEYS)

        @app.workflow
        async def hears() -> str:
            outlast.progress(0.5, "half of it")
            return await outlast.receive("word", str)

        @app.workflow
        async def fails() -> None:
            raise ValueError("no")

        @app.workflow
        async def cleans(failure: UpstreamFailure | None) -> str:
            return "" if failure is None else failure.status

        self.hears, self.fails, self.cleans = hears, fails, cleans


@pytest.mark.parametrize(
    "words",
    [
        ("send", "it", "word", '"a"'),
        ("update", "it", "word", '"a"'),
        ("resolve", "it", "word", '"a"'),
        ("resolve", "it", "word", "--reject", "no"),
        ("resolve", "--value", "1", "--token"),
        ("retry", "failed"),
    ],
    ids=" ".join,
)
def test_what_an_apps_codec_sealed_is_not_written_beside(
    outlast: Outlast, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
):
    sealed = Sealed()

    async def run() -> None:
        async with sealed.app:
            await sealed.hears.options(id="it").start()
            failed = await sealed.fails.options(id="failed").start()
            with pytest.raises(ValueError, match="no"):
                await failed.result("20s")

    asyncio.run(run())
    if words[-1] == "--token":
        monkeypatch.setenv("OUTLAST_TOKEN_KEYS", KEYS)
        words = (*words, outlast("tokens", "it", "word").out.strip())
    refused = outlast(*words)
    assert (refused.code, "sealed by its app's codec" in refused.err) == (1, True)
    assert outlast.json("show", "it")["events"] == []
    assert outlast.json("show", "failed")["execution"]["status"] == "failed"


def test_what_an_apps_codec_sealed_is_carried_by_those_that_have_it(outlast: Outlast):
    sealed = Sealed()
    flow = sealed.app.flow("f", id="f")
    first = flow.add("first", sealed.hears)
    flow.add("last", sealed.cleans, first.failure).after(first, on_failure="run")

    async def run(*, starts: bool) -> Any:
        async with sealed.app:
            if starts:
                await flow.start()
                first = sealed.app.execution("f/first")
                await status_is(first, "suspended")
                return None
            return await sealed.app.execution("f/last").result("20s")

    asyncio.run(run(starts=True))
    told = outlast("cancel", "f/first")
    assert (told.code, "suspended → cancelled" in told.out, "Traceback" in told.err) == (0, True, False)
    assert outlast.json("show", "f/last")["execution"]["status"] == "blocked"
    assert asyncio.run(run(starts=False)) == "cancelled"


def test_a_flow_is_not_updated_or_forked(outlast: Outlast):
    app = App("outlast.db")

    @app.workflow
    async def works() -> None: ...

    flow = app.flow("f", id="f")
    flow.add("one", works)

    async def run() -> None:
        async with app.client():
            await flow.start()

    asyncio.run(run())
    for words in (("update", "f", "x"), ("fork", "f", "--from-step", "x")):
        refused = outlast(*words)
        assert (refused.code, "f is a flow, not an execution" in refused.err) == (1, True)
