"""What replay and query share: an app's code on a store that is open for reading."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from outlast.app import App
from outlast.cli.context import Context, nothing_there
from outlast.cli.loading import store_to_read
from outlast.errors import SchemaMissing
from outlast.runtime.engine import Engine
from outlast.runtime.local_holder import LocalHolder, local_parts
from outlast.runtime.parts import Parts
from outlast.store.port import Store
from outlast.tokens import for_replay


@asynccontextmanager
async def reading(context: Context, app: App) -> AsyncGenerator[tuple[Store, Parts]]:
    config = app.config
    store = store_to_read(app)
    context.uses(store.url, config.namespace)
    try:
        with context.opening(store.url):
            await store.open()
    except SchemaMissing as missing:
        raise nothing_there(store, missing) from missing
    parts = local_parts(
        LocalHolder(Engine(store)),
        app.values,
        threads=1,
        tokens=for_replay(config.token_keys),
        token_ttl_ms=config.token_ttl_ms,
    )
    try:
        yield store, parts
    finally:
        await parts.close()
        await store.close()
