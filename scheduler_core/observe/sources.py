"""What ``gputopo observe`` watches: what the extender does, and by what rules kube-scheduler had to choose."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from scheduler_core.pods import Metadata, Pod, PreferredTerms, Term
from scheduler_core.sightings import NodeSeen, PodSeen
from scheduler_core.stock import PodRules, StockAffinity, StockNode, StockSpec
from scheduler_core.watch import SOURCES, Sources, node_seen, pod_seen, trace


class RequiredOfPods(PreferredTerms, frozen=True, rename="camel"):
    """Affinity to other pods, or to none of them."""

    required_during_scheduling_ignored_during_execution: tuple[Term, ...] | None = None


class ObservedAffinity(StockAffinity, frozen=True, rename="camel"):
    """``spec.affinity``."""

    pod_affinity: RequiredOfPods | None = None
    pod_anti_affinity: RequiredOfPods | None = None


class ObservedSpec(StockSpec, frozen=True, rename="camel"):
    """``spec``."""

    affinity: ObservedAffinity | None = None


class ObservedPod(Pod, frozen=True, rename="camel"):
    """A Pod with all its rules about nodes."""

    spec: ObservedSpec = ObservedSpec()


def rules(spec: ObservedSpec) -> PodRules:
    """What a pod says itself about where it may go."""
    kept = StockSpec(affinity=spec.affinity, node_selector=spec.node_selector, tolerations=spec.tolerations)
    return PodRules(kept, tuple(_unchecked(spec)))


def _unchecked(spec: ObservedSpec) -> Iterator[str]:
    affinity = spec.affinity or ObservedAffinity()
    of_pods = (affinity.pod_affinity, affinity.pod_anti_affinity)
    if any(each is not None and each.required_during_scheduling_ignored_during_execution for each in of_pods):
        yield "pod affinity"
    if any(each.when_unsatisfiable == "DoNotSchedule" for each in spec.topology_spread_constraints or ()):
        yield "topology spread"
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


_OF_NODES, _OF_PODS, _OF_GPUS = SOURCES
OBSERVED: Sources = (
    (NodeSeen, _OF_NODES[1]._replace(kind=StockNode, value=_node, trace=_trace)),
    (PodSeen, _OF_PODS[1]._replace(kind=ObservedPod, value=_pod)),
    _OF_GPUS,
)
