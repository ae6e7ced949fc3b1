"""What waits for the end of a member and for nothing else, known before that end: of a flow that this process started,
and of a member whose beginning is being committed here.

An end that hands on (`handing_on.py`) needs to know who waits for it. That hardly ever changes while they wait, and
whatever is decided upon it is guarded: what turns out to be old is refused, and read anew. So this saves reads, and is
never relied upon. It is bounded: what nobody asks for is forgotten, the oldest first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from outlast.errors import OutlastError
from outlast.machine.changes import Changes, Insert, inserted
from outlast.machine.decide_member import Ended, MemberView, waits
from outlast.machine.plan_end import Last
from outlast.model.execution import Execution
from outlast.model.flow import Edge, Flow, FlowState, Member, Summary
from outlast.model.payload import Payload
from outlast.model.record import Key

TOGETHER_MAX = 8
"""So few that wait for nothing else are advanced in the commit that strikes off the debt."""
KNOWN_MAX = 2_000
"""So many members' downstreams are known ahead."""
BYTES_MAX = 16 * 1024
"""Only of so many bytes of inputs each; and so many of an output are kept for who waits for the flow."""


class Waiting(Struct, frozen=True, gc=False):
    """One that waits for an end: its input if that is given from the beginning, or the template that it is made by."""

    view: MemberView
    given: Payload | None


class Behind(Struct, frozen=True, gc=False):
    """The few members that wait for one end alone, and their flow; or none, and then it may be the last."""

    flow: Flow
    waiting: list[Waiting]
    last: Last | None = None


class Known(Struct, frozen=True, gc=False):
    """What is behind a member. None: nothing, or it is not that simple."""

    behind: Behind | None


Outputs: TypeAlias = list[tuple[MemberView, bytes]]
"""What the members of a flow gave, in their order. Of their executions as they were accepted."""


def are_simple(views: list[MemberView], page: list[Edge]) -> bool:
    """All of them are there, and each waits for this one end."""
    return len(views) == len(page) and all(view.member.upstreams == 1 and waits(view) for view in views)


def are_few(page: Sequence[Edge]) -> bool:
    """Few enough for one commit, and each waits for nothing else. Of one that waits for thousands, nothing is read with
    each of their ends."""
    return len(page) <= TOGETHER_MAX and all(one.alone for one in page)


class Course:
    """A flow that this process started in one commit, and how far it has come by ends that handed on here."""

    def __init__(self, started: Changes, now: int) -> None:
        self._now, self._partition = now, started.partition
        self._executions: dict[str, Execution] = {}
        self._members: dict[str, Member] = {}
        self._given: dict[str, Payload] = {}
        self._large: set[str] = set()
        """Those whose inputs are not kept: a flow that never ends here would hold on to them."""
        self._behind: dict[str, tuple[Edge, ...]] = {}
        """Who waits for each, as far as they may be few."""
        self._ended: dict[str, tuple[Ended, bytes | None]] = {}
        self._bytes = 0
        for write in started.writes:
            record = write.record if type(write) is Insert else None
            if type(record) is Edge:
                before = self._behind.get(record.execution, ())
                if len(before) <= TOGETHER_MAX:
                    self._behind[record.execution] = (*before, record)
            elif type(record) is Execution:
                self._executions[record.id] = record
            elif type(record) is Member:
                self._members[record.execution] = record
            elif type(record) is Payload:
                self._bytes += len(record.value)
                if len(record.value) <= BYTES_MAX:
                    self._given[record.execution] = record
                else:
                    self._large.add(record.execution)
            elif type(record) is Flow:
                self.flow = record
            elif type(record) is Summary:
                self._summary = record
        self._open = set(self._executions)
        """Those of whom it was not asked yet what is behind them."""

    @property
    def members(self) -> int:
        return len(self._executions)

    def knows(self, execution_id: str) -> bool:
        """Whether it can say what is behind a member: once, because what was refused is read anew."""
        if execution_id not in self._open or self._bytes <= BYTES_MAX:
            return execution_id in self._open
        page = self._behind.get(execution_id, ())
        if len(page) > TOGETHER_MAX:
            return True
        return (
            self._large.isdisjoint([one.downstream for one in page]) and _size(map(self._given_to, page)) <= BYTES_MAX
        )

    def behind(self, execution_id: str) -> Behind | None:
        """What is behind a member that it knows; None: nothing, or it is not that simple."""
        self._open.discard(execution_id)
        page = self._behind.get(execution_id)
        if page is None:
            return self._end(execution_id)
        if not are_few(page):
            return None
        # As they were accepted: each waits for this one end.
        return Behind(self.flow, [Waiting(self._view(one.downstream), self._given_to(one)) for one in page])

    def _given_to(self, edge: Edge) -> Payload | None:
        return self._given.get(edge.downstream)

    def _end(self, execution_id: str) -> Behind | None:
        others = [ended for ended, _ in self._ended.values()]
        if execution_id in self._ended or len(others) != self.members - 1:
            return None
        return Behind(self.flow, [], Last(self._summary, others))

    def _view(self, execution_id: str) -> MemberView:
        stored = inserted(self._executions[execution_id], self._now)
        assert isinstance(stored, Execution)
        return MemberView(self._partition, stored, self._members[execution_id])

    def handed_on(self, ended: Ended, output: bytes) -> None:
        """By a commit of this process it has ended, and answered all that waited for it."""
        if ended.id in self._executions:
            self._ended[ended.id] = (ended, output if len(output) <= BYTES_MAX else None)

    def outputs(self) -> Outputs | None:
        """What all of them gave; None if that was too much to keep."""
        found: Outputs = []
        for one, member in self._members.items():  # in their order
            _, output = self._ended.get(one, (None, None))
            if output is None:
                return None
            found.append((MemberView(self._partition, self._executions[one], member), output))
        return found


def _size(given: Iterable[Payload | None]) -> int:
    return sum([len(one.value) for one in given if one is not None])


class DownstreamCache:
    """`read` finds out what is behind a member."""

    def __init__(self, read: Callable[[Execution], Coroutine[Any, Any, Behind | None]]) -> None:
        self._read = read
        self._looks: dict[Key, asyncio.Task[Known | None]] = {}
        self._courses: dict[tuple[str, str], Course] = {}
        self._members = 0
        """Of all courses."""
        self.remembers = False
        """Whether members begin in this process, so that it is worth while."""

    async def take(self, execution: Execution) -> Known | None:
        """What is known ahead of its end, once; None if nothing is."""
        course = self.course(execution)
        if course is not None and course.knows(execution.id):
            return Known(course.behind(execution.id))
        look = self._looks.pop(execution.key, None)
        return None if look is None else await look

    def course(self, execution: Execution) -> Course | None:
        """That of its flow, if this process started it."""
        return None if execution.flow is None else self._courses.get((execution.namespace, execution.flow))

    def look(self, execution: Execution) -> None:
        """It is about to begin here: find out who waits for its end while that is being written."""
        course = self.course(execution)
        if not (course is not None and course.knows(execution.id)) and execution.key not in self._looks:
            while len(self._looks) >= KNOWN_MAX:
                self._looks.pop(next(iter(self._looks))).cancel()
            self._looks[execution.key] = asyncio.create_task(self._look(execution), name="outlast look ahead")

    async def _look(self, execution: Execution) -> Known | None:
        try:
            behind = await self._read(execution)
        except OutlastError:
            return None  # whoever asks will ask the store, and hear of it there
        given = () if behind is None else [one.given for one in behind.waiting]
        return Known(behind) if _size(given) <= BYTES_MAX else None

    def remember(self, started: Changes, now: int) -> None:
        """A flow that was started by this commit, all of it."""
        if not self.remembers:
            return
        course = Course(started, now)
        if course.flow.state is FlowState.OPEN and course.members <= KNOWN_MAX:
            self.forget(course.flow.namespace, course.flow.id)
            self._courses[course.flow.namespace, course.flow.id] = course
            self._members += course.members
            while self._members > KNOWN_MAX:
                self.forget(*next(iter(self._courses)))

    def outdated(self, flow: Flow, *, by: Flow) -> None:
        """What was known of a flow that has grown since, or was opened again, would be refused at every end."""
        if (flow.change_id, flow.revision) != (by.change_id, by.revision):
            self.forget(flow.namespace, flow.id)

    def forget(self, namespace: str, flow_id: str) -> None:
        course = self._courses.pop((namespace, flow_id), None)
        if course is not None:
            self._members -= course.members

    def close(self) -> None:
        for look in self._looks.values():
            look.cancel()
        self._looks.clear()
        self._courses.clear()
        self._members = 0
