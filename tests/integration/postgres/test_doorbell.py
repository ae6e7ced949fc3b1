"""Who listens alone on a database rings nobody, and whoever comes to listen is rung from then on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from outlast.store.port import RESCAN
from outlast.store.postgres import PostgresStore, doorbell
from outlast.store.postgres.company import ANSWERED_S, ANSWERS, ASKS, SILENT_MAX, Company
from outlast.store.postgres.doorbell import BELL, SELDOM_S
from outlast.testing.conformance import actors
from outlast.testing.conformance.doorbell import LANE_BELL, ear
from tests import postgres


class Wire:
    """What is said on the bell, overheard by somebody who says nothing."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._said: list[str] = []

    async def begin(self) -> None:
        await self._connection.add_listener(BELL, lambda *heard: self._said.append(heard[-1]))

    async def rings(self) -> list[str]:
        """What was rung since the last time, once what gathers has been sent."""
        await asyncio.sleep(5 * SELDOM_S)
        await self._connection.execute("SELECT 1")  # what was said before has arrived
        said, self._said = self._said, []
        return [line for one in said for line in one.split("\n")[1:]]

    async def until(self, word: str) -> None:
        async with asyncio.timeout(10):
            while word not in await self.rings():
                pass


@pytest.fixture
async def url() -> str:
    return await postgres.empty()


@pytest_asyncio.fixture
async def wire(url: str) -> AsyncIterator[Wire]:
    connection: Any = await asyncpg.connect(url)
    wire = Wire(connection)
    await wire.begin()
    yield wire
    await connection.close()


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    async for store in opened(url):
        yield store


async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    yield store
    await store.close()


async def alone(store: PostgresStore, wire: Wire) -> None:
    """It listens, has asked, and nobody has answered for as long as anybody may."""
    await ear(store)
    await wire.until(ASKS)
    await asyncio.sleep(2 * ANSWERED_S)


async def test_who_listens_alone_rings_nobody_but_its_own(store: PostgresStore, wire: Wire):
    own = await ear(store)
    await alone(store, wire)
    await actors.start(store, "a")
    await own.hears(LANE_BELL)
    store.ring(frozenset({"by hand"}))
    await own.hears("by hand")
    assert set(await wire.rings()) <= {ASKS}  # now and then: is it still alone?


async def test_who_does_not_listen_rings_always(url: str, wire: Wire):
    """It would not hear an answer."""
    async for store in opened(url):
        await asyncio.sleep(2 * ANSWERED_S)
        await actors.start(store, "a")
        assert LANE_BELL in await wire.rings()


async def test_whoever_comes_to_listen_is_rung_from_then_on(url: str, store: PostgresStore, wire: Wire):
    await alone(store, wire)
    await actors.start(store, "not rung")
    async for other in opened(url):
        listener = await ear(other)
        assert RESCAN in await listener.next()  # until it came the first thought that it is alone
        await actors.start(store, "a")
        await listener.hears(LANE_BELL)
        await actors.start(other, "b")
        assert LANE_BELL in await wire.rings()


async def test_who_answers_late_is_told_to_look_at_what_was_not_rung(url: str, store: PostgresStore, wire: Wire):
    """It was frozen, say, and had been forgotten: what it hears first is its own answer."""
    await alone(store, wire)
    await actors.start(store, "a")
    assert set(await wire.rings()) <= {ASKS}
    connection: Any = await asyncpg.connect(url)
    await connection.execute("SELECT pg_notify($1, $2)", BELL, f"somebody\n{ANSWERS}")
    await connection.close()
    assert RESCAN in await wire.rings()
    await actors.start(store, "b")
    assert LANE_BELL in await wire.rings()


def test_who_hears_others_before_it_has_asked_is_not_alone():
    company = Company()
    company.hears("other", {ASKS})
    company.asked(0)
    assert not company.is_alone(10)


def test_nobody_is_alone_before_others_could_answer():
    company = Company()
    assert not company.is_alone(10)
    company.asked(10)
    assert not company.is_alone(10)
    assert company.is_alone(10 + ANSWERED_S)


def test_who_only_rings_does_not_listen():
    company = Company()
    company.asked(0)
    company.hears("starter", {LANE_BELL})
    assert company.is_alone(10)


def test_who_is_silent_is_asked_and_then_forgotten_and_who_speaks_is_not():
    company = Company()
    company.asked(0)
    company.hears("other", {ANSWERS})
    looks = [company.looks() for _ in range(SILENT_MAX)]
    assert looks == [False, True, True]
    assert not company.is_alone(10)
    company.hears("other", {LANE_BELL})
    assert company.looks() is False
    for _ in range(SILENT_MAX + 1):
        company.looks()
        company.asked(0)
    assert company.is_alone(10)


def test_who_hears_of_nobody_asks_at_every_look():
    company = Company()
    assert company.looks()
    company.asked(0)
    assert company.looks()


def test_who_hears_somebody_need_not_ask_those_who_are_silent():
    company = Company()
    company.hears("silent", {ANSWERS})
    for _ in range(SILENT_MAX):
        company.hears("other", {ANSWERS})
        assert not company.looks()


def test_who_does_not_hear_its_own_question_any_more_does_not_know_who_is_there():
    """It listens at what was the primary, say, and what it rings goes elsewhere."""
    company = Company()
    company.asked(0)
    for _ in range(SILENT_MAX):
        assert company.is_alone(10)
        company.looks()
    assert not company.is_alone(10)
    company.asked(10)
    assert company.is_alone(10)


def test_one_answer_is_enough():
    company = Company()
    company.hears("asks", {ASKS})
    assert company.owes
    company.hears("other", {ANSWERS})
    assert not company.owes


def test_who_asks_is_not_answered_by_what_it_answers_itself():
    company = Company()
    company.hears("asks", {ASKS})
    company.hears("asks", {ANSWERS})
    assert company.owes
    company.answers()
    assert not company.owes


def test_who_knows_of_nobody_else_answers_at_once_and_one_of_many_within_the_time():
    company = Company()
    company.hears("asks", {ASKS})
    assert company.answers_in_s(1.0) == 0
    company.hears("other", {ANSWERS})
    company.hears("asks", {ASKS})
    assert 0 <= company.answers_in_s(0.0) < company.answers_in_s(0.5) < company.answers_in_s(1.0) < ANSWERED_S


async def test_who_has_gone_without_a_word_is_not_rung_for_ever(
    url: str, store: PostgresStore, wire: Wire, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doorbell, "KEEPALIVE_S", 0.2)
    await alone(store, wire)
    async for other in opened(url):
        await ear(other)
        await wire.rings()
        await actors.start(store, "a")
        assert LANE_BELL in await wire.rings()
    async with asyncio.timeout(20):
        number = 0
        while True:
            number += 1
            await actors.start(store, f"b{number}")
            if LANE_BELL not in await wire.rings():
                break


async def test_who_has_lost_its_connection_rings_until_it_has_asked_again(url: str, store: PostgresStore, wire: Wire):
    await alone(store, wire)
    listener = await ear(store)
    connection: Any = await asyncpg.connect(url)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        " AND datname = current_database() AND application_name = 'outlast'"
    )
    await connection.close()
    assert RESCAN in await listener.next()
    await actors.start(store, "a")
    rung = await wire.rings()
    assert LANE_BELL in rung
    if ASKS not in rung:
        await wire.until(ASKS)


async def test_whose_question_is_lost_is_rung_all_the_same_soon(
    url: str, store: PostgresStore, wire: Wire, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doorbell, "KEEPALIVE_S", 0.5)
    await alone(store, wire)
    notify, lost = doorbell.Doorbell._notify, list[str]()

    async def loses_one(bell: doorbell.Doorbell, heard: str, name: str = BELL) -> None:
        if bell is asking and not lost:
            lost.append(heard)
        else:
            await notify(bell, heard, name)

    monkeypatch.setattr(doorbell.Doorbell, "_notify", loses_one)
    async for other in opened(url):
        asking = other._opened()[1]
        await ear(other)
        async with asyncio.timeout(20):
            number = 0
            while LANE_BELL not in await wire.rings():
                number += 1
                await actors.start(store, f"a{number}")
    assert [ASKS in heard for heard in lost] == [True]


async def test_of_many_who_listen_few_answer(url: str, wire: Wire, monkeypatch: pytest.MonkeyPatch):
    """Else everybody who comes makes everybody ring, and those who have nothing to do ask each other for ever."""
    monkeypatch.setattr(doorbell, "KEEPALIVE_S", 1.0)
    stores = [PostgresStore(url) for _ in range(12)]
    try:
        for store in stores:
            await store.open()
            await ear(store)
        await asyncio.sleep(2 * ANSWERED_S)
        await wire.rings()
        await asyncio.sleep(5)
        said = await wire.rings()
        assert 0 < said.count(ANSWERS) < 3 * len(stores), said  # if all answered: twice as many
        async for newcomer in opened(url):
            await ear(newcomer)
            await asyncio.sleep(2 * ANSWERED_S)
            assert 0 < (await wire.rings()).count(ANSWERS) < len(stores)
    finally:
        for store in stores:
            await store.close()
