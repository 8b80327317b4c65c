"""The reasons why a node takes no new pods: the table of nodes and the cluster page agree on them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.kube.objects import PartialNode
from gputopo.kube.taints import NODE_REMOVAL_TAINTS, Taint, unusable_reasons
from scheduler_core.cache.kube_scheduler_filters import FullNode

KEYS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.kubernetes.io/disk-pressure", "pool",
        "node.cloudprovider.kubernetes.io/uninitialized", *NODE_REMOVAL_TAINTS)  # fmt: skip


@pytest.mark.parametrize("unschedulable", [True, False])
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute", "PreferNoSchedule"])
@pytest.mark.parametrize("keys", [*((key,) for key in KEYS), KEYS, ()], ids=lambda keys: f"{len(keys)}-{keys[:1]}")
def test_the_table_and_the_cluster_page_agree(keys: tuple[str, ...], effect: str, *, unschedulable: bool) -> None:
    taints = [{"key": key, "effect": effect} for key in keys]
    node: dict[str, Any] = {"metadata": {"name": "n"}, "spec": {"unschedulable": unschedulable, "taints": taints}}

    assert msgspec.convert(node, PartialNode).spec.unusable == msgspec.convert(node, FullNode).unusable


def test_of_many_taints_the_first_are_named_and_the_others_counted() -> None:
    found = unusable_reasons(
        [Taint(f"node.kubernetes.io/{n}", "", "NoExecute") for n in range(500)], unschedulable=True
    )

    assert (found[0], found[1], found[-1], len(found)) == (
        "cordoned", "taint node.kubernetes.io/0", "493 more taints", 9
    )  # fmt: skip
