"""A holder port at the other end of a wire: every argument and every answer crosses it as bytes.

What the port takes and gives is read from its annotations, as a server would read it. Only the function of a
transaction does not cross; what it records does.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from outlast import errors
from outlast.codec.failures import Failure
from outlast.machine import facts
from outlast.model.execution import Execution
from outlast.runtime import holder as port
from outlast.runtime.local_holder import LocalHolder


def carried(value: Any, kind: Any) -> Any:
    """The value as it is read at the other end."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)


def carried_error(error: Exception) -> Exception:
    """An error as it is raised again at the other end, from its name and what it says of itself."""
    if not isinstance(error, errors.OutlastError):
        return error
    name, args, said = carried((type(error).__name__, error.args, vars(error)), tuple[str, list[Any], dict[str, Any]])
    again = getattr(errors, name).__new__(getattr(errors, name), *args)
    again.__dict__.update(said)
    return again


def answer_type(question: type[port.HolderQuestion[Any]]) -> Any:
    """What the question is declared to be answered with."""
    [base] = types.get_original_bases(question) if hasattr(types, "get_original_bases") else question.__orig_bases__  # type: ignore[attr-defined]
    [kind] = typing.get_args(base)
    return kind


QUESTIONS = [kind for kind in vars(port).values() if inspect.isclass(kind) and port.HolderQuestion in kind.__bases__]
FACT = facts.AnyFact


class _Verdict(msgspec.Struct):
    applied: bool
    again: bool
    inbox: int | None


class _Recorder:
    def __init__(self, recorder: port.Recorder) -> None:
        self._recorder = recorder

    def answered(self, verdict: port.Submitted, at: int) -> None:
        plain = _Verdict(verdict.applied, verdict.again, verdict.inbox)
        self._recorder.answered(carried(plain, _Verdict), carried(at, int))

    def failed(self, error: Exception) -> None:
        self._recorder.failed(carried_error(error))


class CarriedHolder:
    """What attempts are given in place of the local holder."""

    def __init__(self, local: LocalHolder) -> None:
        self._local = local
        self.terms = carried(local.terms, port.Terms)
        self.crossed: set[str] = set()

    @property
    def now(self) -> int:
        return self._local.now

    async def _call(self, method: str | Callable[..., Any], answer: Any, *args: tuple[Any, Any]) -> Any:
        named = isinstance(method, str) and method != "ask"
        self.crossed.add(str(method) if named else type(args[-1][0]).__name__)
        called = getattr(self._local, method) if isinstance(method, str) else method
        try:
            given = await called(*(carried(value, kind) for value, kind in args))
        except Exception as error:
            raise carried_error(error) from None
        return carried(given, answer)

    async def time(self) -> int:
        return await self._local.time()

    async def claim(self, request: port.ClaimRequest) -> port.Claimed:
        return await self._call("claim", port.Claimed, (request, port.ClaimRequest))

    async def renew(self, worker: str, lease_ttl_ms: int) -> port.Renewed:
        return await self._call("renew", port.Renewed, (worker, str), (lease_ttl_ms, int))

    async def held(self, worker: str, partitions: frozenset[int]) -> port.Leases:
        return await self._call("held", port.Leases, (worker, str), (partitions, frozenset[int]))

    async def ask(self, seen: Execution, question: port.HolderQuestion[port.T]) -> port.T:
        kind = type(question)
        return await self._call("ask", answer_type(kind), (seen, Execution), (question, kind))

    async def tell(self, seen: Execution, fact: Any, *, failure: Failure | None = None) -> port.Reply:
        tell = partial(self._local.tell, failure=carried(failure, Failure | None))
        return await self._call(tell, port.Reply, (seen, Execution), (fact, FACT))

    def submit(self, seen: Execution, fact: facts.StepRecorded, recorder: port.Recorder) -> bool:
        self.crossed.add("submit")
        return self._local.submit(carried(seen, Execution), carried(fact, facts.StepRecorded), _Recorder(recorder))

    async def hand_on(self, seen: Execution, fact: facts.Complete) -> bool:
        return await self._call("hand_on", bool, (seen, Execution), (fact, facts.Complete))

    async def grow(self, seen: Execution, members: port.NewMembers) -> bool:
        return await self._call("grow", bool, (seen, Execution), (members, port.NewMembers))

    async def append(self, seen: Execution, change_id: str, frames: list[bytes]) -> int:
        return await self._call("append", int, (seen, Execution), (change_id, str), (frames, list[bytes]))

    async def transact(
        self, seen: Execution, check: facts.StepRecorded, body: port.Body, *, limit_ms: int
    ) -> port.TransactionReply:
        def across(connection: Any) -> facts.StepRecorded | Awaitable[facts.StepRecorded]:
            fact = body(connection)
            return carried(fact, facts.StepRecorded) if isinstance(fact, facts.StepRecorded) else later(fact)

        async def later(fact: Awaitable[facts.StepRecorded]) -> facts.StepRecorded:
            return carried(await fact, facts.StepRecorded)

        check = carried(check, facts.StepRecorded)
        reply = await self._local.transact(carried(seen, Execution), check, across, limit_ms=limit_ms)
        return reply if reply.raised is not None else carried(reply, _Reply)


class _Reply(port.TransactionReply, frozen=True, kw_only=True):
    raised: None = None
