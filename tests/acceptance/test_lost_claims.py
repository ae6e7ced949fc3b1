"""A claim whose answer is lost is asked again under its id, and no longer as the first under it."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast import App
from outlast.errors import StoreUnavailable
from outlast.model.lease import Claimed, ClaimRequest
from outlast.store.sqlite import SqliteStore


async def test_a_worker_that_asks_again_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[ClaimRequest] = []
    really = SqliteStore.claim

    async def loses_the_first(self: SqliteStore, request: ClaimRequest) -> Claimed:
        claimed = await really(self, request)
        asked.append(request)
        if len(asked) == 1:
            raise StoreUnavailable("the answer is lost")
        return claimed

    monkeypatch.setattr(SqliteStore, "claim", loses_the_first)
    app = App(f"sqlite:///{tmp_path}/lost.db")

    @app.workflow
    async def echo(text: str) -> str:
        return text

    async with app:
        assert await echo("x") == "x"
    first, again, *others = asked
    assert (first.first, again.first) == (True, False)
    assert first.claim_id == again.claim_id
    assert all(other.first for other in others)
    assert len({request.claim_id for request in asked}) == len(asked) - 1
