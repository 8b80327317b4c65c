"""What ``gputopo observe`` watches: what the extender does, and by what rules kube-scheduler had to choose."""

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

HOSTNAME = "kubernetes.io/hostname"  # each node has a value of its own
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")  # of a label selector
OF_PODS, SPREAD = "pod affinity", "topology spread"
_EVERYWHERE = LabelSelector()


def scheduling_rules(spec: FullPodSpec, *, apart: bool = False) -> SchedulingRules:
    """What a pod says itself about where it may go. ``apart``: whoever asks sees to ``refused_beside`` himself."""
    kept = FullPodSpec(affinity=spec.affinity, node_selector=spec.node_selector, tolerations=spec.tolerations)
    return SchedulingRules(kept, tuple(_unchecked(spec, apart=apart)))


def host_anti_affinity(spec: FullPodSpec) -> tuple[PodAffinityTerm, ...]:
    """The pods that it will not share its node with: required anti-affinity by host, as far as labels decide it."""
    affinity = spec.affinity or FullAffinity()
    return tuple(each for each in _required(affinity.pod_anti_affinity) if _by_labels(each))


def _required(of_pods: RequiredPodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    return (of_pods and of_pods.required_during_scheduling_ignored_during_execution) or ()


def _by_labels(term: PodAffinityTerm) -> bool:
    """The labels of namespaces are not known here."""
    known = (each.operator in _OPERATORS for each in (term.label_selector or _EVERYWHERE).match_expressions or ())
    return term.topology_key == HOSTNAME and term.namespace_selector in (None, _EVERYWHERE) and all(known)


def _unchecked(spec: FullPodSpec, *, apart: bool) -> Iterator[str]:
    affinity = spec.affinity or FullAffinity()
    seen_to = host_anti_affinity(spec) if apart else ()
    if _required(affinity.pod_affinity) or len(_required(affinity.pod_anti_affinity)) > len(seen_to):
        yield OF_PODS
    if any(each.when_unsatisfiable == "DoNotSchedule" for each in spec.topology_spread_constraints or ()):
        yield SPREAD
    if any(each.persistent_volume_claim or each.ephemeral for each in spec.volumes or ()):
        yield "volume claims"


def _node(name: str, node: FullNode) -> NodeUpdate:
    labels = Metadata(name=node.metadata.name, labels=node.metadata.labels)
    return node_update(name, node)._replace(rules=FullNode(metadata=labels, spec=node.spec))


def _trace(node: FullNode) -> Hashable:
    taints = tuple((each.key, each.value, each.effect) for each in node.spec.taints or ())
    return node_fingerprint(node), node.spec.unschedulable, taints


def _pod(uid: str, pod: FullPod) -> PodUpdate | None:
    seen = pod_update(uid, pod)
    return None if seen is None else seen._replace(rules=scheduling_rules(pod.spec))


FULL_POD_SOURCES: Sources = {
    **SOURCES,
    NodeUpdate: SOURCES[NodeUpdate]._replace(kind=FullNode, value=_node, fingerprint=_trace),
    PodUpdate: SOURCES[PodUpdate]._replace(kind=FullPod, value=_pod),
}
