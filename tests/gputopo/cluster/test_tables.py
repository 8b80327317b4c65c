"""Nodes and pods as a person reads them."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from gputopo.cluster.nodes import GpuNode
from gputopo.cluster.pods import PodGpus, PodName, pod_placements
from gputopo.cluster.tables import node_table, pod_table
from gputopo.crd.nodegpus import GpuUsage
from gputopo.model import Degradation, Gpu, Interconnect, NodeTopology, Nvlink, PcieDistance
from gputopo.paths import PathKind
from gputopo.render.report import Cell
from gputopo.rings import Ring
from gputopo.summary import TopologySummary
from tests.gputopo.cluster.machines import NOW, gpu_node, state
from tests.machines import (
    a40x10,
    a100_bridged,
    a100_mig,
    dgx1,
    h100_lost_gpu,
    hgx_h100,
    mixed,
    nvlink_unknown,
    wsl,
)


def node_row(node: GpuNode, *, wide: bool = False) -> dict[str, str]:
    table = node_table([node], NOW, wide=wide)
    return dict(zip(table.titles, (cell.text for cell in table.rows[0]), strict=True))


def pod_row(pod: PodGpus) -> dict[str, Cell]:
    table = pod_table([pod])
    return dict(zip(table.titles, table.rows[0], strict=True))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(
            gpu_node("n", dgx1(), {"p": (0, 1, 2)}),
            {
                "PRODUCT": "Tesla V100-SXM2-32GB",
                "GPUS": "8",
                "ISLANDS": "8",
                "FREE": "5/8",
                "DEGRADED": "-",
                "LAST SEEN": "30s",
            },
            id="one island",
        ),
        pytest.param(
            gpu_node("n", a100_bridged(), {"p": (0,)}),
            {"PRODUCT": "NVIDIA A100 80GB PCIe", "GPUS": "4", "ISLANDS": "2-2", "FREE": "1/2 2/2"},
            id="two islands",
        ),
        pytest.param(
            gpu_node("n", a40x10(), {"p": (0, 9)}),
            {"PRODUCT": "NVIDIA A40", "GPUS": "10", "ISLANDS": "10x1", "FREE": "8/10"},
            id="no NVLink",
        ),
        pytest.param(
            gpu_node("n", a100_mig(), {"p": (0,)}), {"ISLANDS": "5-3x1", "FREE": "5/5 2/3"}, id="some in MIG mode"
        ),
        pytest.param(gpu_node("n", h100_lost_gpu()), {"GPUS": "7+1 lost", "DEGRADED": "gpu2"}, id="a lost GPU"),
        pytest.param(gpu_node("n", nvlink_unknown()), {"ISLANDS": "?", "FREE": "8/8"}, id="NVLink unknown"),
        pytest.param(GpuNode("n", wsl()), {"ISLANDS": "?", "FREE": "?", "LAST SEEN": "never"}, id="no agent"),
        pytest.param(
            GpuNode("n", dgx1(), requested={"nvidia.com/gpu": 4}),
            {"FREE": "4/8, indices: ?"},
            id="pods without a report",
        ),
        pytest.param(GpuNode("n", dgx1(), requested={}), {"FREE": "8/8"}, id="no pods"),
        pytest.param(
            GpuNode("n", msgspec.structs.replace(wsl(), summary=TopologySummary((2,)))),
            {"ISLANDS": "2", "FREE": "?"},
            id="no agent, and labels that state the islands",
        ),
        pytest.param(
            gpu_node("n", mixed()),
            {
                "PRODUCT": "2 NVIDIA GeForce RTX 3090, 1 NVIDIA RTX A6000, "
                "1 NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
            },
            id="several products",
        ),
        pytest.param(
            gpu_node("n", NodeTopology(nvlink=Nvlink())),
            {"PRODUCT": "-", "GPUS": "0", "ISLANDS": "-", "FREE": "-"},
            id="no GPU that works",
        ),
        pytest.param(
            gpu_node("n", NodeTopology(gpus=(Gpu(index=0, product="evil\x1b[31m"),))),
            {"PRODUCT": "evil\\x1b[31m"},
            id="a product that would act on a terminal",
        ),
    ],
)
def test_a_node_is_one_line(node: GpuNode, expected: dict[str, str]) -> None:
    row = node_row(node)

    assert {title: row[title] for title in expected} == expected


def test_a_long_list_of_faults_is_cut() -> None:
    faults = tuple(Degradation(f"gpu{i}", "lost") for i in range(5))

    assert node_row(gpu_node("n", msgspec.structs.replace(dgx1(), degraded=faults)))["DEGRADED"] == (
        "gpu0, gpu1 and 3 more"
    )


@pytest.mark.parametrize(
    ("age", "cell"),
    [
        pytest.param(timedelta(seconds=-5), Cell("0s"), id="a clock that is ahead"),
        pytest.param(timedelta(seconds=119), Cell("119s"), id="seconds"),
        pytest.param(timedelta(minutes=15), Cell("15m"), id="as old as it may be"),
        pytest.param(timedelta(minutes=16), Cell("16m", "bad"), id="too old"),
        pytest.param(timedelta(hours=47), Cell("47h", "bad"), id="hours"),
        pytest.param(timedelta(days=3), Cell("3d", "bad"), id="days"),
    ],
)
def test_an_observation_grows_old(age: timedelta, cell: Cell) -> None:
    node = GpuNode("n", dgx1(), state(dgx1(), {}, age))

    assert node_table([node], NOW, wide=False).rows[0][-1] == cell


def test_a_wide_line_says_more() -> None:
    assert node_row(gpu_node("n", hgx_h100()), wide=True) | {"NOTE": ""} == {
        "NODE": "n",
        "PRODUCT": "NVIDIA H100 80GB HBM3",
        "GPUS": "8",
        "ISLANDS": "8",
        "FREE": "8/8",
        "DEGRADED": "-",
        "LAST SEEN": "30s",
        "INTERCONNECT": "nvswitch",
        "GB/S": "900",
        "NUMA": "4-4",
        "VRAM": "79.6 GiB",
        "VRAM USED": "?",
        "VRAM CLAIMED": "?",
        "BUSY": "?",
        "DRIVER": "580.95.05",
        "AGENT": "0.1.0",
        "NOTE": "",
    }


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(
            GpuNode("n", NodeTopology(gpus=(Gpu(index=0),)), None, "cannot be read"),
            {
                "INTERCONNECT": "?",
                "GB/S": "-",
                "NUMA": "?",
                "VRAM": "?",
                "DRIVER": "?",
                "AGENT": "-",
                "NOTE": "cannot be read",
            },
            id="nothing known",
        ),
        pytest.param(
            GpuNode(
                "n", msgspec.structs.replace(wsl(), summary=TopologySummary((2,), Interconnect.NVLINK, 112, (1, 1)))
            ),
            {"INTERCONNECT": "nvlink", "GB/S": "112", "NUMA": "1-1"},
            id="what labels state",
        ),
        pytest.param(
            GpuNode("n", NodeTopology(nvlink=Nvlink())), {"INTERCONNECT": "-", "NUMA": "-", "VRAM": "-"}, id="no GPU"
        ),
        pytest.param(gpu_node("n", a40x10()), {"INTERCONNECT": "none", "GB/S": "-"}, id="islands of one"),
    ],
)
def test_a_wide_line_of_a_poor_node(node: GpuNode, expected: dict[str, str]) -> None:
    row = node_row(node, wide=True)

    assert {title: row[title] for title in expected} == expected


def used(*percents: int | None) -> GpuNode:
    """A node of which the agent reports the use of the first GPUs."""
    machine = dgx1()
    usage = tuple(GpuUsage(str(gpu.uuid), each, 100, each) for gpu, each in zip(machine.gpus, percents, strict=False))
    report = state(machine, {"train": (0, 1)})
    return GpuNode("n", machine, msgspec.structs.replace(report, usage=usage))


@pytest.mark.parametrize(
    ("node", "cells"),
    [
        pytest.param(used(40, 40), ("40 %", "100 %", "40 %"), id="all alike"),
        pytest.param(used(0, 90, 50), ("0-90 %", "100 %", "0-90 %"), id="a range"),
        pytest.param(used(None, None), ("?", "100 %", "?"), id="not measured"),
        pytest.param(gpu_node("n", dgx1()), ("?", "?", "?"), id="an agent that does not report it"),
    ],
)
def test_the_use_of_the_gpus_of_a_node(node: GpuNode, cells: tuple[str, str, str]) -> None:
    row = node_row(node, wide=True)

    assert (row["VRAM USED"], row["VRAM CLAIMED"], row["BUSY"]) == cells


def test_a_wide_line_of_a_pod_has_the_use_of_its_gpus() -> None:
    (pod,) = pod_placements([used(20, 70, 100)], {PodName("team-a", "train"): 15 * 1024})
    table = pod_table([pod], wide=True)

    assert dict(zip(table.titles[-4:], (cell.text for cell in table.rows[0][-4:]), strict=True)) == {
        "VRAM USED": "20-70 %",
        "VRAM CLAIMED": "100 %",
        "BUSY": "20-70 %",
        "VRAM SHARE": "15 GiB",
    }


def test_a_pod_on_a_line() -> None:
    (pod,) = pod_placements([gpu_node("gpu-7", dgx1(), {"train": (0, 1)})], {PodName("team-a", "train"): None})

    assert pod_row(pod) == {
        "NAMESPACE": Cell("team-a"),
        "POD": Cell("train"),
        "NODE": Cell("gpu-7"),
        "GPUS": Cell("GPU0,1"),
        "ISLANDS": Cell("2"),
        "NUMA": Cell("0"),
        "RING": Cell("50 nvlink"),
        "BEST ON NODE": Cell("100 nvlink"),
        "BEST IN CLUSTER": Cell("100 nvlink"),
        "% OF BEST": Cell("50 %", "bad"),
    }


NEAR, FAR = (Ring(PathKind.PCIE, 63.0, None, distance) for distance in (PcieDistance.PIX, PcieDistance.SYS))
POD = PodGpus(namespace="ns", name="p", node="n", count=2, gpus=(0, 4), gpus_by_island=(1, 1), numa=(0, 1))


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(
            msgspec.structs.replace(POD, ring=FAR, best_ring_on_node=NEAR),
            {
                "ISLANDS": Cell("1+1", "bad"),
                "NUMA": Cell("0+1"),
                "RING": Cell("<=63 pcie SYS"),
                "% OF BEST": Cell("<100 %", "bad"),
            },
            id="split, over PCIe as fast by rate but not by distance",
        ),
        pytest.param(
            msgspec.structs.replace(POD, ring=Ring(PathKind.PCIE, None, None, None), best_ring_on_node=NEAR),
            {"RING": Cell("? pcie ?"), "% OF BEST": Cell("less", "bad")},
            id="over PCIe, nothing known",
        ),
        pytest.param(
            msgspec.structs.replace(POD, ring=Ring(PathKind.UNKNOWN, None, None, None), gpus_by_island=None, numa=None),
            {"ISLANDS": Cell("?"), "NUMA": Cell("?"), "RING": Cell("?"), "% OF BEST": Cell("-")},
            id="NVLink unknown",
        ),
        pytest.param(
            PodGpus(namespace="ns", name="p", node="n", count=3),
            {"GPUS": Cell("3, indices: ?"), "ISLANDS": Cell("?"), "RING": Cell("?"), "BEST ON NODE": Cell("?")},
            id="GPUs not reported",
        ),
        pytest.param(
            PodGpus(namespace="ns", name="p", node="n", count=2, gpus=(1,), missing=("GPU-x",)),
            {"GPUS": Cell("2, missing: GPU-x", "bad"), "RING": Cell("?"), "% OF BEST": Cell("-")},
            id="a GPU that is gone",
        ),
        pytest.param(
            PodGpus(
                namespace="ns", name="p", node="n", count=1, gpus=(1,), shared=True, gpus_by_island=(1,), numa=(0,)
            ),
            {"GPUS": Cell("GPU1 (shared)"), "ISLANDS": Cell("1"), "RING": Cell("-"), "% OF BEST": Cell("-")},
            id="a share of one GPU",
        ),
    ],
)
def test_a_pod_of_which_not_all_is_known_or_well(pod: PodGpus, expected: dict[str, Cell]) -> None:
    row = pod_row(pod)

    assert {title: row[title] for title in expected} == expected
