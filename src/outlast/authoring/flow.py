"""Flows: DAGs of workflows, written down first and accepted as a whole.

flow = app.flow("nightly", id="nightly-2026-11-15")
extract = flow.add("extract", extract_data, day)
clean = flow.add("clean", clean_data, extract.output)                # data passing makes the edge
report = flow.add("report", render).after(clean, other, join=outlast.quorum(1), on_satisfied="cancel_remaining")
fh = await flow.start()
outputs = await fh.result()

Nothing is written before `start`, which refuses what cannot work: then nothing is written at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from inspect import Parameter
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeVar, cast, get_args

import msgspec
from msgspec import Struct, structs

from outlast import limits
from outlast.authoring.builtin import STARRED, gathered
from outlast.authoring.fitting import Absent, fits
from outlast.authoring.graph import cycle_in
from outlast.authoring.host import Host, check_own
from outlast.authoring.parts import part_of, places_in, plain_in, stored_path
from outlast.authoring.workflow import Workflow
from outlast.codec.annotations import Unresolved, name_of
from outlast.codec.references import PathPart, Placeholder, Reference, reference_of
from outlast.codec.templates import (
    FAILURE,
    MARK,
    OUTPUT,
    OUTPUTS,
    Bound,
    Template,
    UpstreamFailure,
    encode_bound,
    encode_template,
    placed,
)
from outlast.errors import InvalidFlow, InvalidInput, LimitExceeded
from outlast.machine import facts
from outlast.machine.decide_flow import NewFlow, NewMember, is_small
from outlast.model.execution import ParentClose
from outlast.model.flow import OnFailure, OnSatisfied, member_id
from outlast.model.names import check_name
from outlast.runtime.attempts.current import inside
from outlast.runtime.attempts.mishaps import encoding
from outlast.runtime.operations.child import Started
from outlast.runtime.operations.subflow import StartFlow

if TYPE_CHECKING:
    from outlast.client.flow_handle import FlowHandle, SyncFlowHandle
    from outlast.runtime.attempts.attempt import LiveAttempt

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN = (str, int, float, bool, bytes, NoneType)
_ITEM = re.compile(r"(.+)\[\d+\]")
WhenSatisfied = Literal["let_run", "cancel_remaining"]
WhenFailed = Literal["skip", "run"]


class Join(Struct, frozen=True):
    """How many upstream successes a member needs: `all_of()`, `any_of()`, `quorum(k)`."""

    what: str
    needed: int | None = None

    def of(self, upstreams: int) -> int:
        return upstreams if self.needed is None else self.needed

    def __str__(self) -> str:
        return f"quorum({self.needed})" if self.what == "quorum" else f"{self.what}()"


def all_of() -> Join:
    """All upstreams must succeed. So it is if nothing is said."""
    return Join("all_of")


_ALL = all_of()


def any_of() -> Join:
    """One upstream must succeed."""
    return Join("any_of", 1)


def quorum(k: int) -> Join:
    """So many upstreams must succeed."""
    if isinstance(cast("object", k), bool) or not isinstance(cast("object", k), int) or k < 1:
        raise InvalidFlow(f"a quorum is a number of upstreams, at least 1, not {k!r}")
    return Join("quorum", k)


class OfMember(Placeholder):
    """Stands for what a member will leave."""

    __slots__ = ("_member",)

    def __init__(self, member: FlowMember[Any], what: str, path: tuple[PathPart, ...] = ()) -> None:
        super().__init__(Reference(what, (member.name,), path))
        self._member = member

    def __repr__(self) -> str:
        return f"<{reference_of(self).what} of member {self._member.name!r}>"


class Output(OfMember):
    """Stands for what a member will return; `output["key"]` and `output.field` for a part of it."""

    __slots__ = ("_path",)

    def __init__(self, member: FlowMember[Any], path: tuple[PathPart, ...] = ()) -> None:
        super().__init__(member, OUTPUT, stored_path(member.gives, path))
        self._path = path

    def __getitem__(self, part: PathPart) -> Output:
        if isinstance(cast("object", part), slice):
            raise InvalidFlow(f"{self!r} is not known yet, so nothing can be cut out of it: do that in a workflow")
        if not _is_key(part):
            raise InvalidFlow(f"a part of {self!r} has a key that JSON writes as text, or a place, not {part!r}")
        return Output(self._member, (*self._path, part))

    def __getattr__(self, part: str) -> Output:
        if part.startswith("_"):
            raise AttributeError(part)
        return Output(self._member, (*self._path, part))

    def __iter__(self) -> Any:
        raise InvalidFlow(f"{self!r} is not known yet, so nothing can go through it: do that in a workflow")

    def __bool__(self) -> bool:
        raise InvalidFlow(f"{self!r} is not known yet: decide in a workflow")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        raise InvalidFlow(f"{self!r} is not known yet, so it is equal to nothing: compare in a workflow")

    __hash__ = object.__hash__

    def __str__(self) -> str:
        raise InvalidFlow(f"{self!r} is not known yet, so no text can be made of it: do that in a workflow")

    def __format__(self, spec: str) -> str:
        return str(self)


def _is_key(part: object) -> bool:
    """Whether JSON writes it as text or a whole number: so it does also with dates, enums and the like."""
    try:
        return type(msgspec.to_builtins(part)) in (str, int)
    except TypeError:
        return False


def given_by(placeholder: OfMember) -> tuple[str, Any]:
    """Who gives it, for people, and what is declared of it; `InvalidFlow` if there can be no such thing."""
    member = placeholder._member  # pyright: ignore[reportPrivateUsage]
    if not isinstance(placeholder, Output):
        return f"the failure of {member.name!r} is", UpstreamFailure | None
    path = placeholder._path  # pyright: ignore[reportPrivateUsage]
    given = part_of(member.gives, path)
    if isinstance(given, Absent):
        raise InvalidFlow(f"member {member.name!r} gives no {given.key!r}: there is none in {name_of(given.whole)}")
    shown = "".join(f"[{part!r}]" for part in path)
    return f"{member.name!r}{shown and f', at {shown},'} gives", given


class FlowMember(Generic[R]):
    """One member of a flow that is being written down."""

    def __init__(
        self, flow: Flow, name: str, workflow: Workflow[Any, R], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.name = name
        self._flow_id = flow.id  # and not the flow, which holds its members: what is started goes at once
        self.workflow = workflow
        self.given = workflow.arguments.bound(args, kwargs)
        self.gives = self.read_as = workflow.arguments.result
        self.upstreams: dict[str, None] = {}
        self.join = _ALL
        self.on_satisfied = OnSatisfied.LET_RUN
        self.on_failure = OnFailure.SKIP
        self.aside: tuple[str, ...] = ()
        """Arguments left out of the digest: members that differ only in these are the same."""
        self.joins_all = False
        self._encode()

    @property
    def output(self) -> R:
        """What it will return: as an argument of another member it makes an edge. `x.output["key"]` is a part of it.

        Behind a join that can do without it, it is None if this member did not succeed."""
        return cast("R", Output(self))

    @property
    def failure(self) -> UpstreamFailure | None:
        """How it failed, for a member that runs on failure; None if it succeeded."""
        return cast("UpstreamFailure", OfMember(self, FAILURE))

    def after(
        self,
        *members: FlowMember[Any] | str,
        join: Join | None = None,
        on_satisfied: WhenSatisfied | None = None,
        on_failure: WhenFailed | None = None,
    ) -> Self:
        """Run it after others: all of them, or as many as `join` says (the members whose output it takes included).

        `on_satisfied="cancel_remaining"` cancels upstreams that are then needed by nobody (else `"let_run"`);
        `on_failure="run"` runs it once all of its upstreams have ended, if they did not succeed: `x.failure` says how
        (else `"skip"`). Said again, `after` adds to what was said before.
        """
        upstreams = dict.fromkeys(map(self._name_of, members))
        if join is not None and not isinstance(cast("object", join), Join):
            raise InvalidFlow(f"join must be outlast.all_of(), any_of() or quorum(k), not {join!r}")
        if on_satisfied is not None and on_satisfied not in get_args(WhenSatisfied):
            raise InvalidFlow(f'on_satisfied must be "let_run" or "cancel_remaining", not {on_satisfied!r}')
        if on_failure is not None and on_failure not in get_args(WhenFailed):
            raise InvalidFlow(f'on_failure must be "skip" or "run", not {on_failure!r}')
        self.upstreams.update(upstreams)
        if join is not None:
            self.join = join
        if on_satisfied is not None:
            self.on_satisfied = OnSatisfied(on_satisfied)
        if on_failure is not None:
            self.on_failure = OnFailure(on_failure)
        return self

    def _encode(self) -> None:
        """Complains where it is written, about arguments that cannot be; and finds what they take from others."""
        arguments, values, what = self.workflow.arguments, self.workflow.app.values, self.workflow.name
        self.raw: dict[str, msgspec.Raw] = {}
        self.bound: dict[str, Bound] = {}
        for name, value in self.given.items():
            bound = encode_bound(values, value, what, name) if _may_refer(value) else None
            if bound is None:
                self.raw[name] = msgspec.Raw(arguments.encode_one(values, name, value))
                continue
            self.bound[name] = bound
            for placeholder in bound.found:
                if isinstance(placeholder, OfMember):
                    self._name_of(placeholder._member)  # pyright: ignore[reportPrivateUsage]
                self.upstreams.update(dict.fromkeys(reference_of(placeholder).upstreams))
            self._refuse_misfits(name, value)

    def _refuse_misfits(self, name: str, value: object) -> None:
        arguments, annotation = self.workflow.arguments, self.workflow.arguments.annotation(name)
        for where, placeholder, taken in places_in(value, annotation, OfMember):
            giver, given = given_by(placeholder)
            if not fits(given, taken):
                raise InvalidFlow(
                    f"member {self.name!r}: {name}{where} takes {name_of(taken)}, but {giver} {name_of(given)}"
                )
        if isinstance(value, Placeholder):
            return  # there is nothing beside it
        for path, plain, declared in plain_in(value, annotation, Placeholder, name):
            arguments.encode_part(self.workflow.app.values, path, plain, declared)

    def _name_of(self, member: FlowMember[Any] | str) -> str:
        if isinstance(member, FlowMember):
            if member._flow_id != self._flow_id:
                raise InvalidFlow(f"member {self.name!r} of flow {self._flow_id!r} cannot wait for {member!r}")
            return member.name
        if not isinstance(cast("object", member), str):
            raise InvalidFlow(f"after takes members, or their names, not {member!r}")
        return member

    def __repr__(self) -> str:
        return f"<member {self.name!r} of flow {self._flow_id!r}>"


def _listed(items: Iterable[Any]) -> list[Any]:
    """What is mapped; no more of it than a flow can have, and one, which is refused."""
    try:
        each = iter(items)
    except TypeError:
        raise InvalidFlow(f"a map takes a list, or the output of a member that gives one, not {items!r}") from None
    return list(islice(each, limits.FLOW_MEMBERS_MAX + 1))


def _may_refer(value: Any) -> bool:
    """Most arguments are plain, and need no second look."""
    return not isinstance(value, _PLAIN)


class Flow:
    """`flow = app.flow("nightly", id="nightly-2026-11-15")`."""

    def __init__(
        self,
        app: Host,
        name: str,
        *,
        id: str,
        retention_ms: int | None,
        namespace: str,
        parent_close: ParentClose | None = None,
    ) -> None:
        self._app = app
        self.name = name
        self.id = id
        self._retention_ms = retention_ms
        self._namespace = namespace
        self._parent_close = parent_close
        self._members: dict[str, FlowMember[Any]] = {}

    def add(self, name: str, workflow: Workflow[P, R], *args: P.args, **kwargs: P.kwargs) -> FlowMember[R]:
        """A member: an execution named `FLOW_ID/NAME`. Outputs of others may stand in its arguments, at any depth."""
        self._check_name(name)
        checked = self._own(workflow)
        member = FlowMember(self, name, checked, args, kwargs)
        self._members[name] = member
        return member

    def map(
        self,
        workflow: Workflow[[Any], R],
        items: Iterable[Any],
        *,
        name: str | None = None,
        max_parallel: int | None = None,
    ) -> FlowMember[list[R]]:
        """One member for each item, and one that gives their results in order: `pages = flow.map(fetch, urls).output`.

        `items` is a list, or the output of a member that will give one: `flow.map(fetch, listing.output)`.
        `max_parallel` is how many of them run at the same time, at most.
        """
        checked = self._own(workflow)
        called = name or checked.name
        self._check_name(called)
        if max_parallel is not None and (type(max_parallel) is not int or max_parallel < 1):
            raise InvalidFlow(f"max_parallel must be a whole number, at least 1, not {max_parallel!r}")
        known = [] if isinstance(items, Output) else _listed(items)
        members = len(self._members)
        try:
            if isinstance(items, Output):
                return self._map_output(checked, items, called, max_parallel)
            return self._map_known(checked, known, called, max_parallel)
        except BaseException:
            while len(self._members) > members:
                self._members.popitem()
            raise

    def _map_known(
        self, workflow: Workflow[[Any], R], items: list[Any], called: str, max_parallel: int | None
    ) -> FlowMember[list[R]]:
        each: list[FlowMember[R]] = []
        for number, item in enumerate(items):
            member = self.add(f"{called}[{number}]", workflow, item)
            if max_parallel is not None and number >= max_parallel:
                if member.upstreams:
                    raise InvalidFlow("max_parallel is for items that are known, not for outputs of other members")
                member.after(each[number - max_parallel])
                member.on_failure = OnFailure.TURN
            each.append(member)
        return self._gathering(workflow, called, tuple(member.name for member in each), waits=bool(each))

    def _map_output(
        self, workflow: Workflow[[Any], R], items: Output, called: str, max_parallel: int | None
    ) -> FlowMember[list[R]]:
        """Its items are added when they are known, by a member that stands for them until then."""
        self._check_name(f"{called}[{limits.FLOW_MEMBERS_MAX}]")
        [argument, *_] = workflow.arguments.bound((items,), {})
        taken = workflow.arguments.annotation(argument)
        if workflow.arguments.signature.parameters[argument].kind is Parameter.VAR_POSITIONAL:
            argument, taken = f"{STARRED}{argument}", Any if isinstance(taken, Unresolved) else get_args(taken)[0]
        giver, given = given_by(items)
        if not fits(given, list[taken]):
            raise InvalidFlow(f"map {called!r} takes list[{name_of(taken)}], but {giver} {name_of(given)}")
        place = {"namespace": self._namespace, "flow": self.id, "id": member_id(self.id, f"{called}[0]")}
        start = workflow.member_fact(b"", "", after_dependencies=True, **place)
        each = facts.encode_fact(structs.replace(start, change_id="", first_epoch=0))
        of = f"{workflow.name}, version {workflow.version}"
        expand = workflow.app.expand.options(lane=workflow.lane)
        grows = self.add(f"{called}[*]", expand, items, of, argument, max_parallel, each)
        grows.aside = ("each",)
        gather = self._gathering(workflow, called, (), waits=True).after(grows)
        gather.joins_all = True
        return gather

    def _gathering(
        self, workflow: Workflow[[Any], R], called: str, names: tuple[str, ...], *, waits: bool
    ) -> FlowMember[list[R]]:
        """The member that gives the results. With no items at all it `waits` for nothing, and has its input now."""
        gather = cast("Workflow[[Any], list[R]]", workflow.app.gather.options(lane=workflow.lane))
        member = self.add(called, gather, Placeholder(Reference(OUTPUTS, names)) if waits else [])
        member.gives, member.read_as = list[workflow.arguments.result], gathered(workflow.arguments.result)
        return member

    async def start(self) -> FlowHandle:
        """Accept all of it, or nothing. The same id with the same members is the same flow."""
        attempt = inside()
        if attempt is not None:
            return self._held(await attempt.call(self._started_inside(attempt)))
        if self._parent_close is not None:
            raise InvalidInput("parent_close is for flows that are started inside a workflow")
        new, members = self.built()
        return await self._app.opened().flows.start(new, members)

    def start_from_thread(self, attempt: LiveAttempt) -> FlowHandle:
        return self._held(attempt.call_from_thread(self._started_inside(attempt)))

    def _started_inside(self, attempt: LiveAttempt) -> StartFlow:
        """By a workflow's own code: a durable operation, carried in one piece."""
        check_own(self._app, attempt, f"flow {self.name!r}")
        with encoding():
            new, members = self.built()
        what, most, records = "a flow that is started in a workflow", limits.FLOW_GROWTH_MAX, limits.CHANGES_MAX_WRITES
        if len(members) > most:
            raise LimitExceeded(what, actual=len(members), limit=most, unit="members")
        if not is_small(members):
            raise LimitExceeded(what, actual=records + 1, limit=records, unit="records")
        closes = self._parent_close or ParentClose.CANCEL
        return StartFlow(new, members, parent=attempt.execution.id, parent_close=closes)

    def _held(self, started: Started) -> FlowHandle:
        from outlast.client.flow_handle import FlowHandle

        annotations = {name: member.read_as for name, member in self._members.items()}
        return FlowHandle(self._app, started.id, start=started.start, annotations=annotations)

    @property
    def sync(self) -> SyncFlow:
        """The blocking face: `fh = flow.sync.start()`."""
        return SyncFlow(self._app, self)

    @property
    def _reach(self) -> str:
        """What its members may wait for, for people."""
        return repr(self.id)

    # ---- checks ---------------------------------------------------------------------------------------------------

    def _check_name(self, name: str) -> None:
        check_name("member", name)
        if "/" in name:
            raise InvalidFlow(f"member {name!r}: must not contain '/': that names children under their parent")
        execution_id = member_id(self.id, name)
        if len(execution_id) > limits.ID_MAX_CHARS:  # else its start complains, if its flow's id is of no use
            check_name("id of a member", execution_id, max_chars=limits.ID_MAX_CHARS)
        if name in self._members:
            raise InvalidFlow(f"flow {self.id!r} has two members {name!r}")
        if len(self._members) == limits.FLOW_MEMBERS_MAX:
            most = limits.FLOW_MEMBERS_MAX
            raise LimitExceeded(f"flow {self.id!r}", actual=most + 1, limit=most, unit="members")

    def _own(self, workflow: Workflow[P, R]) -> Workflow[P, R]:
        if not isinstance(cast("object", workflow), Workflow):
            raise InvalidFlow(f"a member of a flow is a workflow, not {workflow!r}")
        if workflow.app is not self._app:
            raise InvalidInput(f"workflow {workflow.name!r} belongs to another app")
        return workflow

    def built(self) -> tuple[NewFlow, list[NewMember]]:
        """The flow as it is accepted; `InvalidFlow` if it cannot be."""
        if not self._members:
            raise InvalidFlow(f"flow {self.id!r} has no members")
        edges = {name: tuple(member.upstreams) for name, member in self._members.items()}
        self._check_edges(edges)
        change_id = self._app.entropy.new_id()
        members = [
            self.built_member(member, edges[name], position, change_id)
            for position, (name, member) in enumerate(self._members.items())
        ]
        digest = sha256(repr([_content(member) for member in members]).encode()).hexdigest()
        new = NewFlow(
            namespace=self._namespace,
            id=self.id,
            name=self.name,
            digest=digest,
            members=len(members),
            retention_ms=self._retention_ms,
            change_id=change_id,
        )
        return new, members

    def _check_edges(self, edges: dict[str, tuple[str, ...]]) -> None:
        total = sum(map(len, edges.values()))
        if total > limits.FLOW_EDGES_MAX:
            raise LimitExceeded(f"flow {self.id!r}", actual=total, limit=limits.FLOW_EDGES_MAX, unit="edges")
        for name, upstreams in edges.items():
            for upstream in upstreams:
                if upstream == name:
                    raise InvalidFlow(f"member {name!r} would wait for itself")
                if upstream not in edges:
                    raise InvalidFlow(f"member {name!r} waits for {upstream!r}, which is no member of {self._reach}")
            self._check_join(name, upstreams)
            self._check_item(name)
        cycle = cycle_in(edges)
        if cycle:
            raise InvalidFlow(f"flow {self.id!r} goes round in circles: {' → '.join(cycle)}")

    def _check_join(self, name: str, upstreams: tuple[str, ...]) -> None:
        member = self._members[name]
        needed = member.join.of(len(upstreams))
        if member.joins_all and member.join.needed is not None:
            raise InvalidFlow(
                f"member {name!r} maps what is not known yet: it needs all_of() its items, not {member.join}"
            )
        if needed > len(upstreams):
            raise InvalidFlow(f"member {name!r} needs {member.join}, but has {len(upstreams)} upstreams")

    def _check_item(self, name: str) -> None:
        """The items of a map over an output are added when it runs, and must find their names free."""
        item = _ITEM.fullmatch(name) if name[-1] == "]" else None
        mapped = None if item is None else self._members.get(item[1])
        if mapped is not None and mapped.joins_all:
            raise InvalidFlow(f"member {name!r} has the name of an item that map {mapped.name!r} will add")

    def built_member(
        self, member: FlowMember[Any], upstreams: tuple[str, ...], position: int = 0, change_id: str | None = None
    ) -> NewMember:
        """`change_id` is that of the flow, if it is accepted with it."""
        workflow, values = member.workflow, self._app.values
        what = f"input of {member.name}"
        template: bytes | None = None
        if member.bound:
            bound = {name: placed(one, self.id) for name, one in member.bound.items()}
            template = encode_template(values, _template(member, bound), what)
            data, digest = b"", self._digest(member, bound)
        else:
            plain = msgspec.json.encode(member.raw)
            data, digest = values.seal(plain, what), values.digest(member.given, plain)
        start = workflow.member_fact(
            data,
            digest,
            namespace=self._namespace,
            id=member_id(self.id, member.name),
            flow=self.id,
            after_dependencies=bool(upstreams),
            change_id=change_id,
        )
        return NewMember(
            start=start,
            name=member.name,
            position=position,
            upstreams=tuple([member_id(self.id, upstream) for upstream in upstreams]),
            needed=member.join.of(len(upstreams)),
            on_satisfied=member.on_satisfied,
            on_failure=member.on_failure,
            template=template,
        )

    def _digest(self, member: FlowMember[Any], bound: dict[str, Bound]) -> str:
        values, given = self._app.values, member.given
        plain = {name: one for name, one in member.raw.items() if name not in member.aside}
        ordered = {name: msgspec.Raw(values.in_order(given[name], bytes(one))) for name, one in plain.items()}
        placed_in_order = {name: msgspec.Raw(one.ordered) for name, one in bound.items()}
        return sha256(msgspec.json.encode({**ordered, **placed_in_order})).hexdigest()

    def __repr__(self) -> str:
        return f"<flow {self.id!r}, {len(self._members):,} members>"


def _template(member: FlowMember[Any], bound: dict[str, Bound]) -> Template:
    """Its arguments, with references by the ids of its flow's members."""
    marks = {name: one.mark for name, one in bound.items() if one.mark != MARK}
    return Template({**member.raw, **{name: msgspec.Raw(one.data) for name, one in bound.items()}}, tuple(bound), marks)


def _content(member: NewMember) -> tuple[Any, ...]:
    start = member.start
    return (
        start.id,
        start.workflow,
        start.version,
        start.input_digest,
        member.upstreams,
        member.needed,
        member.on_satisfied,
        member.on_failure,
    )


class SyncFlow:
    """The blocking face of a flow."""

    def __init__(self, app: Host, flow: Flow) -> None:
        self._app = app
        self._flow = flow

    def start(self) -> SyncFlowHandle:
        from outlast.client.flow_handle import SyncFlowHandle

        attempt = inside()
        if attempt is not None:
            return SyncFlowHandle(self._app, self._flow.start_from_thread(attempt))
        return SyncFlowHandle(self._app, self._app.blocking(self._flow.start))
