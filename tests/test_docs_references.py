"""The generated reference pages list every value of the chart and every field of the custom resources."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from gputopo.crd.nodegpus import nodegpus_crd
from gputopo.crd.reservations import ledger_crd, reservation_crd

ROOT = Path(__file__).parents[1]
VALUES = (ROOT / "docs/helm-values.md").read_text(encoding="utf-8")
RESOURCES = (ROOT / "docs/custom-resources.md").read_text(encoding="utf-8")


def leaves(values: Any, schema: Any, path: str = "") -> Iterator[str]:
    """The values that a user sets; a map with free keys is one value."""
    for name, value in values.items():
        below = schema.get("properties", {}).get(name, {})
        if isinstance(value, dict) and below.get("properties") and name not in {"resources", "settings"}:
            yield from leaves(value, below, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def test_every_value_of_the_chart_has_one_row_with_its_default() -> None:
    values = yaml.safe_load((ROOT / "daemonset/chart/values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((ROOT / "daemonset/chart/values.schema.json").read_text(encoding="utf-8"))
    rows = re.findall(r"^\| `([\w.]+)` \|", VALUES, re.MULTILINE)

    assert sorted(rows) == sorted(leaves(values, schema))
    assert '| `kubeletSocket.directory` | string | `"/var/lib/kubelet/pod-resources"` |' in VALUES


def test_every_value_of_the_chart_has_a_meaning() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| .* \| (.*) \|$", VALUES, re.MULTILINE)

    assert [name for name, meaning in rows if not meaning.strip()] == []


FRAGMENT = re.compile(r"(of|that|which|by|between|with|for|from|such|as|see)\b|sha256|\W")


@pytest.mark.parametrize("page", [VALUES, RESOURCES], ids=["values", "resources"])
def test_a_meaning_is_more_than_a_fragment(page: str) -> None:
    """It names its subject, and does not begin with a preposition or a pronoun."""
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| `\w", line)]
    fragments = [row for row in rows if len(row[-1].split()) < 2 or FRAGMENT.match(row[-1])]

    assert fragments == []
    assert len(rows) > 60


def test_a_comment_beside_a_value_and_one_above_it_are_its_meaning() -> None:
    assert '| `scheduler.caller` | `"second"` or `"cluster"` | `"second"` | second: a second kube-scheduler' in VALUES
    assert '| `image.tag` | string | `""` | tag of the image; empty: the chart\'s appVersion |' in VALUES


def fields(schema: Any) -> Iterator[str]:
    for name, each in schema.get("properties", {}).items():
        if name not in {"apiVersion", "kind", "metadata", "spec", "status"}:
            yield name
        yield from fields(each)
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from fields(schema[inner])


@pytest.mark.parametrize("definition", [nodegpus_crd, reservation_crd, ledger_crd], ids=lambda of: of.__name__)
def test_every_field_of_a_definition_is_listed_below_its_kind(definition: Any) -> None:
    spec = definition()["spec"]
    (version,) = spec["versions"]
    kind = spec["names"]["kind"]
    section = re.search(rf"^## {kind}\n(.*?)(?=^## |\Z)", RESOURCES, re.MULTILINE | re.DOTALL)

    assert section is not None
    assert set(fields(version["schema"]["openAPIV3Schema"])) == set(
        re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE)
    )


def test_a_field_has_the_comment_of_its_source_and_the_limit_of_its_schema() -> None:
    assert '| `gpu` | string, at most 96 characters | yes | UUID of the physical GPU: "GPU-..." |' in RESOURCES
    assert "| `evictions` | list of [PlannedEviction](#plannedeviction), at most 10,000 | yes |" in RESOURCES


@pytest.mark.parametrize("file", sorted((ROOT / "docs/images").glob("concept-*.svg")), ids=lambda file: file.stem)
def test_a_diagram_is_well_formed_has_a_title_and_fits_light_and_dark_pages(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    places = [(float(each.attrib["x"]), float(each.attrib["y"])) for each in root.iter() if "y" in each.attrib]

    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert "prefers-color-scheme: dark" in text
    assert [place for place in places if not (0 <= place[0] < width and 0 <= place[1] < height)] == []
    assert f"(images/{file.name})" in (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
