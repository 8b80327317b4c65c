"""The tree at every width, for all machines: columns go first, then lines are folded, and no word is broken.

The recordings beside this repository are tested where they exist.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.recording.bundled import bundled_directory
from agent.recording.inputs import InputError, read_observation
from gputopo.model import NodeTopology
from gputopo.render import renderer
from gputopo.render.tree import render_tree
from tests.machines import MACHINES
from tests.property.strategies import topologies

WIDTHS = range(30, 121)
CORPUS = Path(__file__).parents[4] / "shared/corpus"
INDEX = CORPUS / "index.jsonl"
RECORDED = [json.loads(line)["file"] for line in INDEX.read_text().splitlines()] if INDEX.exists() else []
GPU = re.compile(r"^[│ ]*[├└]─ GPU\d")
ONE = re.compile(r"\S+(?: (?:[GMK]i?B|[GM]b/s|GB/s|each|→ \S+))*")  # one word, with its unit or its peer
FRAME = re.compile(r"^(?:[│|]  |   |[├└]─ |[|`]- )*\s*")


SNAPSHOTS = sorted(Path(bundled_directory()).glob("*/snapshot.json"))


def words(text: str) -> list[str]:
    """All words, without the frame of the tree."""
    return [word for line in text.splitlines() for word in FRAME.sub("", line).split()]


def check(topology: NodeTopology, width: int) -> None:
    full, narrow = render_tree(topology), render_tree(topology, width=width)

    for line in narrow.splitlines():
        assert len(line) <= width or ONE.fullmatch(FRAME.sub("", line)), (width, line)
    assert set(words(narrow)) <= set(words(full))
    # Nothing but the columns of products, memory and bandwidths is missing; the rest keeps its order.
    kept = iter(words(full))
    assert all(word in kept for word in words(narrow))
    assert len([line for line in narrow.splitlines() if GPU.match(line)]) == len(topology.gpus)


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_of_the_tests_at_every_width(name: str) -> None:
    for width in WIDTHS:
        check(MACHINES[name](), width)


@pytest.mark.parametrize("snapshot", SNAPSHOTS, ids=lambda path: path.parent.name)
def test_every_bundled_machine_at_every_width(snapshot: Path) -> None:
    topology = read_observation(snapshot.read_text(encoding="utf-8")).topology
    for width in WIDTHS:
        check(topology, width)


@pytest.mark.skipif(not RECORDED, reason="the recordings are not beside this repository")
@pytest.mark.parametrize("name", RECORDED)
def test_every_recording_at_every_width(name: str) -> None:
    try:
        topology = read_observation((CORPUS / name).read_bytes().decode()).topology
    except (InputError, UnicodeDecodeError):
        return
    for width in WIDTHS:
        check(topology, width)


@settings(max_examples=60, deadline=None)
@given(topologies(), st.integers(30, 120), st.booleans())
def test_whatever_the_hardware_is_called(topology: NodeTopology, width: int, ascii_only: bool) -> None:
    for line in render_tree(topology, ascii_only=ascii_only, width=width).splitlines():
        assert line.isprintable()
        assert line == line.rstrip()


@pytest.mark.parametrize("name", MACHINES)
def test_no_line_of_a_gpu_is_folded_while_a_column_can_go(name: str) -> None:
    """If one line is folded, products, memory and bandwidths are left out."""
    topology = MACHINES[name]()
    columns = [f"  {gpu.product.removeprefix('NVIDIA ')}  " for gpu in topology.usable if gpu.product]
    for width in WIDTHS:
        lines = render_tree(topology, width=width).splitlines()
        gpus = [place for place, line in enumerate(lines) if GPU.match(line)]
        folded = [place for place in gpus if place + 1 < len(lines) and re.match(r"^[│ ]{7,}\S", lines[place + 1])]
        if folded:
            assert not any(column in lines[place] for column in columns for place in gpus), width


def test_columns_go_in_the_stated_order_and_their_facts_stay_elsewhere() -> None:
    seen: list[tuple[bool, bool, bool]] = []
    for width in range(120, 29, -1):
        text = render_tree(MACHINES["h100_weak_uplink"](), width=width)
        line = next(line for line in text.splitlines() if "GPU3 " in line)
        seen.append(("H100" in line, "79.6 GiB" in line, "850 GB/s" in line))
        assert all(fact in " ".join(text.split()) for fact in ("H100 80GB HBM3", "79.6 GiB", "850 GB/s per GPU"))

    assert list(dict.fromkeys(seen)) == [(True,) * 3, (False, True, True), (False, False, True), (False,) * 3]


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    for width in WIDTHS:
        for line in render_tree(MACHINES["h100_weak_uplink"](), width=width).splitlines():
            assert not re.match(r"^[│ ]*(GiB|GB/s|Gb/s)", line)


def test_only_the_tree_adapts_to_the_terminal() -> None:
    topology = MACHINES["dgx1"]()

    assert renderer("matrix", width=30)(topology) == renderer("matrix")(topology)
    assert renderer("tree", width=30)(topology) == render_tree(topology, width=30) != renderer("tree")(topology)
