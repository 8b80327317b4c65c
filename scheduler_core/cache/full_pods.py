"""Watch sources with all rules of pods about nodes, for ``gputopo observe`` and the planner.

The extender does not need these rules: kube-scheduler applies them before it calls the extender.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from scheduler_core.cache.events import NodeUpdate, PodUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode, SchedulingRules, selector_matches
from scheduler_core.cache.watch import SOURCES, Sources, node_fingerprint, node_update, pod_update
from scheduler_core.request.full_pod import (
    FullAffinity,
    FullPod,
    FullPodSpec,
    LabelSelector,
    PodAffinityTerm,
    RequiredPodAffinity,
)
from scheduler_core.request.pod import (
    Metadata,
    NodeAffinity,
    RequiredTerm,
    Requirement,
    required_nodes,
    waits_for_volumes,
)

HOSTNAME = "kubernetes.io/hostname"  # a different value for each node
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")  # of a label selector
POD_AFFINITY, POD_ANTI_AFFINITY = "pod affinity", "pod anti-affinity"
TOPOLOGY_SPREAD, VOLUME_CLAIMS = "topology spread", "volume claims"
TOO_MANY_RULES = "more node selectors, affinity expressions and tolerations than are checked"
# Per pod, of its rules about nodes and of its anti-affinity: every plan compares each with all nodes, or all members.
MAX_RULES = 256
MAX_VALUES = 20_000  # of these rules: more than one for each node
MAX_LABELS = 1_000  # of a pod, that are kept: the API server allows any number
_MAX_OWN_TERMS = 16  # of required podAffinity
_EVERYWHERE = LabelSelector()


class CheckedRules(NamedTuple):
    """Rules of a pod that the caller checks itself."""

    anti_affinity: bool = False  # ``host_anti_affinity``
    affinity: bool = False  # required podAffinity, all terms
    volumes: bool = False  # volume claims


NOTHING_CHECKED = CheckedRules()


def scheduling_rules(spec: FullPodSpec, checked: CheckedRules = NOTHING_CHECKED) -> SchedulingRules:
    """Return the rules of a pod about its nodes. With ``TOO_MANY_RULES`` none of them is checked."""
    unchecked = tuple(_unchecked_rules(spec, checked))
    if _exceeds_limits(_node_requirements(spec), rule_count(spec)):
        return SchedulingRules(FullPodSpec(), (*unchecked, TOO_MANY_RULES))
    required = required_nodes(spec.affinity)  # pods that differ only in the rest of their affinity have equal rules
    affinity = (
        None
        if required is None
        else FullAffinity(NodeAffinity(required_during_scheduling_ignored_during_execution=required))
    )
    rules = FullPodSpec(affinity=affinity, node_selector=spec.node_selector, tolerations=spec.tolerations)
    return SchedulingRules(rules, unchecked)


def rule_count(spec: FullPodSpec) -> int:
    """Return the number of rules about nodes: labels of nodeSelector, terms, expressions and tolerations."""
    requirements = len(_node_requirements(spec)) + len(_node_terms(spec))
    return requirements + len(spec.node_selector or ()) + len(spec.tolerations or ())


def _node_terms(spec: FullPodSpec) -> tuple[RequiredTerm, ...]:
    required = required_nodes(spec.affinity)
    return (required and required.node_selector_terms) or ()


def _node_requirements(spec: FullPodSpec) -> list[Requirement]:
    return [
        each for term in _node_terms(spec) for each in (*(term.match_expressions or ()), *(term.match_fields or ()))
    ]


def _exceeds_limits(requirements: Iterable[Requirement], rules: int) -> bool:
    return rules > MAX_RULES or sum(len(each.values or ()) for each in requirements) > MAX_VALUES


def host_anti_affinity(spec: FullPodSpec) -> tuple[PodAffinityTerm, ...]:
    """Return the required anti-affinity terms by host that pod labels alone decide.

    Empty if there are too many: then only kube-scheduler checks them (``SchedulingRules.unchecked``).
    """
    terms = () if spec.affinity is None else _required_terms(spec.affinity.pod_anti_affinity)
    if not terms:  # most pods
        return ()
    terms = tuple(each for each in terms if _decided_by_labels(each))
    selectors = [each.label_selector or _EVERYWHERE for each in terms]
    requirements = [each for selector in selectors for each in selector.match_expressions or ()]
    labels = sum(len(each.match_labels or ()) for each in selectors) + sum(len(each.namespaces or ()) for each in terms)
    return () if _exceeds_limits(requirements, len(terms) + len(requirements) + labels) else terms


def own_affinity_key(spec: FullPodSpec, labels: Mapping[str, str], namespace: str) -> str | None:
    """Return the topology key in whose domain the pod wants to be with pods like itself; None: it has another rule.

    For a gang whose members have this rule, one domain for all members satisfies it.
    """
    terms = _required_terms((spec.affinity or FullAffinity()).pod_affinity)
    keys = {each.topology_key for each in terms}
    own = all(
        each.label_selector is not None
        and _is_known(each)
        and (each.namespace_selector == _EVERYWHERE or namespace in (each.namespaces or (namespace,)))
        and selector_matches(each.label_selector, labels)
        for each in terms
    )
    return keys.pop() if own and len(keys) == 1 and len(terms) <= _MAX_OWN_TERMS else None


def _required_terms(of_pods: RequiredPodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    return (of_pods and of_pods.required_during_scheduling_ignored_during_execution) or ()


def _decided_by_labels(term: PodAffinityTerm) -> bool:
    """Return whether pod labels decide the term, by host."""
    return term.topology_key == HOSTNAME and _is_known(term)


def _is_known(term: PodAffinityTerm) -> bool:
    """Return whether pod labels decide which pods the term selects: the labels of namespaces are not watched."""
    known = (each.operator in _OPERATORS for each in (term.label_selector or _EVERYWHERE).match_expressions or ())
    return term.namespace_selector in (None, _EVERYWHERE) and all(known)


def _unchecked_rules(spec: FullPodSpec, checked: CheckedRules) -> Iterator[str]:
    affinity = spec.affinity or FullAffinity()
    apart = host_anti_affinity(spec) if checked.anti_affinity else ()
    near = () if checked.affinity else _required_terms(affinity.pod_affinity)
    if near:
        yield POD_AFFINITY
    if len(_required_terms(affinity.pod_anti_affinity)) > len(apart):
        yield POD_ANTI_AFFINITY
    if any(each.when_unsatisfiable == "DoNotSchedule" for each in spec.topology_spread_constraints or ()):
        yield TOPOLOGY_SPREAD
    if not checked.volumes and waits_for_volumes(spec):
        yield VOLUME_CLAIMS


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
