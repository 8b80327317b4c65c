"""The pods of a manifest in YAML or JSON: Pods, and the pod templates of Deployments, Jobs and others. Pure.

ManifestError    the manifest has no pod, or cannot be parsed; the message says which
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import yaml

from gputopo.labels import keys
from gputopo.process.decoding import convert
from gputopo.process.yaml_loader import BoundedLoader
from scheduler_core.request.full_pod import FullPod

# The path of the pod template: in Deployment, Job and similar kinds; in CronJob; in PodTemplate. PyTorchJob and similar
# kinds are not supported: they have several templates.
_TEMPLATE_PATHS = (("spec", "template"), ("spec", "jobTemplate", "spec", "template"), ("template",))


class ManifestError(ValueError):
    """The manifest has no pod, or cannot be parsed."""


class ManifestPod(NamedTuple):
    """A pod of a manifest."""

    pod: FullPod
    left_out: tuple[str, ...] = ()  # gputopo keys that are set on the owner, but not on its pod template


def parse_manifest(text: str) -> list[ManifestPod]:
    """Return the pods in their order, one for each Deployment, Job and similar object.

    A pod without a name gets the name of its owner. Raises ``ManifestError``.
    """
    try:
        documents = list(yaml.load_all(text, _ManifestLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ManifestError(f"invalid YAML or JSON: {' '.join(str(error).split())[:200]}") from error
    pods = [pod for each in documents for pod in _pods(each)]
    if not pods:
        raise ManifestError("no Pod found, and no object with a pod template (Deployment, Job, StatefulSet ...)")
    return pods


class _ManifestLoader(BoundedLoader):
    """Leaves a timestamp the text that it is, as Kubernetes does."""


_ManifestLoader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: node.value)


def _pods(document: Any) -> Iterator[ManifestPod]:
    if not isinstance(document, dict):
        return
    if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list):
        for each in document["items"]:
            yield from _pods(each)
        return
    named = _mapping(document.get("metadata"))
    for path in ((), *_TEMPLATE_PATHS) if document.get("kind") == "Pod" else _TEMPLATE_PATHS:
        found: Any = document
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, dict):
            pod = _pod(found, named)
            yield ManifestPod(pod, _left_out(named, pod) if path else ())
            return


def _left_out(owner: dict[str, Any], pod: FullPod) -> tuple[str, ...]:
    on_owner = {key for part in ("labels", "annotations") for key in _mapping(owner.get(part))}
    on_pod = {*(pod.metadata.labels or ()), *(pod.metadata.annotations or ())}
    return tuple(key.key for key in keys.POD_KEYS if key.key in on_owner - on_pod)


def _mapping(found: Any) -> dict[Any, Any]:
    return found if isinstance(found, dict) else {}


def _pod(found: dict[str, Any], owner: dict[str, Any]) -> FullPod:
    try:
        pod = convert({**found, "metadata": found.get("metadata") or {}}, FullPod)
    except msgspec.ValidationError as error:
        name = str(owner.get("name", ""))
        raise ManifestError(f"invalid pod {name!r}: {error}") from error
    metadata = pod.metadata
    named = msgspec.structs.replace(
        metadata,
        name=metadata.name or str(owner.get("name", "")),
        namespace=metadata.namespace or str(owner.get("namespace", "")),
    )
    return msgspec.structs.replace(pod, metadata=named)
