"""Undamaged inputs of every format, from the bundled machines and from templates in the format of the programs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml

from agent.recording.bundled import bundled_directory
from agent.recording.inputs import read_observation
from agent.recording.io import dump_snapshot, load_snapshot
from fixtures.generate.catalogue import MACHINES
from fixtures.generate.smi import build_smi
from gputopo.labels import encode_topology
from gputopo.render.nccl_xml import render_nccl_xml

if TYPE_CHECKING:
    from agent.snapshot import Snapshot
    from gputopo.model import NodeTopology

UUID = "GPU-2d4f8f1e-6b3a-4c59-9b7e-1f0a3c5d7e8{}"


def inputs() -> dict[str, list[str]]:
    """Return the undamaged texts by input format."""
    return {
        "`topo -m`": [_output(name, "topo -m") for name in _MATRICES],
        "`topo -mp`": [_pci_only(names=True), _pci_only(names=False)],
        "`-L`": [_output("8a100-8n-nvswitch12+mig", "-L"), _output("4a100-1n-mesh4", "-L")],
        "`nvlink -s`": [_link_status(4)],
        "`topo -p2p`": [_peers(4)],
        "bug report: `-L`, `topo -m`, `nvlink -s`, `-p2p`": [_bug_report()],
        "`-q -x`": [_query_xml()],
        "`-q`": [_query_text()],
        "NCCL XML": [*(render_nccl_xml(_topology(name)) for name in _NCCL), _nccl_dump()],
        "hwloc 2 XML": [_hwloc(version="2.0")],
        "hwloc 1 XML": [_hwloc(version=None)],
        "recording": [dump_snapshot(_snapshot(name)) for name in _RECORDINGS],
        "Node, JSON": [json.dumps(_node("8a100-8n-nvswitch12"), indent=4) + "\n"],
        "Node, YAML": [yaml.safe_dump(_node("8v100-2n-cubemesh"), width=120)],
    }


_MATRICES = ("8a100-8n-nvswitch12", "8v100-2n-cubemesh", "4a100-1n-mesh4", "8rtx4090-2n-pcie")
_NCCL = ("8a100-8n-nvswitch12", "8v100-2n-cubemesh")
_RECORDINGS = ("1l4-1n", "3a6000-1n-pair4")


def _snapshot(name: str) -> Snapshot:
    return load_snapshot((Path(bundled_directory()) / name / "snapshot.json").read_text("utf-8"))


def _topology(name: str) -> NodeTopology:
    return read_observation(dump_snapshot(_snapshot(name))).topology


def _output(name: str, command: str) -> str:
    machine = next(each for each in MACHINES if each.shape == name)
    return build_smi(msgspec.structs.replace(machine, smi=(command,)))[command].stdout


def _node(name: str) -> dict[str, object]:
    facts = encode_topology(_topology(name))
    metadata = {"name": "gpu-7", "labels": facts.labels | facts.mirrors, "annotations": facts.annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"capacity": {"nvidia.com/gpu": "8"}}}


def _link_status(gpus: int) -> str:
    lines = []
    for index in range(gpus):
        lines.append(f"GPU {index}: NVIDIA A100-SXM4-40GB (UUID: {UUID.format(index)})")
        lines += [f"\t Link {link}: 25 GB/s" for link in range(12)]
    return "\n".join(lines) + "\n"


def _pci_only(*, names: bool) -> str:
    """Return ``topo -mp`` of a machine with NVSwitches, which shows no NVLinks; with ``names`` below ``-L``."""
    name = "8h100-2n-nvswitch18"
    rows = [line for line in _output(name, "topo -m").splitlines() if "NV#" not in line]
    matrix = re.sub(r"\bNV18\b", "SYS", "\n".join(rows))
    return f"{_output(name, '-L') if names else ''}{matrix}\n"


def _peers(gpus: int) -> str:
    header = "\t" + "\t".join(f"GPU{i}" for i in range(gpus)) + "\n"
    rows = (f" GPU{i}\t" + "\t".join("X" if i == j else "OK" for j in range(gpus)) + "\n" for i in range(gpus))
    return f"{header}{''.join(rows)}\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"


def _bug_report() -> str:
    name = "4a100-1n-mesh4"
    parts = (
        ("-L", _output(name, "-L")),
        ("topo -m", _output(name, "topo -m")),
        ("nvlink -s", _output(name, "nvlink -s")),
    )
    text = "\n".join(f"$ nvidia-smi {command}\n{output}" for command, output in parts)
    return f"{text}\n$ nvidia-smi topo -p2p n\n{_peers(4)}"


def _query_xml() -> str:
    gpus = "".join(
        f"""\
    <gpu id="00000000:0{7 + index}:00.0">
        <product_name>NVIDIA A100-SXM4-40GB</product_name>
        <product_architecture>Ampere</product_architecture>
        <mig_mode>
            <current_mig>{"Enabled" if index == 2 else "Disabled"}</current_mig>
            <pending_mig>{"Enabled" if index == 2 else "Disabled"}</pending_mig>
        </mig_mode>
        <mig_devices>
{_MIG if index == 2 else "            None"}
        </mig_devices>
        <serial>132432100247{index}</serial>
        <uuid>{UUID.format(index)}</uuid>
        <minor_number>{index}</minor_number>
        <pci>
            <pci_bus_id>00000000:0{7 + index}:00.0</pci_bus_id>
            <pci_gpu_link_info>
                <pcie_gen>
                    <max_link_gen>4</max_link_gen>
                    <current_link_gen>4</current_link_gen>
                </pcie_gen>
                <link_widths>
                    <max_link_width>16x</max_link_width>
                    <current_link_width>16x</current_link_width>
                </link_widths>
            </pci_gpu_link_info>
        </pci>
        <fb_memory_usage>
            <total>40960 MiB</total>
            <reserved>571 MiB</reserved>
            <used>19 MiB</used>
            <free>40370 MiB</free>
        </fb_memory_usage>
        <processes>
        </processes>
    </gpu>
"""
        for index in range(3)
    )
    return f"""\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
    <timestamp>Tue Mar  4 10:00:00 2025</timestamp>
    <driver_version>550.54.15</driver_version>
    <cuda_version>12.4</cuda_version>
    <attached_gpus>3</attached_gpus>
{gpus}</nvidia_smi_log>
"""


_MIG = "\n".join(
    f"""\
            <mig_device>
                <index>{index}</index>
                <gpu_instance_id>{index + 1}</gpu_instance_id>
                <compute_instance_id>0</compute_instance_id>
                <fb_memory_usage>
                    <total>19968 MiB</total>
                    <used>10 MiB</used>
                    <free>19958 MiB</free>
                </fb_memory_usage>
            </mig_device>"""
    for index in range(2)
)


def _query_text() -> str:
    gpus = "".join(
        f"""
GPU 00000000:0{7 + index}:00.0
    Product Name                          : NVIDIA A100-SXM4-40GB
    Product Architecture                  : Ampere
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    Serial Number                         : 132432100247{index}
    GPU UUID                              : {UUID.format(index)}
    Minor Number                          : {index}
    PCI
        Bus                               : 0x0{7 + index}
        Bus Id                            : 00000000:0{7 + index}:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 4
            Link Width
                Max                       : 16x
                Current                   : 16x
    FB Memory Usage
        Total                             : 40960 MiB
        Reserved                          : 571 MiB
        Used                              : 19 MiB
        Free                              : 40370 MiB
    BAR1 Memory Usage
        Total                             : 65536 MiB
    Clocks
        SM                                : 210 MHz
    Processes                             : None
"""
        for index in range(3)
    )
    return f"""
==============NVSMI LOG==============

Timestamp                                 : Tue Mar  4 10:00:00 2025
Driver Version                            : 550.54.15
CUDA Version                              : 12.4

Attached GPUs                             : 3{gpus}
"""


def _nccl_dump() -> str:
    """A dump of a pair of GPUs with two NVLinks, one on each of two NUMA nodes, with a NIC each."""
    cpus = "".join(
        f"""\
  <cpu host_hash="0x392d9598e39e6a8f" numaid="{node}" affinity="{mask}" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:{bus}a:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:{bus}b:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="{node}" sm="80" rank="{node}" gdr="1">
          <nvlink target="0000:{other}b:00.0" count="12" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:{bus}c:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_{node}" dev="{node}" speed="200000" port="1" guid="0x{bus}" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
"""
        for node, mask, bus, other in ((0, "0000ffff", 1, 8), (1, "ffff0000", 8, 1))
    )
    return f'<system version="1">\n{cpus}</system>\n'


def _hwloc(version: str | None) -> str:
    """Four GPUs on two NUMA nodes with a NIC each, as lstopo of hwloc 1 and of hwloc 2 write them."""
    packages = "".join(_package(version, node) for node in range(2))
    distances = _LINKS if version else ""
    attribute = f' version="{version}"' if version else ""
    return f"""\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology{attribute}>
  <object type="Machine" os_index="0" cpuset="0x0000ffff" nodeset="0x00000003" gp_index="1">
    <info name="DMIProductName" value="A Box"/>
{packages}  </object>
{distances}</topology>
"""


def _package(version: str | None, node: int) -> str:
    nodeset = f'cpuset="0x{"00ff" if node == 0 else "ff00"}" nodeset="0x0000000{node + 1}"'
    memory = f'<object type="NUMANode" os_index="{node}" {nodeset} gp_index="{10 + node}"'
    opening = f"      {memory}/>\n" if version else f"      {memory}>\n"
    gpus = "".join(
        f"""\
        <object type="PCIDev" gp_index="{20 + index}" pci_busid="0000:{3 + index}b:00.0" pci_type="0302 [10de:1db8] a1">
          <object type="OSDev" gp_index="{30 + index}" name="nvml{index}" osdev_type="1">
            <info name="GPUModel" value="Tesla V100-SXM2-32GB"/>
          </object>
        </object>
"""
        for index in (2 * node, 2 * node + 1)
    )
    nic = f"""\
        <object type="PCIDev" gp_index="{40 + node}" pci_busid="0000:{8 + node}a:00.0" pci_type="0207 [15b3:1013] 00">
          <object type="OSDev" gp_index="{50 + node}" name="mlx5_{node}" osdev_type="3"/>
        </object>
"""
    closing = "" if version else "      </object>\n"
    package = f'    <object type="Package" os_index="{node}" {nodeset} gp_index="{60 + node}">\n'
    bridge = f'      <object type="Bridge" gp_index="{70 + node}" bridge_type="0-1">\n{gpus}{nic}      </object>\n'
    return f"{package}{opening}{bridge}{closing}    </object>\n"


_LINKS = """\
  <distances2 type="OSDev" nbobjs="4" kind="2068" name="NVLinkBandwidth" indexing="gp">
    <indexes length="12">30 31 32 33</indexes>
    <u64values length="40">1000000 50000 25000 25000</u64values>
    <u64values length="40">50000 1000000 25000 25000</u64values>
    <u64values length="40">25000 25000 1000000 50000</u64values>
    <u64values length="40">25000 25000 50000 1000000</u64values>
  </distances2>
"""
