"""Transactions: steps whose SQL is committed together with the journal's record of them, so exactly once.

    @app.transaction
    def debit(order: Order) -> int:                    # SQLite: def; PostgreSQL: async def
        outlast.connection().execute("UPDATE accounts SET …", (order.account,))

The tables live in the store's own database. In a workflow it is called like a step.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ClassVar, ParamSpec, TypeVar

from outlast.authoring.callables import check_callable, is_async
from outlast.authoring.step import AsyncStep, Step, StepOptions, SyncStep
from outlast.errors import InvalidInput, WrongPlace
from outlast.runtime.attempts.current import attempt_var, connection_var, step_var
from outlast.runtime.operations.performed import Performed
from outlast.runtime.operations.transaction import TransactionCall

P = ParamSpec("P")
R = TypeVar("R")


class _Transaction(Step[P, R]):
    OPERATION: ClassVar = "transaction"

    def kind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Performed:
        return TransactionCall(self._definition, args, kwargs)

    def _awaited(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        _refuse_outside(self.name)
        return super()._awaited(args, kwargs)

    def _blocking(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _refuse_outside(self.name)
        return super()._blocking(args, kwargs)


class AsyncTransaction(_Transaction[P, R], AsyncStep[P, R]):
    """An `async def` transaction: `await debit(order)`."""


class SyncTransaction(_Transaction[P, R], SyncStep[P, R]):
    """A `def` transaction: `debit(order)`; from async code `await debit.aio(order)`."""


def make_transaction(fn: object, options: StepOptions) -> AsyncTransaction[Any, Any] | SyncTransaction[Any, Any]:
    operation = getattr(type(fn), "OPERATION", None)
    if operation is not None:
        raise InvalidInput(f"{fn!r} is a {operation} already; its function is .fn, other options are .options(…)")
    checked = check_callable("transaction", fn)
    return AsyncTransaction(checked, options) if is_async(checked) else SyncTransaction(checked, options)


def connection() -> Any:
    """The connection of the transaction that is running: SQL on the store's own database, committed with the step.

    On SQLite it has `execute(sql, values)` and `executemany(sql, many)`; rows come as tuples. On PostgreSQL it has
    `execute`, `executemany`, `fetch`, `fetchrow` and `fetchval`, to be awaited, with values as `$1`; and `savepoint()`.
    """
    found = connection_var.get()
    if found is None:
        raise WrongPlace("connection() is for functions with @app.transaction, while a workflow calls them")
    return found


def _refuse_outside(name: str) -> None:
    step = step_var.get()
    if step is not None:
        raise WrongPlace(f"transaction {name!r} was called inside step {step!r}: call it from the workflow")
    if attempt_var.get() is None:
        raise WrongPlace(f"transaction {name!r} was called outside of a workflow, whose journal it is committed with")
