"""`outlast start module:app WORKFLOW`."""

from __future__ import annotations

import asyncio
import os
import shlex
from contextlib import AsyncExitStack
from typing import Annotated, Any, Literal, cast

import msgspec
from cyclopts import Parameter
from rich.text import Text

from outlast.app import App
from outlast.authoring.options import Options
from outlast.cli.context import Context, ContextArgument, Whole, execution_of
from outlast.cli.loading import Target, load, say_store, store_to_read
from outlast.cli.ls import tags
from outlast.cli.output import harmless
from outlast.cli.show import failed_line
from outlast.client.handle import Handle
from outlast.client.views.execution_view import execution_view
from outlast.client.views.explanation import explain
from outlast.client.views.situation import situation_of
from outlast.client.views.words import line_of
from outlast.config import Config
from outlast.errors import ExecutionConflict, InvalidInput, OutlastError
from outlast.model.duration import to_ms
from outlast.model.status import Status

PATIENCE_S = 2.0
"""After so long without an end, `--wait` says what it waits for."""


async def start(
    target: Target,
    workflow: Annotated[str, Parameter(help="The workflow's name.")],
    /,
    *,
    id: Annotated[str | None, Parameter(help="The execution's id; the same id is the same execution.")] = None,
    arg: Annotated[
        tuple[str, ...], Parameter(help="An argument as JSON, in order; repeat it.", allow_leading_hyphen=True)
    ] = (),
    input: Annotated[str | None, Parameter(help="Arguments by name: a JSON object.")] = None,
    delay: Annotated[str | None, Parameter(help="Not before this has passed: 30s, 2h, …")] = None,
    deadline: Annotated[str | None, Parameter(help="It must end within this, or expires.")] = None,
    priority: Annotated[Whole | None, Parameter(help="Higher is claimed first.", allow_leading_hyphen=True)] = None,
    lane: Annotated[str | None, Parameter(help="Another lane than the workflow's.")] = None,
    tag: Annotated[tuple[str, ...], Parameter(help="A tag, as key=value; repeat it.")] = (),
    if_exists: Annotated[
        Literal["same", "error", "restart"] | None, Parameter(help="What to do if the id is taken. [default: same]")
    ] = None,
    wait: Annotated[bool, Parameter(help="Wait for its end; the result is the output.")] = False,
    timeout: Annotated[str | None, Parameter(help="Wait no longer than this (exit 1; the execution goes on).")] = None,
    context: ContextArgument,
) -> int:
    """Start an execution of a workflow. It runs in a worker; this process only starts it.

    Prints the id; with --wait the result, as JSON, and exits 1 if it did not succeed.

    Examples:
      outlast start shop:app checkout --id order-7 --arg '{"number": 7, "cents": 5}'
      outlast start shop:app add --arg 2 --arg 3 --wait
      outlast start shop:app add --input '{"a": 2, "b": 3}' --wait
      outlast start shop:app remind --arg '"anna"' --delay 2h --tag customer=anna
    """
    if timeout is not None and not wait:
        raise InvalidInput("--timeout is for --wait: add it, or leave the timeout out")
    if timeout is not None:
        to_ms(timeout, what="--timeout")  # before anything is started
    args = [_json("--arg", text) for text in arg]
    kwargs = {} if input is None else _named(input)
    app = load(context, target)
    say_store(context, app)
    options = {
        "id": id,
        "delay": delay,
        "deadline": deadline,
        "priority": priority,
        "lane": lane,
        "tags": tags(tag) or None,
        "if_exists": if_exists,
    }
    given = cast("Options", {name: value for name, value in options.items() if value is not None})
    chosen = app.registry.newest(workflow).options(**given)
    chosen.fact(tuple(args), kwargs, namespace=app.config.namespace)  # complain before a store is made
    async with AsyncExitStack() as opened:
        with context.opening(context.shown_store or ""):
            await opened.enter_async_context(app.client())
        try:
            handle: Handle[Any] = await chosen.start(*args, **kwargs)
        except ExecutionConflict as error:
            instead = "use another --id, or --if-exists restart once it has ended"
            raise ExecutionConflict(
                error.execution_id, existing=error.existing, given=error.given, instead=instead
            ) from error
        context.out.note(f"{workflow} {handle.id}: `outlast show {handle.id}{_elsewhere(context, app)}`")
        if wait and not await _ended(context, app, handle, timeout):
            context.out.note(f"{handle.id} did not end within {timeout}; it goes on")
            return await _tell(context, app, handle.id, waited=True)
    return await _tell(context, app, handle.id, waited=wait)


def _elsewhere(context: Context, app: App) -> str:
    """The options with which another command finds the app's own store: it does not read the app."""
    usual = Config.load(os.environ)
    options = ""
    if app.own_store is not None or app.config.url != usual.url:
        options += f" --url {shlex.quote(context.shown_store or '')}"
    if app.config.namespace != usual.namespace:
        options += f" --namespace {shlex.quote(app.config.namespace)}"
    return options


def _named(text: str) -> dict[str, Any]:
    found = _json("--input", text)
    if not isinstance(found, dict):
        raise InvalidInput("--input must be a JSON object with an argument for each name; use --arg for others")
    return cast("dict[str, Any]", found)


def _json(option: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{option} {text!r}: not JSON, which is UTF-8") from error
    except msgspec.DecodeError as error:
        hint = f"""; for text write {option} '"{text}"'""" if text.replace("-", "").replace("_", "").isalnum() else ""
        raise InvalidInput(f"{option} {text}: not JSON ({error}){hint}") from error


async def _ended(context: Context, app: App, handle: Handle[Any], timeout: str | None) -> bool:
    """Wait; after a while say what for."""
    ending = asyncio.ensure_future(handle.result(timeout))
    try:
        done, _ = await asyncio.wait((ending,), timeout=PATIENCE_S)
        if not done:
            await _say_why(context, app, handle.id)
        await asyncio.wait((ending,))
    finally:
        ending.cancel()
    error = ending.exception()
    # What the workflow raised comes as itself: the store knows which of both it is.
    if isinstance(error, TimeoutError) and not (await handle.info()).status.terminal:
        return False
    if isinstance(error, OutlastError) and not (await handle.info()).status.terminal:
        raise error
    return True


async def _say_why(context: Context, app: App, execution_id: str) -> None:
    store = store_to_read(app)
    try:
        await store.open()
        e = await execution_of(store, app.config.namespace, execution_id)
        context.out.note(f"{e.status}: {explain(e, await situation_of(store, e)).text}", style="warning")
    except OutlastError:
        pass  # only a word for the patient
    finally:
        await store.close()


async def _tell(context: Context, app: App, execution_id: str, *, waited: bool) -> int:
    store = store_to_read(app)
    await store.open()
    try:
        found = await execution_view(store, await execution_of(store, app.config.namespace, execution_id))
    finally:
        await store.close()
    e = found.execution
    if context.out.json:
        context.out.document(
            {
                "store": context.shown_store,
                "namespace": app.config.namespace,
                "id": e.id,
                "workflow": e.workflow,
                "version": e.version,
                "status": e.status,
                "reason": e.reason,
                "result": found.result,
                "failure": found.failure,
            }
        )
    elif not waited or not e.status.terminal:
        context.out.line(e.id)
    elif e.status is Status.SUCCEEDED:
        context.out.line(line_of(found.result))
    else:
        said = Text(harmless(failed_line(found.failure) or (e.cause or "")))
        context.out.stderr.print(Text.assemble((e.status, str(e.status)), "  ", said))
    return 0 if not waited or e.status is Status.SUCCEEDED else 1
