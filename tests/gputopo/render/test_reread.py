"""gputopo can parse its own output: the matrix as ``topo -m``, the NCCL file as NCCL topology."""

import re
from itertools import combinations

import pytest
from hypothesis import assume, given, settings

from agent.sources.errors import ParseError
from agent.sources.nccl import NvlinkEnd, parse_nccl
from agent.sources.smi.topo import parse_topo
from gputopo.model import NodeTopology, PcieDistance
from gputopo.render.document import topology_document
from gputopo.render.matrix import render_matrix
from gputopo.render.nccl_xml import render_nccl_xml
from tests.machines import MACHINES
from tests.property.strategies import topologies

WITH_GPUS = [name for name, made in MACHINES.items() if made().gpus]
WITH_BUS_IDS = [name for name in WITH_GPUS if all(gpu.bus_id for gpu in MACHINES[name]().gpus)]
# A matrix of question marks reads back with less: see the property test for what must not be read into it.
WITH_CELLS = [name for name in WITH_GPUS if MACHINES[name]().nvlink is not None]


def lanes(topology: NodeTopology) -> dict[tuple[int, int], int]:
    """Lanes per pair that NVLink joins."""
    return {(link["a"], link["b"]): link["lanes"] for link in topology_document(topology)["links"] or []}


@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("name", WITH_CELLS)
def test_the_matrix_reads_back_as_topo_m(name: str, *, ascii_only: bool) -> None:
    machine = MACHINES[name]()

    read = parse_topo(render_matrix(machine, ascii_only=ascii_only))

    indices = [gpu.index for gpu in machine.gpus]
    assert [gpu.index for gpu in read.gpus] == indices
    assert [gpu.numa_affinity for gpu in read.gpus] == [gpu.numa_affinity for gpu in machine.gpus]
    assert [(nic.name, nic.distances) for nic in read.nics] == [(nic.name, nic.distances) for nic in machine.nics]
    joined = lanes(machine)
    for (i, a), (j, b) in combinations(enumerate(indices), 2):
        assert read.cells[i][j] == joined.get((a, b), machine.distance(a, b)), (a, b)


@settings(max_examples=100, deadline=None)
@given(topologies(max_gpus=4))
def test_no_matrix_reads_back_with_nvlinks_or_distances_that_are_not_there(topology: NodeTopology) -> None:
    assume(len(topology.gpus) > 1)
    text = render_matrix(topology)
    printed = {word for word in re.split(r"\s+", text.split("\n\n")[0]) if word}

    try:
        read = parse_topo(text)
    except ParseError:  # too little in it to be sure of anything
        return

    for cell in {cell for row in read.cells for cell in row} - {None}:
        assert (cell.value if isinstance(cell, PcieDistance) else f"NV{cell}") in printed


@pytest.mark.parametrize("name", WITH_BUS_IDS)
def test_the_nccl_file_reads_back_with_the_same_nvlinks(name: str) -> None:
    machine = MACHINES[name]()
    bus_ids = {gpu.bus_id: gpu.index for gpu in machine.gpus}

    read = parse_nccl(render_nccl_xml(machine))

    assert [gpu.dev if machine.nvlink else bus_ids[gpu.bus_id] for gpu in read.gpus] == [
        gpu.index for gpu in machine.usable
    ]
    direct = {
        (bus_ids[gpu.bus_id], bus_ids[link.bus_id]): link.lanes
        for gpu in read.gpus
        for link in gpu.nvlinks or ()
        if link.end is NvlinkEnd.GPU
    }
    uplinks = {
        bus_ids[gpu.bus_id]: link.lanes
        for gpu in read.gpus
        for link in gpu.nvlinks or ()
        if link.end is NvlinkEnd.NVSWITCH
    }
    through = {pair: min(uplinks[end] for end in pair) for pair in combinations(sorted(uplinks), 2)}
    assert {pair: count for pair, count in direct.items() if pair[0] < pair[1]} | through == lanes(machine)


@pytest.mark.parametrize("name", WITH_BUS_IDS)
def test_the_nccl_file_reads_back_with_the_same_nics_and_pcie_lanes(name: str) -> None:
    machine = MACHINES[name]()
    rates = {nic.bus_id: nic.rate_gbps and nic.rate_gbps * 1000 for nic in machine.nics if nic.bus_id}

    read = parse_nccl(render_nccl_xml(machine))

    assert {nic.bus_id: nic.name for nic in read.nics} == {nic.bus_id: nic.name for nic in machine.nics if nic.bus_id}
    assert {nic.bus_id: nic.speed_mbps for nic in read.nics} == rates
    known = {gpu.bus_id: gpu.pcie.max_width for gpu in machine.usable if gpu.pcie.max_generation}
    assert {gpu.bus_id: gpu.pcie_width for gpu in read.gpus if gpu.pcie_width} == known
