from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from outlast.store.sqlite import SqliteStore


@pytest.fixture
async def other(store: SqliteStore, new_store: Callable[[], SqliteStore]) -> AsyncIterator[SqliteStore]:
    """Another process, as far as a store may tell."""
    other = new_store()
    await other.open()
    yield other
    await other.close()
