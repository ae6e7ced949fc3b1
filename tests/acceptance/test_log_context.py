"""Which execution a log line of workflow or step code is from, and which of them repeat when the code is replayed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

import outlast
from outlast import App
from tests.acceptance.conftest import Place, status_is

NAMES = ("execution", "workflow", "step", "attempt")
mine = logging.getLogger("shop")


class Heard(logging.Handler):
    """What is logged, with what it is about."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(outlast.LogContext())
        self.lines: list[tuple[Any, ...]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name in ("shop", "outlast.code"):
            self.lines.append((record.getMessage(), *(record.__dict__[name] for name in NAMES)))


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[Heard]:
    caplog.set_level(logging.INFO)
    handler = Heard()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


async def test_every_line_of_workflow_and_step_code_says_where_it_is_from(app: App, heard: Heard):
    @app.step
    async def charge() -> None:
        mine.info("charging")

    @app.step(timeout="20s")
    def post() -> None:
        mine.info("posting")

    @app.workflow
    def ship() -> None:
        mine.info("shipping")
        post()

    @app.workflow
    async def checkout() -> None:
        mine.info("checking out")
        await charge()
        await ship.aio()

    async with app:
        mine.info("outside")
        await (await checkout.options(id="it").start()).result("20s")
    assert set(heard.lines) == {
        ("outside", "", "", "", ""),
        ("checking out", "it", "checkout", "", 1),
        ("charging", "it", "checkout", "charge", 1),
        ("shipping", "it/ship.1", "ship", "", 1),
        ("posting", "it/ship.1", "ship", "post", 1),
    }


async def test_the_logger_is_silent_while_code_is_replayed(clocked: Place, heard: Heard):
    app = clocked.app()
    replaying: list[bool] = []

    @app.step
    async def pack(number: int) -> int:
        assert not outlast.replaying()
        outlast.logger.info("packing %d", number)
        return number

    @app.workflow
    async def order() -> None:
        replaying.append(outlast.replaying())
        outlast.logger.info("begun")
        mine.info("begun, said by another logger")
        await pack(1)
        outlast.logger.info("packed")
        await outlast.sleep("1h")
        replaying.append(outlast.replaying())
        outlast.logger.info("slept")
        await pack(2)

    assert not outlast.replaying()
    async with app:
        handle = await order.options(id="it").start()
        await status_is(handle, "suspended")
        await clocked.pass_time(app, "2h")
        await handle.result("20s")
    said = [message for message, *_ in heard.lines]
    assert [message for message in said if not message.endswith("another logger")] == [
        "begun",
        "packing 1",
        "packed",
        "slept",
        "packing 2",
    ]
    assert said.count("begun, said by another logger") == 2
    assert replaying == [False, True, False]


async def test_the_logger_is_silent_when_a_query_replays_the_code(clocked: Place, heard: Heard):
    app = clocked.app()

    @app.workflow
    async def order() -> None:
        @outlast.query("state")
        def state() -> str:
            return "sleeping"

        outlast.logger.info("begun")
        await outlast.sleep("1h")

    async with app:
        handle = await order.options(id="it").start()
        await status_is(handle, "suspended")
        assert await handle.query("state") == "sleeping"
    assert [message for message, *_ in heard.lines] == ["begun"]


async def test_structlog_says_the_same(app: App):
    def add_execution(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**event, **outlast.LogContext.fields()}

    entries = structlog.testing.LogCapture()
    log = structlog.wrap_logger(None, processors=[add_execution, entries])

    @app.step
    async def charge() -> None:
        log.info("charging")

    @app.workflow
    async def checkout() -> None:
        await charge()

    async with app:
        log.info("outside")
        await (await checkout.options(id="it").start()).result("20s")
    outside, charging = entries.entries
    assert outside == {"event": "outside", "log_level": "info"}
    assert {name: charging[name] for name in NAMES} == {
        "execution": "it",
        "workflow": "checkout",
        "step": "charge",
        "attempt": 1,
    }
