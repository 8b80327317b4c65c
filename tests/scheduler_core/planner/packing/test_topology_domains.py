"""Topology domains by label, and the order of levels."""

from __future__ import annotations

import pytest

from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.packing.topology_domains import (
    SearchLevel,
    domain_of,
    domain_path_of,
    search_levels,
    shared_domain,
    sort_path_of,
)

ZONE, RACK, BLOCK = (
    "topology.kubernetes.io/zone",
    "cloud.provider.com/topology-rack",
    "cloud.provider.com/topology-block",
)


@pytest.mark.parametrize(
    ("labels", "level", "domain"),
    [
        pytest.param({"gputopo.io/fabric": "a.1", "nvidia.com/gpu.clique": "b.2"}, "clique", "a.1", id="ours first"),
        pytest.param({"nvidia.com/gpu.clique": "b.2"}, "clique", "b.2", id="NVIDIA's label"),
        pytest.param({"gputopo.io/fabric": ""}, "clique", None, id="empty label"),
        pytest.param({"network.topology.nvidia.com/leaf": "s1"}, "rack", "s1", id="topograph"),
        pytest.param({"topology.k8s.aws/network-node-layer-2": "nn"}, "block", "nn", id="AWS"),
        pytest.param({"example.com/row": "7"}, "example.com/row", "7", id="any label"),
        pytest.param({}, "zone", None, id="none"),
    ],
)
def test_the_domain_of_a_node(labels: dict[str, str], level: str, domain: str | None) -> None:
    assert domain_of(labels, level, LEVELS) == domain


def test_a_rack_belongs_to_its_block_and_zone() -> None:
    labels = {RACK: "r", BLOCK: "b", ZONE: "z", "gputopo.io/fabric": "c.1"}

    assert domain_path_of(labels, ("rack",), LEVELS) == ("r", "b", "z")
    assert domain_path_of({RACK: "r"}, ("rack",), LEVELS) == ("r", "", "")
    assert domain_path_of(labels, ("clique",), LEVELS) == ("c.1",)
    assert domain_path_of(labels, ("clique", "zone"), LEVELS) == ("c.1", "z")
    assert domain_path_of(labels, ("clique", "example.com/row"), LEVELS) is None
    assert domain_path_of({}, (), LEVELS) == ()
    assert sort_path_of(labels, LEVELS) == ("z", "b", "r", "c.1")
    assert sort_path_of({}, LEVELS) == ("", "", "", "")


WIDENING: tuple[SearchLevel, ...] = (("clique",), ("rack",), ("block",), ("zone",), ())


@pytest.mark.parametrize(
    ("required", "preferred", "found"),
    [
        pytest.param(None, None, WIDENING, id="default: from the clique on"),
        pytest.param("clique", None, (("clique",),), id="one clique"),
        pytest.param("rack", None, (("clique", "rack"), ("rack",)), id="one rack, preferably one clique in it"),
        pytest.param("rack", "zone", (("clique", "rack"), ("rack",)), id="preferred is wider than required"),
        pytest.param(
            None,
            "rack",
            (("clique", "rack"), ("rack",), *WIDENING[:1], *WIDENING[2:]),
            id="a clique in one rack before a clique that spans racks",
        ),
        pytest.param(
            "zone",
            "rack",
            (("clique", "rack", "zone"), ("rack", "zone"), ("clique", "zone"), ("block", "zone"), ("zone",)),
            id="both",
        ),
        pytest.param(
            "row",
            None,
            (("clique", "row"), ("rack", "row"), ("block", "row"), ("zone", "row"), ("row",)),
            id="any label required",
        ),
        pytest.param(
            None,
            "row",
            (("clique", "row"), ("rack", "row"), ("block", "row"), ("zone", "row"), ("row",), *WIDENING),
            id="any label preferred",
        ),
    ],
)
def test_the_order_of_levels(required: str | None, preferred: str | None, found: tuple[SearchLevel, ...]) -> None:
    assert search_levels(required, preferred, LEVELS) == found


def test_the_narrowest_common_domain() -> None:
    one, two = {RACK: "r", ZONE: "z"}, {RACK: "r", ZONE: "y"}

    assert shared_domain([one, one], list(LEVELS), LEVELS) == "rack=r"
    assert shared_domain([one, two], list(LEVELS), LEVELS) is None  # racks of one name in two zones
    assert shared_domain([one, {ZONE: "z"}], list(LEVELS), LEVELS) == "zone=z"
    assert shared_domain([], list(LEVELS), LEVELS) is None
