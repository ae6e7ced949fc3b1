"""Users of the server who may not do everything."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outlast.app import App
from outlast.store.port import RESCAN, Check, Grade
from outlast.store.valkey import ValkeyStore, doorbell
from outlast.testing.conformance.actors import look, start
from outlast.testing.valkey_server import ValkeyServer

DOCS = Path(__file__).parents[3] / "docs" / "valkey.md"


def url_of_user(server: ValkeyServer) -> str:
    return server.url.replace("unix://", "unix://shop:password@")


async def opened(server: ValkeyServer, *rules: str) -> ValkeyStore:
    """As a user with these rights."""
    server.ask("ACL", "SETUSER", "shop", "reset", "on", ">password", *rules)
    store = ValkeyStore(url_of_user(server))
    await store.migrate()
    await store.open()
    return store


@pytest.fixture
async def mute(server: ValkeyServer) -> AsyncIterator[ValkeyStore]:
    """Of a user who may do everything, but has no channels: as new users are."""
    store = await opened(server, "~*", "+@all", "resetchannels")
    yield store
    await store.close()


async def doorbell_of(store: ValkeyStore) -> Check:
    [check] = [check for check in (await store.health()).checks if check.name == "doorbell"]
    return check


async def test_who_may_not_ring_writes_all_the_same(mute: ValkeyStore):
    await start(mute)
    assert (await look(mute, "a")).id == "a"


async def test_doctor_says_that_the_user_may_not_ring(mute: ValkeyStore):
    check = await doorbell_of(mute)
    assert check.grade is Grade.WARNING
    assert "NOPERM" in check.found
    assert check.advice is not None
    assert "&*" in check.advice


async def test_who_may_not_listen_is_told_once_and_does_not_try_all_the_time(
    server: ValkeyServer, mute: ValkeyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(doorbell, "_AGAIN_S", 0.05)
    with caplog.at_level(logging.WARNING):
        listener = mute.listen()
        heard = await asyncio.wait_for(anext(aiter(listener)), 5)
        await asyncio.sleep(0.3)
    await listener.close()
    assert heard == {RESCAN}
    [said] = [record.getMessage() for record in caplog.records if "doorbell" in record.getMessage()]
    assert "NOPERM" in said
    stats = server.ask("INFO", "commandstats").decode()
    assert int(re.findall(r"cmdstat_auth:calls=(\d+)", stats)[0]) < 20


async def test_the_rights_that_the_docs_list_are_enough(server: ValkeyServer):
    [rules] = re.findall(r"^ACL SETUSER shop on >password (.*)$", DOCS.read_text(), re.MULTILINE)
    store = await opened(server, *rules.split())
    checks = (await store.health()).checks
    assert {check.grade for check in checks} == {Grade.OK}
    await store.close()
    app = App(url_of_user(server))

    @app.workflow
    async def pay(amount: int) -> int:
        return amount

    async with app:
        assert await (await pay.start(42)).result(timeout=10) == 42
        await asyncio.sleep(0.01)
        assert await app.purge(older_than="1ms") == 1
