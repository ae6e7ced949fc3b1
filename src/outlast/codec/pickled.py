"""Pickle, for those who ask for it: `App(allow_pickle=True)`.

Reading a pickle runs whatever its writer wanted: it is for stores that nobody writes to but processes that you trust
with your code. So it is off unless asked for, for writing and for reading; and no other value is ever stored so that it
looks like a pickled one, however it was made: not what code gives, nor a part of a stored value that becomes a value of
its own, which a stranger may have written.

A pickled value is still JSON, with its bytes inside, so that whatever shows stored values can show it.
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from typing import Any

import msgspec

from outlast.errors import CodecError

MARK = b'{"outlast:pickle":"'
_END = b'"}'


def pickled(value: object) -> bytes:
    return MARK + b64encode(pickle.dumps(value)) + _END


def is_pickled(data: bytes | msgspec.Raw) -> bool:
    if type(data) is bytes:
        return data.startswith(MARK)
    return bytes(memoryview(data)[: len(MARK)]) == MARK  # no copy of what may be large


def refuse_lookalike(data: bytes | msgspec.Raw, what: object) -> None:
    """Of JSON that is to be stored as a value, and was not pickled."""
    if is_pickled(data):
        raise CodecError(f"{what} looks like a pickled value, and cannot be stored")


def unpickled(data: bytes | msgspec.Raw) -> Any:
    inside = bytes(data).removeprefix(MARK).removesuffix(_END)
    return pickle.loads(b64decode(inside, validate=True))  # noqa: S301 (asked for, by who runs this process)
