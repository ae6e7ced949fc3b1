"""What SQLite says, in Outlast's words."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import apsw

from outlast.errors import (
    InvalidInput,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)


@contextmanager
def translated(path: str) -> Generator[None]:
    """Raise SQLite's complaints about `path` as errors of the store."""
    try:
        yield
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreCorrupt(f"{path} is damaged or not an SQLite file ({error}): restore it from a backup") from error
    except apsw.ReadOnlyError as error:
        raise StoreReadOnly(
            f"{path} cannot be written ({error}): check its permissions and those of its folder"
        ) from error
    except apsw.FullError as error:
        raise StoreFull(f"no room left to write {path} ({error}): free some, then go on") from error
    except apsw.CantOpenError as error:
        raise StoreError(f"{path} cannot be opened ({error}): does its folder exist, and may it be written?") from error
    except (apsw.BusyError, apsw.LockedError, apsw.IOError, apsw.ProtocolError) as error:
        raise StoreUnavailable(f"{path} does not answer now ({error}): try again") from error
    except apsw.Error as error:
        raise StoreError(f"{path}: {type(error).__name__}: {error}") from error
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{error.object!r} cannot be stored: it is not text ({error.reason})") from error
    except OverflowError as error:
        raise InvalidInput(f"a number is too large to be stored ({error}): at most 64 bits") from error
