"""The default view, exactly as it is printed."""
# ruff: noqa: RUF001  the multiplication sign is what is printed

import re

import msgspec
import pytest
from hypothesis import given, settings

from gputopo.model import (
    FabricState,
    Gpu,
    GpuFabric,
    Health,
    Link,
    NodeTopology,
    NumaNode,
    Nvlink,
    Problem,
    ProblemKind,
    Uplink,
)
from gputopo.render.tree import render_tree
from tests.machines import MACHINES
from tests.property.strategies import topologies

DGX1_LINK_DOWN = """\
DGX-1 with V100-32 · driver 535.161.08 · CUDA 12.2
8 × Tesla V100-SXM2-32GB, 32 GiB
├─ NUMA 0  CPUs 0-19,40-59 · 251 GiB
│  ├─ PCIe switch
│  │  ├─ GPU0  A  Tesla V100-SXM2-32GB  32 GiB  NV2 → GPU4  NV1 → GPU1,2  NV1/2 → GPU3  250 GB/s  ! degraded
│  │  ├─ GPU1  A  Tesla V100-SXM2-32GB  32 GiB  NV2 → GPU2,5  NV1 → GPU0,3              300 GB/s
│  │  └─ mlx5_0  100 Gb/s
│  └─ PCIe switch
│     ├─ GPU2  A  Tesla V100-SXM2-32GB  32 GiB  NV2 → GPU1,3  NV1 → GPU0,6              300 GB/s
│     ├─ GPU3  A  Tesla V100-SXM2-32GB  32 GiB  NV2 → GPU2  NV1/2 → GPU0  NV1 → GPU1,7  250 GB/s  ! degraded
│     └─ mlx5_1  100 Gb/s
└─ NUMA 1  CPUs 20-39,60-79 · 251 GiB
   ├─ PCIe switch
   │  ├─ GPU4  A  Tesla V100-SXM2-32GB  32 GiB  NV2 → GPU0,7  NV1 → GPU5,6              300 GB/s
   │  ├─ GPU5  A  Tesla V100-SXM2-32GB  32 GiB  NV2 → GPU1,6  NV1 → GPU4  NV0/1 → GPU7  250 GB/s  ! degraded
   │  └─ mlx5_2  100 Gb/s
   └─ PCIe switch
      ├─ GPU6  A  Tesla V100-SXM2-32GB  32 GiB  NV2 → GPU5,7  NV1 → GPU2,4              300 GB/s
      ├─ GPU7  A  Tesla V100-SXM2-32GB  32 GiB  NV2 → GPU4,6  NV1 → GPU3  NV0/1 → GPU5  250 GB/s  ! degraded
      └─ mlx5_3  100 Gb/s

NVLink islands
  A  GPU0-7  NVLink · 250 GB/s per GPU · 13 of 28 pairs have no direct NVLink

Degraded
  ! GPU0,3 NVLink: 1 of 2 NVLinks is active
  ! GPU5,7 NVLink: 0 of 1 NVLinks is active
"""

H100_LOST_GPU = """\
node-7 - DGXH100 - driver 580.95.05 - CUDA 13.0
7 x NVIDIA H100 80GB HBM3, 79.6 GiB - 1 lost
|- NUMA 0  CPUs 0-55,112-167 - 1007 GiB
|  |- GPU0  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch  900 GB/s  + mlx5_0 400 Gb/s
|  |- GPU1  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch  900 GB/s  + mlx5_1 400 Gb/s
|  |- GPU2                               LOST                        + mlx5_2 400 Gb/s
|  |- GPU3  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch  900 GB/s  + mlx5_3 400 Gb/s
|  `- mlx5_8  200 Gb/s
`- NUMA 1  CPUs 56-111,168-223 - 1007 GiB
   |- GPU4  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch  900 GB/s  + mlx5_4 400 Gb/s
   |- GPU5  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch  900 GB/s  + mlx5_5 400 Gb/s
   |- GPU6  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch  900 GB/s  + mlx5_6 400 Gb/s
   |- GPU7  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch  900 GB/s  + mlx5_7 400 Gb/s
   `- mlx5_9  200 Gb/s

NVLink islands
  A  GPU0,1,3-7  NVSwitch - 900 GB/s per GPU

Degraded
  ! GPU2: GPU is lost
"""

A100_MIG = """\
DGXA100 920-23687-2530-000 · driver 550.54.15 · CUDA 12.4
8 × NVIDIA A100-SXM4-40GB, 40 GiB
├─ NUMA 1  CPUs 16-31,144-159 · 126 GiB
│  └─ PCIe switch
│     ├─ GPU2  ·  A100-SXM4-40GB  40 GiB  MIG without instances
│     ├─ GPU3  A  A100-SXM4-40GB  40 GiB  NV12 → NVSwitch               600 GB/s
│     └─ mlx5_2 mlx5_3  200 Gb/s each
├─ NUMA 2  CPUs 32-47,160-175 · 126 GiB
│  └─ mlx5_4 mlx5_5  200 Gb/s each
├─ NUMA 3  CPUs 48-63,176-191 · 126 GiB
│  └─ PCIe switch
│     ├─ GPU0  ·  A100-SXM4-40GB  40 GiB  MIG 7 × 1g.5gb
│     ├─ GPU1  ·  A100-SXM4-40GB  40 GiB  MIG 3g.20gb, 2g.10gb, 1g.5gb
│     └─ mlx5_0 mlx5_1  200 Gb/s each
├─ NUMA 4  CPUs 64-79,192-207 · 126 GiB
│  └─ mlx5_10 mlx5_11  200 Gb/s each
├─ NUMA 5  CPUs 80-95,208-223 · 126 GiB
│  └─ PCIe switch
│     ├─ GPU6  A  A100-SXM4-40GB  40 GiB  NV12 → NVSwitch               600 GB/s
│     ├─ GPU7  A  A100-SXM4-40GB  40 GiB  NV12 → NVSwitch               600 GB/s
│     └─ mlx5_8 mlx5_9  200 Gb/s each
├─ NUMA 7  CPUs 112-127,240-255 · 126 GiB
│  └─ PCIe switch
│     ├─ GPU4  A  A100-SXM4-40GB  40 GiB  NV12 → NVSwitch               600 GB/s
│     ├─ GPU5  A  A100-SXM4-40GB  40 GiB  NV12 → NVSwitch               600 GB/s
│     └─ mlx5_6 mlx5_7  200 Gb/s each
└─ NUMA 0, 6  no GPU, no NIC

NVLink islands
  A  GPU3-7  NVSwitch · 600 GB/s per GPU
  ·  GPU0-2  each on its own
"""

GB200_TRAY = """\
GB200 NVL · driver 580.95.05 · CUDA 13.0
4 × NVIDIA GB200, 185 GiB
├─ NUMA 0  CPUs 0-71 · 479 GiB
│  ├─ GPU0  A  GB200  185 GiB  NV18 → NVSwitch  1800 GB/s  its memory is NUMA 2
│  ├─ GPU1  A  GB200  185 GiB  NV18 → NVSwitch  1800 GB/s  its memory is NUMA 10
│  └─ mlx5_0 mlx5_1  400 Gb/s each
└─ NUMA 1  CPUs 72-143 · 479 GiB
   ├─ GPU2  A  GB200  185 GiB  NV18 → NVSwitch  1800 GB/s  its memory is NUMA 18
   ├─ GPU3  A  GB200  185 GiB  NV18 → NVSwitch  1800 GB/s  its memory is NUMA 26
   └─ mlx5_2 mlx5_3  400 Gb/s each

NVLink islands
  A  GPU0-3  NVSwitch · 1800 GB/s per GPU

Multi-node NVLink
  cluster 7b968a6d-c8aa-45e1-9e07-e1e51be99c31, clique 32766
"""

CLOUD_VM = """\
8 x NVIDIA H100 80GB HBM3, 79.6 GiB - driver 550.90.07 - CUDA 12.4
`- NUMA ?
   |- GPU0  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch (assumed)
   |- GPU1  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch (assumed)
   |- GPU2  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch (assumed)
   |- GPU3  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch (assumed)
   |- GPU4  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch (assumed)
   |- GPU5  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch (assumed)
   |- GPU6  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch (assumed)
   `- GPU7  A  H100 80GB HBM3  79.6 GiB  NV18 -> NVSwitch (assumed)

NVLink islands
  A  GPU0-7  NVSwitch - bandwidth unknown

Caveats
  ? GPU0-7 NUMA node: not known: the kernel says -1
"""

H100_PARTIAL = """\
DGXH100 · driver 580.95.05 · CUDA 13.0
4 × NVIDIA H100 80GB HBM3, 79.6 GiB · only a part of the machine is visible here
├─ NUMA 0  CPUs 0-55,112-167 · 1007 GiB
│  ├─ GPU0  A  H100 80GB HBM3  79.6 GiB  NV18 → NVSwitch  900 GB/s  + mlx5_0 400 Gb/s
│  ├─ GPU1  A  H100 80GB HBM3  79.6 GiB  NV18 → NVSwitch  900 GB/s  + mlx5_1 400 Gb/s
│  ├─ GPU2  A  H100 80GB HBM3  79.6 GiB  NV18 → NVSwitch  900 GB/s  + mlx5_2 400 Gb/s
│  ├─ GPU3  A  H100 80GB HBM3  79.6 GiB  NV18 → NVSwitch  900 GB/s  + mlx5_3 400 Gb/s
│  └─ mlx5_8  200 Gb/s
└─ NUMA 1  CPUs 56-111,168-223 · 1007 GiB
   ├─ mlx5_4 mlx5_5 mlx5_6 mlx5_7  400 Gb/s each
   └─ mlx5_9  200 Gb/s

NVLink islands
  A  GPU0-3  NVSwitch · 900 GB/s per GPU

Caveats
  ? GPUs: incomplete: 4 of the machine's 8 GPUs are visible here
"""

WSL = """\
1 × NVIDIA GeForce RTX 4070 Laptop GPU, 8 GiB · driver 566.36 · CUDA 12.7
└─ NUMA ?
   └─ GPU0  ?  GeForce RTX 4070 Laptop GPU  8 GiB  NVLink ?

NVLink islands
  ?  NVLinks unknown: no source reports them

Caveats
  ? NVLink: not known: WSL does not tell
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [("dgx1_link_down", DGX1_LINK_DOWN), ("a100_mig", A100_MIG), ("gb200_tray", GB200_TRAY),
     ("h100_partial", H100_PARTIAL), ("wsl", WSL)],
    ids=lambda value: value if len(value) < 20 else "",
)  # fmt: skip
def test_the_tree_of_a_machine(name: str, expected: str) -> None:
    assert render_tree(MACHINES[name]()) == expected


@pytest.mark.parametrize(
    ("machine", "name", "expected"),
    [
        pytest.param("h100_lost_gpu", "node-7", H100_LOST_GPU, id="with a name"),
        pytest.param("cloud_vm", None, CLOUD_VM, id="without"),
    ],
)
def test_in_plain_ascii(machine: str, name: str | None, expected: str) -> None:
    assert render_tree(MACHINES[machine](), name, ascii_only=True) == expected


def test_a_machine_without_gpus() -> None:
    assert render_tree(MACHINES["no_gpu"]()) == "PowerEdge R650\nno GPU\n└─ NUMA 0, 1  no GPU, no NIC\n"
    assert render_tree(NodeTopology()) == "no GPU\n"


def test_the_few_known_facts_are_shown() -> None:
    machine = NodeTopology(
        gpus=(
            Gpu(index=0, cpu_affinity="0-7", fabric=GpuFabric(FabricState.COMPLETED, unhealthy=("route", "bandwidth"))),
            Gpu(index=3, cpu_affinity="0-7"),
            Gpu(index=4, product="NVIDIA B200", health=Health.LOST),
        ),
        nvlink=Nvlink(
            links=(Link(a=0, b=3, lanes=2),),
            uplinks=(
                Uplink(gpu=0, fabric=0, lanes=2, gbps=100.0),
                Uplink(gpu=3, fabric=1, lanes=2, expected_lanes=2, gbps=100.0),
            ),
        ),
        problems=(
            Problem("gpus.0.memoryMiB", ProblemKind.CONFLICT, "NVML says 1, nvidia-smi 2: believed NVML"),
            Problem("a\x1b[2J", ProblemKind.UNKNOWN, "b\nc"),
        ),
    )

    assert render_tree(machine) == (
        "2 × GPU · 1 lost\n"
        "└─ NUMA ?\n"
        "   ├─ GPU0  A        NV2 → NVSwitch 0  NV2 → GPU3  ? GB/s  fabric: route, bandwidth\n"
        "   ├─ GPU3  A        NV2 → NVSwitch 1  NV2 → GPU0  ? GB/s\n"
        "   └─ GPU4     B200  LOST\n"
        "\n"
        "NVLink islands\n"
        "  A  GPU0,3  NVLink · bandwidth unknown\n"
        "\n"
        "Caveats\n"
        "  ? GPU0 memory: sources disagree: NVML says 1, nvidia-smi 2: believed NVML\n"
        "  ? a\\x1b[2J: not known: b\\nc\n"
    )


def test_cpus_of_a_node_come_from_its_gpus_where_the_node_does_not_say() -> None:
    machine = NodeTopology(
        gpus=(Gpu(index=0, numa_node=0, cpu_affinity="0-7"), Gpu(index=1, numa_node=1, cpu_affinity="8-15")),
        nvlink=Nvlink(),
        numa_nodes=(NumaNode(id=0), NumaNode(id=1, cpus="8-31")),
    )

    assert [line for line in render_tree(machine).splitlines() if "NUMA" in line] == [
        "├─ NUMA 0  CPUs 0-7",
        "└─ NUMA 1  CPUs 8-31",
    ]


def test_paint_is_told_the_role_of_every_text_and_changes_nothing_else() -> None:
    result: list[tuple[str, str]] = []

    def paint(role: str, text: str) -> str:
        result.append((role, text))
        return f"<{text}>"

    painted = render_tree(MACHINES["h100_weak_uplink"](), paint=paint)

    assert painted.replace("<", "").replace(">", "") == render_tree(MACHINES["h100_weak_uplink"]())
    assert {("island-0", "GPU3"), ("bad", "  NV17/18 → NVSwitch"), ("title", "Degraded")} <= set(result)
    assert {role for role, _ in result} == {"title", "dim", "text", "frame", "island-0", "bad", "nic"}


@settings(max_examples=40, deadline=None)
@given(topologies())
def test_whatever_the_hardware_is_called_every_line_is_printable(topology: NodeTopology) -> None:
    for ascii_only in (False, True):
        lines = render_tree(topology, ascii_only=ascii_only).split("\n")
        assert all(line.isprintable() and line == line.rstrip() for line in lines)
        assert not ascii_only or all(line.isascii() for line in lines)


@settings(max_examples=40, deadline=None)
@given(topologies())
def test_every_gpu_has_one_line(topology: NodeTopology) -> None:
    quiet = msgspec.structs.replace(topology, nics=(), numa_nodes=())
    named = [re.match(r"[│├└─ ]+GPU([0-9]+) ", line) for line in render_tree(quiet).splitlines()]

    assert sorted(int(match[1]) for match in named if match) == [gpu.index for gpu in topology.gpus]
