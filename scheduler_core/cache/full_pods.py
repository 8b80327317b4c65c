"""What ``gputopo observe`` watches: what the extender does, and by what rules kube-scheduler had to choose."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from scheduler_core.cache.events import NodeSeen, PodSeen
from scheduler_core.cache.kube_scheduler_filters import LabelSelector, PodRules, PodTerm, StockNode
from scheduler_core.cache.watch import SOURCES, Sources, node_seen, pod_seen, trace
from scheduler_core.request.full_pod import StockSpec
from scheduler_core.request.pod import Affinity, Metadata, Pod, PreferredTerms

HOSTNAME = "kubernetes.io/hostname"  # each node has a value of its own
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")  # of a label selector
OF_PODS, SPREAD = "pod affinity", "topology spread"
_EVERYWHERE = LabelSelector()


class RequiredOfPods(PreferredTerms, frozen=True, rename="camel"):
    """Affinity to other pods, or to none of them."""

    required_during_scheduling_ignored_during_execution: tuple[PodTerm, ...] | None = None


class ObservedAffinity(Affinity, frozen=True, rename="camel"):
    """``spec.affinity``."""

    pod_affinity: RequiredOfPods | None = None
    pod_anti_affinity: RequiredOfPods | None = None


class ObservedSpec(StockSpec, frozen=True, rename="camel"):
    """``spec``."""

    affinity: ObservedAffinity | None = None


class ObservedPod(Pod, frozen=True, rename="camel"):
    """A Pod with all its rules about nodes."""

    spec: ObservedSpec = ObservedSpec()


def rules(spec: ObservedSpec, *, apart: bool = False) -> PodRules:
    """What a pod says itself about where it may go. ``apart``: whoever asks sees to ``refused_beside`` himself."""
    kept = StockSpec(affinity=spec.affinity, node_selector=spec.node_selector, tolerations=spec.tolerations)
    return PodRules(kept, tuple(_unchecked(spec, apart=apart)))


def refused_beside(spec: ObservedSpec) -> tuple[PodTerm, ...]:
    """The pods that it will not share its node with: required anti-affinity by host, as far as labels decide it."""
    affinity = spec.affinity or ObservedAffinity()
    return tuple(each for each in _required(affinity.pod_anti_affinity) if _by_labels(each))


def _required(of_pods: RequiredOfPods | None) -> tuple[PodTerm, ...]:
    return (of_pods and of_pods.required_during_scheduling_ignored_during_execution) or ()


def _by_labels(term: PodTerm) -> bool:
    """The labels of namespaces are not known here."""
    known = (each.operator in _OPERATORS for each in (term.label_selector or _EVERYWHERE).match_expressions or ())
    return term.topology_key == HOSTNAME and term.namespace_selector in (None, _EVERYWHERE) and all(known)


def _unchecked(spec: ObservedSpec, *, apart: bool) -> Iterator[str]:
    affinity = spec.affinity or ObservedAffinity()
    seen_to = refused_beside(spec) if apart else ()
    if _required(affinity.pod_affinity) or len(_required(affinity.pod_anti_affinity)) > len(seen_to):
        yield OF_PODS
    if any(each.when_unsatisfiable == "DoNotSchedule" for each in spec.topology_spread_constraints or ()):
        yield SPREAD
    if any(each.persistent_volume_claim or each.ephemeral for each in spec.volumes or ()):
        yield "volume claims"


def _node(name: str, node: StockNode) -> NodeSeen:
    labels = Metadata(name=node.metadata.name, labels=node.metadata.labels)
    return node_seen(name, node)._replace(rules=StockNode(metadata=labels, spec=node.spec))


def _trace(node: StockNode) -> Hashable:
    taints = tuple((each.key, each.value, each.effect) for each in node.spec.taints or ())
    return trace(node), node.spec.unschedulable, taints


def _pod(uid: str, pod: ObservedPod) -> PodSeen | None:
    seen = pod_seen(uid, pod)
    return None if seen is None else seen._replace(rules=rules(pod.spec))


OBSERVED: Sources = {
    **SOURCES,
    NodeSeen: SOURCES[NodeSeen]._replace(kind=StockNode, value=_node, trace=_trace),
    PodSeen: SOURCES[PodSeen]._replace(kind=ObservedPod, value=_pod),
}
