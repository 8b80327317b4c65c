"""The NVLinks that boards of a product wire are expected, and no others."""

import pytest

from agent.discover.boards import expect_board_lanes
from agent.discover.ports import GpuPorts
from gputopo.model import Gpu, Link, Nvlink, Uplink

A100, H100, GB200, V100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA GB200", "Tesla V100-SXM2-32GB"


def expected(product: str, lanes: dict[tuple[int, int], int], ports: int | None = None) -> dict[tuple[int, int], int]:
    """Return the expected lanes of each pair that has fewer. ``ports``: of each GPU, where a source counts them."""
    count = 1 + max(end for pair in lanes for end in pair)
    nvlink = Nvlink(links=tuple(Link(a=a, b=b, lanes=each) for (a, b), each in lanes.items() if each))
    known = {index: GpuPorts(ports=ports) for index in range(count)}
    gpus = tuple(Gpu(index=index, product=product) for index in range(count))
    found = expect_board_lanes(nvlink, gpus, known).links
    return {(link.a, link.b): link.expected_lanes for link in found if link.expected_lanes is not None}


def mesh(lanes: int, **other: int) -> dict[tuple[int, int], int]:
    """Return the lanes of four GPUs that are all linked; ``other``: of the pair "p23" and so on."""
    return {(a, b): other.get(f"p{a}{b}", lanes) for a in range(4) for b in range(a + 1, 4)}


@pytest.mark.parametrize(
    ("product", "lanes", "short"),
    [
        pytest.param(A100, mesh(4), {}, id="whole"),
        pytest.param(A100, mesh(4, p23=3), {(2, 3): 4}, id="a pair with one lane down"),
        pytest.param(A100, mesh(4, p23=0), {(2, 3): 4}, id="a pair with all lanes down"),
        pytest.param(H100, mesh(5), dict.fromkeys(mesh(5), 6), id="all pairs below the product's number"),
        pytest.param(H100, {(0, 1): 17}, {(0, 1): 18}, id="one pair"),
        pytest.param(GB200, {(0, 1): 17}, {(0, 1): 18}, id="Blackwell"),
        pytest.param(H100, {(0, 1): 9}, {}, id="half of the links may be another board"),
        pytest.param(V100, mesh(2, p23=1, p01=0), {}, id="a board that links only some pairs"),
        pytest.param("NVIDIA A100 80GB PCIe", {(0, 1): 11}, {}, id="cards"),
        pytest.param("NVIDIA H200 NVL", mesh(6, p23=5), {}, id="cards with a bridge for four"),
        pytest.param(A100, {**mesh(4), (4, 5): 4, (5, 6): 4, (4, 6): 4}, {}, id="two boards"),
    ],
)
def test_expected_lanes_of_pairs(
    product: str, lanes: dict[tuple[int, int], int], short: dict[tuple[int, int], int]
) -> None:
    assert expected(product, lanes) == short


def test_counted_ports_decide_instead_of_the_pairs() -> None:
    assert expected(A100, mesh(4, p23=3), ports=12) == {}


@pytest.mark.parametrize(
    ("product", "lanes", "ports", "whole"),
    [
        (H100, 9, 18, 18),
        (H100, 17, None, 18),
        (H100, 12, 12, None),
        (A100, 12, None, None),
        ("NVIDIA H800", 8, None, None),
        ("NVIDIA H100 NVL", 9, 18, None),
    ],
)
def test_expected_links_into_a_switch(product: str, lanes: int, ports: int | None, whole: int | None) -> None:
    nvlink = Nvlink(uplinks=(Uplink(gpu=0, fabric=0, lanes=lanes),))
    found = expect_board_lanes(nvlink, (Gpu(index=0, product=product),), {0: GpuPorts(switch=lanes, ports=ports)})

    assert found.uplinks[0].expected_lanes == whole
