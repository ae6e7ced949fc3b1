"""Which server has which partition: one server for all, or the primaries of a cluster.

`call` sends one function call per partition, those of a server together, and answers when all have; a commit names all
partitions of a server in one call, unless it is a cluster, where each lives in a slot of its own. A server that
says "not mine" or "not now" has done nothing: it is asked again, or another one is, for a little while. An answer that
was lost is another thing: whether it was done is not known, so writes say so (`ReplyLost`) and reads are repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import hiredis
from msgspec import Struct

from outlast.errors import InvalidConfig, OutlastError, ReplyLost, StoreReadOnly, StoreUnavailable
from outlast.store.valkey.commit import Arguments
from outlast.store.valkey.connection import Address, Command, Connection, Login, connect
from outlast.store.valkey.errors import NOT_NOW, UNFOUNDED, is_function_missing, is_of_all, translated, word
from outlast.store.valkey.keys import Names, slot_of
from outlast.store.valkey.library import TEXT, function

PATIENCE_S = 2.0
"""For so long a call that was not done is tried again before its caller is told."""
GRACE_S = 2.0
"""So much later than the first server the others may answer, where some answers are better than none."""
SILENT_S = 2.0
"""A server that owes an answer for so long seems to be away."""
SLICE_S = 0.1
PROBE_S = 0.2
LEARN_TIMEOUT_S = 1.0
UNKNOWN = b"?"


Asked: TypeAlias = tuple[str | bytes | int, ...]
"""How many keys a call names, these, and its arguments."""


class Replicas(Struct, frozen=True):
    """A write is answered when so many replicas have it too."""

    number: int = 0
    timeout_ms: int = 1_000


class Server:
    """One server, and the connection to it while there is one."""

    def __init__(self, address: Address, login: Login) -> None:
        self.address = address
        self._login = login
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._asked: deque[float] = deque()
        self._failed = False
        self.probed = False
        """Somebody finds out whether it is back."""

    @property
    def silent(self) -> bool:
        """Whether it seems to be away: not worth waiting for, if there are others."""
        return self._failed or (bool(self._asked) and time.monotonic() - self._asked[0] > SILENT_S)

    async def send(self, commands: list[Command]) -> list[Any]:
        asked_s = time.monotonic()
        self._asked.append(asked_s)
        try:
            connection = self._connection
            if connection is None or not connection.is_open:
                connection = await self._connected()
            answers = await connection.send(commands)
        except StoreUnavailable:
            self._failed = True
            raise
        else:
            self._failed = False
            return answers
        finally:
            # Answers come in the order of the questions; those that were given up, or failed, may leave out of turn.
            if self._asked[0] == asked_s:
                self._asked.popleft()
            else:
                self._asked.remove(asked_s)

    async def ask(self, *command: str | bytes | int) -> Any:
        """One command; what the server complains about is raised."""
        [answer] = await self.send([command])
        if isinstance(answer, hiredis.ReplyError):
            raise translated(str(answer), str(self.address)) from answer
        return answer

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._closed:
                raise StoreUnavailable(f"the connection to {self.address} is closed")
            if self._connection is None or not self._connection.is_open:
                self._connection = await connect(self.address, self._login)
            return self._connection

    def retire(self) -> None:
        """Ask what comes next on a new connection: the name may lead to another server by now."""
        if self._connection is not None:
            self._connection.retire()

    async def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            await self._connection.close()


class Servers:
    """All servers of a store."""

    def __init__(
        self, seeds: tuple[Address, ...], login: Login, names: Names, replicas: Replicas, *, cluster: bool
    ) -> None:
        self._seeds = seeds
        self._login = login
        self._names = names
        self.replicas = replicas
        self._cluster = cluster
        self.together = not cluster
        """Whether a call may name several partitions. In a cluster each is in a slot of its own."""
        self._known: dict[Address, Server] = {}
        self._slots: list[tuple[int, int, Address]] = []
        self._homes: dict[str, Server] = {}
        self._learned = 0
        self._late: set[asyncio.Task[Any]] = set()
        self.head = b""
        """What the store was made with, as this process knows it: every call says so."""
        self.look_again: Callable[[], Awaitable[None]] | None = None
        """What to do when a partition says something else, or nothing."""

    # ---- who is there ---------------------------------------------------------------------------------------------

    def server(self, address: Address) -> Server:
        known = self._known.get(address)
        if known is None:
            known = self._known[address] = Server(address, self._login)
        return known

    async def primaries(self) -> list[Server]:
        """Every server that has partitions."""
        if not self._cluster:
            return [self.server(self._seeds[0])]
        if not self._slots:
            await self.learn()
        return [self.server(address) for address in dict.fromkeys(address for _, _, address in self._slots)]

    async def home(self, key: str) -> Server:
        """The server that has this key."""
        if self._cluster and not self._slots:
            await self.learn()
        found = self._located(key)
        if found is None:
            raise StoreUnavailable(f"no server of the cluster has slot {slot_of(key)} now: try again")
        return found

    def _located(self, key: str) -> Server | None:
        """As far as is known."""
        known = self._homes.get(key)
        if known is not None:
            return known
        address: Address | None = self._seeds[0]
        if self._cluster:
            slot = slot_of(key)
            address = next((a for first, last, a in self._slots if first <= slot <= last), None)
        if address is None:
            return None
        found = self._homes[key] = self.server(address)
        return found

    def shard(self, partition: int) -> str:
        """The server of a partition as far as it is known."""
        found = self._located(self._names.clock(partition)) if self._cluster else None
        return "" if found is None else str(found.address)

    async def learn(self) -> None:
        """Ask the cluster who has what; any server that answers will do."""
        if not self._cluster:
            return
        candidates = list(dict.fromkeys([*(a for _, _, a in self._slots), *self._seeds, *self._known]))
        # Another one first each time: one that was cut off from the others answers too, and is wrong.
        self._learned += 1
        turn = self._learned % len(candidates)
        candidates = candidates[turn:] + candidates[:turn]
        problems: list[OutlastError] = []
        for address in candidates:
            try:
                async with asyncio.timeout(LEARN_TIMEOUT_S):  # there are others to ask
                    slots = await self.server(address).ask("CLUSTER", "SLOTS")
            except InvalidConfig:
                raise
            except TimeoutError:
                problems.append(StoreUnavailable(f"{address} does not answer"))
                continue
            except OutlastError as error:
                problems.append(error)
                continue
            if slots:
                self._slots = [
                    (first, last, Address(_host(primary, address), primary[1])) for first, last, primary, *_ in slots
                ]
                self._homes.clear()
                return
        problem = problems[-1] if problems else None
        if problem is not None and not any(isinstance(one, StoreUnavailable) for one in problems):
            raise problem  # all of them refuse, and will: a password that is wrong
        raise StoreUnavailable(f"no server of the cluster tells who has what: {problem}") from problem

    async def close(self) -> None:
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        known, self._known = self._known, {}
        for server in known.values():
            await server.close()

    # ---- calls ----------------------------------------------------------------------------------------------------

    async def call(self, name: str, asked: Mapping[int, Arguments], *, writes: bool) -> dict[int, Any]:
        """One call of a function per partition, those of one server in one round trip."""
        answers = await self.call_keys(name, self._keyed(asked), writes=writes)
        return {partition: answers[self._names.clock(partition)] for partition in asked}

    async def call_each(
        self, name: str, asked: Mapping[tuple[int, ...], Arguments], *, writes: bool
    ) -> dict[tuple[int, ...], Any]:
        """Each is one call for some partitions (for one, unless `together`). An error stands in the place of the
        answer that it kept from coming."""
        clock = self._names.clock
        keyed = {
            clock(some[0]): (len(some), *map(clock, some), *argument, self.head) for some, argument in asked.items()
        }
        answers = await self._outcomes(name, keyed, writes=writes)
        return {some: answers[clock(some[0])] for some in asked}

    def _keyed(self, asked: Mapping[int, Arguments]) -> dict[str, Asked]:
        clock = self._names.clock
        return {(key := clock(partition)): (1, key, *argument, self.head) for partition, argument in asked.items()}

    async def call_some(self, name: str, asked: Mapping[int, Arguments], *, writes: bool) -> dict[int, Any]:
        """As `call`, without the partitions of servers that are away, as long as one server answers."""
        by_server: dict[Server, list[int]] = {}
        problem: OutlastError | None = None
        for partition in asked:
            try:
                by_server.setdefault(await self.home(self._names.clock(partition)), []).append(partition)
            except StoreUnavailable as error:
                problem = error  # nobody has its slot now
        if len(by_server) < 2 and problem is None:
            return await self.call(name, asked, writes=writes)
        willing = {server: some for server, some in by_server.items() if not server.silent} or by_server
        for server in by_server.keys() - willing.keys():
            self._probe(server)
        tasks = {
            asyncio.create_task(self.call(name, {p: asked[p] for p in some}, writes=writes)): server
            for server, some in willing.items()
        }
        try:
            answers = await self._first_answers(tasks, problem)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        return {partition: answers[partition] for partition in asked if partition in answers}

    async def _first_answers(
        self, tasks: dict[asyncio.Task[dict[int, Any]], Server], problem: OutlastError | None
    ) -> dict[int, Any]:
        """Of those that answer soon after the first. Others go on: they notice when their server is back."""
        answers: dict[int, Any] = {}
        pending, until_s = set(tasks), 0.0
        while pending:
            if answers and (time.monotonic() > until_s or all(tasks[task].silent for task in pending)):
                break
            done, pending = await asyncio.wait(pending, timeout=SLICE_S, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                raised = task.exception()
                if raised is None:
                    answers |= task.result()
                    until_s = until_s or time.monotonic() + GRACE_S
                elif isinstance(raised, StoreUnavailable):
                    problem = raised
                else:
                    for other in pending:
                        other.cancel()
                    raise raised
        for late in pending:
            self._late.add(late)
            late.add_done_callback(self._is_over)
        if not answers:
            raise problem or StoreUnavailable("no server of the cluster answers")
        return answers

    def _probe(self, server: Server) -> None:
        """See in the background whether it is back, or another one has its place."""
        if not server.probed:
            server.probed = True
            probing = asyncio.create_task(self._ask_whether_it_is_back(server), name="outlast probe")
            self._late.add(probing)
            probing.add_done_callback(self._is_over)

    async def _ask_whether_it_is_back(self, server: Server) -> None:
        try:
            with suppress(OutlastError):
                await self.learn()
            with suppress(OutlastError):
                await server.ask("PING")
            await asyncio.sleep(PROBE_S)
        finally:
            server.probed = False

    def _is_over(self, late: asyncio.Task[Any]) -> None:
        self._late.discard(late)
        if not late.cancelled():
            late.exception()  # whoever needs that server hears it from their own call

    async def call_keys(self, name: str, asked: Mapping[str, Asked], *, writes: bool) -> dict[str, Any]:
        answers = await self._outcomes(name, asked, writes=writes)
        failed = [answer for answer in answers.values() if isinstance(answer, OutlastError)]
        if failed:
            raise min(failed, key=weight)
        return answers

    async def _outcomes(self, name: str, asked: Mapping[str, Asked], *, writes: bool) -> dict[str, Any]:
        """The answer to each, or in its place the error that it failed with: what others were answered is kept."""
        answers: dict[str, Any] = {}
        began_s, delay_s, rounds, read_only = time.monotonic(), 0.0, 0, False
        while True:
            rounds += 1
            left = {key: argument for key, argument in asked.items() if key not in answers} if answers else asked
            try:
                problem = await self._round(name, left, answers, writes=writes)
            except StoreUnavailable as error:
                problem = error
            except OutlastError as final:
                return dict.fromkeys(asked, final) | answers
            if len(answers) == len(asked):
                return answers
            # At least twice: one answer that took long is no reason to give up, and a name may lead elsewhere now.
            refused, read_only = read_only, isinstance(problem, StoreReadOnly)
            if (refused and read_only) or (rounds > 1 and time.monotonic() - began_s >= PATIENCE_S):
                given_up = problem or StoreUnavailable(f"{name} was sent from server to server: try again")
                return dict.fromkeys(asked, given_up) | answers
            if problem is not None:  # else a redirection or a missing library: at once, but not for ever
                delay_s = min(0.2, delay_s * 2 or 0.01)
                await asyncio.sleep(delay_s)
                with suppress(OutlastError):  # the next round tells what is wrong
                    await self.learn()

    async def _round(
        self, name: str, left: Mapping[str, Asked], answers: dict[str, Any], *, writes: bool
    ) -> OutlastError | None:
        """Ask everybody once. What is settled is in `answers`; the rest was not done, and this is why."""
        by_server: dict[Server, list[str]] = {}
        for key in left:
            by_server.setdefault(self._homes.get(key) or await self.home(key), []).append(key)
        asking = [self._ask(server, name, keys, left, answers, writes=writes) for server, keys in by_server.items()]
        told: list[OutlastError | BaseException | None]
        if len(asking) == 1:  # no task for the only one
            try:
                told = [await asking[0]]
            except OutlastError as error:
                told = [error]
        else:
            told = await asyncio.gather(*asking, return_exceptions=True)
        problem: OutlastError | None = None
        for raised, keys in zip(told, by_server.values(), strict=True):
            if raised is None or isinstance(raised, StoreUnavailable | StoreReadOnly):
                problem = problem or raised
                if writes and isinstance(raised, ReplyLost):  # it may have been done: whoever asked must know
                    answers |= {key: raised for key in keys if key not in answers}
            elif isinstance(raised, OutlastError):
                answers |= {key: raised for key in keys if key not in answers}
            else:
                raise raised
        return problem

    async def _ask(
        self,
        server: Server,
        name: str,
        keys: list[str],
        left: Mapping[str, Asked],
        answers: dict[str, Any],
        *,
        writes: bool,
    ) -> OutlastError | None:
        called = function(name)
        commands: list[Command] = [("FCALL", called, *left[key]) for key in keys]
        waits = writes and self.replicas.number > 0
        if waits:
            commands.append(("WAIT", self.replicas.number, self.replicas.timeout_ms))
        replies = await server.send(commands)
        confirmed: Any = replies.pop() if waits else None
        done = {k: r for k, r in zip(keys, replies, strict=True) if not isinstance(r, hiredis.ReplyError)}
        # What was not done needs no confirmation: a server that is no primary any more could not give it.
        if waits and done and not (isinstance(confirmed, int) and confirmed >= self.replicas.number):
            lost = ReplyLost(
                f"{server.address}: {confirmed} of {self.replicas.number} replicas confirmed the write in "
                f"{self.replicas.timeout_ms} ms: whether it lasts is not known yet"
            )
            done = dict.fromkeys(done, lost)
        answers |= done  # before anything else: no complaint about one takes another's answer away
        if len(done) == len(keys):
            return None
        problem: OutlastError | None = None
        of_all: dict[str, OutlastError | None] = {}
        for key, reply in zip(keys, replies, strict=True):
            if not isinstance(reply, hiredis.ReplyError):
                continue
            complaint, final = str(reply), None
            if complaint in of_all:
                final = of_all[complaint]
            else:
                try:
                    problem = await self._complaint(server, key, complaint) or problem
                except StoreReadOnly as error:
                    server.retire()
                    problem = error
                except StoreUnavailable as error:
                    problem = error
                except OutlastError as error:
                    final = error
                if is_of_all(complaint):
                    of_all[complaint] = final
            if final is not None:
                answers[key] = final
        return problem

    async def _complaint(self, server: Server, key: str, complaint: str) -> StoreUnavailable | None:
        """Nothing was done. None if it can be asked again at once; what to wait for otherwise; raises what is final."""
        if is_function_missing(complaint):
            await load_library(server)
            return None
        kind = word(complaint)
        if kind == UNFOUNDED and self.look_again is not None:
            await self.look_again()
            return None
        if kind == "MOVED" and self._cluster:
            await self.learn()
            redirected = _redirected(complaint, server.address)
            if redirected is not None:
                self._homes[key] = self.server(redirected)
            return None
        if kind == "CROSSSLOT":  # a cluster after all, of one server
            self.together = False
        error = translated(complaint, str(server.address))
        if kind in NOT_NOW and (self._cluster or not isinstance(error, StoreReadOnly)):
            return StoreUnavailable(str(error))
        raise error

    # ---- one command ----------------------------------------------------------------------------------------------

    async def look_at(self, key: str, *command: str | bytes | int) -> Any:
        """What a command that only reads finds where the key is. In a cluster, those who were asked may not have heard
        yet of who takes whose place: then it is asked again, for a little while."""
        began_s, delay_s = time.monotonic(), 0.01
        while True:
            try:
                server = await self.home(key)
                [answer] = await server.send([command])
                if not isinstance(answer, hiredis.ReplyError):
                    return answer
                problem = await self._complaint(server, key, str(answer))
            except StoreUnavailable as error:
                problem = error
            if not self._cluster or time.monotonic() - began_s >= PATIENCE_S:
                raise problem or StoreUnavailable(f"{key} was sought from server to server: try again")
            await asyncio.sleep(delay_s)
            delay_s = min(0.2, delay_s * 2)
            with suppress(OutlastError):  # the next look tells what is wrong
                await self.learn()


def weight(problem: OutlastError) -> int:
    """What is final comes first; then an answer that was lost, for it may have been done; then what was not done."""
    if isinstance(problem, ReplyLost):
        return 1
    return 2 if isinstance(problem, StoreUnavailable) else 0


async def load_library(server: Server) -> None:
    """Replicas get it with everything else."""
    await server.ask("FUNCTION", "LOAD", "REPLACE", TEXT)


def _host(node: Sequence[Any], asked: Address) -> str:
    """`[host, port, id, [b"ip", b"10.0.0.1"]]`; without a host it is the one that was asked, and `?` stands for a name
    that is not set."""
    if node[0] == UNKNOWN:
        about: Sequence[bytes] = node[3] if len(node) > 3 else ()
        ip = dict(zip(about[::2], about[1::2], strict=False)).get(b"ip")
        return ip.decode() if ip else asked.host
    return node[0].decode() if node[0] else asked.host


def _redirected(complaint: str, asked: Address) -> Address | None:
    """`MOVED 3999 127.0.0.1:6381`; without a host it is the one that was asked. None if it does not tell."""
    host, _, port = complaint.split(" ")[2].rpartition(":")
    return None if host == UNKNOWN.decode() else Address(host or asked.host, int(port))
