"""What others may ask of an execution's code: queries, which only look, and updates, which change something.

The code registers a plain function for each. An update is an event that is answered. When the code is idle, the oldest
one is checked by its validator, which only looks. What it refuses is answered so, and nothing else is written. What it
lets through is accepted: one commit marks the event and makes a journal entry. Then its function is called in the
code's place, live as in every replay after that, and what it returned is written where the event was. One at a time:
so at most one accepted update is without an answer when a process dies, and it is the last one in the journal.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from outlast.codec.arguments import Arguments
from outlast.codec.failures import encode_failure, failure_of
from outlast.errors import (
    CodecError,
    CodecHookFailed,
    ExecutionRefused,
    InvalidInput,
    LimitExceeded,
    WrongPlace,
)
from outlast.machine import facts
from outlast.machine.attempt import State
from outlast.machine.changes import Code
from outlast.model.event import UPDATE, Event
from outlast.model.journal import SUCCEEDED, UPDATE_SCOPE, JournalEntry
from outlast.model.journal import UPDATE as UPDATE_OP
from outlast.model.record import Key
from outlast.model.status import Reason
from outlast.runtime.attempts.mishaps import leave
from outlast.runtime.attempts.signals import Stopped
from outlast.runtime.attempts.workflow_loop import without_loop
from outlast.runtime.holder import PAGE, ReadUpdates

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.runtime.attempts.attempt import LiveAttempt

ACCEPTED, FAILED, REFUSED = "accepted", "failed", "refused"
"""What became of an update: its function returned, or raised; or it was not let in."""


class Question(Struct, frozen=True):
    """An update as it is sent: which one, and with what (sealed)."""

    name: str
    value: bytes


class Answer(Struct, frozen=True):
    """What became of it: a result, or a failure (sealed)."""

    name: str
    outcome: str
    value: bytes


_encode = msgspec.msgpack.Encoder().encode
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def question(values: Values, name: str, value: Any) -> bytes:
    return _encode(Question(name, values.encode(value, f"update {name!r}")))


def answer_in(event: Event) -> Answer | None:
    """The answer, if there is one."""
    return _answers.decode(event.value) if event.consumed and event.value is not None else None


class Handler:
    """A function of the code that others may ask for. It takes one value, or none."""

    def __init__(self, what: str, name: str, fn: Callable[..., Any]) -> None:
        self.what = f"{what} {name!r}"
        self.name = name
        self.fn = fn
        self.validator: Callable[..., Any] | None = None
        self._arguments = Arguments(fn, self.what)
        self._takes = plain_parameters(self.what, fn, self._arguments)
        self._context = contextvars.copy_context()

    def call(self, fn: Callable[..., Any], values: Values, data: bytes) -> Any:
        """Each call has a value of its own, decoded by the annotation: what one does to it, no other sees."""
        if not self._takes:
            if values.decode(data, Any, self.what) is not None:
                raise CodecError(f"{self.what} takes no value")
            return self._context.run(fn)
        return self._context.run(fn, values.decode(data, self._arguments.annotation(self._takes[0]), self.what))

    def result(self, values: Values, result: Any) -> bytes:
        return values.settle(result, self._arguments.result, f"result of {self.what}")[0]


def plain_parameters(what: str, fn: Callable[..., Any], arguments: Arguments) -> list[str]:
    """The names of its parameters; complains where it is registered."""
    if inspect.iscoroutinefunction(fn):
        raise InvalidInput(
            f"{what} must be a plain def: it changes or shows what the code knows, at once; "
            "what takes longer the workflow's own code does"
        )
    parameters = arguments.signature.parameters
    if len(parameters) > 1 or any(one.kind in (one.VAR_KEYWORD, one.KEYWORD_ONLY) for one in parameters.values()):
        raise InvalidInput(f"{what} takes one value, or none: put several into one (a dataclass, a tuple)")
    return list(parameters)


class Asked:
    def __init__(self, attempt: LiveAttempt) -> None:
        self._attempt = attempt
        self.queries: dict[str, Handler] = {}
        self.updates: dict[str, Handler] = {}
        self.handling: str | None = None
        """The function that runs: nothing durable can be done in it."""
        self._only_looks = False
        self._counts: dict[str, int] = {}
        self._found: list[Event] = []
        self._seen: dict[Key, None] = {}
        self._read_to: Key | None = None
        self._looked = False
        """Whether all that came from outside was looked at."""
        self._accepting: str | None = None
        """The key of the update that is on its way into the journal, or to the code."""
        self._answering: asyncio.Task[Any] | None = None
        self._replayed: Answer | None = None
        """The answer to the last update of the journal: whoever accepted it may have died before he gave it."""

    @cached_property
    def _one_look(self) -> asyncio.Lock:
        return asyncio.Lock()  # most attempts are never asked

    @property
    def waits(self) -> tuple[str, ...]:
        """What wakes the code beside all that it awaits."""
        return (Reason.event(UPDATE),) if self.updates else ()

    def refuse_operation(self, what: str) -> None:
        """What is durable, or moves the code's own numbers, in a function that others asked for."""
        if self.handling is not None:
            raise WrongPlace(f"{what} was called in {self.handling}: do it in the workflow's own code")

    def refuse_change(self, what: str) -> None:
        """What would leave a trace, in a function that only looks."""
        if self._only_looks:
            self.refuse_operation(what)

    # ---- queries --------------------------------------------------------------------------------------------------

    def inquire(self, name: str, data: bytes) -> bytes:
        """What the code shows under that name. Raises what its function raises."""
        handler, attempt = self.queries.get(name), self._attempt
        if handler is None:
            raise ExecutionRefused(attempt.execution.id, Code.NOT_ALLOWED, _unknown("query", name, self.queries))
        return handler.result(attempt.parts.values, self._aside(handler, handler.fn, data))

    def _aside(self, handler: Handler, fn: Callable[..., Any], data: bytes) -> Any:
        """Where it can only look: nothing durable, and nothing that goes on by itself."""
        self.handling, self._only_looks = handler.what, True
        try:
            return without_loop(partial(handler.call, fn, self._attempt.parts.values, data))
        finally:
            self.handling, self._only_looks = None, False

    # ---- looking for updates --------------------------------------------------------------------------------------

    def heard(self) -> None:
        """Something came from outside: it is looked at when the code is idle, and before it sleeps."""
        self._looked = False

    async def _look(self) -> None:
        self._looked = True
        async with self._one_look:
            after = self._read_to
            while True:
                page = await self._attempt.lease.ask(ReadUpdates(after))
                for event in page:
                    if event.key not in self._seen:
                        self._seen[event.key] = None
                        await self._see(event)
                    if event.consumed and self._read_to == after:
                        self._read_to = event.key
                    after = event.key
                if len(page) < PAGE:
                    return

    async def _see(self, event: Event) -> None:
        """For the first time in this attempt."""
        if not event.consumed:
            self._found.append(event)
        elif event.value is None:
            await self._answer(event.dedup, self._replayed or self._refusal("", "what it did was taken back"))

    async def may_sleep(self, waits: tuple[str, ...]) -> bool:
        """Whether nothing is left to take. What will not listen has no answer, and says so."""
        listens = Reason.event(UPDATE) in waits
        while not self._looked and self._attempt.execution.inbox > 0:
            await self._look()
        while self._found and not listens:
            event = self._found.pop(0)
            name = question_in(event).name
            await self._answer(event.dedup, self._refusal(name, _unknown("update", name, {})))
        return not self._found

    async def settled(self) -> None:
        """Before the end: what was accepted is answered, also what somebody accepted who has died."""
        if self._answering is not None:
            await asyncio.wait([self._answering])
        if self._replayed is not None and not self._looked:
            await self._look()

    # ---- accepting ------------------------------------------------------------------------------------------------

    def takes(self, *, can_move: bool) -> bool:
        """The code is idle, and nothing is on its way to it: take the oldest update. True if one is on its way now."""
        if self._accepting is not None:
            return True
        answering = self._answering is not None and not self._answering.done()
        if not self.updates or can_move or answering or self._attempt.machine.state is State.SUSPENDING:
            return False
        if not self._looked and self._attempt.execution.inbox > 0:
            self._answering = self._attempt.errand(self._look())
        elif self._found:
            event = self._found.pop(0)
            asked = question_in(event)
            try:
                refusal = self._objection(asked)
            except CodecHookFailed as error:
                leave(self._attempt, error)
                return False
            if refusal is None:
                self._accepting = event.dedup
                self._attempt.errand(self._accept(event.dedup, asked))
                return True
            self._answering = self._attempt.errand(self._answer(event.dedup, refusal))
        return False

    def _objection(self, asked: Question) -> Answer | None:
        handler = self.updates.get(asked.name)
        if handler is None:
            return self._refusal(asked.name, _unknown("update", asked.name, self.updates))
        try:
            # Without a validator, only its value is checked.
            self._aside(handler, handler.validator or (lambda *value: None), asked.value)
        except CodecHookFailed:
            raise
        except Exception as error:
            return self._refusal(asked.name, error)
        return None

    async def _accept(self, key: str, asked: Question) -> None:
        number = self._counts.get(asked.name, 0) + 1
        place = (UPDATE_SCOPE, asked.name, number)
        attempt = self._attempt
        try:
            entry = await attempt.lease.record(place, UPDATE_OP, SUCCEEDED, asked.value, consumes=(UPDATE, key))
        except LimitExceeded as error:
            self._accepting = None
            await self._answer(key, self._refusal(asked.name, error))
            return
        attempt.arrives(structs.replace(entry, value=asked.value))

    # ---- handling -------------------------------------------------------------------------------------------------

    def call_of(self, entry: JournalEntry) -> tuple[Callable[[], None] | None, str]:
        """What to call in the code's place for an accepted update; or why not."""
        handler = self.updates.get(entry.name)
        if handler is None:
            return None, f"nothing: {_unknown('update', entry.name, self.updates)}"
        self._counts[entry.name] = entry.occurrence
        return partial(self._handle, handler, entry.value or b"null"), ""

    def _handle(self, handler: Handler, data: bytes) -> None:
        attempt = self._attempt
        self.handling = handler.what
        try:
            answer = self._answer_of(handler, data)
        except CodecHookFailed as error:
            leave(attempt, error)
            return
        except Stopped:
            return  # the code is left: whoever goes on answers
        finally:
            self.handling = None
        key, self._accepting = self._accepting, None
        if key is None:
            self._replayed = answer
        else:
            self._answering = attempt.errand(self._answer(key, answer))

    def _answer_of(self, handler: Handler, data: bytes) -> Answer:
        values = self._attempt.parts.values
        try:
            result = handler.call(handler.fn, values, data)
            return Answer(handler.name, ACCEPTED, handler.result(values, result))
        except (CodecHookFailed, Stopped):
            raise
        except KeyboardInterrupt:
            raise  # this process is told to stop; whoever goes on answers
        except BaseException as raised:
            return Answer(handler.name, FAILED, self._failure(_ordinary(raised)))

    def _refusal(self, name: str, why: str | Exception) -> Answer:
        return Answer(name, REFUSED, self._failure(InvalidInput(why) if isinstance(why, str) else why))

    def _failure(self, error: Exception) -> bytes:
        return self._attempt.parts.values.seal(encode_failure(failure_of(error)))

    async def _answer(self, key: str, answer: Answer) -> None:
        lease = self._attempt.lease
        fact = facts.Answered(change_id=lease.new_id(), epoch=lease.execution.epoch, dedup=key, answer=_encode(answer))
        await lease.tell(fact)

    def let_go(self) -> None:
        """The attempt has ended, and nothing of this is under way."""
        self.queries.clear()
        self.updates.clear()
        del self._attempt


def question_in(event: Event) -> Question:
    return _questions.decode(event.value or b"")


def _unknown(what: str, name: str, known: dict[str, Handler]) -> str:
    names = ", ".join(repr(one) for one in sorted(known))
    return f"its code has no {what} {name!r}; it has {names or 'none'}"


def _ordinary(raised: BaseException) -> Exception:
    if isinstance(raised, Exception):
        return raised
    return RuntimeError(f"an update ended with {type(raised).__name__}: {raised}")
