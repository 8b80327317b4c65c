"""The Graphviz graph: what it says, and that no name can break out of its quotes."""

import re
import shutil
import subprocess
from collections import Counter
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given, settings

from gputopo.model import Degradation, Gpu, Health, Nic, NodeTopology, Nvlink, PcieDistance, Uplink
from gputopo.render.dot import render_dot
from gputopo.render.wording import escape_invisible
from tests.gputopo.render.c2c_machines import DOWN, OFF, UNRATED, UP, tray
from tests.machines import MACHINES, a6000_pair_and_one
from tests.property.strategies import HOSTILE, topologies

needs_graphviz = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz (dot) is not installed")

A6000 = """\
graph topology {
  graph [fontname="Helvetica", fontsize=12, style="rounded", color="#8c959f", ranksep=0.7, nodesep=0.25];
  node [fontname="Helvetica", fontsize=11, shape=box, style="rounded,filled", fillcolor="#ffffff"];
  edge [fontname="Helvetica", fontsize=10, color="#57606a"];
  label="WRX80 Creator";
  labelloc="t";
  subgraph cluster_numa0 {
    label="NUMA 0";
    gpu0 [label="GPU0\\nNVIDIA RTX A6000\\n48 GiB", fillcolor="#bfe3f5", color="#0072b2"];
    gpu1 [label="GPU1\\nNVIDIA RTX A6000\\n48 GiB", fillcolor="#bfe3f5", color="#0072b2"];
    gpu2 [label="GPU2\\nNVIDIA RTX A6000\\n48 GiB", fillcolor="#f6f8fa", color="#57606a"];
  }
  gpu0 -- gpu1 [label="NV4 112.5 GB/s", penwidth=2];
}
"""


def hostile(text: str) -> NodeTopology:
    return NodeTopology(
        machine=text,
        gpus=(Gpu(index=0, product=text, numa_affinity=text), Gpu(index=7, health=Health.LOST)),
        pcie=((None, PcieDistance.PIX), (PcieDistance.PIX, None)),
        nvlink=Nvlink(uplinks=(Uplink(gpu=0, fabric=0, lanes=0, expected_lanes=2),)),
        nics=(Nic(name=text, distances=(PcieDistance.PIX, None)), Nic(name=text, distances=(PcieDistance.PIX, None))),
    )


def graphviz(text: str, form: str) -> str:
    done = subprocess.run(["dot", f"-T{form}"], input=text, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_the_graph_of_a_machine() -> None:
    assert render_dot(a6000_pair_and_one()) == A6000


def test_a_degraded_gpu_is_red_where_no_link_shows_it() -> None:
    hurt = msgspec.structs.replace(a6000_pair_and_one(), degraded=(Degradation("gpu1.nvlink", "3 of 4 active"),))

    found = [line for line in render_dot(hurt).splitlines() if "degraded" in line]

    (line,) = found
    assert line.startswith('    gpu1 [label="GPU1\\nNVIDIA RTX A6000\\n48 GiB\\ndegraded", ')
    assert line.endswith('fillcolor="#bfe3f5", color="#cf222e", fontcolor="#cf222e"];')


def test_a_name_is_the_title_and_switches_fabrics_and_what_is_hurt_show() -> None:
    lines = render_dot(hostile('say "hi"'), name="node \\ 7").splitlines()

    assert lines[4:] == [
        '  label="node \\\\ 7";',
        '  labelloc="t";',
        "  subgraph cluster_numa0 {",
        '    label="NUMA say \\"hi\\"";',
        "    subgraph cluster_switch0x0 {",
        '      label="PCIe switch"; style="rounded,dashed";',
        '      gpu0 [label="GPU0\\nsay \\"hi\\"", fillcolor="#f6f8fa", color="#57606a"];',
        '      nics0x0 [label="say \\"hi\\"\\nsay \\"hi\\"", shape=ellipse, fontsize=9];',
        "    }",
        "  }",
        "  subgraph cluster_numa1 {",
        '    label="NUMA ?";',
        '    gpu7 [label="GPU7\\nLOST", fillcolor="#ffd7d5", color="#cf222e"];',
        "  }",
        '  nvswitch0 [label="NVSwitch", shape=box3d, fillcolor="#d0d7de", width=3];',
        '  gpu0 -- nvswitch0 [label="NV0/2", color="#cf222e", fontcolor="#cf222e", style=dotted];',
        "}",
    ]


def test_superchips_have_double_lines_to_their_cpus() -> None:
    lines = render_dot(tray(UP, DOWN, OFF, UNRATED)).splitlines()

    assert [line.strip() for line in lines if "cpu" in line] == [
        'cpu0 [label="CPU", fillcolor="#d0d7de"];',
        'cpu1 [label="CPU", fillcolor="#d0d7de"];',
        'gpu0 -- cpu0 [label="NVLink-C2C 894.2 GB/s", color="#57606a:#57606a"];',
        'gpu1 -- cpu0 [label="NVLink-C2C 9 of 10", color="#cf222e:#cf222e", fontcolor="#cf222e", style=dashed];',
        'gpu2 -- cpu1 [label="NVLink-C2C 0 of 10", color="#cf222e:#cf222e", fontcolor="#cf222e", style=dotted];',
        'gpu3 -- cpu1 [label="NVLink-C2C 10 of 10", color="#57606a:#57606a"];',
    ]


@pytest.mark.parametrize("name", MACHINES)
def test_only_machines_with_c2c_have_cpus(name: str) -> None:
    machine = MACHINES[name]()

    cpus = re.findall(r"gpu([0-9]+) -- cpu", render_dot(machine))
    assert sorted(map(int, cpus)) == [gpu.index for gpu in machine.gpus if gpu.c2c is not None]


@settings(max_examples=40, deadline=None)
@given(topologies())
def test_outside_of_quotes_there_are_only_our_own_words(topology: NodeTopology) -> None:
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', render_dot(topology))

    for line in bare.splitlines():
        assert re.fullmatch(r" *[a-z0-9_]*([a-z0-9 _{};=,.\[\]]|\"\"| -- )*", line), line


@needs_graphviz
@pytest.mark.parametrize("name", MACHINES)
def test_graphviz_draws_every_gpu_of_every_machine(name: str) -> None:
    machine = MACHINES[name]()

    drawn = re.findall(r"^node gpu([0-9]+) ", graphviz(render_dot(machine), "plain"), re.MULTILINE)

    assert sorted(map(int, drawn)) == [gpu.index for gpu in machine.gpus]


@needs_graphviz
@pytest.mark.parametrize("text", [text for text in HOSTILE if text.strip()], ids=lambda text: repr(text[:12]))
def test_graphviz_shows_hostile_names_as_they_are(text: str) -> None:
    drawn = ET.fromstring(graphviz(render_dot(hostile(text)), "svg"))
    shown = Counter(each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text"))

    ours = Counter(
        ["GPU0", "GPU7", "LOST", "NV0/2", "NVSwitch", "NUMA ?", "PCIe switch", f"NUMA {escape_invisible(text)}"]
    )
    assert shown == ours + Counter({escape_invisible(text): 4})  # machine, product, two NICs
