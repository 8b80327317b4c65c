"""NVLink-C2C links in the picture of a superchip: lines between each GPU and its CPU."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from gputopo.gpu import C2c
from tests.gputopo.render.c2c_machines import DOWN, OFF, UNRATED, UP, tray
from tests.gputopo.render.svg_elements import SVG, found, legend, picture, words
from tests.machines import MACHINES


def box(group: ET.Element) -> tuple[float, float, float, float]:
    """The left, upper, right and lower edge of the first rectangle of a group."""
    shape = next(group.iter(f"{SVG}rect"))
    x, y, w, h = (float(shape.attrib[key]) for key in ("x", "y", "width", "height"))
    return x, y, x + w, y + h


def ends(group: ET.Element) -> list[tuple[float, float]]:
    """The corners of the line of a group."""
    path = next(group.iter(f"{SVG}path")).attrib["d"]
    numbers = [float(each) for each in path.replace("M", " ").replace("L", " ").split()]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_each_gpu_is_joined_to_the_cpu_beside_it() -> None:
    root = picture(tray(UP, UP, UP, UP))
    gpus = {each.attrib["data-gpu"]: box(each) for each in found(root, "gpu")}
    cpus = [box(each) for each in found(root, "cpu")]
    links = {each.attrib["data-gpu"]: each for each in found(root, "c2c")}

    assert (len(cpus), sorted(links)) == (2, ["0", "1", "2", "3"])
    for number, link in links.items():
        left, top, right, bottom = gpus[number]
        heights = {y for _, y in ends(link)}
        assert all(left < x < right for x, _ in ends(link))
        assert heights & {top, bottom}
        assert [cpu for cpu in cpus if cpu[0] <= left < right <= cpu[2] and heights & {cpu[1], cpu[3]}]
        assert words(link) == ["894.2 GB/s"]


def test_the_line_style_is_explained_and_read_aloud() -> None:
    root = picture(tray(UP, UP, UP, UP))
    text = "NVLink-C2C to the CPU · 894.2 GB/s"

    assert text in legend(root)
    assert text in (next(root.iter(f"{SVG}desc")).text or "")
    assert "NVLink-C2C to the CPU" in legend(picture(tray(UP, DOWN, UP, UP)))


@pytest.mark.parametrize(
    ("link", "label", "classes"),
    [
        (DOWN, "9 of 10", {"degraded"}),
        (OFF, "0 of 10", {"degraded", "down"}),
        (UNRATED, "10 of 10", set()),
    ],
)
def test_a_link_that_is_down_is_marked(link: C2c, label: str, classes: set[str]) -> None:
    drawn = {each.attrib["data-gpu"]: each for each in found(picture(tray(UP, link, None, None)), "c2c")}

    assert sorted(drawn) == ["0", "1"]
    assert words(drawn["1"]) == [label]
    assert set(drawn["1"].attrib["class"].split()) - {"c2c", "alone"} == classes


def test_labels_lie_between_gpu_and_cpu_and_apart_from_each_other() -> None:
    labels = [box(each) for each in found(picture(tray(*[C2c(10, 10, 1788.4)] * 4)), "c2c")]
    gpus = [box(each) for each in found(picture(tray(UP, UP, UP, UP)), "gpu")]

    for place, one in enumerate(labels):
        for other in [*labels[place + 1 :], *gpus]:
            assert one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]


def test_machines_without_c2c_have_neither_cpus_nor_their_links() -> None:
    for make in MACHINES.values():
        topology = make()
        if any(gpu.c2c is not None for gpu in topology.gpus):
            continue
        root = picture(topology)
        assert not [*found(root, "cpu"), *found(root, "c2c")]
        assert not [entry for entry in legend(root) if "C2C" in entry]
