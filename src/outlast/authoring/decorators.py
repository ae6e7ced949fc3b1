"""The types of `@app.step(…)`, `@app.transaction(…)` and `@app.workflow(…)`: a decorated function keeps its colour."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from outlast.authoring.step import AsyncStep, SyncStep
from outlast.authoring.transaction import AsyncTransaction, SyncTransaction
from outlast.authoring.workflow import AsyncWorkflow, SyncWorkflow

P = ParamSpec("P")
R = TypeVar("R")


class StepDecorator(Protocol):
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]: the first that fits is meant
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncStep[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncStep[P, R]: ...


class TransactionDecorator(Protocol):
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTransaction[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTransaction[P, R]: ...


class WorkflowDecorator(Protocol):
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncWorkflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncWorkflow[P, R]: ...
