"""`outlast COMMAND`: the global options, the table of commands, and what becomes of errors.

Exit codes: 0 done; 1 failed, refused or not found; 2 what was written cannot be used; 130 interrupted.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, TextIO

from cyclopts import App, CycloptsError, Group, Parameter

from outlast import __version__
from outlast.cli.cancel import cancel
from outlast.cli.context import FAILED, USAGE, Context, Failed
from outlast.cli.copy import copy
from outlast.cli.doctor import doctor
from outlast.cli.flows import flows
from outlast.cli.fork import fork
from outlast.cli.hold import hold
from outlast.cli.ls import ls
from outlast.cli.migrate import migrate
from outlast.cli.output import Output, Unwritable
from outlast.cli.purge import purge
from outlast.cli.query import query
from outlast.cli.release import release
from outlast.cli.replay import replay
from outlast.cli.resolve import resolve
from outlast.cli.retry import retry
from outlast.cli.send import send
from outlast.cli.show import show
from outlast.cli.start import start
from outlast.cli.tokens import tokens
from outlast.cli.update import update
from outlast.cli.worker import worker
from outlast.errors import InvalidInput, OutlastError

OK, INTERRUPTED = 0, 130

COMMANDS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Run": (worker, start),
    "Look": (ls, show, flows, doctor, replay, query),
    "Act": (send, update, resolve, cancel, retry, fork, hold, release),
    "Keep": (migrate, copy, purge, tokens),
}
"""Every command, in the order and under the headings of `outlast --help`."""

HELP = "Durable execution for Python: code that outlasts the process that runs it."
EXAMPLES = """\
Examples:
  outlast worker shop:app --processes 4
  outlast start shop:app checkout --id order-7 --arg '{"number": 7, "cents": 5}'
  outlast show order-7 --url sqlite:///shop.db
  outlast ls --status failed --url sqlite:////var/lib/shop/outlast.db
"""


def main(tokens: Sequence[str] | None = None) -> None:
    """The console script. Always ends in `SystemExit`."""
    out = Output.usual()
    app = build(out)
    words = list(sys.argv[1:] if tokens is None else tokens)
    # Asked of the words themselves: a line that cannot be parsed has no options yet.
    for_people = "--json" not in words
    try:
        code = app.meta(words, result_action="return_value", exit_on_error=False, print_error=for_people)
    except CycloptsError as error:
        if for_people:
            out.note(f"`{' '.join(('outlast', *(error.command_chain or ())))} --help` shows how it is written")
        else:
            out.for_programs().fail(None, InvalidInput.__name__, str(error))
        code = USAGE
    except KeyboardInterrupt:
        out.complain("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough (`outlast ls | head`): not worth a traceback at exit.
        _give_up(sys.stdout)
        code = FAILED
    except Unwritable as unwritable:
        _give_up(unwritable.stream)
        with suppress(Unwritable):
            out.complain(str(unwritable))
        code = FAILED
    raise SystemExit(code)


def _give_up(stream: TextIO) -> None:
    """What is left of it goes nowhere, instead of failing once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def build(out: Output) -> App:
    """The parser. `app.meta` knows the global options, wherever on the line they stand."""
    app = App(
        name="outlast",
        help=HELP,
        help_epilogue=EXAMPLES,
        help_format="plaintext",
        version=f"outlast {__version__}",
        console=out.stdout,
        error_console=out.stderr,
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(negative=(), show_default=False),
        group_commands=Group("Options", sort_key=9),
    )
    app.meta.suppress_keyboard_interrupt = False  # else it exits without a word
    app.meta.group_parameters = Group("Store and output (every command)", sort_key=8)
    for position, (heading, commands) in enumerate(COMMANDS.items()):
        group = Group(heading, sort_key=position)
        for order, command in enumerate(commands):
            summary, examples = _help_of(command)
            app.command(command, help=summary, help_epilogue=examples, group=group, sort_key=order)

    @app.meta.default
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        url: Annotated[
            str | None,
            Parameter(help="The store, such as sqlite:///file.db. [default: $OUTLAST_URL, else sqlite:///outlast.db]"),
        ] = None,
        namespace: Annotated[
            str | None, Parameter(help="Whose executions. [default: $OUTLAST_NAMESPACE, else default]")
        ] = None,
        json: Annotated[bool, Parameter(help="One JSON document on stdout, for programs.")] = False,
    ) -> int:
        command, bound, ignored = app.parse_args(tokens)
        context = Context(out=out.for_programs() if json else out, given_url=url, given_namespace=namespace)
        extra = {"context": context} if "context" in ignored else {}
        return _outcome(context, lambda: command(*bound.args, **bound.kwargs, **extra))

    return app


def _help_of(command: Callable[..., Any]) -> tuple[str, str]:
    """A command's docstring: what it does, and its examples, which are shown last."""
    text = inspect.cleandoc(command.__doc__ or "")
    summary, marker, examples = text.partition("Examples:")
    # A line of the source is not a line of the terminal: only an empty one ends a paragraph.
    paragraphs = [" ".join(paragraph.split()) for paragraph in summary.strip().split("\n\n")]
    return "\n\n".join(paragraphs), marker + examples + "\n"


def _outcome(context: Context, command: Callable[[], Any]) -> int:
    """The exit code; an error of ours is a sentence, not a traceback."""
    try:
        context.check()
        answer = command()
        code = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
        return code if isinstance(code, int) else OK
    except Failed as failed:
        context.out.fail(context.shown_store, failed.kind, str(failed))
        return failed.code
    except OutlastError as error:
        context.out.fail(context.shown_store, type(error).__name__, str(error))
        return USAGE if isinstance(error, InvalidInput) else FAILED
