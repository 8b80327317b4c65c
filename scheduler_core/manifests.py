"""Pods as people write them: in YAML or JSON, bare or inside what makes them. Pure.

ManifestError    there is no pod in it, or it cannot be read; the text says which and what to do
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from scheduler_core.stock import StockPod

# Where a kind keeps the template of its pods: Deployment, Job and the like; CronJob; PodTemplate. PyTorchJob and its
# kin are not among them: they have several templates.
_WAYS = (("spec", "template"), ("spec", "jobTemplate", "spec", "template"), ("template",))


class ManifestError(ValueError):
    """There is no pod in it, or it cannot be read."""


def read_pods(text: str) -> list[StockPod]:
    """The pods that are written there, in their order; one for each Deployment, Job and the like.

    A pod without a name is called like what makes it. Raises ``ManifestError``.
    """
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ManifestError(f"it is neither YAML nor JSON: {' '.join(str(error).split())[:200]}") from error
    pods = [pod for each in documents for pod in _pods(each)]
    if not pods:
        raise ManifestError(
            "there is no Pod in it, nor anything with a pod template (Deployment, Job, StatefulSet ...)"
        )
    return pods


def _pods(document: Any) -> Iterator[StockPod]:
    if not isinstance(document, dict):
        return
    if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list):
        for each in document["items"]:
            yield from _pods(each)
        return
    metadata = document.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    for way in ((), *_WAYS) if document.get("kind") == "Pod" else _WAYS:
        found: Any = document
        for step in way:
            found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, dict):
            yield _pod(found, named)
            return


def _pod(found: dict[str, Any], owner: dict[str, Any]) -> StockPod:
    try:
        pod = msgspec.convert({**found, "metadata": found.get("metadata") or {}}, StockPod)
    except msgspec.ValidationError as error:
        name = str(owner.get("name", ""))
        raise ManifestError(f"its pod {name!r} is none that Kubernetes takes: {error}") from error
    metadata = pod.metadata
    named = msgspec.structs.replace(
        metadata,
        name=metadata.name or str(owner.get("name", "")),
        namespace=metadata.namespace or str(owner.get("namespace", "")),
    )
    return msgspec.structs.replace(pod, metadata=named)
