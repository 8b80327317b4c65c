"""hwloc's XML."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.errors import ParseError
from agent.sources.lstopo import LstopoGpu, LstopoNic, LstopoNvlink, LstopoTopology, parse_lstopo
from agent.sources.nccl import NvlinkEnd


def machine(inside: str = "", distances: str = "", version: str = "3.0", nodeset: str = "0x00000003") -> str:
    return f"""\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="{version}">
  <object type="Machine" nodeset="{nodeset}" gp_index="1">
    <info name="DMIProductName" value="A Box"/>
    <info name="HostName" value="secret"/>
    {inside}
  </object>
  {distances}
</topology>"""


def gpu(number: int) -> str:
    return f"""\
<object type="PCIDev" gp_index="1{number}" pci_busid="0000:0{number}:00.0" pci_type="0302 [10de:1db8] a1 00">
  <object type="OSDev" gp_index="2{number}" name="cuda0" osdev_type="12"><info name="GPUModel" value="V100"/></object>
  <object type="OSDev" gp_index="3{number}" name="nvml{9 - number}" osdev_type="12">
    <info name="GPUModel" value="Tesla V100"/>
    <info name="NVIDIASerial" value="secret"/>
    <info name="NVIDIAUUID" value="GPU-{number}"/>
  </object>
</object>"""


def seen(number: int, numa: int | None) -> LstopoGpu:
    return LstopoGpu(
        index=9 - number, bus_id=f"0000:0{number}:00.0", product="Tesla V100", uuid=f"GPU-{number}", numa_node=numa
    )


PACKAGE = '<object type="Package" nodeset="0x00000002" gp_index="3"><object type="Bridge">{}</object></object>'
SWITCH = '<object type="PCIDev" subtype="NVSwitch" gp_index="9" pci_busid="0000:61:00.0" pci_type="0680 [10de:1ac2]"/>'
SATA = '<object type="PCIDev" gp_index="8" pci_busid="0000:00:17.0" pci_type="0106 [8086:a182]"/>'


def test_gpus_are_of_the_numa_node_of_the_closest_object_that_has_one() -> None:
    text = machine(PACKAGE.format(gpu(1)) + gpu(2) + SATA)

    assert parse_lstopo(text) == LstopoTopology("A Box", (seen(2, None), seen(1, 1)), (), None)


def test_serial_numbers_and_host_names_are_not_in_the_result() -> None:
    assert "secret" not in repr(parse_lstopo(machine(gpu(1))))


@pytest.mark.parametrize(
    ("nodeset", "expected"),
    [
        ("0x00000001", 0),
        ("0x00000100,,0x0", 72),
        ("0x00000003", None),
        ("0x0", None),
        ("0xf...f", None),
        (",".join(["0x1"] * 65), None),
    ],
)
def test_a_numa_node_is_known_where_the_set_has_one_member(nodeset: str, expected: int | None) -> None:
    assert parse_lstopo(machine(gpu(1), nodeset=nodeset)).gpus == (seen(1, expected),)


def test_without_nvml_a_gpu_has_only_its_bus_id() -> None:
    text = machine('<object type="PCIDev" pci_busid="0000:05:00.0" pci_type="0300 [10de:0000]"/>')

    assert parse_lstopo(text).gpus == (LstopoGpu(index=None, bus_id="0000:05:00.0"),)


def test_gpus_without_an_index_come_last() -> None:
    text = machine('<object type="PCIDev" pci_busid="0000:00:05.0" pci_type="0300 [10de:0000]"/>' + gpu(1))

    assert [gpu.index for gpu in parse_lstopo(text).gpus] == [8, None]


def test_the_machine_may_be_named_by_its_platform() -> None:
    text = machine().replace("DMIProductName", "PlatformModel")

    assert parse_lstopo(text).machine == "A Box"


@pytest.mark.parametrize(
    ("version", "osdev_type", "rdma"),
    [
        ("2.0", "3", True),
        ("2.0", "2", False),
        ("3.0", "48", True),
        ("3.0", "32", True),
        ("3.0", "3", False),
        ("", "3", True),
    ],
)
def test_rdma_devices_are_recognised_in_each_format(version: str, osdev_type: str, rdma: bool) -> None:
    device = (
        '<object type="PCIDev" pci_busid="0000:19:00.0" pci_type="0207 [15b3:1013]">'
        f'<object type="OSDev" name="mlx5_0" osdev_type="{osdev_type}"/></object>'
    )

    nics = parse_lstopo(machine(PACKAGE.format(device), version=version)).nics

    assert nics == ((LstopoNic(name="mlx5_0", bus_id="0000:19:00.0", numa_node=1),) if rdma else ())


def test_a_numa_node_that_the_file_does_not_have_is_unknown() -> None:
    gpu = '<object type="PCIDev" pci_busid="0000:19:00.0" pci_type="0302 [10de:20b0]"/>'
    nodes = '<object type="NUMANode" os_index="0"/><object type="NUMANode" os_index="1"/>'

    found = parse_lstopo(
        f'<topology><object type="Machine">{nodes}'
        f'<object type="Bridge" nodeset="0x10">{gpu}</object></object></topology>'
    )

    assert [gpu.numa_node for gpu in found.gpus] == [None]
    assert "NUMA node 4, which the file does not have" in found.problems[0].why


@pytest.mark.parametrize(("busid", "twice"), [("0000:19:00.0", "PCI bus id"), ("0000:1a:00.0", "NVML index")])
def test_a_gpu_that_is_listed_twice_is_refused(busid: str, twice: str) -> None:
    gpus = "".join(
        f'<object type="PCIDev" pci_busid="{each}" pci_type="0302 [10de:20b0]">'
        '<object type="OSDev" name="nvml0"/></object>'
        for each in ("0000:19:00.0", busid)
    )

    with pytest.raises(ParseError, match=twice):
        parse_lstopo(f'<topology version="2.0"><object type="Machine">{gpus}</object></topology>')


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ('pci_busid="0000:19:00.0" pci_type="0302 [10d:20b0]"', "nvml0 is below an object that is not an NVIDIA GPU"),
        ('pci_busid="0000:9:00.0" pci_type="0302 [10de:20b0]"', "pci_busid='0000:9:00.0' is not a PCI bus id"),
    ],
)
def test_a_gpu_that_lost_a_digit_does_not_vanish(device: str, why: str) -> None:
    inside = f'<object type="PCIDev" {device}><object type="OSDev" name="nvml0"/></object>'

    with pytest.raises(ParseError, match=re.escape(why)):
        parse_lstopo(f'<topology version="2.0"><object type="Machine">{inside}</object></topology>')


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        ('<object pci_busid="0000:19:00.0" pci_type="0302 [10de:20b0]"/>', "an <object> without type"),
        ('<object type="Package" nodeset="0x4"/>', "nodeset='0x4' is not within that of the object around it"),
        ('</object><object type="Bridge">', "an <object> outside of the machine"),
        ('<info><object type="PCIDev"/></info>', "an <object> below <info>"),
        ('<object type="OSDev"><object type="Core"/></object>', "an <object> of type 'Core' below one of type 'OSDev'"),
    ],
)
def test_misplaced_objects_are_refused(inside: str, why: str) -> None:
    with pytest.raises(ParseError, match=re.escape(why)):
        parse_lstopo(f'<topology version="2.0"><object type="Machine" nodeset="0x3">{inside}</object></topology>')


def test_nvlinks_lead_from_gpus_to_gpus_switches_and_cpus() -> None:
    text = machine(
        PACKAGE.format(gpu(1) + gpu(2) + SWITCH),
        '<distances2 name="NUMALatency" type="NUMANode" indexing="os"/>'
        '<distances2hetero nbobjs="4" name="NVLinkBandwidth"><indexes>OSDev:31 OSDev:32 </indexes>'
        "<indexes>PCIDev:9 Package:3</indexes><u64values>1000000 50000 0 20000 50000 1000000 </u64values>"
        "<u64values>25000 0 0 25000 0 0 20000 0 0 0</u64values></distances2hetero>",
    )

    assert parse_lstopo(text).nvlinks == (
        LstopoNvlink("0000:01:00.0", NvlinkEnd.GPU, "0000:02:00.0", 50000),
        LstopoNvlink("0000:01:00.0", NvlinkEnd.CPU, None, 20000),
        LstopoNvlink("0000:02:00.0", NvlinkEnd.GPU, "0000:01:00.0", 50000),
        LstopoNvlink("0000:02:00.0", NvlinkEnd.NVSWITCH, "0000:61:00.0", 25000),
    )


def test_a_matrix_of_gpus_alone_names_their_type_once() -> None:
    text = machine(
        gpu(1) + gpu(2),
        '<distances2 type="OSDev" name="NVLinkBandwidth" indexing="gp"><indexes>31 32</indexes>'
        "<u64values>0 50000 0 0</u64values></distances2>",
    )

    assert parse_lstopo(text).nvlinks == (LstopoNvlink("0000:01:00.0", NvlinkEnd.GPU, "0000:02:00.0", 50000),)


def test_a_matrix_without_contents_leaves_the_nvlinks_unknown() -> None:
    assert parse_lstopo(machine(gpu(1) + gpu(2), '<distances2 name="NVLinkBandwidth" type="OSDev"/>')).nvlinks is None


def matrix(indexes: str, values: str) -> str:
    return machine(
        gpu(1),
        f'<distances2hetero name="NVLinkBandwidth"><indexes>{indexes}</indexes><u64values>{values}</u64values>'
        "</distances2hetero>",
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("<topology/>", "line 1: not a <topology> of `lstopo --of xml`", id="no machine"),
        pytest.param("<system><object/></system>", "not a <topology>", id="other XML"),
        pytest.param(
            matrix("OSDev:99", "0"), "names 'OSDev:99', which is not a GPU, NVSwitch or CPU", id="an unknown object"
        ),
        pytest.param(matrix("OSDev:31", "0 0"), "the NVLinkBandwidth matrix is not square", id="not square"),
        pytest.param(matrix("OSDev:31", "x"), "the NVLinkBandwidth matrix is not square", id="no number"),
    ],
)
def test_invalid_hwloc_documents_are_rejected(text: str, why: str) -> None:
    with pytest.raises(ParseError) as refusal:
        parse_lstopo(text)

    assert why in str(refusal.value)


PIECES = st.sampled_from([gpu(1), gpu(2), SWITCH, SATA, PACKAGE.format(gpu(3)), "<object/>", "<info/>"])


@given(st.text() | st.lists(PIECES).map("".join).map(machine), st.text(alphabet="OSDev:31 2<>"))
def test_any_text_is_a_topology_or_a_parse_error(text: str, indexes: str) -> None:
    for each in (text, matrix(indexes, indexes)):
        try:
            topology = parse_lstopo(each)
        except ParseError:
            continue

        assert {link.gpu for link in topology.nvlinks or ()} <= {gpu.bus_id for gpu in topology.gpus}
