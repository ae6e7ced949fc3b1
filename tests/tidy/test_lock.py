"""The lock file is complete, hashed, and says nothing about where packages come from."""

from __future__ import annotations

import re
import tomllib

from tests.tidy.tree import ROOT

LOCK = ROOT / "requirements" / "dev.txt"
PINNED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)")


def entries(text: str) -> dict[str, str]:
    """Package name to its entry: the pin and the lines that continue it."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if match := PINNED.match(line):
            name = normal(match["name"])
            found[name] = line
        elif line.strip() and not line.lstrip().startswith("#"):
            found[name] = found.get(name, "") + "\n" + line
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = config["project"]
    groups = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *config["dependency-groups"].values(),
    ]
    names = (re.match(r"[A-Za-z0-9._-]+", line) for group in groups for line in group)
    return {normal(match[0]) for match in names if match} - {normal(project["name"])}


def faults(text: str, wanted: set[str]) -> list[str]:
    missing = sorted(wanted - entries(text).keys())
    found = [f"{name} is declared, but not locked: run make lock" for name in missing]
    for name, entry in entries(text).items():
        if not PINNED.match(entry):
            found.append(f"not a pin: {entry.strip()}")
        elif "--hash=sha256:" not in entry:
            found.append(f"{name} has no hash")
    if "://" in text or re.search(r"^\s*(-i|-f|--index|--extra|--find|-e)\b", text, re.MULTILINE):
        found.append("the lock names a place to download from")
    return found


def test_lock_is_complete_hashed_and_without_addresses():
    found = faults(LOCK.read_text(), declared())
    assert not found, "\n".join(found)


def test_lock_rule_notices():
    good = "apsw==3.51.3.0 \\\n    --hash=sha256:00\n    # via outlast\n"
    assert faults(good, {"apsw"}) == []
    assert faults(good, {"apsw", "msgspec"})
    assert faults("apsw==3.51.3.0\n    # via outlast\n", {"apsw"})
    assert faults("apsw @ https://example.org/a.whl --hash=sha256:00\n", set())
    assert faults("--extra-index" + "-url x\n" + good, {"apsw"})
