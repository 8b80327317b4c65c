"""Names of network cards in the drawing: whole, or shortened with the whole name in the legend."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import msgspec
import pytest

from gputopo.model import NodeTopology
from gputopo.render.svg import render_svg
from gputopo.render.svg.nic_names import nic_names, shortened_names
from tests.machines import MACHINES

SVG = "{http://www.w3.org/2000/svg}"


def with_names(*names: str) -> NodeTopology:
    """A DGX-1 whose first network cards have these names."""
    machine = MACHINES["dgx1"]()
    nics = [msgspec.structs.replace(nic, name=name) for nic, name in zip(machine.nics, names, strict=False)]
    return msgspec.structs.replace(machine, nics=tuple(nics))


def drawn(topology: NodeTopology) -> tuple[dict[str, str], set[str]]:
    """The text in the box of each network card by its whole name, and all texts of the drawing."""
    root = ET.fromstring(render_svg(topology))
    boxes = {group.attrib["data-nic"]: group for group in root.iter(f"{SVG}g") if "data-nic" in group.attrib}
    texts = {text for each in root.iter(f"{SVG}text") if (text := "".join(each.itertext()))}
    return {name: "".join(next(iter(box.iter(f"{SVG}text"))).itertext()) for name, box in boxes.items()}, texts


def test_short_names_are_whole_and_not_in_the_legend() -> None:
    boxes, texts = drawn(with_names("mlx5_0", "mlx5_10"))

    assert boxes == {"mlx5_0": "mlx5_0", "mlx5_10": "mlx5_10"}
    assert not [text for text in texts if " = " in text]


def test_long_names_keep_their_ends_and_the_legend_has_them_whole() -> None:
    names = ("rocep145s0f0", "rocep145s0f1", "ibp170s0f0np0")
    boxes, texts = drawn(with_names(*names))

    assert [label[:3] for label in boxes.values()] == ["ro…", "ro…", "ib…"]
    assert all(name.endswith(label[3:]) and len(label) > 5 for name, label in boxes.items())
    assert len(set(boxes.values())) == 3
    assert {f"{label} = {name}" for name, label in boxes.items()} <= texts


def test_names_that_would_be_shortened_alike_get_the_numbers_of_the_matrix() -> None:
    found = with_names("network-a-interface-0", "network-b-interface-0")

    assert list(nic_names(found).values())[1] == "NIC1"
    assert f"NIC1 = {found.nics[1].name}" in drawn(found)[1]


@pytest.mark.parametrize("name", MACHINES)
def test_every_name_of_every_machine_can_be_read_whole(name: str) -> None:
    topology = MACHINES[name]()
    boxes, texts = drawn(topology)
    hidden = {whole: label for label, whole in shortened_names(topology)}

    assert [each for each in boxes if each not in texts and f"{hidden.get(each)} = {each}" not in texts] == []
