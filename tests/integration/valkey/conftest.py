from __future__ import annotations

from collections.abc import Iterator

import pytest

from outlast.testing.valkey_server import ValkeyServer


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server
