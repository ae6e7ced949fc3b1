"""Why an execution waits, runs or has ended: a code, the facts, the words, and the action that would end the wait.

`explain` is pure. Each status, and each reason of an execution that waits, has one function in a table here. What
stands beside the main cause (a hold, a deadline, a cancelled flow) is an explanation of its own, in `beside`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct, structs

from outlast.client.info import moment_or_none
from outlast.client.views.situation import Situation
from outlast.client.views.words import duration, moment, plural, relative
from outlast.model.event import UPDATE
from outlast.model.execution import Execution, parse_route
from outlast.model.flow import CancelPolicy, FlowState
from outlast.model.names import INTERRUPT
from outlast.model.record import settled
from outlast.model.status import TIMED_REASONS, Reason, Status

OVERDUE_MS = 5_000
"""A wake-up that is this late means that no reconciler runs."""
NAMED_MAX = 5
"""The number of upstreams that are named."""

CAUSES = {
    "failed": "its last attempt failed",
    "attempt_timeout": "its last attempt ran longer than its timeout",
    "lease_lost": "its last worker died or lost its lease",
    "crashes": "its worker died too often while running it, without any progress in between",
    "crashes_in_life": "its worker died too often while running it, counted over its whole life",
    "deadline": "its deadline passed",
    "cancelled": "it was cancelled",
    "codec": "the app's codec could not read or write a value (the worker's log says which)",
}


class Action(Struct, frozen=True, kw_only=True):
    """What a person can do about it: `verb` and `target` for a button, `command` for a terminal. The verb `show` only
    leads to what is waited for."""

    verb: str
    target: str | None
    command: str


class Explanation(Struct, frozen=True, kw_only=True):
    """Why an execution is as it is. `code` is stable, `words` are for people, `facts` for
    programs."""

    code: str
    words: str
    facts: dict[str, Any] = {}
    action: Action | None = None
    beside: tuple[Explanation, ...] = ()

    @property
    def text(self) -> str:
        """All of its words: one or more sentences."""
        return " ".join([self.words, *(one.words for one in self.beside)])


def explain(e: Execution, s: Situation) -> Explanation:
    """Why it waits; what it does, if it runs; what it came to, if it has ended."""
    if e.status.terminal:
        return _ended(e, s)
    main = {Status.READY: _ready, Status.ACTIVE: _active}.get(e.status, _waiting)(e, s)
    beside = (_closed_flow(e, s), _unwinding(e), _deadline(e, s))
    return structs.replace(main, beside=(*main.beside, *(one for one in beside if one is not None)))


def _command(verb: str, target: str, *more: str) -> Action:
    return Action(verb=verb, target=target, command=shlex.join(["outlast", *verb.split(), target]) + "".join(more))


# ---- ready --------------------------------------------------------------------------------------------------------


def _ready(e: Execution, s: Situation) -> Explanation:
    ready_at = settled(e.ready_at)
    since = f"Ready for {duration(max(0, s.now - (ready_at or s.now)))}"
    facts: dict[str, Any] = {"ready_at": moment_or_none(ready_at), "workers_alive": s.alive}

    def because(code: str, words: str, action: Action | None = None, **more: Any) -> Explanation:
        return Explanation(code=code, words=f"{since}{words}", facts=facts | more, action=action)

    worker = Action(verb="worker", target=e.lane, command=_worker_command(e))
    wanted = f"`{worker.command}`, with workflow {e.workflow} version {e.version}"
    if _closed_flow(e, s):
        return because("flow", ", but it is not claimed.", flow=e.flow)
    if s.lane_paused:
        paused = f", but lane {e.lane} is paused: nothing in it is claimed until it is resumed."
        return because("lane_paused", paused, lane=e.lane)
    missing = s.offers.reason(e)
    if missing == Reason.VERSION:
        offered = s.offers.of_workflow(e)
        words = f", but no live worker has version {e.version} of {e.workflow}: {_offered(offered, s)}. Start {wanted}."
        return because("version", words, worker, version=e.version, offered=offered)
    if missing is not None:
        word = missing.partition(":")[2]
        words = f", but no live worker that has {e.workflow} offers {word!r}. Start {wanted}."
        return because("capability", words, worker, capability=word)
    if not s.alive:
        return because("no_worker", f", but no worker that serves it is alive. Start one: {wanted}.", worker)
    if unserved := s.offers.unserved(e):
        return because("unserved", f", but no live worker serves {unserved}. Start one: {wanted}.", worker, lane=e.lane)
    words = (
        f": waits for a worker with room. {plural(len(s.alive), 'worker')} {_are(s.alive)} alive; "
        f"if this lasts, none of them serves it: {wanted}."
    )
    return because("room", words, worker)


def _worker_command(e: Execution) -> str:
    """How to start a worker that takes it."""
    requires = sorted(parse_route(e.route).requires)
    options = "" if e.namespace == "default" else f" --namespace {e.namespace}"
    options += "" if e.lane == "default" else f" --lanes {e.lane}"
    options += f" --capabilities {','.join(requires)}" if requires else ""
    return f"outlast worker MODULE:APP{options}"


def _offered(offered: dict[str, list[str]], s: Situation) -> str:
    if not offered:
        return f"{plural(len(s.alive), 'worker')} {_are(s.alive)} alive, none with any version of it"
    return "offered are " + ", ".join(f"version {version} (by {', '.join(who)})" for version, who in offered.items())


def _are(many: list[str]) -> str:
    return "is" if len(many) == 1 else "are"


# ---- active -------------------------------------------------------------------------------------------------------


def _active(e: Execution, s: Situation) -> Explanation:
    since = settled(e.claimed_at) or s.now
    expires_at = s.sessions.get(e.worker or "")
    facts: dict[str, Any] = {"worker": e.worker, "claimed_at": moment_or_none(since), "attempt": e.attempt}
    if expires_at is None or expires_at <= s.now:
        gone = "" if expires_at is None else f" {relative(expires_at, now=s.now)}"
        taker = "another takes it over within seconds" if s.alive else "no other is alive to take it over: start one"
        words = f"Held by {e.worker}, whose session lapsed{gone}; {taker}."
        worker = None if s.alive else Action(verb="worker", target=e.lane, command=_worker_command(e))
        main = Explanation(code="session_lapsed", words=words, facts=facts, action=worker)
    else:
        words = f"Running on {e.worker} for {duration(max(0, s.now - since))}, attempt {e.attempt}."
        main = Explanation(code="running", words=words, facts=facts)
    return structs.replace(main, beside=tuple(_beside_running(e, s)))


def _beside_running(e: Execution, s: Situation) -> list[Explanation]:
    found: list[Explanation] = []
    if s.standstill is not None:
        words = (
            f"Its code awaits something that no durable operation can end, at {', '.join(s.standstill.lines)}: only a "
            "cancel or a time limit ends that."
        )
        stands = {"lines": s.standstill.lines}
        found.append(Explanation(code="standstill", words=words, facts=stands, action=_command("cancel", e.id)))
    if e.attempt_deadline_at is not None:
        at = settled(e.attempt_deadline_at) or 0
        words = f"This attempt times out {relative(at, now=s.now)}."
        found.append(Explanation(code="attempt_timeout", words=words, facts={"at": moment_or_none(at)}))
    if e.cancel_requested:
        words = "Its cancel is requested: the code is told at its next await or step."
        found.append(Explanation(code="cancel_requested", words=words))
    if e.held:
        words = "It is to be held: it stops when it next waits."
        found.append(Explanation(code="hold_requested", words=words, action=_command("release", e.id)))
    return found


# ---- blocked and suspended ----------------------------------------------------------------------------------------


class _Wait(NamedTuple):
    """A reason in its parts: `event:plan` has the name `plan`. `until` is empty, or ` until …`."""

    e: Execution
    s: Situation
    name: str
    until: str

    def is_because(self, code: str, words: str, action: Action | None = None, **facts: Any) -> Explanation:
        known = {"reason": self.e.reason, "wake_at": moment_or_none(settled(self.e.wake_at))}
        return Explanation(code=code, words=words, facts=known | facts, action=action)


def _waiting(e: Execution, s: Situation) -> Explanation:
    kind, _, name = (e.reason or "").partition(":")
    wake_at = settled(e.wake_at)
    due = "" if wake_at is None else f"{moment(wake_at, now=s.now)} ({relative(wake_at, now=s.now)})"
    alone = bool(e.awaits) or kind in TIMED_REASONS  # else the time may be that of something beside it
    wait = _Wait(e, s, name, f" until {due}" if due and alone else "")
    main = WAITS.get(kind, _other)(wait)
    beside: list[Explanation] = []
    if due and not alone and e.status is Status.SUSPENDED and not e.held:
        words = f"A sleep or a timeout of its code is due at {due}."
        beside.append(Explanation(code="timer_beside", words=words, facts={"at": moment_or_none(wake_at)}))
    if e.held and kind != Reason.OPERATOR:
        release = _command("release", e.id)
        words = f"It is also held: `{release.command}`."
        beside.append(Explanation(code="held", words=words, action=release))
    if wake_at is not None and wake_at < s.now - OVERDUE_MS and not e.held:
        words = "That is overdue." if s.alive else "That is overdue: no worker with reconcilers is alive."
        worker = None if s.alive else Action(verb="worker", target=e.lane, command="outlast worker MODULE:APP")
        beside.append(Explanation(code="overdue", words=words, action=worker))
    return structs.replace(main, beside=tuple(beside))


def _operator(w: _Wait) -> Explanation:
    release = _command("release", w.e.id)
    return w.is_because("operator", f"Held by an operator until `{release.command}`.", release)


def _delay(w: _Wait) -> Explanation:
    return w.is_because("delay", f"Delayed{w.until}, as its start asked for.")


def _retry(w: _Wait) -> Explanation:
    cause = "a step failed" if w.e.status is Status.SUSPENDED else CAUSES.get(w.e.cause or "", "a step failed")
    return w.is_because("retry", f"Waits{w.until} before it is tried again: {cause}.", cause=w.e.cause)


def _timer(w: _Wait) -> Explanation:
    return w.is_because("timer", f"Sleeps{w.until}.")


def _dependencies(w: _Wait) -> Explanation:
    """Names the upstreams, first those that have not ended."""
    if w.s.upstreams is None:
        return w.is_because("dependencies", "Waits for the executions that it depends on.")
    states = sorted(w.s.upstreams.states.items(), key=lambda one: one[1].terminal)
    needed = w.s.upstreams.needed
    named = [f"{upstream} ({status})" for upstream, status in states[:NAMED_MAX]]
    named += [f"{len(states) - NAMED_MAX:,} more"] if len(states) > NAMED_MAX else []
    of_which = f", of which {needed:,} must succeed" if needed < len(states) else ""
    draw = _command("flows show", w.e.flow or "")
    words = f"Waits for what it depends on: {', '.join(named)}{of_which}. `{draw.command}` draws them all."
    return w.is_because("dependencies", words, draw, upstreams=dict(states), needed=needed)


def _version(w: _Wait) -> Explanation:
    words = (
        f"The code of {w.e.workflow} version {w.e.version} no longer does what its journal recorded, or no longer "
        "takes its arguments. Deploy code that does (the worker's log says which, with the line), or register "
        "the change as a new version."
    )
    return w.is_because("version", words, workflow=w.e.workflow, version=w.e.version)


def _event(w: _Wait) -> Explanation:
    if w.name == UPDATE:
        update = _command("update", w.e.id, " NAME VALUE")
        return w.is_because("update", f"Waits for an update{w.until}: `{update.command}`.", update)
    send = _command("send", w.e.id, f" {shlex.quote(w.name)} VALUE")
    return w.is_because("event", f"Waits for event {w.name!r}{w.until}.", send, name=w.name)


def _deferred(w: _Wait) -> Explanation:
    if w.name == INTERRUPT:
        return w.is_because("interrupt", f"Waits to be interrupted{w.until}.")
    resolve = _command("resolve", w.e.id, f" {shlex.quote(w.name)} VALUE")
    return w.is_because("deferred", f"Waits for deferred {w.name!r} to be resolved{w.until}.", resolve, name=w.name)


def _child(w: _Wait) -> Explanation:
    if w.name.endswith("/"):
        flow = w.name[:-1]
        show = _command("flows show", flow)
        words = f"Waits for its flow {flow!r} to end{w.until}: `{show.command}`."
        return w.is_because("flow_end", words, show, flow=flow)
    show = _command("show", w.name)
    words = f"Waits for its child {w.name!r} to end{w.until}: `{show.command}`."
    return w.is_because("child", words, show, child=w.name)


def _quota(w: _Wait) -> Explanation:
    return w.is_because("quota", f"Waits for quota {w.name!r}{w.until}.", name=w.name)


def _budget(w: _Wait) -> Explanation:
    return w.is_because("budget", f"Waits for budget {w.name!r}{w.until}.", name=w.name)


def _capability(w: _Wait) -> Explanation:
    command = f"outlast worker MODULE:APP --capabilities {w.name}"
    worker = Action(verb="worker", target=w.e.lane, command=command)
    return w.is_because("capability", f"Waits for a worker that offers {w.name!r}: `{command}`.", worker, name=w.name)


def _other(w: _Wait) -> Explanation:
    return w.is_because("other", f"Waits for {w.e.reason or 'an unknown reason'}{w.until}.")


WAITS: dict[str, Callable[[_Wait], Explanation]] = {
    Reason.OPERATOR: _operator,
    Reason.DELAY: _delay,
    Reason.RETRY: _retry,
    Reason.TIMER: _timer,
    Reason.DEPENDENCIES: _dependencies,
    Reason.VERSION: _version,
    "event": _event,
    "deferred": _deferred,
    "child": _child,
    "quota": _quota,
    "budget": _budget,
    "capability": _capability,
}
"""What explains each kind of reason: the text before the colon."""


# ---- beside all of them -------------------------------------------------------------------------------------------


def _closed_flow(e: Execution, s: Situation) -> Explanation | None:
    """Why its flow lets no worker claim it; None if the claim would not ask the flow, or finds it open."""
    if s.flow is None or e.cancel_requested or e.status is Status.ACTIVE or s.flow.state is FlowState.OPEN:
        return None
    facts = {"flow": s.flow.id, "policy": s.flow.policy}
    retry, state = _command("flows retry", s.flow.id), s.flow.state
    if state is FlowState.STOPPED and s.flow.policy is CancelPolicy.FLOW_ONLY:
        words = (
            f"Its flow was cancelled ({s.flow.policy}), which left it as it is: it does not go on until "
            f"`{retry.command}`."
        )
        return Explanation(code="flow_cancelled", words=words, facts=facts, action=retry)
    words = {
        FlowState.STOPPED: f"Its flow was cancelled ({s.flow.policy}): the workers cancel it.",
        FlowState.STAGING: "Its flow is still being started.",
        FlowState.REOPENING: "Its flow is being retried: it goes on when all of its members are open again.",
    }
    code = "flow_cancelled" if state is FlowState.STOPPED else f"flow_{state}"
    return Explanation(code=code, words=words[state], facts=facts)


def _unwinding(e: Execution) -> Explanation | None:
    if e.expires_for is None:
        return None
    words = f"It undoes what it did, because {CAUSES.get(e.expires_for, e.expires_for)}, and expires then."
    return Explanation(code="unwinding", words=words, facts={"cause": e.expires_for})


def _deadline(e: Execution, s: Situation) -> Explanation | None:
    if e.deadline_at is None:
        return None
    at = settled(e.deadline_at) or 0
    words = f"It must end by {moment(at, now=s.now)} ({relative(at, now=s.now)})."
    return Explanation(code="deadline", words=words, facts={"at": moment_or_none(at)})


# ---- ended --------------------------------------------------------------------------------------------------------


def _ended(e: Execution, s: Situation) -> Explanation:
    at = settled(e.finished_at) or s.now
    cause = CAUSES.get(e.cause or "", e.cause or "")
    because = f": {cause}" if cause and e.status not in (Status.SUCCEEDED, Status.CANCELLED) else ""
    took_ms = max(0, at - (settled(e.created_at) or at))
    words = f"{e.status.capitalize()} {relative(at, now=s.now)}, {duration(took_ms)} after its start{because}."
    action = None
    if s.undone and e.flow is None:
        anew = shlex.join(["--id", e.id, "--if-exists", "restart"])
        words += f" Its undos have run: to begin anew, start it with `{anew}`."
        action = Action(verb="start", target=e.id, command=f"outlast start MODULE:APP {e.workflow} {anew}")
    elif e.status in (Status.FAILED, Status.EXPIRED):
        action = _command("retry", e.id) if e.flow is None else _command("flows retry", e.flow)
        words += f" To try again without repeating what was recorded: `{action.command}`."
    facts = {"cause": e.cause, "finished_at": moment_or_none(at), "took_ms": took_ms}
    return Explanation(code=e.status, words=words, facts=facts, action=action)
