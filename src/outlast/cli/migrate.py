"""`outlast migrate`: make the store, or bring its schema up to date."""

from __future__ import annotations

from outlast.app import store_for
from outlast.cli.context import ContextArgument
from outlast.errors import SchemaMissing, SchemaOutdated


async def migrate(*, context: ContextArgument) -> None:
    """Make the store if there is none, or bring its schema to this version of Outlast.

    Safe to repeat, and while workers run. Workers do it by themselves; this is for deploys that want it apart.

    Examples:
      outlast migrate
      outlast migrate --url sqlite:////var/lib/shop/outlast.db
    """
    config = context.config()
    store = store_for(config.url)
    context.uses(store.url, config.namespace)
    changed = False
    try:
        with context.opening(store.url):
            await store.open()
    except (SchemaMissing, SchemaOutdated):
        changed = True
    finally:
        await store.close()
    schema = await store.migrate()
    if context.out.json:
        context.out.document({"store": context.shown_store, "schema": schema, "changed": changed})
    else:
        context.out.line(f"schema {schema}: {'made or brought up to date' if changed else 'was up to date'}")
