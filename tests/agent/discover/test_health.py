"""Degradations, and cases that only look like degradations."""

import pytest

from agent.discover.health import add_expected_lanes, find_degradations
from agent.discover.nvlink import build_nvlink_graph
from agent.discover.ports import GpuPorts
from gputopo.model import (
    Degradation,
    FabricState,
    Gpu,
    GpuFabric,
    Health,
    Link,
    NodeTopology,
    Nvlink,
    Pcie,
    Uplink,
)


def h100s(count: int, **facts: object) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=i, uuid=f"GPU-{i}", product="H100", **facts) for i in range(count))  # type: ignore[arg-type]


def uplinks(*lanes: int) -> Nvlink:
    return Nvlink(uplinks=tuple(Uplink(gpu=i, fabric=0, lanes=n, gbps=50.0 * n) for i, n in enumerate(lanes)))


def test_an_uplink_with_fewer_lanes_than_its_siblings_is_degraded() -> None:
    nvlink = add_expected_lanes(uplinks(18, 17, 18), h100s(3), None)

    assert [up.expected_lanes for up in nvlink.uplinks] == [None, 18, None]
    assert find_degradations(h100s(3), nvlink, {}) == [Degradation("gpu1.nvlink", "17 of 18 NVLinks active")]


def test_siblings_are_of_the_same_product() -> None:
    gpus = (Gpu(index=0, product="H100"), Gpu(index=1, product="H800"))

    assert add_expected_lanes(uplinks(18, 8), gpus, None) == uplinks(18, 8)


def test_a_gpu_that_left_the_switch_of_its_siblings_is_degraded() -> None:
    nvlink = add_expected_lanes(uplinks(18, 18), h100s(3), None)

    assert nvlink.uplinks[2] == Uplink(gpu=2, fabric=0, lanes=0, expected_lanes=18, gbps=0.0)
    assert find_degradations(h100s(3), nvlink, {}) == [
        Degradation("gpu2.nvlink", "fallen out of the NVSwitch fabric: no NVLink is active")
    ]


NOT_FALLEN = {
    "in MIG mode, which hides NVLinks": Gpu(index=2, product="H100", mig_enabled=True),
    "lost, and said so": Gpu(index=2, product="H100", health=Health.LOST),
    "of unknown product": Gpu(index=2),
    "of another product": Gpu(index=2, product="L4"),
}


@pytest.mark.parametrize("other", NOT_FALLEN.values(), ids=NOT_FALLEN)
def test_a_gpu_without_links_is_not_always_missing_from_the_switch(other: Gpu) -> None:
    assert add_expected_lanes(uplinks(18, 18), (*h100s(2), other), None) == uplinks(18, 18)


def test_one_sibling_on_a_switch_is_enough() -> None:
    nvlink = add_expected_lanes(uplinks(18), h100s(2), None)

    assert [each.what for each in find_degradations(h100s(2), nvlink, {})] == ["gpu1.nvlink"]


def test_a_bridge_that_looks_like_a_switch_in_a_virtual_machine_is_not_expected_of_other_cards() -> None:
    cards = tuple(Gpu(index=index, product="NVIDIA A100 80GB PCIe") for index in range(3))

    assert add_expected_lanes(uplinks(12, 12), cards, None) == uplinks(12, 12)


def test_the_links_that_a_product_had_before_are_expected_of_a_replaced_gpu() -> None:
    before = NodeTopology(gpus=h100s(2), nvlink=uplinks(18, 18))
    now = tuple(Gpu(index=index, uuid=f"GPU-new-{index}", product="H100") for index in range(2))

    nvlink = add_expected_lanes(uplinks(17, 17), now, before)

    assert [up.expected_lanes for up in nvlink.uplinks] == [18, 18]


@pytest.mark.parametrize(
    ("product", "lanes", "expected"),
    [
        pytest.param("NVIDIA A100 80GB PCIe", 11, 12, id="three bridges of four"),
        pytest.param("NVIDIA A100-PCIE-40GB", 8, None, id="two bridges"),
        pytest.param("NVIDIA RTX A6000", 3, 4, id="one bridge"),
        pytest.param("Quadro RTX 8000", 1, 2, id="Turing"),
        pytest.param("Tesla V100-SXM2-32GB", 1, None, id="no bridges"),
    ],
)
def test_a_bridge_has_all_of_its_links(product: str, lanes: int, expected: int | None) -> None:
    pair = (Gpu(index=0, product=product), Gpu(index=1, product=product))

    nvlink = add_expected_lanes(Nvlink(links=(Link(a=0, b=1, lanes=lanes),)), pair, None)

    assert nvlink.links == (Link(a=0, b=1, lanes=lanes, expected_lanes=expected),)


MESHED = {  # product, index of the GPU without links, GPUs that are linked
    "a mesh of four": ("NVIDIA A100-SXM4-80GB", (0, 1, 2), True),
    "a pair with a bridge, and a card": ("NVIDIA RTX A6000", (0, 1), False),
    "three of four cards that a bridge joins": ("NVIDIA H200 NVL", (0, 1, 2), True),
    "a bridge for four cards, and a card": ("NVIDIA H200 NVL", (0, 1, 2, 3), False),
    "two of three GPUs of a board": ("NVIDIA H100 80GB HBM3", (0, 1), True),
}


@pytest.mark.parametrize(("product", "linked", "found"), MESHED.values(), ids=MESHED)
def test_a_gpu_of_a_mesh_without_any_link_is_degraded(product: str, linked: tuple[int, ...], *, found: bool) -> None:
    alone = len(linked)
    gpus = tuple(Gpu(index=index, product=product) for index in range(alone + 1))
    ports = {i: GpuPorts(gpus={j: 4 for j in linked if j != i}, ports=12) for i in linked} | {alone: GpuPorts(ports=12)}

    what = {each.what for each in find_degradations(gpus, build_nvlink_graph(ports, {}), ports)}

    assert (f"gpu{alone}.nvlink" in what) is found


def test_a_missing_link_is_found_after_indices_changed() -> None:
    before = NodeTopology(gpus=h100s(4), nvlink=Nvlink(links=(Link(a=1, b=2, lanes=4), Link(a=1, b=3, lanes=4))))
    now = (Gpu(index=0, uuid="GPU-2", product="H100"), Gpu(index=1, uuid="GPU-1", product="H100"))

    nvlink = add_expected_lanes(Nvlink(links=(Link(a=0, b=1, lanes=3),)), now, before)

    assert nvlink == Nvlink(links=(Link(a=0, b=1, lanes=3, expected_lanes=4),))
    assert find_degradations(now, nvlink, {}) == [Degradation("gpu0-gpu1", "3 of 4 NVLinks active")]


def test_links_and_uplinks_that_are_missing_are_degraded() -> None:
    before = NodeTopology(
        gpus=h100s(3),
        nvlink=Nvlink(links=(Link(a=0, b=1, lanes=4),), uplinks=(Uplink(gpu=2, fabric=0, lanes=18),)),
    )

    nvlink = add_expected_lanes(Nvlink(), h100s(3), before)

    assert nvlink == Nvlink(
        links=(Link(a=0, b=1, lanes=0, expected_lanes=4, gbps=0.0),),
        uplinks=(Uplink(gpu=2, fabric=0, lanes=0, expected_lanes=18, gbps=0.0),),
    )


def test_unchanged_links_and_removed_cards_are_not_degraded() -> None:
    nvlink = Nvlink(links=(Link(a=0, b=1, lanes=4),), uplinks=(Uplink(gpu=2, fabric=0, lanes=18),))
    before = NodeTopology(
        gpus=h100s(5),
        nvlink=Nvlink(
            links=(Link(a=0, b=1, lanes=4), Link(a=0, b=4, lanes=4)),
            uplinks=(Uplink(gpu=2, fabric=0, lanes=18), Uplink(gpu=3, fabric=0, lanes=18)),
        ),
    )

    assert add_expected_lanes(nvlink, h100s(3), before) == nvlink


def test_unknown_previous_links_expect_nothing() -> None:
    assert add_expected_lanes(Nvlink(), h100s(2), NodeTopology(gpus=h100s(2))) == Nvlink()


DIRECT = {
    "a port down beside a sibling with all": (
        {0: GpuPorts(gpus={1: 4}, ports=4), 1: GpuPorts(gpus={0: 3}, ports=4)},
        [Degradation("gpu1.nvlink", "3 of 4 NVLinks active; a sibling of the same product has all")],
    ),
    "a board that wires GPUs differently": (
        {0: GpuPorts(gpus={1: 3}, ports=6), 1: GpuPorts(gpus={0: 4}, ports=6)},
        [],
    ),
    "a card without a bridge": ({0: GpuPorts(gpus={1: 4}, ports=4), 1: GpuPorts(ports=4)}, []),
    "ports that nobody counted": ({0: GpuPorts(gpus={1: 4}), 1: GpuPorts(gpus={0: 3})}, []),
}


@pytest.mark.parametrize(("ports", "expected"), DIRECT.values(), ids=DIRECT)
def test_ports_of_direct_links(ports: dict[int, GpuPorts], expected: list[Degradation]) -> None:
    assert find_degradations(h100s(2), Nvlink(), ports) == expected


@pytest.mark.parametrize(
    ("product", "bare_metal", "count"),
    [
        ("NVIDIA A100-SXM4-40GB", True, 2),
        ("NVIDIA A100-SXM4-40GB", False, 0),
        ("NVIDIA A100 80GB PCIe", True, 0),
    ],
)
def test_a_board_without_any_active_link_is_degraded_on_bare_metal(product: str, bare_metal: bool, count: int) -> None:
    gpus = tuple(Gpu(index=index, product=product, mig_enabled=False) for index in range(2))
    ports = {index: GpuPorts(ports=12) for index in range(2)}

    found = find_degradations(gpus, Nvlink(), ports, bare_metal=bare_metal)

    why = "0 of 12 NVLinks active; boards of this product wire all: check nvidia-fabricmanager"
    assert found == [Degradation(f"gpu{index}.nvlink", why) for index in range(count)]


def test_unknown_products_have_no_siblings() -> None:
    ports = {0: GpuPorts(gpus={1: 4}, ports=4), 1: GpuPorts(gpus={0: 3}, ports=4)}

    assert find_degradations((Gpu(index=0), Gpu(index=1)), Nvlink(), ports) == []


def test_a_lost_gpu_is_degraded_also_where_links_are_unknown() -> None:
    assert find_degradations((Gpu(index=4, health=Health.LOST),), None, {}) == [
        Degradation("gpu4", "lost: the driver lists it and cannot talk to it")
    ]


DONE = GpuFabric(FabricState.COMPLETED)
FABRICS = {
    "all well": ((DONE, DONE), []),
    "one failed": (
        (DONE, GpuFabric(FabricState.COMPLETED, status="UNKNOWN")),
        [Degradation("gpu1.fabric", "fabric registration failed: UNKNOWN")],
    ),
    "one left behind": (
        (DONE, GpuFabric(FabricState.NOT_STARTED)),
        [Degradation("gpu1.fabric", "fabric registration not-started; siblings completed")],
    ),
    "one still joining, as at boot": ((DONE, GpuFabric(FabricState.IN_PROGRESS)), []),
    "all still joining, as at boot": ((GpuFabric(FabricState.IN_PROGRESS),) * 2, []),
    "health bits": (
        (GpuFabric(FabricState.COMPLETED, unhealthy=("route unhealthy",)), DONE),
        [Degradation("gpu0.fabric", "the fabric reports: route unhealthy")],
    ),
    "no fabric": ((None, None), []),
}


@pytest.mark.parametrize(("fabrics", "expected"), FABRICS.values(), ids=FABRICS)
def test_fabric_faults(fabrics: tuple[GpuFabric | None, ...], expected: list[Degradation]) -> None:
    gpus = tuple(Gpu(index=index, fabric=fabric) for index, fabric in enumerate(fabrics))

    assert find_degradations(gpus, None, {}) == expected


PCIE = {
    "slow under load": (Pcie(1, 16, 4, 16), {0}, [Degradation("gpu0.pcie", "PCIe generation 1 of 4 under load")]),
    "narrow under load": (Pcie(4, 8, 4, 16), {0}, [Degradation("gpu0.pcie", "PCIe x8 of x16 under load")]),
    "as it should be": (Pcie(4, 16, 4, 16), {0}, []),
    "not known": (Pcie(None, None, 4, 16), {0}, []),
    "idle": (Pcie(1, 8, 4, 16), set(), []),
}


@pytest.mark.parametrize(("pcie", "awake", "expected"), PCIE.values(), ids=PCIE)
def test_a_pcie_link_is_judged_only_in_p0(pcie: Pcie, awake: set[int], expected: list[Degradation]) -> None:
    gpus = (Gpu(index=0, pcie=pcie),)

    assert find_degradations(gpus, None, {}, gpus_at_p0=frozenset(awake)) == expected
