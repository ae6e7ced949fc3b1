"""The table of HTTP statuses in the docs names every error, by itself or by a base of it."""

from __future__ import annotations

import re

from outlast import OutlastError, errors
from tests.tidy.tree import ROOT

ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (\d{3})\b.*\|$", re.MULTILINE)


def statuses() -> dict[str, int]:
    text = (ROOT / "docs/executions.md").read_text().partition("### In a web application")[2].partition("### ")[0]
    return {name.strip("` "): int(status) for names, status in ROW.findall(text) for name in names.split(",")}


def status_of(error: type[BaseException]) -> int:
    known = statuses()
    return next(known[base.__name__] for base in error.__mro__ if base.__name__ in known)


def test_the_table_names_errors_that_there_are():
    assert len(statuses()) > 10
    for name in statuses():
        assert issubclass(getattr(errors, name), OutlastError), name


def test_every_error_has_a_status():
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, OutlastError)]
    found = {error.__name__: status_of(error) for error in kinds}
    assert found["InvalidArguments"] == 422
    assert found["TokenExpired"] == 403
    assert found["CodecHookFailed"] == found["ReplyLost"] == 503
    assert found["WrongPlace"] == found["StoreFull"] == 500
    assert set(found.values()) == {403, 404, 409, 413, 422, 500, 503}
