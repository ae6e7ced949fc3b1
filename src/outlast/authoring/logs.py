"""Logging in workflows and steps: a logger that is silent while code is replayed, and a filter that says of every log
record which execution it is from.

outlast.logger.info("shipping %s", order)      # once, however often the code is replayed
handler.addFilter(outlast.LogContext())        # %(execution)s %(workflow)s %(step)s %(attempt)s
"""

from __future__ import annotations

import logging

from outlast.runtime.attempts.current import attempt_var, inside, step_var


def replaying() -> bool:
    """Whether the workflow's code runs lines that it ran before: an earlier attempt, or this one before it was
    suspended, recorded more than the code has seen by now. Always False in steps and outside of workflows.

    For what may be left out of a replay, such as a log line or a metric. No branch of the code may depend on it.
    """
    attempt = inside()
    return attempt is not None and attempt.replaying


class LogContext(logging.Filter):
    """A filter that gives each log record the attributes `execution`, `workflow`, `step` and `attempt`: those of the
    code that logs it, or empty text where none of that runs. Add it to a handler, and name them in its format:

        handler.addFilter(outlast.LogContext())
        handler.setFormatter(logging.Formatter("%(levelname)s %(execution)s %(message)s"))
    """

    @staticmethod
    def fields() -> dict[str, str | int]:
        """The same as a dict, without what is not known: for structlog and other libraries."""
        attempt = attempt_var.get()
        if attempt is None:
            return {}
        execution, step = attempt.execution, step_var.get()
        fields: dict[str, str | int] = {"execution": execution.id, "workflow": execution.workflow}
        if step is not None:
            fields["step"] = step
        return {**fields, "attempt": execution.attempt}

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in ({"execution": "", "workflow": "", "step": "", "attempt": ""} | self.fields()).items():
            if name not in record.__dict__:  # Outlast's own lines name what they are about
                record.__dict__[name] = value
        return True


class _Live(logging.Filter):
    """Lets nothing pass while code is replayed."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not replaying()


logger = logging.getLogger("outlast.code")
"""For workflow code: what it logs while the code is replayed is dropped. Elsewhere it is a logger like others."""
logger.addFilter(_Live())
