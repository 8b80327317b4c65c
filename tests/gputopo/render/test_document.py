"""The public JSON: what it says, that it says it in the published schema, and that no text breaks it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from gputopo.model import Gpu, NodeTopology, NumaNode, Nvlink, Uplink
from gputopo.render.document import render_json, topology_document
from gputopo.render.schema import document_schema, schema_text
from tests.machines import MACHINES, a100_bridged, b200_fallen_out, dgx1_link_down, gb200_tray, h100_weak_uplink, wsl
from tests.property.strategies import topologies

PUBLISHED = Path(__file__).parents[3] / "docs" / "schema" / "node-topology.v1.json"


def closed(schema: Any) -> Any:
    """The schema with no room for keys that it does not name: what our own output must obey."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return {**inner, "additionalProperties": False} if "properties" in schema else inner


VALIDATOR = Draft202012Validator(closed(document_schema()))


def links_of(topology: NodeTopology) -> list[tuple[int, int, str, int, int | None, float | None]]:
    return [
        (link["a"], link["b"], link["kind"], link["lanes"], link["expectedLanes"], link["gbps"])
        for link in topology_document(topology)["links"]
    ]


def components(links: list[dict[str, Any]], gpus: list[int]) -> list[list[int]]:
    """Connected components the slow and obvious way."""
    group = {gpu: {gpu} for gpu in gpus}
    for link in links:
        merged = group[link["a"]] | group[link["b"]]
        for gpu in merged:
            group[gpu] = merged
    return [sorted(each) for gpu, each in group.items() if gpu == min(each)]


@pytest.mark.parametrize("name", MACHINES)
def test_the_document_of_every_machine_obeys_the_schema_to_the_letter(name: str) -> None:
    VALIDATOR.validate(topology_document(MACHINES[name](), name=name))


@settings(max_examples=40, deadline=None)
@given(topologies())
def test_any_document_obeys_the_schema_and_survives_its_own_text(topology: NodeTopology) -> None:
    built = topology_document(topology)

    VALIDATOR.validate(built)
    assert json.loads(render_json(topology)) == built


@settings(max_examples=40, deadline=None)
@given(topologies())
def test_the_text_is_printable_ascii_whatever_the_hardware_is_called(topology: NodeTopology) -> None:
    text = render_json(topology)

    assert text.isascii()
    assert text.replace("\n", "").isprintable()


@settings(max_examples=40, deadline=None)
@given(topologies())
def test_islands_are_the_connected_components_of_links(topology: NodeTopology) -> None:
    built = topology_document(topology)

    if built["islands"] is None:
        assert built["links"] is built["uplinks"] is built["islandDetails"] is None
    else:
        usable = [gpu["index"] for gpu in built["gpus"] if gpu["health"] == "ok"]
        assert components(built["links"], usable) == built["islands"]
        assert [island["gpus"] for island in built["islandDetails"]] == built["islands"]


def test_a_bridged_pair_is_a_link_of_kind_nvlink() -> None:
    assert links_of(a100_bridged()) == [(0, 1, "nvlink", 12, 12, 600.0), (2, 3, "nvlink", 12, 12, 600.0)]


def test_a_pair_through_a_fabric_is_as_good_as_its_weaker_uplink() -> None:
    links = links_of(h100_weak_uplink())

    assert len(links) == 8 * 7 // 2
    assert [link[:2] for link in links if link[2:] == ("nvswitch", 17, 18, 850.0)] == [
        (0, 3), (1, 3), (2, 3), (3, 4), (3, 5), (3, 6), (3, 7),
    ]  # fmt: skip
    assert {link[2:] for link in links if 3 not in link[:2]} == {("nvswitch", 18, 18, 900.0)}


def test_a_pair_misses_the_lanes_that_its_weaker_uplink_misses() -> None:
    weak = Uplink(gpu=1, fabric=0, lanes=17, expected_lanes=18)
    uplinks = (Uplink(gpu=0, fabric=0, lanes=18), weak)  # a whole one expects nothing

    topology = NodeTopology(gpus=(Gpu(index=0), Gpu(index=1)), nvlink=Nvlink(uplinks=uplinks))

    assert links_of(topology) == [(0, 1, "nvswitch", 17, 18, None)]


def test_a_link_that_is_down_joins_no_gpus() -> None:
    joined = {link[:2]: link[3:] for link in links_of(dgx1_link_down())}

    assert (5, 7) not in joined
    assert joined[0, 3] == (1, 2, 50.0)


def test_a_gpu_out_of_its_fabric_keeps_its_uplink_and_is_an_island_of_one() -> None:
    built = topology_document(b200_fallen_out())

    assert built["islands"] == [[0, 1, 2, 3, 4, 6, 7], [5]]
    assert built["uplinks"][5] == {
        "gpu": 5, "fabric": 0, "lanes": 0, "expectedLanes": 18, "gbps": 0.0, "assumed": False,
    }  # fmt: skip
    assert built["degraded"] == [{"what": "gpu5.fabric", "why": "no NVLink is active while its 7 siblings have 18"}]


def test_unknown_facts_are_null() -> None:
    built = topology_document(wsl())

    assert built == {
        "apiVersion": "gputopo.io/v1",
        "kind": "NodeTopology",
        "name": None,
        "machine": None,
        "driverVersion": "566.36",
        "cudaVersion": "12.7",
        "bootId": None,
        "partial": False,
        "gpus": [
            {
                "index": 0,
                "uuid": None,
                "busId": None,
                "minor": None,
                "product": "NVIDIA GeForce RTX 4070 Laptop GPU",
                "architecture": None,
                "computeCapability": None,
                "memoryMiB": 8188,
                "numaNode": None,
                "numaAffinity": None,
                "memoryNumaNode": None,
                "cpuAffinity": None,
                "pcie": {"generation": None, "width": None, "maxGeneration": None, "maxWidth": None},
                "mig": {"enabled": None, "devices": []},
                "fabric": None,
                "c2c": None,
                "health": "ok",
            }
        ],
        "islands": None,
        "islandDetails": None,
        "links": None,
        "uplinks": None,
        "unknownLinks": [],
        "pcie": [],
        "nics": [],
        "numaNodes": [],
        "fabric": None,
        "degraded": [],
        "problems": [{"what": "nvlink", "kind": "unknown", "why": "WSL does not tell"}],
    }


def test_a_tray_of_a_rack_names_its_fabric_and_its_distances() -> None:
    built = topology_document(gb200_tray(), name="tray-7")

    assert built["name"] == "tray-7"
    assert built["fabric"] == {"clusterUuid": "7b968a6d-c8aa-45e1-9e07-e1e51be99c31", "clique": 32766}
    assert built["pcie"] == [
        {"a": 0, "b": 1, "distance": "NODE"},
        {"a": 0, "b": 2, "distance": "SYS"},
        {"a": 0, "b": 3, "distance": "SYS"},
        {"a": 1, "b": 2, "distance": "SYS"},
        {"a": 1, "b": 3, "distance": "SYS"},
        {"a": 2, "b": 3, "distance": "NODE"},
    ]
    assert built["nics"][0]["distances"] == {"0": "NODE", "1": "NODE", "2": "SYS", "3": "SYS"}
    assert built["numaNodes"][2] == {"id": 2, "cpus": "", "memoryMiB": None}


def test_astral_characters_are_escaped_as_json_wants_them() -> None:
    text = render_json(NodeTopology(machine="🂡", numa_nodes=(NumaNode(id=0, cpus="\x9b"),)))

    assert '"machine": "\\ud83c\\udca1"' in text
    assert '"cpus": "\\u009b"' in text


def test_the_published_schema_is_the_one_in_the_code() -> None:
    assert PUBLISHED.read_text() == schema_text(), "run: make docs"


def test_the_schema_is_a_schema_and_leaves_room_for_later_keys() -> None:
    Draft202012Validator.check_schema(document_schema())
    Draft202012Validator(document_schema()).validate({**topology_document(wsl()), "addedLater": 1})
