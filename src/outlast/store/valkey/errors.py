"""What Valkey says, in Outlast's words. The first word of its complaint tells what it is."""

from __future__ import annotations

from outlast.errors import (
    InvalidConfig,
    InvalidInput,
    OutlastError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

NOT_NOW = frozenset(
    {"CLUSTERDOWN", "TRYAGAIN", "ASK", "LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "READONLY", "UNBLOCKED"}
)
"""Nothing was done: ask again, perhaps somebody else."""
OURS = "OUTLAST "
UNFOUNDED = "UNFOUNDED"
"""Our own: a partition has another head than the caller, or none."""


def word(complaint: str) -> str:
    return complaint.split(" ", 1)[0]


def is_function_missing(complaint: str) -> bool:
    return "Function not found" in complaint


def is_of_all(complaint: str) -> bool:
    """Whether what puts this right for one partition does so for all."""
    return is_function_missing(complaint) or word(complaint) == UNFOUNDED


def translated(complaint: str, where: str) -> OutlastError:
    """The error to raise for a complaint of the server at `where`."""
    if OURS in complaint:
        return InvalidInput(complaint.partition(OURS)[2].partition(" script:")[0])
    if "cluster support disabled" in complaint:
        return InvalidConfig(f"{where} is no cluster ({complaint}): write valkey:// in the URL")
    if "unknown command" in complaint:
        what = complaint.partition(", with args")[0]
        return StoreError(f"{where} lacks a command that Outlast needs ({what}): use Valkey, or Redis 7 or newer")
    match word(complaint):
        case "OOM":
            return StoreFull(
                f"{where} has no memory left ({complaint}): give it more (maxmemory), or purge what has ended"
            )
        case "MISCONF":
            return StoreFull(f"{where} cannot write its files ({complaint}): is its disk full?")
        case "READONLY":
            return StoreReadOnly(f"{where} is a replica ({complaint}): name its primary")
        case "MOVED":
            return InvalidConfig(f"{where} is part of a cluster ({complaint}): write valkey+cluster:// in the URL")
        case "ASK":
            return StoreUnavailable(
                f"{where} has given away half of a partition ({complaint}): its slot moves key by key, and a function "
                "would see half of it; wait until it has moved"
            )
        case "NOPERM":
            return StoreError(
                f"{where} lacks a permission for us ({complaint}): give the user the ACL of docs/valkey.md"
            )
        case "NOAUTH" | "WRONGPASS":
            return StoreError(f"{where} does not let us in ({complaint}): check the user and password in the URL")
        case known if known in NOT_NOW:
            return StoreUnavailable(f"{where} does not answer now ({complaint}): try again")
        case _:
            return StoreError(f"{where}: {complaint}")
