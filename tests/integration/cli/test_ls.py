"""`outlast ls` of what failed: with what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from outlast import App

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Outlast


class CardDeclined(Exception):
    pass


async def with_a_failure() -> None:
    app = App("sqlite:///outlast.db")

    @app.workflow
    async def order(number: int) -> int:
        if number == 7:
            raise CardDeclined("no funds\nfor it")
        return number

    async with app:
        await order.options(id="order-1")(1)
        with pytest.raises(CardDeclined):
            await order.options(id="order-7")(7)


@pytest.mark.parametrize("columns", ["100", "60"])
def test_a_list_says_what_executions_failed_with(outlast: Outlast, monkeypatch: pytest.MonkeyPatch, columns: str):
    asyncio.run(with_a_failure())
    monkeypatch.setenv("COLUMNS", columns)
    assert "CardDeclined: no funds for it" in outlast("ls").out
    assert ("ERROR" in outlast("ls", "--status", "failed").out) is (columns == "100")
    assert "ERROR" not in outlast("ls", "--status", "succeeded").out
    found = {one["id"]: one["error"] for one in outlast.json("ls")["executions"]}
    assert found["order-1"] is None
    assert found["order-7"]["message"] == "no funds\nfor it"
    assert outlast.json("show", "order-7")["execution"]["error"]["message"] == "no funds\nfor it"
