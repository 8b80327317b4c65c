"""The annotation carries the whole graph, within its budget, and refuses what it cannot read."""

import json

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gputopo.labels import AnnotationError, EncodeError, annotation, decode_topology, encode_topology
from gputopo.model import (
    Degradation,
    Gpu,
    Link,
    MigDevice,
    Nic,
    NodeTopology,
    NumaNode,
    Nvlink,
    PcieDistance,
    Uplink,
)
from tests.property.strategies import topologies


@given(topologies())
def test_decoding_what_was_encoded_gives_the_slow_facts_back(topology: NodeTopology) -> None:
    facts = encode_topology(topology)
    back = decode_topology(facts.labels, facts.annotations)

    if '"left_out"' not in facts.annotations["gputopo.io/topology"]:
        assert back == topology.stable_facts()
    assert back.islands == topology.islands
    assert encode_topology(topology).annotations == facts.annotations


@given(topologies(), st.data())
def test_machines_of_one_model_keep_their_own_facts(topology: NodeTopology, data: st.DataObject) -> None:
    """Decoding shares what two machines have in common; UUIDs, MIG devices and the boot id are of each machine."""
    text = st.none() | st.text(min_size=1, max_size=8)
    gpus = [
        msgspec.structs.replace(
            gpu,
            uuid=data.draw(text),
            mig_devices=tuple(MigDevice("1g.10gb", data.draw(text)) for _ in gpu.mig_devices),
        )
        for gpu in topology.gpus
    ]
    other = msgspec.structs.replace(topology, gpus=tuple(gpus), boot_id=data.draw(text))
    texts = [encode_topology(each).annotations for each in (topology, other)]
    back = [decode_topology({}, each) for each in texts]

    assume(not any('"left_out"' in each["gputopo.io/topology"] for each in texts))
    assert back == [topology.stable_facts(), other.stable_facts()]


def test_machines_of_one_model_share_the_link_graph() -> None:
    one, other = (
        decode_topology({}, encode_topology(each).annotations)
        for each in (crowded(), msgspec.structs.replace(crowded(), boot_id="later"))
    )

    assert other.nvlink is one.nvlink
    assert other.pcie is one.pcie
    assert other != one


@given(topologies())
def test_the_annotation_stays_within_its_budget(topology: NodeTopology) -> None:
    assert len(annotation.encode_annotation(topology).encode()) <= annotation.max_bytes(len(topology.gpus))


def crowded(text: str = "", devices: int = 0) -> NodeTopology:
    """16 GPUs with 10 NICs, everything known; ``text`` pads what may be left out."""
    gpus = tuple(
        Gpu(
            index=index,
            uuid=f"GPU-00000000-0000-0000-0000-{index:012d}",
            bus_id=f"0000:{index:02x}:00.0",
            product="NVIDIA H100 80GB HBM3",
            cpu_affinity=f"{index}{text}",
            mig_enabled=bool(devices),
            mig_devices=tuple(MigDevice("1g.10gb", f"MIG-{index}-{slot}{text}") for slot in range(devices)),
        )
        for index in range(16)
    )
    row = tuple(PcieDistance.SYS for _ in range(16))
    return NodeTopology(
        gpus=gpus,
        nvlink=Nvlink(uplinks=tuple(Uplink(gpu=index, fabric=0, lanes=18, gbps=900.0) for index in range(16))),
        pcie=tuple((*row[:index], None, *row[index + 1 :]) for index in range(16)),
        nics=tuple(Nic(name=f"mlx5_{index}", bus_id=f"0000:{index:02x}:00.1", distances=row) for index in range(10)),
        numa_nodes=(NumaNode(0, f"0-63{text}"), NumaNode(1, "64-127")),
        degraded=(Degradation("gpu3", f"why{text}"),),
    )


def test_sixteen_gpus_on_nvswitch_with_ten_nics_take_less_than_8_kib() -> None:
    text = annotation.encode_annotation(crowded())

    assert len(text) < 4096
    assert annotation.decode_annotation(text) == crowded()


SHED = {
    "MIG devices and CPUs go first": (crowded("z" * 600, 7), ["gpus.mig_devices", "gpus.cpu_affinity"]),
    "then what is of the node, and at last why": (
        crowded("z" * 9000, 1),
        ["gpus.mig_devices", "gpus.cpu_affinity", "numa_nodes", "nics", "degraded.why"],
    ),
}


@pytest.mark.parametrize(("topology", "left_out"), SHED.values(), ids=SHED)
def test_facts_beyond_the_size_limit_are_left_out_in_order_and_named(
    topology: NodeTopology, left_out: list[str]
) -> None:
    text = annotation.encode_annotation(topology)
    back = annotation.decode_annotation(text)

    assert len(text) <= annotation.BYTES_FOR_16
    assert [problem.what for problem in back.problems] == left_out
    assert back.islands == topology.islands
    assert [each.what for each in back.degraded] == [each.what for each in topology.degraded]


def one_sided() -> NodeTopology:
    """Sixteen GPUs, all pairs linked, every third link at one end only."""
    pairs = [(a, b) for a in range(16) for b in range(a + 1, 16)]
    links = tuple(
        Link(a=a, b=b, lanes=0, expected_lanes=2, one_sided=True) if at % 3 == 0 else Link(a=a, b=b, lanes=2)
        for at, (a, b) in enumerate(pairs)
    )
    return NodeTopology(gpus=tuple(Gpu(index=each, uuid=f"GPU-{each:036}") for each in range(16)), nvlink=Nvlink(links))


def test_one_sided_links_are_a_column_that_older_readers_ignore() -> None:
    text = annotation.encode_annotation(one_sided())
    document = json.loads(text)
    column = document["links"]["columns"].pop("one_sided")
    document["links"]["columns"]["of_a_newer_version"] = column

    assert len(text) <= annotation.BYTES_FOR_16
    assert annotation.decode_annotation(text) == one_sided()
    older = annotation.decode_annotation(json.dumps(document)).nvlink
    assert older is not None
    assert [link.lanes for link in older.links] == [link.lanes for link in (one_sided().nvlink or Nvlink()).links]


def test_machines_without_one_sided_links_have_no_such_column() -> None:
    assert "one_sided" not in annotation.encode_annotation(
        NodeTopology(gpus=(Gpu(index=0), Gpu(index=1)), nvlink=Nvlink((Link(a=0, b=1, lanes=2),)))
    )


def test_more_gpus_may_take_more() -> None:
    assert [annotation.max_bytes(gpus) for gpus in (0, 8, 16, 64)] == [8192, 8192, 8192, 32768]


def test_a_topology_that_exceeds_the_size_limit_is_refused() -> None:
    with pytest.raises(EncodeError, match=r"the topology of 1 GPUs takes \d+ bytes; at most 8192 fit"):
        annotation.encode_annotation(NodeTopology(gpus=(Gpu(index=0, product="x" * 9000),)))


def test_few_values_that_repeat_are_stored_once() -> None:
    gpus = tuple(Gpu(index=index, cpu_affinity="0-63" if index < 2 else "64-127") for index in range(4))

    stored = json.loads(annotation.encode_annotation(NodeTopology(gpus=gpus)))

    assert stored["gpus"]["columns"]["cpu_affinity"] == {"of": ["0-63", "64-127"], "at": [0, 0, 1, 1]}


GOOD = json.loads(annotation.encode_annotation(crowded()))
DAMAGED = {
    "no JSON": ("GPU0", "damaged"),
    "not an object": ("[]", "damaged"),
    "larger than any annotation": ('{"v":1}' + " " * annotation.max_bytes(64), "at most 32768 are read"),
    "cut": (json.dumps(GOOD)[:-30], "damaged"),
    "a later version": (json.dumps(GOOD | {"v": 2}), "has version 2; this gputopo reads 1: upgrade the older side"),
    "too many rows": (json.dumps(GOOD | {"gpus": {"n": 10**9}}), "a table of 1000000000 rows"),
    "a short column": (json.dumps(GOOD | {"gpus": {"n": 3, "columns": {"index": [0, 1]}}}), "2 values for 3 rows"),
    "a wild reference": (
        json.dumps(GOOD | {"gpus": {"n": 1, "columns": {"index": {"of": [0], "at": [7]}}}}),
        "column 'index' points outside of its values",
    ),
    "an unknown distance": (json.dumps(GOOD | {"pcie": "q" * 120}), "'q' is not a PCIe distance"),
    "distances of another machine": (json.dumps(GOOD | {"pcie": "s"}), "1 PCIe distances for 120 pairs of GPUs"),
    "an impossible machine": (json.dumps({"v": 1, "gpus": {"n": 2, "columns": {"index": [0]}}}), "not ascending"),
}


@pytest.mark.parametrize(("text", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_annotation_is_refused_and_quoted(text: str, message: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        annotation.decode_annotation(text)

    assert message in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.sampled_from(["n", "columns", "of", "at", "index"]), each),
    ),
    st.sampled_from(sorted(GOOD)),
)
def test_any_json_in_any_place_gives_a_topology_or_an_annotation_error(value: object, place: str) -> None:
    try:
        back = annotation.decode_annotation(json.dumps(GOOD | {place: value}))
    except AnnotationError:
        return
    assert isinstance(back, NodeTopology)


@given(st.text())
def test_any_text_gives_a_topology_or_an_annotation_error(text: str) -> None:
    with pytest.raises(AnnotationError):
        annotation.decode_annotation(text)


def test_the_wire_keeps_every_field_of_the_model() -> None:
    """A field that the model gains must not be lost silently: the annotation's node part names no fields itself."""
    tables = {"gpus", "nvlink", "pcie", "nics", "numa_nodes", "degraded", "problems", "uncertain"}
    scalars = {field.name for field in msgspec.structs.fields(NodeTopology)} - tables

    # ``summary`` is of nodes without the annotation.
    assert scalars - {"summary"} == {"machine", "driver_version", "cuda_version", "boot_id", "partial"}
