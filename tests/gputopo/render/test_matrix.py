"""The matrix, exactly as it is printed."""

from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings

from gputopo.model import Gpu, Health, Link, Nic, NodeTopology, Nvlink, PcieDistance, Uplink
from gputopo.render.document import topology_document
from gputopo.render.matrix import render_matrix
from tests.machines import MACHINES, a100_mig, dgx1_link_down, gb200_tray, h100_lost_gpu, h100_weak_uplink, hgx_h100
from tests.property.strategies import topologies

GB200_TRAY = """\
      GPU0  GPU1  GPU2  GPU3  NIC0  NIC1  NIC2  NIC3  CPU Affinity  NUMA Affinity  GPU NUMA ID
GPU0  X     NV18  NV18  NV18  NODE  NODE  SYS   SYS   0-71          0              2
GPU1  NV18  X     NV18  NV18  NODE  NODE  SYS   SYS   0-71          0              10
GPU2  NV18  NV18  X     NV18  SYS   SYS   NODE  NODE  72-143        1              18
GPU3  NV18  NV18  NV18  X     SYS   SYS   NODE  NODE  72-143        1              26
NIC0  NODE  NODE  SYS   SYS   X     ?     ?     ?
NIC1  NODE  NODE  SYS   SYS   ?     X     ?     ?
NIC2  SYS   SYS   NODE  NODE  ?     ?     X     ?
NIC3  SYS   SYS   NODE  NODE  ?     ?     ?     X

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
  NIC2: mlx5_2
  NIC3: mlx5_3

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the link between NUMA nodes
  NODE = Connection traversing PCIe as well as the link between PCIe host bridges of a NUMA node
  NV#  = Connection traversing a bonded set of # NVLinks
  ?    = Not known

NVLink islands:

  A  GPU0-3  NVSwitch · 1800 GB/s per GPU
"""

WSL = """\
      GPU0  CPU Affinity  NUMA Affinity
GPU0  X     ?             ?

Legend:

  X    = Self
  ?    = Not known

NVLink islands:

  ?  NVLinks unknown: no source reports them
"""


def cells(topology: NodeTopology) -> dict[tuple[str, str], str]:
    """Cell by row and column name; only where no cell holds a blank."""
    lines = render_matrix(topology).splitlines()
    header = lines[0].replace(" Affinity", "").replace("GPU NUMA ID", "ID").split()
    rows = [line.split() for line in lines[1 : lines.index("")]]
    return {(row[0], name): cell for row in rows for name, cell in zip(header, row[1:], strict=False)}


@pytest.mark.parametrize(("name", "expected"), [("gb200_tray", GB200_TRAY), ("wsl", WSL)], ids=["gb200", "wsl"])
def test_the_matrix_of_a_machine(name: str, expected: str) -> None:
    assert render_matrix(MACHINES[name]()) == expected


def test_in_plain_ascii() -> None:
    assert render_matrix(gb200_tray(), ascii_only=True) == GB200_TRAY.replace("·", "-")


def test_without_gpus_there_is_no_matrix() -> None:
    assert render_matrix(NodeTopology()) == "no GPU\n"


def test_without_a_usable_gpu_there_is_no_island() -> None:
    lost = NodeTopology(gpus=(Gpu(index=0, health=Health.LOST, cpu_affinity=" "),), nvlink=Nvlink())

    assert render_matrix(lost).splitlines()[:3] == [
        "      GPU0  CPU Affinity  NUMA Affinity",
        "GPU0  X     ?             ?",
        "",
    ]
    assert "islands" not in render_matrix(lost)


def test_lanes_are_those_that_are_active() -> None:
    hurt = cells(dgx1_link_down())
    assert [hurt["GPU0", f"GPU{far}"] for far in range(8)] == ["X", "NV1", "NV1", "NV1", "NV2", "SYS", "SYS", "SYS"]
    assert hurt["GPU7", "GPU5"] == "PHB"  # its only link is down

    weak = cells(h100_weak_uplink())
    assert (weak["GPU3", "GPU0"], weak["GPU0", "GPU3"], weak["GPU0", "GPU1"]) == ("NV17", "NV17", "NV18")


def test_gpus_that_cannot_use_nvlink_have_a_distance() -> None:
    mig, lost = cells(a100_mig()), cells(h100_lost_gpu())

    assert (mig["GPU0", "GPU1"], mig["GPU2", "GPU3"], mig["GPU3", "GPU4"]) == ("PXB", "PXB", "NV12")
    assert (lost["GPU2", "GPU3"], lost["GPU2", "GPU7"], lost["GPU1", "GPU3"]) == ("NODE", "SYS", "NV18")


def test_a_distance_never_claims_that_there_is_no_nvlink() -> None:
    unknown = cells(msgspec.structs.replace(hgx_h100(), nvlink=None))

    assert {unknown[f"GPU{a}", f"GPU{b}"] for a, b in combinations(range(8), 2)} == {"?"}
    assert unknown["GPU0", "NIC0"] == "PXB"


def test_affinities_come_from_the_gpu_and_else_from_its_numa_node() -> None:
    known = cells(hgx_h100())
    assert (known["GPU4", "CPU"], known["GPU4", "NUMA"]) == ("56-111,168-223", "1")

    gpus = (
        Gpu(index=0, cpu_affinity=" 0-7, 9 ", numa_affinity="0-1"),
        Gpu(index=12, numa_node=3, memory_numa_node=9),
    )
    odd = cells(NodeTopology(gpus=gpus, nvlink=Nvlink()))
    assert [odd["GPU0", name] for name in ("GPU12", "CPU", "NUMA", "ID")] == ["?", "0-7,9", "0-1", "N/A"]
    assert [odd["GPU12", name] for name in ("GPU0", "CPU", "NUMA", "ID")] == ["?", "?", "3", "9"]


def test_fabrics_apart_do_not_join_and_the_better_of_two_ways_counts() -> None:
    gpus = tuple(Gpu(index=i) for i in range(3))
    nvlink = Nvlink(
        links=(Link(a=0, b=1, lanes=1),),
        uplinks=tuple(Uplink(gpu=i, fabric=fabric, lanes=4) for i, fabric in enumerate((0, 0, 1))),
    )

    found = cells(NodeTopology(gpus=gpus, nvlink=nvlink))

    assert (found["GPU0", "GPU1"], found["GPU1", "GPU2"]) == ("NV4", "?")


def test_the_legend_explains_what_occurs_and_names_cannot_forge_it() -> None:
    machine = NodeTopology(
        gpus=(Gpu(index=0), Gpu(index=1)),
        nvlink=Nvlink(links=(Link(a=0, b=1, lanes=12),)),
        nics=(Nic(name="x\n  SYS  = lie", distances=(PcieDistance.PIX, PcieDistance.PXB)),),
    )

    assert render_matrix(machine).splitlines()[5:] == [
        "NIC Legend:",
        "",
        "  NIC0: x???SYS????lie",
        "",
        "Legend:",
        "",
        "  X    = Self",
        "  PXB  = Connection traversing several PCIe bridges (without a PCIe host bridge)",
        "  PIX  = Connection traversing at most one PCIe bridge",
        "  NV#  = Connection traversing a bonded set of # NVLinks",
        "  ?    = Not known",
        "",
        "NVLink islands:",
        "",
        "  A  GPU0,1  NVLink · bandwidth unknown",
    ]


def test_paint_is_told_the_role_of_every_cell_and_changes_no_width() -> None:
    result: list[tuple[str, str]] = []

    def paint(role: str, text: str) -> str:
        result.append((role, text))
        return text

    assert render_matrix(h100_lost_gpu(), paint=paint) == render_matrix(h100_lost_gpu())
    assert {("bad", "GPU2"), ("island-0", "GPU3"), ("dim", "SYS"), ("text", "NV18"), ("nic", "NIC4")} <= set(result)


@settings(max_examples=40, deadline=None)
@given(topologies())
def test_every_line_is_printable_and_nvlink_cells_are_the_links_of_the_document(topology: NodeTopology) -> None:
    text = render_matrix(topology, ascii_only=True)
    assert text.isascii()
    assert all(line.isprintable() and line == line.rstrip() for line in text.split("\n"))

    lanes: dict[tuple[str, str], int] = {}
    for link in topology_document(topology)["links"] or []:
        pair = f"GPU{link['a']}", f"GPU{link['b']}"
        lanes[pair] = max(link["lanes"], lanes.get(pair, 0))
    names = [f"GPU{gpu.index}" for gpu in topology.gpus]
    found = cells(topology) if names else {}
    shown = {pair: int(found[pair][2:]) for pair in combinations(names, 2) if found[pair].startswith("NV")}
    assert shown == lanes
