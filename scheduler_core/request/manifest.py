"""Pods as people write them: in YAML or JSON, bare or inside what makes them. Pure.

ManifestError    there is no pod in it, or it cannot be read; the text says which and what to do
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import yaml

from gputopo.labels import keys
from gputopo.process.decoding import convert
from scheduler_core.request.full_pod import FullPod

# Where a kind keeps the template of its pods: Deployment, Job and the like; CronJob; PodTemplate. PyTorchJob and its
# kin are not among them: they have several templates.
_WAYS = (("spec", "template"), ("spec", "jobTemplate", "spec", "template"), ("template",))


class ManifestError(ValueError):
    """There is no pod in it, or it cannot be read."""


class ManifestPod(NamedTuple):
    """A pod as it is written."""

    pod: FullPod
    left_out: tuple[str, ...] = ()  # keys of wishes that what makes it carries itself, and its template does not


def parse_pods(text: str) -> list[FullPod]:
    """The pods of ``read_written``."""
    return [each.pod for each in parse_manifest(text)]


def parse_manifest(text: str) -> list[ManifestPod]:
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


def _pods(document: Any) -> Iterator[ManifestPod]:
    if not isinstance(document, dict):
        return
    if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list):
        for each in document["items"]:
            yield from _pods(each)
        return
    named = _mapping(document.get("metadata"))
    for way in ((), *_WAYS) if document.get("kind") == "Pod" else _WAYS:
        found: Any = document
        for step in way:
            found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, dict):
            pod = _pod(found, named)
            yield ManifestPod(pod, _left_out(named, pod) if way else ())
            return


def _left_out(owner: dict[str, Any], pod: FullPod) -> tuple[str, ...]:
    said = {key for part in ("labels", "annotations") for key in _mapping(owner.get(part))}
    there = {*(pod.metadata.labels or ()), *(pod.metadata.annotations or ())}
    return tuple(key.key for key in keys.POD_KEYS if key.key in said - there)


def _mapping(found: Any) -> dict[Any, Any]:
    return found if isinstance(found, dict) else {}


def _pod(found: dict[str, Any], owner: dict[str, Any]) -> FullPod:
    try:
        pod = convert({**found, "metadata": found.get("metadata") or {}}, FullPod)
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
