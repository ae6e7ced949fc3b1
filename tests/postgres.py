"""The PostgreSQL that tests use: `OUTLAST_TEST_POSTGRES_URL`, or one server of each test process's own."""

from __future__ import annotations

import atexit
import os
from functools import cache

from outlast.testing.postgres_server import PostgresServer


@cache
def server() -> PostgresServer:
    url = os.environ.get("OUTLAST_TEST_POSTGRES_URL")
    if url:
        return PostgresServer.at(url)
    launched = PostgresServer.launch()
    atexit.register(launched.close)
    return launched
