"""What a workflow lets others ask while it runs: queries, which only look, and updates, which it may refuse.

    @app.workflow
    async def cart() -> list[str]:
        items: list[str] = []
        done = asyncio.Event()

        @outlast.query("items")
        def shown() -> list[str]:
            return items

        @outlast.update("add")
        def add(item: str) -> int:
            items.append(item)
            return len(items)

        @add.validator
        def known(item: str) -> None:
            if item not in CATALOGUE:
                raise ValueError(f"no such item: {item}")

        ...

Others ask with `await handle.query("items")` and `await handle.update("add", "pear", key="click-7")`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from outlast.authoring.callables import check_callable
from outlast.authoring.inside import workflow_code
from outlast.codec.arguments import Arguments
from outlast.model.names import check_user_name
from outlast.runtime.attempts.asked import Handler, plain_parameters

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def query(name: str) -> Callable[[F], F]:
    """`@outlast.query("items")` above a function of the workflow's own code that shows something of what it knows.

    It takes one value, or none, and only looks: nothing durable can be done in it. Answered from the code as it stands
    after all that is recorded; also when it sleeps, or has ended.
    """
    attempt = workflow_code("query")
    check_user_name("query", name)

    def register(fn: F) -> F:
        check_callable(f"handler of query {name!r}", fn)
        attempt.asked.queries[name] = Handler("query", name, fn)
        return fn

    return register


class Update(Generic[P, R]):
    """A function that answers an update; `@add.validator` above another one that may refuse it before."""

    def __init__(self, handler: Handler, fn: Callable[P, R]) -> None:
        self._handler = handler
        self.fn = fn

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself, from the workflow's own code."""
        return self.fn(*args, **kwargs)

    def validator(self, fn: Callable[P, Any]) -> Callable[P, Any]:
        """Called before the update is accepted, with what came with it. It only looks; what it raises refuses."""
        check_callable(f"validator of {self._handler.what}", fn)
        what = f"the validator of {self._handler.what}"
        plain_parameters(what, fn, Arguments(fn, what))
        self._handler.validator = fn
        return fn


def update(name: str) -> Callable[[Callable[P, R]], Update[P, R]]:
    """`@outlast.update("add")` above a function of the workflow's own code that changes what it knows.

    It is called once the update is accepted, which is durable, and again in every replay. What it returns is the
    answer. Updates come one at a time, in the order of their sending, while the code waits.
    """
    attempt = workflow_code("update")
    check_user_name("update", name)

    def register(fn: Callable[P, R]) -> Update[P, R]:
        check_callable(f"handler of update {name!r}", fn)
        handler = attempt.asked.updates[name] = Handler("update", name, fn)
        return Update(handler, fn)

    return register
