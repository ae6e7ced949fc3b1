"""Makes the input of a member of its template and of what its upstreams gave."""

from __future__ import annotations

from msgspec import Struct

from outlast import limits
from outlast.codec.templates import Given, compose, decode_template, needed_by
from outlast.codec.values import Values
from outlast.errors import StoreUnavailable
from outlast.machine.decide_member import MemberView
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import EdgeAnswer, edge_answer_key
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import Key, Record
from outlast.model.status import Status
from outlast.store.port import Store


class MadeOf(Struct, frozen=True, gc=False):
    """The template of a member that waits for one end alone, and what that end left."""

    template: bytes
    left: bytes | None


async def composed(
    store: Store, values: Values | None, view: MemberView, edges: list[EdgeAnswer], made_of: MadeOf | None
) -> bytes:
    """The input; `CodecError` or `LimitExceeded` if there can be none. What is known of it is `made_of`."""
    e = view.execution
    if values is None:
        raise StoreUnavailable(f"the input of {e.id!r} is made by a process that has the app's codec")
    what = f"input of {e.id}"
    if made_of is not None:
        # What takes something from its upstreams takes it from the only one.
        template, answers, left = decode_template(values, made_of.template, what), edges, [made_of.left]
    else:
        [stored] = await store.load([payload_key(e.namespace, e.id, 1, Role.TEMPLATE)])
        assert isinstance(stored, Payload)
        template = decode_template(values, stored.value, what)
        answers = await _answers(store, e, edges, needed_by(template))
        left = await _left_by(store, e.namespace, answers)
    causes = await _causes(store, e.namespace, answers)
    given = {
        edge.upstream: Given(edge.answer, value, causes.get(edge.upstream))
        for edge, value in zip(answers, left, strict=True)
    }
    return compose(values, template, given, what)


async def _answers(
    store: Store, execution: Execution, edges: list[EdgeAnswer], needed: tuple[str, ...]
) -> list[EdgeAnswer]:
    """Those of the upstreams that it takes something from."""
    known = {edge.upstream: edge for edge in edges}
    others = [
        edge_answer_key(execution.namespace, execution.id, upstream) for upstream in needed if upstream not in known
    ]
    for record in await load_all(store, others):
        if isinstance(record, EdgeAnswer):
            known[record.upstream] = record
    return [known[upstream] for upstream in needed if upstream in known]


async def _left_by(store: Store, namespace: str, answers: list[EdgeAnswer]) -> list[bytes | None]:
    """Their outputs or failures."""
    keys = [
        payload_key(
            namespace,
            edge.upstream,
            edge.generation,
            Role.OUTPUT if edge.answer == Status.SUCCEEDED else Role.FAILURE,
        )
        for edge in answers
    ]
    return [record.value if isinstance(record, Payload) else None for record in await load_all(store, keys)]


async def _causes(store: Store, namespace: str, answers: list[EdgeAnswer]) -> dict[str, str | None]:
    """Why those ended that did not succeed."""
    keys = [execution_key(namespace, edge.upstream) for edge in answers if edge.answer != Status.SUCCEEDED]
    if not keys:
        return {}
    return {found.id: found.cause for found in await load_all(store, keys) if isinstance(found, Execution)}


async def load_all(store: Store, keys: list[Key]) -> list[Record | None]:
    """However many they are."""
    found: list[Record | None] = []
    for begin in range(0, len(keys), limits.LOAD_MAX_KEYS):
        found += await store.load(keys[begin : begin + limits.LOAD_MAX_KEYS])
    return found
