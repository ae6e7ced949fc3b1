"""What code is told that calls an operation by the face of the other colour: something that there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import outlast
from outlast import App, Handle, WrongPlace
from outlast.client.handle import SyncHandle
from outlast.machine import facts
from outlast.model.names import INTERRUPT
from outlast.runtime.attempts import faces
from outlast.runtime.attempts.operation import Kind
from outlast.runtime.operations.child import AwaitChild
from outlast.runtime.operations.deferred import AwaitDeferred
from outlast.runtime.operations.receive import Receive
from outlast.runtime.operations.sleep import Sleep
from outlast.runtime.operations.tell import Cancel, Interrupt, Reject, Resolve, Send
from outlast.runtime.operations.token import IssueToken
from outlast.runtime.operations.wait import After
from outlast.testing import harness


def word(change_id: str) -> facts.AnyFact:
    return facts.CancelRequested(change_id=change_id, reason="")


@pytest.mark.parametrize(
    "kind, verb",
    [
        (AwaitChild("o", int, start=None), "result"),
        (Send("o", word), "send"),
        (Resolve("o", word), "resolve"),
        (Reject("o", word), "reject"),
        (Interrupt("o", word), "interrupt"),
        (Cancel("o", word), "cancel"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_said_to_another_is_said_by_a_handle(kind: Kind, verb: str):
    assert faces.awaited(kind) == f"`await app.execution(id).{verb}(...)`"
    assert faces.blocking(kind) == f"`workflow.sync.execution(id).{verb}(...)`"
    assert callable(getattr(Handle, verb))
    assert callable(getattr(SyncHandle, verb))


@pytest.mark.parametrize(
    "kind, end, there",
    [
        (Sleep(After(1), None), "sleep(...)", outlast.sync.sleep),
        (Receive("n", int, None), "receive(...)", outlast.sync.receive),
        (AwaitDeferred("d", int, None), "deferred(...).result()", outlast.sync.Deferred.result),
        (AwaitDeferred(INTERRUPT, type(None), None), "interrupted()", outlast.sync.interrupted),
        (IssueToken("d", 1), "deferred(...).token()", outlast.sync.Deferred.token),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wait_has_both_faces(kind: Kind, end: str, there: Callable[..., object]):
    assert faces.awaited(kind) == f"`await outlast.{end.removesuffix('.result()')}`"
    assert faces.blocking(kind) == f"`outlast.sync.{end}`"
    assert callable(there)


@pytest.mark.parametrize("workflow", ["waits", "blocks"])
async def test_what_blocks_is_called_a_def_only_if_it_is_one(workflow: str):
    app = App("sqlite:///of-the-user.db")

    @app.step
    def parse() -> None: ...

    @app.step
    async def fetch() -> None: ...

    @app.workflow
    async def blocks() -> None:
        parse()

    @app.workflow
    async def waits() -> None:
        fetch.sync()

    called, says = {"blocks": (blocks, "step 'parse' is a def and would"), "waits": (waits, "step 'fetch' would")}[
        workflow
    ]
    async with harness(app):
        with pytest.raises(WrongPlace, match=says):
            await called()
