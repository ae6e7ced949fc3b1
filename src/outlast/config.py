"""Every option, its default, and the variable that sets it. What cannot be honoured is refused here.

Config.load(os.environ, lease_ttl="30s")     # arguments win over OUTLAST_… variables, those over defaults
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import Struct

from outlast import limits
from outlast.errors import InvalidConfig, InvalidInput
from outlast.model.duration import to_ms
from outlast.model.names import check_name
from outlast.tokens import Key, parse_keys

_log = logging.getLogger(__name__)

RECONCILERS = (
    "lease_expiry",
    "attempt_timeout",
    "execution_deadline",
    "timer",
    "outbox",
    "retention",
    "session_expiry",
    "dependency",
    "sibling_cancel",
    "cancel_backlog",
    "flow_summary",
    "flow_retention",
    "index_check",
)
"""The names of the reconcilers, as options and variables spell them."""


class ReconcilerOptions(Struct, frozen=True, kw_only=True):
    """What may be set of one reconciler: `OUTLAST_RECONCILER_TIMER_INTERVAL=2s`, `…_BATCH=100`, `…_ENABLED=no`."""

    interval_ms: int | None = None
    batch: int | None = None
    enabled: bool = True


class Config(Struct, frozen=True, kw_only=True):
    """All options. Durations are milliseconds here, and "30s"-like when given."""

    url: str = "sqlite:///outlast.db"
    namespace: str = "default"
    lease_ttl_ms: int = 10_000
    reconcilers: dict[str, ReconcilerOptions] = msgspec.field(default_factory=dict[str, ReconcilerOptions])
    reconcile_namespace: str | None = None
    """Repair only executions of this namespace (all, if None)."""
    reconcile_tag: tuple[str, str] | None = None
    """Repair only executions with this tag: `OUTLAST_RECONCILE_TAG=instance=blue`."""
    reconcile_shared: bool = True
    """Leave partitions to their owner among the live processes, unless they are overdue."""

    fast_path: bool = True
    """What is started in a process with free capacity starts there at once; off, it waits for the doorbell."""
    doorbell: bool = True
    """Listen for rings; off, polling alone finds work and ends."""

    resident_ms: int = 1_000
    """An execution that waits for something durable is suspended, unless it will be woken within this time."""

    token_keys: tuple[Key, ...] = ()
    """Sign and check tokens of deferreds: `OUTLAST_TOKEN_KEYS=new:SECRET,old:SECRET@2026-12-01T00:00:00Z`."""
    token_ttl_ms: int = 7 * 24 * 3_600 * 1_000
    """How long a token is good for, if neither it nor its deferred says."""

    collect_seldom: bool = True
    """Let Python's collector of garbage wait for more young objects while this process runs executions."""

    allow_pickle: bool = False
    """Pickle values that typed JSON does not keep, and read such values, which runs whatever their writer wanted."""

    @staticmethod
    def load(env: Mapping[str, str], **options: Any) -> Config:
        """From the environment and the caller's arguments, which win."""
        unknown = options.keys() - _OPTIONS.keys()
        if unknown:
            raise InvalidConfig(f"unknown option {min(unknown)!r}; known: {', '.join(sorted(_OPTIONS))}")
        given = {name: env[variable] for name in _OPTIONS if (variable := f"OUTLAST_{name.upper()}") in env}
        given |= {name: value for name, value in options.items() if value is not None}
        fields: dict[str, Any] = {}
        for name, value in given.items():
            field, parse = _OPTIONS[name]
            fields[field] = _parsed(name, value, parse)
        reconcilers = _reconcilers(env)
        _tell_of_unknown(env)
        return Config(**fields, reconcilers=reconcilers)


def _parsed(name: str, value: object, parse: Any) -> Any:
    try:
        return parse(value)
    except InvalidConfig:
        raise
    except InvalidInput as error:
        raise InvalidConfig(f"{name} (OUTLAST_{name.upper()}): {error}") from error


def _url(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidConfig("url must be a store's URL, such as sqlite:///outlast.db")
    return value


def _namespace(value: object) -> str:
    return check_name("namespace", value)


def _lease_ttl(value: object) -> int:
    ms = to_ms(_seconds(value), what="lease_ttl")
    if not limits.LEASE_TTL_MIN_MS <= ms <= limits.LEASE_TTL_MAX_MS:
        raise InvalidConfig(f"lease_ttl must be between 100ms and 1d, not {value!r}")
    return ms


def _resident(value: object) -> int:
    ms = to_ms(_seconds(value), what="resident")
    if ms > limits.RESIDENT_MAX_MS:
        raise InvalidConfig(f"resident must be at most 1m, not {value!r}")
    return ms


def _token_ttl(value: object) -> int:
    ms = to_ms(_seconds(value), what="token_ttl")
    if ms == 0:
        raise InvalidConfig("token_ttl must be longer than nothing")
    return ms


def _tag(value: object) -> tuple[str, str]:
    tag, equals, wanted = str(value).partition("=")
    if not tag or not equals or not wanted:
        raise InvalidConfig(f"reconcile_tag must look like instance=blue, not {value!r}")
    return tag, wanted


def flag(value: object) -> bool:
    word = str(value).lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise InvalidInput(f"must be yes or no, not {value!r}")


def _seconds(value: object) -> object:
    """A variable's plain number means seconds, as it does in Python."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


_OPTIONS: dict[str, tuple[str, Any]] = {
    "url": ("url", _url),
    "namespace": ("namespace", _namespace),
    "lease_ttl": ("lease_ttl_ms", _lease_ttl),
    "reconcile_namespace": ("reconcile_namespace", _namespace),
    "reconcile_tag": ("reconcile_tag", _tag),
    "reconcile_shared": ("reconcile_shared", flag),
    "fast_path": ("fast_path", flag),
    "doorbell": ("doorbell", flag),
    "resident": ("resident_ms", _resident),
    "collect_seldom": ("collect_seldom", flag),
    "token_keys": ("token_keys", parse_keys),
    "token_ttl": ("token_ttl_ms", _token_ttl),
    "allow_pickle": ("allow_pickle", flag),
}

_PREFIX = "OUTLAST_RECONCILER_"


def _reconcilers(env: Mapping[str, str]) -> dict[str, ReconcilerOptions]:
    found: dict[str, dict[str, Any]] = {}
    for variable, value in sorted(env.items()):
        if not variable.startswith(_PREFIX):
            continue
        name, _, option = variable.removeprefix(_PREFIX).lower().rpartition("_")
        if name not in RECONCILERS or option not in _RECONCILER_OPTIONS:
            known = ", ".join(f"{_PREFIX}{row.upper()}_{{INTERVAL,BATCH,ENABLED}}" for row in RECONCILERS)
            raise InvalidConfig(f"{variable} sets nothing; known: {known}")
        field, parse = _RECONCILER_OPTIONS[option]
        try:
            found.setdefault(name, {})[field] = parse(value)
        except InvalidInput as error:
            raise InvalidConfig(f"{variable}: {error}") from error
    return {name: ReconcilerOptions(**fields) for name, fields in found.items()}


_OF_OTHERS = "OUTLAST_TEST_"
OF_COMMANDS = {"OUTLAST_LOG_LEVEL", "OUTLAST_LOG_FORMAT"}
"""What only commands read."""
_told: set[str] = set()
"""Of these variables it was said already: options are read many times in a process."""


def _tell_of_unknown(env: Mapping[str, str]) -> None:
    """A warning only: whoever else uses the prefix is not kept from working."""
    names = [name.upper() for name in _OPTIONS]
    known = {f"OUTLAST_{name}" for name in names} | OF_COMMANDS
    for variable in sorted(env):
        if not variable.startswith("OUTLAST_") or variable.startswith((_PREFIX, _OF_OTHERS)):
            continue
        if variable not in known and variable not in _told:
            _told.add(variable)
            near = get_close_matches(variable.removeprefix("OUTLAST_"), names, n=1, cutoff=0.7)
            _log.warning(
                "the variable %s sets nothing%s", variable, f"; did you mean OUTLAST_{near[0]}?" if near else ""
            )


def _interval(value: str) -> int:
    ms = to_ms(_seconds(value), what="interval")
    if ms < 10:
        raise InvalidConfig(f"an interval must be at least 10ms, not {value!r}")
    return ms


def _batch(value: str) -> int:
    if not value.isdigit() or not 1 <= int(value) <= limits.DUE_MAX:
        raise InvalidConfig(f"a batch must be between 1 and {limits.DUE_MAX}, not {value!r}")
    return int(value)


_RECONCILER_OPTIONS: dict[str, tuple[str, Any]] = {
    "interval": ("interval_ms", _interval),
    "batch": ("batch", _batch),
    "enabled": ("enabled", flag),
}
