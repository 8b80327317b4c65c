"""``nvidia-smi -q -x`` and ``nvidia-smi -q``: the same machine in both, newer drivers and broken machines."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.errors import ParseError
from agent.sources.smi.query import QueriedGpu, QueriedMig, SmiQuery, parse_query
from agent.sources.smi.unreachable import UnreachableGpu
from gputopo.model import FabricState, GpuFabric, Pcie

UUID = "GPU-11111111-2222-3333-4444-5555555555aa"
CLUSTER = "11111111-2222-3333-4444-555555555501"

AS_XML = f"""\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
	<timestamp>Fri Aug 21 08:54:01 2026</timestamp>
	<driver_version>580.105.08</driver_version>
	<cuda_version>13.0</cuda_version>
	<attached_gpus>1</attached_gpus>
	<gpu id="00000000:53:00.0">
		<product_name>NVIDIA H100 80GB HBM3</product_name>
		<product_architecture>Hopper</product_architecture>
		<mig_mode>
			<current_mig>Enabled</current_mig>
			<pending_mig>Enabled</pending_mig>
		</mig_mode>
		<mig_devices>
			<mig_device>
				<index>0</index>
				<gpu_instance_id>2</gpu_instance_id>
				<compute_instance_id>0</compute_instance_id>
				<fb_memory_usage><total>40448 MiB</total></fb_memory_usage>
			</mig_device>
		</mig_devices>
		<serial>1650000000001</serial>
		<uuid>{UUID}</uuid>
		<minor_number>0</minor_number>
		<gpu_virtualization_mode><virtualization_mode>Pass-Through</virtualization_mode></gpu_virtualization_mode>
		<pci>
			<pci_bus_id>00000000:53:00.0</pci_bus_id>
			<pci_gpu_link_info>
				<pcie_gen>
					<max_link_gen>5</max_link_gen>
					<current_link_gen>1</current_link_gen>
					<max_device_link_gen>6</max_device_link_gen>
				</pcie_gen>
				<link_widths>
					<max_link_width>16x</max_link_width>
					<current_link_width>8x</current_link_width>
				</link_widths>
			</pci_gpu_link_info>
		</pci>
		<fb_memory_usage><total>81559 MiB</total><reserved>480 MiB</reserved></fb_memory_usage>
		<bar1_memory_usage><total>131072 MiB</total></bar1_memory_usage>
		<fabric>
			<state>Completed</state>
			<status>Success</status>
			<cliqueId>2</cliqueId>
			<clusterUuid>{CLUSTER}</clusterUuid>
			<health>
				<summary>Unhealthy</summary>
				<bandwidth>Degraded</bandwidth>
				<route_recovery_in_progress>False</route_recovery_in_progress>
				<route_unhealthy>True</route_unhealthy>
				<access_timeout_recovery>N/A</access_timeout_recovery>
				<incorrect_configuration>None</incorrect_configuration>
			</health>
		</fabric>
		<power_smoothing>Insufficient Permissions</power_smoothing>
	</gpu>
</nvidia_smi_log>
"""

AS_TEXT = f"""\

==============NVSMI LOG==============

Timestamp                                 : Fri Aug 21 08:54:01 2026
Driver Version                            : 580.105.08
CUDA Version                              : 13.0

Attached GPUs                             : 1
GPU 00000000:53:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Product Architecture                  : Hopper
    MIG Mode
        Current                           : Enabled
        Pending                           : Enabled
    MIG Device
        Index                             : 0
        GPU Instance ID                   : 2
        Compute Instance ID               : 0
        FB Memory Usage
            Total                         : 40448 MiB
    Serial Number                         : 1650000000001
    GPU UUID                              : {UUID}
    Minor Number                          : 0
    GPU Virtualization Mode
        Virtualization Mode               : Pass-Through
    PCI
        Bus Id                            : 00000000:53:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 1
                Device Max                : 6
            Link Width
                Max                       : 16x
                Current                   : 8x
    FB Memory Usage
        Total                             : 81559 MiB
        Reserved                          : 480 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 2
        ClusterUUID                       : {CLUSTER}
        Health
            Bandwidth                     : Degraded
            Route Recovery in progress    : False
            Route Unhealthy               : True
            Access Timeout Recovery       : N/A
            Incorrect Configuration       : None
    Power Smoothing                       : Insufficient Permissions
"""

H100 = QueriedGpu(
    index=0,
    bus_id="0000:53:00.0",
    uuid=UUID,
    minor=0,
    product="NVIDIA H100 80GB HBM3",
    architecture="hopper",
    memory_mib=81559,
    pcie=Pcie(generation=1, width=8, max_generation=5, max_width=16),
    pcie_device_max_generation=6,
    mig_enabled=True,
    mig_devices=(QueriedMig(0, 2, 0, 40448),),
    fabric=GpuFabric(FabricState.COMPLETED, cluster_uuid=CLUSTER, clique=2, unhealthy=("bandwidth", "route unhealthy")),
    virtualization="Pass-Through",
)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(AS_XML, id="XML"),
        pytest.param(AS_XML.split("\n", 2)[2], id="XML without its first lines"),
        pytest.param(AS_TEXT, id="text"),
        pytest.param(AS_TEXT.replace("\n", "\n    "), id="indented text"),
        pytest.param(AS_TEXT.replace("Driver V", "KMD V").replace("CUDA V", "CUDA UMD V"), id="text, driver 610"),
        pytest.param(
            AS_XML.replace("driver_version>", "kmd_version>").replace("cuda_version>", "cuda_umd_version>"),
            id="XML, driver 610",
        ),
    ],
)
def test_xml_and_text_say_the_same(text: str) -> None:
    assert parse_query(text) == SmiQuery("580.105.08", "13.0", 1, (H100,))


@pytest.mark.parametrize("text", [AS_XML, AS_TEXT], ids=["XML", "text"])
def test_serial_numbers_are_not_in_the_result(text: str) -> None:
    assert "1650000000001" in text
    assert "1650000000001" not in repr(parse_query(text))


def gpu(inside: str) -> QueriedGpu:
    """Parse a GPU with these elements alone."""
    query = parse_query(f'<nvidia_smi_log><gpu id="00000000:01:00.0">{inside}</gpu></nvidia_smi_log>')
    return msgspec.structs.replace(query.gpus[0], missing=())


def test_facts_that_every_driver_prints_are_missing_in_a_cut_text() -> None:
    cut = AS_TEXT[: AS_TEXT.rindex("FB Memory Usage")]

    assert parse_query(AS_TEXT).gpus[-1].missing == ()
    assert parse_query(cut).gpus[-1].missing == ("memory",)


def test_a_second_fact_on_the_line_of_a_product_is_no_part_of_its_name() -> None:
    found = gpu("<product_name>NVIDIA L4 Product Architecture : Ada 2</product_name>")

    assert found.product is None
    assert [fact for fact, _ in found.damaged] == ["product"]


def bare(**known: object) -> QueriedGpu:
    return QueriedGpu(**{"index": 0, "bus_id": "0000:01:00.0", **known})  # type: ignore[arg-type]


def fabric(**known: str) -> str:
    return "<fabric>" + "".join(f"<{name}>{text}</{name}>" for name, text in known.items()) + "</fabric>"


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        pytest.param("", bare(), id="nothing"),
        pytest.param("<uuid>N/A</uuid><fb_memory_usage><total>N/A</total></fb_memory_usage>", bare(), id="N/A"),
        pytest.param(
            "<product_architecture>Ada Lovelace</product_architecture>",
            bare(architecture="ada-lovelace"),
            id="two words",
        ),
        pytest.param("<mig_mode><current_mig>Disabled</current_mig></mig_mode>", bare(mig_enabled=False), id="MIG off"),
        pytest.param(
            "<mig_mode><current_mig>Enabled</current_mig></mig_mode>", bare(mig_enabled=True), id="MIG without devices"
        ),
        pytest.param(
            "<mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices><mig_device/></mig_devices>",
            bare(mig_enabled=True),
            id="a MIG device without a number",
        ),
        pytest.param(fabric(state="N/A", status="N/A"), bare(), id="no fabric"),
        pytest.param(
            fabric(state="In Progress", status="N/A"), bare(fabric=GpuFabric(FabricState.IN_PROGRESS)), id="registering"
        ),
        pytest.param(
            fabric(
                state="Completed", status="Success", clusterUuid="00000000-0000-0000-0000-000000000000", cliqueId="0"
            ),
            bare(fabric=GpuFabric(FabricState.COMPLETED, clique=0)),
            id="registered, no multi-node fabric",
        ),
        pytest.param(
            fabric(state="Not Started", status="Insufficient Resources"),
            bare(fabric=GpuFabric(FabricState.NOT_STARTED, status="Insufficient Resources")),
            id="a fabric that failed",
        ),
        pytest.param(
            fabric(
                state="Completed",
                status="Success",
                health="<bandwidth>Full</bandwidth><incorrect_configuration>No Partition</incorrect_configuration>",
            ),
            bare(fabric=GpuFabric(FabricState.COMPLETED, unhealthy=("incorrect configuration",))),
            id="a fabric configured wrongly",
        ),
        pytest.param(
            "<minor_number>GPU is lost</minor_number><fb_memory_usage><total>GPU is lost</total></fb_memory_usage>"
            "<product_name>[Unknown Error]</product_name>",
            bare(
                unreadable=(
                    ("minor", "GPU is lost"),
                    ("product", "[Unknown Error]"),
                    ("memory", "GPU is lost"),
                )
            ),
            id="a lost GPU",
        ),
        pytest.param(
            "<minor_number>-1</minor_number><uuid>GPU-1</uuid><product_architecture>Unknown</product_architecture>"
            "<fb_memory_usage><total>0 MiB</total></fb_memory_usage>"
            "<pci><pci_bus_id>?</pci_bus_id><pci_gpu_link_info><link_widths><max_link_width>wide</max_link_width>"
            "</link_widths></pci_gpu_link_info></pci>",
            bare(
                unreadable=(
                    ("bus id", "?"),
                    ("uuid", "GPU-1"),
                    ("minor", "-1"),
                    ("architecture", "Unknown"),
                    ("memory", "0 MiB"),
                    ("maximal PCIe width", "wide"),
                )
            ),
            id="unknown words",
        ),
        pytest.param(
            "<fb_memory_usage><total>16 GiB</total></fb_memory_usage>",
            bare(unreadable=(("memory", "16 GiB"),)),
            id="another unit",
        ),
    ],
)
def test_an_unreadable_value_is_unknown_with_its_text(inside: str, expected: QueriedGpu) -> None:
    assert gpu(inside) == expected


@pytest.mark.parametrize(
    ("parts", "memory"),
    [
        pytest.param("<reserved>571 MiB</reserved><used>19 MiB</used><free>40370 MiB</free>", 40960, id="three parts"),
        pytest.param("<used>600 MiB</used><free>40360 MiB</free>", 40960, id="reserved memory counts as used"),
        pytest.param("<reserved>N/A</reserved><used>N/A</used><free>N/A</free>", 40960, id="no parts"),
        pytest.param("<reserved>571 MiB</reserved><used>19 MiB</used><free>4370 MiB</free>", None, id="a lost digit"),
    ],
)
def test_a_size_that_is_not_the_sum_of_its_parts_is_unknown(parts: str, memory: int | None) -> None:
    found = gpu(f"<fb_memory_usage><total>40960 MiB</total>{parts}</fb_memory_usage>")

    assert found.memory_mib == memory
    assert [fact for fact, _ in found.damaged] == (["memory"] if memory is None else [])


def test_a_uuid_that_lost_a_digit_is_damage_and_an_error_is_not() -> None:
    short = "GPU-27b94a00-ed54-5c24-b1fd-1054085de32"

    assert gpu(f"<uuid>{short}</uuid>").damaged == (("uuid", short),)
    assert gpu("<uuid>Unknown Error</uuid>").damaged == ()


def test_a_repeated_word_is_no_architecture() -> None:
    assert gpu("<product_architecture>Ampere Ampere</product_architecture>").architecture is None


@pytest.mark.parametrize(
    "said",
    [
        "Function Not Found",
        "GPU is lost",
        "GPU requires reset",
        "GPU requires restart",
        "Insufficient Permissions",
        "Not Found",
        "Timeout",
        "Unknown Error",
        "[Unknown Error]",
    ],
)
def test_an_error_is_never_taken_for_a_name(said: str) -> None:
    assert gpu(f"<product_name>{said}</product_name>") == bare(unreadable=(("product", said),))


@pytest.mark.parametrize(
    "said",
    ["", "N/A", "[N/A]", "Not Supported", "[Not Supported]", "Requested functionality has been deprecated"],
)
def test_a_missing_value_is_unknown_without_text(said: str) -> None:
    assert gpu(f"<product_name>{said}</product_name>") == bare()


@pytest.mark.parametrize(
    ("element", "said", "expected"),
    [
        ("bandwidth", "Degraded", ("bandwidth",)),
        ("bandwidth", "Full", ()),
        ("route_recovery_in_progress", "True", ("route recovery in progress",)),
        ("route_unhealthy", "True", ("route unhealthy",)),
        ("access_timeout_recovery", "True", ("access timeout recovery",)),
        ("access_timeout_recovery", "False", ()),
        ("incorrect_configuration", "Insufficient Nvlinks", ("incorrect configuration",)),
        ("incorrect_configuration", "None", ()),
        ("incorrect_configuration", "N/A", ()),
        ("incorrect_configuration", "GPU is lost", ()),
        ("summary", "Unhealthy", ()),
        ("partition_assigned", "False", ()),
    ],
)
def test_the_health_of_a_fabric_names_its_faults(element: str, said: str, expected: tuple[str, ...]) -> None:
    found = gpu(fabric(state="Completed", status="Success", health=f"<{element}>{said}</{element}>")).fabric

    assert found == GpuFabric(FabricState.COMPLETED, unhealthy=expected)


def test_every_fact_has_a_name_when_it_cannot_be_read() -> None:
    text = AS_XML
    for value in (
        "81559 MiB",
        "5",
        "1",
        "6",
        "16x",
        "8x",
        "Hopper",
        H100.product,
        UUID,
        "0",
        "Pass-Through",
        "Completed",
    ):
        text = text.replace(f">{value}<", ">GPU is lost<")

    query = parse_query(text)

    assert dict(query.gpus[0].unreadable) == dict.fromkeys(
        (
            "uuid",
            "minor",
            "product",
            "architecture",
            "memory",
            "PCIe generation",
            "PCIe width",
            "maximal PCIe generation",
            "maximal PCIe width",
            "the GPU's PCIe generation",
            "fabric state",
            "virtualization",
        ),
        "GPU is lost",
    )


def test_gpus_have_no_index_where_only_some_are_described() -> None:
    text = '<nvidia_smi_log><attached_gpus>8</attached_gpus><gpu id="00000000:01:00.0"/></nvidia_smi_log>'

    some = QueriedGpu(index=None, bus_id="0000:01:00.0", missing=("uuid", "memory"))
    assert parse_query(text) == SmiQuery(None, None, 8, (some,))


def test_an_invalid_driver_version_is_unknown() -> None:
    text = "<nvidia_smi_log><driver_version>Driver Not Loaded</driver_version></nvidia_smi_log>"

    assert parse_query(text) == SmiQuery(None, None, None, ())


@pytest.mark.parametrize("text", [AS_XML, AS_TEXT], ids=["XML", "text"])
def test_a_gpu_that_cannot_be_reached_does_not_hide_the_others(text: str) -> None:
    query = parse_query("Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error\n" + text)

    assert query == SmiQuery("580.105.08", "13.0", 1, (H100,), (UnreachableGpu(1, "0000:34:00.0", "Unknown Error"),))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", "no GPU found: the text is empty", id="empty"),
        pytest.param("\nhello : you\n", "no GPU found: the text begins with 'hello : you'", id="other text"),
        pytest.param(AS_XML[:900], "not a complete XML document", id="cut XML"),
        pytest.param("GPU 0000:01:00.0\n" * 65, "65 GPUs found", id="more GPUs than a machine has"),
        pytest.param('<?xml version="1.0"?><system/>', "line 1: <system> is not the <nvidia_smi_log>", id="other XML"),
    ],
)
def test_other_text_is_rejected(text: str, why: str) -> None:
    with pytest.raises(ParseError) as refusal:
        parse_query(text)

    assert why in str(refusal.value)


LINES = st.lists(st.sampled_from([*AS_TEXT.splitlines(), *AS_XML.splitlines(), "Fabric", "  :  ", "GPU 0000:01:00.0"]))


@given(st.text() | LINES.map("\n".join) | LINES.map(lambda found: "<nvidia_smi_log>" + "".join(found)))
def test_any_text_is_a_query_or_a_parse_error(text: str) -> None:
    try:
        query = parse_query(text)
    except ParseError:
        return

    assert [gpu.index for gpu in query.gpus] in (list(range(len(query.gpus))), [None] * len(query.gpus))
