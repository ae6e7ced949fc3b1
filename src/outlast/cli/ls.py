"""`outlast ls`: which executions there are, newest first."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Annotated

from cyclopts import Parameter
from msgspec import structs
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from outlast.cli.context import ContextArgument, Whole
from outlast.client.finding import found_by
from outlast.client.info import info_of, to_epoch_ms
from outlast.client.offers import Offers, offers_in
from outlast.client.views.situation import sessions_of
from outlast.client.views.words import age, plural, relative
from outlast.errors import InvalidDuration, InvalidInput, StoreUnavailable
from outlast.model.duration import to_ms
from outlast.model.execution import Execution, parse_route
from outlast.model.record import settled
from outlast.model.status import Status
from outlast.store.port import Query, Sharded, Store


async def ls(
    *,
    status: Annotated[tuple[str, ...], Parameter(help="Only these: ready, active, failed, … (or: open, ended).")] = (),
    workflow: Annotated[str | None, Parameter(help="Only executions of this workflow.")] = None,
    lane: Annotated[str | None, Parameter(help="Only executions in this lane.")] = None,
    tag: Annotated[tuple[str, ...], Parameter(help="Only with this tag, as key=value; all of them must hold.")] = (),
    since: Annotated[
        str | None, Parameter(help="Only those started from then on: 2h (ago), 2026-11-15, 2026-11-15T09:30.")
    ] = None,
    before: Annotated[str | None, Parameter(help="Only those started before then, written as --since.")] = None,
    limit: Annotated[Whole, Parameter(help="At most so many. [default: 50]")] = 50,
    context: ContextArgument,
) -> None:
    """List executions, newest first: what each is, how it is, and why it is not running.

    Examples:
      outlast ls
      outlast ls --status failed,expired --limit 5000
      outlast ls --since 2026-11-14 --before 12h
      outlast ls --status open --workflow checkout --tag customer=anna
      outlast --json ls --status failed | jq -r '.executions[].id'
    """
    if limit < 1:
        raise InvalidInput(f"--limit must be at least 1, not {limit}")
    for option, text in (("--since", since), ("--before", before)):
        moment(option, text, 0)  # refused before a store is opened
    query = Query(
        namespace=context.namespace, status=statuses(status), workflow=workflow, lane=lane, tags=tags(tag), limit=limit
    )
    async with context.looking() as store, _all_or_nothing(store):
        now = await store.now()
        query = structs.replace(
            query, created_from=moment("--since", since, now), created_before=moment("--before", before, now)
        )
        found, total = await found_by(store.find, query), await store.count(query)
        served = any(expires_at > now for expires_at in (await sessions_of(store)).values())
        offers = await offers_in(store)
    if context.out.json:
        context.out.document(
            {
                "store": context.shown_store,
                "namespace": context.namespace,
                "total": total,
                "executions": [structs.replace(info_of(e), reason=offers.reason(e)) for e in found],
            }
        )
        return
    if not found:
        context.out.note("no executions" + (" match" if query != Query(namespace=query.namespace, limit=limit) else ""))
        return
    listing = _stacked if context.out.narrow else _table
    context.out.show(listing(found, now, served=served, offers=offers))
    if total > len(found):
        context.out.note(f"{len(found):,} of {total:,}; --limit shows more")


@asynccontextmanager
async def _all_or_nothing(store: Store) -> AsyncGenerator[None]:
    """Newest first of all that there is: a list without those of a server that is away would look complete."""
    try:
        yield
    except StoreUnavailable as error:
        if not isinstance(store, Sharded) or not store.shard(0):
            raise
        raise StoreUnavailable(
            f"{error}; without it no list is complete, so none is shown: `outlast show ID` works for what lives on the "
            "other servers, and `outlast doctor` tells how they are"
        ) from error


def statuses(words: tuple[str, ...]) -> frozenset[Status]:
    """`failed,expired` or `open` to statuses."""
    found: set[Status] = set()
    for word in (word for text in words for word in text.split(",") if word):
        if word == "open":
            found |= {status for status in Status if not status.terminal}
        elif word == "ended":
            found |= {status for status in Status if status.terminal}
        elif word in list(Status):
            found.add(Status(word))
        else:
            raise InvalidInput(f"--status {word}: there is no such status; write one of {', '.join(Status)}")
    return frozenset(found)


def tags(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidInput(f"--tag {text}: write key=value")
        found[key] = value
    return found


def moment(option: str, text: str | None, now: int) -> int | None:
    """So long before the store's now, or a date and time: without a zone, that of this machine, as it is shown."""
    if text is None:
        return None
    with suppress(InvalidDuration):
        return max(0, now - to_ms(text))
    try:
        return to_epoch_ms(datetime.fromisoformat(text).astimezone(), what=option)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidInput(
            f"{option} {text}: write how long ago (30m, 2h, 7d) or when (2026-11-15, 2026-11-15T09:30, "
            "2026-11-15T09:30:00Z)"
        ) from error


def _table(found: list[Execution], now: int, *, served: bool, offers: Offers) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="head", pad_edge=False)
    table.add_column("ID", overflow="fold")
    table.add_column("WORKFLOW", overflow="fold")
    table.add_column("STATUS", no_wrap=True)
    table.add_column("WHY", overflow="fold")
    table.add_column("ATTEMPTS", justify="right", no_wrap=True)
    table.add_column("AGE", justify="right", no_wrap=True)
    for e in found:
        info = info_of(e)
        table.add_row(
            e.id,
            e.workflow if e.version == "1" else f"{e.workflow} v{e.version}",
            Text(e.status, style=str(e.status)),
            reason_of(e, now, served=served, offers=offers),
            str(info.attempts),
            age(now - (settled(e.created_at) or now)),
        )
    return table


def _stacked(found: list[Execution], now: int, *, served: bool, offers: Offers) -> Group:
    """The same, each on lines of its own."""
    lines: list[RenderableType] = []
    for e in found:
        workflow = e.workflow if e.version == "1" else f"{e.workflow} v{e.version}"
        since = age(now - (settled(e.created_at) or now))
        lines.append(Text(e.id, "head"))
        told = Text.assemble(
            (e.status, str(e.status)), f"  {workflow}  {plural(info_of(e).attempts, 'attempt')}  {since}"
        )
        lines.append(Padding(told, (0, 0, 0, 2)))
        if why := reason_of(e, now, served=served, offers=offers):
            lines.append(Padding(Text(why), (0, 0, 0, 2)))
    return Group(*lines)


def reason_of(e: Execution, now: int, *, served: bool, offers: Offers) -> str:
    """The reason, and until when; of what has ended, the cause."""
    if e.status.terminal:
        return "" if e.cause in (None, e.status) else str(e.cause)
    wake_at = settled(e.wake_at)
    reason = offers.reason(e)
    marks = [reason] if reason else []
    if marks and wake_at is not None and not e.held:
        marks = [f"{reason} {relative(wake_at, now=now)}"]
    if e.status is Status.READY and not served:
        marks.append("no worker is alive")
    elif e.status is Status.READY and (unserved := offers.unserved(e)):
        marks.append(f"no live worker serves {unserved}")
    elif e.status is Status.READY and not reason and (requires := parse_route(e.route).requires):
        marks.append(f"needs {', '.join(sorted(requires))}")
    if e.cancel_requested:
        marks.append("cancelling")
    if e.held and e.reason != "operator":
        marks.append("to be held")
    if e.status is Status.ACTIVE and e.worker:
        marks.append(f"on {e.worker}")
    return ", ".join(marks)
