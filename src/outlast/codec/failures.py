"""What user code raised, as bytes: enough to raise it again elsewhere, and to read it when that is not possible.

An exception comes back as its own type where that can be imported, with its arguments, attributes, notes, the cause
that it was raised from and, of a group, its members; else as `ExecutionFailed`. The remote traceback is at the end of
its chain of causes, readable in the output. It is made without running its constructor, whose parameters nobody knows:
only a subclass of `Exception` is ever made, and nothing of it is called (but Pydantic's: see `validation.py`).

Arguments and attributes are kept where plain JSON keeps them; an argument of bytes is kept beside them, and any other
that JSON does not keep is kept as its text. What builtin errors know beside their arguments is kept as attributes.
All of it is bounded: long messages lose their end, long tracebacks their middle, large attributes are left out.
"""

from __future__ import annotations

import os
import traceback
from typing import Any, cast

import msgspec
from msgspec import Struct

from outlast import limits
from outlast.codec.shapes import change_in, unstorable_in
from outlast.codec.types import find_type, type_name
from outlast.codec.validation import KIND as VALIDATION_ERROR
from outlast.codec.validation import Validation, made_again, validation_of
from outlast.errors import CodecError, ExecutionFailed

MESSAGE_MAX_CHARS = 2_000
TRACEBACK_MAX_CHARS = 20_000
PART_MAX_BYTES = 4_000
BINARY_MAX_BYTES = 2_000
MEMBERS_MAX = 50
CAUSES_MAX = 5
PLAIN_MAX_BYTES = limits.FAILURE_MAX_BYTES // 2
"""Before the codec hook, which may make it longer."""


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`type` is `module:qualified name`; `args` is None where the message stands for them.

    `binary` are those of the arguments that are bytes, by their place; in `args` is their text.

    `validation` is what Pydantic's ValidationError is made of again.

    `again` are the places of the journaled operations that a retry must run again, as it can't know them otherwise: a
    bit for each, so that it is never too long to be kept.
    """

    type: str = ""
    message: str = ""
    args: list[Any] | None = None
    binary: dict[int, bytes] = {}
    attributes: dict[str, Any] = {}
    cause: Failure | None = None
    members: list[Failure] = []
    traceback: str = ""
    again: bytes = b""
    validation: Validation | None = None


def settle_failure(error: BaseException, *, execution_id: str, what: str) -> tuple[bytes, Exception]:
    """The bytes of a failure, and the exception as a replay would raise it: code sees the same both times."""
    data = encode_failure(failure_of(error))
    return data, raised_again(decode_failure(data), execution_id=execution_id, what=what)


# ---- to bytes -----------------------------------------------------------------------------------------------------


def failure_of(error: BaseException) -> Failure:
    return _failure_of(error, depth=0, lines=_shortened(_traceback_of(error)))


def encode_failure(failure: Failure) -> bytes:
    """The bytes to store, never over the limit: what is dearest to a reader is dropped last."""
    for smaller in (_whole, _without_details, _without_members, _bare):
        data = msgspec.json.encode(smaller(failure))
        if len(data) <= PLAIN_MAX_BYTES:
            return data
    raise AssertionError("a bare failure is within the limit")


def _failure_of(error: BaseException, *, depth: int, lines: str = "") -> Failure:
    members: list[Failure] = []
    if isinstance(error, BaseExceptionGroup) and depth < CAUSES_MAX:
        group = cast("BaseExceptionGroup[BaseException]", error)
        members = [_failure_of(member, depth=depth + 1) for member in group.exceptions[:MEMBERS_MAX]]
    error = cast("BaseException", error)
    cause = error.__cause__
    kind = type_name(type(error))
    return Failure(
        type=kind,
        message=message_of(error),
        args=None if members else _args_of(error),
        binary={} if members else _binary_of(error),
        attributes=_attributes_of(error),
        cause=None if cause is None or depth >= CAUSES_MAX else _failure_of(cause, depth=depth + 1),
        members=members,
        traceback=lines,
        validation=_validation_of(error) if kind == VALIDATION_ERROR else None,
    )


def _validation_of(error: BaseException) -> Validation | None:
    try:
        return validation_of(error, _is_kept, lambda value, max_chars: _text(_printed(value), max_chars))
    except Exception:  # another version of Pydantic may say it otherwise
        return None


def message_of(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return _text(error.message, MESSAGE_MAX_CHARS)  # str() adds the count, which the constructor adds again
    try:
        return _text(str(error), MESSAGE_MAX_CHARS)
    except Exception:  # whatever its __str__ does
        return f"<{type(error).__qualname__} that cannot be printed>"


def _args_of(error: BaseException) -> list[Any] | None:
    return [arg if _is_kept(arg) else _text(_printed(arg), MESSAGE_MAX_CHARS) for arg in error.args]


def _binary_of(error: BaseException) -> dict[int, bytes]:
    return {place: arg[:BINARY_MAX_BYTES] for place, arg in enumerate(error.args) if isinstance(arg, bytes)}


def _attributes_of(error: BaseException) -> dict[str, Any]:
    found = {**cast("dict[str, Any]", getattr(error, "__dict__", {})), **_builtin_state_of(error)}
    return {
        name: value
        for name, value in found.items()
        if (name == "__notes__" or not name.startswith("__")) and _is_kept(value)
    }


def _builtin_state_of(error: BaseException) -> dict[str, Any]:
    state = {name: _file_name(slot.__get__(error)) for name, slot in _slots_of(type(error)).items()}
    return {name: value for name, value in state.items() if value is not None}


def _file_name(value: object) -> object:
    """The text of one, of whatever kind; anything else as it is."""
    try:
        return os.fsdecode(cast("os.PathLike[str]", value)) if isinstance(value, bytes | os.PathLike) else value
    except Exception:  # whatever its __fspath__ does
        return None


def _slots_of(kind: type[BaseException]) -> dict[str, Any]:
    """What builtin errors keep elsewhere than in their arguments or `__dict__`."""
    return {name: vars(base)[name] for base in kind.__mro__ for name in _BUILTIN_STATE.get(base, ())}


def _is_kept(value: object) -> bool:
    """Whether plain JSON keeps a value as it is, and it is not too long."""
    try:
        data = msgspec.json.encode(value)
        return (
            len(data) <= PART_MAX_BYTES
            and change_in(value, msgspec.json.decode(data), "") is None
            and unstorable_in(value, "") is None
        )
    except Exception:
        return False


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # an exception that breaks its own formatting
        return "".join(traceback.format_tb(error.__traceback__))


def _shortened(lines: str) -> str:
    """Both ends of a long traceback: where it began, and what it came to."""
    lines = _text(lines)
    if len(lines) <= TRACEBACK_MAX_CHARS:
        return lines
    half = TRACEBACK_MAX_CHARS // 2
    return f"{lines[:half]}\n  … {len(lines) - 2 * half:,} characters left out …\n{lines[-half:]}"


def _text(text: str, max_chars: int | None = None) -> str:
    """Text that can be encoded, and of which a part may be missing."""
    if max_chars is not None and len(text) > max_chars:
        text = f"{text[:max_chars]}…"
    return text.encode(errors="backslashreplace").decode()


def _printed(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__qualname__} that cannot be printed>"


def _whole(failure: Failure) -> Failure:
    return failure


def _without_details(failure: Failure) -> Failure:
    return Failure(
        type=failure.type,
        message=failure.message,
        cause=None if failure.cause is None else _without_details(failure.cause),
        members=[_without_details(member) for member in failure.members],
        traceback=failure.traceback[-4_000:],
        again=failure.again,
        validation=failure.validation,
    )


def _without_members(failure: Failure) -> Failure:
    return Failure(
        type=failure.type, message=failure.message, traceback=failure.traceback[-2_000:], again=failure.again
    )


def _bare(failure: Failure) -> Failure:
    return Failure(type=failure.type[:500], message=failure.message[:500], again=failure.again)


# ---- from bytes ---------------------------------------------------------------------------------------------------


def decode_failure(data: bytes) -> Failure:
    try:
        return msgspec.json.decode(data, type=Failure)
    except msgspec.MsgspecError as error:
        raise CodecError(f"a recorded failure cannot be read: {error}") from error


def raised_again(failure: Failure, *, execution_id: str, what: str) -> Exception:
    """The original exception where its type can be imported; else `ExecutionFailed`."""
    remote = ExecutionFailed(execution_id, what, failure.type, failure.message, failure.traceback)
    original = _original(failure, execution_id, what)
    if original is None:
        return remote
    innermost: BaseException = original
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    _set_cause(innermost, remote)
    return original


def _original(failure: Failure, execution_id: str, what: str) -> Exception | None:
    kind = find_type(failure.type)
    if kind is None or not issubclass(kind, Exception):
        return None
    if issubclass(kind, BaseExceptionGroup):
        if not failure.members:
            return None
        members = [_member(member, execution_id, what) for member in failure.members]
        args: list[Any] = [failure.message, members]
    else:
        args = [failure.message] if failure.args is None else failure.args
        args = [failure.binary.get(place, arg) for place, arg in enumerate(args)]
    try:
        if failure.type == VALIDATION_ERROR and failure.validation is not None:
            original = made_again(kind, failure.validation)
        else:
            original = _made(kind, args)
        _set_attributes(original, failure.attributes)
        str(original)  # one that cannot be printed without what JSON did not keep is worse than none
    except Exception:
        return None
    if failure.cause is not None:
        _set_cause(original, _member(failure.cause, execution_id, what))
    return original


def _member(failure: Failure, execution_id: str, what: str) -> Exception:
    original = _original(failure, execution_id, what)
    return original or ExecutionFailed(execution_id, what, failure.type, failure.message, failure.traceback)


def _made(kind: type[Exception], args: list[Any]) -> Exception:
    """An exception as if it had been constructed: by the builtin type that it derives from, none of its own code."""
    builtin = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    made: Exception = builtin.__new__(kind, *args)
    if not issubclass(kind, BaseExceptionGroup):
        builtin.__init__(made, *args)
    return made


def _set_attributes(made: Exception, attributes: dict[str, Any]) -> None:
    slots = _slots_of(type(made))
    for name in attributes.keys() & slots.keys():
        slots[name].__set__(made, attributes[name])
    made.__dict__.update({name: value for name, value in attributes.items() if name not in slots})


def _set_cause(error: BaseException, cause: BaseException) -> None:
    BaseException.__setattr__(error, "__cause__", cause)  # not by code of its own


_BUILTIN_STATE: dict[type, tuple[str, ...]] = {
    OSError: ("filename", "filename2"),
    ImportError: ("name", "path"),
    NameError: ("name",),
    AttributeError: ("name",),
}
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that Python code defined
