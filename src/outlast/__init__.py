"""Outlast: durable execution for Python. Public names only."""

from outlast.errors import (
    ExecutionConflict,
    ExecutionNotFound,
    ExecutionRefused,
    InvalidInput,
    LeaseLost,
    LimitExceeded,
    OutlastError,
    StoreError,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "ExecutionConflict",
    "ExecutionNotFound",
    "ExecutionRefused",
    "InvalidInput",
    "LeaseLost",
    "LimitExceeded",
    "OutlastError",
    "StoreError",
]
