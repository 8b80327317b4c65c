"""The Mermaid flowchart: what it says, and that no name can break out of its quotes."""

import re

import msgspec
from hypothesis import given, settings

from gputopo.model import Degradation, Gpu, Health, Link, Nic, NodeTopology, Nvlink, PcieDistance
from gputopo.render.mermaid import render_mermaid
from tests.gputopo.render.c2c_machines import DOWN, OFF, UNRATED, UP, tray
from tests.machines import a6000_pair_and_one, b200_fallen_out, nvlink_unknown
from tests.property.strategies import topologies

A6000 = """\
flowchart TB
  machine["WRX80 Creator"]:::title
  subgraph numa0["NUMA 0"]
    gpu0["GPU0<br/>NVIDIA RTX A6000<br/>48 GiB"]
    gpu1["GPU1<br/>NVIDIA RTX A6000<br/>48 GiB"]
    gpu2["GPU2<br/>NVIDIA RTX A6000<br/>48 GiB"]
  end
  gpu0 ---|"NV4 112.5 GB/s"| gpu1
  classDef islandA fill:#bfe3f5,stroke:#0072b2,color:#1f2328
  class gpu0,gpu1 islandA
  classDef alone fill:#f6f8fa,stroke:#57606a,color:#1f2328
  class gpu2 alone
  classDef title fill:none,stroke:none
"""

LINE = re.compile(
    r"flowchart TB"
    r'|\s+[a-z0-9]+(\["Q"\]|\(\["Q"\]\)|\{\{"Q"\}\})(:::title)?'
    r'|\s+subgraph [a-z0-9]+\["Q"\]'
    r"|\s+end"
    r'|  gpu[0-9]+ (---|-\.-|===)\|"Q"\| (gpu|nvswitch|cpu)[0-9]+'
    r"|  linkStyle [0-9,]+ stroke:#cf222e,color:#cf222e"
    r"|  classDef [A-Za-z]+ fill:[#a-z0-9]+,stroke:[#a-z0-9]+(,color:#1f2328)?"
    r"|  class [gpu0-9,]+ [A-Za-z]+"
    r"|  style gpu[0-9]+ stroke:#cf222e,stroke-width:3px"
)


def test_the_flowchart_of_a_machine() -> None:
    assert render_mermaid(a6000_pair_and_one()) == A6000


def test_a_degraded_gpu_says_so_where_no_link_shows_it() -> None:
    whole = a6000_pair_and_one()
    lines = render_mermaid(msgspec.structs.replace(whole, degraded=(Degradation("gpu1.nvlink", "3 of 4 active"),)))

    assert '    gpu1["GPU1<br/>NVIDIA RTX A6000<br/>48 GiB<br/>degraded"]' in lines
    assert lines.count("degraded") == 1
    assert "  style gpu1 stroke:#cf222e,stroke-width:3px\n" in lines


def test_a_fabric_is_one_body_and_degraded_links_are_red() -> None:
    lines = render_mermaid(b200_fallen_out(), name="node-1").splitlines()

    assert lines[1] == '  machine["node-1"]:::title'
    assert lines.count('  nvswitch0{{"NVSwitch"}}') == 1
    assert [line for line in lines if "nvswitch0" in line and "gpu5" in line] == ['  gpu5 -.-|"NV0/18"| nvswitch0']
    assert "  linkStyle 5 stroke:#cf222e,color:#cf222e" in lines


def test_superchips_have_thick_lines_to_their_cpus() -> None:
    lines = render_mermaid(tray(UP, DOWN, OFF, UNRATED)).splitlines()

    assert [line.strip() for line in lines if "cpu" in line] == [
        'cpu0["CPU"]',
        'cpu1["CPU"]',
        'gpu0 ===|"NVLink-C2C 894.2 GB/s"| cpu0',
        'gpu1 -.-|"NVLink-C2C 9 of 10"| cpu0',
        'gpu2 -.-|"NVLink-C2C 0 of 10"| cpu1',
        'gpu3 ===|"NVLink-C2C 10 of 10"| cpu1',
    ]
    edges = [line for line in lines if "|" in line]
    red = next(line for line in lines if "linkStyle" in line).split()[1].split(",")
    assert ["-.-" in line for line in edges] == [str(place) in red for place in range(len(edges))]


def test_unknown_and_lost_gpus_have_classes_of_their_own() -> None:
    assert "  class gpu0,gpu1,gpu2,gpu3,gpu4,gpu5,gpu6,gpu7 unknown" in render_mermaid(nvlink_unknown()).splitlines()
    assert render_mermaid(NodeTopology(gpus=(Gpu(index=0, health=Health.LOST),), nvlink=Nvlink())).splitlines() == [
        "flowchart TB",
        '  subgraph numa0["NUMA #63;"]',
        '    gpu0["GPU0<br/>LOST"]',
        "  end",
        "  classDef lost fill:#ffd7d5,stroke:#cf222e,color:#1f2328",
        "  class gpu0 lost",
        "  classDef title fill:none,stroke:none",
    ]


def test_special_characters_of_mermaid_become_entities() -> None:
    machine = NodeTopology(
        gpus=(Gpu(index=0, product='a"]; click b#`', numa_node=0), Gpu(index=1, product="中\n", numa_node=0)),
        nvlink=Nvlink(links=(Link(a=0, b=1, lanes=2, gbps=100.0),)),
        nics=(
            Nic(name="<b>", distances=(PcieDistance.PIX, PcieDistance.PIX)),
            Nic(name="", distances=(PcieDistance.PIX, PcieDistance.PIX)),
        ),
    )

    assert render_mermaid(machine).splitlines()[1:8] == [
        '  subgraph numa0["NUMA 0"]',
        '    subgraph switch0x0["PCIe switch"]',
        '      gpu0["GPU0<br/>a#34;#93;#59; click b#35;#96;"]',
        '      gpu1["GPU1<br/>中#92;n"]',
        '      nics0x0(["#60;b#62;<br/> "])',
        "    end",
        "  end",
    ]


@settings(max_examples=40, deadline=None)
@given(topologies())
def test_every_line_is_a_statement_of_ours(topology: NodeTopology) -> None:
    for line in render_mermaid(topology).split("\n")[:-1]:
        assert line.isprintable()
        bare = re.sub(r'"(?:[\w _\-.,:/()+@]|#[0-9]+;|<br/>)+"', '"Q"', line)
        assert LINE.fullmatch(bare), line
