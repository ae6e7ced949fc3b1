"""Workflows: durable functions. Calling one is always a durable execution, awaited.

receipt = await checkout(order)                                  # start, and wait for the result
handle = await checkout.start(order)                             # start, and hold on to it
handle = await checkout.options(id="order-42").start(order)
receipt = checkout.sync.start(order).result()                    # the blocking face, for code without a loop
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast

from msgspec import Struct, structs

from outlast import limits
from outlast.authoring.callables import check_callable, default_name, is_async
from outlast.authoring.host import Host
from outlast.authoring.options import Options, StartOptions, parse_lasting, parse_options, parse_requires
from outlast.authoring.retry import Retry, check_retry
from outlast.authoring.signature import patches_in, signature_of
from outlast.codec.arguments import Arguments
from outlast.errors import InvalidInput, WrongPlace
from outlast.machine import facts
from outlast.model.duration import Duration, to_ms
from outlast.model.names import check_name, check_word
from outlast.runtime.current import attempt_var, step_var
from outlast.runtime.parts import WorkflowDefinition

if TYPE_CHECKING:
    from outlast.client.handle import Handle, SyncHandle

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class WorkflowOptions(Struct, frozen=True, kw_only=True):
    """What `@app.workflow(...)` takes, checked."""

    name: str | None
    version: str
    lane: str
    retry: Retry
    timeout_ms: int | None
    deadline_ms: int | None
    requires: tuple[str, ...]
    retention_ms: int | None


class WorkflowKeywords(TypedDict, total=False):
    """The same, as it is written."""

    name: str | None
    version: str
    lane: str
    retry: Retry | None
    timeout: Duration | None
    deadline: Duration | None
    requires: Iterable[str]
    retention: Duration | None


def workflow_options(given: Mapping[str, Any]) -> WorkflowOptions:
    """Complains where the decorator stands, not at the first start."""
    for option in given:
        if option not in WorkflowKeywords.__annotations__:
            known = ", ".join(sorted(WorkflowKeywords.__annotations__))
            raise InvalidInput(f"unknown option {option!r} of a workflow; known: {known}")
    name, timeout, deadline, retention = (given.get(word) for word in ("name", "timeout", "deadline", "retention"))
    return WorkflowOptions(
        name=None if name is None else check_word("workflow", name),
        version=check_word("version", given.get("version", "1")),
        lane=check_word("lane", given.get("lane", "default")),
        retry=check_retry(given.get("retry")),
        timeout_ms=None if timeout is None else parse_lasting("timeout", timeout),
        deadline_ms=None if deadline is None else parse_lasting("deadline", deadline),
        requires=parse_requires(given.get("requires", ())),
        retention_ms=None if retention is None else to_ms(retention, what="retention"),
    )


class Bound(Generic[R_co]):
    """A workflow with its arguments, ready to be started: what `app.start_many` takes."""

    def __init__(self, workflow: Workflow[Any, R_co], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.workflow = workflow
        self.args = args
        self.kwargs = kwargs


def check_bound(bound: Bound[R]) -> Bound[R]:
    if not isinstance(cast("object", bound), Bound):
        raise InvalidInput(f"start_many takes workflows with their arguments, as .bind(…) gives them, not {bound!r}")
    return bound


class Workflow(Generic[P, R]):
    """What both colours share."""

    OPERATION: ClassVar = "workflow"

    def __init__(self, app: Host, fn: Callable[..., Any], options: WorkflowOptions) -> None:
        self.app = app
        self.fn = fn
        self.name = options.name or check_word("workflow", default_name("workflow", fn))
        self.version = options.version
        self._options = options
        self._retry = options.retry.policy()
        self._start_options = StartOptions()
        self.arguments = Arguments(fn, self.name)
        self.definition = WorkflowDefinition(
            name=self.name,
            version=self.version,
            fn=fn,
            is_async=is_async(fn),
            arguments=self.arguments,
            fatal=options.retry.fatal,
            patches=functools.cache(lambda: patches_in(fn)),
        )
        # Without the attributes of `fn`, which may have the names of ours.
        functools.update_wrapper(cast("Any", self), fn, updated=())

    @functools.cached_property
    def signature(self) -> str:
        """Made at the first start: by then all that the source names is defined."""
        return signature_of(self.fn, self.arguments, self.name, self.version)

    @property
    def definition_lane(self) -> str:
        return self._options.lane

    def options(self, **options: Unpack[Options]) -> Self:
        """The same workflow, with options for its next starts."""
        changed = copy.copy(self)
        changed._start_options = structs.replace(self._start_options, **parse_options(options))
        return changed

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        return Bound(self, args, kwargs)

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Accepted when this returns: from then on it will run, whatever happens to this process."""
        _refuse_inside(self.name)
        return await self.app.opened().start(Bound(self, args, kwargs))

    def execution(self, execution_id: str) -> Handle[R]:
        """A handle on an execution that was started before."""
        check_name("id", execution_id, max_chars=limits.ID_MAX_CHARS)
        return self.app.opened().handle(execution_id, self.arguments.result)

    @property
    def sync(self) -> SyncFace[P, R]:
        return SyncFace(self)

    @property
    def placement(self) -> tuple[str, frozenset[str]]:
        """The lane of its next start, and what a worker must offer."""
        given, own = self._start_options, self._options
        requires = own.requires if given.requires is None else given.requires
        return given.lane or own.lane, frozenset(requires)

    @property
    def starts_at_once(self) -> bool:
        return not self._start_options.delay_ms

    def fact(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, namespace: str, worker: str | None = None
    ) -> facts.Start:
        """The start of one execution, by a worker that has room for it or for whoever claims it; complains about
        arguments before anything is written."""
        values, entropy = self.app.values, self.app.entropy
        data, digest = self.arguments.encode(values, args, kwargs)
        given, own = self._start_options, self._options
        requires = own.requires if given.requires is None else given.requires
        return facts.Start(
            change_id=entropy.new_id(),
            namespace=namespace,
            id=given.id if given.id is not None else entropy.new_id(),
            workflow=self.name,
            version=self.version,
            signature=self.signature,
            input=data,
            input_digest=digest,
            lane=given.lane or own.lane,
            requires=requires,
            priority=given.priority,
            delay_ms=given.delay_ms,
            deadline_ms=own.deadline_ms if given.deadline_ms is None else given.deadline_ms,
            timeout_ms=own.timeout_ms,
            retry=self._retry,
            retention_ms=own.retention_ms if given.retention_ms is None else given.retention_ms,
            tags=given.tags,
            if_exists=given.if_exists,
            first_epoch=int(entropy.random() * limits.FIRST_EPOCHS),
            worker=worker,
        )

    def __repr__(self) -> str:
        return f"<workflow {self.name!r}, version {self.version!r}>"

    async def _run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        handle = await self.start(*args, **kwargs)
        return await handle.result()


class AsyncWorkflow(Workflow[P, R]):
    """An `async def` workflow: `await checkout(order)`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        _refuse_inside(self.name)
        return self._run(*args, **kwargs)

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self(*args, **kwargs)


class SyncWorkflow(Workflow[P, R]):
    """A `def` workflow: `import_file(path)` blocks; from async code `await import_file.aio(path)`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.sync(*args, **kwargs)

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        _refuse_inside(self.name)
        return self._run(*args, **kwargs)


class SyncFace(Generic[P, R]):
    """The blocking face of a workflow."""

    def __init__(self, workflow: Workflow[P, R]) -> None:
        self._workflow = workflow

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.start(*args, **kwargs).result()

    def start(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        from outlast.client.handle import SyncHandle

        _refuse_inside(self._workflow.name)
        handle = self._workflow.app.blocking(lambda: self._workflow.start(*args, **kwargs))
        return SyncHandle(self._workflow.app, handle)

    def execution(self, execution_id: str) -> SyncHandle[R]:
        from outlast.client.handle import SyncHandle

        async def handle() -> Handle[R]:
            return self._workflow.execution(execution_id)

        return SyncHandle(self._workflow.app, self._workflow.app.blocking(handle))


def make_workflow(app: Host, fn: object, options: WorkflowOptions) -> Workflow[Any, Any]:
    operation = getattr(type(fn), "OPERATION", None)
    if operation is not None:
        raise InvalidInput(f"{fn!r} is a {operation} already; its function is .fn")
    if isinstance(fn, type):
        raise InvalidInput(f"a workflow must be a function, not the class {fn.__qualname__}")
    checked = check_callable("workflow", fn)
    return (AsyncWorkflow if is_async(checked) else SyncWorkflow)(app, checked, options)


def _refuse_inside(name: str) -> None:
    step = step_var.get()
    if step is not None:
        raise WrongPlace(
            f"workflow {name!r} was called inside step {step!r}: a step is one recorded effect; "
            "call the workflow from a workflow, or before or after"
        )
    if attempt_var.get() is not None:
        raise WrongPlace(f"workflow {name!r} was called inside a workflow: child executions do not work yet")
