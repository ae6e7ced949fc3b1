"""The yardstick on Valkey: the same records in the same batches, by hand, pipelined, with nothing checked.

One connection, by the driver that Outlast has. A batch is one write of plain commands: a hash per kind and execution, a
packed record per field, as Outlast lays them out, and a list of ends. No function is called, no index is kept but the
set of what waits, nothing is guarded, and a batch is not atomic. All of that counts against Outlast.
"""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import hiredis
import msgspec

from benchmarks.bare import POLICY, ROUTE
from benchmarks.load import DIGEST, INPUT, LANE, NAMESPACE, OUTPUT, STEP, VERSION, WORKER, WORKFLOW
from benchmarks.peers.driving import drive
from benchmarks.yardstick import Batched, Rows, Yardstick
from outlast.store.valkey.connection import Address, Command, Login, connect

_pack = msgspec.msgpack.Encoder().encode


class BareValkey(Batched):
    """One connection."""

    async def open(self) -> None:
        parts = urlsplit(self.url)
        self._connection = await connect(Address(host=parts.hostname or "", port=parts.port or 6379), Login())

    async def close(self) -> None:
        await self._connection.close()

    async def create(self) -> None:
        pass

    async def waiting(self) -> list[tuple[int, str]]:
        [members] = await self._connection.send([("LRANGE", "begun", 0, -1)])
        return [(int(place), name) for place, _, name in (member.decode().partition(":") for member in members)]

    async def write(self, rows: Rows) -> None:
        now = time.time_ns() // 1_000_000
        commands: list[Command] = []
        for partition, name, change, worker, active in rows["begin"]:
            owner = f"{{{partition}}}:{name}"
            commands += (
                (
                    "HSET",
                    f"execution:{owner}",
                    "",
                    _execution(name, "active" if active else "ready", worker, now, change),
                ),
                ("HSET", f"payload:{owner}", "1input", INPUT),
            )
            if active:
                commands.append(("HSET", f"attempt:{owner}", "1", _attempt(worker, now, None, change)))
            else:
                commands.append(("ZADD", "ready", now, f"{partition}:{name}"))
        for partition, name, change in rows["claim"]:
            owner = f"{{{partition}}}:{name}"
            commands += (
                ("ZREM", "ready", f"{partition}:{name}"),
                ("HSET", f"execution:{owner}", "", _execution(name, "active", WORKER, now, change)),
                ("HSET", f"attempt:{owner}", "1", _attempt(WORKER, now, None, change)),
            )
        for partition, name, change, occurrence, value in rows["step"]:
            entry = _pack(("step", "ok", 1, 1, now, change, value))
            commands.append(("HSET", f"journal:{{{partition}}}:{name}", f"1{STEP}{occurrence}", entry))
        for partition, name, change in rows["end"]:
            owner = f"{{{partition}}}:{name}"
            commands += (
                ("HSET", f"execution:{owner}", "", _execution(name, "succeeded", None, now, change)),
                ("HSET", f"attempt:{owner}", "1", _attempt(WORKER, now, now, change)),
                ("HSET", f"payload:{owner}", "1output", OUTPUT),
                ("RPUSH", "completion", _pack((NAMESPACE, name, 1, "succeeded", WORKFLOW, now, change))),
            )
        if rows["begin"]:
            # Workers are told by it what is theirs; who watches a backlog compares it with the ends.
            commands.append(("RPUSH", "begun", *(f"{partition}:{name}" for partition, name, *_ in rows["begin"])))
        for answer in await self._connection.send(commands):
            if isinstance(answer, hiredis.ReplyError):
                raise answer


def _execution(name: str, status: str, worker: str | None, now: int, change: str) -> bytes:
    return _pack(
        (
            NAMESPACE,
            name,
            WORKFLOW,
            VERSION,
            LANE,
            ROUTE,
            "{}",
            DIGEST,
            POLICY,
            status,
            1,
            worker,
            change,
            now,
            now,
            change,
        )
    )


def _attempt(worker: str, began: int, ended: int | None, change: str) -> bytes:
    return _pack((1, 1, worker, began, ended, None if ended is None else "succeeded", change))


if __name__ == "__main__":
    drive(Yardstick(BareValkey))
