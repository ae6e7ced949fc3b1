"""Log records as JSON, one object per line: what `outlast worker --log-format json` writes."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

LABELS = ("execution", "workflow", "step", "attempt")


class JsonLines(logging.Formatter):
    """`time` (UTC), `level`, `logger` and `message`; `execution`, `workflow`, `step` and `attempt` where they are known
    (`outlast.LogContext`); `error` is a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in LABELS if (value := record.__dict__.get(name))}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()
