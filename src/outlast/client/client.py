"""What a caller can do with a store: all of it goes through the engine, so a client and a worker agree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import structs

from outlast import limits
from outlast.client import again, staged
from outlast.client.answers import Answers
from outlast.client.cutting import cut, run_again
from outlast.client.ending_badly import error_of
from outlast.client.finding import Finding
from outlast.client.flows import FlowClient
from outlast.client.handle import Handle
from outlast.client.info import (
    AttemptInfo,
    CompletionInfo,
    FrameInfo,
    Info,
    JournalInfo,
    ProgressInfo,
    completion_of,
    moment,
    moment_or_none,
)
from outlast.client.saying import cancelled, event_sent, interrupted, rejected, resolved, updated
from outlast.client.stored_failures import FAILED, completed_failure_keys, error_in, stored_failures
from outlast.client.waiters import DISTANCE, Waiters
from outlast.codec.failures import decode_failure
from outlast.codec.values import Values
from outlast.errors import (
    ExecutionConflict,
    ExecutionEnded,
    ExecutionNotFound,
    ExecutionRefused,
    InvalidInput,
    LimitExceeded,
    TransactionUnsupported,
)
from outlast.machine import facts
from outlast.machine.changes import Changes, Code, Matches, Refusal
from outlast.machine.decide import decide
from outlast.model.attempt import Attempt, attempt_key
from outlast.model.deferred import Deferred, Resolution, deferred_key
from outlast.model.duration import Duration, to_ms
from outlast.model.execution import Execution, execution_key
from outlast.model.journal import NOTHING, JournalEntry
from outlast.model.names import check_name
from outlast.model.operation import PLAIN
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import Record, settled
from outlast.model.status import Reason, Status
from outlast.runtime import fast_path
from outlast.runtime.attempts.inquiry import Inquiries
from outlast.runtime.attempts.stream import envelope_of
from outlast.runtime.engine import Engine, Told
from outlast.runtime.flows.purging import purge_ended_flows
from outlast.runtime.journal_reader import begun_anew, whole_journal
from outlast.runtime.timing import Limit
from outlast.store.port import Filter, Joined, Joining, Query
from outlast.tokens import Claims, Tokens

if TYPE_CHECKING:
    from outlast.authoring.host import Host
    from outlast.authoring.workflow import Bound, Workflow

R = TypeVar("R")
_SUCCEEDED = Status.SUCCEEDED

FRAMES_POLL_S = (0.02, 0.5)
"""Who tails a stream looks again so soon after a frame, and at least so often when nothing comes."""
BEGUN_ANEW = "was begun anew since the token was made"
IN_A_TRANSACTION = 'use another id, or .start(…) with if_exists="restart" after the commit, once it has ended'
SHOWN_MAX_CHARS = 300
"""So much of arguments is shown in an error."""


class Client:
    def __init__(
        self,
        engine: Engine,
        values: Values,
        waiters: Waiters,
        *,
        namespace: str,
        owner: Host,
        started: Callable[[], None],
        inquiries: Inquiries,
        flows: FlowClient,
    ) -> None:
        self.namespace = namespace
        self.flows = flows
        self._engine = engine
        self._values = values
        self.waiters = waiters
        self._finding = Finding(engine.store, waiters, values)
        self._owner = owner
        self._started = started
        self._inquiries = inquiries

    # ---- starting -------------------------------------------------------------------------------------------------

    async def start(self, workflow: Workflow[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Accepted once this returns, with its id."""
        execution_id, new = await self.begin(workflow, args, kwargs)
        if new:
            self.waiters.started(self.namespace, execution_id)
        return execution_id

    async def begin(
        self, workflow: Workflow[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, bool]:
        """Its id, and whether it is new. Where there is room in this process, it begins here at once."""
        self._check_own(workflow)
        fact = workflow.fact(args, kwargs, namespace=self.namespace)
        told = await fast_path.start(self._engine, fact)
        if not told.applied:
            await self._refuse_other(fact, told)
        return fact.id, told.applied

    async def start_in(self, connection: Any, one: Bound[R]) -> Handle[R]:
        """Inside of the caller's transaction: accepted when that commits."""
        store, fact, changes = self._joining(one)
        self._settle_joined(fact, await store.join(connection, changes))
        return Handle(self._owner, fact.id, one.workflow.arguments.result)

    def start_in_blocking(self, connection: Any, one: Bound[R]) -> Handle[R]:
        """In the caller's thread, to which the connection belongs."""
        store, fact, changes = self._joining(one)
        self._settle_joined(fact, store.join_blocking(connection, changes))
        return Handle(self._owner, fact.id, one.workflow.arguments.result)

    def _joining(self, one: Bound[R]) -> tuple[Joining, facts.Start, Changes]:
        workflow, store = one.workflow, self._engine.store
        self._check_own(workflow)
        workflow.refuse_options_outside()
        if not store.capabilities.joins or not isinstance(store, Joining):
            raise TransactionUnsupported(
                f"nothing can be started inside of another's transaction on {store.url}: that takes a store on "
                "PostgreSQL, with your tables in its database; use .start(…) after the commit"
            )
        fact = workflow.fact(one.args, one.kwargs, namespace=self.namespace)
        answer = decide(self._engine.view(fact.namespace, fact.id, None), fact, self._engine.group.now)
        assert isinstance(answer, Changes)
        return store, fact, answer

    def _settle_joined(self, fact: facts.Start, joined: Joined) -> None:
        existing = joined.existing
        if existing is None:
            return
        refusal = decide(self._engine.view(fact.namespace, fact.id, existing), fact, self._engine.group.now)
        assert isinstance(refusal, Refusal), "options that change what exists are refused before"
        if refusal.code is not Code.ALREADY:
            raise self._both(fact, existing, joined.input or fact.input, instead=IN_A_TRANSACTION)

    async def start_many(self, bound: Sequence[Bound[R]]) -> list[Handle[R]]:
        """All checked before any is started; those with an id that exists are the same execution."""
        starts: list[facts.Start] = []
        for one in bound:
            self._check_own(one.workflow)
            starts.append(one.workflow.fact(one.args, one.kwargs, namespace=self.namespace))
        told = await self._engine.begin_all(starts)
        self._started()
        self.waiters.started(self.namespace, *[fact.id for fact, one in zip(starts, told, strict=True) if one.applied])
        for fact, one in zip(starts, told, strict=True):
            if not one.applied:
                await self._refuse_other(fact, one)
        owner = self._owner
        return [Handle(owner, fact.id, one.workflow.arguments.result) for one, fact in zip(bound, starts, strict=True)]

    def _check_own(self, workflow: Workflow[Any, Any]) -> None:
        if workflow.app is not self._owner:
            raise InvalidInput(f"workflow {workflow.name!r} belongs to another app: start it with that app")
        workflow.refuse_child_options()

    async def _refuse_other(self, fact: facts.Start, told: Told) -> None:
        """What was not started is fine if it is the same."""
        if told.refusal is not None and told.refusal.code is Code.TERMINAL:
            raise _ended(fact.id, told)
        if told.refusal is not None and told.refusal.code is not Code.ALREADY:
            raise await self._conflict(fact, told)

    async def _conflict(self, fact: facts.Start, told: Told) -> ExecutionConflict:
        """Shows both: what is there, and what was given."""
        existing = told.before
        assert existing is not None
        key = payload_key(existing.namespace, existing.id, existing.journal_generation, Role.INPUT)
        [stored] = await self._engine.store.load([key])
        return self._both(fact, existing, stored.value if isinstance(stored, Payload) else None)

    def _both(self, fact: facts.Start, existing: Execution, stored: bytes | None, **said: str) -> ExecutionConflict:
        was = fact.input if existing.input_digest == fact.input_digest else stored
        there = f"{existing.workflow} {self._begun_with(existing, was)} ({existing.status})"
        return ExecutionConflict(fact.id, existing=there, given=f"{fact.workflow} {self._shown(fact.input)}", **said)

    def _begun_with(self, existing: Execution, stored: bytes | None) -> str:
        """The arguments of its start, if these are they: `continue_as_new` has put others in their place."""
        if stored is None:
            return "(purged since)"
        plain = self._values.unseal(stored)
        digest = self._values.digest(msgspec.json.decode(plain), plain)
        if existing.journal_generation > 1 and digest != existing.input_digest:
            return "with other arguments, forgotten since it continued as new"
        return self._shown(stored)

    def _shown(self, data: bytes) -> str:
        text = self._values.unseal(data).decode(errors="replace")
        return text if len(text) <= SHOWN_MAX_CHARS else f"{text[:SHOWN_MAX_CHARS]}…"

    # ---- waiting --------------------------------------------------------------------------------------------------

    def limit(self, seconds: float | None) -> Limit:
        return self._engine.timing.limit(seconds)

    async def result(self, execution_id: str, annotation: Any, *, new: bool = False) -> Any:
        """What it returned, or raises what it raised. `new`: it was started just now, so nobody need look first."""
        waiters, end = self.waiters, None
        if new:
            name = (self.namespace, execution_id)
            heard = waiters.wait(name)
            try:
                end = await heard
            finally:
                waiters.leave(name, heard)
        if end is None:
            end = await waiters.ended(self.namespace, execution_id)
        if end is None:
            raise ExecutionNotFound(self.namespace, execution_id)
        if end.status is _SUCCEEDED:
            assert end.value is not None
            return self._values.decode(end.value, annotation, f"result of {execution_id!r}")
        raise await error_of(end, self._engine.store, self._values, self.namespace, execution_id)

    # ---- looking --------------------------------------------------------------------------------------------------

    async def has_ended(self, execution_id: str) -> bool:
        return (await self._look(execution_id)).status.terminal

    async def info(self, execution_id: str) -> Info:
        e = await self._look(execution_id)
        keys = [
            payload_key(e.namespace, e.id, e.generation, Role.PROGRESS),
            payload_key(e.namespace, e.id, e.journal_generation, Role.INPUT),
        ]
        if e.failures or e.status in FAILED:
            last_ended = e.attempt if e.status.terminal else e.attempt - 1
            keys.append(payload_key(e.namespace, e.id, e.generation, Role.FAILURE))
            keys.append(attempt_key(e.namespace, e.id, e.generation, last_ended))
        progress, given, *more = await self.waiters.patiently(lambda: self._engine.store.load(keys))
        failed, last = more or (None, None)
        [info] = await self._finding.infos([e])
        if isinstance(progress, Payload):
            info = replace(info, progress=self._values.decode(progress.value, ProgressInfo, "progress"))
        failure = failed.value if isinstance(failed, Payload) else last.failure if isinstance(last, Attempt) else None
        if failure is not None and (e.status in FAILED or not e.status.terminal):
            info = replace(info, error=error_in(self._values, failure))
        data = given.value if isinstance(given, Payload) else None
        what = f"input of {execution_id!r}"
        return info.with_input(lambda: None if data is None else self._values.decode(data, Any, what))

    async def frames(self, execution_id: str, after: int) -> AsyncIterator[FrameInfo]:
        """Until the execution has ended and all its frames are read. Whoever emits them may die and be replaced."""
        store, pause_s = self._engine.store, FRAMES_POLL_S[0]
        while True:
            execution = await self._look(execution_id)  # first: what is emitted before the end is there at the end
            page = await self.waiters.patiently(partial(store.frames, self.namespace, execution_id, after=after))
            for frame in page:
                envelope = envelope_of(self._values.unseal(frame.value, "frame"))
                after = frame.seq
                yield FrameInfo(
                    offset=frame.seq,
                    value=self._values.read(envelope.value, Any, "frame"),
                    at=moment(frame.at),
                    step=envelope.step or None,
                    epoch=envelope.epoch,
                )
            if page:
                pause_s = FRAMES_POLL_S[0]
            elif execution.status.terminal:
                return
            else:
                await self._pause(execution_id, pause_s, still=pause_s > FRAMES_POLL_S[0])
                pause_s = min(pause_s * 2, FRAMES_POLL_S[1])

    async def _pause(self, execution_id: str, pause_s: float, *, still: bool) -> None:
        """Between two looks at what may still come."""
        in_vain: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pause = asyncio.ensure_future(self._engine.timing.beat(pause_s))
        try:
            with self.waiters.beside((self.namespace, execution_id), in_vain, still=still):
                await asyncio.wait((pause, in_vain), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
        if in_vain.done():
            in_vain.result()

    async def journal(self, execution_id: str) -> list[JournalInfo]:
        """The recorded operations, in the order in which they were recorded."""
        _, entries = await whole_journal(self._engine.store, await self._look(execution_id))
        return [
            JournalInfo(
                scope=entry.scope,
                name=entry.name,
                occurrence=entry.occurrence,
                op=entry.op,
                outcome=entry.outcome,
                tries=entry.tries,
                epoch=entry.epoch,
                recorded_at=moment(settled(entry.recorded_at)),
                value=entry.value if _is_plain(entry) else self._values.unseal(entry.value or b""),
            )
            for entry in entries
        ]

    async def attempts(self, execution_id: str) -> list[AttemptInfo]:
        await self._look(execution_id)
        records = await self._all(Attempt.KIND, (self.namespace, execution_id))
        return [
            AttemptInfo(
                number=attempt.number,
                generation=attempt.generation,
                epoch=attempt.epoch,
                worker=attempt.worker,
                outcome=attempt.outcome,
                started_at=moment(settled(attempt.started_at)),
                ended_at=moment_or_none(settled(attempt.ended_at)),
                error=error_in(self._values, attempt.failure),
            )
            for attempt in records
            if isinstance(attempt, Attempt)
        ]

    async def find(self, query: Query) -> list[Info]:
        return await self._finding.find(query)

    async def count(self, query: Query) -> int:
        return await self._finding.count(query)

    async def completions(
        self, *, after: str | None, filter: Filter, tags: Mapping[str, str]
    ) -> AsyncIterator[CompletionInfo]:
        """Every end, in commit order, for ever; go on from a `cursor` after a restart. All of `tags` must fit."""
        cursor = after
        timing, store = self._engine.timing, self._engine.store
        while True:
            rings, began_s = self.waiters.rings, timing.time_s()
            feed = await self.waiters.patiently(partial(store.completions, after=cursor, filter=filter))
            look_at_s = timing.time_s() + (timing.time_s() - began_s) * DISTANCE
            keys = completed_failure_keys(feed.completions)
            failures = await stored_failures(lambda some: self.waiters.patiently(lambda: store.load(some)), keys)
            for number, completion in enumerate(feed.completions):
                if tags.items() <= completion.tag_map.items():
                    place = None if feed.cursors is None else feed.cursors[number]
                    error = error_in(self._values, failures.get(completion.change_id))
                    yield completion_of(completion, place, error)
            if cursor == feed.cursor:
                await self.waiters.rung(rings)
                # As in `Waiters`: a busy store rings all the time, mostly for others.
                await timing.beat(max(0.0, look_at_s - timing.time_s()))
            cursor = feed.cursor

    async def query(self, execution_id: str, name: str, value: Any, annotation: Any) -> Any:
        """From the code as it stands after all that is recorded; nothing is written."""
        data = self._values.encode(value, f"query {check_name('query', name)!r}")
        self._values.refuse_unreadable(annotation, f"answer to query {name!r}")
        answer = await self._inquiries.ask(await self._look(execution_id), name, data)
        return self._values.decode(answer, annotation, f"answer to query {name!r}")

    # ---- telling --------------------------------------------------------------------------------------------------

    async def cancel(self, execution_id: str, reason: str) -> None:
        await self._tell(execution_id, cancelled(reason)(self._new_id()))

    async def hold(self, execution_id: str) -> None:
        await self._tell(execution_id, facts.Hold(change_id=self._new_id()))

    async def release(self, execution_id: str) -> None:
        await self._tell(execution_id, facts.Release(change_id=self._new_id()))

    async def send(self, execution_id: str, name: str, value: Any, key: str | None) -> None:
        """An event with a key that was sent before is the same event."""
        await self._tell(execution_id, event_sent(self._values, name, value, key)(self._new_id()))

    async def update(self, execution_id: str, name: str, value: Any, key: str | None, annotation: Any) -> Any:
        """Its answer, once the workflow's code has accepted it; `UpdateRefused` if it did not."""
        self._values.refuse_unreadable(annotation, f"answer to update {name!r}")
        fact = updated(self._values, name, value, key)(self._new_id())
        answers = Answers(self._engine, self._values, self.waiters, self.namespace, execution_id)
        if key is None or not await answers.is_known(key):
            await self._tell(execution_id, fact)
        return await answers.to(fact.dedup or fact.change_id, name, annotation)

    async def resolve(self, execution_id: str, name: str, value: Any) -> None:
        await self._resolve(execution_id, resolved(self._values, name, value)(self._new_id()))

    async def reject(self, execution_id: str, name: str, why: str | Exception) -> None:
        await self._resolve(execution_id, rejected(self._values, name, why)(self._new_id()))

    async def resolve_token(self, tokens: Tokens, token: str, value: Any) -> None:
        claims = await self._authenticated(tokens, token)
        await self._resolve_claimed(claims, resolved(self._values, claims.name, value)(self._new_id()))

    async def reject_token(self, tokens: Tokens, token: str, why: str | Exception) -> None:
        claims = await self._authenticated(tokens, token)
        await self._resolve_claimed(claims, rejected(self._values, claims.name, why)(self._new_id()))

    async def _resolve_claimed(self, claims: Claims, fact: facts.DeferredResolved) -> None:
        await self._resolve(claims.execution, fact, namespace=claims.namespace, generation=claims.generation)

    async def _authenticated(self, tokens: Tokens, token: str) -> Claims:
        """Before any state is looked at, but for the store's clock."""
        return tokens.authenticate(token, now=await self._engine.store.now())

    async def interrupt(self, execution_id: str) -> None:
        await self._resolve(execution_id, interrupted(self._values)(self._new_id()))

    async def _resolve(
        self,
        execution_id: str,
        fact: facts.DeferredResolved,
        *,
        namespace: str | None = None,
        generation: int | None = None,
    ) -> None:
        """The first resolution stands. The same again is accepted, also when the execution has ended with it."""
        name, resolution = fact.name, fact.resolution
        namespace = namespace or self.namespace
        same: tuple[Matches, ...] = ()
        found = await staged.seen(self._engine, namespace, execution_id)
        if generation is not None:
            found = found or await self._engine.look(namespace, execution_id)
            if found is not None and found.journal_generation != generation:
                raise ExecutionRefused(execution_id, Code.CONFLICT, BEGUN_ANEW)
            # It may begin anew before the word arrives.
            same = (Matches(execution_key(namespace, execution_id), {"journal_generation": generation}),)
        told = await self._engine.tell(namespace, execution_id, fact, seen=found, only_if=same)
        if told.verdict is not None and told.verdict.refused_by in same:
            raise ExecutionRefused(execution_id, Code.CONFLICT, BEGUN_ANEW)
        stands = told.instead
        if told.refusal is not None and told.refusal.code is Code.TERMINAL and told.before is not None:
            before = told.before
            key = deferred_key(before.namespace, before.id, before.journal_generation, name)
            [stands] = await self._engine.store.load([key])
        if not isinstance(stands, Deferred):
            self._told(execution_id, told)
        elif stands.resolution is not resolution or self._read(stands, resolution) != self._read(fact, resolution):
            raise ExecutionRefused(
                execution_id, Code.CONFLICT, f"deferred {name!r} was {stands.resolution} before, with another value"
            )

    def _read(self, resolved: Deferred | facts.DeferredResolved, resolution: Resolution) -> object:
        """What two resolutions must have in common to be the same."""
        data = self._values.unseal(resolved.value or b"null")
        if resolution is Resolution.RESOLVED:
            return data
        failure = decode_failure(data)
        return (failure.type, failure.message)

    async def retry(self, execution_id: str, from_step: str | None = None) -> None:
        """Open it again: the failure that ended it, and what a cancel cut short, run again. The rest replays.

        What waits for its version is tried again as it is: the code that runs now may fit. `from_step` runs that step
        again, and all that was recorded after it.
        """
        if from_step is not None:
            await self._retry_from(execution_id, from_step)
            return
        self.waiters.touched(self.namespace, execution_id)
        while True:
            execution = await self._look(execution_id)
            if execution.reason == Reason.VERSION:
                fact: facts.AnyFact = facts.Wake(change_id=self._new_id(), cause=Reason.VERSION)
            else:
                fact = await again.retry_of(self._engine, self._values, execution)
            told = await self._engine.tell(self.namespace, execution_id, fact)
            if told.refusal is None or told.refusal.code is not Code.CONFLICT:
                break  # else somebody else has retried it, and it has ended anew
        self._told(execution_id, told)

    async def _retry_from(self, execution_id: str, from_step: str) -> None:
        while True:
            execution, journal = await whole_journal(self._engine.store, await self._look(execution_id))
            if execution.status is Status.SUCCEEDED:
                raise ExecutionRefused(execution.id, Code.TERMINAL, "has succeeded: fork it from that step instead")
            dropped = run_again(execution.id, journal, from_step)
            most = limits.FORK_MAX_ENTRIES
            if len(dropped) > most:
                raise LimitExceeded("retried journal", actual=len(dropped), limit=most, unit="entries")
            supersedes = tuple((entry.scope, entry.name, entry.occurrence) for entry in dropped)
            fact = facts.Retry(change_id=self._new_id(), supersedes=supersedes, seen_epoch=execution.epoch)
            told = await self._engine.tell(self.namespace, execution_id, fact)
            if told.refusal is None or told.refusal.code is not Code.CONFLICT:
                break  # else it has run again, and what it recorded is not what was cut
        self._told(execution_id, told)

    async def fork(self, execution_id: str, from_step: str, *, into: str | None) -> str:
        """A new execution that keeps what was recorded before the step; its id."""
        source, journal = await whole_journal(self._engine.store, await self._look(execution_id))
        while (data := await self._payload(source, Role.INPUT, source.journal_generation)) is None:
            anew = await begun_anew(self._engine.store, source)
            if anew is None:
                why = f"is {source.status} and has no input: it has not got the outputs of its upstreams"
                raise ExecutionRefused(execution_id, Code.NOT_ALLOWED, why)
            source, journal = await whole_journal(self._engine.store, anew)
        kept, _ = cut(execution_id, journal, from_step)
        [first] = await self._engine.store.load(
            [attempt_key(source.namespace, source.id, source.journal_generation, 1)]
        )
        fact = facts.Fork(
            change_id=self._new_id(),
            id=into if into is not None else again.fork_id(execution_id, self._new_id()),
            source=source,
            input=data,
            # Numbered anew: what went left no gap.
            journal=tuple(structs.replace(entry, position=place) for place, entry in enumerate(kept)),
            began_at=settled(first.started_at if isinstance(first, Attempt) else source.created_at),
        )
        told = await self._engine.tell(self.namespace, fact.id, fact)
        if told.refusal is not None:
            raise ExecutionRefused(fact.id, told.refusal.code, told.refusal.message)
        self._started()
        return fact.id

    async def purge(self, older_than: Duration) -> int:
        """Delete what ended longer ago than that, a bounded part at a time; returns how many. Flows go as a whole."""
        store, ours, patiently = self._engine.store, Filter(namespace=self.namespace), self.waiters.patiently
        before = await patiently(store.now) - to_ms(older_than, what="older_than")
        await patiently(lambda: purge_ended_flows(self._engine, self.namespace, finished_before=before))
        total = 0
        while purged := await patiently(lambda: store.purge(finished_before=before, filter=ours)):
            total += purged
        while purged := await patiently(lambda: store.purge(filter=ours)):  # what its flow let go, or its retention
            total += purged
        return total

    async def _tell(self, execution_id: str, fact: facts.AnyFact) -> None:
        seen = await staged.seen(self._engine, self.namespace, execution_id)
        self._told(execution_id, await self._engine.tell(self.namespace, execution_id, fact, seen=seen))

    def _told(self, execution_id: str, told: Told) -> None:
        self.waiters.touched(self.namespace, execution_id)
        refusal = told.refusal
        if refusal is None or refusal.code is Code.ALREADY:
            self._started()
            return
        if refusal.code is Code.UNKNOWN:
            raise ExecutionNotFound(self.namespace, execution_id)
        if refusal.code is Code.TERMINAL and told.before is not None:
            raise _ended(execution_id, told)
        raise ExecutionRefused(execution_id, refusal.code, refusal.message)

    # ---- odds and ends --------------------------------------------------------------------------------------------

    async def _payload(self, execution: Execution, role: Role, generation: int | None = None) -> bytes | None:
        key = payload_key(execution.namespace, execution.id, generation or execution.generation, role)
        [record] = await self.waiters.patiently(lambda: self._engine.store.load([key]))
        return record.value if isinstance(record, Payload) else None

    async def _look(self, execution_id: str) -> Execution:
        execution = await self.waiters.patiently(partial(staged.look, self._engine, self.namespace, execution_id))
        if execution is None:
            raise ExecutionNotFound(self.namespace, execution_id)
        return execution

    async def _all(self, kind: str, prefix: tuple[str | int, ...]) -> Iterable[Record]:
        found: list[Record] = []
        while True:
            after = found[-1].key if found else None
            page = await self.waiters.patiently(
                partial(self._engine.store.scan, kind, prefix, after=after, limit=10_000)
            )
            found += page
            if len(page) < 10_000:
                return found

    def _new_id(self) -> str:
        return self._engine.entropy.new_id()


def _ended(execution_id: str, told: Told) -> ExecutionEnded:
    assert told.refusal is not None
    assert told.before is not None
    return ExecutionEnded(execution_id, told.refusal.message, status=told.before.status, cause=told.before.cause)


def _is_plain(entry: JournalEntry) -> bool:
    """Whether its value is the engine's own, which no codec hook has sealed."""
    return entry.value in (None, NOTHING) or entry.op in PLAIN
