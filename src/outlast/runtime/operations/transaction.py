"""A transaction: the user's SQL and the journal's record of it, in one commit of the store that holds both."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable
from typing import Any, ClassVar

from outlast import limits
from outlast.errors import CodecHookFailed, TransactionUnsupported
from outlast.model.execution import Execution
from outlast.runtime.attempts.current import attempt_var, connection_var
from outlast.runtime.attempts.operation import Operation, Outcome, ResultOf, ended_with, failed_with
from outlast.runtime.operations.performed import BackOff
from outlast.runtime.operations.step import StepCall, is_closing, own_error, stood_in
from outlast.runtime.parts import Parts


class TransactionCall(StepCall):
    """One call of a transaction. A step, but for where it runs and how its success is recorded."""

    __slots__ = ()

    OP: ClassVar = "transaction"

    async def perform(self, parts: Parts, execution: Execution, operation: Operation, tries: int) -> Outcome | BackOff:
        if stood_in(parts, self.step) is not self.step:
            return await super().perform(parts, execution, operation, tries)  # a test's stub has no SQL
        refused = self.refusal(parts)
        if refused is not None:
            return failed_with(parts.values, refused)
        attempt = attempt_var.get()
        assert attempt is not None
        context, limit_ms = contextvars.copy_context(), limits.TRANSACTION_MAX_MS
        if self.step.timeout_s is not None:
            limit_ms = min(limit_ms, round(self.step.timeout_s * 1_000))
        while True:
            tries += 1
            done = await attempt.lease.transact(
                operation.key,
                self.OP,
                tries,
                lambda connection: self._call(parts, operation, context, connection),
                limit_ms=limit_ms,
            )
            if isinstance(done, tuple):
                entry, data = done
                value = self.decode(parts.values, data, ResultOf(operation))
                return Outcome(data, value=value, tries=tries, entry=entry)
            if isinstance(done, CodecHookFailed):
                raise done
            ended = await self.failed(parts, execution, operation, own_error(operation, done), tries)
            if ended is not None:
                return ended

    def refusal(self, parts: Parts) -> TransactionUnsupported | None:
        """A store runs functions of one colour, or none, in its commits. A test's stub needs none."""
        name, url, can = self.step.name, parts.holder.terms.url, parts.holder.terms.transactions
        colour = "async def" if self.step.is_async else "def"
        if can == colour or stood_in(parts, self.step) is not self.step:
            return None
        if can is None:
            return TransactionUnsupported(
                f"transaction {name!r}: the store {url} has no tables of yours to commit with its own; "
                "make it a step (@app.step) that is safe to repeat"
            )
        return TransactionUnsupported(
            f"transaction {name!r} is written as {colour}: the store {url} runs transactions written as {can}"
        )

    def _call(
        self, parts: Parts, operation: Operation, context: contextvars.Context, connection: Any
    ) -> bytes | Awaitable[bytes]:
        """`def` in whatever thread the store calls it, `async def` in the step's own."""
        if self.step.is_async:
            return self._awaited_bytes(parts, operation, connection)
        context = context.copy()
        context.run(connection_var.set, connection)
        return context.run(self._bytes, parts, operation)

    def _bytes(self, parts: Parts, operation: Operation) -> bytes:
        result = self.step.fn(*self.args, **self.kwargs)
        return parts.values.settle(result, self.step.result, ResultOf(operation))[0]

    async def _awaited_bytes(self, parts: Parts, operation: Operation, connection: Any) -> bytes:
        token, task = connection_var.set(connection), asyncio.current_task()
        try:
            result = await self.step.fn(*self.args, **self.kwargs)
            if task is not None and task.cancelling():
                await asyncio.sleep(0)  # a cancel that is not raised yet is raised before the commit, not in it
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as raised:  # the store gives back errors only
            if is_closing(raised):
                raise
            raise ended_with(f"step {self.step.name!r}", raised) from raised
        finally:
            connection_var.reset(token)
        return parts.values.settle(result, self.step.result, ResultOf(operation))[0]
