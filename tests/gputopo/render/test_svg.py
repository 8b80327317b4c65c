"""The picture shows what matters: faults, islands, unknowns; in both modes; and whatever a product is called."""

from xml.etree import ElementTree as ET

import msgspec
import pytest

from gputopo.model import Degradation, Gpu, Link, NodeTopology, Nvlink
from gputopo.render.svg import render_svg
from gputopo.render.svg.words import TIMES
from tests.gputopo.render.svg_elements import SVG, found, legend, picture, words
from tests.machines import (
    MACHINES,
    a100_bridged,
    a100_mig,
    b200_fallen_out,
    cloud_vm,
    dgx1,
    dgx1_link_down,
    dgx2,
    dgx_a100,
    gb200_tray,
    h100_lost_gpu,
    h100_partial,
    h100_weak_uplink,
    hgx_h100,
    mixed,
    no_gpu,
    nvlink_unknown,
    rtx4090,
    wsl,
)


def gpus(root: ET.Element, *classes: str) -> list[str]:
    return [each.attrib["data-gpu"] for each in found(root, "gpu", *classes)]


def test_a_degraded_link_is_marked_and_says_what_is_left_of_it() -> None:
    root = picture(dgx1_link_down())
    hurt = [(each.attrib["data-a"], each.attrib["data-b"]) for each in found(root, "link", "degraded")]
    assert hurt == [("0", "3"), ("5", "7")]
    assert [each.attrib["data-a"] for each in found(root, "link", "down")] == ["5"]
    assert [words(each) for each in found(root, "lanes", "degraded")] == [["NV1 of 2"], ["down"]]


def test_a_healthy_machine_shows_no_fault() -> None:
    root = picture(dgx1())
    assert [found(root, kind) for kind in ("degraded", "lost", "bad", "note")] == [[], [], [], []]


def test_a_link_listed_as_degraded_is_marked_although_its_lanes_are_all_there() -> None:
    listed = msgspec.structs.replace(dgx1(), degraded=(Degradation("gpu2-gpu3", "errors"),))
    assert [each.attrib["data-a"] for each in found(picture(listed), "link", "degraded")] == ["2"]


def test_the_link_between_the_only_two_gpus_that_lack_nvlinks_is_marked() -> None:
    two = tuple(Degradation(f"gpu{gpu}.nvlink", "5 of 6 NVLinks active") for gpu in (2, 3))
    for degraded, expected in (
        (two, [("2", "3")]),
        (two[:1], []),  # the other end is unknown
        ((*two, Degradation("gpu5.nvlink", "5 of 6 NVLinks active")), []),  # which links they lost is unknown
        ((two[0], Degradation("gpu5.nvlink", "5 of 6 NVLinks active")), []),  # no link joins them
    ):
        root = picture(msgspec.structs.replace(dgx1(), degraded=degraded))
        marked = [(each.attrib["data-a"], each.attrib["data-b"]) for each in found(root, "link", "degraded")]
        assert marked == expected


def test_a_gpu_outside_the_fabric_is_degraded_and_alone() -> None:
    root = picture(b200_fallen_out())
    assert gpus(root, "degraded", "alone") == ["5"]
    assert len(gpus(root, "i0")) == 7
    assert words(found(root, "badge")[0]) == ["1 DEGRADED"]
    assert words(found(root, "note")[0]) == [
        "!",
        "GPU 5 fabric",
        "no NVLink is active while its 7 siblings have 18",
    ]


def test_a_weak_uplink_shows_on_the_link_the_gpu_and_the_fabric() -> None:
    root = picture(h100_weak_uplink())
    assert gpus(root, "degraded") == ["3"]
    assert [words(each) for each in found(root, "lanes", "degraded")] == [["NV17 of 18"]]
    assert words(found(root, "fabric")[0]) == ["NVSwitch fabric", "8 GPUs · 850 to 900 GB/s per GPU"]


def test_a_lost_gpu_is_hatched_and_labelled() -> None:
    root = picture(h100_lost_gpu())
    (lost,) = found(root, "gpu", "lost")
    assert [each.attrib.get("fill") for each in lost.iter(f"{SVG}rect")][1] == "url(#gputopo-hatch)"
    assert words(lost) == ["GPU 2", "LOST"]


def test_mig_devices_are_slices_as_wide_as_their_share() -> None:
    gpu = found(picture(a100_mig()), "gpu")[1]
    cells = [each.find(f"{SVG}rect") for each in found(gpu, "mig")]
    widths = [float(cell.attrib["width"]) + 1.5 for cell in cells if cell is not None]
    assert [round(width / widths[-1]) for width in widths] == [3, 2, 1]
    assert words(gpu) == ["GPU 1", "A100-SXM4", "40 GiB", "3 MIG devices", "3g", "2g"]


def test_a_long_reason_is_wrapped_before_it_is_cut() -> None:
    why = "10 of 12 NVLinks are active; a sibling of the same product has two more, and had them before; " * 4
    (note,) = found(picture(msgspec.structs.replace(dgx1(), degraded=(Degradation("gpu5.nvlink", why),))), "note")
    assert [words(note)[1], len(words(note)[2:])] == ["GPU 5 NVLink", 3]
    assert words(note)[-1].endswith("…")


def test_gpus_of_unknown_products_are_only_counted() -> None:
    root = picture(NodeTopology(gpus=(Gpu(index=0), Gpu(index=1)), nvlink=Nvlink()))
    assert [words(each) for each in found(root, "gpu")] == [["GPU 0"], ["GPU 1"]]
    assert "2 GPUs" in words(root)


def test_islands_have_letters_beside_their_colours() -> None:
    root = picture(a100_bridged())
    assert [words(each)[1] for each in found(root, "gpu")] == ["A", "A", "B", "B"]
    assert legend(root) == ["each 2 GPUs · NVLink · 600 GB/s per GPU", "NV12 · 600 GB/s"]


def test_gpus_without_nvlink_have_no_letter_and_the_legend_says_how_they_talk() -> None:
    root = picture(rtx4090())
    assert words(found(root, "gpu")[0]) == ["GPU 0", "RTX 4090", "24 GiB"]
    assert legend(root) == ["no NVLink: these GPUs talk over PCIe", "network card"]


def test_unknown_nvlink_is_not_the_same_as_none() -> None:
    root = picture(nvlink_unknown())
    assert len(gpus(root, "unknown")) == 8
    assert words(found(root, "gpu")[0])[1] == "?"
    assert legend(root) == ["NVLinks unknown", "network card"]


def test_an_unknown_numa_node_is_a_box_of_its_own_around_all_rows() -> None:
    boxes = found(picture(cloud_vm()), "numa")
    assert [words(each) for each in boxes] == [["NUMA ?"]]


def test_an_unconfirmed_fabric_is_called_assumed() -> None:
    root = picture(cloud_vm())
    assert words(found(root, "fabric", "assumed")[0]) == ["NVSwitch fabric, assumed", f"8 {TIMES} NV18"]


def test_numa_nodes_without_gpus_are_drawn_and_the_memory_of_gpus_is_not() -> None:
    assert {each.attrib["data-numa"] for each in found(picture(dgx_a100()), "numa")} == set("01234567")
    assert [each.attrib["data-numa"] for each in found(picture(gb200_tray()), "numa")] == ["0", "1"]


def test_a_fabric_beyond_the_machine_names_its_clique() -> None:
    (fabric,) = found(picture(gb200_tray()), "fabric")
    assert words(fabric)[1] == f"4 {TIMES} NV18 · 1800 GB/s per GPU · spans machines, clique 32766"


def test_switches_hold_their_gpus_and_nics() -> None:
    assert [words(each) for each in found(picture(dgx2()), "pcie-switch")] == [["PCIe switch (PXB)"]] * 4
    assert found(picture(rtx4090()), "pcie-switch") == []


def test_a_part_of_a_machine_says_that_it_is_one() -> None:
    text = render_svg(h100_partial())
    assert 'class="card partial"' in text
    assert words(found(ET.fromstring(text), "badge")[0]) == ["PARTIAL VIEW"]


def test_a_machine_without_gpus_gets_a_message() -> None:
    root = picture(no_gpu())
    assert words(found(root, "no-gpu")[0])[0] == "No GPU here"
    assert [each.attrib["data-numa"] for each in found(root, "numa")] == ["0", "1"]


def test_problems_of_one_cause_are_one_line() -> None:
    assert [words(each) for each in found(picture(cloud_vm()), "note")] == [
        ["?", "GPU 0 NUMA node and 7 more", "the kernel says -1"]
    ]


def test_many_faults_end_in_a_count() -> None:
    faults = tuple(Degradation(f"gpu{i}", "hot") for i in range(8))
    notes = found(picture(msgspec.structs.replace(hgx_h100(), degraded=faults)), "note")
    assert [words(each)[1] for each in notes] == ["GPU 0", "GPU 1", "GPU 2", "5 more"]


@pytest.mark.parametrize("name", MACHINES)
def test_both_modes_are_in_every_picture(name: str) -> None:
    text = render_svg(MACHINES[name]())
    assert text.count("@media (prefers-color-scheme:dark){") == 1
    assert "var(" not in text


@pytest.mark.parametrize("name", MACHINES)
def test_a_screen_reader_gets_title_and_description(name: str) -> None:
    root = picture(MACHINES[name]())
    assert root.attrib["role"] == "img"
    ids = {each.attrib["id"]: each.text for each in root if "id" in each.attrib}
    assert [bool(ids[name]) for name in root.attrib["aria-labelledby"].split()] == [True, True]


def test_the_description_has_islands_and_faults() -> None:
    root = picture(b200_fallen_out())
    assert root.findtext(f"{SVG}title") == f"ProLiant Compute XD680: 8 {TIMES} B200"
    description = root.findtext(f"{SVG}desc") or ""
    assert description.startswith("Island A: GPUs 0, 1, 2, 3, 4, 6, 7, 7 GPUs · NVSwitch · 1800 GB/s per GPU")
    assert description.endswith("Degraded: GPU 5 fabric: no NVLink is active while its 7 siblings have 18")


@pytest.mark.parametrize(
    "product", ["<script>alert(1)</script>", '"/><script/>', "a & b", "]]>", "\x00\x1b[31m\ud800", "</text>"]
)
def test_hostile_names_stay_text(product: str) -> None:
    hostile = NodeTopology(gpus=(Gpu(index=0, product=product),), machine=product, driver_version=product)
    root = picture(hostile)
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= {
        "svg", "title", "desc", "style", "defs", "pattern", "path", "rect", "circle", "g", "text",
    }  # fmt: skip


def test_pictures_are_no_wider_than_a_page() -> None:
    assert [float(picture(made()).attrib["width"]) <= 1200 for made in MACHINES.values()] == [True] * len(MACHINES)
    wide = tuple(Gpu(index=i, numa_node=i) for i in range(64))
    matrix = NodeTopology(gpus=wide)
    assert float(picture(matrix).attrib["width"]) <= 1200


def test_long_products_get_a_line_of_their_own() -> None:
    root = picture(mixed())
    subtitle = [word for word in words(root) if "driver" in word]
    assert subtitle == ["driver 570.133.04 · CUDA 12.8"]
    assert "RTX PRO 6000…" in words(found(root, "gpu")[3])


def test_hardly_anything_known_is_still_a_picture() -> None:
    assert words(picture(wsl()))[-1] == "NVLinks unknown"


def test_a_legend_of_many_islands_is_cut_short() -> None:
    pairs = NodeTopology(
        gpus=tuple(Gpu(index=i) for i in range(20)),
        nvlink=Nvlink(links=tuple(Link(a=2 * i, b=2 * i + 1, lanes=4) for i in range(10))),
    )
    assert legend(picture(pairs)) == ["and 2 more: each 2 GPUs · NVLink", "NV4 · 4 NVLinks"]
