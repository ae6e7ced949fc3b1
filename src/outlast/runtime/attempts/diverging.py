"""What the code does instead of what is recorded, and where: for whoever reads of a divergence."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from outlast import limits
from outlast.codec.annotations import underlying
from outlast.runtime.attempts.signals import ContinuedAsNew

if TYPE_CHECKING:
    from outlast.model.journal import JournalEntry
    from outlast.runtime.attempts.operation import Operation
    from outlast.runtime.parts import WorkflowDefinition

_LIBRARIES = (
    str(Path(limits.__file__).parent),  # all of Outlast, wherever this module lives
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def called_instead(entry: JournalEntry, outstanding: Iterable[Operation], new: Iterable[Operation]) -> Operation | None:
    """Of what the code awaits, what it called last in the branch of the entry, else last of all. What is new, and of
    the same kind, comes first: what is recorded further down only shows that the code does things in another order."""
    unknown = frozenset(new)

    def likeness(one: Operation) -> tuple[bool, bool, bool]:
        return one.key[0] == entry.scope, one in unknown, one.kind.OP == entry.op

    return max(reversed(list(outstanding)), key=likeness, default=None)


def ended_instead(workflow: WorkflowDefinition, error: BaseException | None) -> tuple[str, str]:
    """How the code has ended, and at which line of the user's."""
    if error is None:
        return "nothing: it returns", place_of(workflow)
    cause = _alone(error)
    if isinstance(cause, ContinuedAsNew):
        return "nothing: it continues as new", _raised_at(workflow, cause)
    said = str(cause).partition("\n")[0]
    return f"nothing: it raises {type(cause).__name__}{said and f': {said}'}", _raised_at(workflow, cause)


def _alone(error: BaseException) -> BaseException:
    """What failed in a group of branches, if it is only one."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return _alone(inner[0]) if len(inner) == 1 else cast("BaseException", error)


def place_of(workflow: WorkflowDefinition, lines: Iterable[str] = ()) -> str:
    """Where its code stands, or else where it begins."""
    if standing := ", ".join(lines):
        return standing
    code = getattr(inspect.unwrap(underlying(workflow.fn)), "__code__", None)
    return "an unknown file" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _raised_at(workflow: WorkflowDefinition, error: BaseException) -> str:
    """The deepest line that is neither of a library nor of Outlast; code that is installed as a library: the deepest
    of its own file."""
    own = place_of(workflow).rpartition(":")[0]
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    found = [place for place in lines if not place[0].startswith(_LIBRARIES)]
    found = found or [place for place in lines if place[0] == own]
    return "{}:{}".format(*found[-1]) if found else place_of(workflow)
