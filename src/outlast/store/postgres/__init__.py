"""The PostgreSQL store: a fleet of workers on the database that people already run."""

from outlast.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
