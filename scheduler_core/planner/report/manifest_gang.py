"""The gang of a manifest: pods that do not exist yet, as the planner would see them once they are created. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gputopo.labels.keys import GATE
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.pod_source import ParsePod, PlannerPod, planner_pod
from scheduler_core.request.full_pod import FullPod
from scheduler_core.request.pod import PodSchedulingGate
from scheduler_core.request.pod_request import parse_request


class ManifestGang(NamedTuple):
    """A gang of several pods of a manifest."""

    name: GangName
    pods: tuple[int, ...]  # their places in the manifest


def gang_of_manifest(pods: Sequence[FullPod], first: int, namespace: str) -> ManifestGang | None:
    """Return the gang of a pod, given by its place, if it is of several pods of the manifest; None: it is not.

    ``namespace``: of pods that name none.
    """
    names = [_gang_name(pod, place, namespace) for place, pod in enumerate(pods)]
    members = tuple(place for place, name in enumerate(names) if name is not None and name == names[first])
    name = names[first]
    return None if name is None or len(members) < 2 else ManifestGang(name, members)


def new_pods(pods: Sequence[FullPod], namespace: str, now: float, parse: ParsePod = parse_request) -> Batch[PlannerPod]:
    """Return the pods as if they were created, with the scheduling gate, at ``now`` (seconds since 1970)."""
    created = (_created(pod, place, namespace, now) for place, pod in enumerate(pods))
    found = (planner_pod(pod.metadata.uid, pod, parse) for pod in created)
    return Batch(PlannerPod, tuple(pod for pod in found if pod is not None))


def _gang_name(pod: FullPod, place: int, namespace: str) -> GangName | None:
    created = _created(pod, place, namespace, 0.0)
    found = planner_pod(created.metadata.uid, created)
    if found is None or found.member is None or is_single_pod_gang(found.member.gang_request.gang):
        return None
    return found.member.gang_request.gang


def _created(pod: FullPod, place: int, namespace: str, now: float) -> FullPod:
    metadata, gates = pod.metadata, pod.spec.scheduling_gates or ()
    if all(gate.name != GATE for gate in gates):
        gates = (*gates, PodSchedulingGate(GATE))
    return replace(
        pod,
        metadata=replace(
            metadata,
            uid=f"manifest-{place}",
            name=metadata.name or f"pod-{place}",
            namespace=metadata.namespace or namespace,
            creation_timestamp=format_timestamp(now),
        ),
        spec=replace(pod.spec, scheduling_gates=gates),
    )
