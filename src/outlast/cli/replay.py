"""`outlast replay module:app`: would the code of today still do what the journals have?"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

from cyclopts import Parameter
from msgspec import Struct, structs
from rich.text import Text

from outlast import limits
from outlast.app import App
from outlast.cli.context import Context, ContextArgument, execution_of
from outlast.cli.loading import Target, load
from outlast.cli.reading import reading
from outlast.client.views.words import plural
from outlast.errors import ExecutionNotFound, InvalidInput, StoreError, UnknownWorkflow
from outlast.model.execution import Execution
from outlast.model.status import OPEN
from outlast.runtime.attempts.rehearsal import Divergence, Rehearsed, rehearse
from outlast.runtime.holder import BegunAnew
from outlast.runtime.parts import Parts, WorkflowDefinition
from outlast.store.port import Query, Store


class Finding(Struct, frozen=True, kw_only=True):
    """One execution whose journal the code does not meet; whose version the app does not have; or whose replay failed,
    with this error."""

    id: str
    workflow: str
    version: str
    entries: int
    missing: bool = False
    divergence: Divergence | None = None
    error: str | None = None


async def replay(
    target: Target,
    /,
    *,
    execution: Annotated[tuple[str, ...], Parameter(help="An execution's id; repeat it.")] = (),
    all_open: Annotated[bool, Parameter(help="Every execution that has not ended.")] = False,
    context: ContextArgument,
) -> int:
    """Replay recorded journals against the code as it is now, without running a step or writing anything.

    Each execution whose journal the code does not meet is reported with file and line, and so is one whose version the
    app does not have, or whose replay fails. Exits 1 if there is one: for CI, before a deploy.

    Examples:
      outlast replay shop:app --all-open
      outlast replay shop:app --execution order-42 --url sqlite:////backup/outlast.db
      outlast --json replay shop:app --all-open | jq '.divergences[].line'
    """
    if bool(execution) == all_open:
        raise InvalidInput("say which: --execution ID (again for more), or --all-open")
    app = load(context, target)
    replayed = 0
    findings: list[Finding] = []
    async with reading(context, app) as (store, parts):
        for one in [await execution_of(store, app.config.namespace, name) for name in execution]:
            replayed, findings = replayed + 1, findings + await _replayed(app, parts, one)
        if all_open:
            async for one in _open(store, app.config.namespace):
                replayed, findings = replayed + 1, findings + await _replayed(app, parts, one)
    _say(context, app, replayed, findings)
    return 1 if findings else 0


async def _open(store: Store, namespace: str) -> AsyncGenerator[Execution]:
    after = None
    while True:
        page = await store.find(Query(namespace=namespace, status=OPEN, after=after, limit=limits.FIND_MAX))
        for execution in page.executions:
            yield execution
        after = page.cursor
        if after is None:
            return


async def _replayed(app: App, parts: Parts, seen: Execution) -> list[Finding]:
    e = seen
    while True:
        found = Finding(id=e.id, workflow=e.workflow, version=e.version, entries=0)
        try:
            definition = app.registry.get(e.workflow, e.version).definition
        except UnknownWorkflow:
            return [structs.replace(found, missing=True)]
        rehearsed, error = await _rehearsed(parts, e, definition)
        good = rehearsed.divergence is None and error is None
        if good and rehearsed.entries:
            return []
        try:
            anew = await parts.holder.ask(e, BegunAnew())
        except ExecutionNotFound:
            return []  # it has ended meanwhile, and was purged
        if anew is None and good:
            return []
        if anew is None:
            return [structs.replace(found, entries=rehearsed.entries, divergence=rehearsed.divergence, error=error)]
        e = anew  # what was replayed was being forgotten


async def _rehearsed(parts: Parts, e: Execution, definition: WorkflowDefinition) -> tuple[Rehearsed, str | None]:
    """What fails for one execution (a codec that cannot read it, for example) does not hide the others."""
    try:
        return await rehearse(parts, e, definition), None
    except StoreError:
        raise  # for the others as well
    except Exception as error:
        return Rehearsed(entries=0), f"{type(error).__name__}: {error}"


def _say(context: Context, app: App, replayed: int, findings: list[Finding]) -> None:
    if context.out.json:
        context.out.document(
            {
                "store": context.shown_store,
                "namespace": app.config.namespace,
                "replayed": replayed,
                "divergences": [_document(one) for one in findings if one.divergence is not None],
                "missing": [_document(one) for one in findings if one.missing],
                "errors": [{**_document(one), "error": one.error} for one in findings if one.error is not None],
            }
        )
        return
    for one in findings:
        context.out.show(Text.assemble((one.id, "head"), f"  {one.workflow} version {one.version}  ", *_words(one)))
    good = replayed - len(findings)
    context.out.show(Text(f"{plural(replayed, 'execution')} replayed: {good} as recorded, {len(findings)} not"))


def _words(one: Finding) -> list[str | tuple[str, str]]:
    if one.error is not None:
        return [(f"the replay failed: {one.error}", "failed")]
    if one.divergence is None:
        return [("the app does not have this version", "failed")]
    d = one.divergence
    return [(f"recorded {d.expected}, but the code now does {d.actual}", "failed"), f"\n    at {d.line}"]


def _document(one: Finding) -> dict[str, Any]:
    known = {"id": one.id, "workflow": one.workflow, "version": one.version, "entries": one.entries}
    return known if one.divergence is None else {**known, **structs.asdict(one.divergence)}
