"""Watch sources with all rules of pods about nodes, for ``gputopo observe`` and the planner.

The extender does not need these rules: kube-scheduler applies them before it calls the extender.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from scheduler_core.cache.events import NodeUpdate, PodUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode, SchedulingRules
from scheduler_core.cache.watch import SOURCES, Sources, node_fingerprint, node_update, pod_update
from scheduler_core.request.full_pod import (
    FullAffinity,
    FullPod,
    FullPodSpec,
    LabelSelector,
    PodAffinityTerm,
    RequiredPodAffinity,
)
from scheduler_core.request.pod import Metadata

HOSTNAME = "kubernetes.io/hostname"  # a different value for each node
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")  # of a label selector
POD_AFFINITY, TOPOLOGY_SPREAD = "pod affinity", "topology spread"
_MAX_TERMS = 100  # checked per pod: every plan compares them with the labels of all members
_EVERYWHERE = LabelSelector()


def scheduling_rules(spec: FullPodSpec, *, anti_affinity_checked: bool = False) -> SchedulingRules:
    """Return the rules of a pod about its nodes. ``apart``: the caller checks ``host_anti_affinity`` itself."""
    rules = FullPodSpec(affinity=spec.affinity, node_selector=spec.node_selector, tolerations=spec.tolerations)
    return SchedulingRules(rules, tuple(_unchecked_rules(spec, anti_affinity_checked=anti_affinity_checked)))


def host_anti_affinity(spec: FullPodSpec) -> tuple[PodAffinityTerm, ...]:
    """Return the required anti-affinity terms by host that pod labels alone decide.

    None if there are too many: then only kube-scheduler checks them (``SchedulingRules.unchecked``).
    """
    affinity = spec.affinity or FullAffinity()
    terms = tuple(each for each in _required_terms(affinity.pod_anti_affinity) if _decided_by_labels(each))
    return terms if len(terms) <= _MAX_TERMS else ()


def _required_terms(of_pods: RequiredPodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    return (of_pods and of_pods.required_during_scheduling_ignored_during_execution) or ()


def _decided_by_labels(term: PodAffinityTerm) -> bool:
    """Return whether pod labels decide the term: the labels of namespaces are not watched."""
    known = (each.operator in _OPERATORS for each in (term.label_selector or _EVERYWHERE).match_expressions or ())
    return term.topology_key == HOSTNAME and term.namespace_selector in (None, _EVERYWHERE) and all(known)


def _unchecked_rules(spec: FullPodSpec, *, anti_affinity_checked: bool) -> Iterator[str]:
    affinity = spec.affinity or FullAffinity()
    checked = host_anti_affinity(spec) if anti_affinity_checked else ()
    if _required_terms(affinity.pod_affinity) or len(_required_terms(affinity.pod_anti_affinity)) > len(checked):
        yield POD_AFFINITY
    if any(each.when_unsatisfiable == "DoNotSchedule" for each in spec.topology_spread_constraints or ()):
        yield TOPOLOGY_SPREAD
    if any(each.persistent_volume_claim or each.ephemeral for each in spec.volumes or ()):
        yield "volume claims"


def _full_node_update(name: str, node: FullNode) -> NodeUpdate:
    labels = Metadata(name=node.metadata.name, labels=node.metadata.labels)
    return node_update(name, node)._replace(rules=FullNode(metadata=labels, spec=node.spec))


def _full_node_fingerprint(node: FullNode) -> Hashable:
    taints = tuple((each.key, each.value, each.effect) for each in node.spec.taints or ())
    return node_fingerprint(node), node.spec.unschedulable, taints


def _full_pod_update(uid: str, pod: FullPod) -> PodUpdate | None:
    update = pod_update(uid, pod)
    return None if update is None else update._replace(rules=scheduling_rules(pod.spec))


FULL_POD_SOURCES: Sources = {
    **SOURCES,
    NodeUpdate: SOURCES[NodeUpdate]._replace(
        kind=FullNode, value=_full_node_update, fingerprint=_full_node_fingerprint
    ),
    PodUpdate: SOURCES[PodUpdate]._replace(kind=FullPod, value=_full_pod_update),
}
