"""A limit on everything, in one place, with its unit in its name.

Past a limit the caller gets `LimitExceeded` (see `errors.py`) at the call, and nothing is written. Limits protect the
store and the other executions; they are constants, not options, so that the same program behaves the same everywhere.
"""

from typing import Final

# Names and ids.
ID_MAX_CHARS: Final = 255
NAME_MAX_CHARS: Final = 255
SCOPE_MAX_CHARS: Final = 1_024
TAGS_MAX: Final = 32
TAG_KEY_MAX_CHARS: Final = 64
TAG_VALUE_MAX_CHARS: Final = 255
REQUIRES_MAX: Final = 16
REASON_MAX_CHARS: Final = 2_000

# Payloads.
PAYLOAD_MAX_BYTES: Final = 4 * 1024 * 1024
FRAME_MAX_BYTES: Final = 64 * 1024
FAILURE_MAX_BYTES: Final = 64 * 1024

# Counts per execution.
JOURNAL_MAX_ENTRIES: Final = 50_000
ATTEMPTS_MAX: Final = 10_000
CRASHES_MAX: Final = 1_000
SUSPECT_CRASHES: Final = 3  # without a suspension in between: it then runs beside no other suspect
WAITS_MAX: Final = 1_000
SENDS_MAX: Final = 100
FRAMES_MAX: Final = 1_000_000
FRAMES_UNWRITTEN_MAX: Final = 10_000
PROGRESS_TEXT_MAX_CHARS: Final = 500
UNDOS_MAX: Final = 1_000
UNWIND_FAILURES_MAX: Final = 5
UNWIND_CRASHES_MAX: Final = 3
FORK_MAX_ENTRIES: Final = 900  # a fork copies them, and a retry from a step deletes them, in one commit

# Flows.
FLOW_MEMBERS_MAX: Final = 100_000
FLOW_EDGES_MAX: Final = 1_000_000
FLOW_GROWTH_MAX: Final = 200  # members that a running one adds in one commit

# Work per call of the store.
BATCH_MAX_CHANGES: Final = 1_000
BATCH_MAX_BYTES: Final = 16 * 1024 * 1024  # of the values that are committed together; one change may have more
CHANGES_MAX_WRITES: Final = 1_000
CLAIM_MAX: Final = 1_000
DUE_MAX: Final = 1_000
LOAD_MAX_KEYS: Final = 1_000
SCAN_MAX_RECORDS: Final = 10_000
FIND_MAX: Final = 1_000
PURGE_MAX: Final = 1_000
LANES_MAX: Final = 100
ROUTES_MAX: Final = 1_000

# Time.
TRANSACTION_MAX_MS: Final = 5_000

# Numbers.
PRIORITY_MIN: Final = -1_000_000
PRIORITY_MAX: Final = 1_000_000
DURATION_MAX_MS: Final = 100 * 366 * 24 * 3_600 * 1_000  # a hundred years
MOMENT_MAX_MS: Final = 253_402_128_000_000  # 9999-12-30, which every time zone can show
FIRST_EPOCHS: Final = 2**32
LEAP_MAX: Final = 2**20  # of an epoch, by one claim
POLL_MIN_MS: Final = 10
LEASE_TTL_MIN_MS: Final = 100
LEASE_TTL_MAX_MS: Final = 24 * 3_600 * 1_000
RESIDENT_MAX_MS: Final = 60 * 1_000
