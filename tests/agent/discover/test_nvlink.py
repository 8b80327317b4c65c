"""Both ends of a link must agree, and peer access separates fabrics."""

from agent.discover.nvlink import build_nvlink_graph
from agent.discover.ports import GpuPorts
from gputopo.model import Link, Nvlink, Uplink


def test_a_link_has_the_lanes_and_the_speed_of_its_lower_end() -> None:
    ports = {0: GpuPorts(gpus={1: 4}, gbps=50.0), 1: GpuPorts(gpus={0: 3}, gbps=40.0), 2: GpuPorts()}

    # 3 lanes of 40 GB/s
    assert build_nvlink_graph(ports, {}) == Nvlink(links=(Link(a=0, b=1, lanes=3, expected_lanes=4, gbps=120.0),))


def test_a_link_of_one_end_only_is_down_and_one_sided() -> None:
    ports = {0: GpuPorts(gpus={1: 4}, gbps=50.0), 1: GpuPorts()}

    assert build_nvlink_graph(ports, {}) == Nvlink(links=(Link(a=0, b=1, lanes=0, expected_lanes=4, one_sided=True),))


def test_gpus_on_switches_are_one_fabric_by_default() -> None:
    ports = {index: GpuPorts(switch=6, gbps=50.0) for index in (0, 1, 2)}

    # nobody proved it: assumed; 6 lanes of 50 GB/s
    assert build_nvlink_graph(ports, {}).uplinks == tuple(
        Uplink(gpu=index, fabric=0, lanes=6, gbps=300.0, assumed=True) for index in (0, 1, 2)
    )


def test_peer_access_that_works_proves_a_fabric() -> None:
    ports = {0: GpuPorts(switch=18), 1: GpuPorts(switch=18)}

    assert build_nvlink_graph(ports, {(0, 1): True}).uplinks == (
        Uplink(gpu=0, fabric=0, lanes=18),
        Uplink(gpu=1, fabric=0, lanes=18),
    )


def test_gpus_that_reach_each_other_only_in_halves_are_two_fabrics() -> None:
    ports = {index: GpuPorts(switch=18) for index in range(4)}
    peers = {(a, b): a // 2 == b // 2 for a in range(4) for b in range(a + 1, 4)}

    assert [up.fabric for up in build_nvlink_graph(ports, peers).uplinks] == [0, 0, 1, 1]


def test_an_unknown_far_end_is_marked_as_assumed() -> None:
    ports = {0: GpuPorts(switch=18, assumed=True), 1: GpuPorts(switch=18)}

    assert [up.assumed for up in build_nvlink_graph(ports, {(0, 1): True}).uplinks] == [True, False]
