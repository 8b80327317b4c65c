"""The reports of pods and gangs for the pages, as ``gputopo why`` prints them, from the watched cluster. No I/O."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from gputopo.model import NodeTopology
from gputopo.render.report import document
from scheduler_core.cache.kube_scheduler_filters import SchedulingRules, rejection
from scheduler_core.explain import explain, explain_malformed, explanation_text, group_excluded, with_reservations
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.report.explain import GangQuestion, NoGangError, explain_gang
from scheduler_core.planner.report.gates import member_gates_reason
from scheduler_core.planner.report.prospects import PlanRules
from scheduler_core.planner.report.read import GangSnapshot
from scheduler_core.planner.report.text import gang_explanation_text
from scheduler_core.ui.hidden_names import visible_overview, without_hidden_names
from scheduler_core.ui.model import Overview
from scheduler_core.ui.rows_html import Viewer
from scheduler_core.ui.service import UiService

WIDTH = 110  # columns
_TRIAL_PLANS_S = 2.0


class NoReportError(LookupError):
    """There is no such pod or gang."""


def topology_of(service: UiService, name: str) -> NodeTopology | None:
    """Return the topology of a node; None: unknown."""
    record = service.view.cache.snapshot.records.get(name)
    return None if record is None else record.machine.topology


def gang_report(service: UiService, viewer: Viewer, namespace: str, name: str) -> str:
    """Return what ``gputopo why gang`` prints. Raises ``NoReportError``."""
    # A gang that is hidden and a gang that does not exist get the same answer, after the same work.
    if not viewer.shown(namespace):
        raise NoReportError(_no_gang(namespace, name))
    end = time.monotonic() + _TRIAL_PLANS_S
    rules = PlanRules(service.policies, LEVELS, lambda: time.monotonic() > end)
    question = GangQuestion(GangName(namespace, name), rules, None, None)
    try:
        found = explain_gang(GangSnapshot(service.view, from_file=bool(service.notice)), question, service.now())
    except NoGangError as error:
        # The message lists gangs of other namespaces.
        raise NoReportError(str(error) if viewer.namespaces is None else _no_gang(namespace, name)) from None
    return gang_explanation_text(without_hidden_names(found, viewer), WIDTH)


def _no_gang(namespace: str, name: str) -> str:
    return f"there is no gang {name} in the namespace {namespace}, or you may not list its pods"


def pod_report(service: UiService, viewer: Viewer, namespace: str, name: str) -> str:
    """Return what ``gputopo why pod`` prints, as far as the watches show the pod. Raises ``NoReportError``."""
    view, cache = service.view, service.view.cache
    pods = cache.pods.values() if viewer.shown(namespace) else ()
    pod = next((each for each in pods if each.occupant[1:3] == (namespace, name)), None)
    if pod is None:
        refused = "" if viewer.namespaces is None else ", or you may not list the pods of its namespace"
        raise NoReportError(f"there is no pod {namespace}/{name} that requests GPUs and has not finished{refused}")
    if pod.malformed is not None:
        return explanation_text(explain_malformed(namespace, name, pod.malformed), WIDTH)
    request, uid = pod.request, pod.key
    snapshot = cache.snapshot_for_pod(uid, cache.reservations.holds_below(pod.priority))
    policy = service.policies.policy_for(request)
    member = view.gang_members.get_member(uid)
    rules = pod.rules if member is None or member.rules is None else member.rules
    rejected = {} if rules is None or pod.node is not None else _rejected_nodes(rules, view)
    names = [name for name in snapshot.records if name not in rejected]
    found = explain(request, snapshot, names, policy, service.now(), pod.node)
    found = with_reservations(found, snapshot, tuple(cache.reservations.active.values()), uid)
    gates = () if rules is None else [each.name for each in rules.spec.scheduling_gates or ()]
    reason = member_gates_reason(member, gates if member is None else member.gates)
    found = replace(found, barred=group_excluded(rejected), beforehand=reason)
    return explanation_text(without_hidden_names(found, viewer), WIDTH)


def _rejected_nodes(rules: SchedulingRules, view: PlannerView) -> dict[str, str]:
    """Return the GPU nodes that kube-scheduler would reject whatever GPUs are free there, with the reasons."""
    records = view.cache.snapshot.records
    gpu_nodes = (node for name, node in view.rules.items() if name in records and records[name].machine.allocatable)
    found = ((node.metadata.name, rejection(rules.spec, node)) for node in gpu_nodes)
    return {name: reason for name, reason in found if reason is not None}


def overview_document(found: Overview, viewer: Viewer) -> dict[str, Any]:
    """Return the totals of the overview as a document of kind ``ClusterMap``, without hidden gangs."""
    found = visible_overview(found, viewer)
    totals = found.totals
    return document(
        "ClusterMap",
        {
            "nodes": totals.nodes,
            "gpus": {state.value: number for state, number in totals.by_state},
            "freeIslands": {str(size): number for size, number in totals.islands},
            "gangs": [gang for gang in found.gangs if viewer.shown(gang.namespace)],
            "reserved": list(found.reserved),
            "pendingPods": len(found.pending),
            "troubles": list(found.troubles),
        },
    )
