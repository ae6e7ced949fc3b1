"""What a name may be. Checked once, where a name enters; the rest of the code trusts it.

A caller's id has no `/`: children and members are named under their parent (`order-42/ship`) and live with it.
"""

from __future__ import annotations

import re

from outlast import limits
from outlast.errors import InvalidInput, InvalidName, LimitExceeded

RESERVED_PREFIX = "outlast:"
OWN_PREFIX = "outlast."
"""Workflows of the engine's own are named so: `outlast.map`."""
INTERRUPT = f"{RESERVED_PREFIX}interrupt"
"""The deferred that a graceful stop resolves."""


_CONTROL = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f]")
_KNOWN_MAX = 10_000
_known_names: set[str] = set()
_known_words: set[str] = set()
"""What was found good: the same few come with every start and every step."""


def check_name(what: str, name: object, *, max_chars: int = limits.NAME_MAX_CHARS) -> str:
    """`name` itself if it is a usable name: a non-empty string, not too long, printable."""
    if not isinstance(name, str):
        raise InvalidName(what, name, "must be a string")
    if not name:
        raise InvalidName(what, name, "must not be empty")
    if len(name) > max_chars:
        raise LimitExceeded(what, actual=len(name), limit=max_chars, unit="characters")
    if not name.isprintable():
        raise InvalidName(what, name, "must be printable, without control characters or line breaks")
    if name != name.strip():
        raise InvalidName(what, name, "must not begin or end with a space")
    return name


def check_recurring_name(what: str, name: str) -> str:
    """The same for names of which there are few, and which come again and again."""
    if name not in _known_names:
        check_name(what, name)
        if len(_known_names) < _KNOWN_MAX:
            _known_names.add(name)
    return name


def check_id(execution_id: object) -> str:
    """An id as a caller may give it."""
    checked = check_name("id", execution_id, max_chars=limits.ID_MAX_CHARS)
    if "/" in checked:
        raise InvalidName("id", execution_id, "must not contain '/': that names children under their parent")
    return checked


def check_word(what: str, word: object) -> str:
    """A lane, capability, version, workflow or tag key: also free of the separators that routes use."""
    if type(word) is str and word in _known_words:
        return word
    checked = check_name(what, word)
    for separator in (",", "|", " "):
        if separator in checked:
            raise InvalidName(what, word, f"must not contain {separator!r}")
    if len(_known_words) < _KNOWN_MAX:
        _known_words.add(checked)
    return checked


def id_made_of(what: str, word: str, unique: str) -> str:
    """An id for what was given none: its name, with something behind it that no other has."""
    if "/" in word:
        raise InvalidName(what, word, "must not contain '/' unless an id is given: its id is made of its name")
    most = limits.ID_MAX_CHARS - len(f"-{unique}/m")  # a member of it is named, too
    if len(word) > most:
        raise LimitExceeded(f"name of a {what} without an id", actual=len(word), limit=most, unit="characters")
    return f"{word}-{unique}"


def check_text(what: str, text: object) -> str:
    """Free text: any that can be encoded."""
    if not isinstance(text, str):
        raise InvalidInput(f"{what} must be a text, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} {text!r}: has half of a surrogate pair, which is no text") from None
    return text


def check_shown_text(what: str, text: str) -> str:
    """Free text that every store can keep, and a terminal show: without control characters but line breaks and tabs."""
    if _CONTROL.search(text):
        raise InvalidInput(f"{what} {text!r}: must not have control characters, but for line breaks and tabs")
    return text


def check_user_name(what: str, name: object) -> str:
    """A name chosen by a user, outside of the engine's own `outlast:` names."""
    checked = check_name(what, name)
    if checked.startswith(RESERVED_PREFIX):
        raise InvalidName(what, name, f"names that begin with {RESERVED_PREFIX!r} are reserved")
    return checked
