"""Predicted rejections by kube-scheduler's own filters, one row per rule."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from scheduler_core.cache.kube_scheduler_filters import FullNode, rejection
from scheduler_core.request.full_pod import FullPod, FullPodSpec

CORDON = "node.kubernetes.io/unschedulable"


def _node(*taints: str, unschedulable: bool = False) -> FullNode:
    """Taints as kubectl has them: ``key=value:effect``."""
    split = [re.split("[=:]", each if "=" in each else each.replace(":", "=:")) for each in taints]
    return msgspec.convert(
        {
            "metadata": {"name": "n", "labels": {"pool": "a", "size": "8"}},
            "spec": {
                "taints": [{"key": key, "value": value, "effect": effect} for key, value, effect in split],
                "unschedulable": unschedulable,
            },
        },
        FullNode,
    )


def _spec(**fields: Any) -> FullPodSpec:
    return msgspec.convert(fields, FullPodSpec)


def _term(key: str, operator: str, *values: str, fields: bool = False) -> dict[str, Any]:
    return {"matchFields" if fields else "matchExpressions": [{"key": key, "operator": operator, "values": values}]}


def _near(*terms: dict[str, Any]) -> FullPodSpec:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return _spec(affinity={"nodeAffinity": required})


PLAIN, FAR = _node(), "the pod's node affinity does not match the node"


@pytest.mark.parametrize(
    ("pod", "node", "why"),
    [
        pytest.param(_spec(), PLAIN, None, id="nothing is asked"),
        pytest.param(_spec(nodeSelector={"pool": "a"}), PLAIN, None, id="selected"),
        pytest.param(
            _spec(nodeSelector={"pool": "b"}),
            PLAIN,
            "the node has no label pool=b, as nodeSelector requires",
            id="not selected",
        ),
        pytest.param(_spec(), _node(unschedulable=True), "the node is cordoned", id="cordoned"),
        pytest.param(
            _spec(tolerations=[{"key": CORDON, "operator": "Exists", "effect": "NoSchedule"}]),
            _node(unschedulable=True),
            None,
            id="cordoned, and tolerated",
        ),
        pytest.param(
            _spec(),
            _node("gpu=yes:NoSchedule"),
            "the taint gpu=yes:NoSchedule of the node is not tolerated",
            id="taint",
        ),
        pytest.param(
            _spec(),
            _node("gpu:NoExecute"),
            "the taint gpu:NoExecute of the node is not tolerated",
            id="without a value",
        ),
        pytest.param(_spec(), _node("gpu:PreferNoSchedule"), None, id="a soft taint"),
        pytest.param(
            _spec(tolerations=[{"key": "gpu", "value": "yes"}]),
            _node("gpu=yes:NoSchedule"),
            None,
            id="tolerated by value",
        ),
        pytest.param(
            _spec(tolerations=[{"key": "gpu", "value": "no"}, {"key": "x", "operator": "Exists"}]),
            _node("gpu=yes:NoSchedule"),
            "the taint gpu=yes:NoSchedule of the node is not tolerated",
            id="another value, another key",
        ),
        pytest.param(
            _spec(tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]),
            _node("gpu=yes:NoSchedule"),
            "the taint gpu=yes:NoSchedule of the node is not tolerated",
            id="another effect",
        ),
        pytest.param(_spec(tolerations=[{"operator": "Exists"}]), _node("gpu=yes:NoSchedule"), None, id="all are"),
        pytest.param(_spec(affinity={}), PLAIN, None, id="affinity to nothing"),
        pytest.param(_near(), PLAIN, FAR, id="no term at all"),
        pytest.param(_near({}), PLAIN, FAR, id="an empty term"),
        pytest.param(_near({}, _term("pool", "In", "a", "b")), PLAIN, None, id="one of the terms"),
        pytest.param(_near(_term("pool", "NotIn", "a")), PLAIN, FAR, id="not in"),
        pytest.param(_near(_term("zone", "NotIn", "a")), PLAIN, None, id="not in, and not there"),
        pytest.param(_near(_term("pool", "Exists")), PLAIN, None, id="exists"),
        pytest.param(_near(_term("pool", "DoesNotExist")), PLAIN, FAR, id="does not exist"),
        pytest.param(_near(_term("size", "Gt", "3")), PLAIN, None, id="greater"),
        pytest.param(_near(_term("size", "Gt", "8")), PLAIN, FAR, id="not greater"),
        pytest.param(_near(_term("size", "Lt", "9")), PLAIN, None, id="less"),
        pytest.param(_near(_term("pool", "Gt", "3")), PLAIN, FAR, id="no number"),
        pytest.param(_near(_term("none", "Lt", "3")), PLAIN, FAR, id="nothing to compare"),
        pytest.param(_near(_term("size", "Lt")), PLAIN, FAR, id="nothing to compare with"),
        pytest.param(_near(_term("size", "About", "8")), PLAIN, FAR, id="no operator"),
        pytest.param(_near(_term("metadata.name", "In", "n", fields=True)), PLAIN, None, id="by name"),
        pytest.param(_near(_term("metadata.name", "In", "m", fields=True)), PLAIN, FAR, id="by another name"),
    ],
)
def test_rejection(pod: FullPodSpec, node: FullNode, why: str | None) -> None:
    assert rejection(pod, node) == why


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        pytest.param(None, None, id="nobody has tried"),
        pytest.param([{"type": "PodScheduled", "status": "True"}], None, id="placed"),
        pytest.param([{"type": "Ready", "status": "False", "message": "x"}], None, id="another condition"),
        pytest.param([{"type": "PodScheduled", "status": "False"}], None, id="without a word"),
        pytest.param([{"type": "PodScheduled", "status": "False", "message": "0/1"}], "0/1", id="not placed"),
    ],
)
def test_the_message_of_kube_scheduler(conditions: object, said: str | None) -> None:
    assert msgspec.convert({"status": {"conditions": conditions}}, FullPod).status.scheduler_message == said
