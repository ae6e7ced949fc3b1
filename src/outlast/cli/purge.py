"""`outlast purge`: delete what ended long ago."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

from cyclopts import Parameter

from outlast.cli.context import ContextArgument, Failed
from outlast.client.views.words import plural
from outlast.model.duration import to_ms


async def purge(
    *,
    older_than: Annotated[str, Parameter(help="What ended longer ago than this: 30d, 12h, …")],
    yes: Annotated[bool, Parameter(help="Do not ask.")] = False,
    context: ContextArgument,
) -> None:
    """Delete executions of the namespace that ended long ago, with their journals, results and events.

    Counted from the end of an execution; what has not ended is never purged.

    Examples:
      outlast purge --older-than 30d
      outlast purge --older-than 12h --namespace staging --yes
    """
    to_ms(older_than, what="--older-than")
    async with context.acting() as app:
        if not yes:
            _ask(context, f"purge what ended more than {older_than} ago in namespace {app.config.namespace}")
        purged = await app.purge(older_than=older_than)
    if context.out.json:
        context.out.document({"store": context.shown_store, "namespace": context.namespace, "purged": purged})
    else:
        context.out.line(f"purged {plural(purged, 'execution')}")


def _ask(context: ContextArgument, what: str) -> None:
    if not sys.stdin.isatty():
        raise Failed(f"nothing was purged, because there is nobody to ask: add --yes to {what}", kind="Refused")
    context.out.stderr.print(f"{what.capitalize()}? [y/N] ", end="")
    # asyncio would only tell the loop of a Ctrl-C, which is us, waiting for a key.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        answer = sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, before)
    if answer.strip().lower() not in ("y", "yes"):
        raise Failed("nothing was purged", kind="Refused")
