"""`outlast copy` as people run it: what it says, what it refuses, and killed in the middle."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from outlast.app import store_for
from outlast.errors import OutlastError
from outlast.testing.valkey_server import ValkeyServer
from tests.integration.cli.conftest import Outlast


@pytest.fixture
def valkey() -> Iterator[str]:
    with ValkeyServer() as server:
        yield server.url


def started(outlast: Outlast, number: int) -> None:
    for n in range(number):
        assert outlast("start", "shop:app", "twice", "--id", f"t{n}", "--arg", str(n)).code == 0


def test_a_copy_says_what_it_copied_and_can_be_repeated(outlast: Outlast):
    started(outlast, 3)
    said = outlast("copy", "--from", "sqlite:///outlast.db", "--to", "sqlite:///other.db")
    assert said.code == 0, said
    assert "outlast.db to " in said.err
    assert "all namespaces" in said.err
    assert "execution" in said.out
    assert "6 records copied and compared" in said.out
    again = outlast.json("copy", "--from", "sqlite:///outlast.db", "--to", "sqlite:///other.db")
    assert again["kinds"]["execution"]["records"] == 3
    assert again["found"] == 6
    assert again["resumed"] is False
    assert len(outlast.json("ls", "--url", "sqlite:///other.db")["executions"]) == 3


def test_what_cannot_be_copied_is_told_in_a_sentence(outlast: Outlast):
    gone = outlast.json("copy", "--from", "sqlite:///nothing.db", "--to", "sqlite:///other.db", code=1)
    assert gone["error"]["type"] == "SchemaMissing"
    assert not (outlast.folder / "nothing.db").exists()
    started(outlast, 1)
    both = outlast("copy", "--from", "sqlite:///outlast.db", "--to", "sqlite:///other.db", "--url", "sqlite:///x.db")
    assert both.code == 2
    assert "--from and --to" in both.err
    same = outlast.json("copy", "--from", "sqlite:///outlast.db", "--to", "sqlite:///./outlast.db", code=2)
    assert same["error"]["type"] == "InvalidInput"
    outlast("copy", "--from", "sqlite:///outlast.db", "--to", "sqlite:///other.db")
    outlast("hold", "t0", "--url", "sqlite:///other.db")
    taken = outlast.json("copy", "--from", "sqlite:///outlast.db", "--to", "sqlite:///other.db", code=1)
    assert taken["error"]["type"] == "CopyConflict"


@pytest.mark.slow
def test_a_copy_that_is_killed_goes_on_and_its_work_finishes_on_the_target(outlast: Outlast, valkey: str):
    script = outlast.folder / "many.py"
    script.write_text(
        "import asyncio\nfrom shop import app, twice\n"
        "async def many():\n"
        "    async with app.client():\n"
        "        await app.start_many(twice.options(id=f't{n}').bind(n) for n in range(2_000))\n"
        "asyncio.run(many())\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, timeout=60, cwd=outlast.folder)
    copying = ("copy", "--from", "sqlite:///outlast.db", "--to", valkey)
    kills = 0
    for delay in (1, 3):
        process = outlast.begin(*copying)
        outlast.until(lambda: keys(valkey) > delay * 200 or process.poll() is not None, "it copies")  # noqa: B023
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills
    copied = outlast.json(*copying)
    assert copied["resumed"]
    assert copied["kinds"]["execution"]["records"] == 2_000
    outlast.begin("worker", "shop:app", "--url", valkey)
    outlast.until(lambda: ended(outlast, valkey), "all of it has ended")


def keys(url: str) -> int:
    async def count() -> int:
        store = store_for(url)
        try:
            await store.open()
            return len(await store.scan("payload", ("default",), limit=10_000))
        except OutlastError:
            return 0
        finally:
            await store.close()

    return asyncio.run(count())


def ended(outlast: Outlast, url: str) -> bool:
    left = outlast.json("ls", "--status", "open", "--limit", "1", "--url", url)["executions"]
    return not left
