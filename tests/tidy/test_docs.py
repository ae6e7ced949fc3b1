"""The docs tell the truth about the tree: links lead somewhere, named files and tests exist.

Nothing in the repository is of one machine: no registry, no absolute path.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, relative, repository_files

FENCE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?(?P<target>[^)\s>]+)>?(?:\s+[\"'][^)]*)?\)")
REFERENCE = re.compile(r"^\s{0,3}\[[^\]]+\]:\s*<?(?P<target>[^\s>]+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*#*\s*$", re.MULTILINE)
EXTERNAL = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)

# A path of this repository in backticks, with an optional test: `src/…`, `tests/unit/x.py::test_name`.
PLACE = re.compile(r"`(?P<path>(?:src|tests|docs|examples|benchmarks)/[\w./*-]+)(?P<name>(?:::[\w\[\]-]+)*)`")
# These pages promise that each place in them exists; in a decision or the changelog a path may be history.
PAGES_OF_PLACES = ("docs/sources.md", "docs/guarantees.md")

# Written in pieces, so that this file passes its own rule.
NOT_FOR_TRACKED_FILES = {
    "a package registry": re.compile(
        "|".join([r"pypi" r"\.org", r"python" r"hosted\.org", r"npm" r"js\.(?:org|com)", r"yarn" r"pkg\.com"])
    ),
    "an index option": re.compile(r"^\s*--(?:extra-)?index" r"-url|^\s*--find" r"-links|^registry\s*=", re.MULTILINE),
    "a path of one machine": re.compile(r"(?<![\w.$})~*-])/(?:wor" r"k|roo" r"t|hom" r"e/\w+|User" r"s/\w+)/"),
}


def slug(heading: str) -> str:
    """The anchor that code hosts give a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text: str) -> set[str]:
    found: set[str] = set()
    for match in HEADING.finditer(FENCE.sub("", text)):
        base = name = slug(match["text"])
        count = 0
        while name in found:
            count += 1
            name = f"{base}-{count}"
        found.add(name)
    return found | set(re.findall(r"<a\s+(?:id|name)=[\"']([^\"']+)", text))


def broken_links(page: Path, text: str, root: Path) -> list[str]:
    """Relative links of a page that lead to no file, or to no heading of it."""
    prose = CODE.sub("", FENCE.sub("", text))
    found: list[str] = []
    for match in [*LINK.finditer(prose), *REFERENCE.finditer(prose)]:
        target = match["target"]
        if EXTERNAL.match(target):
            continue
        name, _, anchor = target.partition("#")
        path = (root / name.lstrip("/") if name.startswith("/") else page.parent / name) if name else page
        if path != page and not (path.exists() and path.resolve().is_relative_to(root.resolve())):
            found.append(f"{target}: no such file")
        elif anchor and path.suffix == ".md" and anchor not in anchors(text if path == page else path.read_text()):
            found.append(f"{target}: no such heading")
    return found


def broken_places(text: str, root: Path, *, plain_paths: bool) -> list[str]:
    """Files and tests named in backticks that do not exist; without `plain_paths`, only the tests."""
    found: list[str] = []
    for match in PLACE.finditer(text):
        path, names = match["path"], [name.partition("[")[0] for name in match["name"].split("::")[1:]]
        if not names:
            exists = any(root.glob(path)) if "*" in path else (root / path).exists()
            if plain_paths and not exists:
                found.append(f"{path}: no such file")
        elif not (root / path).is_file():
            found.append(f"{path}: no such file")
        elif not defines((root / path).read_text(), names):
            found.append(f"{path}: defines no {'::'.join(names)}")
    return found


def defines(source: str, names: list[str]) -> bool:
    """Whether a module has the function `name`, or `Class::name`, at that place."""
    body: list[ast.stmt] = ast.parse(source).body
    for name in names:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
                body = node.body
                break
        else:
            return False
    return True


def leaks(text: str) -> list[str]:
    return [
        f"line {text.count(chr(10), 0, match.start()) + 1}: {what}: {match[0].strip()}"
        for what, pattern in NOT_FOR_TRACKED_FILES.items()
        for match in pattern.finditer(text)
    ]


def pages() -> list[Path]:
    files = [path for path in repository_files() if path.suffix == ".md"]
    return [path for path in files if path.parent == ROOT or path.is_relative_to(ROOT / "docs")]


def test_links_resolve():
    found = [f"{relative(page)}: {f}" for page in pages() for f in broken_links(page, page.read_text(), ROOT)]
    assert not found, "\n".join(found)


def test_places_named_in_the_docs_exist():
    found = [
        f"{relative(page)}: {finding}"
        for page in pages()
        for finding in broken_places(page.read_text(), ROOT, plain_paths=relative(page) in PAGES_OF_PLACES)
    ]
    assert not found, "\n".join(found)


def test_tracked_files_name_no_registry_and_no_machine():
    found = [
        f"{relative(path)}: {finding}"
        for path in repository_files()
        for finding in leaks(path.read_bytes().decode("utf-8", errors="replace"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "[a](missing.md)",
        "[a](docs/page.md#no-such-heading)",
        "[a](#nowhere)",
        "![picture](docs/missing.svg 'title')",
        "[a]: missing.md",
        "[a](../outside.md)",
        "[`code`](missing.md)",
    ],
)
def test_link_rule_notices(tmp_path: Path, text: str):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# The `big` idea: once!\n")
    assert broken_links(tmp_path / "README.md", text, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "[a](docs/page.md) [b](docs/page.md#the-big-idea-once) [c](https://example.org/x.md) [d](docs)",
        "# Here\n[a](#here)",
        "```\n[a](missing.md)\n```\n`[a](missing.md)`",
    ],
)
def test_link_rule_leaves_alone(tmp_path: Path, text: str):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# The `big` idea: once!\n")
    assert broken_links(tmp_path / "README.md", text, tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "| x | `src/gone.py` |",
        "`tests/gone.py::test_a`",
        "`tests/here.py::test_b`",
        "`tests/here.py::test_nested`",
        "`tests/here.py::TestB::test_a`",
        "`tests/*/nothing_*.py`",
    ],
)
def test_place_rule_notices(tmp_path: Path, text: str):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "here.py").write_text("def test_a():\n    def test_nested(): ...\n# def test_b(): ...\n")
    assert broken_places(text, tmp_path, plain_paths=True)


def test_place_rule_leaves_alone(tmp_path: Path):
    (tmp_path / "tests").mkdir()
    source = "async def test_a(): ...\nclass TestB:\n    def test_c(self): ...\n"
    (tmp_path / "tests" / "here.py").write_text(source)
    text = "`tests/here.py` `tests/here.py::test_a` `tests/here.py::TestB::test_c`"
    more = "`tests/h*.py` `tests/here.py::test_a[x]`"
    assert broken_places(text + more, tmp_path, plain_paths=True) == []
    assert broken_places("`src/gone.py`", tmp_path, plain_paths=False) == []


@pytest.mark.parametrize(
    "text",
    [
        "https://py" + "pi.org/simple",
        "url = https://files.python" + "hosted.org/packages/x",
        "--extra-index" + "-url https://example.org",
        "see /wor" + "k/main/x",
        "cd /roo" + "t/x",
        "'/hom" + "e/someone/x'",
    ],
)
def test_leak_rule_notices(text: str):
    assert leaks(text)


def test_leak_rule_leaves_alone():
    text = "docs/work/x.md https://example.org/work/x ~/work/ $HOME/root/ /var/lib/outlast /v1/executions"
    assert leaks(text) == []
