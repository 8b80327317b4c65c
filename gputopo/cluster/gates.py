"""Pods with gputopo's scheduling gate, and their release to ordinary scheduling, without a placement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import KubeError, NotFoundError
from gputopo.kube.objects import PartialPod
from gputopo.kube.rbac import PODS
from gputopo.labels.gate import other_gates, remove_gate_patch
from gputopo.labels.keys import GATE

# A pod with a gate has no node, so the API server need not send running pods.
_WAITING = "spec.nodeName=,status.phase=Pending"
_PARALLEL = 8  # calls; thousands of pods take seconds, at a low load on the API server


class ReleaseResult(NamedTuple):
    """The result for one pod."""

    pod: PartialPod
    error: KubeError | None = None  # None: released, or the pod is gone

    @property
    def others(self) -> tuple[str, ...]:
        """Return the gates of other controllers that still hold the pod."""
        return other_gates(gate.name for gate in self.pod.spec.scheduling_gates)

    def __str__(self) -> str:
        """Return ``pods/NAMESPACE/NAME`` and the other gates."""
        metadata = self.pod.metadata
        held = f" (still held by {', '.join(self.others)})" if self.others else ""
        return f"pods/{metadata.namespace}/{metadata.name}{held}"


def list_gated(kube: Kube, namespace: str | None = None) -> list[PartialPod]:
    """Return the pods with our gate, of a namespace or of all."""
    pods = kube.list_objects(PODS, PartialPod, ListOptions(namespace, fields=_WAITING))
    return [pod for pod in pods if any(gate.name == GATE for gate in pod.spec.scheduling_gates)]


def release_pods(kube: Kube, pods: Iterable[PartialPod]) -> Iterator[ReleaseResult]:
    """Remove gputopo's gate from each pod."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        yield from pool.map(lambda pod: _released(kube, pod), pods)


def _released(kube: Kube, pod: PartialPod) -> ReleaseResult:
    try:
        kube.patch(PODS, _ungated(pod))
    except NotFoundError:
        return ReleaseResult(pod)
    except KubeError as error:
        return ReleaseResult(pod, error)
    return ReleaseResult(pod)


def _ungated(pod: PartialPod) -> dict[str, Any]:
    metadata = pod.metadata
    identity = {
        "name": metadata.name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
    }
    return remove_gate_patch(identity, (gate.name for gate in pod.spec.scheduling_gates))
