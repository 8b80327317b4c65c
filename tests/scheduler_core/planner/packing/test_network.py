"""Bandwidth between the nodes of a gang, and its part in the choice of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import pytest

from agent.daemon.publication import nic_rates
from gputopo.crd.nodegpus import NicAllocation, NicRate, NodeGpus, PodRef, bounds_error
from gputopo.labels import keys
from gputopo.model import Interconnect, NodeTopology
from gputopo.summary import TopologySummary
from scheduler_core.cache.node_nics import network_gbps
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.planner.packing.model import GangPlan
from scheduler_core.planner.packing.network import NetworkNode, NetworkRate, network_rate
from scheduler_core.planner.packing.plan import plan_gang
from scheduler_core.policy.policy import Policy
from tests.machines import MACHINES
from tests.scheduler_core.builders import occupant, record
from tests.scheduler_core.planner.packing.member_groups import RACK, crew, view

HGX = MACHINES["hgx_h100"]()  # mlx5_0 to mlx5_7 at PXB to a GPU each; mlx5_8 and mlx5_9 at NODE


def on_host(
    name: str,
    rates: Mapping[str, int] | Iterable[int] | None,
    *,
    labels: Mapping[str, str] | None = None,
    taken: Mapping[str, str] | None = None,
    topology: NodeTopology = HGX,
) -> NodeRecord:
    """A node whose agent publishes these rates (by name, or of the first NICs). ``taken``: holder by NIC."""
    found = record(name, topology.stable_facts(), held={}, labels=labels)
    by_name = (
        rates if isinstance(rates, Mapping) or rates is None else {f"mlx5_{at}": it for at, it in enumerate(rates)}
    )
    assert found.gpus is not None
    gpus = msgspec.structs.replace(
        found.gpus,
        nics=tuple(NicAllocation(nic, PodRef("team", holder, "c")) for nic, holder in (taken or {}).items()),
        nic_rates=None if by_name is None else tuple(NicRate(nic, rate) for nic, rate in by_name.items()),
    )
    return msgspec.structs.replace(found, gpus=gpus)


def node(
    name: str, rates: Mapping[str, int] | Iterable[int] | None = None, machine: str = "", clique: str = ""
) -> NetworkNode:
    """A node of a gang, with these rates."""
    topology = MACHINES[machine]() if machine else HGX
    found = on_host(name, rates, topology=topology)
    return NetworkNode(name, topology, {keys.FABRIC.key: clique} if clique else {}, network_gbps(found))


def test_one_node_needs_no_network() -> None:
    assert network_rate([]) is None
    assert network_rate([node("a", [400])]) is None


def test_the_slowest_node_decides_by_the_sum_of_its_near_nics() -> None:
    found = network_rate([node("fast", [400] * 8), node("slow", [200, 100])])

    assert found == NetworkRate(75.0, "NICs near the GPUs of slow, per node")  # 300 Gbit/s, twice, in bytes


def test_nics_of_the_storage_network_do_not_count() -> None:
    """Each GPU has a nearer NIC than mlx5_8 and mlx5_9. The annotation has no rates: they are in ``NodeGpus``."""
    gpus = NodeGpus("2026-11-22T10:00:00Z", "hash", "1", nic_rates=nic_rates(HGX))
    assert gpus.nic_rates is not None
    published = {each.nic: each.gbps for each in gpus.nic_rates}

    assert bounds_error(gpus) is None
    assert published["mlx5_8"] == 200
    assert network_gbps(on_host("n", published)) == (100.0,) * 8  # 400 Gbit/s each


def test_a_label_names_storage_nics_that_are_as_near_as_others() -> None:
    every = {f"mlx5_{at}": 400 for at in range(8)}
    label = {keys.STORAGE_NICS.key: "mlx5_6.mlx5_7.no-such-nic"}

    # mlx5_9 is at NODE to GPUs 6 and 7, as are mlx5_4 and mlx5_5, which GPUs 4 and 5 then share with them.
    assert network_gbps(on_host("n", every, labels=label)) == (100.0,) * 4 + (33.333,) * 2 + (66.667,) * 2
    assert network_gbps(on_host("n", every, labels={keys.STORAGE_NICS.key: "x." * 4000})) == (100.0,) * 8


def test_nics_that_other_pods_hold_are_subtracted() -> None:
    every = {f"mlx5_{at}": 400 for at in range(8)}
    busy = on_host("n", every, taken={f"mlx5_{at}": "other" for at in range(8)})
    pod = occupant("waits", 1)
    request = pod.profile.device_request._replace(other_devices=2)
    waits = pod._replace(profile=pod.profile._replace(device_request=request))
    waiting = msgspec.structs.replace(on_host("n", every), pods=(waits,))

    assert network_gbps(busy) == (0.0,) * 8
    assert network_gbps(busy, {("team", "other")}) == (100.0,) * 8
    assert sum(network_gbps(waiting) or ()) == pytest.approx(600.0)  # any two may be its


def test_an_unknown_rate_makes_the_result_unknown() -> None:
    known = node("known", [400] * 8)

    for other in (node("other"), NetworkNode("other", None, {})):
        assert network_rate([known, other]) == NetworkRate(None, "the NIC rates of other are not published")


def test_a_port_that_is_down_adds_nothing() -> None:
    assert network_rate([node("a", [400] * 8), node("b", [400])]) == NetworkRate(
        100.0, "NICs near the GPUs of b, per node"
    )


def test_nics_behind_another_socket_do_not_count() -> None:
    far = tuple(msgspec.structs.replace(nic, distances=(None,) * len(HGX.gpus)) for nic in HGX.nics)

    assert network_gbps(on_host("n", [400] * 8, topology=msgspec.structs.replace(HGX, nics=far))) is None


def test_nodes_of_one_clique_are_joined_by_nvlink() -> None:
    tray = [node(name, machine="gb200_tray", clique="c.1") for name in ("a", "b")]
    apart = [node(each, {"mlx5_0": 400}, "gb200_tray", f"c.{each}") for each in "ab"]
    found, other = network_rate(tray), network_rate(apart)

    assert found is not None
    assert other is not None
    assert (found.gbps, found.source) == (1800.0, "NVLink of one clique, per GPU")
    assert "NIC" in other.source


@pytest.mark.parametrize("slow", [None, [], [100] * 8], ids=["unknown", "down", "slow"])
def test_a_gang_takes_the_nodes_with_the_fastest_nics(slow: list[int] | None) -> None:
    rates = {"a": slow, "b": slow, "x": [400] * 8, "y": [400] * 8}
    seen = view(*(on_host(name, each) for name, each in rates.items()))

    assert _nodes(plan_gang(crew(2, 8), seen)) == ["x", "y"]
    assert _nodes(plan_gang(crew(1, 8), seen)) == ["a"]  # a pod alone uses no network


def test_a_gang_takes_the_nodes_whose_nics_no_other_pod_holds() -> None:
    taken = {f"mlx5_{at}": "other" for at in range(4)}
    seen = view(*(on_host(name, [400] * 8, taken=taken if name in "ab" else None) for name in "abxy"))

    assert _nodes(plan_gang(crew(2, 8), seen)) == ["x", "y"]


def test_the_narrower_domain_is_preferred_to_faster_nics() -> None:
    racks = {"a": {RACK: "r1"}, "b": {RACK: "r1"}, "x": {RACK: "r2"}, "y": {RACK: "r3"}}
    seen = view(*(on_host(name, [400 if name in "xy" else 100] * 8) for name in "abxy"), labels=racks)

    assert _nodes(plan_gang(crew(2, 8), seen)) == ["a", "b"]


def test_a_policy_can_leave_the_network_out() -> None:
    policy = Policy()
    policy = policy._replace(weights=policy.weights._replace(network=0.0))
    seen = view(*(on_host(name, [400 if name in "xy" else 100] * 8) for name in "abxy"))

    assert _nodes(plan_gang(crew(2, 8), seen._replace(policy_of=lambda _: policy))) == ["a", "b"]


def _nodes(found: object) -> list[str]:
    assert isinstance(found, GangPlan), found
    return sorted(seat.node or "" for seat in found.seats)


@pytest.mark.parametrize(
    ("sizes", "rate", "source"),
    [
        pytest.param((4,), 1800.0, "NVLink of one clique, per GPU", id="one island"),
        pytest.param((2, 2), None, "NVLink of one clique; the rate of a is not published", id="which island is open"),
    ],
)
def test_labels_state_the_nvlink_rate_of_a_clique(sizes: tuple[int, ...], rate: float | None, source: str) -> None:
    stated = NodeTopology(summary=TopologySummary(sizes, Interconnect.NVSWITCH, 1800))
    nodes = [NetworkNode(name, stated, {keys.FABRIC.key: "c.1"}) for name in ("a", "b")]

    assert network_rate(nodes) == NetworkRate(rate, source)
