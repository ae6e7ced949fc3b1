"""What to write instead, where code calls an operation by the face of the other colour."""

from __future__ import annotations

from outlast.model.journal import CHILD, DEFERRED, RECEIVE, SLEEP, START, STEP
from outlast.model.names import INTERRUPT
from outlast.runtime.attempts.operation import Kind
from outlast.runtime.operations.step import StepCall
from outlast.runtime.operations.subflow import StartFlow

_FUNCTION = ("`await {name}.aio(...)`", "`{name}.sync(...)`")
_ANY = ("its `await` face", "its blocking face (`.sync`)")


def _told(verb: str) -> tuple[str, str]:
    return f"`await app.execution(id).{verb}(...)`", f"`workflow.sync.execution(id).{verb}(...)`"


_FACES: dict[str, tuple[str, str]] = {
    STEP: _FUNCTION,
    "transaction": _FUNCTION,
    START: _FUNCTION,
    SLEEP: ("`await outlast.sleep(...)`", "`outlast.sync.sleep(...)`"),
    RECEIVE: ("`await outlast.receive(...)`", "`outlast.sync.receive(...)`"),
    DEFERRED: ("`await outlast.deferred(...)`", "`outlast.sync.deferred(...).result()`"),
    "token": ("`await outlast.deferred(...).token()`", "`outlast.sync.deferred(...).token()`"),
    CHILD: _told("result"),
    "send": _told("send"),
    "resolve": _told("resolve"),
    "reject": _told("reject"),
    "interrupt": _told("interrupt"),
    "cancel of another": _told("cancel"),
}
"""By the word of the operation: in an `async def` workflow, and in a `def` workflow."""


def subject(kind: Kind) -> str:
    """What would block."""
    is_def = isinstance(kind, StepCall) and not kind.step.is_async
    return f"{kind.OP} {kind.name!r}{' is a def and' if is_def else ''}"


def awaited(kind: Kind) -> str:
    return _faces(kind)[0].format(name=kind.name)


def blocking(kind: Kind) -> str:
    return _faces(kind)[1].format(name=kind.name)


def _faces(kind: Kind) -> tuple[str, str]:
    if kind.OP == DEFERRED and kind.name == INTERRUPT:
        return "`await outlast.interrupted()`", "`outlast.sync.interrupted()`"
    return _ANY if isinstance(kind, StartFlow) else _FACES.get(kind.OP, _ANY)
