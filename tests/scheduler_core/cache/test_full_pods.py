"""The fields of Nodes and Pods that the observer needs in addition to the extender."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.kube.taints import Taint
from gputopo.labels import encode_topology
from scheduler_core.cache.events import NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.full_pods import (
    FULL_POD_SOURCES,
    POD_ANTI_AFFINITY,
    TOO_MANY_RULES,
    CheckedRules,
    host_anti_affinity,
    scheduling_rules,
)
from scheduler_core.cache.kube_scheduler_filters import SchedulingRules
from scheduler_core.request.full_pod import FullPodSpec, Toleration
from tests.scheduler_core.explain.fleets import QUADS

SOURCES = FULL_POD_SOURCES
FACTS = encode_topology(QUADS)


def as_seen(kind: type[Any], key: str, said: dict[str, Any]) -> Any:
    """Return the update of an object."""
    source = SOURCES[kind]
    return source.value(key, msgspec.convert(said, source.kind))


def trace(said: dict[str, Any]) -> object:
    source = SOURCES[NodeUpdate]
    assert source.fingerprint is not None
    return source.fingerprint(msgspec.convert(said, source.kind))


def node(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "gpu-1", "labels": FACTS.labels, "annotations": FACTS.annotations}
    return {"metadata": metadata, "spec": spec, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}


def test_a_node_keeps_labels_and_taints_but_not_annotations() -> None:
    found = as_seen(NodeUpdate, "gpu-1", node(taints=[{"key": "team", "effect": "NoSchedule"}], unschedulable=True))

    assert [gpu.uuid for gpu in found.facts.topology.gpus] == [gpu.uuid for gpu in QUADS.gpus]
    assert (found.rules.metadata.labels, found.rules.metadata.annotations) == (FACTS.labels, None)
    assert (found.rules.spec.taints, found.rules.spec.unschedulable) == ((Taint("team", "", "NoSchedule"),), True)


def test_a_node_is_delivered_again_when_its_taints_or_its_cordon_change() -> None:
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    traces = [trace(node()), trace(node(unschedulable=True)), trace(node(taints=[taint]))]
    traces.append(trace(node(taints=[taint | {"value": "b"}])))

    assert len(set(traces)) == 4
    assert trace(node()) == trace(node())


def test_a_pod_keeps_its_rules_about_nodes() -> None:
    limits = {"limits": {"nvidia.com/gpu": "2"}}
    spec = {
        "containers": [{"name": "c", "resources": limits}],
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "volumes": [{"ephemeral": {}}],
        "topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}],
    }

    found = as_seen(PodUpdate, "u", {"metadata": {"name": "p", "namespace": "a", "uid": "u"}, "spec": spec})

    assert found.rules.spec == FullPodSpec(node_selector={"pool": "a"}, tolerations=(Toleration("team", "Exists"),))
    assert found.rules.unchecked == ("volume claims",)


def test_a_pod_without_gpus_is_not_delivered() -> None:
    assert as_seen(PodUpdate, "u", {"spec": {"containers": [{"name": "c"}]}}) is None


def test_reports_are_delivered_as_for_the_extender() -> None:
    assert SOURCES[NodeGpusUpdate].kind.__name__ == "NodeGpus"


@pytest.mark.parametrize(
    ("terms", "looked_at", "unchecked"),
    [
        pytest.param(128, 128, (), id="as many as are compared"),
        pytest.param(129, 0, (POD_ANTI_AFFINITY,), id="too many: kube-scheduler alone checks them"),
    ],
)
def test_terms_of_anti_affinity_are_looked_at_up_to_a_number(
    terms: int, looked_at: int, unchecked: tuple[str, ...]
) -> None:
    own = [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": f"a-{number}"}}}
        for number in range(terms)
    ]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": own}}
    spec = msgspec.convert({"affinity": affinity}, FullPodSpec)

    assert len(host_anti_affinity(spec)) == looked_at  # a term and its label are two rules
    assert scheduling_rules(spec, CheckedRules(anti_affinity=True)).unchecked == unchecked


def _expressions(number: int, values: int = 1) -> dict[str, Any]:
    return {
        "matchExpressions": [
            {"key": f"key-{at}", "operator": "NotIn", "values": [f"v-{each}" for each in range(values)]}
            for at in range(number)
        ]
    }


def _node_affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def _anti_affinity(selector: dict[str, Any], **term: object) -> dict[str, Any]:
    terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": selector, **term}]
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(_node_affinity(_expressions(9_000)), id="expressions"),
        pytest.param(_node_affinity(*({} for _ in range(9_000))), id="terms"),
        pytest.param(_node_affinity(_expressions(2, 20_000)), id="values"),
        pytest.param({"nodeSelector": {f"key-{at}": "v" for at in range(9_000)}}, id="labels of nodeSelector"),
        pytest.param({"tolerations": [{"key": f"key-{at}"} for at in range(9_000)]}, id="tolerations"),
    ],
)
def test_too_many_rules_about_nodes_are_not_checked(spec: dict[str, Any]) -> None:
    assert scheduling_rules(msgspec.convert(spec, FullPodSpec)) == SchedulingRules(FullPodSpec(), (TOO_MANY_RULES,))


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(_anti_affinity(_expressions(9_000)), id="expressions"),
        pytest.param(_anti_affinity(_expressions(2, 20_000)), id="values"),
        pytest.param(_anti_affinity({"matchLabels": {f"key-{at}": "v" for at in range(9_000)}}), id="labels"),
        pytest.param(_anti_affinity({}, namespaces=[f"n-{at}" for at in range(9_000)]), id="namespaces"),
    ],
)
def test_too_many_rules_about_other_pods_are_not_checked(spec: dict[str, Any]) -> None:
    found = msgspec.convert(spec, FullPodSpec)

    assert host_anti_affinity(found) == ()
    assert scheduling_rules(found, CheckedRules(anti_affinity=True)).unchecked == (POD_ANTI_AFFINITY,)


def test_a_pod_may_name_every_node_of_the_cluster() -> None:
    expressions = {"key": "kubernetes.io/hostname", "operator": "In", "values": [f"n-{at}" for at in range(15_000)]}
    spec = msgspec.convert(_node_affinity({"matchExpressions": [expressions]}), FullPodSpec)

    assert scheduling_rules(spec).spec.affinity == spec.affinity
