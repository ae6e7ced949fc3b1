"""Growing a flow from inside: a running member adds members behind itself.

growth = outlast.flow()
pages = [growth.add(f"page-{n}", fetch, n) for n in range(count)]
growth.add("index", build_index, [page.output for page in pages])
await growth.start()

What waits for none of the new members waits for the one that adds it: it runs when that has succeeded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from outlast import limits
from outlast.authoring.flow import Flow
from outlast.authoring.host import check_own
from outlast.authoring.inside import workflow_code
from outlast.authoring.workflow import Workflow
from outlast.errors import InvalidFlow, LimitExceeded, WrongPlace
from outlast.machine.decide_flow import is_small
from outlast.runtime.attempts.mishaps import encoding
from outlast.runtime.operations.grow import Grow

if TYPE_CHECKING:
    from outlast.authoring.host import Host
    from outlast.runtime.attempts.attempt import LiveAttempt


class Growth(Flow):
    """The flow of the member whose code asks, to be grown."""

    def __init__(self, attempt: LiveAttempt) -> None:
        e = attempt.execution
        if e.flow is None:
            raise WrongPlace(f"flow() was called in {e.id!r}, which is no member of a flow")
        self._attempt = attempt
        self._own_name = e.id.partition("/")[2]
        super().__init__(cast("Host", attempt.parts), e.flow, id=e.flow, retention_ms=None, namespace=e.namespace)
        self._tried = 0
        """So many of those that wait here were refused, and the code knows."""
        self.accepted: set[str] = set()
        attempt.growths += (self,)

    async def start(self) -> Any:
        """Accept all that was added, in one commit; from then on it can be added to once more."""
        names = tuple(self._members)
        await self._attempt.call(self._grow())
        self.accepted.update(names)

    @property
    def sync(self) -> Any:
        """The blocking face, for a def workflow: `growth.sync.start()`."""
        return _SyncGrowth(self)

    def grow_from_thread(self) -> None:
        names = tuple(self._members)
        self._attempt.call_from_thread(self._grow())
        self.accepted.update(names)

    def _grow(self) -> Grow:
        self._tried = len(self._members)
        if not self._members:
            raise InvalidFlow("nothing was added to the flow")
        if len(self._members) > limits.FLOW_GROWTH_MAX:
            most = limits.FLOW_GROWTH_MAX
            raise LimitExceeded("growth of a flow", actual=len(self._members), limit=most, unit="members at once")
        edges = {name: tuple(member.upstreams) or (self._own_name,) for name, member in self._members.items()}
        # What it added before waits for its end, so that none of it can have ended.
        before = set[str]().union(*(growth.accepted for growth in self._attempt.growths))
        known = dict.fromkeys((self._own_name, *before), tuple[str, ...]())
        self._check_edges({**known, **edges})
        with encoding():
            members = [self.built_member(member, edges[name]) for name, member in self._members.items()]
        if not is_small(members):
            most = limits.CHANGES_MAX_WRITES
            raise LimitExceeded("growth of a flow", actual=most + 1, limit=most, unit="records at once")
        self._members, self._tried = {}, 0
        return Grow(self.id, members)

    def left_undone(self) -> InvalidFlow | None:
        left = list(self._members)[self._tried :]
        if not left:
            return None
        names = ", ".join(map(repr, left))
        return InvalidFlow(f"added to flow {self.id!r} and never accepted: {names}: growth.start() was not called")

    @property
    def _reach(self) -> str:
        return f"{self.id!r} that it may wait for: only for {self._own_name!r}, and for what that adds"

    def _check_join(self, name: str, upstreams: tuple[str, ...]) -> None:
        if name in self._members:
            super()._check_join(name, upstreams)

    def _check_name(self, name: str) -> None:
        if name == self._own_name or any(name in growth.accepted for growth in self._attempt.growths):
            raise InvalidFlow(f"flow {self.id!r} has two members {name!r}")
        super()._check_name(name)

    def _own(self, workflow: Workflow[Any, Any]) -> Workflow[Any, Any]:
        if not isinstance(cast("object", workflow), Workflow):
            raise InvalidFlow(f"a member of a flow is a workflow, not {workflow!r}")
        check_own(workflow.app, self._attempt, f"workflow {workflow.name!r}")
        return workflow


class _SyncGrowth:
    def __init__(self, growth: Growth) -> None:
        self._growth = growth

    def start(self) -> None:
        self._growth.grow_from_thread()


def flow() -> Growth:
    """The flow that this member belongs to, to be grown; in the code of a member."""
    return Growth(workflow_code("flow"))
