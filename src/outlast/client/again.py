"""What an execution that has ended begins again with: as a retry, under its own id, or as a fork, under another."""

from __future__ import annotations

from outlast import limits
from outlast.codec.values import Values
from outlast.errors import ExecutionRefused
from outlast.machine import facts, retry_cut
from outlast.machine.changes import Code
from outlast.model.execution import Execution
from outlast.runtime.engine import Engine
from outlast.runtime.retrying import runs_again, was_undone


async def retry_of(engine: Engine, values: Values, execution: Execution) -> facts.Retry:
    """The retry, once all but so much as it can take has left the journal."""
    if await was_undone(engine.store, execution):
        raise ExecutionRefused(
            execution.id,
            Code.NOT_ALLOWED,
            "its undos have run, so what it did is taken back; start it anew, with if_exists='restart'",
        )
    ahead, last = retry_cut.parts(await runs_again(engine.store, values, execution))
    for entries in ahead:
        fact = facts.Supersede(change_id=engine.entropy.new_id(), epoch=execution.epoch, entries=entries)
        told = await engine.tell(execution.namespace, execution.id, fact)
        if told.refusal is not None:
            break  # it is not what it was: so says the answer to the retry
    return facts.Retry(change_id=engine.entropy.new_id(), supersedes=last, seen_epoch=execution.epoch)


def fork_id(execution_id: str, new_id: str) -> str:
    """The source's own with a mark of its own behind it; of a child or member, a root's."""
    mark = f"-fork-{new_id[-8:]}"
    return execution_id.replace("/", "-")[: limits.ID_MAX_CHARS - len(mark)] + mark
