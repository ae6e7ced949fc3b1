"""`outlast` with the words that it is given. `main` is called in processes of their own (`tests.forks`)."""

from __future__ import annotations

from outlast import cli


def main(*words: str) -> None:
    cli.main(words)
