"""NCCL's topology XML."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.errors import ParseError
from agent.sources.nccl import (
    NcclCpu,
    NcclGpu,
    NcclNic,
    NcclNvlink,
    NcclTopology,
    NvlinkEnd,
    PciLocation,
    nccl_distance,
    parse_nccl,
)
from gputopo.model import PcieDistance

DUMP = """\
<system version="1">
  <cpu host_hash="0x1" numaid="0" affinity="00000000,000000ff,00000000,000000ff" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="0000:16:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:18:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="00000000:07:00.0" count="5" tclass="0x068000"/>
          <nvlink target="fffffff:ffff:ff" count="4" tclass="0x068000"/>
          <nvlink target="0000:9a:00.0" count="2" tclass="0x030200"/>
        </gpu>
        <gpu dev="0" sm="90" rank="1" gdr="1"/>
      </pci>
      <pci busid="0000:19:00.0" class="0x020000">
        <nic>
          <net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="1" gdr="1"/>
          <net name="mlx5_0" dev="0" speed="400000" net="0" gin="1"/>
        </nic>
      </pci>
    </pci>
    <nic>
      <net name="eth0" dev="1" speed="-1"/>
    </nic>
  </cpu>
  <cpu host_hash="0x1" numaid="1" affinity="80000000,00000001">
    <pci busid="0000:9a:00.0" class="0x030200">
      <gpu dev="1" sm="103" rank="2">
        <nvlink target="0000:18:00.0" count="2" tclass="0x030200"/>
        <nvlink target="0000:00:01.0" count="3" tclass="0x068001"/>
        <nvlink target="0000:00:02.0" count="1"/>
        <c2c bw="44712" count="5"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""
NODE0 = PciLocation(0)
SWITCH = PciLocation(0, ("0000:16:00.0",))


def test_a_dump_has_gpus_nics_and_numa_nodes() -> None:
    assert parse_nccl(DUMP) == NcclTopology(
        cpus=(NcclCpu(0, "0-7,64-71"), NcclCpu(1, "0,63")),
        gpus=(
            NcclGpu(
                dev=0,
                bus_id="0000:18:00.0",
                location=SWITCH,
                pcie_width=16,
                compute_capability=(9, 0),
                nvlinks=(
                    NcclNvlink(NvlinkEnd.NVSWITCH, 5, "0000:07:00.0"),
                    NcclNvlink(NvlinkEnd.NVSWITCH, 4, None),
                    NcclNvlink(NvlinkEnd.GPU, 2, "0000:9a:00.0"),
                ),
            ),
            NcclGpu(
                dev=1,
                bus_id="0000:9a:00.0",
                location=PciLocation(1),
                compute_capability=(10, 3),
                nvlinks=(
                    NcclNvlink(NvlinkEnd.GPU, 2, "0000:18:00.0"),
                    NcclNvlink(NvlinkEnd.CPU, 3, "0000:00:01.0"),
                    NcclNvlink(NvlinkEnd.UNKNOWN, 1, "0000:00:02.0"),
                ),
                c2c_lanes=5,
                c2c_mbps=44712,
            ),
        ),
        nics=(
            NcclNic(name="mlx5_0", bus_id="0000:19:00.0", location=SWITCH, speed_mbps=400_000),
            NcclNic(name="eth0", bus_id=None, location=PciLocation(None)),
        ),
    )


def linked(first: str, second: str, third: str = "") -> NcclTopology:
    """Parse a dump of three GPUs at 01, 02 and 03 with these <nvlink>."""
    cells = (f'<pci busid="0000:0{at}:00.0" class="0x03"><gpu dev="{at}" sm="80">{links}</gpu></pci>'
             for at, links in enumerate((first, second, third), 1))  # fmt: skip
    return parse_nccl(f'<system version="1"><cpu numaid="0">{"".join(cells)}</cpu></system>')


def test_nvlinks_of_a_gpu_to_itself_make_its_nvlinks_unknown() -> None:
    found = linked('<nvlink target="0000:01:00.0" count="12" tclass="0x030200"/>', "")

    assert [gpu.nvlinks for gpu in found.gpus] == [None, (), ()]
    assert ["lead to the GPU itself" in problem.why for problem in found.problems] == [True]


def test_nvlinks_that_only_one_end_has_make_both_ends_unknown() -> None:
    found = linked(
        '<nvlink target="0000:02:00.0" count="4" tclass="0x030200"/>',
        '<nvlink target="0000:01:00.0" count="1" tclass="0x030200"/>',
    )

    assert [gpu.nvlinks for gpu in found.gpus] == [None, None, ()]
    assert "number 4 from 0000:01:00.0 to 0000:02:00.0, and 1 back" in found.problems[0].why


def test_two_nvlinks_to_one_device_make_the_nvlinks_of_a_gpu_unknown() -> None:
    switch = '<nvlink target="fffffff:ffff:ff" count="12" tclass="0x068000"/>'

    found = linked(switch, switch + switch, switch)

    assert [gpu.nvlinks is None for gpu in found.gpus] == [False, True, False]
    assert "lead to the same device twice" in found.problems[0].why


def test_an_nvlink_to_a_gpu_without_an_address_makes_the_nvlinks_unknown() -> None:
    switch = '<nvlink target="fffffff:ffff:ff" count="12" tclass="0x068000"/>'

    found = linked(switch, switch.replace("0x068000", "0x038000"), switch)

    assert [gpu.nvlinks is None for gpu in found.gpus] == [False, True, False]
    assert "lead to a GPU without an address" in found.problems[0].why


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ('<pci busid="0000:02:00.0" class="0xN30200"/>', "class='0xN30200' of <pci> is not a PCI class"),
        ('<pci busid="0000:02:00.0"/>', "class=None of <pci> leaves open whether the device is a GPU or a NIC"),
    ],
)
def test_a_device_without_a_readable_class_is_refused(device: str, why: str) -> None:
    with pytest.raises(ParseError, match=re.escape(why)):
        parse_nccl(machine(device))


def test_a_gpu_without_nvlinks_beside_gpus_on_an_nvswitch_is_unknown() -> None:
    switch = '<nvlink target="fffffff:ffff:ff" count="12" tclass="0x068000"/>'

    found = linked(switch, switch)

    assert [gpu.nvlinks is None for gpu in found.gpus] == [False, False, True]
    assert "are missing" in found.problems[0].why


def test_virtual_interfaces_of_the_socket_transport_are_no_nics() -> None:
    bridges = ("br-702d9f064725", "br0", "docker0", "genev_sys_6081", "antrea-gw0")
    others = ("veth268d912", "cali93a81d5cee2", "tunl0", "tailscale0", "vlan10", "bond0.100")
    names = ("enp34s0f0", *bridges, "mlx5_0", *others, "eth0", "bond0")
    nets = "".join(f'<net name="{name}" dev="1" port="0" speed="10000" maxconn="65536" gdr="0"/>' for name in names)

    found = parse_nccl(machine(f'<pci busid="0000:02:00.0" class="0x020000"><nic>{nets}</nic></pci>'))

    assert [nic.name for nic in found.nics] == ["enp34s0f0", "mlx5_0", "eth0", "bond0"]


def test_a_network_device_without_pci_device_is_of_no_numa_node_unless_nccl_merged_it() -> None:
    found = parse_nccl(machine('<nic><net name="eth0" dev="0"/><net name="mlx5_0+mlx5_1" dev="1"/></nic>'))

    assert [nic.location.numa_node for nic in found.nics] == [None, 0]


def test_a_file_written_by_hand_may_end_at_the_pci_devices() -> None:
    text = """\
<system version="1">
  <cpu numaid="0x0" affinity="0">
    <pci busid="ffff:ff:01.0" class="0x060400">
      <pci busid="0002:00:00.0" class="0x030200"/>
      <pci busid="0001:00:00.0" class="0x030200"/>
      <pci busid="0101:00:00.0" class="0x020700"/>
    </pci>
  </cpu>
</system>"""
    place = PciLocation(0, ("ffff:ff:01.0",))

    assert parse_nccl(text) == NcclTopology(
        cpus=(NcclCpu(0),),
        gpus=(
            NcclGpu(dev=None, bus_id="0001:00:00.0", location=place),
            NcclGpu(dev=None, bus_id="0002:00:00.0", location=place),
        ),
        nics=(NcclNic(name=None, bus_id="0101:00:00.0", location=place),),
    )


def test_gpus_without_a_number_come_last_and_a_speed_of_zero_is_unknown() -> None:
    text = """\
<system version="1"><cpu numaid="0">
  <pci busid="0000:01:00.0" class="0x030200"/>
  <pci busid="0000:02:00.0"><gpu dev="7"/></pci>
  <pci busid="0000:03:00.0"><gpu dev="0"/></pci>
  <pci busid="0000:04:00.0"><nic><net name="a" speed="0"/><net name="b"/></nic></pci>
</cpu></system>"""

    topology = parse_nccl(text)

    assert [(gpu.dev, gpu.bus_id[5:7]) for gpu in topology.gpus] == [(0, "03"), (7, "02"), (None, "01")]
    assert [(nic.name, nic.speed_mbps) for nic in topology.nics] == [("a", None), ("b", None)]


def test_a_virtual_machine_knows_no_numa_node_and_no_affinity() -> None:
    text = """\
<system version="1"><cpu numaid="-1"><pci busid="0000:05:00.0" class="0x030200"><gpu/></pci></cpu></system>"""

    assert parse_nccl(text) == NcclTopology(
        (NcclCpu(None),), (NcclGpu(dev=None, bus_id="0000:05:00.0", location=PciLocation(None), nvlinks=()),), ()
    )


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param(PciLocation(0, ("s",)), PciLocation(0, ("s",)), PcieDistance.PIX, id="one switch"),
        pytest.param(
            PciLocation(None, ("s",)), PciLocation(None, ("s",)), PcieDistance.PIX, id="one switch, NUMA unknown"
        ),
        pytest.param(
            PciLocation(0, ("s", "t")), PciLocation(0, ("s", "u")), PcieDistance.PXB, id="below one upper switch"
        ),
        pytest.param(
            PciLocation(0, ("s",)), PciLocation(0, ("s", "u")), PcieDistance.PXB, id="a switch above the other's"
        ),
        pytest.param(
            PciLocation(0, ("s",)), PciLocation(0, ("t",)), PcieDistance.PHB, id="two switches of a NUMA node"
        ),
        pytest.param(PciLocation(0), PciLocation(0, ("t",)), PcieDistance.PHB, id="no switch above one of them"),
        pytest.param(PciLocation(0), PciLocation(1), PcieDistance.SYS, id="two NUMA nodes"),
        pytest.param(PciLocation(None), PciLocation(None), None, id="NUMA unknown"),
        pytest.param(PciLocation(0), PciLocation(None), None, id="NUMA of one unknown"),
    ],
)
def test_the_distance_follows_the_pci_tree(a: PciLocation, b: PciLocation, expected: PcieDistance | None) -> None:
    assert nccl_distance(a, b) is expected
    assert nccl_distance(b, a) is expected


def machine(inside: str = "", cpu: str = 'numaid="0"', gpu: str = "") -> str:
    return (
        f'<system version="1"><cpu {cpu}>{inside}'
        f'<pci busid="0000:01:00.0" class="0x03"><gpu {gpu}/></pci></cpu></system>'
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("hello", "line 1: not a complete XML document", id="no XML"),
        pytest.param("<system/>", 'line 1: not a <system version="1">', id="no version"),
        pytest.param("<graphs version='1'/>", 'not a <system version="1">', id="an NCCL graph"),
        pytest.param(
            "<system version='1'><gpu dev='0'/></system>",
            "<gpu> in <system>: lines of this NCCL topology were lost",
            id="no cpu",
        ),
        pytest.param(
            "<system version='1'><cpu host_hash='0x2' numaid='0'/><cpu host_hash='0x1' numaid='0'/></system>",
            "has 2 machines of a multi-node NVLink domain; keep only the <cpu> elements of one host_hash (0x1, 0x2)",
            id="several machines",
        ),
        pytest.param(machine("<pci busid='01:00.0'/>"), "busid='01:00.0' of <pci> is not a PCI bus id", id="bus id"),
        pytest.param(machine("<pci/>"), "busid=None of <pci> is not a PCI bus id", id="no bus id"),
        pytest.param(machine(cpu="numaid='x'"), "numaid='x' of <cpu> is not a number of at least -1", id="NUMA node"),
        pytest.param(
            machine(cpu="numaid='-2'"), "numaid='-2' of <cpu> is not a number of at least -1", id="negative NUMA node"
        ),
        pytest.param(
            machine(cpu="numaid='0' affinity='0-7'"), "affinity='0-7' of <cpu> is not a CPU mask", id="a list of CPUs"
        ),
        pytest.param(
            machine(cpu=f"numaid='0' affinity='{'0,' * 512}0'"), "of <cpu> is not a CPU mask", id="a mask without end"
        ),
        pytest.param(machine(gpu="sm='9'"), "sm='9' of <gpu> is not a number of at least 10", id="compute capability"),
        pytest.param(machine(gpu="dev='-1'"), "dev='-1' of <gpu> is not a number of at least 0", id="device"),
        pytest.param(
            machine("<pci busid='0000:02:00.0'><gpu><nvlink count='0'/></gpu></pci>"),
            "count='0' of <nvlink> is not a number of at least 1",
            id="no lanes",
        ),
        pytest.param(
            machine("<pci busid='0000:01:00.0'><gpu/></pci>"),
            "two GPUs of this NCCL topology have the same busid",
            id="a bus id twice",
        ),
        pytest.param(
            machine("<pci busid='0000:02:00.0'><gpu dev='1'/><gpu dev='2'/></pci>"),
            "two <gpu> with different dev in one <pci>",
            id="the lines between two GPUs are missing",
        ),
        pytest.param(
            machine("<cpu numaid='1'/>"),
            "<cpu> in <cpu>: lines of this NCCL topology were lost",
            id="two lines swapped",
        ),
        pytest.param(
            machine("<pci busid='0000:02:00.0' class='0x060400'><gpu/></pci>"),
            "class='0x060400' of <pci> is not a GPU's",
            id="a switch with a <gpu>",
        ),
        pytest.param(
            machine().replace("</system>", "<cpu numaid='0'/></system>"),
            'two <cpu> of this NCCL topology have numaid="0"',
            id="a NUMA node twice",
        ),
        pytest.param(
            machine("<pci busid='0000:02:00.0'><gpu dev='3'/></pci>", gpu="dev='3'"),
            "two GPUs of this NCCL topology have the same dev: [3, 3]",
            id="a device twice",
        ),
    ],
)
def test_invalid_nccl_documents_are_rejected(text: str, why: str) -> None:
    with pytest.raises(ParseError) as refusal:
        parse_nccl(text)

    assert why in str(refusal.value)


TAGS = st.sampled_from(["cpu", "pci", "gpu", "nvlink", "nic", "net", "c2c"])
ATTRIBUTES = st.dictionaries(
    st.sampled_from(["numaid", "affinity", "busid", "class", "dev", "sm", "target", "count", "tclass", "speed"]),
    st.sampled_from(["0", "1", "-1", "90", "0000:01:00.0", "0x03", "0x02", "0x068000", "ff,ff", "x"]),
)


def element(tag: str, attributes: dict[str, str], children: list[str]) -> str:
    written = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<{tag}{written}>{''.join(children)}</{tag}>"


TREES = st.recursive(
    st.builds(element, TAGS, ATTRIBUTES, st.just([])),
    lambda inner: st.builds(element, TAGS, ATTRIBUTES, st.lists(inner, max_size=3)),
    max_leaves=8,
)


@given(st.text() | TREES.map(lambda tree: f'<system version="1">{tree}</system>') | TREES.map(machine))
def test_any_text_is_a_topology_or_a_parse_error(text: str) -> None:
    try:
        topology = parse_nccl(text)
    except ParseError:
        return

    assert len({gpu.bus_id for gpu in topology.gpus}) == len(topology.gpus) > 0
