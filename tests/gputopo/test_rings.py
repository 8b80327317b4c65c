"""The best ring through a set of GPUs, held against going through all rings one by one."""

from itertools import combinations, pairwise, permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.model import Gpu, Health, ModelError, NodeTopology, Nvlink, Pcie, PcieDistance, Uplink
from gputopo.paths import PathKind
from gputopo.rings import Ring, Rings, rings_of
from tests.machines import (
    MACHINES,
    a40x10,
    a100_mig,
    cloud_vm,
    dgx1,
    dgx2,
    h100_lost_gpu,
    h100_weak_uplink,
    hgx_h100,
    mixed,
    nvlink_unknown,
    rtx4090,
    v100_ring,
)


def nvlink(gbps: float | None, lanes: int = 1) -> Ring:
    return Ring(PathKind.NVLINK, gbps, lanes, None)


def pcie(gbps: float | None, distance: PcieDistance | None) -> Ring:
    return Ring(PathKind.PCIE, gbps, None, distance)


def brute_force(hops: dict[tuple[int, int], Ring], gpus: tuple[int, ...]) -> Ring:
    """Every ring there is, tried."""
    first, *rest = gpus
    ways = [(first, *order, first) for order in permutations(rest)]
    weakest = [min((hops[min(hop), max(hop)] for hop in pairwise(way)), key=lambda hop: hop.sort_key) for way in ways]
    return max(weakest, key=lambda hop: hop.sort_key)


hop_values = st.sampled_from(
    (
        nvlink(100.0, 2),
        nvlink(50.0),
        nvlink(None, 4),
        pcie(31.5, PcieDistance.PIX),
        pcie(63.0, PcieDistance.PIX),
        pcie(63.0, PcieDistance.SYS),
        pcie(None, None),
    )
)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[Ring]]:
    size = draw(st.integers(2, 6))
    pairs = size * (size - 1) // 2
    return size, draw(st.lists(hop_values, min_size=pairs, max_size=pairs))


@given(graphs())
@settings(max_examples=200, deadline=None)
def test_every_set_has_the_ring_that_trying_all_of_them_finds(graph: tuple[int, list[Ring]]) -> None:
    size, values = graph
    hops = dict(zip(combinations(range(size), 2), values, strict=True))
    tables = Rings(range(size), values)

    for count in range(2, size + 1):
        tried = {gpus: brute_force(hops, gpus) for gpus in combinations(range(size), count)}
        assert {gpus: tables.ring_through(gpus) for gpus in tried} == tried
        assert tables.best_ring(count) == max(tried.values(), key=lambda hop: hop.sort_key)


@given(graphs(), st.data())
@settings(deadline=None)
def test_the_best_among_some_gpus_is_the_best_of_their_sets(graph: tuple[int, list[Ring]], data: st.DataObject) -> None:
    size, values = graph
    tables = Rings(range(size), values)
    among = data.draw(st.sets(st.integers(0, size - 1), min_size=2))
    count = data.draw(st.integers(2, len(among)))

    sets = [tables.ring_through(gpus) for gpus in combinations(sorted(among), count)]

    assert tables.best_ring(count, among) == max((ring for ring in sets if ring), key=lambda ring: ring.sort_key)


@pytest.mark.parametrize(
    ("machine", "gpus", "expected"),
    [
        # Cube mesh: 0-3 by two NVLinks, 0-1 by one. Around 0-3-2-1 the hops are 2, 1 (3-2), 2 (2-1), 1 (1-0).
        pytest.param(dgx1(), (0, 3), nvlink(100.0, 2), id="two GPUs with two links between them"),
        pytest.param(dgx1(), (0, 1), nvlink(50.0), id="two GPUs with one link"),
        pytest.param(dgx1(), (0, 1, 2, 3), nvlink(50.0), id="a quad of a cube mesh"),
        pytest.param(dgx1(), tuple(range(8)), nvlink(100.0, 2), id="all of a cube mesh, on its double links"),
        pytest.param(dgx1(), (0, 5), pcie(31.5, PcieDistance.SYS), id="two GPUs of one island without a link"),
        pytest.param(v100_ring(), (0, 1, 2, 3), nvlink(100.0, 2), id="a ring"),
        pytest.param(v100_ring(), (0, 1, 2), pcie(31.5, PcieDistance.SYS), id="three of a ring have no ring"),
        pytest.param(hgx_h100(), (1, 4, 6), Ring(PathKind.NVSWITCH, 900.0, 18, None), id="any three on a switch"),
        pytest.param(h100_weak_uplink(), (0, 1), Ring(PathKind.NVSWITCH, 900.0, 18, None), id="without a weak one"),
        pytest.param(h100_weak_uplink(), (0, 1, 3), Ring(PathKind.NVSWITCH, 850.0, 17, None), id="with a weak one"),
        pytest.param(dgx2(), tuple(range(16)), Ring(PathKind.NVSWITCH, 300.0, 6, None), id="sixteen on a switch"),
    ],
)
def test_a_set_is_as_good_as_the_weakest_hop_of_its_best_ring(
    machine: NodeTopology, gpus: tuple[int, ...], expected: Ring
) -> None:
    assert rings_of(machine).ring_through(gpus) == expected


@pytest.mark.parametrize(
    ("machine", "size", "expected"),
    [
        pytest.param(dgx1(), 2, nvlink(100.0, 2), id="a pair of a cube mesh"),
        # The double links of a cube mesh are one ring of eight: no four have one among themselves.
        pytest.param(dgx1(), 4, nvlink(50.0), id="four of a cube mesh"),
        pytest.param(hgx_h100(), 8, Ring(PathKind.NVSWITCH, 900.0, 18, None), id="all on a switch"),
        pytest.param(h100_weak_uplink(), 7, Ring(PathKind.NVSWITCH, 900.0, 18, None), id="all but the weak one"),
        pytest.param(rtx4090(), 2, pcie(63.0, PcieDistance.NODE), id="two over PCIe"),
        pytest.param(hgx_h100(), 1, None, id="one has no ring"),
        pytest.param(hgx_h100(), 9, None, id="more than there are"),
    ],
)
def test_the_best_that_a_machine_can_give(machine: NodeTopology, size: int, expected: Ring | None) -> None:
    assert rings_of(machine).best_ring(size) == expected


def test_fewer_than_two_gpus_have_no_ring() -> None:
    assert (
        rings_of(dgx1()).ring_through(()),
        rings_of(dgx1()).ring_through((3,)),
        rings_of(NodeTopology()).best_ring(2),
    ) == (None, None, None)


def test_gpus_in_mig_mode_meet_over_pcie_only() -> None:
    assert rings_of(a100_mig()).ring_through((0, 1)) is not None
    kinds = {rings_of(a100_mig()).ring_through(pair).kind for pair in combinations(range(len(a100_mig().usable)), 2)}  # type: ignore[union-attr]
    assert PathKind.PCIE in kinds


def test_where_nvlink_is_unknown_the_ring_is_unknown() -> None:
    ring = rings_of(nvlink_unknown()).ring_through((0, 1))

    assert ring is not None
    assert ring.kind is PathKind.UNKNOWN


def test_a_lost_gpu_is_named_with_those_that_are_there() -> None:
    lost = next(gpu.index for gpu in h100_lost_gpu().gpus if not gpu.usable)

    with pytest.raises(ModelError, match=rf"GPU {lost} does not exist or is lost; usable: 0, 1"):
        rings_of(h100_lost_gpu()).ring_through((0, lost))
    with pytest.raises(ModelError, match=r"GPU 0 does not exist or is lost; usable: none"):
        rings_of(NodeTopology()).ring_through((0, 1))


def test_machines_of_one_shape_share_what_was_worked_out() -> None:
    renamed = tuple(msgspec.structs.replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in dgx1().gpus)

    assert rings_of(msgspec.structs.replace(dgx1(), gpus=renamed)) is rings_of(dgx1())
    assert rings_of(hgx_h100()) is not rings_of(dgx1())


@pytest.mark.parametrize("machine", [pytest.param(make(), id=name) for name, make in MACHINES.items()])
def test_no_set_is_better_than_the_best_of_its_size(machine: NodeTopology) -> None:
    tables = rings_of(machine)
    usable = [gpu.index for gpu in machine.usable]
    for size in range(2, min(len(usable), 5) + 1):
        best = tables.best_ring(size)
        found = [tables.ring_through(gpus) for gpus in combinations(usable, size)]
        assert best == max((ring for ring in found if ring), key=lambda ring: ring.sort_key)


def switched(size: int, weak: int) -> NodeTopology:
    uplinks = tuple(Uplink(gpu=i, fabric=0, lanes=9, gbps=400.0 if i == weak else 900.0) for i in range(size))
    return NodeTopology(gpus=tuple(Gpu(index=i) for i in range(size)), nvlink=Nvlink(uplinks=uplinks))


def test_more_than_sixteen_gpus_on_a_switch_are_answered_exactly() -> None:
    tables = rings_of(switched(36, weak=7))

    assert [tables.ring_through(range(36)), tables.best_ring(35), tables.best_ring(36)] == [
        Ring(PathKind.NVSWITCH, 400.0, 9, None),
        Ring(PathKind.NVSWITCH, 900.0, 9, None),
        Ring(PathKind.NVSWITCH, 400.0, 9, None),
    ]


def test_more_than_sixteen_gpus_in_a_sparse_graph_get_a_lower_bound() -> None:
    """A single ring of 18: its one ring is not found, nor is there any of 17, and PCIe is what is promised."""
    size = 18
    around = [
        nvlink(50.0) if b - a in (1, size - 1) else pcie(31.5, PcieDistance.SYS)
        for a, b in combinations(range(size), 2)
    ]
    tables = Rings(range(size), around)

    slow = pcie(31.5, PcieDistance.SYS)
    assert (tables.best_ring(size), tables.best_ring(17), tables.best_ring(2)) == (slow, slow, nvlink(50.0))


def test_a_ring_that_closure_cannot_find_is_found() -> None:
    """A plain ring of 16: the sparsest graph that has one."""
    size = 16
    around = [nvlink(50.0) if b - a in (1, size - 1) else pcie(None, None) for a, b in combinations(range(size), 2)]
    tables = Rings(range(size), around)

    assert (tables.ring_through(range(size)), tables.best_ring(15)) == (nvlink(50.0), pcie(None, None))


def test_two_triangles_joined_by_one_link_have_no_ring_of_six_and_one_of_three() -> None:
    joined = {(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)}
    values = [nvlink(50.0) if pair in joined else pcie(None, None) for pair in combinations(range(6), 2)]
    tables = Rings(range(6), values)

    assert [tables.best_ring(size) for size in (3, 4, 6)] == [nvlink(50.0), pcie(None, None), pcie(None, None)]


def test_nothing_is_said_about_the_rate_where_no_pcie_link_is_known() -> None:
    assert [
        ring.gbps
        for ring in (rings_of(cloud_vm()).ring_through((0, 1)), rings_of(mixed()).ring_through((0, 1)))
        if ring
    ]
    assert rings_of(a40x10()).best_ring(10) is not None


def test_machines_that_share_their_tables_are_distinguished() -> None:
    whole = hgx_h100()
    lost, in_mig = (
        msgspec.structs.replace(whole, gpus=(msgspec.structs.replace(whole.gpus[0], **change), *whole.gpus[1:]))
        for change in ({"health": Health.LOST}, {"mig_enabled": True})
    )
    slow = msgspec.structs.replace(dgx1(), nvlink=None)
    slower = msgspec.structs.replace(
        slow, gpus=tuple(msgspec.structs.replace(gpu, pcie=Pcie(max_generation=1, max_width=1)) for gpu in slow.gpus)
    )

    assert rings_of(whole) is rings_of(msgspec.structs.replace(whole, boot_id="another"))
    for each in (whole, lost, in_mig, slow, slower):
        copy = msgspec.convert(msgspec.to_builtins(each), NodeTopology)  # shares nothing
        usable = [gpu.index for gpu in each.usable]
        assert [ring_of(each, pair) for pair in combinations(usable, 2)] == [
            ring_of(copy, pair) for pair in combinations(usable, 2)
        ]
        assert each.islands == copy.islands
    assert [len(each.islands or ()) for each in (whole, lost, in_mig)] == [1, 1, 2]
    assert len((lost.islands or ())[0].gpus) == 7


def ring_of(topology: NodeTopology, gpus: tuple[int, ...]) -> Ring | None:
    return rings_of(topology).ring_through(gpus)
