"""Match the PodResources report of a node with its pods, by namespace and name: a report contains no UIDs. Pure.

The watches of pods and of reports are independent. A report may name a pod that the pod watch has not shown on the node
yet, and it may name a pod that has ended while a new pod of the same name runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from math import inf

import msgspec

from gputopo.crd.nodegpus import NodeGpus
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.placeholder_pods import FullName, full_name, gpu_holders
from scheduler_core.cache.staleness import observed_at

_MAX_CLOCK_SKEW_S = 10.0  # between a node and this process, plus the time that an agent's pass takes


def newly_named_pods(
    record: NodeRecord, assumed: Iterable[Occupant], gpus: NodeGpus
) -> Iterator[tuple[FullName, Counter[str]]]:
    """Yield the pods that a new report names, and neither the watches nor the former report have shown on the node.

    With each its whole GPUs by container. ``record``: the node before the report.
    """
    shown = {full_name(pod) for pod in (*record.pods, *record.departed, *assumed)}
    shown |= gpu_holders(record.gpus).keys()
    for name, devices in gpu_holders(gpus).items():
        if name not in shown:
            yield name, devices


def without_settled_pods(record: NodeRecord, ended_before: Container[str]) -> NodeRecord:
    """Return the record without these departed pods (UIDs), where the report neither names them nor may be late.

    A departed pod matters because its GPUs may have been in use while other pods were admitted. If the report names all
    pods of the node, it is known which GPUs these got.
    """
    named = gpu_holders(record.gpus).keys()
    if any(each.profile.devices and full_name(each) not in named for each in record.pods):
        return record
    departed = tuple(each for each in record.departed if each.uid not in ended_before or full_name(each) in named)
    return record if departed == record.departed else msgspec.structs.replace(record, departed=departed)


def without_replaced_pods(record: NodeRecord, ended_at: Mapping[str, float]) -> NodeRecord:
    """Return the record without departed pods whose name an admitted pod has, if the report is younger than their end.

    ``ended_at``: when the watch showed the end of each pod, by UID, in seconds since 1970.
    """
    if not record.departed:  # most nodes
        return record
    admitted = {full_name(pod) for pod in record.pods if pod.admitted}
    reported_at = -inf if record.gpus is None else observed_at(record.gpus)
    departed = tuple(
        pod
        for pod in record.departed
        if full_name(pod) not in admitted or reported_at <= ended_at.get(pod.uid, inf) + _MAX_CLOCK_SKEW_S
    )
    return msgspec.structs.replace(record, departed=departed)
