"""The Valkey store: one server or a cluster, every partition in one hash slot. Redis 7 or newer works too."""

from outlast.store.valkey.store import ValkeyStore

__all__ = ["ValkeyStore"]
