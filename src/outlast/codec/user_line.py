"""Finds the line of user code that an error came from, in the text of its traceback.

The text is what a failure keeps: it reads the same in the process that raised the error and in any other, and has the
remote traceback of an error that a step or a child execution raised elsewhere.
"""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path
from traceback import walk_tb

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
        line = _innermost(frames)
        if line and not frames[-1][0].startswith(_OUTLAST):
            return line
        awaited_at = awaited_at or line
    return awaited_at


def raised_at(error: BaseException) -> str:
    """The same of an error that was raised in this process."""
    frames = [
        (frame.f_code.co_filename, str(line), frame.f_code.co_name) for frame, line in walk_tb(error.__traceback__)
    ]
    return _innermost(frames)


def _innermost(frames: list[tuple[str, str, str]]) -> str:
    """Of the user's own code; else of a library that is not Python's."""
    for belongs in (_is_user, _is_code):
        for path, line, function in reversed(frames):
            if belongs(path):
                return f"{path.removeprefix(f'{Path.cwd()}{os.sep}')}:{line} in {function}"
    return ""


def _is_code(path: str) -> bool:
    return not path.startswith(("<", _OUTLAST)) and ("site-packages" in path or not path.startswith(_LIBRARY))


def _is_user(path: str) -> bool:
    return _is_code(path) and "site-packages" not in path and "dist-packages" not in path
