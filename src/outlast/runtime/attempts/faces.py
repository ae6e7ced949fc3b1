"""What to write instead, where code calls an operation by the face of the other colour."""

from __future__ import annotations

from outlast.model.journal import DEFERRED
from outlast.model.names import INTERRUPT
from outlast.model.operation import ANY_FACES, OPERATIONS
from outlast.runtime.attempts.operation import Kind
from outlast.runtime.operations.step import StepCall
from outlast.runtime.operations.subflow import StartFlow


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
    return ANY_FACES if isinstance(kind, StartFlow) else OPERATIONS[kind.OP].faces
