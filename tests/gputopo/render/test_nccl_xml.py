"""The NCCL topology file: what it says, and that NCCL's own simple parser can read it."""

import re
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import assume, given, settings

from gputopo.model import Gpu, Link, Nic, NodeTopology, NumaNode, Nvlink, Pcie, PcieDistance, Uplink
from gputopo.render.nccl_xml import NcclXmlError, cpu_mask, render_nccl_xml
from tests.machines import MACHINES, a100_mig, b200_fallen_out, h100_lost_gpu, no_gpu, nvlink_unknown, wsl
from tests.property.strategies import topologies

PIX, PXB, PHB, NODE, SYS = PcieDistance
GEN5_X16 = Pcie(max_generation=5, max_width=16)
GEN4_X8 = Pcie(max_generation=4, max_width=8)

# Two GPUs and a NIC behind one bridge, a third GPU in the same switch behind another, a fourth elsewhere.
MACHINE = NodeTopology(
    gpus=(
        Gpu(index=0, bus_id="0000:07:00.0", numa_node=0, compute_capability=(9, 0), pcie=GEN5_X16),
        Gpu(index=1, bus_id="0000:0a:00.0", numa_node=0, compute_capability=(9, 0), pcie=GEN4_X8),
        Gpu(index=2, bus_id="0000:0f:00.0", numa_node=0),
        Gpu(index=3, bus_id="0001:47:00.0"),
    ),
    pcie=((None, PIX, PXB, SYS), (PIX, None, PXB, SYS), (PXB, PXB, None, SYS), (SYS, SYS, SYS, None)),
    nvlink=Nvlink(
        links=(Link(a=0, b=1, lanes=4), Link(a=0, b=2, lanes=0, expected_lanes=4)),
        uplinks=(
            Uplink(gpu=1, fabric=0, lanes=17, expected_lanes=18),
            Uplink(gpu=2, fabric=0, lanes=18),
            Uplink(gpu=3, fabric=0, lanes=0, expected_lanes=18),
        ),
    ),
    nics=(
        Nic(name="mlx5_0", bus_id="0000:0b:00.0", rate_gbps=400, distances=(PIX, PIX, PXB, SYS)),
        Nic(name="not on PCI", distances=(SYS, SYS, SYS, SYS)),
    ),
    numa_nodes=(NumaNode(id=0, cpus="0-7,32"),),
)  # fmt: skip

XML = """\
<system version="1">
  <cpu numaid="0" affinity="00000001,000000ff">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="ffff:ff:02.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
        <pci busid="0000:07:00.0" class="0x03" link_speed="32.0 GT/s PCIe" link_width="16">
          <gpu dev="0" sm="90">
            <nvlink target="0000:0a:00.0" count="4" tclass="0x03"/>
          </gpu>
        </pci>
        <pci busid="0000:0a:00.0" class="0x03" link_speed="16.0 GT/s PCIe" link_width="8">
          <gpu dev="1" sm="90">
            <nvlink target="0000:07:00.0" count="4" tclass="0x03"/>
            <nvlink target="fffffff:ffff:ff" count="17" tclass="0x068000"/>
          </gpu>
        </pci>
        <pci busid="0000:0b:00.0" class="0x02" name="mlx5_0" speed="400000"/>
      </pci>
      <pci busid="ffff:ff:03.0" class="0x060400">
        <pci busid="0000:0f:00.0" class="0x03">
          <gpu dev="2">
            <nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>
          </gpu>
        </pci>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="-1">
    <pci busid="0001:47:00.0" class="0x03">
      <gpu dev="3"/>
    </pci>
  </cpu>
</system>
"""


def targets(topology: NodeTopology) -> dict[str, list[str]]:
    """Per GPU the targets of its NVLinks."""
    gpus = ET.fromstring(render_nccl_xml(topology)).iter("gpu")
    return {gpu.attrib["dev"]: [link.attrib["target"] for link in gpu] for gpu in gpus}


def test_the_file_of_a_machine() -> None:
    assert render_nccl_xml(MACHINE) == XML


def test_one_bridge_is_one_switch() -> None:
    two = msgspec.structs.replace(
        MACHINE,
        gpus=MACHINE.gpus[:2],
        nvlink=None,
        pcie=((None, PIX), (PIX, None)),
        nics=(),
    )

    assert render_nccl_xml(two) == (
        '<system version="1">\n'
        '  <cpu numaid="0" affinity="00000001,000000ff">\n'
        '    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">\n'
        '      <pci busid="0000:07:00.0" class="0x03" link_speed="32.0 GT/s PCIe" link_width="16"/>\n'
        '      <pci busid="0000:0a:00.0" class="0x03" link_speed="16.0 GT/s PCIe" link_width="8"/>\n'
        "    </pci>\n"
        "  </cpu>\n"
        "</system>\n"
    )


def test_gpus_in_mig_mode_lost_ones_and_those_out_of_the_fabric_have_no_nvlinks() -> None:
    switch = ["fffffff:ffff:ff"]

    assert targets(a100_mig()) == {str(i): [] if i < 3 else switch for i in range(8)}
    assert targets(h100_lost_gpu()) == {str(i): switch for i in range(8) if i != 2}
    assert targets(b200_fallen_out()) == {str(i): [] if i == 5 else switch for i in range(8)}


def test_a_link_to_a_gpu_that_cannot_use_it_is_left_out() -> None:
    mig = msgspec.structs.replace(MACHINE.gpus[1], mig_enabled=True)

    assert targets(msgspec.structs.replace(MACHINE, gpus=(MACHINE.gpus[0], mig, *MACHINE.gpus[2:])))["0"] == []


def test_a_gpu_alone_in_a_fabric_of_its_own_has_fallen_out_of_the_others() -> None:
    uplinks = tuple(Uplink(gpu=i, fabric=int(i == 2), lanes=18) for i in range(4))

    found = targets(msgspec.structs.replace(MACHINE, nvlink=Nvlink(uplinks=uplinks)))

    assert found == {"0": ["fffffff:ffff:ff"], "1": ["fffffff:ffff:ff"], "2": [], "3": ["fffffff:ffff:ff"]}


def test_where_nvlink_is_unknown_nccl_should_look_for_itself() -> None:
    assert targets(nvlink_unknown()) == {}


def test_a_switch_of_devices_that_nccl_cannot_find_is_left_out() -> None:
    nics = tuple(Nic(name=f"mlx5_{i}", numa_node=4, distances=(SYS,)) for i in range(2))
    machine = NodeTopology(gpus=(Gpu(index=0, bus_id="0000:07:00.0"),), nics=nics)

    assert re.findall("<(?:cpu|pci) [^>]*", render_nccl_xml(machine)) == [
        '<cpu numaid="-1"',
        '<pci busid="0000:07:00.0" class="0x03"/',
    ]


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        pytest.param(
            no_gpu(), "NCCL topology XML describes GPUs, and there is none here that can be used", id="no GPU"
        ),
        pytest.param(
            wsl(),
            "NCCL finds GPUs by their PCI bus id, and that of GPU 0 is not known; "
            "record the machine itself (gputopo record), because nvidia-smi topo -m prints none",
            id="no bus id",
        ),
        pytest.param(
            msgspec.structs.replace(
                MACHINE,
                nvlink=Nvlink(uplinks=tuple(Uplink(gpu=i, fabric=i // 2, lanes=1) for i in range(4))),
            ),
            "NCCL topology XML knows one NVSwitch fabric per machine, and this machine has several",
            id="two fabrics",
        ),
    ],
)
def test_a_topology_that_nccl_cannot_use_is_refused(topology: NodeTopology, message: str) -> None:
    with pytest.raises(NcclXmlError) as caught:
        render_nccl_xml(topology)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("cpulist", "mask"),
    [
        ("0", "00000001"),
        ("0-31", "ffffffff"),
        ("0-3,64-67", "0000000f,00000000,0000000f"),
        ("895", ",".join(["80000000", *["00000000"] * 27])),
        ("896", None),
        ("7-3", None),
        ("", None),
        ('0" evil="', None),
    ],
    ids=repr,
)
def test_cpus_as_a_mask(cpulist: str, mask: str | None) -> None:
    assert cpu_mask(cpulist) == mask


def readable_by_nccl(text: str) -> bool:
    """The grammar of ``xmlGetNode`` in NCCL's src/graph/xml.cc: plain tags, quoted values, no entities."""
    value = r'"[^"<>&\t\n]{0,253}"'
    tag = rf"<(/[a-z]+|[a-z]+( [a-z_]+={value}){{0,16}}/?)>"
    return re.fullmatch(rf"( *{tag}\n)*", text) is not None


@pytest.mark.parametrize("name", [name for name in MACHINES if name not in ("wsl", "no_gpu", "nothing_known")])
def test_nccl_can_read_the_file_of_every_machine(name: str) -> None:
    machine = MACHINES[name]()
    text = render_nccl_xml(machine)

    assert readable_by_nccl(text)
    gpus = [pci for pci in ET.fromstring(text).iter("pci") if pci.attrib["class"] == "0x03"]
    assert {pci.attrib["busid"] for pci in gpus} == {gpu.bus_id for gpu in machine.usable}


@settings(max_examples=80, deadline=None)
@given(topologies())
def test_no_text_of_the_hardware_gets_into_the_file(topology: NodeTopology) -> None:
    gpus = tuple(
        msgspec.structs.replace(gpu, bus_id=f"0000:{gpu.index % 256:02x}:{gpu.index // 256:02x}.0")
        for gpu in topology.gpus
    )
    nvlink = topology.nvlink
    if nvlink is not None:
        nvlink = Nvlink(nvlink.links, tuple(msgspec.structs.replace(up, fabric=0) for up in nvlink.uplinks))
    findable = msgspec.structs.replace(topology, gpus=gpus, nvlink=nvlink)
    assume(findable.usable)

    text = render_nccl_xml(findable)

    assert readable_by_nccl(text)
    pcis = list(ET.fromstring(text).iter("pci"))
    assert sum(pci.attrib["class"] == "0x03" for pci in pcis) == len(findable.usable)
    switches = [pci.attrib["busid"] for pci in pcis if pci.attrib["class"] == "0x060400"]
    assert len(switches) == len(set(switches))
