"""What comes before any scheduler looks at a pod: gates that hold it, and the gang that it is let go with. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gputopo.labels.gate import has_gate, other_gates
from gputopo.labels.keys import GATE
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.gang.pod_source import GangPod, planner_pod
from scheduler_core.request.pod_request import InvalidRequest


def gates_reason(pod: GangPod) -> str | None:
    """In words; None: nothing."""
    if pod.finished:
        return None
    found = planner_pod(pod.metadata.uid, pod)
    member = None if found is None else found.member
    gates = [each.name for each in pod.spec.scheduling_gates or ()]
    rest = other_gates(gates)
    if has_gate(gates):
        return f"{_ours(member)}{f'; {_holds(rest)} too' if rest else ''}"
    if rest:
        return f"{_holds(rest)}, and no scheduler looks at it before that"
    if member is None or member.reservation is None:
        return None
    placed = f"the planner let it go to the place that its reservation {member.reservation} says"
    return placed if is_single_pod_gang(member.gang_request.gang) else f"{placed}, {_with_its_gang(member)}"


def _ours(member: Member | None) -> str:
    if member is not None and isinstance(member.request, InvalidRequest):
        return (
            f"the gate {GATE} holds it, and the planner looks for a place only once what is quoted here is put right: "
            f"in what makes the pod, and by kubectl annotate --overwrite pod {member.name} -n {member.namespace}"
        )
    waits = f"the gate {GATE} holds it, and no scheduler looks at it before the planner has a place for it"
    return (
        waits
        if member is None or is_single_pod_gang(member.gang_request.gang)
        else f"{waits}, {_with_its_gang(member)}"
    )


def _with_its_gang(member: Member) -> str:
    gang = member.gang_request.gang
    return f"as a member of the gang {gang.name}: `gputopo why gang {gang.name} -n {gang.namespace}` tells of all"


def _holds(gates: Sequence[str]) -> str:
    return f"the gate {gates[0]} holds it" if len(gates) == 1 else f"the gates {', '.join(gates)} hold it"
