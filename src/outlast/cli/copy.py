"""`outlast copy`: everything of one store into another."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from outlast.app import store_for
from outlast.cli.context import Context, ContextArgument, Failed, for_reading
from outlast.client.views.words import plural
from outlast.copying import Copied, Copying, Progress
from outlast.errors import InvalidInput, SchemaMissing
from outlast.store.port import Store

TOLD_EVERY_S = 1.0


async def copy(
    *,
    from_: Annotated[str, Parameter(name="--from", help="The store to copy.")],
    to: Annotated[str, Parameter(help="The store to copy to. It is made if there is none.")],
    ignore_workers: Annotated[
        bool, Parameter(help="Copy although workers are alive: a picture to look at, not to go on from.")
    ] = False,
    context: ContextArgument,
) -> None:
    """Copy all executions, open and ended, with all that belongs to them, from one store to another of any kind.

    Stop the workers first; start them on the target afterwards, and never again on the source: what is open would run
    in both. At the end both stores are read again and compared. A copy that was stopped goes on when it is started
    again. With --namespace only that namespace is copied.

    Examples:
      outlast copy --from sqlite:///outlast.db --to postgresql://localhost/shop
      outlast copy --from postgresql://localhost/shop --to valkey+cluster://cache1:7001,cache2:7001
      outlast copy --from sqlite:///outlast.db --to sqlite:///staging.db --namespace staging
    """
    if context.given_url is not None:
        raise InvalidInput("copy has two stores: write --from and --to instead of --url")
    source, target = store_for(for_reading(from_)), store_for(to)
    context.shown_store = target.url
    context.out.note(f"from {source.url} to {target.url} · {_whose(context)}")
    try:
        with context.opening(source.url):
            await source.open()
    except SchemaMissing as missing:
        raise Failed(f"there is no store at {source.url}: check --from", kind=type(missing).__name__) from missing
    try:
        with context.opening(target.url):
            await target.migrate()
        await target.open()
        try:
            copied = await _copied(context, source, target, ignore_workers=ignore_workers)
        finally:
            await target.close()
    finally:
        await source.close()
    _say(context, source, target, copied)


async def _copied(context: Context, source: Store, target: Store, *, ignore_workers: bool) -> Copied:
    told_s = time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= TOLD_EVERY_S:
            told_s = time.monotonic()
            context.out.note(f"{progress.doing} {plural(progress.records, 'record')} of kind {progress.kind}")

    return await Copying(
        source, target, namespace=context.given_namespace, ignore_workers=ignore_workers, tell=tell
    ).run()


def _say(context: Context, source: Store, target: Store, copied: Copied) -> None:
    if context.out.json:
        kinds = {
            kind: {"records": number, "digest": copied.digests[kind]} for kind, number in sorted(copied.records.items())
        }
        context.out.document(
            {
                "store": target.url,
                "from": source.url,
                "to": target.url,
                "namespace": context.given_namespace,
                "resumed": copied.resumed,
                "found": copied.found,
                "kinds": kinds,
            }
        )
        return
    for kind, number in sorted(copied.records.items()):
        context.out.line(f"{kind:<12} {number:>12,}  {copied.digests[kind]}")
    before = f", {copied.found:,} of them by an earlier copy" if copied.found else ""
    total = sum(copied.records.values())
    context.out.line(f"{plural(total, 'record')} copied and compared{before}")


def _whose(context: Context) -> str:
    return f"namespace {context.given_namespace}" if context.given_namespace is not None else "all namespaces"
