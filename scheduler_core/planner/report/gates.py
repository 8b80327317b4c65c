"""Why no scheduler sees a pod yet: its scheduling gates and its gang. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gputopo.labels.gate import has_gate, other_gates
from gputopo.labels.keys import GATE, POD_PLANNED, POD_ROLLED_BACK, STOCK_SCHEDULER
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.gang.pod_source import planner_pod
from scheduler_core.planner.leader.hand_over import hand_over_text
from scheduler_core.request.full_pod import FullPod
from scheduler_core.request.pod import PodSchedulingGate
from scheduler_core.request.pod_request import InvalidRequest


def gates_reason(pod: FullPod, source: str = "") -> str | None:
    """Return why no scheduler sees the pod yet, or where the planner placed it; None: neither.

    ``source``: the options that name the cluster, for the command in the text: ``" --from c.json"``.
    """
    if pod.is_finished:
        return None
    found = member_gates_reason(_member(pod), [each.name for each in pod.spec.scheduling_gates or ()], source)
    return _left_to_kube_scheduler(pod) if found is None else found


def unhandled_reason(pod: FullPod) -> str | None:
    """Return that no scheduler has tried to place the pod; None: one has, or the pod has gates or a node."""
    if pod.is_finished or pod.spec.node_name or pod.spec.scheduling_gates or pod.status.is_tried:
        return None
    since = "since its gates were removed" if pod.status.was_gated else "yet"
    return (
        f"no scheduler named {pod.spec.scheduler_name or STOCK_SCHEDULER} has handled it {since}: check that one runs"
    )


def member_gates_reason(member: Member | None, gates: Sequence[str], source: str = "") -> str | None:
    """Return why no scheduler sees a pod with these gates yet, or where the planner placed it, as ``gates_reason``."""
    rest = other_gates(gates)
    if has_gate(gates):
        return f"{_ours(member, source)}{f'; {_holds(rest)} too' if rest else ''}"
    if rest:
        return f"{_holds(rest)}, and no scheduler sees it until then"
    if member is None or member.reservation is None:
        return None
    placed = f"the planner ungated it for its place in the reservation {member.reservation}"
    return placed if is_single_pod_gang(member.gang_request.gang) else f"{placed}, {_with_its_gang(member, source)}"


def _left_to_kube_scheduler(pod: FullPod) -> str | None:
    """Return why no plan chose a node for a pod without gates; None: it need not have been planned."""
    annotations = pod.metadata.annotations or {}
    before = annotations.get(POD_ROLLED_BACK.key)
    if before is not None:
        return (
            f"its gate was removed without a place after the plan {before} was rolled back, so kube-scheduler chooses "
            "its node"
        )
    gate = PodSchedulingGate(GATE)
    member = _member(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, scheduling_gates=(gate,))))
    if member is None or not member.unplanned:
        return None
    alone = is_single_pod_gang(member.gang_request.gang)
    if alone and POD_PLANNED.key not in annotations:  # any pod
        return None
    return hand_over_text(member.unplanned, alone=alone)


def _member(pod: FullPod) -> Member | None:
    found = planner_pod(pod.metadata.uid, pod)
    return None if found is None else found.member


def _ours(member: Member | None, source: str) -> str:
    if member is not None and isinstance(member.request, InvalidRequest):
        return (
            f"the gate {GATE} holds it until the quoted value is corrected: in the object that creates the pod, and by "
            f"kubectl annotate --overwrite pod {member.name} -n {member.namespace}"
        )
    if member is not None and member.unplanned:
        why = hand_over_text(member.unplanned, alone=is_single_pod_gang(member.gang_request.gang))
        return f"the planner removes the gate {GATE} without choosing a node: {why}"
    waits = f"the gate {GATE} holds it until the planner has a place for it"
    return (
        waits
        if member is None or is_single_pod_gang(member.gang_request.gang)
        else f"{waits}, {_with_its_gang(member, source)}"
    )


def _with_its_gang(member: Member, source: str) -> str:
    gang = member.gang_request.gang
    return f"with its gang {gang.name}: see `gputopo why gang {gang.name} -n {gang.namespace}{source}`"


def _holds(gates: Sequence[str]) -> str:
    return f"the gate {gates[0]} holds it" if len(gates) == 1 else f"the gates {', '.join(gates)} hold it"
