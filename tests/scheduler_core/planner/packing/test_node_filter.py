"""kube-scheduler's filters, evaluated once for equal nodes: the same as for each node."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from scheduler_core.cache.kube_scheduler_filters import FullNode, SchedulingRules, rejection
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.request.full_pod import FullPodSpec

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

    assert NodeFilter(None).rejection_of(node) == "it is cordoned"
