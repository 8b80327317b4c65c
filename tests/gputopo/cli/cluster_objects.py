"""Nodes and pods of a cluster, as lists of the API server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gputopo.crd.nodegpus import content_hash
from gputopo.labels import encode_topology, keys
from tests.api_server import Answer
from tests.machines import a100_bridged

FACTS = encode_topology(a100_bridged())


NODE: dict[str, Any] = {
    "metadata": {"name": "gpu-0", "uid": "n", "labels": FACTS.labels, "annotations": FACTS.annotations},
    "status": {"allocatable": {"nvidia.com/gpu": "4", "cpu": "64"}},
}


UUIDS = [gpu.uuid for gpu in a100_bridged().gpus]


HELD = [{"gpu": UUIDS[i], "pod": {"namespace": "a", "name": "train", "container": "c"}} for i in (0, 1, 2)]


STATE = {
    "metadata": {"name": "gpu-0"},
    "observedAt": datetime.now(UTC).isoformat(),
    "contentHash": content_hash(FACTS.annotations[keys.TOPOLOGY.key]),
    "agentVersion": "0.1.0",
    "allocations": HELD,
}


def pod(name: str, gpus: int, *, node: str = "", namespace: str = "a", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "uid": f"u-{name}", "annotations": more.pop("annotations", {})}
    spec = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}}}]}
    return {"metadata": metadata, "spec": spec | ({"nodeName": node} if node else {}), "status": more}


def listed(*items: object) -> Answer:
    return Answer({"metadata": {"resourceVersion": "7"}, "items": items})
