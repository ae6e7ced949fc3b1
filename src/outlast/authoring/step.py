"""Steps: checkpointed calls inside a workflow. A decorated function keeps its colour.

    payment = await charge(order)        # an async def step, in an async def workflow
    rows = parse(path)                   # a def step, in a def workflow
    rows = await parse.aio(path)         # a def step, in an async def workflow
    payment = charge.sync(order)         # an async def step, in a def workflow

Outside of a workflow, and inside of another step, it is a plain call.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast, overload

from outlast.authoring.callables import check_callable, default_name, is_async
from outlast.authoring.options import parse_lasting
from outlast.authoring.retry import Retry, check_retry
from outlast.codec.annotations import Hints
from outlast.errors import InvalidInput
from outlast.model.duration import Duration
from outlast.model.names import check_user_name
from outlast.runtime.attempts.current import inside
from outlast.runtime.operations.performed import Performed
from outlast.runtime.operations.step import StepCall, StepDefinition

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class StepOptions(TypedDict, total=False):
    """What `@app.step(...)` and `.options(...)` take."""

    name: str | None
    retry: Retry | None
    timeout: Duration | None


def check_step_options(given: Mapping[str, Any]) -> StepOptions:
    """Complains where the options stand, not at the first call."""
    for option in given:
        if option not in StepOptions.__annotations__:
            known = ", ".join(sorted(StepOptions.__annotations__))
            raise InvalidInput(f"unknown option {option!r} of a step; known: {known}")
    if given.get("name") is not None:
        check_user_name("step", given["name"])
    if given.get("timeout") is not None:
        parse_lasting("timeout", given["timeout"])
    check_retry(given.get("retry"))
    return cast("StepOptions", dict(given))


class Step(Generic[P, R]):
    """What both colours share."""

    OPERATION: ClassVar = "step"

    def __init__(self, fn: Callable[..., Any], options: StepOptions) -> None:
        self.fn = fn
        self.name = options.get("name") or check_user_name("step", default_name("step", fn))
        self._options = options
        self._hints = Hints(fn)
        # Without the attributes of `fn`, which may have the names of ours.
        functools.update_wrapper(cast("Any", self), fn, updated=())

    @functools.cached_property
    def _shown(self) -> str:
        return f"{self.OPERATION} {self.name}"

    @functools.cached_property
    def _definition(self) -> StepDefinition:
        """Made at the first call: by then all that the annotations name is defined."""
        retry, timeout = check_retry(self._options.get("retry")), self._options.get("timeout")
        return StepDefinition(
            name=self.name,
            fn=self.fn,
            is_async=is_async(self.fn),
            result=self._hints["return"],
            retry=retry.policy(),
            fatal=retry.fatal,
            timeout_s=None if timeout is None else parse_lasting("timeout", timeout) / 1_000,
        )

    def options(self, **options: Unpack[StepOptions]) -> Self:
        """The same step, with other options: `await charge.options(timeout="5s")(order)`."""
        checked = check_step_options({**self._options, **options})
        return self._changed(_options=checked, name=checked.get("name") or self.name)

    def _bound_to(self, instance: object) -> Self:
        """The step as a method of an instance, as Python binds functions, and leaves alone what is not one."""
        bind = getattr(type(self.fn), "__get__", None)
        return self if bind is None else self._changed(fn=bind(self.fn, instance, type(instance)))

    def _changed(self, **fields: Any) -> Self:
        changed = copy.copy(self)
        for made in ("_definition", "_shown"):
            vars(changed).pop(made, None)
        vars(changed).update(fields)
        return changed

    def __repr__(self) -> str:
        return f"<step {self.name!r}>"

    def kind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Performed:
        """One call of it, as the runtime performs it."""
        return StepCall(self._definition, args, kwargs)

    def _awaited(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """Its key is fixed here, at the call. It begins when it is awaited: what is given up before that never does."""
        attempt = inside()
        if attempt is None:
            call = _plain_call(self.fn, args, kwargs)
        else:
            call = attempt.outcome(attempt.prepare(self.kind(args, kwargs), below=2))
        call.__qualname__ = self._shown  # by which Python warns if nobody awaits it
        return call

    def _blocking(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        attempt = inside()
        if attempt is not None:
            return attempt.call_from_thread(self.kind(args, kwargs))
        if self._definition.is_async:
            from outlast.client.portal import portal  # only here: most programs never need its thread

            return portal().call(lambda: self.fn(*args, **kwargs))
        return self.fn(*args, **kwargs)


class AsyncStep(Step[P, R]):
    """An `async def` step: `await charge(order)`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self._awaited(args, kwargs)

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self(*args, **kwargs)

    def sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._blocking(args, kwargs)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> AsyncStep[P, R]: ...
    @overload
    def __get__(self: AsyncStep[Concatenate[S, Q], R], instance: S, owner: type | None = None) -> AsyncStep[Q, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> AsyncStep[P, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self._bound_to(instance)


class SyncStep(Step[P, R]):
    """A `def` step: `parse(path)`; from async code `await parse.aio(path)`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._blocking(args, kwargs)

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self._awaited(args, kwargs)

    def sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> SyncStep[P, R]: ...
    @overload
    def __get__(self: SyncStep[Concatenate[S, Q], R], instance: S, owner: type | None = None) -> SyncStep[Q, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> SyncStep[P, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self._bound_to(instance)


def make_step(fn: object, options: StepOptions) -> AsyncStep[Any, Any] | SyncStep[Any, Any]:
    operation = getattr(type(fn), "OPERATION", None)
    if operation is not None:
        raise InvalidInput(f"{fn!r} is a {operation} already; its function is .fn, other options are .options(…)")
    checked = check_callable("step", fn)
    return AsyncStep(checked, options) if is_async(checked) else SyncStep(checked, options)


async def _plain_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = fn(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result
