"""The SQLite store: one file, any number of processes, no server."""

from outlast.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
