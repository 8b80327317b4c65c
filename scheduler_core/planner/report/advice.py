"""What a person can do about a gang that does not go on by itself. Pure."""

from __future__ import annotations

from collections import Counter

from gputopo.crd.reservations import EntryPhase
from gputopo.labels.keys import GANGS_ENABLED, SCHEDULER_NAME
from scheduler_core.planner.commit.controllers import is_recreated
from scheduler_core.planner.commit.progress import FAILED, PHASES
from scheduler_core.planner.gang.gang import Gang, GangPhase, declared_by
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.pod_request import InvalidRequest

_PUT_RIGHT = (
    "put right what is quoted, in what makes the pods and on those that are there: kubectl annotate --overwrite pod "
    "{name} -n {namespace} KEY=VALUE. The planner looks again at once"
)
_MADE_ANEW = "gates can only be given to pods as they are created, so make these anew"
_OPT_IN = (
    f"have them gated: kubectl label namespace {{namespace}} {GANGS_ENABLED.key}={GANGS_ENABLED.example}, or "
    f"schedulerName: {SCHEDULER_NAME}, or the gate written into the pods; {_MADE_ANEW}"
)
_OPTED_IN = (
    f"the namespace has opted in ({GANGS_ENABLED.key}={GANGS_ENABLED.example}), but nobody gated these: they are older "
    "than that, or another scheduler's, or the planner let them go without a place (Events GangReleased), or the "
    "policies that gate pods are not there (Kubernetes 1.36 has them): "
    f"{_MADE_ANEW}, or write the gate into them"
)
_FAILED = (
    "once what kube-scheduler says of those without a node is mended, they go to their places by themselves; or delete "
    "all its pods and make them anew. Nothing else will be done about them"
)
_REFUSED_TO_GO = (
    "allow the planner what the API server did not let it do, which is tried again; or delete its pods: what made them "
    "makes them again, gated"
)
_WAITING = "the planner touches no gate of others: whoever set {gates} has to take it away"
_PROPOSED = "where it lasts, look at that extender's /readyz and log"


def gang_advice(gang: Gang, phase: str, *, opted_in: bool | None = None) -> str | None:
    """In a sentence; None: it goes on by itself, or waits for what is said. ``opted_in``: whether its namespace has."""
    if phase == GangPhase.REFUSED.value:
        return _PUT_RIGHT.format(name=_refused(gang).name, namespace=gang.name.namespace)
    if phase == GangPhase.WAITING.value:
        return _WAITING.format(gates=", ".join(gang.gates))
    if phase == GangPhase.ELSEWHERE.value and any(each.node is None for each in gang.placed):
        return (_OPTED_IN if opted_in else _OPT_IN).format(namespace=gang.name.namespace)
    if phase == FAILED:
        return _REFUSED_TO_GO if all(map(is_recreated, gang.placed)) else _FAILED
    return _PROPOSED if phase == PHASES[EntryPhase.PROPOSED] else None


def _refused(gang: Gang) -> Member:
    """The member that is refused, or of those who disagree one that fewest agree with."""
    gated = (*gang.ready, *gang.held, *gang.surplus)
    agree = Counter(map(declared_by, gated))
    return next(
        (each for each in gated if isinstance(each.request, InvalidRequest)),
        min(gated, key=lambda each: agree[declared_by(each)]),
    )
