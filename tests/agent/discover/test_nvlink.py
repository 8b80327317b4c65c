"""Both ends of a link must agree, and fabrics are told apart by peer access."""

from agent.discover.nvlink import graph
from agent.discover.ports import GpuPorts
from gputopo.model import Link, Nvlink, Uplink


def test_a_link_has_the_lanes_and_the_speed_of_its_weaker_side() -> None:
    ports = {0: GpuPorts(gpus={1: 4}, gbps=50.0), 1: GpuPorts(gpus={0: 3}, gbps=40.0), 2: GpuPorts()}

    # 3 lanes of 40 GB/s
    assert graph(ports, {}) == Nvlink(links=(Link(a=0, b=1, lanes=3, expected_lanes=4, gbps=120.0),))


def test_a_link_that_only_one_side_has_is_there_but_down() -> None:
    ports = {0: GpuPorts(gpus={1: 4}, gbps=50.0), 1: GpuPorts()}

    assert graph(ports, {}) == Nvlink(links=(Link(a=0, b=1, lanes=0, expected_lanes=4),))


def test_gpus_on_switches_are_one_fabric_where_nobody_says_otherwise() -> None:
    ports = {index: GpuPorts(switch=6, gbps=50.0) for index in (0, 1, 2)}

    # nobody proved it: assumed; 6 lanes of 50 GB/s
    assert graph(ports, {}).uplinks == tuple(
        Uplink(gpu=index, fabric=0, lanes=6, gbps=300.0, assumed=True) for index in (0, 1, 2)
    )


def test_peer_access_that_works_proves_a_fabric() -> None:
    ports = {0: GpuPorts(switch=18), 1: GpuPorts(switch=18)}

    assert graph(ports, {(0, 1): True}).uplinks == (
        Uplink(gpu=0, fabric=0, lanes=18),
        Uplink(gpu=1, fabric=0, lanes=18),
    )


def test_gpus_that_reach_each_other_only_in_halves_are_two_fabrics() -> None:
    ports = {index: GpuPorts(switch=18) for index in range(4)}
    peers = {(a, b): a // 2 == b // 2 for a in range(4) for b in range(a + 1, 4)}

    assert [up.fabric for up in graph(ports, peers).uplinks] == [0, 0, 1, 1]


def test_a_far_end_that_did_not_say_what_it_is_stays_assumed() -> None:
    ports = {0: GpuPorts(switch=18, assumed=True), 1: GpuPorts(switch=18)}

    assert [up.assumed for up in graph(ports, {(0, 1): True}).uplinks] == [True, False]
