"""Bandwidth between the nodes of a gang."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from agent.daemon.publication import nic_rates
from gputopo.crd.nodegpus import NodeGpus, bounds_error
from gputopo.labels import keys
from gputopo.model import NodeTopology
from scheduler_core.planner.packing.network import NetworkNode, NetworkRate, network_rate, with_rates
from tests.machines import MACHINES


def node(name: str, machine: str = "hgx_h100", rates: tuple[int | None, ...] = (), clique: str = "") -> NetworkNode:
    """A node whose first NICs have these rates, Gbit/s; it has no others."""
    topology: NodeTopology = MACHINES[machine]()
    nics = tuple(msgspec.structs.replace(nic, rate_gbps=rate) for nic, rate in zip(topology.nics, rates, strict=False))
    labels: Mapping[str, str] = {keys.FABRIC.key: clique} if clique else {}
    return NetworkNode(name, msgspec.structs.replace(topology, nics=nics), labels)


def test_the_machine_of_the_tests_has_nics() -> None:
    assert len(MACHINES["hgx_h100"]().nics) >= 2


@pytest.mark.parametrize("nodes", [[], [node("a", rates=(400,))]])
def test_one_node_needs_no_network(nodes: list[NetworkNode]) -> None:
    assert network_rate(nodes) is None


def test_the_slowest_node_decides_by_the_sum_of_its_near_nics() -> None:
    found = network_rate([node("fast", rates=(400, 400)), node("slow", rates=(200, 100))])

    assert found == NetworkRate(75.0, "NICs near the GPUs of slow, per node")  # 300 Gbit/s, twice, in bytes


def test_the_rates_that_an_agent_publishes_reach_the_planner() -> None:
    """The annotation on the Node has no rates: they are in ``NodeGpus``."""
    observed = MACHINES["hgx_h100"]()
    published = observed.stable_facts()
    gpus = NodeGpus("2026-11-22T10:00:00Z", "hash", "1", nic_rates=nic_rates(observed))
    nodes = [NetworkNode(name, with_rates(published, gpus), {}) for name in "ab"]

    assert bounds_error(gpus) is None
    assert network_rate([NetworkNode(name, published, {}) for name in "ab"]) == NetworkRate(
        None, "the NIC rates of a are not published"
    )
    assert network_rate(nodes) == network_rate([NetworkNode(name, observed, {}) for name in "ab"])
    assert network_rate(nodes) == NetworkRate(900.0, "NICs near the GPUs of a, per node")


def test_an_unknown_rate_makes_the_result_unknown() -> None:
    known = node("known", rates=(400, 400))

    for other in (node("down", rates=(400, None)), node("down"), NetworkNode("down", None, {})):
        assert network_rate([known, other]) == NetworkRate(None, "the NIC rates of down are not published")


def test_nics_behind_another_socket_do_not_count() -> None:
    topology = MACHINES["hgx_h100"]()
    far = tuple(
        msgspec.structs.replace(nic, rate_gbps=400, distances=(None,) * len(topology.gpus)) for nic in topology.nics
    )
    lonely = NetworkNode("lonely", msgspec.structs.replace(topology, nics=far), {})

    assert network_rate([node("a", rates=(400,)), lonely]) == NetworkRate(
        None, "the NIC rates of lonely are not published"
    )


def test_nodes_of_one_clique_are_joined_by_nvlink() -> None:
    tray = [node(name, "gb200_tray", clique="c.1") for name in ("a", "b")]
    apart = [node("a", "gb200_tray", (400,), clique="c.1"), node("b", "gb200_tray", (400,), clique="c.2")]
    found, other = network_rate(tray), network_rate(apart)

    assert found is not None
    assert other is not None
    assert (found.gbps, found.source) == (1800.0, "NVLink of one clique, per GPU")
    assert "NIC" in other.source
