"""Clusters in files, as kubectl prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gputopo.cli.cluster_objects import NODE, STATE

KINDS = ((NODE, "Node", "v1"), (STATE, "NodeGpus", "gputopo.io/v1alpha1"))


def of_kind(item: dict[str, Any], kind: str, version: str = "v1") -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, **item}


def file_of(folder: Path, pods: list[dict[str, Any]], *more: dict[str, Any]) -> str:
    items = [of_kind(*each) for each in KINDS] + [of_kind(each, "Pod") for each in pods] + list(more)
    (folder / "c.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), encoding="utf-8")
    return str(folder / "c.json")
