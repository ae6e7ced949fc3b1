"""Finds the line of user code that an error came from, in the text of its traceback.

The text is what a failure keeps: it reads the same in the process that raised the error and in any other, and has the
remote traceback of an error that a step or a child execution raised elsewhere.
"""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in ([^\n]+)')
_NEXT_ERROR = re.compile(
    r"^[ |+]*(?:The above exception was the direct cause of|During handling of the above exception, another)",
    re.MULTILINE,
)
_OUTLAST = f"{Path(__file__).parent.parent}{os.sep}"
_LIBRARY = tuple({path + os.sep for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name))})


def user_line(traceback: str) -> str:
    """`shop.py:41 in charge`, or nothing if no frame of user code is in the text.

    An error that Outlast raised into the workflow's code was raised first by a step or a child: its own line, in the
    remote traceback before, says more than the line that awaited it."""
    awaited_at = ""
    for section in reversed(_NEXT_ERROR.split(traceback)):
        frames = _FRAME.findall(section)
        if not frames:
            continue
        own = [frame for frame in frames if _is_user(frame[0])] or [frame for frame in frames if _is_code(frame[0])]
        if own and not frames[-1][0].startswith(_OUTLAST):
            return _shown(*own[-1])
        if own and not awaited_at:
            awaited_at = _shown(*own[-1])
    return awaited_at


def _is_code(path: str) -> bool:
    return not path.startswith(("<", _OUTLAST)) and ("site-packages" in path or not path.startswith(_LIBRARY))


def _is_user(path: str) -> bool:
    return (
        _is_code(path) and f"{os.sep}site-packages{os.sep}" not in path and f"{os.sep}dist-packages{os.sep}" not in path
    )


def _shown(path: str, line: str, function: str) -> str:
    return f"{path.removeprefix(f'{Path.cwd()}{os.sep}')}:{line} in {function}"
