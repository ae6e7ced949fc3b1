"""`replay_every_await`: the same workflow, with its process dying at every write in turn, must come to the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from outlast.authoring.workflow import Workflow
from outlast.errors import InvalidInput
from outlast.model.status import Reason
from outlast.runtime.settings import WorkerKeywords
from outlast.testing.journal import Journal

if TYPE_CHECKING:
    from outlast.client.handle import Handle
    from outlast.testing.harness import Harness

ID = "every-await"
POINTS_MAX = 5_000


class EveryAwait(Struct, frozen=True, kw_only=True):
    """What `replay_every_await` found: how it ends (a value, or the error as text), and how many crashes changed
    nothing about that."""

    outcome: Any
    crashes: int
    journal: Journal


Prepare = Callable[["Harness"], Any]
"""Called with each new harness, before the workflow starts: for stubs. `def` or `async def`."""
Meanwhile = Callable[["Harness", "Handle[Any]"], Any]
"""Called once the workflow is started: for events, resolutions, updates. `def` or `async def`."""


async def replay_every_await(
    workflow: Workflow[Any, Any] | Callable[[], Workflow[Any, Any]],
    *args: Any,
    prepare: Prepare | None = None,
    meanwhile: Meanwhile | None = None,
    settings: WorkerKeywords | None = None,
    **kwargs: Any,
) -> EveryAwait:
    """Run a workflow once as it is; then again for each write of its worker (a claim, an outcome, a suspension, the
    end), with the process dying before it and after it, in a store of its own each time.

    Every one must end as the first did, take the recorded way again, and may not perform again what was recorded before
    the crash. `AssertionError` says which crash changed what, `Stuck` that it never ended. If the steps keep
    something in memory that must be new each time, give a function that makes the workflow (with an app of its own)
    instead of the workflow. `settings` are those of the worker, as `harness` takes them.
    """
    play = _Play(workflow, args, kwargs, prepare, meanwhile, settings or {})
    first = "a run without crashes"
    expected = await play.played(first, None)
    _compare(expected, expected, first)
    crashes = 0
    for when in ("before", "after"):
        for nth in range(1, POINTS_MAX):
            where = f"a crash {when} write {nth} of its worker"
            played = await play.played(where, (nth, when))
            if not played.crashes:
                break
            crashes += 1
            _compare(expected, played, where)
    return EveryAwait(outcome=expected.outcome, crashes=crashes, journal=expected.journal)


class _Played(Struct, frozen=True, kw_only=True):
    outcome: Any
    crashes: int
    journal: Journal
    reason: str | None
    again: list[str]


def _workflow_of(made_by: Any) -> Workflow[Any, Any]:
    made = cast("object", made_by() if callable(made_by) and not isinstance(made_by, Workflow) else made_by)
    if not isinstance(made, Workflow):
        raise InvalidInput(f"replay_every_await takes a workflow, or a function that makes one, not {made_by!r}")
    return cast("Workflow[Any, Any]", made)


class _Play(Struct, frozen=True):
    """What is played again and again."""

    made_by: Workflow[Any, Any] | Callable[[], Workflow[Any, Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    prepare: Prepare | None
    meanwhile: Meanwhile | None
    settings: WorkerKeywords

    async def played(self, where: str, crash: tuple[int, Any] | None) -> _Played:
        from outlast.app import App
        from outlast.testing.harness import harness

        workflow = _workflow_of(self.made_by)
        assert isinstance(workflow.app, App)
        async with harness(workflow.app, seed=1, **self.settings) as h:
            if self.prepare is not None:
                await _done(self.prepare(h))
            if crash is not None:
                h.crash_at("write", nth=crash[0], when=crash[1])
            handle = await workflow.options(id=ID).start(*self.args, **self.kwargs)
            if self.meanwhile is not None:
                await _done(self.meanwhile(h, handle))
            try:
                outcome = await handle.result()
            except Exception as error:
                info = await handle.info()
                if not info.status.terminal and info.reason != Reason.VERSION:
                    error.add_note(f"after {where}")
                    raise  # it has no outcome: `Stuck`, for example
                outcome = f"{type(error).__name__}: {error}".partition("\n")[0]
            journal = await h.journal(handle)
            return _Played(
                outcome=outcome,
                crashes=h.crashes,
                journal=journal,
                reason=(await handle.info()).reason,
                again=h.performed_again,
            )


async def _done(given: Any) -> None:
    if inspect.isawaitable(given):
        await given


def _compare(expected: _Played, played: _Played, where: str) -> None:
    if played.reason == Reason.VERSION:
        raise AssertionError(
            f"after {where} the replay takes another way than the one that is recorded: the workflow depends on "
            f"something that is not (time, randomness, global state)\n\n{played.journal}"
        )
    assert played.outcome == expected.outcome, (
        f"after {where} it came to {played.outcome!r}, not to {expected.outcome!r}\n\n{played.journal}"
    )
    assert not played.again, f"after {where} it performed again what was recorded: {', '.join(played.again)}"
