"""The invariants of the model, and what it derives: islands and the multi-node fabric."""

from collections.abc import Callable

import pytest

from gputopo.model import (
    FabricState,
    Gpu,
    GpuFabric,
    Health,
    Interconnect,
    Island,
    Link,
    MigDevice,
    ModelError,
    Nic,
    NodeTopology,
    Nvlink,
    Pcie,
    PcieDistance,
    Uplink,
)


def gpus(count: int, **facts: object) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=index, **facts) for index in range(count))  # type: ignore[arg-type]


NOT_VALUES = {
    "negative index": (lambda: Gpu(index=-1), "GPU index -1 is not between 0 and 999"),
    "upper-case bus id": (lambda: Gpu(index=0, bus_id="0000:AF:00.0"), "bus id '0000:AF:00.0' is not like"),
    "NUMA -1": (lambda: Gpu(index=2, numa_node=-1), "GPU 2: numa_node -1 is negative; unknown is None"),
    "no memory": (lambda: Gpu(index=2, memory_mib=0), "GPU 2: memory_mib 0; unknown is None"),
    "MIG devices without MIG": (
        lambda: Gpu(index=0, mig_devices=(MigDevice("1g.10gb"),)),
        "MIG devices without MIG mode",
    ),
    "link to itself": (lambda: Link(a=1, b=1, lanes=1), "link 1-1: ends must differ"),
    "link backwards": (lambda: Link(a=2, b=1, lanes=1), "link 2-1: ends must differ, smaller first"),
    "negative lanes": (lambda: Link(a=0, b=1, lanes=-1, expected_lanes=2), "link 0-1: -1 lanes"),
    "more lanes than there are": (lambda: Link(a=0, b=1, lanes=3, expected_lanes=2), "more lanes than expected"),
    "no link at all": (lambda: Link(a=0, b=1, lanes=0), "no lanes and none expected is no link"),
    "negative speed": (lambda: Uplink(gpu=0, fabric=0, lanes=1, gbps=-1.0), "uplink of GPU 0: -1.0 GB/s"),
    "two GPUs of one index": (lambda: NodeTopology(gpus=(Gpu(index=0), Gpu(index=0))), "[0, 0] are not ascending"),
    "too many GPUs": (lambda: NodeTopology(gpus=gpus(65)), "65 GPUs; at most 64"),
    "link to a stranger": (
        lambda: NodeTopology(gpus=gpus(1), nvlink=Nvlink(links=(Link(a=0, b=7, lanes=1),))),
        "NVLinks name GPUs that do not exist: [7]",
    ),
    "a link twice": (
        lambda: NodeTopology(gpus=gpus(2), nvlink=Nvlink(links=(Link(a=0, b=1, lanes=1),) * 2)),
        "links are not ascending and distinct",
    ),
    "two uplinks of a GPU": (
        lambda: NodeTopology(
            gpus=gpus(1),
            nvlink=Nvlink(uplinks=(Uplink(gpu=0, fabric=0, lanes=1), Uplink(gpu=0, fabric=1, lanes=1))),
        ),
        "uplinks are not ascending and distinct",
    ),
    "an unknown pair twice": (
        lambda: NodeTopology(gpus=gpus(2), nvlink=Nvlink(unknown=((0, 1), (0, 1)))),
        "unknown pairs are not ascending and distinct",
    ),
    "an unknown pair backwards": (
        lambda: NodeTopology(gpus=gpus(2), nvlink=Nvlink(unknown=((1, 0),))),
        "an unknown pair has its smaller GPU first",
    ),
    "an unknown pair with a stranger": (
        lambda: NodeTopology(gpus=gpus(1), nvlink=Nvlink(unknown=((0, 5),))),
        "NVLinks name GPUs that do not exist: [5]",
    ),
    "matrix of another size": (lambda: NodeTopology(gpus=gpus(2), pcie=((None,),)), "the PCIe matrix is not 2 x 2"),
    "distance to itself": (
        lambda: NodeTopology(gpus=gpus(1), pcie=((PcieDistance.PIX,),)),
        "has a distance from GPU 0 to itself",
    ),
    "lopsided matrix": (
        lambda: NodeTopology(gpus=gpus(2), pcie=((None, PcieDistance.PIX), (PcieDistance.SYS, None))),
        "differs between (1,0) and (0,1)",
    ),
    "NIC without distances": (
        lambda: NodeTopology(gpus=gpus(2), nics=(Nic(name="mlx5_0", distances=(None,)),)),
        "NIC mlx5_0: 1 distances for 2 GPUs",
    ),
}


@pytest.mark.parametrize(("make", "message"), NOT_VALUES.values(), ids=NOT_VALUES)
def test_an_impossible_model_is_refused_and_quoted(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        make()

    assert message in str(caught.value)


def test_unknown_nvlink_has_unknown_islands() -> None:
    assert NodeTopology(gpus=gpus(2)).islands is None


def test_no_nvlink_leaves_every_gpu_an_island_of_its_own() -> None:
    topology = NodeTopology(gpus=gpus(2), nvlink=Nvlink())

    assert topology.islands == (Island((0,), Interconnect.NONE, None), Island((1,), Interconnect.NONE, None))


def test_islands_are_connected_components_and_speed_is_that_of_the_weakest_member() -> None:
    links = (
        Link(a=0, b=3, lanes=2, gbps=100.0),
        Link(a=1, b=2, lanes=4, gbps=200.0),
        Link(a=3, b=4, lanes=4, gbps=200.0),
    )
    topology = NodeTopology(gpus=gpus(6), nvlink=Nvlink(links=links))

    # GPU 0 has 100, GPU 3 has 100 + 200, GPU 4 has 200: the weakest is 100
    assert topology.islands == (
        Island((0, 3, 4), Interconnect.NVLINK, 100.0),
        Island((1, 2), Interconnect.NVLINK, 200.0),
        Island((5,), Interconnect.NONE, None),
    )


def test_gpus_of_one_fabric_are_an_island_and_other_fabrics_are_others() -> None:
    uplinks = tuple(Uplink(gpu=index, fabric=index // 2, lanes=18, gbps=900.0) for index in range(4))
    topology = NodeTopology(gpus=gpus(4), nvlink=Nvlink(uplinks=uplinks))

    assert topology.islands == (
        Island((0, 1), Interconnect.NVSWITCH, 900.0),
        Island((2, 3), Interconnect.NVSWITCH, 900.0),
    )


def test_a_link_that_is_down_joins_nothing_and_an_unknown_speed_makes_the_islands_unknown() -> None:
    links = (Link(a=0, b=1, lanes=4), Link(a=1, b=2, lanes=0, expected_lanes=4))
    topology = NodeTopology(gpus=gpus(3), nvlink=Nvlink(links=links))

    assert topology.islands == (Island((0, 1), Interconnect.NVLINK, None), Island((2,), Interconnect.NONE, None))


def test_a_lost_gpu_is_in_no_island_and_a_mig_gpu_in_one_of_its_own() -> None:
    uplinks = tuple(Uplink(gpu=index, fabric=0, lanes=12, gbps=600.0) for index in range(4))
    machine = (Gpu(index=0), Gpu(index=1, health=Health.LOST), Gpu(index=2, mig_enabled=True), Gpu(index=3))
    topology = NodeTopology(gpus=machine, nvlink=Nvlink(uplinks=uplinks))

    assert topology.islands == (Island((0, 3), Interconnect.NVSWITCH, 600.0), Island((2,), Interconnect.NONE, None))


def test_an_unknown_pair_leaves_islands_uncertain_unless_it_lies_inside_one() -> None:
    links = (Link(a=0, b=1, lanes=4), Link(a=1, b=2, lanes=4))
    inside = NodeTopology(gpus=gpus(4), nvlink=Nvlink(links=links, unknown=((0, 2),)))
    across = NodeTopology(gpus=gpus(4), nvlink=Nvlink(links=links, unknown=((2, 3),)))
    lost = (*gpus(3), Gpu(index=3, health=Health.LOST))

    assert inside.uncertain_gpus == frozenset()
    assert across.uncertain_gpus == {0, 1, 2, 3}
    assert NodeTopology(gpus=lost, nvlink=Nvlink(links=links, unknown=((2, 3),))).uncertain_gpus == frozenset()
    assert NodeTopology(gpus=gpus(2)).uncertain_gpus == frozenset()


REGISTERED = GpuFabric(FabricState.COMPLETED, "7b968a6d-c8aa-45e1-9e07-e1e51be99c31", 1)
FABRICS = {
    "all registered": ((REGISTERED, REGISTERED), REGISTERED),
    "one elsewhere": ((REGISTERED, GpuFabric(FabricState.COMPLETED, REGISTERED.cluster_uuid, 2)), None),
    "one without": ((REGISTERED, None), None),
    "none": ((None, None), None),
    "still joining": ((GpuFabric(FabricState.IN_PROGRESS, REGISTERED.cluster_uuid, 1),) * 2, None),
    "failed": ((GpuFabric(FabricState.COMPLETED, REGISTERED.cluster_uuid, 1, "UNKNOWN"),) * 2, None),
    "one GPU with a fault": (
        (
            GpuFabric(FabricState.COMPLETED, "u", 1, unhealthy=("route recovery in progress",)),
            GpuFabric(FabricState.COMPLETED, "u", 1),
        ),
        GpuFabric(FabricState.COMPLETED, "u", 1, unhealthy=("route recovery in progress",)),
    ),
    "no multi-node fabric": ((GpuFabric(FabricState.COMPLETED, None, 0),) * 2, None),
}


@pytest.mark.parametrize(("each", "expected"), FABRICS.values(), ids=FABRICS)
def test_a_node_is_in_a_fabric_only_where_all_its_gpus_are(
    each: tuple[GpuFabric | None, ...], expected: GpuFabric | None
) -> None:
    machine = tuple(Gpu(index=index, fabric=fabric) for index, fabric in enumerate(each))

    assert NodeTopology(gpus=machine).fabric == expected


def test_slow_facts_leave_out_what_comes_and_goes() -> None:
    nic = Nic(name="mlx5_0", rate_gbps=400, distances=(None,))
    topology = NodeTopology(gpus=(Gpu(index=0, pcie=Pcie(1, 16, 5, 16)),), nics=(nic,))

    assert topology.stable_facts() == NodeTopology(
        gpus=(Gpu(index=0, pcie=Pcie(None, None, 5, 16)),), nics=(Nic(name="mlx5_0", distances=(None,)),)
    )


def test_gpus_and_distances_are_found_by_index() -> None:
    machine = (Gpu(index=2), Gpu(index=5))
    matrix = ((None, PcieDistance.PHB), (PcieDistance.PHB, None))
    topology = NodeTopology(gpus=machine, pcie=matrix)

    assert topology.get_gpu(5) == machine[1]
    assert topology.distance(5, 2) is PcieDistance.PHB
    assert NodeTopology(gpus=machine).distance(5, 2) is None
    with pytest.raises(ModelError, match="GPU 3 does not exist; existing: 2, 5"):
        topology.get_gpu(3)
    with pytest.raises(ModelError, match="existing: none"):
        NodeTopology().get_gpu(0)
