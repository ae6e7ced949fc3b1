"""The line of user code in the text of a traceback."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from outlast.codec.failures import failure_of
from outlast.codec.user_line import user_line

HERE = str(Path(__file__).relative_to(Path.cwd()))


def line_of(error: BaseException) -> str:
    line = user_line(failure_of(error).traceback)
    assert line == "" or line.startswith(f"{HERE}:")
    return line.rpartition(" in ")[2]


def raises() -> None:
    raise ValueError("no")


def parses() -> None:
    json.loads("{")


def wraps() -> None:
    try:
        raises()
    except ValueError as error:
        raise LookupError("not found") from error


def caught(fails: object) -> BaseException:
    assert callable(fails)
    try:
        fails()
    except Exception as error:
        return error
    raise AssertionError


def test_the_innermost_line():
    assert line_of(caught(raises)) == "raises"


def test_not_that_of_a_library():
    assert line_of(caught(parses)) == "parses"


def test_of_an_error_with_a_cause_its_own():
    assert line_of(caught(wraps)) == "wraps"


def test_of_a_group_that_of_its_last_member():
    async def fails() -> None:
        raises()

    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    assert line_of(caught(lambda: asyncio.run(together()))) == "raises"


def test_none_if_there_is_no_frame():
    assert line_of(ValueError("never raised")) == ""
