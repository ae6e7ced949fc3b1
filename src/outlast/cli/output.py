"""What people and programs see. Answers go to stdout; everything that is said about them to stderr."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import IO, Any, TextIO, TypeVar, cast

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme

T = TypeVar("T")

WIDTH = 100
"""Where there is no terminal to ask."""
NARROW = 80
"""On fewer columns what is a line of a table elsewhere is several lines: words are not broken."""

THEME = Theme(
    {
        "ready": "cyan",
        "active": "bold blue",
        "blocked": "yellow",
        "suspended": "magenta",
        "succeeded": "green",
        "failed": "bold red",
        "expired": "bold red",
        "cancelled": "yellow",
        "skipped": "dim",
        "timed_out": "red",
        "interrupted": "yellow",
        "ok": "green",
        "warning": "yellow",
        "wrong": "bold red",
        "quiet": "dim",
        "head": "bold",
    }
)


_CONTROLS = {*range(32), *range(127, 160)} - {ord("\n"), ord("\t")}
_DIRECTIONS = {0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
"""What turns the order of the characters that follow: a terminal may show `gpj.exe` for what is `exe.jpg`."""
_LINE_ENDS = {0x2028, 0x2029}
_ESCAPED = {code: f"\\u{code:04x}" for code in _CONTROLS | _DIRECTIONS | _LINE_ENDS}


def harmless(text: str) -> str:
    """What executions say, as a terminal may see it: control characters do nothing there. JSON stays the same JSON."""
    return text.translate(_ESCAPED)


class Harmless:
    """The same for all that a renderable comes to. Its styles are not in its texts."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._renderable, options):
            yield Segment(harmless(segment.text), segment.style, segment.control)


class Unwritable(Exception):
    """The output cannot be written: its disk is full, for example."""

    def __init__(self, stream: TextIO, error: OSError) -> None:
        self.stream = stream
        super().__init__(f"the output cannot be written: {error.strerror or error}")


class Stream:
    """stdout or stderr, whose trouble is told apart from that of stores and files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._told(lambda: self._stream.write(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self._told(lambda: self._stream.writelines(lines))

    def flush(self) -> None:
        self._told(self._stream.flush)

    def _told(self, write: Callable[[], T]) -> T:
        try:
            return write()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Unwritable(self._stream, error) from error


class Output:
    """`out.show(table)` for people, `out.document({...})` for programs; a command does the one that is wanted."""

    def __init__(self, stdout: Console, stderr: Console, *, json: bool = False) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.json = json
        self.log: Callable[[str], object] | None = None
        """Where notes go instead of the terminal."""

    @classmethod
    def usual(cls) -> Output:
        file: object = sys.stdout
        if isinstance(file, io.TextIOWrapper):
            file.reconfigure(errors="backslashreplace")  # as stderr: a locale without ● is no reason to fail
        return cls(_console(stderr=False), _console(stderr=True))

    @property
    def narrow(self) -> bool:
        return self.stdout.width < NARROW

    def for_programs(self) -> Output:
        return Output(self.stdout, self.stderr, json=True)

    def show(self, *renderables: RenderableType) -> None:
        """Without the blanks that tables end their lines with."""
        with self.stdout.capture() as captured:
            for renderable in renderables:
                self.stdout.print(Harmless(renderable))
        self.stdout.file.writelines(f"{line.rstrip(' ')}\n" for line in captured.get().splitlines())
        self.stdout.file.flush()

    def line(self, text: str) -> None:
        """Plain text on stdout, as it is: for pipes."""
        self.stdout.print(Text(harmless(text)), soft_wrap=True)

    def document(self, document: dict[str, Any]) -> None:
        data = msgspec.json.format(msgspec.json.encode(document), indent=2)
        if self.stdout.encoding.startswith("utf"):
            self.line(data.decode())
        else:
            self.line(json.dumps(msgspec.json.decode(data), indent=2))  # what it cannot write is escaped, as JSON does

    def note(self, text: str, *, style: str = "quiet") -> None:
        """A word beside the answer; programs are spared."""
        if self.log is not None:
            self.log(text)
        elif not self.json:
            self.stderr.print(Text(harmless(text), style=style), soft_wrap=True)

    def complain(self, text: str) -> None:
        self.stderr.print(Text.assemble(("outlast: ", "wrong"), harmless(text)), soft_wrap=True)

    def fail(self, store: str | None, kind: str, text: str) -> None:
        if self.json:
            self.document({"store": store, "error": {"type": kind, "message": text}})
        else:
            self.complain(text)  # the store was named before


def _console(*, stderr: bool) -> Console:
    unset = {"COLUMNS"} if os.environ.get("COLUMNS") == "0" else set[str]()  # as a terminal of unknown width says
    env = {name: value for name, value in os.environ.items() if name not in unset}
    stream: TextIO | None = sys.stderr if stderr else sys.stdout  # None if it is closed
    file = None if stream is None else cast("IO[str]", Stream(stream))
    console = Console(stderr=stderr, file=file, theme=THEME, highlight=False, emoji=False, markup=False, _environ=env)
    if not console.is_terminal and "COLUMNS" not in env:
        console.width = WIDTH
    return console
