"""The bill of materials names everything that the lock installs, and is valid."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from daemonset.images import IMAGES, load_images
from tests.daemonset.tools import DAEMONSET, ROOT

pytest.importorskip("cyclonedx", reason="no cyclonedx-python-lib: `make manifests` brings it")

from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from daemonset.sbom import Locked, make_bom, parse_lock

LOCK = (DAEMONSET / "requirements.lock").read_text()
RELEASED = 1_790_000_000  # 2026-09-21T14:13:20Z


def rendered(folder: Path, content: bytes = b"wheel") -> str:
    wheel = folder / "gputopo-1.2.3-py3-none-any.whl"
    wheel.write_bytes(content)
    bom = make_bom(wheel, parse_lock(LOCK), load_images(IMAGES.read_text()), RELEASED)
    return JsonV1Dot6(bom).output_as_string()


def test_it_is_valid_and_the_same_for_the_same_release(tmp_path: Path) -> None:
    text = rendered(tmp_path)

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert text == rendered(tmp_path)
    assert json.loads(text)["serialNumber"] != json.loads(rendered(tmp_path, b"another"))["serialNumber"]
    assert json.loads(text)["metadata"]["timestamp"] == "2026-09-21T14:13:20+00:00"


def test_it_names_the_wheel_each_locked_package_and_the_base_image(tmp_path: Path) -> None:
    document = json.loads(rendered(tmp_path))
    root, components = document["metadata"]["component"], document["components"]
    python, *_ = load_images(IMAGES.read_text())

    assert (root["purl"], root["hashes"]) == (
        "pkg:pypi/gputopo@1.2.3",
        [{"alg": "SHA-256", "content": hashlib.sha256(b"wheel").hexdigest()}],
    )
    assert {each["purl"] for each in components} == {
        *(f"pkg:pypi/{name}@{version}" for name, version in re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE)),
        f"pkg:docker/library/python@{python.digest}",
    }
    hashes = {
        hashed["content"]
        for each in components
        for reference in each.get("externalReferences", ())
        for hashed in reference["hashes"]
    }
    assert hashes == set(re.findall(r"sha256:(\w+)", LOCK))


def test_its_graph_is_that_of_the_requirements(tmp_path: Path) -> None:
    graph: dict[str, list[str]] = {
        each["ref"]: each.get("dependsOn", []) for each in json.loads(rendered(tmp_path))["dependencies"]
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, Any] = project["optional-dependencies"]
    direct = {
        canonicalize_name(Requirement(each).name)
        for each in (*project["dependencies"], *extras["agent"], *extras["cluster"])
    }

    assert {each.partition("==")[0] for each in graph["gputopo"] if "==" in each} == direct
    reached, found = set[str](), ["gputopo"]
    while found:
        reached.add(one := found.pop())
        found += set(graph[one]) - reached
    assert reached == set(graph)  # nothing is in the image without a reason


def test_an_entry_is_read_with_its_platforms_and_parents() -> None:
    text = f"""\
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
    # via
    #   -c locks/check.lock
    #   click
    #   gputopo (pyproject.toml)
click==8 \\
    --hash=sha256:{"c" * 64}
    # via gputopo
"""

    assert parse_lock(text) == [
        Locked("colorama", "0.4.6", "sys_platform == 'win32'", ("a" * 64, "b" * 64), ("click", "gputopo")),
        Locked("click", "8", "", ("c" * 64,), ("gputopo",)),
    ]
