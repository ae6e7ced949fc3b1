"""`replay` before a deploy, `fork` and `retry --from-step` after one, and what `show` says of a missing version."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from typing import Any

import pytest

from outlast import App
from tests.acceptance.conftest import status_is, until
from tests.integration.cli.conftest import Outlast

CODE = """
from outlast import App, Retry

app = App("sqlite:///outlast.db")

@app.step
async def charge() -> str:
    return "charged"

@app.step(retry=Retry(max_attempts=2, initial="1h"))
async def ship() -> str:
    raise ConnectionError("no ship")

@app.workflow{options}
async def checkout() -> list[str]:
    return [{steps}]
"""
AS_IT_WAS = CODE.format(options="", steps="await charge(), await ship()")
IN_ANOTHER_ORDER = CODE.format(options="", steps="await ship(), await charge()")
VERSION_2 = CODE.format(options='(version="2")', steps="await charge()")


def deploy(outlast: Outlast, code: str) -> App:
    (outlast.folder / "sick.py").write_text(code)
    sys.modules.pop("sick", None)
    sys.path.insert(0, str(outlast.folder))
    importlib.invalidate_caches()
    return importlib.import_module("sick").app


async def half_way(app: App) -> None:
    async with app:
        handle = await app.registry.newest("checkout").options(id="order-1").start()
        await status_is(handle, "suspended")


@pytest.fixture
def store(outlast: Outlast) -> Outlast:
    """With one execution in the middle of its way."""
    asyncio.run(half_way(deploy(outlast, AS_IT_WAS)))
    return outlast


def test_replay_finds_nothing_where_nothing_has_changed(store: Outlast):
    answer = store("replay", "sick:app", "--all-open")
    assert (answer.code, answer.out.strip()) == (0, "1 execution replayed: 1 as recorded, 0 not")


TOKEN = """
import outlast
from outlast import App

app = App("sqlite:///outlast.db"{keys})

@app.workflow
async def checkout() -> bool:
    paid = outlast.deferred("paid", bool)
    outlast.emit(await paid.token())
    return await paid
"""


def test_replay_needs_no_token_keys(outlast: Outlast):
    keys = ', token_keys="k1:bm90LWEtc2VjcmV0LW9ubHktYS1zYW1wbGU"'
    asyncio.run(half_way(deploy(outlast, TOKEN.format(keys=keys))))
    deploy(outlast, TOKEN.format(keys=""))
    answer = outlast("replay", "sick:app", "--all-open")
    assert (answer.code, answer.out.strip()) == (0, "1 execution replayed: 1 as recorded, 0 not")


def test_replay_names_the_line_that_diverges(store: Outlast):
    deploy(store, IN_ANOTHER_ORDER)
    answer = store("replay", "sick:app", "--execution", "order-1")
    assert answer.code == 1
    assert "order-1  checkout version 1  recorded step 'charge', but the code now does step 'ship'" in answer.out
    line = IN_ANOTHER_ORDER.splitlines().index("    return [await ship(), await charge()]") + 1
    assert f"sick.py:{line}" in answer.out.replace("\n", "")
    document = store.json("replay", "sick:app", "--all-open", code=1)
    [found] = document["divergences"]
    assert (document["replayed"], found["id"], found["entries"]) == (1, "order-1", 2)
    assert found["line"].endswith(f"sick.py:{line}")
    journal = store.json("show", "order-1")["journal"]
    assert [entry["op"] for entry in journal] == ["step", "retry"]  # as before


def test_replay_finds_a_version_that_is_gone(store: Outlast):
    deploy(store, VERSION_2)
    answer = store("replay", "sick:app", "--all-open")
    assert answer.code == 1
    assert "the app does not have this version" in answer.out
    assert store.json("replay", "sick:app", "--all-open", code=1)["missing"][0]["version"] == "1"


@pytest.mark.parametrize("arguments", [(), ("--all-open", "--execution", "order-1")])
def test_replay_must_be_told_which(store: Outlast, arguments: tuple[str, ...]):
    answer = store("replay", "sick:app", *arguments)
    assert answer.code == 2
    assert "--all-open" in answer.err


def test_fork_and_retry_refuse_a_step_that_is_not_there_and_name_those_that_are(store: Outlast):
    for command in ("fork", "retry"):
        answer = store(command, "order-1", "--from-step", "refund")
        assert answer.code == 2
        assert "no 'refund'; it has recorded charge" in answer.err.replace("\n", " ")


def test_fork_starts_a_new_execution(store: Outlast):
    assert store("fork", "order-1", "--from-step", "charge", "--into", "order-2").code == 0
    document = store.json("fork", "order-1", "--from-step", "charge")
    assert document["forked_from"] == "order-1"
    assert document["id"].startswith("order-1-fork-")
    shown = store.json("show", "order-2")["execution"]
    assert (shown["status"], shown["workflow"], shown["generation"]) == ("ready", "checkout", 2)
    assert store("fork", "order-1", "--from-step", "charge", "--into", "order-2").code == 1


def test_show_says_which_version_is_missing_and_which_are_offered(store: Outlast):
    store("fork", "order-1", "--from-step", "charge", "--into", "order-2")
    app = deploy(store, VERSION_2)

    async def seen() -> bool:
        return (await app.execution("order-2").info()).reason == "version"

    async def look() -> None:
        async with app.worker() as worker:
            await until(seen, "it has a reason")
            names.append(worker.name)
            answers.append(await asyncio.to_thread(store.real, "show", "order-2"))
            answers.append(await asyncio.to_thread(store.real, "ls", "--status", "ready"))

    names: list[str] = []
    answers: list = []
    asyncio.run(look())
    shown = " ".join(answers[0].out.split())
    assert "but no live worker has version 1 of checkout: offered are version 2 (by" in shown
    assert names[0] in shown.replace(" ", "")
    assert "with workflow checkout version 1" in shown
    assert "version" in answers[1].out


def test_who_tells_an_execution_something_hears_why_it_is_not_claimed_as_show_says_it(store: Outlast):
    store("fork", "order-1", "--from-step", "charge", "--into", "order-2")
    app = deploy(store, VERSION_2)
    answers: list[Any] = []

    async def tell() -> None:
        async with app.worker():
            await until(seen, "it has a reason")
            for command in ("show", "hold", "release"):
                answers.append(await asyncio.to_thread(store.real, command, "order-2", "--json"))

    async def seen() -> bool:
        return (await app.execution("order-2").info()).reason == "version"

    asyncio.run(tell())
    shown, held, released = (json.loads(answer.out) for answer in answers)
    assert held["reason"] == "operator"
    assert released["reason"] == shown["execution"]["reason"] == "version"
    assert released["waiting"].partition(", but ")[2] == shown["waiting"].partition(", but ")[2]


# ---- arguments, and what cannot be replayed -----------------------------------------------------------------------

TAKES = """
import outlast
from outlast import App


class Codec:
    def encode(self, data: bytes) -> bytes:
        return b"sealed" + data

    def decode(self, data: bytes) -> bytes:
        if {unreadable!r} in data:
            raise PermissionError("no key")
        return data.removeprefix(b"sealed")


app = App("sqlite:///outlast.db", codec=Codec())

@app.workflow
async def checkout(order: str{more}) -> str:
    await outlast.sleep("1h")
    return order
"""


def waiting(outlast: Outlast) -> None:
    """Two executions, which both wait."""

    async def start(app: App) -> None:
        async with app:
            for order in ("tea", "cup"):
                handle = await app.registry.newest("checkout").options(id=f"order-{order}").start(order)
                await status_is(handle, "suspended")

    asyncio.run(start(deploy(outlast, TAKES.format(more="", unreadable=b"nothing"))))


def test_replay_reports_every_execution_whose_arguments_the_code_does_not_take(outlast: Outlast):
    waiting(outlast)
    deploy(outlast, TAKES.format(more=", currency: str", unreadable=b"nothing"))
    answer = outlast("replay", "sick:app", "--all-open")
    assert answer.code == 1
    said = " ".join(answer.out.split())
    for order in ("tea", "cup"):
        assert (
            f"order-{order} checkout version 1 recorded its arguments, but the code now does not take them: checkout "
            "requires 'currency', which this execution was started without at"
        ) in said
    assert "2 executions replayed: 0 as recorded, 2 not" in said


def test_replay_of_one_that_fails_does_not_hide_the_others(outlast: Outlast):
    waiting(outlast)
    deploy(outlast, TAKES.format(more="", unreadable=b"tea"))
    answer = outlast("replay", "sick:app", "--all-open")
    assert answer.code == 1
    said = " ".join(answer.out.split())
    assert "order-tea checkout version 1 the replay failed: CodecHookFailed: " in said
    assert "PermissionError: no key" in said
    assert "2 executions replayed: 1 as recorded, 1 not" in said
    document = outlast.json("replay", "sick:app", "--all-open", code=1)
    assert (document["replayed"], document["divergences"], document["missing"]) == (2, [], [])
    [found] = document["errors"]
    assert found["id"] == "order-tea"
    assert "no key" in found["error"]
