"""What SQLite says, in Outlast's words."""

from __future__ import annotations

import apsw

from outlast.errors import (
    InvalidInput,
    OutlastError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)


class Translated:
    """`with translated:` raises SQLite's complaints about `path` as errors of the store. One for a connection: every
    transaction goes through it, and a generator would be made anew for each."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            ours = _in_our_words(self._path, error)
            if ours is not None:
                raise ours from error


def _in_our_words(path: str, error: BaseException) -> OutlastError | None:
    """None if SQLite did not say it."""
    match error:
        case apsw.NotADBError() | apsw.CorruptError():
            return StoreCorrupt(f"{path} is damaged or not an SQLite file ({error}): restore it from a backup")
        case apsw.ReadOnlyError():
            return StoreReadOnly(f"{path} cannot be written ({error}): check its permissions and those of its folder")
        case apsw.FullError():
            return StoreFull(f"no room left to write {path} ({error}): free some, then go on")
        case apsw.CantOpenError():
            return StoreError(f"{path} cannot be opened ({error}): does its folder exist, and may it be written?")
        case apsw.BusyError() | apsw.LockedError() | apsw.IOError() | apsw.ProtocolError():
            return StoreUnavailable(f"{path} does not answer now ({error}): try again")
        case apsw.Error():
            return StoreError(f"{path}: {type(error).__name__}: {error}")
        case UnicodeEncodeError():
            return InvalidInput(f"{error.object!r} cannot be stored: it is not text ({error.reason})")
        case OverflowError():
            return InvalidInput(f"a number is too large to be stored ({error}): at most 64 bits")
        case _:
            return None
