"""Properties of the drawing of any machine, possible or not: nothing is missing, cut off or drawn over."""

from collections import Counter
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputopo.model import (
    Degradation,
    Gpu,
    Health,
    Link,
    MigDevice,
    Nic,
    NodeTopology,
    NumaNode,
    Nvlink,
    PcieDistance,
    Problem,
    ProblemKind,
    Uplink,
)
from gputopo.render.svg import render_svg
from gputopo.render.svg.geometry import Rect
from gputopo.render.svg.words import text_width
from gputopo.render.wording import escape_invisible
from tests.machines import MACHINES

SVG = "{http://www.w3.org/2000/svg}"

texts = st.one_of(
    st.sampled_from(["NVIDIA H100 80GB HBM3", "<script>alert(1)</script>", "\"&\x00'", "図" * 40, "W" * 90]), st.text()
)
distances = st.sampled_from([None, *PcieDistance])
lanes = st.sampled_from([(1, 1), (4, 4), (12, None), (17, 18), (0, 2)])
rates = st.sampled_from([None, 50.0, 112.5])

PCIE_KINDS: list[list[PcieDistance | None]] = [[None], list(PcieDistance), [PcieDistance.PIX, *[PcieDistance.SYS] * 4]]


@st.composite
def gpus(draw: st.DrawFn, index: int) -> Gpu:
    mig = draw(st.sampled_from([None, None, False, True]))
    cuts = st.lists(
        st.builds(MigDevice, profile=st.sampled_from(["1g.5gb", "3g.20gb", "1c.4g.20gb", "odd"])), max_size=9
    )
    return Gpu(
        index=index,
        uuid=draw(st.none() | texts),
        product=draw(st.none() | texts),
        memory_mib=draw(st.none() | st.integers(1, 10**7)),
        numa_node=draw(st.sampled_from([None, 0, 0, 0, 1, 8])),
        numa_affinity=draw(st.sampled_from([None, "0-1", "0,3-9,11-17,19-25"])),
        memory_numa_node=draw(st.sampled_from([None, None, 8, 255])),
        cpu_affinity=draw(st.sampled_from([None, "0-63"])),
        mig_enabled=mig,
        mig_devices=tuple(draw(cuts)) if mig else (),
        health=draw(st.sampled_from([Health.OK, Health.OK, Health.OK, Health.LOST])),
    )


@st.composite
def nvlinks(draw: st.DrawFn, indices: list[int]) -> Nvlink:
    pairs = draw(st.sets(st.sampled_from(list(combinations(indices, 2))), max_size=70)) if len(indices) > 1 else set()
    members = draw(st.sets(st.sampled_from(indices))) if indices else set()
    links = []
    for a, b in sorted(pairs):
        active, expected = draw(lanes)
        links.append(Link(a=a, b=b, lanes=active, expected_lanes=expected, gbps=draw(rates)))
    uplinks = []
    for gpu in sorted(members):
        active, expected = draw(lanes)
        fabric, assumed = draw(st.integers(0, 3)), draw(st.booleans())
        uplinks.append(
            Uplink(gpu=gpu, fabric=fabric, lanes=active, expected_lanes=expected, gbps=draw(rates), assumed=assumed)
        )
    return Nvlink(links=tuple(links), uplinks=tuple(uplinks))


@st.composite
def topologies(draw: st.DrawFn) -> NodeTopology:
    size = draw(st.sampled_from([0, 1, 2, 3, 4, 5, 8, 10, 16, 21, 64]))
    step = draw(st.sampled_from([1, 3]))
    indices = [place * step for place in range(size)]
    matrix: list[list[PcieDistance | None]] = [[None] * size for _ in indices]
    seed = draw(st.randoms(use_true_random=False))
    kinds: list[PcieDistance | None] = draw(st.sampled_from(PCIE_KINDS))
    for a, b in combinations(range(size), 2):
        matrix[a][b] = matrix[b][a] = seed.choice(kinds)
    nics = st.builds(
        Nic,
        name=texts,
        numa_node=st.sampled_from([None, 0, 1, 5]),
        rate_gbps=st.sampled_from([None, 400]),
        distances=st.tuples(*[distances] * size),
    )
    whats = st.one_of(texts, st.sampled_from(["gpu0", "gpu3.pcie", "gpu0-gpu1", "gpu1.odd"]))
    return NodeTopology(
        gpus=tuple(draw(gpus(index)) for index in indices),
        nvlink=draw(st.none() | nvlinks(indices)),
        pcie=tuple(map(tuple, matrix)) if draw(st.booleans()) else (),
        nics=tuple(draw(st.lists(nics, max_size=14))),
        numa_nodes=tuple(
            NumaNode(
                id=node, cpus=draw(st.sampled_from([None, "", "0-63"])), memory_mib=draw(st.none() | st.just(9999))
            )
            for node in sorted(draw(st.sets(st.integers(0, 9))))
        ),
        machine=draw(st.none() | texts),
        driver_version=draw(st.none() | texts),
        cuda_version=draw(st.none() | texts),
        partial=draw(st.booleans()),
        degraded=tuple(draw(st.lists(st.builds(Degradation, what=whats, why=texts), max_size=6))),
        problems=tuple(
            draw(st.lists(st.builds(Problem, what=texts, kind=st.sampled_from(ProblemKind), why=texts), max_size=6))
        ),
    )


any_topology = pytest.mark.parametrize("topology", [pytest.param(made(), id=name) for name, made in MACHINES.items()])
# Each example is a whole machine: they are large and slow to make, and few are enough to find what a new shape breaks.
few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


class Words(NamedTuple):
    """A text with the room it takes by estimate."""

    text: str
    rect: Rect


def check_everything(topology: NodeTopology) -> None:
    picture = render_svg(topology)
    assert render_svg(topology) == picture
    root = ET.fromstring(picture)
    nothing_is_lost(root, topology)
    boxes_are_apart(root)
    words_are_inside(root)
    signs_are_off_the_gpus(root)


@any_topology
def test_each_sample_machine_is_drawn_whole_and_apart_and_inside(topology: NodeTopology) -> None:
    check_everything(topology)


@few
@given(topologies())
def test_any_machine_is_drawn_whole_and_apart_and_inside(topology: NodeTopology) -> None:
    check_everything(topology)


def nothing_is_lost(root: ET.Element, topology: NodeTopology) -> None:
    nvlink = topology.nvlink or Nvlink()
    assert drawn(root, "gpu", "gpu") == Counter((str(gpu.index),) for gpu in topology.gpus)
    assert drawn(root, "link", "a", "b") == Counter((str(link.a), str(link.b)) for link in nvlink.links)
    assert drawn(root, "uplink", "gpu", "fabric") == Counter((str(up.gpu), str(up.fabric)) for up in nvlink.uplinks)
    assert drawn(root, "fabric", "fabric") == Counter((str(number),) for number in {up.fabric for up in nvlink.uplinks})
    assert drawn(root, "nic", "nic") == Counter((escape_invisible(nic.name),) for nic in topology.nics)


def boxes_are_apart(root: ET.Element) -> None:
    page = view_box(root)
    gpu_boxes = [rect_of(group) for group in groups(root, "gpu")]
    nic_boxes = [rect_of(group) for group in groups(root, "nic") if "data-nic" in group.attrib]
    for a, b in combinations([*gpu_boxes, *nic_boxes], 2):
        assert not a.meets(b)
    for a, b in combinations([rect_of(group) for group in groups(root, "pcie-switch")], 2):
        assert not a.meets(b)
    frames = [rect_of(group) for group in groups(root, "numa")]
    for box in [*gpu_boxes, *nic_boxes]:
        assert sum(covers(frame, box) for frame in frames) == 1
    for frame in frames:
        assert covers(page.grown(-20), frame)


def words_are_inside(root: ET.Element) -> None:
    page = view_box(root).grown(-8)
    for words in all_words(root):
        assert covers(page, words.rect), words
    for group in groups(root, "gpu"):
        for words in all_words(group):
            assert covers(rect_of(group).grown(1), words.rect), words


def signs_are_off_the_gpus(root: ET.Element) -> None:
    boxes = [rect_of(group) for group in groups(root, "gpu")]
    for sign in groups(root, "lanes"):
        assert not any(rect_of(sign).meets(box) for box in boxes)


def groups(root: ET.Element, name: str) -> list[ET.Element]:
    return [each for each in root.iter(f"{SVG}g") if name in each.attrib.get("class", "").split()]


def drawn(root: ET.Element, name: str, *keys: str) -> Counter[tuple[str, ...]]:
    found = [each for each in groups(root, name) if f"data-{keys[0]}" in each.attrib]
    return Counter(tuple(each.attrib[f"data-{key}"] for key in keys) for each in found)


def rect_of(group: ET.Element) -> Rect:
    found = group.find(f"{SVG}rect")
    assert found is not None
    return Rect(*(float(found.attrib[key]) for key in ("x", "y", "width", "height")))


def view_box(root: ET.Element) -> Rect:
    return Rect(*map(float, root.attrib["viewBox"].split()))


def all_words(root: ET.Element) -> list[Words]:
    found = []
    for each in root.iter(f"{SVG}text"):
        kinds = each.attrib.get("class", "").split()
        size, content = float(each.attrib["font-size"]), each.text or ""
        width = text_width(content, size, bold="b" in kinds)
        left = float(each.attrib["x"]) - (width / 2 if "m" in kinds else 0)
        found.append(Words(content, Rect(left, float(each.attrib["y"]) - 0.75 * size, width, size)))
    return found


def covers(outer: Rect, inner: Rect) -> bool:
    slack = 0.02  # coordinates are written to a hundredth
    return (
        outer.x - slack <= inner.x
        and outer.y - slack <= inner.y
        and inner.right <= outer.right + slack
        and inner.bottom <= outer.bottom + slack
    )
