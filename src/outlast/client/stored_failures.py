"""What executions failed with, as it is stored: read for many at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from outlast import limits
from outlast.client.info import ErrorInfo
from outlast.codec.failures import decode_failure
from outlast.codec.values import Values
from outlast.errors import CodecError
from outlast.model.completion import Completion
from outlast.model.execution import Execution
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import Key, Record
from outlast.model.status import Status

Load: TypeAlias = Callable[[Sequence[Key]], Awaitable[Sequence[Record | None]]]
FAILED = frozenset({Status.FAILED, Status.EXPIRED})
"""The ends that may have a failure."""


def failure_keys(executions: Iterable[Execution]) -> dict[str, Key]:
    """By id: where the failure of each execution is that failed."""
    return {e.id: payload_key(e.namespace, e.id, e.generation, Role.FAILURE) for e in executions if e.status in FAILED}


def completed_failure_keys(completions: Iterable[Completion]) -> dict[str, Key]:
    """The same for ends, by their change ids."""
    return {
        one.change_id: payload_key(one.namespace, one.execution, one.generation, Role.FAILURE)
        for one in completions
        if one.status in FAILED
    }


async def stored_failures(load: Load, keys: Mapping[str, Key]) -> dict[str, bytes]:
    """The failures that there are, under the same names."""
    found: dict[str, bytes] = {}
    names = list(keys)
    for begin in range(0, len(names), limits.LOAD_MAX_KEYS):
        some = names[begin : begin + limits.LOAD_MAX_KEYS]
        records = await load([keys[name] for name in some])
        found |= {name: one.value for name, one in zip(some, records, strict=True) if isinstance(one, Payload)}
    return found


def error_in(values: Values, data: bytes | None, *, traceback: bool = True) -> ErrorInfo | None:
    """A stored failure as people see it. One that the app's codec cannot read says so: what is shown beside it is no
    reason to raise."""
    if data is None:
        return None
    try:
        failure = decode_failure(values.unseal(data, "failure"))
    except CodecError as error:
        return ErrorInfo(type=f"{type(error).__module__}:{type(error).__qualname__}", message=str(error))
    return ErrorInfo(type=failure.type, message=failure.message, traceback=failure.traceback if traceback else "")
