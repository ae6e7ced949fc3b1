"""The command line: one file per command. It translates and shows; the rules are elsewhere."""

from outlast.cli.main import main

__all__ = ["main"]
