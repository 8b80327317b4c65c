"""Advice for a gang that does not proceed by itself. Pure."""

from __future__ import annotations

from collections import Counter

from gputopo.crd.reservations import EntryPhase
from gputopo.labels.keys import GANGS_ENABLED, SCHEDULER_NAME
from scheduler_core.planner.commit.controllers import is_recreated
from scheduler_core.planner.commit.progress import FAILED, PHASES
from scheduler_core.planner.gang.gang import Gang, GangPhase, declared_by
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.pod_request import InvalidRequest

_CORRECT = (
    "correct the quoted value, in the object that creates the pods and on the existing pods: kubectl annotate "
    "--overwrite pod {name} -n {namespace} KEY=VALUE. The planner checks again at once"
)
_RECREATE = "pods get gates only when they are created, so recreate these"
_OPT_IN = (
    f"gate its pods: kubectl label namespace {{namespace}} {GANGS_ENABLED.key}={GANGS_ENABLED.example}, or "
    f"schedulerName: {SCHEDULER_NAME}, or the gate in the pod template; {_RECREATE}"
)
_OPTED_IN = (
    f"the namespace has opted in ({GANGS_ENABLED.key}={GANGS_ENABLED.example}), but its pods have no gate: they were "
    "created before that, or belong to another scheduler, or the planner released them without a placement (Event "
    "GangReleased), or the policies that gate pods are missing (they need Kubernetes 1.36): "
    f"{_RECREATE}, or add the gate to the pod template"
)
_FAILED = (
    "fix the reason that kube-scheduler gives for the members without a node, then they are bound to their places; or "
    "delete and recreate all its pods. The planner does nothing else about them"
)
_REFUSED_TO_GO = (
    "grant the planner the permission that the API server denied; the planner tries again. Or delete its pods: their "
    "owner creates them again, gated"
)
_WAITING = "the planner removes only its own gate: the controller that set {gates} has to remove it"
_PROPOSED = "if this lasts, check the /readyz and the log of each extender that has not acknowledged"


def gang_advice(gang: Gang, phase: str, *, opted_in: bool | None = None) -> str | None:
    """Return a sentence; None: nothing to do. ``opted_in``: whether its namespace gates pods; None: not read."""
    if phase == GangPhase.REFUSED.value:
        return _CORRECT.format(name=_refused(gang).name, namespace=gang.name.namespace)
    if phase == GangPhase.WAITING.value:
        return _WAITING.format(gates=", ".join(gang.gates))
    if phase == GangPhase.ELSEWHERE.value and any(each.node is None for each in gang.placed):
        return (_OPTED_IN if opted_in else _OPT_IN).format(namespace=gang.name.namespace)
    if phase == FAILED:
        return _REFUSED_TO_GO if all(map(is_recreated, gang.placed)) else _FAILED
    return _PROPOSED if phase == PHASES[EntryPhase.PROPOSED] else None


def _refused(gang: Gang) -> Member:
    """Return the invalid member, or a member whose declarations the fewest other members share."""
    gated = (*gang.ready, *gang.held, *gang.surplus)
    agree = Counter(map(declared_by, gated))
    return next(
        (each for each in gated if isinstance(each.request, InvalidRequest)),
        min(gated, key=lambda each: agree[declared_by(each)]),
    )
