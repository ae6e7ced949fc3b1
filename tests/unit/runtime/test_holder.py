"""The holder port can be carried: what crosses it is plain data, as its annotations say."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import msgspec
import pytest

from outlast.runtime import holder as port
from tests.acceptance.carried import QUESTIONS, answer_type

CARRIED = ("claim", "renew", "held", "ask", "tell", "submit", "hand_on", "grow", "append", "time")
"""All but `transact`, whose function stays where it is; and the recorder that `submit` calls back."""


@pytest.mark.parametrize("question", [pytest.param(kind, id=kind.__name__) for kind in QUESTIONS])
def test_a_question_and_its_answer_are_plain_data(question: type[Any]):
    for kind in (question, answer_type(question)):
        msgspec.msgpack.Decoder(kind)


def test_questions_of_several_attempts_share_a_message():
    asked = [port.Look(), port.OldestEvent("go"), port.EndOfChild("it/one", None)]
    assert (
        msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=list[port.Look | port.OldestEvent | port.EndOfChild])
        == asked
    )


@pytest.mark.parametrize("method", CARRIED)
def test_a_call_of_the_port_is_plain_data(method: str):
    hints = typing.get_type_hints(getattr(port.Holder, method))
    for name, kind in hints.items():
        if name in ("question", "recorder") or (name, method) == ("return", "ask"):
            continue
        msgspec.msgpack.Decoder(kind)


def test_the_whole_port_is_carried_or_said_not_to_be():
    methods = {name for name, _ in inspect.getmembers(port.Holder, inspect.isfunction) if not name.startswith("_")}
    assert methods == {*CARRIED, "transact"}
