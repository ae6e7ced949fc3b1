"""`outlast worker module:app`: a worker process, or several under one that watches over them."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Any

from cyclopts import Parameter

from outlast.app import App, WorkerSettings
from outlast.cli.context import Context, ContextArgument, Failed, Whole
from outlast.cli.loading import Target, load, say_store
from outlast.cli.supervise import end_with_parent, supervise
from outlast.client.views.words import plural
from outlast.errors import InvalidInput

PROCESSES_MAX = 256


def worker(
    target: Target,
    /,
    *,
    lanes: Annotated[
        tuple[str, ...], Parameter(help="Which lanes, such as default,mail. [default: those of the app's workflows]")
    ] = (),
    concurrency: Annotated[
        Whole, Parameter(help="How many executions at a time, in each process. [default: 100]")
    ] = 100,
    capabilities: Annotated[tuple[str, ...], Parameter(help="What this worker offers, such as gpu,eu.")] = (),
    processes: Annotated[Whole, Parameter(help="How many processes; one that dies is started again. [default: 1]")] = 1,
    reconcilers: Annotated[
        bool,
        Parameter(negative="--no-reconcilers", help="Also repair what crashes left; some worker must. [default: yes]"),
    ] = True,
    drain: Annotated[str, Parameter(help="How long what runs may take to finish at a stop. [default: 30s]")] = "30s",
    parent_pipe: Annotated[int | None, Parameter(show=False)] = None,
    context: ContextArgument,
) -> int:
    """Run a worker: claim executions and run their workflows, until SIGTERM or Ctrl-C.

    The first signal drains: nothing more is claimed, what runs may finish, the rest is handed back to others; exit 0.
    A second one stops at once; what ran is taken over by other workers when its lease ends.

    Examples:
      outlast worker shop:app
      outlast worker shop:app --lanes mail,reports --concurrency 20
      outlast worker shop:app --processes 4 --capabilities gpu
    """
    if not 1 <= processes <= PROCESSES_MAX:
        raise InvalidInput(f"--processes must be between 1 and {PROCESSES_MAX}, not {processes}")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    chosen_lanes, words = _split(lanes), _split(capabilities)
    if lanes and not chosen_lanes:
        raise InvalidInput("--lanes names no lane: write --lanes default,mail, or leave it out")
    # Also when others do the work: what is wrong with the app or the options is said once, here.
    settings: dict[str, Any] = {
        "lanes": chosen_lanes or None,
        "concurrency": concurrency,
        "capabilities": words,
        "reconcilers": reconcilers,
        "drain": drain,
    }
    WorkerSettings(**settings)
    try:
        with _stoppable():
            app = load(context, target)
    except Failed as failed:
        if parent_pipe is None:
            raise
        # Its parent could import it, and the next one may: it is started again after a failure, not after bad usage.
        raise Failed(str(failed), kind=failed.kind) from failed
    if parent_pipe is not None:
        end_with_parent(parent_pipe)
    else:
        say_store(context, app)
        _say(context, app, chosen_lanes, words, processes, concurrency)
    if processes == 1:
        app.run_worker(**settings)
        return 0
    # The URL as the app sees it: in the child, $OUTLAST_URL or a relative path mean the same.
    command = [sys.executable, "-m", "outlast", "worker", target, "--concurrency", str(concurrency), "--drain", drain]
    command += ["--lanes", ",".join(chosen_lanes)] if chosen_lanes else []
    command += ["--capabilities", ",".join(words)] if words else []
    command += [] if reconcilers else ["--no-reconcilers"]
    command += ["--url", context.given_url] if context.given_url is not None else []
    command += ["--namespace", context.given_namespace] if context.given_namespace is not None else []
    return asyncio.run(supervise(command, processes, context.out))


@contextmanager
def _stoppable() -> Generator[None]:
    """While the app is being imported there is nothing to drain: a stop is a stop, and all is well."""

    def stop(*_: object) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _split(texts: tuple[str, ...]) -> list[str]:
    return [word for text in texts for word in text.split(",") if word]


def _say(
    context: Context, app: App, lanes: list[str], capabilities: list[str], processes: int, concurrency: int
) -> None:
    served = sorted(f"{workflow.name} v{workflow.version}" for workflow in app.registry)
    lanes = lanes or sorted({workflow.definition_lane for workflow in app.registry}) or ["default"]
    if context.out.json:
        context.out.document(
            {
                "store": context.shown_store,
                "namespace": app.config.namespace,
                "workflows": served,
                "lanes": lanes,
                "capabilities": capabilities,
                "processes": processes,
                "concurrency": concurrency,
            }
        )
        return
    context.out.note(f"serves {', '.join(served) or 'no workflow: the app has none'}", style="")
    offers = f" · offers {', '.join(capabilities)}" if capabilities else ""
    context.out.note(
        f"{plural(processes, 'process', 'processes')} × {concurrency} at a time "
        f"· {'lane' if len(lanes) == 1 else 'lanes'} {', '.join(lanes)}{offers} · Ctrl-C drains and stops"
    )
