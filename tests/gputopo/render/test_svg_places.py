"""The layout of a drawing in numbers: positions of GPUs, switches and NICs, and routes of NVLinks."""

import msgspec
import pytest

from gputopo.model import Gpu, Link, Nic, NodeTopology, Nvlink, PcieDistance, Uplink
from gputopo.render.svg.assembly import SPINE, Fabric
from gputopo.render.svg.geometry import GPU_W, Rect
from gputopo.render.svg.grouping import Arrangement, arrange_boxes
from gputopo.render.svg.layout import layout_page
from gputopo.render.svg.link_labels import MAX_LABELS, place_link_labels
from gputopo.render.svg.link_routing import BODY_H, FIRST_TRACK, MIN_BODY, TRACK, UPLINK, pack, route
from gputopo.render.svg.marks import part_name
from gputopo.render.svg.ports import End, place_ports
from tests.machines import dgx1, dgx2, dgx_a100, hgx_h100

ABOVE = {0: End(0, 100, top=True), 1: End(1, 300, top=True), 2: End(2, 500, top=True)}
FACING = {0: End(0, 100, top=True), 1: End(1, 300, top=True), 2: End(2, 100, top=False), 3: End(3, 300, top=False)}


def cards(*numa: int | None) -> NodeTopology:
    """GPUs of which only the NUMA node is known."""
    return NodeTopology(gpus=tuple(Gpu(index=index, numa_node=node) for index, node in enumerate(numa)))


def links(*pairs: tuple[int, int]) -> Nvlink:
    return Nvlink(links=tuple(Link(a=a, b=b, lanes=1) for a, b in sorted(pairs)))


def rows(plan: Arrangement) -> list[list[tuple[str, list[int]]]]:
    return [
        [(box.label, [gpu.index for switch in box.switches for gpu in switch.gpus]) for box in row] for row in plan.rows
    ]


@pytest.mark.parametrize(
    ("numa", "expected"),
    [
        pytest.param([0, 0, 1], [[("NUMA 0", [0, 1]), ("NUMA 1", [2])]], id="few GPUs in one row"),
        pytest.param([0] * 3 + [8] * 3, [[("NUMA 0", [0, 1, 2])], [("NUMA 8", [3, 4, 5])]], id="a row per node"),
        pytest.param(
            [0] * 6 + [1] * 2,
            [[("NUMA 0", [0, 1, 2, 3, 4, 5])], [("NUMA 1", [6, 7])]],
            id="a long row before a cut node",
        ),
        pytest.param([None] * 5, [[("NUMA ?", [0, 1, 2])], [("NUMA ?", [3, 4])]], id="one node may be cut"),
        pytest.param([1, 0, 1], [[("NUMA 1", [0, 2]), ("NUMA 0", [1])]], id="nodes in the order of their GPUs"),
        pytest.param(
            [0] * 9 + [1],
            [[("NUMA 0", [0, 1, 2, 3, 4])], [("NUMA 0", [5, 6, 7, 8]), ("NUMA 1", [9])]],
            id="a node of nine must be cut",
        ),
    ],
)
def test_rows_are_whole_numa_nodes_where_possible(
    numa: list[int | None], expected: list[list[tuple[str, list[int]]]]
) -> None:
    assert rows(arrange_boxes(cards(*numa))) == expected


def test_a_switch_goes_to_the_next_row_rather_than_being_cut() -> None:
    near, far = PcieDistance.PIX, PcieDistance.SYS
    switch_of = [0] * 3 + [1] * 3
    matrix = tuple(
        tuple(None if i == j else near if switch_of[i] == switch_of[j] else far for j in range(6)) for i in range(6)
    )
    plan = arrange_boxes(msgspec.structs.replace(cards(*[0] * 6), pcie=matrix))
    assert rows(plan) == [[("NUMA 0", [0, 1, 2])], [("NUMA 0", [3, 4, 5])]]


def test_a_switch_larger_than_a_row_is_cut() -> None:
    near = tuple(tuple(None if i == j else PcieDistance.PIX for j in range(6)) for i in range(6))
    assert rows(arrange_boxes(msgspec.structs.replace(cards(*[0] * 6), pcie=near))) == [
        [("NUMA 0", [0, 1, 2])],
        [("NUMA 0", [3, 4, 5])],
    ]


@pytest.mark.parametrize(
    ("distances", "node", "home"),
    [
        pytest.param(["PXB", "PIX"], None, "NUMA 1", id="nearest switch first"),
        pytest.param(["PHB", "SYS"], None, "NUMA 0", id="same host bridge"),
        pytest.param(["SYS", "NODE"], 0, "NUMA 0", id="its own node before a guess"),
        pytest.param(["PIX", "SYS"], 1, "NUMA 0", id="a shared switch before its node"),
        pytest.param(["SYS", "SYS"], None, "NUMA ?", id="nothing known"),
        pytest.param(["SYS", "SYS"], 5, "NUMA 5", id="a node without GPUs"),
    ],
)
def test_nics_stand_near_their_gpus(distances: list[str], node: int | None, home: str) -> None:
    nic = Nic(name="mlx5_0", numa_node=node, distances=tuple(PcieDistance(each) for each in distances))
    plan = arrange_boxes(msgspec.structs.replace(cards(0, 1), nics=(nic,)))
    homes = [
        box.label for box in (*plan.rows[0], *plan.spare) if box.nics or any(switch.nics for switch in box.switches)
    ]
    assert homes == [home]


def test_a_nic_near_two_gpus_shows_that_they_share_a_switch() -> None:
    nic = Nic(name="mlx5_0", distances=(PcieDistance.PIX, PcieDistance.PXB, PcieDistance.SYS))
    plan = arrange_boxes(msgspec.structs.replace(cards(0, 0, 0), nics=(nic,)))
    assert [[gpu.index for gpu in switch.gpus] for switch in plan.rows[0][0].switches] == [[0, 1], [2]]


def test_numa_nodes_without_gpus_are_listed_by_number() -> None:
    assert [box.label for box in arrange_boxes(dgx_a100()).spare] == ["NUMA 0", "NUMA 2", "NUMA 4", "NUMA 6"]


def test_brackets_nest_the_nearest_neighbour_outermost() -> None:
    ports = place_ports(ABOVE, links((0, 1), (0, 2)))
    assert ports[0, 0, 2] < ports[0, 0, 1]
    assert ports[0, 0, 2] == pytest.approx(100 - GPU_W / 2 + GPU_W / 3)


def test_links_straight_across_leave_at_the_centre() -> None:
    ports = place_ports(FACING, links((0, 1), (0, 2), (0, 3)))
    assert (ports[0, 0, 2], ports[2, 0, 2]) == (100, 100)
    assert 100 < ports[0, 0, 3] < ports[0, 0, 1]


def test_short_spans_get_the_nearest_tracks() -> None:
    assert pack({(0, 3): (0, 90), (0, 1): (0, 30), (2, 3): (60, 90), (1, 3): (30, 90)}) == {
        (0, 1): 0,
        (2, 3): 0,
        (1, 3): 1,
        (0, 3): 2,
    }


def test_overlapping_brackets_have_tracks_of_their_own() -> None:
    channel = route(ABOVE, (10, 10), links((0, 1), (1, 2), (0, 2)), {})
    levels = {(wire.edge.a, wire.edge.b): wire.points[1][1] for wire in channel.wires if isinstance(wire.edge, Link)}
    assert levels == {(0, 1): FIRST_TRACK, (1, 2): FIRST_TRACK, (0, 2): FIRST_TRACK + TRACK}
    assert {wire.points[0][1] for wire in channel.wires} == {-10}


def uplinks(*gpus: int) -> Nvlink:
    return Nvlink(uplinks=tuple(Uplink(gpu=gpu, fabric=0, lanes=1) for gpu in gpus))


def test_a_fabric_covers_its_gpus_on_both_sides() -> None:
    channel = route(FACING, (10, 10), uplinks(0, 1, 2, 3), {})
    assert [body.rect for body in channel.bodies] == [Rect(100 - GPU_W / 2, UPLINK, 200 + GPU_W, BODY_H)]
    assert channel.height == UPLINK + BODY_H + UPLINK


@pytest.mark.parametrize(
    ("gpu", "left"),
    [
        pytest.param(0, 100 - GPU_W / 2, id="at the left end"),
        pytest.param(1, 300 - MIN_BODY / 2, id="in the middle"),
        pytest.param(2, 500 + GPU_W / 2 - MIN_BODY, id="at the right end"),
    ],
)
def test_a_fabric_of_one_gpu_has_room_for_its_name_and_stays_in_the_row(gpu: int, left: float) -> None:
    (body,) = route(ABOVE, (10, 10), uplinks(gpu), {}).bodies
    assert (body.rect.x, body.rect.w) == (left, MIN_BODY)


def test_a_fabric_of_the_only_gpu_may_stick_out() -> None:
    (body,) = route({0: ABOVE[0]}, (10, 10), uplinks(0), {}).bodies
    assert (body.rect.x, body.rect.w) == (0, MIN_BODY)


def test_a_fabric_in_several_channels_is_one_body_with_a_spine() -> None:
    fabric = Fabric(0, (Rect(0, 0, 300, 40), Rect(50, 100, 250, 40)))
    assert fabric.outline == (
        (0, 0), (300, 0), (300, 140), (50, 140), (50, 100), (300 - SPINE, 100), (300 - SPINE, 40), (0, 40),
    )  # fmt: skip


def test_links_to_far_rows_go_through_the_gutter() -> None:
    page = layout_page(msgspec.structs.replace(cards(*[0] * 24), nvlink=links((0, 20), (1, 2))))
    (far,) = [wire for wire, _ in page.assembly.wires if wire.edge == Link(a=0, b=20, lanes=1)]
    assert page.assembly.frame is not None
    right = max(rect.right for row in page.assembly.rows for rect, _ in row.gpus)
    assert right < far.points[2][0] == far.points[3][0] < page.assembly.frame.frame.right
    assert [far.points[0][1] < far.points[1][1], far.points[4][1] < far.points[5][1]] == [True, False]


def test_a_fabric_over_four_rows_is_drawn_once() -> None:
    nvlink = Nvlink(uplinks=tuple(Uplink(gpu=gpu, fabric=0, lanes=18) for gpu in range(32)))
    page = layout_page(msgspec.structs.replace(cards(*[0] * 16, *[1] * 16), nvlink=nvlink))
    assert [len(fabric.bars) for fabric in page.assembly.fabrics] == [2]
    assert len({bar.right for bar in page.assembly.fabrics[0].bars}) == 1


def test_signs_of_a_cube_mesh_cover_neither_each_other_nor_foreign_lines() -> None:
    page = layout_page(dgx1())
    signs = [pill.rect for _, pill in page.assembly.wires if pill]
    assert len(signs) == 16
    assert not any(a.meets(b) for place, a in enumerate(signs) for b in signs[:place])
    for place, (wire, _) in enumerate(page.assembly.wires):
        for (x1, y1), (x2, y2) in zip(wire.points, wire.points[1:], strict=False):
            leg = Rect(min(x1, x2), min(y1, y2), abs(x2 - x1), abs(y2 - y1))
            assert [other for other, sign in enumerate(signs) if other != place and sign.meets(leg.grown(1))] == []


def test_a_swarm_of_links_has_no_signs() -> None:
    ends = {index: End(index, index * 150, top=True) for index in range(12)}
    pairs = [(a, b) for a in range(12) for b in range(a + 1, 12)]
    wires = route(ends, (10, 10), links(*pairs), {}).wires
    assert len(wires) > MAX_LABELS
    assert place_link_labels(wires) == (None,) * len(wires)


@pytest.mark.parametrize("made", [dgx1, dgx2, dgx_a100, hgx_h100])
def test_rows_face_each_other_across_their_links(made: type[NodeTopology]) -> None:
    upper, lower = layout_page(made()).assembly.rows
    assert (upper.heads_below, lower.heads_below) == (False, True)
    assert {rect.cx for rect, _ in upper.gpus} == {rect.cx for rect, _ in lower.gpus}


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("gpu3", "GPU 3"),
        ("gpu3.pcie", "GPU 3 PCIe"),
        ("gpu2-gpu11", "GPU 2 to GPU 11"),
        ("gpu3.fan", "GPU 3 fan"),
        ("fabric 0", "fabric 0"),
    ],
)
def test_faults_are_called_by_what_people_see(what: str, expected: str) -> None:
    assert part_name(what) == expected
