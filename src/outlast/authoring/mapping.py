"""A map over a list that is known only at run time: a member of the engine's own that grows the flow.

`flow.map(fetch, listing.output, name="pages")` is two members when the flow is accepted: `pages[*]` takes the list, and
`pages`, which stands for the results, waits for it. When `pages[*]` runs it adds `pages[0]`, `pages[1]`, … behind
itself, a bounded part at a time, and with the last part makes `pages` wait for all of them. None of them can run before
`pages[*]` has succeeded, so nothing can end before everything stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import structs

from outlast import limits
from outlast.authoring.builtin import STARRED
from outlast.authoring.host import Host
from outlast.authoring.inside import random, workflow_code
from outlast.authoring.workflow import AsyncWorkflow, Workflow, workflow_options
from outlast.codec.pickled import refuse_lookalike
from outlast.codec.references import Reference
from outlast.codec.templates import MARK, OUTPUTS, Template, encode_template
from outlast.codec.values import Values
from outlast.errors import InvalidFlow, LimitExceeded
from outlast.machine import facts
from outlast.machine.decide_flow import NewMember
from outlast.model.flow import OnFailure
from outlast.runtime.attempts.mishaps import encoding
from outlast.runtime.operations.grow import FanIn, Grow

MAP = "outlast.map"
STAR = "[*]"
RECORDS_EACH = 7
"""So many records a member takes, with its edge and that of the one that waits for it, before tags and events."""
RECORDS_BESIDE = 20
_KINDS = {b"{": "an object", b'"': "a text", b"n": "nothing", b"t": "true", b"f": "false"}


async def _map(items: msgspec.Raw, workflow: str, argument: str, max_parallel: int | None, each: bytes) -> int:
    """`each` is the start of an item, but for its name and its input; `workflow` is there for people."""
    attempt = workflow_code("map")
    e, values, numbers = attempt.execution, attempt.parts.values, random()
    assert e.flow is not None
    start = facts.decode_fact(each)
    assert isinstance(start, facts.Start)
    gathers = e.id.removesuffix(STAR)
    starred, argument = argument.startswith(STARRED), argument.removeprefix(STARRED)
    raws = _taken_apart(values, items, gathers.partition("/")[2], starred=starred)
    ids = tuple(f"{gathers}[{number}]" for number in range(len(raws)))

    def member(number: int) -> NewMember:
        plain = msgspec.json.encode({argument: raws[number]})
        waits_for_its_turn = max_parallel is not None and number >= max_parallel
        return NewMember(
            start=structs.replace(
                start,
                id=ids[number],
                input=values.seal(plain, f"input of {ids[number]}"),
                input_digest=sha256(plain).hexdigest(),
                first_epoch=int(numbers.random() * limits.FIRST_EPOCHS),
            ),
            name=ids[number].partition("/")[2],
            upstreams=(ids[number - (max_parallel or 0)] if waits_for_its_turn else e.id,),
            needed=1,
            on_failure=OnFailure.TURN if waits_for_its_turn else OnFailure.SKIP,
        )

    for begin, end in _parts(len(raws), RECORDS_EACH + len(start.tags) + len(start.sends)):
        fan_in = FanIn(gathers)
        with encoding():
            if end == len(raws):
                fan_in = FanIn(gathers, ids, _gathering(values, ids, gathers))
            members = [member(number) for number in range(begin, end)]
        await attempt.call(Grow(e.flow, members, fan_in, f"map {begin}-{end}"))
    return len(raws)


def _taken_apart(values: Values, items: object, name: str, *, starred: bool) -> list[msgspec.Raw]:
    """The items as arguments, in JSON: none is decoded, but of a list that came pickled."""
    if isinstance(items, msgspec.Raw):
        data = bytes(items)
        if not data.startswith(b"["):
            what = _KINDS.get(data[:1], "a number")
            raise InvalidFlow(f"map {name!r}: a list is mapped, but what its upstream gave is {what}")
        found = msgspec.json.decode(data, type=list[msgspec.Raw])
        for number, one in enumerate(found):
            refuse_lookalike(one, f"map {name!r}: item {number}")
        if starred:
            found = [msgspec.Raw(b"[" + bytes(one) + b"]") for one in found]
    elif isinstance(items, list):
        each = [(one,) if starred else one for one in cast("list[object]", items)]
        found = [msgspec.Raw(values.keep(one, Any, f"map {name}", f"[{n}]")[0]) for n, one in enumerate(each)]
    else:
        raise InvalidFlow(f"map {name!r}: a list is mapped, but what its upstream gave is {type(items).__name__}")
    if len(found) >= limits.FLOW_MEMBERS_MAX:
        most = limits.FLOW_MEMBERS_MAX
        raise LimitExceeded(f"map {name!r}", actual=len(found), limit=most, unit="items")
    return found


def _parts(items: int, records_each: int) -> Iterator[tuple[int, int]]:
    """As many at a time as one commit holds."""
    size = min(limits.FLOW_GROWTH_MAX, (limits.CHANGES_MAX_WRITES - RECORDS_BESIDE) // records_each)
    for begin in range(0, items, size):
        yield begin, min(begin + size, items)


def _gathering(values: Values, ids: tuple[str, ...], gathers: str) -> bytes:
    """The input of the member that waits for all: their outputs, in order."""
    results = msgspec.Raw(msgspec.json.encode({MARK: Reference(OUTPUTS, ids)}))
    return encode_template(values, Template({"results": results}, ("results",)), f"input of {gathers}")


def map_for(app: Host) -> Workflow[..., int]:
    return AsyncWorkflow(app, _map, workflow_options({"name": MAP}))
