"""Workflows: durable functions. Calling one is always a durable execution, awaited.

receipt = await checkout(order)                                  # start, and wait for the result
handle = await checkout.start(order)                             # start, and hold on to it
handle = await checkout.options(id="order-42").start(order)
receipt = checkout.sync.start(order).result()                    # the blocking face, for code without a loop
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast

from msgspec import Struct, structs

from outlast import limits
from outlast.authoring.callables import check_callable, default_name, is_async, refuse_method
from outlast.authoring.host import Host, check_own
from outlast.authoring.options import Options, StartOptions, parse_lasting, parse_options, parse_requires
from outlast.authoring.retry import Retry, check_retry
from outlast.authoring.signature import patches_in, signature_of
from outlast.codec.arguments import Arguments
from outlast.errors import InvalidInput, WrongPlace
from outlast.machine import facts
from outlast.model.duration import Duration, to_ms
from outlast.model.names import check_name, check_word
from outlast.runtime.attempts.attempt import LiveAttempt
from outlast.runtime.attempts.current import attempt_var, inside, step_var
from outlast.runtime.attempts.mishaps import encoding
from outlast.runtime.attempts.operation import Operation
from outlast.runtime.operations.child import AwaitChild, StartChild, Started
from outlast.runtime.parts import WorkflowDefinition

if TYPE_CHECKING:
    from outlast.client.client import Client
    from outlast.client.handle import Handle, SyncHandle

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_OF_ONE_START = frozenset({"id", "retention", "send"})
"""Options that starts do not have in common."""


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
    max_crashes: int
    max_crashes_in_life: int


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
    max_crashes: int
    max_crashes_in_life: int


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
        max_crashes=_parse_crashes("max_crashes", given.get("max_crashes", 5)),
        max_crashes_in_life=_parse_crashes("max_crashes_in_life", given.get("max_crashes_in_life", 100)),
    )


def _parse_crashes(option: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limits.CRASHES_MAX:
        raise InvalidInput(f"{option} must be a whole number from 1 to {limits.CRASHES_MAX:,}, not {value!r}")
    return value


class Bound(Generic[R_co]):
    """A workflow with its arguments, ready to be started: what `app.start_many` takes."""

    def __init__(self, workflow: Workflow[Any, R_co], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.workflow = workflow
        self.args = args
        self.kwargs = kwargs


def check_many(bound: Iterable[Bound[R]]) -> list[Bound[R]]:
    if not isinstance(cast("object", bound), Iterable):
        raise InvalidInput(f"start_many takes several workflows, as .bind(…) gives them: a list of them, not {bound!r}")
    found = list(bound)
    for one in found:
        if not isinstance(cast("object", one), Bound):
            raise InvalidInput(f"start_many takes workflows with their arguments, as .bind(…) gives them, not {one!r}")
    return found


class Workflow(Generic[P, R]):
    """What both colours share."""

    OPERATION: ClassVar = "workflow"

    def __init__(self, app: Host, fn: Callable[..., Any], options: WorkflowOptions) -> None:
        self.app = app
        self.fn = fn
        self.name = options.name or check_word("workflow", default_name("workflow", fn))
        self.version = options.version
        self._shown = f"{self.OPERATION} {self.name}"
        self._options = options
        self._retry = options.retry.policy()
        self._start_options = StartOptions()
        self._likes: dict[str, facts.Start] = {}
        """What its starts with these options have in common, by their namespace, since the first of them."""
        self.arguments = Arguments(fn, self.name)
        self.definition = WorkflowDefinition(
            name=self.name,
            version=self.version,
            fn=fn,
            is_async=is_async(fn),
            arguments=self.arguments,
            signature=lambda: self.signature,
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

    @property
    def definition_requires(self) -> tuple[str, ...]:
        return self._options.requires

    def options(self, **options: Unpack[Options]) -> Self:
        """The same workflow, with options for its next starts."""
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__)
        changed._start_options = structs.replace(self._start_options, **parse_options(options))
        if not options.keys() <= _OF_ONE_START:
            changed._likes = {}
        return changed

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        return Bound(self, args, kwargs)

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Accepted when this returns: from then on it will run, whatever happens to this process. In a workflow it is
        a child of that one."""
        attempt = self.parent()
        if attempt is None:
            return self._handle(await self.app.opened().start(self, args, kwargs))
        return self.held(await attempt.call(self.child(attempt, args, kwargs, called=False)))

    async def start_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start inside of the transaction that is under way on a connection of yours: accepted when that commits."""
        if inside() is not None:
            raise WrongPlace(f"workflow {self.name!r}: a workflow's own code has no connections; do it in a step")
        return await self.app.opened().start_in(connection, Bound(self, args, kwargs))

    def execution(self, execution_id: str) -> Handle[R]:
        """A handle on an execution that was started before. In a workflow, telling it something is durable."""
        check_name("id", execution_id, max_chars=limits.ID_MAX_CHARS)
        if inside() is None:
            self.app.opened()
        return self._handle(execution_id)

    # ---- inside a workflow ----------------------------------------------------------------------------------------

    def parent(self) -> LiveAttempt | None:
        """The attempt whose code calls; in a step it is refused, outside there is none."""
        step = step_var.get()
        if step is not None:
            raise WrongPlace(
                f"workflow {self.name!r} was called inside step {step!r}: a step is one recorded effect; "
                "call the workflow from a workflow, or before or after"
            )
        return attempt_var.get()

    def child(self, attempt: LiveAttempt, args: tuple[Any, ...], kwargs: dict[str, Any], *, called: bool) -> StartChild:
        check_own(self.app, attempt, f"workflow {self.name!r}")
        given = self._start_options
        with encoding():
            fact = self.fact(args, kwargs, namespace=attempt.execution.namespace)
        return StartChild(
            fact,
            called=called,
            parent=attempt.execution.id,
            given=given.id,
            detached=given.detached,
            parent_close=given.parent_close,
        )

    def held(self, started: Started) -> Handle[R]:
        return self._handle(started.id, start=started.start)

    def _handle(self, execution_id: str, *, start: str | None = None) -> Handle[R]:
        from outlast.client.handle import Handle

        return Handle(self.app, execution_id, self.arguments.result, start=start)

    def result_of(self, started: Started) -> AwaitChild:
        """Of a child that is called: nobody else holds it, so giving the call up gives the child up."""
        own = started.start is not None
        return AwaitChild(started.id, self.arguments.result, start=started.start, cancels=own)

    async def _called(self, attempt: LiveAttempt, start: Operation) -> R:
        return await attempt.call(self.result_of(await attempt.begin(start)))

    def _awaited(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, R]:
        attempt = self.parent()
        if attempt is None:
            call = self._run(args, kwargs)
        else:
            call = self._called(attempt, attempt.prepare(self.child(attempt, args, kwargs, called=True)))
        call.__qualname__ = self._shown  # by which Python warns if nobody awaits it
        return call

    @property
    def sync(self) -> SyncFace[P, R]:
        return SyncFace(self)

    @property
    def lane(self) -> str:
        """Of its next start."""
        return self._start_options.lane or self._options.lane

    def refuse_options_outside(self) -> None:
        self._start_options.refuse_options_outside()

    def refuse_child_options(self) -> None:
        self._start_options.refuse_child_options()

    def fact(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, namespace: str) -> facts.Start:
        """The start of one execution; complains about arguments before anything is written."""
        data, digest = self.arguments.encode(self.app.values, args, kwargs)
        given, own = self._start_options, self._options
        retention_ms = own.retention_ms if given.retention_ms is None else given.retention_ms
        return self._start(namespace, given.id, data, digest, retention_ms=retention_ms)

    def member_fact(
        self,
        data: bytes,
        digest: str,
        *,
        namespace: str,
        id: str,
        flow: str,
        after_dependencies: bool,
        change_id: str | None = None,
    ) -> facts.Start:
        """The start of a member of a flow, which is purged with it; and perhaps accepted with it, by that change."""
        given = self._start_options
        if given.id is not None or given.if_exists != "same" or given.retention_ms is not None:
            raise InvalidInput("a member of a flow is named by it and kept with it: no id, if_exists or retention")
        self.refuse_child_options()
        return self._start(
            namespace, id, data, digest, flow=flow, after_dependencies=after_dependencies, change_id=change_id
        )

    def _start(
        self,
        namespace: str,
        execution_id: str | None,
        data: bytes,
        digest: str,
        *,
        retention_ms: int | None = None,
        flow: str | None = None,
        after_dependencies: bool = False,
        change_id: str | None = None,
    ) -> facts.Start:
        entropy, like = self.app.entropy, self._likes.get(namespace)
        if like is None:
            like = self._likes[namespace] = self._like(namespace)
        # What is given no id has that of its start, which is as new as any.
        change_id = change_id or entropy.new_id()
        return structs.replace(
            like,
            change_id=change_id,
            id=change_id if execution_id is None else execution_id,
            flow=flow,
            after_dependencies=after_dependencies,
            input=data,
            input_digest=digest,
            retention_ms=retention_ms,
            first_epoch=int(entropy.random() * limits.FIRST_EPOCHS),
            sends=self._sent() if self._start_options.sends else (),
        )

    def _like(self, namespace: str) -> facts.Start:
        """What all its starts with these options have in common; the rest is put in its place with each of them."""
        given, own = self._start_options, self._options
        return facts.Start(
            change_id="",
            namespace=namespace,
            id="any",
            workflow=self.name,
            version=self.version,
            signature=self.signature,
            input=b"",
            input_digest="",
            lane=given.lane or own.lane,
            requires=own.requires if given.requires is None else given.requires,
            priority=given.priority,
            delay_ms=given.delay_ms,
            deadline_ms=own.deadline_ms if given.deadline_ms is None else given.deadline_ms,
            timeout_ms=own.timeout_ms,
            retry=self._retry,
            crash_cap=own.max_crashes,
            life_crash_cap=own.max_crashes_in_life,
            tags=given.tags,
            if_exists=given.if_exists,
        )

    def _sent(self) -> tuple[facts.Sent, ...]:
        """Encoded with each start: what is sent may have been changed since."""
        values = self.app.values
        return tuple(
            facts.Sent(name, values.encode(value, f"event {name!r}"))
            for name, value in self._start_options.sends.items()
        )

    def __repr__(self) -> str:
        return f"<workflow {self.name!r}, version {self.version!r}>"

    async def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        client = self.app.opened()
        execution_id, new = await client.begin(self, args, kwargs)
        return await client.result(execution_id, self.arguments.result, new=new)


class AsyncWorkflow(Workflow[P, R]):
    """An `async def` workflow: `await checkout(order)`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self._awaited(args, kwargs)

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self(*args, **kwargs)


class SyncWorkflow(Workflow[P, R]):
    """A `def` workflow: `import_file(path)` blocks; from async code `await import_file.aio(path)`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.sync(*args, **kwargs)

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self._awaited(args, kwargs)


class SyncFace(Generic[P, R]):
    """The blocking face of a workflow."""

    def __init__(self, workflow: Workflow[P, R]) -> None:
        self._workflow = workflow

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        workflow = self._workflow
        attempt = workflow.parent()
        if attempt is None:
            return self.start(*args, **kwargs).result()
        started = attempt.call_from_thread(workflow.child(attempt, args, kwargs, called=True))
        return attempt.call_from_thread(workflow.result_of(started))

    def start(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        from outlast.client.handle import SyncHandle

        workflow = self._workflow
        attempt = workflow.parent()
        if attempt is not None:
            started = attempt.call_from_thread(workflow.child(attempt, args, kwargs, called=False))
            return SyncHandle(workflow.app, workflow.held(started))
        return SyncHandle(workflow.app, workflow.app.blocking(lambda: workflow.start(*args, **kwargs)))

    def start_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        """Inside of the transaction that is under way on a connection of this thread."""
        from outlast.client.handle import SyncHandle

        workflow = self._workflow
        if inside() is not None:
            raise WrongPlace(f"workflow {workflow.name!r}: a workflow's own code has no connections; do it in a step")

        async def client() -> Client:
            return workflow.app.opened()

        joined = workflow.app.blocking(client)
        return SyncHandle(workflow.app, joined.start_in_blocking(connection, Bound(workflow, args, kwargs)))

    def execution(self, execution_id: str) -> SyncHandle[R]:
        from outlast.client.handle import SyncHandle

        workflow = self._workflow
        if inside() is not None:
            return SyncHandle(workflow.app, workflow.execution(execution_id))

        async def handle() -> Handle[R]:
            return workflow.execution(execution_id)

        return SyncHandle(workflow.app, workflow.app.blocking(handle))


def make_workflow(app: Host, fn: object, options: WorkflowOptions) -> Workflow[Any, Any]:
    operation = getattr(type(fn), "OPERATION", None)
    if operation is not None:
        raise InvalidInput(f"{fn!r} is a {operation} already; its function is .fn")
    if isinstance(fn, type):
        raise InvalidInput(f"a workflow must be a function, not the class {fn.__qualname__}")
    refuse_method(fn)
    checked = check_callable("workflow", fn)
    return (AsyncWorkflow if is_async(checked) else SyncWorkflow)(app, checked, options)
