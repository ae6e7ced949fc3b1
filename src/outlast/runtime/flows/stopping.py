"""The cancels that a stopped flow owes to its members: at once in the process that stopped it, by a reconciler after
the grace.

The flow's gate is shut already, so nothing hurries. Each member is told and acknowledged in one commit; one that has
ended counts as done. What fails for now stays owed; what fails for good is acknowledged, so that nothing poisons the
backlog; an entry that names nothing is dropped. The last acknowledgement takes the flow off the backlog, in one commit.
What runs and may go on stays owed until it stops: a flow that owes nothing else is looked at less and less often.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from msgspec import Struct

from outlast.errors import OutlastError, StoreError
from outlast.machine import facts
from outlast.machine.amendments import together
from outlast.machine.changes import Changes, Refusal, View
from outlast.machine.decide import decide
from outlast.machine.decide_member import MemberView, dropped
from outlast.machine.decide_stop import acknowledged, all_acknowledged, may_run_on, put_off
from outlast.model.flow import Flow, FlowState
from outlast.model.partition import partition_of
from outlast.model.record import settled as time_of
from outlast.store.port import EVERYTHING, Filter, Verdict

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine

_log = logging.getLogger(__name__)

GRACE_MS = 5_000
"""So long whoever stopped a flow has to cancel its members, before a reconciler does."""
PARALLEL = 16
CYCLE_MAX = 500
"""So many members of a flow are told in one cycle of the reconciler, chosen at random: a part that fails again and
again does not keep the others waiting."""
DROPPED_MAX = 100
"""So many entries that name nothing are dropped in one commit."""
SHOWN_MAX = 10


class Stopped(Struct):
    """What came of it: members told or found ended, left for later, dropped because they name nothing."""

    acknowledged: int = 0
    owed: int = 0
    dropped: int = 0
    errors: int = 0
    put_off: bool = False
    """Whether only what runs is left, and the flow is looked at again later."""


async def cancel_members(
    engine: Engine, namespace: str, flow_id: str, *, most: int | None = None, filter: Filter = EVERYTHING
) -> Stopped:
    """Tell all members of a stopped flow, or `most` of them; those outside of the filter stay owed."""
    done = Stopped()
    flow, _ = await engine.flows.heads(namespace, flow_id)
    if flow is None or flow.state is not FlowState.STOPPED or flow.cancel_at is None:
        return done
    partition = partition_of(namespace, flow_id, engine.store.partitions)
    owed, running, left = await _owed(engine, flow, partition, filter, done)
    if most is not None and len(owed) > most:
        owed = sorted(owed, key=lambda _: engine.entropy.random())[:most]
        left += 1
    last = owed.pop() if owed and not left and not running else None
    for begin in range(0, len(owed), PARALLEL):
        some = owed[begin : begin + PARALLEL]
        await asyncio.gather(*(_cancel(engine, flow, view, done) for view in some))
    if last is not None:
        # With the last one nothing is owed any more, unless one of the others still is.
        await _cancel(engine, flow, last, done, last=done.owed == 0)
    elif running and not left and done.owed == 0:
        done.put_off = await _put_off(engine, flow, partition, running)
    elif not running and not left and not owed and done.owed == 0:
        await engine.commit(all_acknowledged(partition, flow, engine.entropy.new_id()))
    done.owed += left + len(running)
    return done


async def _owed(
    engine: Engine, flow: Flow, partition: int, filter: Filter, done: Stopped
) -> tuple[list[MemberView], list[MemberView], int]:
    """The members that were not reached yet, those of them that may go on running, and how many others are left: not
    this reconciler's to reach, or named by an entry that is not dropped yet."""
    owed: list[MemberView] = []
    running: list[MemberView] = []
    nothing: list[str] = []
    members, outside = 0, 0
    async for page in engine.flows.roster(flow.namespace, flow.id):
        views = await engine.flows.views(partition, flow.namespace, page)
        known = {view.execution.id for view in views}
        nothing += [one for one in page if one not in known]
        members += len(page)
        for view in views:
            if view.member.acknowledged:
                continue
            tags = view.execution.tag_map if filter.tag is not None else {}
            if may_run_on(flow, view.execution):
                running.append(view)
            elif filter.tag is not None and tags.get(filter.tag[0]) != filter.tag[1]:
                outside += 1
            else:
                owed.append(view)
    if nothing:
        await _drop(engine, flow, partition, nothing[:DROPPED_MAX], members, done)
        outside += len(nothing) - done.dropped
    return owed, running, outside


async def _cancel(engine: Engine, flow: Flow, view: MemberView, done: Stopped, *, last: bool = False) -> None:
    """One member, whatever comes of it: its failure is not the others'."""
    try:
        reached = await _reached_or_given_up(engine, flow, view, done, last=last)
    except StoreError as error:
        _log.info("the cancel of %s is owed until later: %s", view.execution.id, error)
        done.errors += 1
        reached = False
    except Exception:
        _log.exception("the cancel of %s broke, and is owed until later", view.execution.id)
        done.errors += 1
        reached = False
    if reached:
        done.acknowledged += 1
    else:
        done.owed += 1


async def _reached_or_given_up(engine: Engine, flow: Flow, view: MemberView, done: Stopped, *, last: bool) -> bool:
    try:
        return await _reached(engine, flow, view, last=last)
    except StoreError:
        raise
    except OutlastError as error:
        _log.warning("the cancel of %s fails for good, and is not owed any more: %s", view.execution.id, error)
        done.errors += 1
        await engine.commit(acknowledged(view.partition, view.member, flow, engine.entropy.new_id(), last=last))
        return True


async def _reached(engine: Engine, flow: Flow, view: MemberView, *, last: bool) -> bool:
    """True once it is told, or has ended, or the flow was retried meanwhile. False if it runs and may go on running."""
    partition, execution_id = view.partition, view.execution.id

    async def decided(refused: Verdict | None) -> Changes | bool:
        seen = view
        if refused is not None:
            views = await engine.flows.views(partition, flow.namespace, [execution_id])
            if not views or views[0].member.acknowledged or await engine.flows.is_another(flow):
                return True
            [seen] = views
        if may_run_on(flow, seen.execution):
            return False
        ack = acknowledged(partition, seen.member, flow, engine.entropy.new_id(), last=last)
        fact = facts.CancelRequested(change_id=engine.entropy.new_id(), reason=flow.reason or "")
        state, now = View(partition, seen.execution), engine.group.now
        answer = decide(state, fact, now)
        if isinstance(answer, Refusal):
            return ack
        return together(await engine.cascade(state, seen.execution, fact, answer, now), [ack])

    return await engine.settle(f"member {execution_id!r}", decided) is not False


async def _drop(engine: Engine, flow: Flow, partition: int, names: list[str], members: int, done: Stopped) -> None:
    """Entries that name no execution: edited by hand, or purged by one who should not have. The flow does not wait for
    them any more: of so many members that the roster has, it counts the others."""

    async def decided(refused: Verdict | None) -> Changes | None:
        if refused is not None and await engine.flows.is_another(flow):
            return None  # it was retried meanwhile
        _, summary = await engine.flows.heads(flow.namespace, flow.id)
        if summary is None or summary.outcome is not None:
            return None
        left = members - len(names)
        return dropped(partition, flow, summary, names, engine.entropy.new_id(), members=left)

    if await engine.settle(f"flow {flow.id!r}", decided) is not None:
        _log.warning("flow %s has no members %s: their entries are dropped", flow.id, ", ".join(names[:SHOWN_MAX]))
        done.dropped += len(names)
        await engine.flows.tally(flow.namespace, flow.id)


async def _put_off(engine: Engine, flow: Flow, partition: int, running: list[MemberView]) -> bool:
    began_at = max(time_of(view.execution.claimed_at) or 0 for view in running)
    ran_ms = await engine.store.now() - began_at
    return (await engine.commit(put_off(partition, flow, engine.entropy.new_id(), ran_ms=ran_ms))).applied
