"""A named message to an execution: FIFO per name, buffered until received.

Every outside write leaves one of these (or a deferred) behind, under a reserved name for the engine's own: it makes the
write idempotent, and it is the trail of who asked for what. `seq` is given by the store and orders them.
"""

from __future__ import annotations

from typing import ClassVar

from outlast.model.names import RESERVED_PREFIX
from outlast.model.record import Key, Record, Time

CANCEL = f"{RESERVED_PREFIX}cancel"
HOLD = f"{RESERVED_PREFIX}hold"
RELEASE = f"{RESERVED_PREFIX}release"
PRIORITY = f"{RESERVED_PREFIX}priority"
DEADLINE = f"{RESERVED_PREFIX}deadline"
RETRY = f"{RESERVED_PREFIX}retry"
RESTART = f"{RESERVED_PREFIX}restart"
CHILD = f"{RESERVED_PREFIX}child"
"""An open child (`dedup` is its id), and what becomes of it when this execution ends. Gone when the child has ended."""
UPDATE = f"{RESERVED_PREFIX}update"
"""Updates, all of them in one order; `dedup` is the key. One that was taken has its answer for a value."""
UNDELIVERED = f"{RESERVED_PREFIX}undelivered"
"""A word of this execution's code to another one that was refused there; the value says why."""
_ANSWER = "/answer"


class Event(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "event"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "execution", "name", "dedup")
    TIMES: ClassVar[tuple[str, ...]] = ("sent_at",)
    FLAGS: ClassVar[tuple[str, ...]] = ("consumed",)
    SEQUENCED: ClassVar[bool] = True

    namespace: str
    execution: str
    name: str
    dedup: str
    value: bytes | None
    consumed: bool = False
    sent_at: Time
    seq: int = 0
    change_id: str

    @property
    def is_unreceived(self) -> bool:
        """Whether somebody sent it, and the code has not received it."""
        return not self.consumed and (self.name == UPDATE or not self.name.startswith(RESERVED_PREFIX))


def ended_name(child: str) -> str:
    """The events that say how a child ended: one for each of its generations that did."""
    return f"{RESERVED_PREFIX}ended:{child}"


def answer_id(start_id: str) -> str:
    """The change id, and the key, of the answer to a start that started nothing."""
    return f"{start_id}{_ANSWER}"


def answers_start(event: Event) -> bool:
    """Whether an event named by `ended_name` is such an answer: then nothing of that name ended."""
    return event.dedup.endswith(_ANSWER)


def event_key(namespace: str, execution: str, name: str, dedup: str) -> Key:
    return Key(Event.KIND, (namespace, execution, name, dedup))
