"""Builds the answer to a fact about a flow, and checks it against `FLOW_TRANSITIONS` and the invariants.

The deciders of flows (`decide_flow.py`, `decide_member.py`) see parts of a flow, and never all of it. So a check knows
the state before a move from the guard that pins it: a move that no guard pins is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast.errors import CorruptState
from outlast.machine.changes import Changes, Guard, Insert, Matches, Patch, Write
from outlast.machine.facts import Start
from outlast.machine.invariants import check, check_flow
from outlast.machine.transitions import FLOW_TRANSITIONS, STATE_OF, FlowFact, allowed
from outlast.model.execution import Execution
from outlast.model.record import Key


def flow_changes(
    fact: FlowFact,
    change_id: str,
    partition: int,
    anchors: tuple[Key, ...],
    guards: Sequence[Guard],
    writes: Sequence[Write],
    *rings: str,
) -> Changes:
    """The answer to this fact."""
    for write in writes:
        if type(write) is Insert:
            record = write.record
            if type(record) is Execution:
                check(record)
                _move(fact, Start.__name__, None, record.status, allowed(Start, None))
            elif record.KIND in STATE_OF:
                _check_state(fact, record.KIND, None, getattr(record, STATE_OF[record.KIND]))
                check_flow(record.key, {name: getattr(record, name) for name in record.__struct_fields__})
        elif type(write) is Patch:
            if write.key.kind == Execution.KIND:
                raise CorruptState(f"{fact} would patch {write.key}: facts about executions are for `decide`")
            field = STATE_OF.get(write.key.kind)
            if field is not None and field in write.fields:
                _check_state(fact, write.key.kind, _pinned(fact, guards, write.key, field), write.fields[field])
                check_flow(write.key, write.fields)
    return Changes(
        id=change_id, partition=partition, anchors=anchors, guards=tuple(guards), writes=tuple(writes), rings=rings
    )


def _pinned(fact: FlowFact, guards: Sequence[Guard], key: Key, field: str) -> Any:
    for guard in guards:
        if type(guard) is Matches and guard.key == key and field in guard.fields:
            return guard.fields[field]
    raise CorruptState(f"{fact} would change {field} of {key}, and no guard says what it is now")


def _check_state(fact: FlowFact, kind: str, before: Any, after: Any) -> None:
    _move(fact, kind, before, after, FLOW_TRANSITIONS[fact].get(kind, {}).get(before, frozenset()))


def _move(fact: FlowFact, what: str, before: Any, after: Any, to: frozenset[Any]) -> None:
    if after != before and after not in to:
        raise CorruptState(f"{fact} would turn {what} {before} into {after}, which is not in the table")
