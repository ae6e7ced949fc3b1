"""Every error that a user meets.

    OutlastError
    ├── InvalidInput              what the caller gave is wrong; nothing was written
    │   ├── LimitExceeded         … because it is past a limit of `limits.py`
    │   ├── InvalidDuration
    │   ├── InvalidName           an id, lane, workflow, tag or step name that cannot be used
    │   ├── InvalidArguments      arguments that do not fit a workflow's signature
    │   ├── CodecError            a value that cannot be stored, or read back as its type
    │   │   └── CodecHookFailed   … because the app's own codec failed: it may work later
    │   ├── StatementRefused      SQL that a transaction may not do: Outlast's tables, COMMIT, PRAGMA, …
    │   ├── WrongConnection       a start in a connection of an unknown kind, or to elsewhere, or in no transaction
    │   ├── InvalidFlow           a flow with a cycle, an unknown or repeated name, a join that cannot be satisfied, …
    │   ├── UnknownWorkflow       no such workflow (or version) is registered in this app
    │   ├── DuplicateRegistration the name and version are taken by another function
    │   ├── InvalidConfig         an option or OUTLAST_… variable that cannot be used
    │   └── InvalidToken          not a token of ours, or not any more; it says nothing else
    │       └── TokenExpired      … authentic, and too old
    ├── TransactionUnsupported    a transaction on a store, or in a colour, that has none; or a start inside of one
    ├── WrongPlace                called where it cannot work: a step's workflow, a loop's thread, a closed app
    ├── ExecutionNotFound
    ├── ExecutionFailed           the execution failed with an error that cannot be raised here as itself
    ├── ExecutionCancelled        … was cancelled
    ├── ExecutionExpired          … ran out of time, or crashed too often
    ├── ExecutionSkipped          … never ran: what it depends on did not succeed
    ├── FlowNotFound
    ├── FlowFailed                a member failed, and no other made up for it
    ├── FlowCancelled             the flow was cancelled
    ├── FlowConflict              the id exists with other members
    ├── FlowRefused               a legal call that this flow's state does not allow
    ├── DeferredRejected          what a workflow waited for was rejected from outside
    ├── NonDeterminism            a replay met another operation than the recorded one
    ├── ExecutionConflict         the id exists with other arguments
    ├── ExecutionRefused          a legal call that this execution's state does not allow
    │   └── ExecutionEnded        … because it has ended: nobody will receive what was sent
    ├── UpdateRefused             the workflow's code did not accept an update; nothing was changed
    ├── LeaseLost                 the caller no longer holds the execution
    ├── CopyRefused               one store cannot be copied to the other as they are
    │   ├── CopyBusy              … because workers are alive
    │   ├── CopyConflict          … because the target has something else under the same ids
    │   └── CopyMismatch          it was copied, and what arrived is not what left
    ├── CorruptState              a record breaks an invariant: a bug, or a hand-edited store
    └── StoreError                the store could not do it
        ├── StoreUnavailable      … now; the same call may succeed later
        │   ├── IdHeld            … because a transaction that is still open has started the same id
        │   └── ReplyLost         … or it did and the answer was lost: retry verbatim
        ├── StoreReadOnly
        ├── StoreFull             no room left on the device
        ├── StoreCorrupt          the file is not what it should be
        ├── StoreMoved            … is not where it was opened any more
        ├── StoreClosed
        ├── SchemaMissing         no schema yet: migrate
        ├── SchemaOutdated        an older schema than this code: migrate
        └── SchemaTooNew          a newer schema than this code knows

Each message says what was wrong and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast


class OutlastError(Exception):
    """The base of all errors of Outlast."""


class InvalidInput(OutlastError, ValueError):
    """What the caller gave cannot be accepted; nothing was written."""


class LimitExceeded(InvalidInput):
    """Something is longer, larger or more than `limits.py` allows."""

    def __init__(self, what: str, *, actual: int, limit: int, unit: str = "") -> None:
        self.what, self.actual, self.limit, self.unit = what, actual, limit, unit
        suffix = f" {unit}" if unit else ""
        super().__init__(f"{what}: {actual:,}{suffix} is over the limit of {limit:,}{suffix}")


class InvalidDuration(InvalidInput):
    """Not a duration: write "200ms", "1h30m", a timedelta, or seconds."""


class InvalidName(InvalidInput):
    """A name or id that cannot be used, and why."""

    def __init__(self, what: str, name: object, why: str) -> None:
        self.what, self.name, self.why = what, name, why
        super().__init__(f"{what} {name!r}: {why}")


class InvalidConfig(InvalidInput):
    """An option that cannot be honoured."""


class InvalidArguments(InvalidInput, TypeError):
    """The arguments do not fit the workflow's signature."""


class CodecError(InvalidInput):
    """A value that cannot be stored, or cannot be read back as its type."""


class CodecHookFailed(CodecError):
    """The app's codec (`App(codec=…)`) raised: its key service may be away. The same bytes may be read later."""


class StatementRefused(InvalidInput):
    """SQL in a transaction that it may not do."""


class WrongConnection(InvalidInput):
    """A connection that nothing can be started in, and why."""


class InvalidFlow(InvalidInput):
    """A flow that cannot be accepted, and why; nothing was written."""


class UnknownWorkflow(InvalidInput):
    """No workflow of that name and version is registered in this app."""


class DuplicateRegistration(InvalidInput):
    """The name and version are taken by another function."""


class TransactionUnsupported(OutlastError):
    """A transaction (`@app.transaction`, `start_in`) where the store has none; the message says what it has."""


class InvalidToken(InvalidInput):
    """Not a token of ours, or not any more. Nothing else is said: a wrong token learns nothing."""

    def __init__(self, message: str = "this token is not valid") -> None:
        super().__init__(message)


class TokenExpired(InvalidToken):
    """It was signed by us, and is too old."""

    def __init__(self, message: str = "this token has expired") -> None:
        super().__init__(message)


class WrongPlace(OutlastError, RuntimeError):
    """Called where it cannot work; the message says where it can."""


class ExecutionFailed(OutlastError):
    """The execution failed; `traceback` is the remote one."""

    def __init__(self, execution_id: str, what: str, error_type: str, message: str, traceback: str) -> None:
        self.execution_id, self.error_type, self.message, self.traceback = execution_id, error_type, message, traceback
        name = error_type.partition(":")[2] or error_type
        super().__init__(f"{what} of {execution_id!r} failed with {name}: {message}\n\n{traceback}".rstrip())


class ExecutionCancelled(OutlastError):
    """The execution was cancelled."""


class ExecutionExpired(OutlastError):
    """The execution ran out of time, or its process died too often."""


class ExecutionSkipped(OutlastError):
    """The execution never ran: its dependencies can no longer be satisfied."""


class FlowNotFound(OutlastError, LookupError):
    """No flow with that id in that namespace (never started, or purged)."""

    def __init__(self, namespace: str, flow_id: str) -> None:
        self.namespace, self.flow_id = namespace, flow_id
        super().__init__(f"no flow {flow_id!r} in namespace {namespace!r}: never started, or purged")


class FlowFailed(OutlastError):
    """The flow ended without success; `members` says how those ended that did not succeed, by their names."""

    def __init__(self, flow_id: str, members: dict[str, str]) -> None:
        self.flow_id, self.members = flow_id, members
        shown = ", ".join(f"{name} ({how})" for name, how in list(members.items())[:10])
        more = f" and {len(members) - 10:,} more" if len(members) > 10 else ""
        super().__init__(f"flow {flow_id!r} failed: {shown}{more}")


class FlowCancelled(OutlastError):
    """The flow was cancelled; `reason` is what was given then."""

    def __init__(self, flow_id: str, reason: str) -> None:
        self.flow_id, self.reason = flow_id, reason
        super().__init__(f"flow {flow_id!r} was cancelled" + (f": {reason}" if reason else ""))


class FlowConflict(OutlastError):
    """The id is taken by a flow with other members, or by an execution."""

    def __init__(self, flow_id: str, why: str) -> None:
        self.flow_id = flow_id
        super().__init__(f"flow {flow_id!r} {why}: take another id")


class FlowRefused(OutlastError):
    """The flow's state does not allow the call; `code` is the machine's word for why."""

    def __init__(self, flow_id: str, code: str, message: str) -> None:
        self.flow_id, self.code = flow_id, code
        super().__init__(f"flow {flow_id!r} {message}")


class DeferredRejected(OutlastError):
    """What the workflow waited for was rejected; the message says why."""


class NonDeterminism(OutlastError):
    """The replay met another operation than the recorded one: the code changed under a running execution."""

    def __init__(self, execution_id: str, *, expected: str, actual: str, line: str) -> None:
        self.execution_id, self.expected, self.actual, self.line = execution_id, expected, actual, line
        super().__init__(
            f"execution {execution_id!r} recorded {expected}, but the code now does {actual} ({line}); "
            "register the changed code as a new version"
        )


class ExecutionNotFound(OutlastError, LookupError):
    """No execution with that id in that namespace (never started, or purged)."""

    def __init__(self, namespace: str, execution_id: str) -> None:
        self.namespace, self.execution_id = namespace, execution_id
        super().__init__(f"no execution {execution_id!r} in namespace {namespace!r}: never started, or purged")


class ExecutionConflict(OutlastError):
    """The id is taken by an execution with other arguments, or the key of an update by another one. `instead` says what
    to do, as whoever reads it would write it."""

    def __init__(
        self,
        execution_id: str,
        *,
        existing: str,
        given: str,
        said: str = "exists as {existing} and was started again as {given}",
        instead: str = 'use another id, or if_exists="restart" once it has ended',
    ) -> None:
        self.execution_id, self.existing, self.given = execution_id, existing, given
        super().__init__(f"execution {execution_id!r} {said.format(existing=existing, given=given)}; {instead}")


class ExecutionRefused(OutlastError):
    """The execution exists, but its state does not allow the operation."""

    def __init__(self, execution_id: str, code: str, message: str) -> None:
        self.execution_id, self.code = execution_id, code
        super().__init__(f"execution {execution_id!r}: {message}")


class ExecutionEnded(ExecutionRefused):
    """The execution has ended, so nobody receives what was said to it. `status` says how it ended, `cause` why."""

    def __init__(self, execution_id: str, message: str, *, status: str, cause: str | None) -> None:
        self.status, self.cause = status, cause
        why = f" ({cause})" if cause is not None and cause != status else ""
        super().__init__(execution_id, "terminal", f"{message}{why}")


class UpdateRefused(OutlastError):
    """The workflow's code did not accept an update, and is as it was. `__cause__` is what its validator raised."""

    def __init__(self, execution_id: str, name: str, message: str) -> None:
        self.execution_id, self.name = execution_id, name
        super().__init__(f"execution {execution_id!r} refused update {name!r}: {message}")


class LeaseLost(OutlastError):
    """The worker's hold on the execution ended: its writes are refused."""

    def __init__(self, execution_id: str, *, held: int, current: int | None) -> None:
        self.execution_id, self.held, self.current = execution_id, held, current
        now_is = "it is gone" if current is None else f"it is at epoch {current}"
        super().__init__(f"execution {execution_id!r}: held epoch {held}, but {now_is}")


class CopyRefused(OutlastError):
    """A store that cannot be copied as it is, or where it is to go."""


class CopyBusy(CopyRefused):
    """Workers are alive on a store that is copied from or to."""

    def __init__(self, url: str, what: str, workers: list[str]) -> None:
        self.url, self.workers = url, workers
        shown = ", ".join(workers[:5]) + (", …" if len(workers) > 5 else "")
        super().__init__(
            f"{url} is to be {what}, and {len(workers)} of its workers are alive ({shown}): stop them, and wait until "
            "their sessions end; what runs meanwhile would run in both stores"
        )


class CopyConflict(CopyRefused):
    """The target has other records under the same names."""

    def __init__(self, url: str, number: int, names: list[str]) -> None:
        self.url, self.number, self.names = url, number, names
        shown = ", ".join(names) + (", …" if number > len(names) else "")
        super().__init__(
            f"{url} has other records under {number} names that are to be copied ({shown}): copy to another store, or "
            "into another prefix or database"
        )


class CopyMismatch(CopyRefused):
    """After the copy the two stores differ: the source changed meanwhile, or a store lost something."""

    def __init__(self, source: str, target: str, number: int, names: list[str]) -> None:
        self.source, self.target, self.number, self.names = source, target, number, names
        shown = ", ".join(names) + (", …" if number > len(names) else "")
        super().__init__(
            f"{number} records of {source} are missing or different in {target} ({shown}): did something write to "
            "either meanwhile? Do not use this copy"
        )


class CorruptState(OutlastError):
    """A record breaks an invariant: a bug in Outlast, or a store edited by hand."""


class StoreError(OutlastError):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError):
    """The store does not answer now; the same call may succeed later."""


class IdHeld(StoreUnavailable):
    """A transaction that is still open (`start_in`, `outlast.start`) has started the same id: what becomes of it is not
    known yet."""

    def __init__(self, execution_ids: Sequence[str]) -> None:
        self.execution_ids = tuple(execution_ids)
        shown = ", ".join(map(repr, execution_ids[:5])) + (", …" if len(execution_ids) > 5 else "")
        what = f"execution {shown}" if len(execution_ids) == 1 else f"one of the executions {shown}"
        super().__init__(
            f"{what} is being started by another transaction, which holds the id until it ends: commit it or roll it "
            "back, then try again"
        )


class ReplyLost(StoreUnavailable):
    """The call was sent and its answer was lost: retry it verbatim to learn the verdict."""


class StoreReadOnly(StoreError):
    """The store can be read but not written."""


class StoreFull(StoreError):
    """No room left where the store keeps its data."""


class StoreCorrupt(StoreError):
    """The data is not what the store wrote."""


class StoreMoved(StoreError):
    """The store's file was moved, deleted or replaced while this process had it open."""


class StoreClosed(StoreError):
    """The store was closed."""


class SchemaMissing(StoreError):
    """There is no schema yet: call `migrate()`."""


class SchemaOutdated(StoreError):
    """The schema is older than this code: call `migrate()`."""


class SchemaTooNew(StoreError):
    """The schema is newer than this code knows: upgrade Outlast."""

    def __init__(self, found: int, known: int) -> None:
        self.found, self.known = found, known
        super().__init__(f"the store has schema {found}, this version of Outlast knows up to {known}: upgrade it")


FATAL = (CodecError, LimitExceeded, StatementRefused, TransactionUnsupported, WrongPlace)
"""Errors of ours in user code that trying again does not mend."""


def is_fatal(error: BaseException, kinds: tuple[type[Exception], ...]) -> bool:
    """Whether trying again is pointless: it is one of `kinds` or of `FATAL`, or a group that has one."""
    if isinstance(error, (*kinds, *FATAL)):
        return True
    if not isinstance(error, BaseExceptionGroup):
        return False
    return any(is_fatal(member, kinds) for member in cast("BaseExceptionGroup[BaseException]", error).exceptions)
