"""helm, kubectl and promtool: from PATH, or where ``scripts/tools`` put them; and what the manifests become in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DAEMONSET = ROOT / "daemonset"
CHART = DAEMONSET / "chart"
Object = dict[str, Any]  # a manifest, as YAML has it


def tool(name: str) -> str:
    """The path of a program. Skips the test where there is none. Ours come first: their versions are known."""
    digest = re.search(r'^SHA256="(\w{16})', (ROOT / "scripts/tools").read_text(), re.MULTILINE)
    assert digest is not None
    ours = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gputopo" / "tools" / digest[1] / name
    if found := shutil.which(ours) or shutil.which(name):
        return found
    pytest.skip(f"no {name}: `make manifests` brings it")


def run(name: str, *arguments: str | Path) -> str:
    """Return the output of a program. Fails the test with the program's output if it exits with an error."""
    done = subprocess.run([tool(name), *arguments], capture_output=True, text=True, check=False, cwd=DAEMONSET)
    assert done.returncode == 0, f"{name} {' '.join(map(str, arguments))}:\n{done.stdout}{done.stderr}"
    return done.stdout


@cache
def kustomized(folder: str) -> tuple[Object, ...]:
    """The objects of a kustomization below daemonset/."""
    return tuple(yaml.safe_load_all(run("kubectl", "kustomize", folder)))


def helm_rendered(*settings: str, namespace: str = "gputopo") -> tuple[Object, ...]:
    """The objects of the chart with ``--set`` of these, or with the chart's file of values of that name."""
    flags: list[str | Path] = []
    for setting in settings:
        flags += ["--values", CHART / setting] if setting.endswith(".yaml") else ["--set", setting]
    text = run("helm", "template", "gputopo", CHART, "--namespace", namespace, *flags)
    return tuple(each for each in yaml.safe_load_all(text) if each is not None)


def name_of(document: Object) -> tuple[str, str, str]:
    """Kind, namespace and name: what tells two objects apart."""
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]
