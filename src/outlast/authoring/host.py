"""What workflows need of the app that they are registered with."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from outlast.codec.values import Values
from outlast.errors import InvalidInput
from outlast.runtime.entropy import Entropy

if TYPE_CHECKING:
    from outlast.authoring.workflow import Workflow
    from outlast.client.client import Client
    from outlast.runtime.attempts.attempt import LiveAttempt

T = TypeVar("T")


class Host(Protocol):
    values: Values
    entropy: Entropy

    @property
    def gather(self) -> Workflow[Any, Any]:
        """The workflow of the engine's own that joins the results of a map."""
        ...

    @property
    def expand(self) -> Workflow[Any, Any]:
        """The workflow of the engine's own that grows a flow by the items of a map that are known at run time."""
        ...

    def opened(self) -> Client:
        """The client of the open app; `WrongPlace` if it is not open."""
        ...

    def blocking(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run async work for code that has no event loop; `WrongPlace` on a loop's thread."""
        ...


def check_own(app: Host, attempt: LiveAttempt, what: str) -> None:
    """That the running code is of the same app: workers of this one would not know the other's workflow, and it would
    be waited for in vain."""
    if app.values is not attempt.parts.values:
        raise InvalidInput(f"{what} belongs to another app than the workflow that starts it")
