"""What the commands say, without processes: why it waits, what the doctor thinks, how long that is."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.cli.doctor import clock_check, due_check, ready_check, workers_check
from outlast.cli.ls import reason_of, statuses
from outlast.client.info import info_of
from outlast.client.offers import Offers
from outlast.client.views.explanation import explain
from outlast.client.views.situation import Situation, Upstreams
from outlast.client.views.timeline import timeline
from outlast.client.views.words import age, duration, failure_line, moment, plain, shown
from outlast.errors import InvalidInput
from outlast.model.attempt import Attempt, Outcome
from outlast.model.execution import Execution, route_of
from outlast.model.flow import CancelPolicy, Flow, FlowState
from outlast.model.session import Offer
from outlast.model.status import TERMINAL, Status
from outlast.store.port import DueKind, Grade

NOW = 1_800_000_000_000
FAR = 253_402_300_800_000
"""The year 10000."""
IN_AN_HOUR = {"wake_at": NOW + 3_600_000}
ALIVE = Situation(NOW, {"w-1": NOW + 5_000})
ALONE = Situation(NOW, {"w-0": NOW - 5_000})
STATES = {"day/a": Status.FAILED, "day/b": Status.ACTIVE, **{f"day/{name}": Status.BLOCKED for name in "cdef"}}


def member_of(state: FlowState, policy: CancelPolicy | None = None) -> Situation:
    flow = Flow(namespace="default", id="day", state=state, policy=policy, created_at=NOW, change_id="")
    return Situation(NOW, {"w-1": NOW + 5_000}, flow=flow, upstreams=Upstreams(STATES, needed=2))


def execution(status: Status, **fields: Any) -> Execution:
    return Execution(
        namespace="default",
        id="order-42",
        workflow="checkout",
        version="2",
        lane="mail",
        route=route_of("checkout", "2", ("gpu",)),
        input_digest="",
        status=status,
        created_at=NOW - 60_000,
        **fields,
    )


def offered(*offers: Offer | None) -> Situation:
    """With so many workers alive, which offer this."""
    by_worker = {f"w-{number}": offer for number, offer in enumerate(offers)}
    return Situation(NOW, dict.fromkeys(by_worker, NOW + 5_000), offers=Offers(by_worker))


ELSEWHERE = Offer(namespace="default", lanes=("nope",), serves=(("checkout", "2"),), capabilities=("gpu",))
OTHERS = Offer(namespace="others", lanes=("mail",), serves=(("checkout", "2"),), capabilities=("gpu",))


@pytest.mark.parametrize(
    "status, fields, around, says",
    [
        (Status.READY, {"ready_at": NOW - 9_000}, ALONE, "no worker that serves it is alive"),
        (
            Status.READY,
            {"ready_at": NOW - 9_000},
            ALONE,
            "--lanes mail --capabilities gpu`, with workflow checkout ver",
        ),
        (Status.READY, {"ready_at": NOW - 9_000}, ALIVE, "1 worker is alive; if this lasts, none of them serves it"),
        (
            Status.READY,
            {"ready_at": NOW - 9_000},
            offered(ELSEWHERE, OTHERS),
            "Ready for 9s, but no live worker serves lane mail. Start one: `outlast worker MODULE:APP --lanes mail",
        ),
        (Status.READY, {"ready_at": NOW}, offered(OTHERS), "no live worker serves namespace default"),
        (Status.READY, {"ready_at": NOW}, offered(ELSEWHERE, None), "2 workers are alive; if this lasts"),
        (Status.READY, {"ready_at": NOW}, Situation(NOW, {"w-1": NOW + 1}, lane_paused=True), "lane mail is paused"),
        (Status.ACTIVE, {"worker": "w-1", "claimed_at": NOW - 3_000}, ALIVE, "Running on w-1 for 3s"),
        (
            Status.ACTIVE,
            {"worker": "w-0", "claimed_at": NOW},
            ALONE,
            "lapsed 5s ago; no other is alive to take it over",
        ),
        (Status.ACTIVE, {"worker": "w-1", "cancel_requested": True}, ALIVE, "Its cancel is requested"),
        (Status.BLOCKED, {"reason": "operator", "held": True}, ALIVE, "until `outlast release order-42`"),
        (Status.BLOCKED, {"reason": "delay", "wake_at": NOW + 90_000}, ALIVE, "(in 1m30s)"),
        (Status.BLOCKED, {"reason": "retry", "cause": "lease_lost"}, ALIVE, "its last worker died"),
        (Status.BLOCKED, {"reason": "delay", "wake_at": NOW - 90_000}, ALONE, "overdue: no worker with reconcilers"),
        (Status.BLOCKED, {"reason": "dependencies"}, ALIVE, "that it depends on"),
        (
            Status.BLOCKED,
            {"reason": "dependencies", "flow": "day"},
            member_of(FlowState.OPEN),
            "day/b (active), day/c (blocked), day/d (blocked), day/e (blocked), day/f (blocked), 1 more, of which 2",
        ),
        (Status.READY, {"ready_at": NOW}, member_of(FlowState.OPEN), "waits for a worker with room"),
        (
            Status.READY,
            {"ready_at": NOW, "cancel_requested": True},
            member_of(FlowState.STOPPED, CancelPolicy.CANCEL_ALL),
            "waits for a worker with room",
        ),
        (
            Status.READY,
            {"ready_at": NOW},
            member_of(FlowState.STOPPED, CancelPolicy.FLOW_ONLY),
            "it is not claimed. Its flow was cancelled (flow_only), which left it as it is: it does not go on until "
            "`outlast flows retry day`",
        ),
        (
            Status.SUSPENDED,
            {"reason": "event:plan"},
            member_of(FlowState.STOPPED, CancelPolicy.FLOW_ONLY),
            "Waits for event 'plan'. Its flow was cancelled (flow_only)",
        ),
        (
            Status.READY,
            {"ready_at": NOW},
            member_of(FlowState.STOPPED, CancelPolicy.CANCEL_ALL),
            "(cancel_all): the workers cancel it",
        ),
        (Status.READY, {"ready_at": NOW}, member_of(FlowState.REOPENING), "Its flow is being retried"),
        (Status.READY, {"ready_at": NOW}, member_of(FlowState.STAGING), "still being started"),
        (Status.SUSPENDED, {"reason": "timer", "wake_at": NOW + 1}, ALIVE, "Sleeps until"),
        (Status.SUSPENDED, {"reason": "event:plan"}, ALIVE, "Waits for event 'plan'"),
        (Status.SUSPENDED, {"reason": "event:plan", **IN_AN_HOUR, "awaits": "x"}, ALIVE, "event 'plan' until"),
        (
            Status.SUSPENDED,
            {"reason": "event:plan", **IN_AN_HOUR},
            ALIVE,
            "'plan'. A sleep or a timeout of its code is",
        ),
        (Status.SUSPENDED, {"reason": "event:outlast:update"}, ALIVE, "Waits for an update: `outlast update order-42"),
        (Status.SUSPENDED, {"reason": "deferred:ok", "held": True}, ALIVE, "It is also held"),
        (Status.SUSPENDED, {"reason": "child:order-42/ship"}, ALIVE, "`outlast show order-42/ship`"),
        (
            Status.SUSPENDED,
            {"reason": "child:nightly/"},
            ALIVE,
            "its flow 'nightly' to end: `outlast flows show nightly`",
        ),
        (Status.SUSPENDED, {"reason": "deferred:outlast:interrupt"}, ALIVE, "Waits to be interrupted."),
        (Status.SUSPENDED, {"reason": "version"}, ALIVE, "what its journal recorded, or no longer takes its arguments"),
        (Status.SUSPENDED, {"reason": "capability:gpu"}, ALIVE, "--capabilities gpu"),
        (Status.SUSPENDED, {"reason": "quota:stripe"}, ALIVE, "Waits for quota 'stripe'"),
        (Status.EXPIRED, {"cause": "crashes", "finished_at": NOW}, ALIVE, "without any progress in between"),
        (Status.EXPIRED, {"cause": "crashes_in_life", "finished_at": NOW}, ALIVE, "counted over its whole life"),
        (Status.FAILED, {"cause": "failed", "finished_at": NOW - 1_000}, ALIVE, "`outlast retry order-42`"),
        (
            Status.FAILED,
            {"cause": "failed", "finished_at": NOW - 1_000, "flow": "day"},
            ALIVE,
            "`outlast flows retry day`",
        ),
        (
            Status.FAILED,
            {"cause": "failed", "finished_at": NOW - 1_000},
            Situation(NOW, {}, undone=True),
            "Its undos have run: to begin anew, start it with `--id order-42 --if-exists restart`.",
        ),
        (Status.SUCCEEDED, {"finished_at": NOW - 1_000}, ALIVE, "Succeeded 1s ago, 59s after its start."),
    ],
)
def test_why_it_waits_is_said_in_plain_words(status: Status, fields: dict[str, Any], around: Situation, says: str):
    assert says in explain(execution(status, **fields), around).text


def test_a_list_says_that_no_live_worker_serves_the_lane():
    ready = execution(Status.READY, ready_at=NOW)
    assert reason_of(ready, NOW, served=True, offers=offered(ELSEWHERE).offers) == "no live worker serves lane mail"
    assert (
        reason_of(ready, NOW, served=True, offers=offered(OTHERS).offers) == "no live worker serves namespace default"
    )
    assert reason_of(ready, NOW, served=True, offers=offered(ELSEWHERE, None).offers) == "needs gpu"


def test_the_doctor_says_what_is_wrong_and_what_to_do():
    assert clock_check(20).grade is Grade.OK
    assert clock_check(-2_000).grade is Grade.WARNING
    assert "ahead of" in clock_check(60_000).found
    assert workers_check(0, 3, 0).grade is Grade.OK
    assert workers_check(2, 0, 9).grade is Grade.OK
    assert "start a worker" in str(workers_check(0, 3, 9).advice)
    assert ready_check("default/mail", 4, 1_000, 0).grade is Grade.OK
    assert ready_check("default/mail", 4, 100_000, 2).grade is Grade.WARNING
    assert ready_check("default/mail", 4, 100_000, 0).grade is Grade.WRONG
    for kind in DueKind:
        assert due_check(kind, 0, 0, 1).grade is Grade.OK
        assert due_check(kind, 5, 100, 1).grade is Grade.OK
        late = due_check(kind, 5, 86_400_000, 1)
        assert late.grade is not Grade.OK
        assert "--no-reconcilers" in str(late.advice)


def test_statuses_by_name_and_by_group():
    assert statuses(("failed,expired", "ready")) == {Status.FAILED, Status.EXPIRED, Status.READY}
    assert statuses(("ended",)) == TERMINAL
    assert statuses(("open",)) == set(Status) - TERMINAL
    with pytest.raises(InvalidInput, match="no such status"):
        statuses(("done",))


@pytest.mark.parametrize(
    "ms, words",
    [
        (0, "0ms"),
        (850, "850ms"),
        (3_000, "3s"),
        (3_249, "3.2s"),
        (42_000, "42s"),
        (250_000, "4m10s"),
        (86_400_000, "1d"),
    ],
)
def test_durations_are_short(ms: int, words: str):
    assert duration(ms) == words


def test_ages_have_one_unit():
    assert [age(ms) for ms in (5, 61_000, 7_300_000, 200_000_000)] == ["now", "1m", "2h", "2d"]


def test_a_time_that_no_calendar_has_is_shown_as_late_as_one_can_say():
    sleeper = execution(Status.SUSPENDED, reason="timer", wake_at=FAR)
    assert str(info_of(sleeper).wake_at) == "9999-12-30 00:00:00+00:00"
    assert moment(FAR, now=NOW).startswith("9999-12-")
    assert "until 9999-12-" in explain(sleeper, ALIVE).text


def test_an_attempt_has_ended_before_the_next_one_begins_also_in_one_millisecond():
    def attempt(number: int, started_at: int, ended_at: int | None, outcome: Outcome | None) -> Attempt:
        return Attempt(
            namespace="default",
            execution="order-42",
            generation=1,
            number=number,
            epoch=number,
            worker=f"w-{number}",
            started_at=started_at,
            ended_at=ended_at,
            outcome=outcome,
            change_id="",
        )

    first = attempt(1, NOW - 9_000, NOW, Outcome.INTERRUPTED)
    second = attempt(2, NOW, NOW, Outcome.FAILED)
    lines = timeline(execution(Status.READY), [first, second], [], [], NOW)
    assert [line.what for line in lines] == [
        "started",
        "attempt 1 on w-1",
        "attempt 1 ended",
        "attempt 2 on w-2",
        "attempt 2 ended",
    ]


def test_values_that_a_codec_sealed_are_only_counted():
    assert plain(b'{"a": 1}') == {"a": 1}
    assert plain(b"\xff\x00sealed") == {"sealed_bytes": 8}
    assert "sealed" in shown(b"\xff\x00sealed")
    assert failure_line(b'{"type": "builtins:ValueError", "message": "no"}') == "ValueError: no"
