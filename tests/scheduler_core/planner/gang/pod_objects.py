"""Pods of gangs as JSON of the API server."""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler_core.request.full_pod import FullPod

LLM = {"gputopo.io/gang": "llm", "gputopo.io/gang-size": "2"}


def pod(name: str = "w-0", gpus: int = 1, **changed: Any) -> dict[str, Any]:
    """A Pod; ``changed``: fields of its metadata, spec or status."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-18T11:00:00Z",
    }
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    spec: dict[str, Any] = {"containers": [{"name": "c", "resources": {"limits": limits}}]}
    for key, value in changed.items():
        if key in ("labels", "annotations", "ownerReferences", "finalizers", "deletionTimestamp"):
            metadata[key] = value
        elif key != "status":
            spec[key] = value
    return {"metadata": metadata, "spec": spec, "status": changed.get("status", {"phase": "Pending"})}


def gang_pod(name: str = "w-0", gpus: int = 1, **changed: Any) -> FullPod:
    return msgspec.convert(pod(name, gpus, **changed), FullPod)
