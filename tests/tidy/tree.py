"""What the tidy tests read: the files of the package and of the repository.

A tidy rule is a function from a file's text to findings, one line of prose each. Every rule is tried on small
bad samples too, so that a rule that stopped noticing anything fails its own test.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "outlast"

SKIPPED_FOLDERS = {".git", ".venv", ".cache", ".hypothesis", "node_modules", "__pycache__", "build", "dist"}


def package_files(*suffixes: str) -> list[Path]:
    """The package's files with one of these suffixes, in a stable order."""
    return sorted(
        path
        for path in PACKAGE.rglob("*")
        if path.suffix in suffixes and not SKIPPED_FOLDERS.intersection(path.relative_to(ROOT).parts)
    )


def repository_files() -> list[Path]:
    """What git tracks or would track; without git (an unpacked sdist), every file outside of build output."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        paths = [ROOT / name for name in listing.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [
            path for path in ROOT.rglob("*") if not SKIPPED_FOLDERS.intersection(path.relative_to(ROOT).parts[:-1])
        ]
    return sorted(path for path in paths if path.is_file())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, wherever it stands; `from a import b` gives both `a` and `a.b`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                base = "." * level + (module or "")
                if module:
                    yield node.lineno, base
                for alias in names:
                    yield node.lineno, f"{base}.{alias.name}" if module else base + alias.name
            case _:
                pass


def absolute(name: str, module: str, *, is_package: bool) -> str:
    """Resolve a relative import (`..port`) made inside `module`."""
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    parts = module.split(".")
    base = parts[: len(parts) - level + (1 if is_package else 0)]
    return ".".join([*base, *filter(None, [name[level:]])])


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def docstrings(tree: ast.AST) -> set[int]:
    """The ids of the constant nodes that are docstrings."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(id(first.value))
    return found


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of every string or bytes constant but docstrings; parts of f-strings included."""
    skipped = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in skipped:
            if isinstance(node.value, str):
                yield node.lineno, node.value
            elif isinstance(node.value, bytes):
                yield node.lineno, node.value.decode("latin-1")


def without_comments(text: str, *, lua: bool = False) -> str:
    """SQL or Lua with its comments blanked out, lines kept; a comment mark inside of a string is text."""
    out: list[str] = []
    i = 0
    quote = ""
    while i < len(text):
        if quote:
            out.append(text[i])
            if lua and text[i] == "\\" and i + 1 < len(text):
                out.append(text[i + 1])
                i += 1
            elif text[i] == quote:
                quote = ""
            i += 1
            continue
        end = -1
        if lua and text.startswith("--[[", i):
            end = _end(text, "]]", i)
        elif text.startswith("--", i):
            end = text.find("\n", i) if "\n" in text[i:] else len(text)
        elif not lua and text.startswith("/*", i):
            end = _end(text, "*/", i)
        if end >= 0:
            out.append("".join(c if c == "\n" else " " for c in text[i:end]))
            i = end
            continue
        if text[i] in "'\"":
            quote = text[i]
        out.append(text[i])
        i += 1
    return "".join(out)


def _end(text: str, mark: str, start: int) -> int:
    found = text.find(mark, start)
    return len(text) if found < 0 else found + len(mark)
