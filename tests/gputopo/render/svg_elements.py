"""Elements of drawings."""

from xml.etree import ElementTree as ET

from gputopo.model import NodeTopology
from gputopo.render.svg import render_svg

SVG = "{http://www.w3.org/2000/svg}"


def picture(topology: NodeTopology) -> ET.Element:
    return ET.fromstring(render_svg(topology))


def found(root: ET.Element, *classes: str) -> list[ET.Element]:
    return [each for each in root.iter(f"{SVG}g") if set(classes) <= set(each.attrib.get("class", "").split())]


def words(root: ET.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def legend(root: ET.Element) -> list[str]:
    return [word for entry in found(root, "entry") for word in words(entry)[-1:]]
