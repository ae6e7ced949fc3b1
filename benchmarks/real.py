"""The real commit path: facts, `decide`, `GroupCommit`, `SqliteStore.commit`.

An execution is started by the worker that runs it, so both systems do the same twelve commits per execution in the
same batches: start, ten steps, end. (The native claim, which takes many at once, is measured in `scale.py`.)
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.load import DIGEST, INPUT, LANE, NAMESPACE, OUTPUT, VALUE, VERSION, WORKER, WORKFLOW
from outlast import limits
from outlast.machine import facts
from outlast.machine.changes import Changes, View, execution_after
from outlast.machine.decide import decide
from outlast.runtime.entropy import SystemEntropy
from outlast.runtime.group_commit import GroupCommit
from outlast.store.sqlite import SqliteStore

NOTHING = View(0, None)


class Real:
    """Outlast without a worker on top: what the engine itself costs."""

    name = "outlast"

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore(str(path))
        self.group = GroupCommit(self.store)
        self.new_id = SystemEntropy().new_id

    async def open(self) -> None:
        await self.store.migrate()
        await self.store.open()
        await self.store.renew(WORKER, lease_ttl_ms=limits.LEASE_TTL_MAX_MS)
        self.group.now = await self.store.now()

    async def close(self) -> None:
        await self.group.close()
        await self.store.close()

    async def begin(self, execution_id: str) -> RealExecution:
        answer = await self.commit(NOTHING, start(execution_id, self.new_id(), worker=WORKER))
        return RealExecution(self, View(0, execution_after(NOTHING, answer, self.group.now)))

    async def commit(self, view: View, fact: facts.AnyFact) -> Changes:
        answer = decide(view, fact, self.group.now)
        assert isinstance(answer, Changes), answer
        verdict = await self.group.commit(answer)
        assert verdict.applied, verdict
        return answer


class RealExecution:
    """One held execution, by its holder."""

    def __init__(self, real: Real, view: View) -> None:
        assert view.execution is not None
        self._commit = real.commit
        self._group = real.group
        self._new_id = real.new_id
        self._view = view
        self._epoch = view.execution.epoch

    async def step(self, name: str, occurrence: int) -> None:
        recorded = facts.StepRecorded(
            change_id=self._new_id(),
            epoch=self._epoch,
            scope="",
            name=name,
            occurrence=occurrence,
            op="step",
            outcome="ok",
            value=VALUE,
            entries=occurrence,
        )
        answer = decide(self._view, recorded, self._group.now)
        assert isinstance(answer, Changes), answer
        verdict = await self._group.commit(answer)
        assert verdict.applied, verdict

    async def complete(self) -> None:
        await self._commit(self._view, facts.Complete(change_id=self._new_id(), epoch=self._epoch, output=OUTPUT))


def start(execution_id: str, change_id: str, *, worker: str | None = None) -> facts.Start:
    return facts.Start(
        change_id=change_id,
        namespace=NAMESPACE,
        id=execution_id,
        workflow=WORKFLOW,
        version=VERSION,
        lane=LANE,
        input=INPUT,
        input_digest=DIGEST,
        worker=worker,
    )
