"""The pods and gangs that wait for nodes, with the reason as far as gates, rules and free GPUs show it. Pure.

The pages of the pod and of the gang explain the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gputopo.render.wording import counted_noun
from scheduler_core.cache.events import PodUpdate
from scheduler_core.cache.full_pods import scheduling_rules
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.pod_source import ParsePod, PlannerPod, WatchedPod, watched_pod
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.report.listing import GangSummary
from scheduler_core.request.full_pod import FullPod
from scheduler_core.request.pod_request import InvalidRequest, Strength
from scheduler_core.ui.model import PendingPod
from scheduler_core.ui.suitable_nodes import PodRequirements, SuitableNodes

_MOST_MEMBERS = 5_000  # that are compared with each other, of all gangs, for one overview: 5 ms

_MOST_GATES = 3  # that a reason names, and that are kept of a pod: it may have 20,000


def ui_pod(uid: str, pod: FullPod, parse: ParsePod) -> WatchedPod | None:
    """Return what the pages keep of a pod: as the planner, and of a pending pod its rules about nodes and its gates."""
    found = watched_pod(uid, pod, parse)
    if not isinstance(found, PlannerPod) or found.update is None or found.update.node is not None:
        return found
    if found.member is not None and found.member.rules is not None:  # it has them itself
        return found
    rules = scheduling_rules(pod.spec)
    gates = (pod.spec.scheduling_gates or ())[: _MOST_GATES + 1]
    gated = msgspec.structs.replace(rules.spec, scheduling_gates=gates)
    request = parse(pod)
    malformed = request.reason if isinstance(request, InvalidRequest) else None
    gated_rules = msgspec.structs.replace(rules, spec=gated)
    return found._replace(update=found.update._replace(rules=gated_rules, malformed=malformed))


def with_free_gpus(gangs: Iterable[GangSummary], view: PlannerView, nodes: SuitableNodes) -> tuple[GangSummary, ...]:
    """Return the gangs; the reason of a queued gang says for how many of its members GPUs are free, if for too few."""
    found, members_left = [], _MOST_MEMBERS
    for each in gangs:
        gang = view.gang_members.get_gang(GangName(each.namespace, each.name))
        shortage = None
        if gang is not None and each.phase == GangPhase.QUEUED.value and members_left >= len(gang.ready):
            members_left -= len(gang.ready)
            shortage = _shortage(gang, nodes)
        found.append(msgspec.structs.replace(each, reason=f"{each.reason}; {shortage}") if shortage else each)
    return tuple(found)


def _shortage(gang: Gang, nodes: SuitableNodes) -> str | None:
    """Return what a gang of equal members lacks; None: nothing, or it is unknown."""
    requirements = {
        (required.key, required.profile.gpus, required.profile.constraints.island): required
        for each in gang.ready
        if not isinstance(each.request, InvalidRequest)
        for required in (PodRequirements(each.request.profile, each.rules),)
    }
    if len(requirements) != 1:
        return None
    (required,) = requirements.values()
    suited = nodes.most_free(required)
    if isinstance(suited, str):
        return suited
    places = nodes.places(required, gang.min_ready)
    if places is None or places >= gang.min_ready:
        return None
    return f"the GPUs known to be free suffice for {places or 'none'}"


def pending_pods(view: PlannerView, nodes: SuitableNodes) -> tuple[PendingPod, ...]:
    """Return the pods without a node that are in no gang, highest priority first."""
    unbound = [pod for pod in view.cache.pods.values() if pod.node is None]
    found = [_pending_pod(pod, nodes) for pod in unbound if view.gang_members.get_member(pod.key) is None]
    return tuple(sorted(found, key=lambda pod: (-pod.priority, pod.namespace, pod.name)))


def _pending_pod(pod: PodUpdate, nodes: SuitableNodes) -> PendingPod:
    profile = pod.occupant.profile
    return PendingPod(
        pod.occupant.namespace, pod.occupant.name, profile.devices, pod.priority, pod.scheduler, _reason(pod, nodes)
    )


def _reason(pod: PodUpdate, nodes: SuitableNodes) -> str:
    if pod.malformed is not None:
        return pod.malformed
    gates = [] if pod.rules is None else [gate.name for gate in pod.rules.spec.scheduling_gates or ()]
    if gates:
        more = " and more" if len(gates) > _MOST_GATES else ""
        return f"held by the gate{'s' * (len(gates) > 1)} {', '.join(gates[:_MOST_GATES])}{more}"
    if pod.nominated_node:
        return f"expected on {pod.nominated_node}"
    profile = pod.occupant.profile
    most = nodes.most_free(PodRequirements(profile, pod.rules))
    if isinstance(most, str):
        return most
    wanted = counted_noun(profile.gpus, "GPU")
    if profile.gpus > most.on_node:
        return f"no node{most.node_clause} has {wanted} known to be free; the most is {most.on_node}"
    if profile.gpus > most.in_island and profile.constraints.island is Strength.REQUIRED:
        island = f"no NVLink island{most.node_clause and f' of a node{most.node_clause}'}"
        return f"{island} has {wanted} known to be free; the most is {most.in_island}"
    return ""
