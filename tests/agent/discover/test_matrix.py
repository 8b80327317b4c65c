"""Lanes per pair become direct links or links to a switch."""

from itertools import combinations

import pytest

from agent.discover.matrix import ports_from_lanes
from agent.discover.ports import GpuPorts


def uniform(gpus: int, lanes: int) -> dict[tuple[int, int], int | None]:
    return dict.fromkeys(combinations(range(gpus), 2), lanes)


MESHES = {
    "a bridged pair": (2, uniform(2, 12), GpuPorts(gpus={1: 12})),  # 12 lanes: as many as an A100 has
    "4 GPUs, NV4": (4, uniform(4, 4), GpuPorts(gpus={1: 4, 2: 4, 3: 4})),  # 3 x 4 = 12
    "4 GPUs, NV6": (4, uniform(4, 6), GpuPorts(gpus={1: 6, 2: 6, 3: 6})),  # 3 x 6 = 18: as many as an H200 has
    "4 GPUs, NV12": (4, uniform(4, 12), GpuPorts(switch=12)),  # 3 x 12 = 36: more than any GPU has
    "16 GPUs, NV6": (16, uniform(16, 6), GpuPorts(switch=6)),  # 15 x 6 = 90
    "4 of 8, NV8": (4, uniform(4, 8), GpuPorts(switch=8)),  # 3 x 8 = 24
    "no links": (4, uniform(4, 0), GpuPorts()),
}


@pytest.mark.parametrize(("gpus", "lanes", "expected"), MESHES.values(), ids=MESHES)
def test_more_lanes_than_a_gpu_has_ports_are_a_switch(
    gpus: int, lanes: dict[tuple[int, int], int | None], expected: GpuPorts
) -> None:
    ports, _ = ports_from_lanes(tuple(range(gpus)), lanes)

    assert ports[0] == expected


def test_a_gpu_with_a_link_down_has_fewer_lanes_into_the_switch() -> None:
    lanes = uniform(8, 18) | {(index, 7): 17 for index in range(7)}

    ports, peers = ports_from_lanes(tuple(range(8)), lanes)

    assert [ports[index].switch for index in range(8)] == [18] * 7 + [17]
    assert all(peers.values())


def test_two_groups_on_switches_do_not_reach_each_other() -> None:
    lanes = {(a, b): 12 if a // 4 == b // 4 else 0 for a, b in combinations(range(8), 2)}

    _, peers = ports_from_lanes(tuple(range(8)), lanes)

    assert peers == {(a, b): a // 4 == b // 4 for a, b in combinations(range(8), 2)}


def test_an_unknown_pair_has_unknown_peer_access() -> None:
    _, peers = ports_from_lanes((0, 1, 2, 3), uniform(4, 18) | {(2, 3): None})

    assert (2, 3) not in peers
