"""What may be said of one start: `checkout.options(id="order-42", delay="1h", tags={…}).start(order)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict, cast, get_args

from msgspec import Struct

from outlast import limits
from outlast.errors import InvalidInput, LimitExceeded
from outlast.machine.facts import check_priority, check_tags
from outlast.model.duration import Duration, to_ms
from outlast.model.execution import ParentClose
from outlast.model.names import check_id, check_user_name, check_word

IfExists = Literal["same", "error", "restart"]
ParentCloses = Literal["cancel", "abandon", "wait"]


class Options(TypedDict, total=False):
    """The names that `.options(...)` takes."""

    id: str
    if_exists: IfExists
    delay: Duration
    priority: int
    deadline: Duration
    tags: Mapping[str, str]
    lane: str
    requires: Iterable[str]
    retention: Duration
    send: Mapping[str, Any]
    detached: bool
    parent_close: ParentCloses


class StartOptions(Struct, frozen=True, kw_only=True):
    """The same, checked. None: as the workflow says."""

    id: str | None = None
    if_exists: IfExists = "same"
    delay_ms: int = 0
    priority: int = 0
    deadline_ms: int | None = None
    tags: dict[str, str] = {}
    lane: str | None = None
    requires: tuple[str, ...] | None = None
    retention_ms: int | None = None
    sends: dict[str, Any] = {}
    detached: bool = False
    parent_close: ParentClose | None = None

    def refuse_child_options(self) -> None:
        """Outside of a workflow there is no parent."""
        if self.detached or self.parent_close is not None:
            raise InvalidInput("detached and parent_close are for children, which are started inside a workflow")

    def refuse_options_outside(self) -> None:
        """In another's transaction: what would change an execution that is there would keep it locked meanwhile."""
        if self.if_exists == "restart":
            raise InvalidInput('if_exists="restart" is not possible inside of another\'s transaction: use .start(…)')
        if self.sends:
            raise InvalidInput("send is not possible inside of another's transaction: send after the commit")


def parse_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `StartOptions`; `InvalidInput` if one does not exist or cannot be used, before anything starts."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _PARSERS:
            raise InvalidInput(f"unknown option {name!r}; known: {', '.join(sorted(_PARSERS))}")
        field, parse = _PARSERS[name]
        fields[field] = parse(value)
    return fields


def parse_requires(value: object) -> tuple[str, ...]:
    """Capabilities, each once, in one order."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInput(f'requires must be a collection of words, such as {{"gpu"}}, not {value!r}')
    words = {check_word("capability", word) for word in cast("Iterable[object]", value)}
    if len(words) > limits.REQUIRES_MAX:
        raise LimitExceeded("requires", actual=len(words), limit=limits.REQUIRES_MAX, unit="capabilities")
    return tuple(sorted(words))


def parse_lasting(what: str, value: object) -> int:
    """A duration that is longer than nothing, in milliseconds."""
    ms = to_ms(value, what=what)
    if ms == 0:
        raise InvalidInput(f"{what} must be longer than nothing")
    return ms


def _parse_if_exists(value: object) -> IfExists:
    if value not in get_args(IfExists):
        raise InvalidInput(f'if_exists must be "same", "error" or "restart", not {value!r}')
    return cast("IfExists", value)


def _parse_priority(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"priority must be a whole number, not {value!r}")
    check_priority(value)
    return value


def parse_tags(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f'tags must be a mapping, such as {{"customer": "42"}}, not {value!r}')
    tags = dict(cast("Mapping[str, str]", value))
    check_tags(tags)
    return tags


def _parse_send(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f'send must be a mapping of names to values, such as {{"item": item}}, not {value!r}')
    sends = dict(cast("Mapping[str, Any]", value))
    for name in sends:
        check_user_name("event", name)
    if len(sends) > limits.SENDS_MAX:
        raise LimitExceeded("send", actual=len(sends), limit=limits.SENDS_MAX, unit="events")
    return sends


def _parse_detached(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"detached must be True or False, not {value!r}")
    return value


def parse_parent_close(value: object) -> ParentClose:
    if value not in get_args(ParentCloses):
        raise InvalidInput(f'parent_close must be "cancel", "abandon" or "wait", not {value!r}')
    return ParentClose(cast("str", value))


_PARSERS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "id": ("id", check_id),
    "if_exists": ("if_exists", _parse_if_exists),
    "delay": ("delay_ms", lambda value: to_ms(value, what="delay")),
    "priority": ("priority", _parse_priority),
    "deadline": ("deadline_ms", lambda value: parse_lasting("deadline", value)),
    "tags": ("tags", parse_tags),
    "lane": ("lane", lambda value: check_word("lane", value)),
    "requires": ("requires", parse_requires),
    "retention": ("retention_ms", lambda value: to_ms(value, what="retention")),
    "send": ("sends", _parse_send),
    "detached": ("detached", _parse_detached),
    "parent_close": ("parent_close", parse_parent_close),
}
assert set(_PARSERS) == set(Options.__annotations__)
