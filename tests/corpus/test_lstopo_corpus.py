"""The parser of hwloc's XML against recordings of real machines, where available."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent.sources.lstopo import LstopoTopology, parse_lstopo
from agent.sources.nccl import NvlinkEnd

CORPUS = Path(__file__).parents[2].parent / "shared" / "corpus"
INDEX = CORPUS / "index.jsonl"
ROWS: list[dict[str, Any]] = (
    [row for row in map(json.loads, INDEX.read_text().splitlines()) if row["kind"] == "lstopo-xml"]
    if INDEX.exists()
    else []
)


pytestmark = pytest.mark.skipif(not ROWS, reason="../shared/corpus is not here")


def recorded(fragment: str) -> tuple[LstopoTopology, dict[str, Any]]:
    (row,) = (row for row in ROWS if fragment in row["file"])
    return parse_lstopo((CORPUS / row["file"]).read_text()), row


def test_every_gpu_of_a_dgx2_has_six_links_into_nvswitches() -> None:
    topology, row = recorded("dgx2")

    assert topology.nvlinks is not None
    reached = {(link.end, link.mbps) for link in topology.nvlinks}
    links = Counter(link.gpu for link in topology.nvlinks)
    assert reached == {(NvlinkEnd.NVSWITCH, 25000)}
    assert [links[gpu.bus_id] for gpu in topology.gpus] == [6] * row["gpus"]
    assert [gpu.numa_node for gpu in topology.gpus] == [0] * 8 + [1] * 8
    assert [[gpu.index for gpu in topology.gpus]] == row["islands"]


def test_the_gpus_of_a_minsky_are_joined_in_pairs_and_to_their_cpu() -> None:
    topology, row = recorded("power8")

    assert topology.nvlinks is not None
    index = {gpu.bus_id: gpu.index for gpu in topology.gpus}
    pairs = sorted([index[link.gpu], index[link.to]] for link in topology.nvlinks if link.to in index)
    to_cpu = Counter(link.gpu for link in topology.nvlinks if link.end is NvlinkEnd.CPU)
    assert [pair for pair in pairs if pair in row["islands"]] == row["islands"] == [[0, 1], [2, 3]]
    assert pairs == [[0, 1], [1, 0], [2, 3], [3, 2]]
    assert to_cpu == dict.fromkeys(index, 1)


@pytest.mark.parametrize(
    ("fragment", "numa", "nics"),
    [
        ("lassen", [0, 0, 8, 8], ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]),
        ("pascal", [0, 0], ["mlx5_0"]),
        ("g4dn-metal", [0, 0, 0, 0, 1, 1, 1, 1], ["rdmap197s0"]),
        ("gb10", [], []),
    ],
)
def test_recordings_without_bandwidths_still_have_numa_nodes_and_nics(
    fragment: str, numa: list[int], nics: list[str]
) -> None:
    topology, _ = recorded(fragment)

    assert [gpu.numa_node for gpu in topology.gpus] == numa
    assert [nic.name for nic in topology.nics] == nics
    assert topology.nvlinks is None


@pytest.mark.parametrize("row", [pytest.param(row, id=row["file"]) for row in ROWS])
def test_no_serial_number_is_in_the_result(row: dict[str, Any]) -> None:
    text = (CORPUS / row["file"]).read_text()

    found = repr(parse_lstopo(text))
    assert all(serial not in found for serial in re.findall(r'name="NVIDIASerial" value="(\w{6,})"', text))
