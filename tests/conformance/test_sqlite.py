"""The conformance suite on SQLite."""

from __future__ import annotations

from outlast.testing.conformance.harness import suite

globals().update(suite())
