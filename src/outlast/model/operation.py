"""What each durable operation is: one row for each word that stands in the `op` of a journal entry.

Whoever has to treat operations differently asks this table; nobody else keeps a list of words. To add an operation, add
its row, and its class in `runtime/operations/`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from outlast.model.journal import (
    CANCEL,
    CHILD,
    DEFERRED,
    ORIGIN,
    PATCH,
    RECEIVE,
    RETRY,
    SLEEP,
    START,
    STEP,
    TIMER,
    UNWIND,
    UPDATE,
    WAIT,
)

ANY_FACES = ("its `await` face", "its blocking face (`.sync`)")
"""What can be said of any operation: how an `async def` workflow calls it, and how a `def` workflow does."""


class Detail(StrEnum):
    """What a timeline shows behind the title of an entry."""

    OUTCOME = "outcome"
    """The outcome of an operation, with its value or failure."""
    STARTED = "started"
    """The same, with the id of what was started for a value."""
    NEXT_TRY = "next_try"
    LIMIT = "limit"
    """Until when it waits at most."""
    NOTED = "noted"
    FAILURE = "failure"
    SOURCE = "source"
    """The execution that was forked."""
    NOTHING = "nothing"


class OperationInfo(Struct, frozen=True, kw_only=True):
    title: str
    """What a timeline calls an entry, with the name of the operation in it."""
    detail: Detail = Detail.OUTCOME
    faces: tuple[str, str] = ANY_FACES
    """How an `async def` workflow calls it, and how a `def` workflow does, where an error advises the other one."""
    called: bool = True
    """Code calls it, so a retry or a fork may begin from it. Otherwise the engine records it by itself."""
    waits: bool = False
    """Its outcome may be recorded by whoever ends the wait, when the code is suspended."""
    ends_by_time: bool = False
    """Its wait ends when its time comes, and has no value."""
    unbidden: bool = False
    """It comes to the code by itself when it is its turn: the code calls no operation for it, but can name it."""
    beside: bool = False
    """It stands beside the call that it is about, and leaves the journal with it."""
    plain: bool = False
    """Its value is the engine's own: no codec seals it, and a test that reads a journal does not see it."""
    undoable: bool = True
    """An undo may take back what it did."""
    read_later: bool = False
    """An attempt reads its value again after it has recorded it: when a try is due, which child was started."""
    of_child: bool = False
    """Whoever gives it up may owe a child its cancel."""


_OWN_NAME = ("`await {name}.aio(...)`", "`{name}.sync(...)`")
_TOKEN = ("`await outlast.deferred(...).token()`", "`outlast.sync.deferred(...).token()`")


def _of_outlast(call: str, result: str = "") -> tuple[str, str]:
    return f"`await outlast.{call}(...)`", f"`outlast.sync.{call}(...){result}`"


def _of_another(verb: str) -> tuple[str, str]:
    return f"`await app.execution(id).{verb}(...)`", f"`workflow.sync.execution(id).{verb}(...)`"


OPERATIONS: dict[str, OperationInfo] = {
    STEP: OperationInfo(title="step {name}", faces=_OWN_NAME),
    "transaction": OperationInfo(title="transaction {name}", faces=_OWN_NAME),
    START: OperationInfo(title="start {name}", detail=Detail.STARTED, faces=_OWN_NAME, read_later=True, of_child=True),
    CHILD: OperationInfo(title="child {name}", faces=_of_another("result"), waits=True, of_child=True),
    "flow": OperationInfo(title="flow {name}"),
    SLEEP: OperationInfo(
        title="sleep {name}", faces=_of_outlast("sleep"), waits=True, ends_by_time=True, undoable=False
    ),
    TIMER: OperationInfo(title="timer {name}", waits=True, ends_by_time=True, undoable=False),
    RECEIVE: OperationInfo(title="receive {name}", faces=_of_outlast("receive"), waits=True, undoable=False),
    DEFERRED: OperationInfo(
        title="deferred {name}", faces=_of_outlast("deferred", ".result()"), waits=True, undoable=False
    ),
    "token": OperationInfo(title="token {name}", faces=_TOKEN),
    "compensate": OperationInfo(title="compensate {name}"),
    "send": OperationInfo(title="send {name}", faces=_of_another("send")),
    "resolve": OperationInfo(title="resolve {name}", faces=_of_another("resolve")),
    "reject": OperationInfo(title="reject {name}", faces=_of_another("reject")),
    "interrupt": OperationInfo(title="interrupt {name}", faces=_of_another("interrupt")),
    "cancel of another": OperationInfo(title="cancel of another {name}", faces=_of_another("cancel")),
    CANCEL: OperationInfo(title="cancel told to the code", detail=Detail.NOTHING, unbidden=True),
    UPDATE: OperationInfo(title="update {name} told to the code", detail=Detail.NOTHING, unbidden=True, undoable=False),
    RETRY: OperationInfo(
        title="step {name}", detail=Detail.NEXT_TRY, called=False, beside=True, plain=True, read_later=True
    ),
    WAIT: OperationInfo(
        title="wait {name}", detail=Detail.LIMIT, called=False, beside=True, plain=True, undoable=False
    ),
    PATCH: OperationInfo(title="patches of its code", detail=Detail.NOTED, called=False, plain=True, undoable=False),
    UNWIND: OperationInfo(title="undoing began", detail=Detail.FAILURE, called=False),
    ORIGIN: OperationInfo(title="forked", detail=Detail.SOURCE, called=False, plain=True, undoable=False),
}
"""Every word that stands in a journal."""


def _words(holds: Callable[[OperationInfo], bool]) -> frozenset[str]:
    return frozenset(word for word, operation in OPERATIONS.items() if holds(operation))


CALLED = _words(lambda operation: operation.called)
WAITED = _words(lambda operation: operation.waits)
ENDED_BY_TIME = _words(lambda operation: operation.ends_by_time)
UNBIDDEN = _words(lambda operation: operation.unbidden)
BESIDE_CALLS = _words(lambda operation: operation.beside)
PLAIN = _words(lambda operation: operation.plain)
UNDOABLE = _words(lambda operation: operation.undoable)
READ_LATER = _words(lambda operation: operation.read_later)
OF_CHILDREN = _words(lambda operation: operation.of_child)
"""The words of one property each, for the paths that ask it at every entry."""
