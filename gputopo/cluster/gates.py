"""Pods that gputopo's gate holds, and how they are let go without a place, to ordinary scheduling."""

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

# No pod with a gate has a node, so those that run are not even sent.
_WAITING = "spec.nodeName=,status.phase=Pending"
_AT_ONCE = 8  # calls; thousands of pods are let go in seconds without being a burden to the API server


class ReleaseResult(NamedTuple):
    """What became of one pod."""

    pod: PartialPod
    error: KubeError | None = None  # None: done, or there is no such pod any more

    @property
    def others(self) -> tuple[str, ...]:
        """Gates of others that hold it still."""
        return other_gates(gate.name for gate in self.pod.spec.scheduling_gates)

    def __str__(self) -> str:
        """``pods/NAMESPACE/NAME``, and who else holds it."""
        metadata = self.pod.metadata
        held = f" (still held by {', '.join(self.others)})" if self.others else ""
        return f"pods/{metadata.namespace}/{metadata.name}{held}"


def list_gated(kube: Kube, namespace: str | None = None) -> list[PartialPod]:
    """The pods that our gate holds, of a namespace or of all."""
    pods = kube.list_objects(PODS, PartialPod, ListOptions(namespace, fields=_WAITING))
    return [pod for pod in pods if any(gate.name == GATE for gate in pod.spec.scheduling_gates)]


def release_pods(kube: Kube, pods: Iterable[PartialPod]) -> Iterator[ReleaseResult]:
    """Take our gate away from each."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
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
