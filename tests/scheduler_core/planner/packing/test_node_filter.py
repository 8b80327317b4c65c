"""kube-scheduler's filters, evaluated once for equal nodes: the same as for each node."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

from gputopo.kube.taints import NODE_REMOVAL_TAINTS, Taint
from scheduler_core.cache.full_pods import MAX_RULES, scheduling_rules
from scheduler_core.cache.kube_scheduler_filters import (
    NODE_REMOVAL_REASON,
    FullNode,
    FullNodeSpec,
    SchedulingRules,
    rejection,
)
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.request.full_pod import FullAffinity, FullPodSpec, Toleration
from scheduler_core.request.pod import Metadata, NodeAffinity, RequiredTerm, RequiredTerms, Requirement

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _affinity(**term: object) -> dict[str, object]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}}


SPECS = {
    "nothing": {},
    "a label": {"nodeSelector": {"pool": "x"}},
    "one of some labels": _affinity(matchExpressions=[{"key": "pool", "operator": "In", "values": ["x", "y"]}]),
    "a name": _affinity(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["b"]}]),
    "no terms": {"affinity": {"nodeAffinity": {}}},
    "tolerations": {"tolerations": [{"operator": "Exists"}]},
}


@pytest.mark.parametrize("spec", [pytest.param(each, id=name) for name, each in SPECS.items()])
def test_equal_nodes_share_a_rejection(spec: dict[str, object]) -> None:
    found = msgspec.convert(spec, FullPodSpec)
    bars = NodeFilter(SchedulingRules(found))

    for name, pool, tainted, cordoned in product("ab", "xyz", (False, True), (False, True)):
        taints = [{"key": "k", "effect": "NoSchedule"}] if tainted else None
        node = msgspec.convert(
            {
                "metadata": {"name": name, "labels": {"pool": pool, "other": name}},
                "spec": {"taints": taints, "unschedulable": cordoned},
            },
            FullNode,
        )
        assert bars.rejection_of(node) == rejection(found, node)


def test_a_pod_without_rules_tolerates_nothing() -> None:
    node = msgspec.convert({"metadata": {"name": "n"}, "spec": {"unschedulable": True}}, FullNode)

    assert NodeFilter(None).rejection_of(node) == "the node is cordoned"


class _CountedLabels(dict[str, str]):
    """Labels of a node that count how often one is looked up."""

    looked_up = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looked_up += 1
        return super().get(key, default)


def test_the_selectors_of_a_pod_cost_a_bounded_number_of_looks_at_each_node() -> None:
    """The affinity is decoded as the planner does, from more expressions than it reads."""
    for number in (200, 9_000):
        expressions = [{"key": f"key-{at}", "operator": "DoesNotExist"} for at in range(number)]
        rules = scheduling_rules(msgspec.convert(_affinity(matchExpressions=expressions), FullPodSpec))
        labels = _CountedLabels(pool="x")

        NodeFilter(rules).rejection_of(FullNode(metadata=Metadata(name="n", labels=labels)))

        assert labels.looked_up <= 2 * MAX_RULES


class _Name(str):
    """A node's name that counts how often names are compared."""

    compared = 0
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        _Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_list_of_all_nodes_is_not_walked_for_each_node() -> None:
    names = [_Name(f"n-{at}") for at in range(1_000)]
    requirement = Requirement("kubernetes.io/hostname", "In", tuple(names))
    affinity = NodeAffinity(
        required_during_scheduling_ignored_during_execution=RequiredTerms((RequiredTerm((requirement,)),))
    )
    bars = NodeFilter(SchedulingRules(FullPodSpec(affinity=FullAffinity(node_affinity=affinity))))

    taken = [
        bars.rejection_of(FullNode(metadata=Metadata(name=f"n-{at}", labels={"kubernetes.io/hostname": f"n-{at}"})))
        for at in range(1_100)
    ]

    assert taken.count(None) == 1_000
    assert _Name.compared <= 2_000


@pytest.mark.parametrize("key", NODE_REMOVAL_TAINTS)
def test_nodes_that_an_autoscaler_deletes_are_rejected_whatever_a_pod_tolerates(key: str) -> None:
    anything = SchedulingRules(FullPodSpec(tolerations=(Toleration(operator="Exists"),)))
    leaving = FullNode(metadata=Metadata(name="a"), spec=FullNodeSpec(taints=(Taint(key, "", "NoSchedule"),)))
    other = FullNode(metadata=Metadata(name="b"), spec=FullNodeSpec(taints=(Taint("other", "", "NoSchedule"),)))

    assert NodeFilter(anything).rejection_of(leaving) == NODE_REMOVAL_REASON
    assert NodeFilter(anything).rejection_of(other) is None


def test_results_of_nodes_that_change_are_bounded() -> None:
    found = msgspec.convert(SPECS["a label"], FullPodSpec)
    bars = NodeFilter(SchedulingRules(found), most=4)

    for pool in "xyzuvwxyzx":
        node = FullNode(metadata=Metadata(name="a", labels={"pool": pool}))
        assert bars.rejection_of(node) == rejection(found, node)
        assert len(vars(bars)["_known"]) <= 4
