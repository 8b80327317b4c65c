"""The input of `--from`: each kind is recognised, and other input gets advice."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent.recording.bundled import bundled_directory
from agent.recording.inputs import InputError, decode_text, read_observation
from gputopo.labels import encode_topology
from gputopo.model import FactGroup, Gpu, Link, NodeTopology, Nvlink

TOPO = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-15\t0\nGPU1\tNV4\t X \t0-15\t0\n"
UUID = "GPU-00000000-0000-0000-0000-00000000000a"
LISTING = f"GPU 0: NVIDIA A40 (UUID: {UUID})\nGPU 1: NVIDIA A40 (UUID: {UUID[:-1]}b)\n"
QUERY = (
    '<?xml version="1.0" ?>\n<nvidia_smi_log><gpu id="00000000:00:00.0">'
    "<product_name>L4</product_name></gpu></nvidia_smi_log>"
)
NCCL = '<system version="1"><cpu numaid="0"><pci busid="0000:03:00.0" class="0x030200"/></cpu></system>'
TOPOLOGY = NodeTopology(gpus=(Gpu(index=0), Gpu(index=1)), nvlink=Nvlink(links=(Link(a=0, b=1, lanes=4, gbps=112.5),)))


def node(name: str = "n1", **metadata: object) -> dict[str, object]:
    facts = encode_topology(TOPOLOGY)
    known = {"name": name, "labels": facts.labels, "annotations": facts.annotations, "uid": "u"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": known | metadata, "spec": {}, "status": {}}


def products(text: str) -> list[str | None]:
    return [gpu.product for gpu in read_observation(text).topology.gpus]


def test_a_pasted_matrix() -> None:
    assert [island.gpus for island in read_observation(TOPO).topology.islands or ()] == [(0, 1)]


def test_an_error_of_nvidia_smi_gets_its_advice() -> None:
    seen = read_observation(
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
    )

    assert seen.topology.gpus == ()
    assert "different versions" in seen.advice


def test_a_matrix_and_a_listing_in_one_paste_are_combined() -> None:
    assert products(f"$ nvidia-smi -L\n{LISTING}$ nvidia-smi topo -m\n{TOPO}") == ["NVIDIA A40", "NVIDIA A40"]


def matrix(gpus: int, cell: str, product: str = "") -> str:
    """Return a paste in which every pair shows the same cell."""
    listing = [f"GPU {i}: {product} (UUID: {UUID[:-2]}{i:02x})" for i in range(gpus)] if product else []
    header = "\t" + "\t".join(f"GPU{i}" for i in range(gpus)) + "\tCPU Affinity\tNUMA Affinity"
    rows = ["\t".join([f"GPU{i}", *(" X " if i == j else cell for j in range(gpus)), "0-15", "0"]) for i in range(gpus)]
    return "\n".join([*listing, header, *rows, "", "Legend:", ""])


@pytest.mark.parametrize(
    ("gpus", "cell", "product"),
    [
        (8, "NV1", "NVIDIA H100 80GB HBM3"),
        (8, "NV8", "NVIDIA H200"),
        (4, "NV1", "NVIDIA GB200"),
        (8, "NV2", "NVIDIA A100-SXM4-80GB"),
        (2, "NV1", "NVIDIA A100 80GB PCIe"),
        (16, "NV1", ""),
        (5, "NV2", "NVIDIA H800"),
    ],
)
def test_a_digit_that_every_nvlink_cell_lost_is_reported(gpus: int, cell: str, product: str) -> None:
    topology = read_observation(matrix(gpus, cell, product)).topology

    assert topology.uncertain == (FactGroup.NVLINK,)
    assert [each.why for each in topology.problems if "a digit may be lost" in each.why]
    assert not {"gputopo.io/island-bandwidth", "gputopo.io/degraded"} & set(encode_topology(topology).labels)


@pytest.mark.parametrize(
    ("gpus", "cell", "product"),
    [
        (8, "NV18", "NVIDIA H100 80GB HBM3"),
        (8, "NV8", "NVIDIA H800"),
        (8, "NV8", "NVIDIA A800-SXM4-80GB"),
        (4, "NV6", "NVIDIA GH200 480GB"),
        (4, "NV4", "NVIDIA A100-SXM4-40GB"),
        (4, "NV1", "Tesla P100-SXM2-16GB"),
        (4, "NV1", ""),
        (16, "NV6", "Tesla V100-SXM3-32GB"),
        (2, "NV4", "NVIDIA A100 80GB PCIe"),
        (2, "NV12", "NVIDIA H100 NVL"),
        (2, "NV2", "Quadro RTX 8000"),
    ],
)
def test_equal_cells_of_real_machines_are_accepted(gpus: int, cell: str, product: str) -> None:
    assert read_observation(matrix(gpus, cell, product)).topology.uncertain == ()


LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
"""
NV_LINE = "  NV#  = Connection traversing a bonded set of # NVLinks\n"


@pytest.mark.parametrize("product", ["NVIDIA H100 80GB HBM3", ""])
@pytest.mark.parametrize(
    "legend", ["", "\nLegend:\n", LEGEND[: LEGEND.index("  PXB")], LEGEND[: LEGEND.index("  PIX")]]
)
def test_a_matrix_that_may_be_of_topo_mp_leaves_nvlinks_uncertain(product: str, legend: str) -> None:
    rows = matrix(8, "PXB", product).removesuffix("\nLegend:\n")

    topology = read_observation(rows + legend).topology

    assert topology.uncertain == (FactGroup.NVLINK,)
    assert any("it may be of `topo -mp`" in each.why for each in topology.problems)
    assert not {"gputopo.io/islands", "gputopo.io/interconnect"} & set(encode_topology(topology).labels)


@pytest.mark.parametrize(
    "product",
    ["NVIDIA L4", "NVIDIA L40S", "Tesla T4", "NVIDIA A10", "NVIDIA GeForce RTX 4090", "NVIDIA RTX 6000 Ada Generation"],
)
def test_a_matrix_without_legend_suffices_where_the_products_have_no_nvlink(product: str) -> None:
    rows = matrix(4, "PXB", product).removesuffix("\nLegend:\n")

    topology = read_observation(rows).topology

    assert topology.uncertain == ()
    assert encode_topology(topology).labels["gputopo.io/islands"] == "1-1-1-1"


@pytest.mark.parametrize("product", ["NVIDIA A11", "NVIDIA A10-SXM4-80GB", "NVIDIA RTX A6000", "GeForce RTX 3090"])
def test_a_product_that_may_have_nvlink_needs_the_legend(product: str) -> None:
    rows = matrix(4, "PXB", product).removesuffix("\nLegend:\n")

    assert read_observation(rows).topology.uncertain == (FactGroup.NVLINK,)


@pytest.mark.parametrize(
    ("before", "after"),
    [("", LEGEND + NV_LINE), ("$ nvidia-smi topo -m\n", ""), ("$ nvidia-smi topo -m\n", LEGEND[:200])],
)
def test_a_matrix_that_would_show_nvlinks_shows_that_there_are_none(before: str, after: str) -> None:
    rows = matrix(8, "PXB", "NVIDIA RTX A4000").removesuffix("\nLegend:\n")

    topology = read_observation(before + rows + after).topology

    assert topology.uncertain == ()
    assert encode_topology(topology).labels["gputopo.io/islands"] == "1-1-1-1-1-1-1-1"


@pytest.mark.parametrize(
    "failure", ["Failed to initialize NVML: Driver/library version mismatch", "No devices were found"]
)
def test_a_failed_machine_before_the_matrix_of_another_is_refused(failure: str) -> None:
    with pytest.raises(InputError, match="comes before the matrix"):
        read_observation(f"{failure}\n{matrix(2, 'PHB')}{LEGEND}{NV_LINE}")


GPU_QUERY = """\
==============NVSMI LOG==============

Attached GPUs                             : 1
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA L4
    GPU Reset Status
        Reset Required                    : No
    PCI
        GPU Link Info
            Link Width
                Max                       : 16x
                Current                   : 16x
    FB Memory Usage
        Total                             : 23034 MiB
        Reserved                          : 565 MiB
        Used                              : 1 MiB
        Free                              : 22469 MiB
    Performance State                     : P0
    Fabric
        State                             : Completed
        Status                            : Success
    Remapped Rows
        Remapping Failure Occurred        : No
"""


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("", "", []),
        ("Required                    : No", "Required                    : Yes", ["gpu0"]),
        (
            "    FB Memory Usage",
            "    GPU Recovery Action               : Drain and Reset\n    FB Memory Usage",
            ["gpu0"],
        ),
        ("    FB Memory Usage", "    GPU Recovery Action               : None\n    FB Memory Usage", []),
        ("Occurred        : No", "Occurred        : Yes", ["gpu0.memory"]),
        ("Current                   : 16x", "Current                   : 8x", ["gpu0.pcie"]),
        (": Success", ": Not Supported", ["gpu0.fabric"]),
        ("====\n", "====\nUnable to determine the device handle for GPU0000:3B:00.0: GPU is lost.\n", ["gpu0"]),
    ],
)
def test_faults_in_the_text_of_a_query_are_degraded(old: str, new: str, found: list[str]) -> None:
    topology = read_observation(GPU_QUERY.replace(old, new, 1)).topology

    assert [each.what for each in topology.degraded] == found


def test_an_unreachable_gpu_that_a_query_does_not_describe_leaves_the_gpus_uncertain() -> None:
    line = "Unable to determine the device handle for GPU0000:4C:00.0: GPU is lost."

    topology = read_observation(f"{line}\n{GPU_QUERY}").topology

    assert FactGroup.GPUS in topology.uncertain
    (fault,) = topology.degraded
    assert (fault.what, fault.why) == ("0000:4c:00.0", "lost: nvidia-smi cannot reach this GPU (GPU is lost)")


def test_a_gpu_without_known_links_to_others_is_not_taken_for_one_without_links() -> None:
    listing = "".join(f"GPU {index}: NVIDIA A100-SXM-64GB (UUID: {UUID[:-2]}{index:02x})\n" for index in range(4))
    cut = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\nGPU0\t X \tNV4\tNV4"

    assert read_observation(listing + cut).topology.degraded == ()


@pytest.mark.parametrize("part", ["Free                              : 22469 MiB", ""])
def test_a_total_memory_that_is_less_than_a_part_of_it_is_not_used(part: str) -> None:
    damaged = GPU_QUERY.replace("23034", "19").replace("        Used                              : 1 MiB\n", "")
    damaged = damaged.replace("Free                              : 22469 MiB", part)

    topology = read_observation(damaged).topology

    assert (topology.gpus[0].memory_mib, topology.uncertain) == (None, (FactGroup.PRODUCTS,))


def test_an_idle_gpu_in_a_query_may_have_a_slow_pcie_link() -> None:
    text = GPU_QUERY.replace("Current                   : 16x", "Current                   : 8x").replace(
        ": P0", ": P8"
    )

    assert read_observation(text).topology.degraded == ()


def test_a_list_alone() -> None:
    assert products(LISTING) == ["NVIDIA A40", "NVIDIA A40"]


LINKS = "".join(
    f"GPU {i}: NVIDIA A40 (UUID: {UUID[:-1]}{letter})\n\t Link 0: 14.062 GB/s\n" for i, letter in enumerate("ab")
)


@pytest.mark.parametrize("parts", [(LISTING, TOPO, LINKS), (LINKS, LISTING, TOPO), (TOPO, LINKS)])
def test_a_bug_report_of_several_commands_has_the_product_and_the_rate_of_links(parts: tuple[str, ...]) -> None:
    topology = read_observation("\n".join(parts)).topology

    assert [gpu.product for gpu in topology.gpus] == ["NVIDIA A40", "NVIDIA A40"]
    assert [link.gbps for link in topology.nvlink.links] == [4 * 28.124] if topology.nvlink else False
    assert topology.uncertain == ()


def bug_report(cells: str, active: tuple[int, ...], product: str = "NVIDIA H100 80GB HBM3", ports: int = 18) -> str:
    """Return ``topo -m`` with the cells of the last GPU's row and column, and ``nvlink -s`` with the active links."""
    last = len(active) - 1
    names = [f"GPU{index}" for index in range(last + 1)]
    rows = [
        [name, *("X" if a == b else cells if last in (a, b) else "NV6" for b in range(last + 1)), "0-31", "0"]
        for a, name in enumerate(names)
    ]
    matrix = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity"]), *map("\t".join, rows)]
    states = [
        line
        for index, up in enumerate(active)
        for line in (
            f"GPU {index}: {product} (UUID: GPU-0000000{index}-0000-0000-0000-000000000000)",
            *(f"\t Link {link}: {'26.562 GB/s' if link < up else '<inactive>'}" for link in range(ports)),
        )
    ]
    return "\n".join([*matrix, "", *states, ""])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (bug_report("NV6", (18, 18, 18, 18)), []),
        (bug_report("SYS", (12, 12, 12, 0)), ["gpu3.nvlink"]),
        (bug_report("NV5", (18, 18, 18, 15)), ["gpu3.nvlink"]),
        (bug_report("SYS", (18, 0)), ["gpu1.nvlink"]),
        (bug_report("SYS", (0, 0)), []),
        (bug_report("SYS", (12, 0), "NVIDIA A100 80GB PCIe", 12), []),  # the other card of the bridge is not visible
        (bug_report("SYS", (18, 0), "NVIDIA H100 NVL"), []),
    ],
)
def test_links_that_are_down_in_a_bug_report_are_degraded(text: str, found: list[str]) -> None:
    topology = read_observation(text).topology
    assert [each.what for each in topology.degraded if each.what.endswith("nvlink")] == found
    assert topology.uncertain == ()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(bug_report("SYS", (18, 0)).replace(" Link 3:", " Link 23:"), id="a gap"),
        pytest.param(bug_report("SYS", (18, 1)).removesuffix("\t Link 17: <inactive>\n"), id="without the last line"),
        pytest.param(bug_report("NV6", (18, 18, 18, 17)).replace("\t Link 5: 26.562 GB/s\n", "", 1), id="a lost line"),
    ],
)
def test_health_is_unknown_where_nvlink_s_does_not_list_all_links(text: str) -> None:
    topology = read_observation(text).topology

    assert topology.uncertain == (FactGroup.NVLINK,)
    assert [each.why for each in topology.problems if "nvlink -s does not list all links of GPU" in each.why]
    assert "gputopo.io/degraded" not in encode_topology(topology).labels


def test_a_matrix_with_more_lanes_than_active_links_leaves_the_nvlinks_uncertain() -> None:
    topology = read_observation(bug_report("NV6", (18, 18, 18, 17))).topology
    assert topology.uncertain == (FactGroup.NVLINK,)
    assert [each.why for each in topology.problems if "17 of 18" in each.why]


def test_the_gpus_are_found_from_the_links_alone() -> None:
    topology = read_observation(LINKS).topology

    assert [gpu.product for gpu in topology.gpus] == ["NVIDIA A40", "NVIDIA A40"]
    assert topology.islands is None


def test_mig_devices_of_a_list_beside_a_matrix_are_kept() -> None:
    mig = f"  MIG 1g.5gb Device 0: (UUID: MIG-{UUID[4:]})\n"

    topology = read_observation(LISTING.replace("\n", f"\n{mig}", 1) + TOPO).topology

    assert [[device.profile for device in gpu.mig_devices] for gpu in topology.gpus] == [["1g.5gb"], []]


def test_a_matrix_after_the_text_of_a_query_is_read() -> None:
    query = "=====NVSMI LOG=====\nAttached GPUs : 2\n" + "".join(
        f"GPU 00000000:0{i}:00.0\n    Product Name : NVIDIA A40\n    Processes : None\n" for i in range(2)
    )

    topology = read_observation(query + TOPO).topology

    assert [gpu.product for gpu in topology.gpus] == ["NVIDIA A40", "NVIDIA A40"]
    assert [island.gpus for island in topology.islands or ()] == [(0, 1)]


def test_a_query() -> None:
    assert products(QUERY) == ["L4"]


def test_an_nccl_topology() -> None:
    assert [gpu.bus_id for gpu in read_observation(NCCL).topology.gpus] == ["0000:03:00.0"]


def test_an_hwloc_topology() -> None:
    device = '<object type="PCIDev" pci_busid="0000:03:00.0" pci_type="0302 [10de:15f9]"/>'

    found = read_observation(
        f'<?xml version="1.0"?><topology version="3.0"><object type="Machine">{device}</object></topology>'
    )

    assert [gpu.bus_id for gpu in found.topology.gpus] == ["0000:03:00.0"]


def test_a_snapshot() -> None:
    snapshot = (Path(bundled_directory()) / "8v100-2n-cubemesh" / "snapshot.json").read_text("utf-8")

    assert len(read_observation(snapshot).topology.gpus) == 8


NODES = {
    "JSON": json.dumps(node(), indent=4),
    "a list of one": json.dumps({"kind": "List", "items": [node()]}),
    "YAML": yaml.safe_dump(node()),
    "YAML with a comment and a marker": f"---\n# a comment\n{yaml.safe_dump(node())}",
}


@pytest.mark.parametrize("text", NODES.values(), ids=NODES)
def test_a_node_of_the_cluster(text: str) -> None:
    assert read_observation(text).topology == TOPOLOGY


@pytest.mark.parametrize("key", ["gputopo.io/islands", "gputopo.io/largest-island"])
def test_a_node_with_labels_that_contradict_its_annotation_is_uncertain(key: str) -> None:
    labels = encode_topology(TOPOLOGY).labels
    topology = read_observation(json.dumps(node(labels=labels | {key: "1"}))).topology

    assert topology.uncertain == tuple(FactGroup)
    assert f"{key} is 1, by the annotation {labels[key]}" in topology.problems[0].why
    assert encode_topology(topology).labels == {}


def test_a_node_whose_product_label_is_not_that_of_its_annotation_is_uncertain() -> None:
    labels = encode_topology(TOPOLOGY).labels | {"product.gputopo.io/NVIDIA-A40": "2"}

    assert read_observation(json.dumps(node(labels=labels))).topology.uncertain == tuple(FactGroup)


OTHER = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-15\t0\nGPU1\tSYS\t X \t16-31\t1\n"


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(OTHER.splitlines()[0] + "\n", id="header"),
        pytest.param(
            "gpu-1$ nvidia-smi topo -m\n" + OTHER.splitlines()[0] + "\ngpu-2$ nvidia-smi topo -m\n", id="prompts"
        ),
        pytest.param(OTHER.splitlines()[2] + "\n\n", id="last row"),
    ],
)
def test_a_rest_of_another_matrix_leaves_everything_uncertain(first: str) -> None:
    found = read_observation(first + TOPO).topology

    assert found.uncertain == tuple(FactGroup)
    assert "differ from the one shown" in found.problems[0].why


def test_a_name_or_a_quoted_row_beside_the_matrix_leaves_nothing_uncertain() -> None:
    quoted = TOPO.splitlines()[2]

    assert read_observation(f"GPU0\n{TOPO}\nLook at this row:\n{quoted}\n").topology.uncertain == ()


def test_status_of_links_without_uuids() -> None:
    text = "".join(
        f"GPU {index}: NVIDIA A100-PCIE-40GB\nNVML: Unable to retrieve NVLink information as all links are inActive\n"
        for index in range(2)
    )

    found = read_observation(text).topology

    assert [(gpu.index, gpu.uuid, gpu.product) for gpu in found.gpus] == [(0, None, None), (1, None, None)]
    assert FactGroup.GPUS in found.uncertain


@pytest.mark.parametrize("lost", [(1,), (2,), (1, 2)], ids=["in the middle", "at the end", "two"])
def test_unreachable_gpus_without_an_index_are_lost_and_not_hidden(lost: tuple[int, ...]) -> None:
    gpus = [f"GPU {index}: NVIDIA A40 (UUID: {UUID[:-1]}{index})\n" for index in range(3)]
    for index in lost:
        gpus[index] = f"Unable to determine the device handle for gpu 0000:0{index}:00.0: GPU is lost.\n"

    found = read_observation("".join(gpus)).topology

    assert tuple(gpu.index for gpu in found.gpus if not gpu.usable) == lost
    assert not found.partial


@pytest.mark.parametrize("text", [LISTING, LINKS], ids=["-L", "nvlink -s"])
def test_a_list_alone_never_shows_that_it_is_complete(text: str) -> None:
    topology = read_observation(text).topology

    assert FactGroup.GPUS in topology.uncertain
    assert any("that the list of GPUs is complete" in problem.why for problem in topology.problems)


NCCL_DAMAGED = NCCL.replace("numaid", "numa")
BAD = {
    "nothing": ("", "the input is empty; expected one of: `nvidia-smi topo -m`"),
    "blank": (" \n\t\n", "the input is empty"),
    "prose": ("hello\nworld\n", "Accepted: `nvidia-smi topo -m`"),
    "broken JSON": ('{"kind": "Node"', "invalid JSON"),
    "JSON of another kind": ('{"a": 1}', "unknown JSON object with the keys ['a']; expected one of"),
    "our own output": ('{"kind": "NodeTopology"}', "give the input that it was made from"),
    "a snapshot of the future": ('{"format": "gputopo.io/snapshot/v9"}', "gputopo.io/snapshot/v9"),
    "a snapshot with faults": (
        '{"format": "gputopo.io/snapshot/v1", "nvml": {"gpus": [{"index": "x"}]}}',
        '$.nvml.gpus[0].index: got "x"; expected a valid integer',
    ),
    "a snapshot that cannot be": (
        '{"format": "gputopo.io/snapshot/v1", "nvml": {"gpus": [{"index": 1000}]}}',
        "GPU index 1000 is not between 0 and 999",
    ),
    "half a character": ('{"\ud800": 1}', "invalid JSON"),
    "broken YAML": ("kind: [", "invalid YAML"),
    "a date that there is not": ("kind: Node\nmetadata: {name: 2001-99-99}", "invalid YAML"),
    "deep YAML": ("kind: Node\nmetadata: " + "[" * 5000, "invalid YAML"),
    "deep JSON": ('{"a":' * 200_000, "invalid JSON"),
    "YAML of another kind": ("kind: Pod\nmetadata: {name: p}", "found 1 objects (Pod p)"),
    "an odd Node": ('{"kind": "Node", "metadata": {"labels": 5}}', "not a Node as"),
    "several nodes": (
        json.dumps({"kind": "List", "items": [node("a"), node("b")]}),
        "expected one Node, found 2 objects (Node a, Node b)",
    ),
    "no node": ('{"kind": "List", "items": []}', "found 0 objects (nothing)"),
    "a Node without GPUs": (json.dumps(node(labels={}, annotations={})), "Node n1: the node has no annotation"),
    "a Node with a damaged annotation": (
        json.dumps(node(annotations={"gputopo.io/topology": "{"})),
        "Node n1: the topology annotation is damaged",
    ),
    "a damaged NCCL file": (NCCL_DAMAGED, "numaid"),
    "a damaged query": ("<?xml version='1.0'?><nvidia_smi_log>", "line 1"),
    "an hwloc file of a machine with other GPUs": (
        '<topology version="2.0"><object type="Machine"/></topology>',
        "no NVIDIA GPU in this hwloc topology",
    ),
    "a query that lost its GPUs": (
        "<?xml version='1.0'?><nvidia_smi_log><attached_gpus>4</attached_gpus></nvidia_smi_log>",
        "the driver has 4 GPUs, and the text describes none",
    ),
    "a damaged list": (LISTING + "GPU 1: x (UUID: )\n", "GPU 1: x"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_invalid_input_gets_an_error_that_says_what_to_do(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_observation(text)

    assert message in str(caught.value)


@given(st.text() | st.text().map(lambda text: "{" + text) | st.text().map(lambda text: "kind: " + text))
def test_any_text_is_a_topology_or_a_document_error(text: str) -> None:
    try:
        seen = read_observation(text)
    except InputError:
        return
    assert isinstance(seen.topology, NodeTopology)


BYTES = {
    "UTF-8": TOPO.encode(),
    "with a byte order mark": TOPO.encode("utf-8-sig"),
    "as PowerShell redirects it": TOPO.encode("utf-16"),
}


@pytest.mark.parametrize("data", BYTES.values(), ids=BYTES)
def test_text_is_read_in_the_encodings_that_occur(data: bytes) -> None:
    assert decode_text(data) == TOPO


def test_invalid_bytes_are_replaced() -> None:
    assert decode_text(b"GPU0\xff") == "GPU0\ufffd"


def test_bundled_machines_are_accepted_inputs(tmp_path: Path) -> None:
    assert tmp_path.exists()
    for snapshot in Path(bundled_directory()).glob("*/snapshot.json"):
        read_observation(decode_text(snapshot.read_bytes()))
